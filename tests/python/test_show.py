"""attn.show: the files that `attn show` writes, from arrays in memory; a page for notebooks.
SPDX-License-Identifier: MIT
"""
import html.parser
import json
import os
import subprocess

import numpy as np
import pytest

from testdata import DTYPES, ROOT, SEED, attn, tensors

COMMAND = os.path.join(ROOT, "build", "attn")
Q, K, V = tensors(np.random.default_rng(SEED), np.dtype(np.float32), b=2, h=4, g=2, n=5, m=7)
TOKENS = ["token %d <b>" % n for n in range(7)]
CASES = {
    "plain": ({}, []),
    "masks": (dict(causal=True, align="bottom_right", window=(3, -1)), ["--causal", "--align", "bottom-right", "--window", "3,-1"]),
    "entry and head": (dict(entry=1, head=2, key_count=[7, 4]), ["--entry", "1", "--head", "2", "--key-count", "7,4"]),
    "tokens": (dict(tokens=TOKENS, log=True, largest=True), ["--tokens", "tokens.json", "--log", "--largest"]),
}


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
@pytest.mark.parametrize("name", CASES)
def test_the_commands_files(tmp_path, name, kind):
    options, arguments = CASES[name]
    for array, of in ((Q, "q"), (K, "k"), (V, "v")):
        np.save(tmp_path / (of + ".npy"), array)
    (tmp_path / "tokens.json").write_text(json.dumps(TOKENS))
    subprocess.run([COMMAND, "show", "q.npy", "k.npy", "v.npy", *arguments, "--" + kind, "theirs." + kind], cwd=tmp_path, check=True,
                   capture_output=True)
    attn.show(Q, K, V, name="q.npy, k.npy", path=tmp_path / ("ours." + kind), **options)
    assert (tmp_path / ("ours." + kind)).read_bytes() == (tmp_path / ("theirs." + kind)).read_bytes()


def test_weights_of_another_system(tmp_path):
    _, weights = attn.attention(Q, K, V, return_weights="weight")
    laid = np.asfortranarray(weights)
    np.save(tmp_path / "w.npy", weights)
    subprocess.run([COMMAND, "show", "--weights", "w.npy", "--entry", "1", "--svg", "theirs.svg"], cwd=tmp_path, check=True,
                   capture_output=True)
    attn.show(weights=laid, entry=1, name="w.npy", path=tmp_path / "ours.svg")
    assert (tmp_path / "ours.svg").read_bytes() == (tmp_path / "theirs.svg").read_bytes()
    attn.show(weights=weights[0, 0], path=tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_notebook_shows_the_page(tmp_path, dtype):
    class Reader(html.parser.HTMLParser):
        frames = []

        def handle_starttag(self, tag, attrs):
            self.frames.append((tag, dict(attrs)))

    page = attn.show(Q.astype(DTYPES[dtype]), K.astype(DTYPES[dtype]), tokens=TOKENS)  # without values
    reader = Reader()
    reader.frames = []
    reader.feed(page._repr_html_())
    (tag, frame), = reader.frames
    assert tag == "iframe" and frame["sandbox"] == "allow-scripts" and frame["srcdoc"] == page.html
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page.html and "<b>" not in page.html
    assert repr(page).startswith("<attn.Page")


@pytest.mark.parametrize("asked, words", [
    (dict(q=None), "q and k go together"),
    (dict(weights=Q), "q and k go together, or weights"),
    (dict(q=None, k=None, weights=Q, causal=True), "causal goes with q and k"),
    (dict(q=None, k=None, weights=Q[0, 0, 0]), "weights has 1 axes"),
    (dict(q=None, k=None, weights=Q[:, :, :0]), "nothing to show"),
    (dict(entry=2), "entry is 2; there are 2"),
    (dict(head=-1), "head is -1"),
    (dict(tokens=["a"]), "tokens holds 1 names"),
    (dict(path="picture.gif"), "must end in .png, .svg or .html"),
    (dict(causal=True), "align is not said"),
], ids=str)
def test_refusals(asked, words):
    with pytest.raises(ValueError, match=words):
        attn.show(**{"q": Q, "k": K, **asked})


def test_a_file_that_cannot_be_written(capfd):
    with pytest.raises(OSError, match="none/p.png: cannot be written"):
        attn.show(Q, K, path="none/p.png")
    assert capfd.readouterr() == ("", ""), "the sentence is the exception's"
