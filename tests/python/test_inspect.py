"""weights() and summary() against sums over the oracle's weights, or the project's own reference where there is no oracle.
SPDX-License-Identifier: MIT
"""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calls
import tolerance
from test_random import wanted
from testdata import DTYPES, ISAS, attn, tensors


def cells(x, rows, columns, fold):
    """A map of x by the rule of attn.h, with the fold (mean or max) of each cell."""
    n, m = x.shape[2:]
    return np.stack([np.stack([fold(x[:, :, r * n // rows:(r + 1) * n // rows, c * m // columns:(c + 1) * m // columns], axis=(2, 3))
                               for c in range(columns)], -1) for r in range(rows)], -2)


def check_tops(s, w, inputs, size):
    """Weights as large as the reference's largest, at keys that have them."""
    order = np.sort(w, axis=3)[..., ::-1]
    top = s.top_key.shape[3]
    want = np.zeros(s.top_key.shape)
    want[..., :min(top, w.shape[3])] = order[..., :top]
    want[np.isnan(w).any(axis=3)] = np.nan
    tolerance.check("top_weight", s.top_weight, want, inputs, size, least=1.0)
    there = s.top_key >= 0
    at = np.take_along_axis(w, np.maximum(s.top_key, 0), axis=3) if w.shape[3] else want
    tolerance.check("top_key", np.where(there, at, s.top_weight), s.top_weight.astype(np.float64), inputs, 2 * size, least=1.0)
    assert (s.top_weight[~there & ~np.isnan(s.top_weight)] == 0).all()


@calls.random_examples(150)
@given(calls.random_calls(), st.data())
def test_random_calls(drawn, data):
    call, rng = drawn
    batch, heads, queries, keys = call.shape
    if not (batch and heads and queries and keys) or call.needs_position():
        return
    want, size, size_all = wanted(call)
    w, inputs = want.weight, call.q.dtype
    lse = call.run(return_lse=True, threads=1)[1] if data.draw(st.booleans()) else None
    options = {**call.options, "isa": data.draw(st.sampled_from(ISAS)), "threads": data.draw(st.sampled_from([1, 3]))}
    some_heads = data.draw(st.one_of(st.none(), st.lists(st.integers(0, heads - 1), min_size=1, max_size=4)))
    rows = data.draw(st.one_of(st.none(), st.lists(st.integers(0, queries - 1), min_size=1, max_size=60)))
    first = data.draw(st.integers(0, keys - 1))
    part = data.draw(st.one_of(st.none(), st.tuples(st.just(first), st.integers(1, keys - first))))
    pick = np.ix_(range(batch), range(heads) if some_heads is None else some_heads, range(queries) if rows is None else rows, range(keys))
    w, seen = w[pick], want.seen[pick]
    places = {"heads": some_heads, "queries": rows, "keys": part}
    shown = slice(part[0], sum(part)) if part else slice(None)
    for stage in ("weight", "scaled", "capped", "biased"):
        got = attn.weights(call.q, call.k, lse, stage=stage, **places, **options)
        right = getattr(want, stage)[pick][..., shown]
        tolerance.check(stage, got, right, inputs, size_all if stage in ("scaled", "capped") else size,
                        least=1.0 if stage == "weight" else size_all)
        if stage == "weight":
            assert (got[~seen[..., shown]] == 0).all()
    mapped = (data.draw(st.integers(1, w.shape[2])), data.draw(st.integers(1, w[..., shown].shape[3])))
    said = options.get("align") is not None or options.get("query_offset") is not None
    s = attn.summary(call.q, call.k, lse, top=data.draw(st.integers(1, 64)), map=mapped, mass=(2, 1) if said else None, **places, **options)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(w == 0, 0, w * np.log(w)).sum(axis=3)
    tolerance.check("entropy", s.entropy, entropy, inputs, size, least=1.0 + np.nan_to_num(entropy).max(initial=0))
    lengths = call.lengths()
    start = np.minimum(lengths["key_start"], keys - 1)
    one = np.stack([w[b, :, :, start[b]] for b in range(batch)]) * (lengths["key_count"] > 0)[:, None, None]
    tolerance.check("first_mass", s.first_mass, one, inputs, size, least=1.0)
    if said:
        p = (np.arange(queries) if rows is None else np.array(rows))[None, :] + lengths["query_offset"][:, None]
        apart = p[:, :, None] - (np.arange(keys)[None, None] - lengths["key_start"][:, None, None])
        mass = np.where(((apart <= 2) & (apart >= -1))[:, None], w, 0).sum(axis=3)
        tolerance.check("window_mass", s.window_mass, mass, inputs, size, least=1.0)
    tolerance.check("received", s.received, w.sum(axis=2)[..., shown], inputs, size, least=np.nan_to_num(w.sum(axis=2)).max(initial=1))
    tolerance.check("map_mean", s.map_mean, cells(w[..., shown], *mapped, np.mean), inputs, size, least=1.0)
    tolerance.check("map_max", s.map_max, cells(w[..., shown], *mapped, np.max), inputs, size, least=1.0)
    check_tops(s, w, inputs, size)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_ranks(dtype):
    """Results have the axes of q, whatever its rank."""
    q, k, _ = tensors(np.random.default_rng(6), dtype)
    whole = attn.weights(q, k[:, [0, 0, 1, 1]])
    for rank, (x, y) in {4: (q, k), 3: (q[1], k[1]), 2: (q[1, 2], k[1, 1])}.items():
        got, s = attn.weights(x, y), attn.summary(x, y, top=2, map=(2, 3))
        assert (got == {4: whole, 3: whole[1], 2: whole[1, 2]}[rank]).all()
        assert s.entropy.shape == x.shape[:-1] and s.top_key.shape == x.shape[:-1] + (2,) and s.map_max.shape == x.shape[:-2] + (2, 3)
        assert s.received.shape == x.shape[:-2] + y.shape[-2:-1] and s.window_mass is None and s.top_key.dtype == np.int64


@pytest.mark.parametrize("change, sentence", [
    ({"stage": "sharp"}, "stage is 'sharp'; it must be one of weight, scaled, capped, biased"),
    ({"heads": [4]}, "heads is [4]; it must be numbers from -4 to 3, at least one"),
    ({"queries": []}, "queries is []; it must be numbers from -5 to 4, at least one"),
    ({"heads": [0.5]}, "heads is [0.5]; it must be a list of numbers"),
    ({"keys": (3, 9)}, "key_count is 9, outside 0 (all) to 4 (keys = 7 less key_first = 3)"),
    ({"lse": np.zeros((2, 4, 6), np.float32)}, "lse has shape (2, 4, 6), and must have (2, 4, 5)"),
    ({"lse": np.zeros((2, 4, 5))}, "lse.dtype is f64 (2), and must be f32, to go with q"),
    ({"top": 65}, "top is 65, and must be from 0 to 64"),
    ({"mass": (2, 1)}, "align is not said: window_mass needs it, as batch entry 0 has 5 queries and 7 keys; choose align top-left, "
     "align bottom-right, or query_offset"),
    ({"top": 1.5}, "top is 1.5; it must be a whole number"),
    ({"mass": 3}, "mass is 3; it must be a pair (left, right)"),
    ({"map": 3}, "map is 3; it must be a pair (rows, columns)"),
    ({"map": (1.5, 2)}, "map is 1.5; it must be a whole number"),
    ({"keys": 3}, "keys is 3; it must be a pair (first, count)"),
    ({"map": (6, 2)}, "map_rows is 6, more than the 5 queries that there are to show"),
])
def test_refusals(change, sentence):
    q, k, _ = tensors(np.random.default_rng(7), np.float32)
    function = attn.summary if set(change) & {"top", "mass", "map"} else attn.weights
    with pytest.raises(ValueError) as fault:
        function(q, k, **change)
    assert str(fault.value) == sentence


def test_long_sequence():
    """100,000 positions of one head: sampled rows against NumPy, sums that must come out, and no memory of queries * keys."""
    n, rng = 100_000, np.random.default_rng(8)
    q, k = rng.standard_normal((2, 1, n, 16), np.float32)
    rows = [0, 1, n // 2, n - 1]
    options = dict(causal=True, window=(4095, 0), threads=2)
    got = attn.weights(q, k, queries=rows, keys=(n // 2 - 10, 20), **options)
    s = attn.summary(q, k, queries=np.arange(0, n, 50), top=4, map=(64, 64), **options)
    few = attn.summary(q, k, queries=rows, top=4, **options)
    for at, row in enumerate(rows):
        keys = np.arange(max(0, row - 4095), row + 1)
        x = k[0, keys].astype(np.float64) @ q[0, row].astype(np.float64) / 4
        w = np.zeros(n)
        w[keys] = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
        size = float(np.abs(k[0, keys] * q[0, row]).sum(axis=1).max() / 4)
        tolerance.check("weight", got[0, at], w[n // 2 - 10:n // 2 + 10], np.float32, size, least=1.0)
        tolerance.check("entropy", few.entropy[0, at:at + 1], -np.array([(w[keys] * np.log(w[keys])).sum()]), np.float32, size, least=10.0)
        best = keys[np.argsort(-w[keys])[:4]]
        assert few.top_key[0, at, :len(best)].tolist() == best.tolist()
    total = s.received.sum(axis=1, dtype=np.float64)
    tolerance.check("received, summed", total.astype(np.float32), np.full(1, n / 50), np.float32, size)
    assert s.map_mean.shape == (1, 64, 64) and (s.map_max >= s.map_mean).all() and (np.triu(s.map_max[0], 1) == 0).all()
