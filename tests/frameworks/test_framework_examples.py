"""The gallery's examples that need PyTorch or others print what they say.
SPDX-License-Identifier: MIT
"""
import pytest

import gallery

NAMES = gallery.names(frameworks=True)


def test_the_gallery_is_there():
    assert {"sdpa.py", "hugging_face.py", "onnx_model.py", "train_sort.py"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_prints_what_it_says(name):
    gallery.check(name)
