"""The package as such: the oldest Python that it promises, type hints, words for everything public.
SPDX-License-Identifier: MIT
"""
import ast
import glob
import inspect
import os
import subprocess
import sys

import pytest
import vermin

from testdata import ROOT, attn

FILES = sorted(glob.glob(os.path.join(ROOT, "python", "attn", "*.py")))
FLOOR = (3, 9)


@pytest.mark.parametrize("path", FILES, ids=os.path.basename)
def test_the_oldest_python(path):
    """Other versions than the one that runs here are checked by reading: syntax, and what the standard library had."""
    with open(path) as file:
        source = file.read()
    ast.parse(source, feature_version=FLOOR)
    needed = vermin.visit(source).minimum_versions()[1]
    assert needed is None or needed <= FLOOR


def test_everything_public_is_described():
    for name in attn.__all__:
        thing = getattr(attn, name)
        if not callable(thing):
            continue
        assert len(inspect.getdoc(thing) or "") > 40, name
        if inspect.isfunction(thing):
            signature = inspect.signature(thing)
            assert signature.return_annotation is not inspect.Signature.empty, name
            assert all(p.annotation is not p.empty for p in signature.parameters.values()), name


def test_the_reference_is_current():
    """docs/python.md is what the docstrings say, and names everything public, that of the modules that need a framework too."""
    subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "python_docs.py"), "--check"], check=True)
    with open(os.path.join(ROOT, "docs", "python.md"), encoding="utf-8") as file:
        text = file.read()
    assert all("\n### attn.%s\n" % name in text for name in attn.__all__ if callable(getattr(attn, name)))
    assert "### attn.torch.scaled_dot_product_attention" in text and text.count("```") % 2 == 0


def test_typing_is_announced():
    assert os.path.exists(os.path.join(ROOT, "python", "attn", "py.typed"))
