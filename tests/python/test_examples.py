"""The gallery's examples that need NumPy only print what they say.
SPDX-License-Identifier: MIT
"""
import os
import re

import pytest

import gallery
from testdata import ROOT

NAMES = gallery.names(frameworks=False)


def test_the_gallery_is_there():
    assert {"padded_batch.py", "sliding_window.py", "decode_with_cache.py", "head_of_a_model.py", "wrong_mask.py"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_prints_what_it_says(name):
    gallery.check(name)


def test_the_readme_runs(capsys):
    with open(os.path.join(ROOT, "README.md")) as file:
        block = re.search(r"^```python\n(.*?)^```", file.read(), re.M | re.S).group(1)
    names: dict = {}
    exec(block, names)
    assert "of equal weight" in capsys.readouterr().out
    assert {name: names["grads"][name].shape == names[name].shape for name in "qkv"} == dict.fromkeys("qkv", True)
