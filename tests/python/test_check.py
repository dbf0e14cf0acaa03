"""attn.check: the report of `attn check --json` on arrays in memory; the mistakes that it names.
SPDX-License-Identifier: MIT
"""
import json
import os
import subprocess

import numpy as np
import pytest

from testdata import DTYPES, ROOT, SEED, attn, tensors

COMMAND = os.path.join(ROOT, "build", "attn")
RNG = np.random.default_rng(SEED)
Q, K, V = tensors(RNG, np.dtype(np.float32), b=2, h=4, g=2, n=6, m=6, d=8)
MASK = np.tri(6, dtype=bool) & (RNG.random((6, 6)) < 0.9)
MISTAKES = {  # what another system did, beside what was meant, and the name of that
    "inverted-mask": (dict(allow=~MASK), dict(allow=MASK)),
    "not-causal": ({}, dict(causal=True)),
    "not-scaled": (dict(scale=1.0), {}),
    "scaled-twice": (dict(scale=1 / 8), {}),
    "mask-ignored": ({}, dict(allow=MASK)),
    "window-narrower": (dict(window=(1, 0)), dict(window=(2, 0))),
    "softcap-ignored": ({}, dict(softcap=1.0)),
    "lengths-ignored": ({}, dict(key_count=[6, 3])),
}


def test_agreement():
    options = dict(causal=True, align="top_left", key_count=[6, 4], softcap=2.0)
    out, lse, weights = attn.attention(Q, K, V, return_lse=True, return_weights="weight", **options)
    found = attn.check(Q, K, V, out, lse=lse, weights=weights, **options)
    assert found and found.ok and found.causes == [] and "DIFFERENT" not in str(found)
    assert {part: found.to_dict()[part]["largest_error"] for part in ("out", "lse")} == {"out": 0.0, "lse": 0.0}
    assert str(found).count("agrees") == 3 and "agrees" in found._repr_html_()


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    done, meant = MISTAKES[name]
    theirs = attn.attention(Q, K, V, **done)
    found = attn.check(Q, K, V, theirs, **meant)
    assert not found and name in found.causes
    assert name in str(found) and "DIFFERENT" in str(found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_and_strides(dtype):
    q, k, v = (a.astype(DTYPES[dtype]) for a in (Q, K, V))
    out, lse, weights = attn.attention(q, k, v, return_lse=True, return_weights="weight")
    room = np.full((2, 6, 4, 17), np.nan, DTYPES[dtype])
    laid = room.swapaxes(1, 2)[..., 1::2]
    laid[...] = out
    assert attn.check(q, k, v, laid, lse=np.asfortranarray(lse), weights=np.ascontiguousarray(weights[..., ::-1])[..., ::-1])
    laid[1, 2, 3, 4] += 1
    found = attn.check(q, k, v, laid)
    assert not found and found.data["out"]["wrong_rows"] == 1 and found.data["out"]["first_wrong_rows"][0]["at"] == [1, 2, 3, 4]
    assert found.causes == [] and "cause: none that is known" in str(found)


def test_tolerance():
    out = attn.attention(Q, K, V) + np.float32(1e-3)
    assert not attn.check(Q, K, V, out) and attn.check(Q, K, V, out, tolerance=(1e-2, 0))


def test_lower_ranks():
    q, k, v = Q[0, 0], K[0, 0], V[0, 0]
    assert attn.check(q, k, v, attn.attention(q, k, v)) and attn.check(Q[0], K[0], V[0], attn.attention(Q[0], K[0], V[0]))


def test_the_commands_report(tmp_path):
    theirs = attn.attention(Q, K, V)
    for name, array in (("q", Q), ("k", K), ("v", V), ("theirs", theirs)):
        np.save(tmp_path / (name + ".npy"), array)
    done = subprocess.run([COMMAND, "check", "q.npy", "k.npy", "v.npy", "--against", "theirs.npy", "--causal", "--json"], cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.returncode == 1 and json.loads(done.stdout) == attn.check(Q, K, V, theirs, causal=True).to_dict()


@pytest.mark.parametrize("asked, words", [
    (dict(), "at least one result is needed"),
    (dict(out=V), r"out has shape \(2, 2, 6, 8\), and must have \(2, 4, 6, 8\)"),
    (dict(lse=Q), "lse has shape"),
    (dict(out=Q.astype(int)), "out has dtype int64"),
    (dict(out=Q, window=(1, 1), query_count=[6, 5]), "align is not said"),
], ids=str)
def test_refusals(asked, words):
    with pytest.raises(ValueError, match=words):
        attn.check(Q, K, V, **asked)
