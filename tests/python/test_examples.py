"""The gallery's examples that need NumPy only print what they say.
SPDX-License-Identifier: MIT
"""
import pytest

import gallery

NAMES = gallery.names(frameworks=False)


def test_the_gallery_is_there():
    assert {"padded_batch.py", "sliding_window.py", "decode_with_cache.py", "head_of_a_model.py", "wrong_mask.py"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_prints_what_it_says(name):
    gallery.check(name)
