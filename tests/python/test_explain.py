"""attn.explain: the numbers of `attn explain --json`, as a table, as arrays, in a notebook.
SPDX-License-Identifier: MIT
"""
import html.parser
import json
import os
import subprocess

import numpy as np
import pytest

import tolerance
from testdata import DTYPES, ROOT, SEED, attn, tensors

COMMAND = os.path.join(ROOT, "build", "attn")
F32 = np.float32
RNG = np.random.default_rng(SEED)
Q, K, V = tensors(RNG, np.dtype(F32), b=2, h=4, g=2, n=5, m=7, d=8, dv=3)
AT = dict(entry=1, head=3, row=2)
CASES = {
    "plain": {},
    "causal": dict(causal=True, align="bottom_right"),
    "top left": dict(causal=True, align="top_left", window=(1, -1)),
    "lengths": dict(key_count=[7, 4], key_start=[0, 2], query_count=[5, 3]),
    "padding row": dict(query_count=[5, 2]),
    "scores": dict(scale=0.4, softcap=2.0),
    "bias": dict(bias=np.where(RNG.random((5, 7)) < 0.3, -np.inf, RNG.random((5, 7))).astype(F32)),
    "mask and sink": dict(allow=RNG.random((5, 7)) < 0.6, sink=np.array([0.5, -np.inf, 1, 2], F32)),
    "alibi": dict(alibi=np.array([0.5, 0.25, 0.125, 0.0625], F32), align="top_left"),
}


def by_command(tmp_path, options, *more):
    arguments = []
    for name, value in dict(options, q=Q, k=K, v=V).items():
        if isinstance(value, np.ndarray):
            np.save(tmp_path / (name + ".npy"), value)
            value = str(tmp_path / (name + ".npy"))
        if name not in "qkv":
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            text = text.replace("_", "-") if name == "align" else text
            arguments += ["--" + name.replace("_", "-")] + ([] if value is True else [text])
    files = [str(tmp_path / (name + ".npy")) for name in "qkv"]
    where = [word for name, at in AT.items() for word in ("--" + name, str(at))]
    done = subprocess.run([COMMAND, "explain", *files, *where, *arguments, *more, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_the_commands_numbers(tmp_path, name):
    want = by_command(tmp_path, CASES[name])
    got = attn.explain(Q, K, V, **AT, **CASES[name]).to_dict()
    for words in ("mask", "scale_from"):  # these name the command's options
        assert (got.pop(words) is None) == (want.pop(words) is None)
    assert got == want


def test_what_is_asked_for(tmp_path):
    tokens = ["key %d <b>" % n for n in range(7)]
    (tmp_path / "tokens.json").write_text(json.dumps(tokens))
    more = ["--top", "3", "--sort", "weight", "--why", "4", "--stage", "weight", "--tokens", str(tmp_path / "tokens.json")]
    want = by_command(tmp_path, {}, *more)
    got = attn.explain(Q, K, V, **AT, top=3, sort="weight", why=4, stage="weight", tokens=tokens)
    assert got.to_dict() == want and len(want["keys"]) == 3 and "output" not in want
    assert got.to_numpy().dtype.names == ("key", "seen", "dot", "scaled", "capped", "bias", "alibi", "score", "less_max", "exp", "weight")
    assert "key 4     q.k = " in str(got) and "left out  4 keys" in str(got) and got.to_dict()["keys"][0]["token"].endswith("<b>")


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_those_of_attention(dtype):
    q, k, v = (a.astype(DTYPES[dtype]) for a in (Q, K, V))
    options = CASES["mask and sink"]
    out, lse, weights = attn.attention(q, k, v, return_lse=True, return_weights="weight", **options)
    e = attn.explain(q, k, v, **AT, **options)
    table, data = e.to_numpy(), e.to_dict()
    tolerance.check("weights", weights[1, 3, 2], table["weight"], DTYPES[dtype], 4.0)
    tolerance.check("lse", lse[1, 3, 2], np.float64(data["lse"]), DTYPES[dtype], 4.0)
    tolerance.check("out", out[1, 3, 2], np.array(data["output"]), DTYPES[dtype], 4.0)
    assert (table["seen"] == options["allow"][2]).all() and (table["score"][~table["seen"]] == -np.inf).all()
    tolerance.check("out", table["contribution"].sum(axis=0), np.array(data["output"]), np.float64, 4.0)
    assert all(one["ok"] for one in data["check"])


def test_the_table():
    q, k, v = np.array([[1.0, 0]]), np.eye(2), 10 * np.eye(2)
    lines = str(attn.explain(q, k, v)).splitlines()
    assert lines[0] == "Query 0 of head 0, f64" and "  masks     none" in lines
    rows = [line.split() for line in lines[5:7]]
    assert [row[1:6] for row in rows] == [["yes", "1.000", "0.707", "0.000", "1.000"], ["yes", "0.000", "0.000", "-0.707", "0.493"]]
    assert "  output    6.698, 3.302" in lines and lines[-1].strip() == "Weights tell where values were read, not why a model decided."


def test_a_notebook_shows_it_safely():
    class Reader(html.parser.HTMLParser):
        tags, texts = [], []

        def handle_starttag(self, tag, attrs):
            self.tags.append(tag)
            assert not any(name.startswith("on") for name, _ in attrs)

        def handle_data(self, data):
            self.texts.append(data)

    e = attn.explain(Q, K, V, **AT, tokens=["<script>alert(%d)</script>" % n for n in range(7)], allow=[True] * 6 + [False])
    reader = Reader()
    reader.feed(e._repr_html_())
    assert reader.tags.count("tr") == 8 and "script" not in reader.tags and "<script>alert(6)</script>" in reader.texts
    assert "no: mask" in reader.texts


@pytest.mark.parametrize("asked, words", [
    (dict(entry=None), "entry is not said: there are 2"),
    (dict(head=4), "head is 4; there are 4, from 0 on"),
    (dict(row=-1), "row is -1"),
    (dict(why=7), "why is 7; there are 7 keys"),
    (dict(sort="size"), "sort is 'size'"),
    (dict(stage="all"), "stage is 'all'"),
    (dict(tokens=["a"]), "tokens holds 1 names; there are 7"),
    (dict(query_tokens=["a"]), "query_tokens holds 1 names; there are 5"),
    (dict(causal=True), "align is not said"),
    (dict(scale=np.nan), "scale is"),
    (dict(v=V[:, :, :-1]), "k and v differ"),
], ids=str)
def test_refusals(asked, words):
    with pytest.raises(ValueError, match=words):
        attn.explain(**{**dict(q=Q, k=K, v=V), **AT, **asked})
