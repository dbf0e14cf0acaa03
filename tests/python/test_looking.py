"""What the package's inspect() says of the weights, against the weights themselves.
SPDX-License-Identifier: MIT
"""
import numpy as np
import pytest

import testdata
import tolerance
from testdata import attn

from attn._inspect import inspect

OPTIONS = {
    "plain": {},
    "causal": dict(causal=True, align="bottom_right"),
    "window": dict(window=(2, 1), align="top_left", softcap=3.0),
    "lengths": dict(key_count=[9, 5], key_start=[0, 2]),
    "sink": dict(sink=[0.5, -0.5, 1.0, 0.0], scale=0.7),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", OPTIONS)
def test_everything(name, dtype):
    options = OPTIONS[name]
    q, k, v = testdata.tensors(np.random.default_rng(1), np.dtype(dtype), n=6, m=9)
    _, lse, weights = attn.attention(q, k, v, return_lse=True, return_weights="weight", **options)
    heads, queries = [3, -3], [-1, 0, 2]
    p = weights[:, heads][:, :, queries]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(p > 0, np.log(p), 0)
    ranked = np.sort(p, -1)[..., ::-1][..., :3]
    for given in (None, lse):
        got = inspect(q, k, heads=heads, queries=queries, lse=given, values="weight", entropy=True, top=3, first_mass=True, received=True,
                      window_mass=(-1, -1), map_mean=(1, 3), map_max=(1, 3), **options)
        start = np.broadcast_to(options.get("key_start", 0), 2)
        first = np.stack([p[b, ..., start[b]] for b in range(2)])
        cells = p.reshape(2, 2, 1, 3, 3, 3)
        wanted = {"values": p, "entropy": -(p * logs).sum(-1), "top_weight": ranked, "first_mass": first, "received": p.sum(2),
                  "window_mass": p.sum(-1), "map_mean": cells.mean((3, 5)), "map_max": cells.max((3, 5))}
        keys = got.pop("top_key")
        assert keys.dtype == np.int64 and got.keys() == wanted.keys()
        for part, want in wanted.items():
            tolerance.check(part, got[part], want.astype(np.float64), dtype, 16.0, least=1.0)
        there = keys >= 0
        assert (there == (ranked > 0)).all()
        tolerance.check("weights of top_key", np.take_along_axis(p, np.maximum(keys, 0), -1)[there], ranked[there].astype(np.float64), dtype, 16.0)
        if given is None:
            assert np.array_equal(got["values"], p)


def test_ranks_and_keys():
    q, k, v = (x[0] for x in testdata.tensors(np.random.default_rng(2), np.dtype(np.float64), g=4, n=6, m=9))
    whole = attn.attention(q, k, v, return_weights="weight")[1]
    assert np.array_equal(inspect(q, k, values="weight", keys=(2, 3), heads=[1])["values"], whole[[1], :, 2:5])
    assert np.array_equal(inspect(q[1], k[1], values="weight", queries=[4])["values"], whole[1, [4]])
    assert inspect(q[1], k[1], received=True, keys=(2, 3))["received"].shape == (3,)


@pytest.mark.parametrize("given, sentence", [
    (dict(heads=[4]), "heads is"), (dict(queries=[-7]), "queries is"), (dict(queries=[]), "at least one"), (dict(heads=[1.5]), "list of numbers"),
    (dict(values="soft"), "values is 'soft'"), (dict(lse=np.zeros(3)), "lse has shape"), (dict(top=65, entropy=True), "top"),
    (dict(map_mean=(2, 2), map_max=(3, 2)), "one size"), (dict(keys=(8, 4), values="weight"), "key_"),
])
def test_refused(given, sentence):
    q, k, v = testdata.tensors(np.random.default_rng(3), np.dtype(np.float32), n=6, m=9)
    with pytest.raises(ValueError, match=sentence):
        inspect(q, k, **given)
