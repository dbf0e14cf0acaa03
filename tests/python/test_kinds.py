"""Kinds of faults that attention implementations have had: for each the shapes, types and options around the case that showed it, on
every isa, against the project's own reference. A name is that of a stored case; test_cases.py runs the cases themselves.
SPDX-License-Identifier: MIT
"""
import itertools

import numpy as np
import pytest

import calls
import memory
import reference
import tolerance
from testdata import DTYPES, ISAS, SEED, attn, needs_data, random, tensors

KINDS = {}
F32 = np.dtype(np.float32)


def kind(*names):
    """Registers a generator of (q, k, v, options) under the cases of its kind; `size` among the options overrides the reference's."""
    def register(function):
        KINDS.update({name: function for name in names})
        return function
    return register


def real(dtype):
    return np.float64 if dtype == np.float64 else np.float32


def agree(isa, q, k, v, o):
    """Runs the call and compares everything with the reference; what is not seen must weigh exactly nothing."""
    size = o.pop("size", None)
    out = o.pop("out", None)
    want = reference.reference(q, k, v, **o)
    out, lse, weight = attn.attention(q, k, v, isa=isa, out=out, return_lse=True, return_weights="weight", **o)
    size = want.size if size is None else size
    for name, got in (("out", out), ("lse", lse), ("weight", weight)):
        tolerance.check("%s (%s, %s)" % (name, isa, o), got, getattr(want, name), q.dtype, size)
    assert (weight[~want.seen] == 0).all()
    unseen = ~want.seen.any(axis=3)
    assert (out[unseen] == 0).all()
    assert o.get("sink") is not None or (lse[unseen] == -np.inf).all()


# ---- the kinds ----------------------------------------------------------------------------------------------------------------------


@kind("alibi-12-heads")
def slopes_of_any_number_of_heads(rng, dtype):
    for heads in (1, 2, 3, 5, 6, 8, 12, 20):
        slopes = attn.alibi_slopes(heads)
        q, k, v = tensors(rng, dtype, h=heads, g=heads)
        yield q, k, v, dict(alibi=slopes.astype(real(dtype)), align="bottom_right", causal=True)
        yield q, k, v, dict(alibi=np.stack([slopes, -slopes]).astype(real(dtype)), align="top_left")


@kind("bias-grad-key-vector", "mask-11k", "mask-qk")
def masks_that_broadcast(rng, dtype):
    full = (2, 4, 5, 7)
    q, k, v = tensors(rng, dtype, dv=11)
    for rank in range(5):
        for ones in itertools.product((True, False), repeat=rank):
            shape = tuple(1 if one else n for one, n in zip(ones, full[4 - rank:]))
            yield q, k, v, dict(bias=random(dtype, rng, *shape))
            yield q, k, v, dict(allow=rng.random(shape) < 0.7)
            wide = np.broadcast_to(random(F32, rng, *shape), full)  # strides of 0 in the argument itself
            yield q, k, v, dict(bias=wide, allow=np.broadcast_to(rng.random(shape[-1:]) < 0.7, full))


@kind("causal-bottom-right-long-q", "fullmask-lse")
def more_queries_than_keys(rng, dtype):
    for n, m in ((8, 3), (7, 2), (2, 1), (3, 0), (17, 16), (49, 1), (131, 3), (150, 129)):
        q, k, v = tensors(rng, dtype, n=n, m=m)
        yield q, k, v, dict(causal=True, align="bottom_right")
        yield q, k, v, dict(causal=True, align="bottom_right", sink=random(np.dtype(real(dtype)), rng, 4))


@kind("causal-offset-per-batch", "window-decode", "nan-beyond-key-length")
def lengths_per_batch(rng, dtype):
    for n, m in ((1, 11), (3, 6), (5, 130), (1, 300), (17, 140)):
        q, k, v = tensors(rng, dtype, b=4, n=n, m=m)
        for window in (None, (3, None), (0, 0), (40, 2)):
            count = [0, m, *rng.integers(0, m + 1, 2)]
            for b, used in enumerate(count):
                k[b, :, used:], v[b, :, used:] = np.nan, np.inf
            yield q.copy(), k.copy(), v.copy(), dict(causal=True, align="bottom_right", key_count=count, window=window)
            k, v = np.nan_to_num(k, posinf=1), np.nan_to_num(v, posinf=1)


@kind("decode-second-chunk")
def one_query_and_many_keys(rng, dtype):
    for used in (1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 2047, 2048, 2049, 4095, 4097):
        q, k, v = tensors(rng, dtype, b=1, n=1, m=used + 31)
        yield q, k, v, dict(key_count=used)
        yield q, k, v, dict(key_count=used, causal=True, align="bottom_right", key_start=31)


@kind("dv-larger", "headdim-3", "headdim-80")
def any_width(rng, dtype):
    widths = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 40, 48, 65, 80, 96, 127, 128, 130, 200, 256)
    for d, dv in itertools.chain(zip(widths, widths), zip(widths, reversed(widths)), ((3, 130), (130, 3))):
        q, k, v = tensors(rng, dtype, b=1, n=3, d=d, dv=dv)
        yield *(calls.lay(t, "gaps", rng) for t in (q, k, v)), dict(causal=True, align="bottom_right")


@kind("finite-min-bias-row", "float-01-mask-adds")
def finite_biases_do_not_hide(rng, dtype):
    for n, m in ((3, 3), (5, 17), (2, 130)):
        q, k, v = tensors(rng, dtype, n=n, m=m)
        for bias_type in {dtype, F32}:
            yield q, k, v, dict(bias=(rng.random((n, m)) < 0.5).astype(bias_type))
            if bias_type not in (DTYPES["f16"], DTYPES["bf16"]):
                lowest = np.zeros((n, m), bias_type)
                lowest[0] = np.finfo(bias_type).min  # absorbs every score: equal weights
                lowest[1, 1:] = np.finfo(bias_type).min
                # what the bias swallows is exact, so the bound is the one without it
                yield q, k, v, dict(bias=lowest, size=reference.reference(q, k, v).size)


@kind("first-tiles-empty-sink")
def windows_that_leave_tiles_empty(rng, dtype):
    for n in (1, 40, 129, 300):
        q, k, v = tensors(rng, dtype, b=1, n=n, m=n, d=4)
        for left in (0, 2, 127, 128, 129):
            yield q, k, v, dict(causal=True, window=(left, None), sink=np.array([2, -1.5, -np.inf, 20], real(dtype)))


@kind("fp16-qk-overflow")
def scores_beyond_the_inputs_type(rng, dtype):
    for d, m in ((16, 3), (64, 130)):
        q, k, v = np.full((1, 2, 2, d), 64.0), 16.0 * rng.integers(55, 57, (1, 1, m, 1)) + np.zeros(d), rng.standard_normal((1, 1, m, 8))
        k[..., 0] -= rng.integers(0, 2, (1, 1, m)) * 0.5
        yield *(t.astype(np.float32).astype(dtype) for t in (q, k, v)), dict(scale=0.0625)
    for m in (2, 200):  # sums that pass 65504 before the division
        q, k, v = tensors(rng, dtype, b=1, m=m)
        yield q, k, np.full_like(v, 60000), {}


@kind("fullmask-bool-row", "fullmask-grads", "neginf-bias-grad")
def rows_that_see_nothing(rng, dtype):
    for n, m in ((4, 5), (17, 130), (50, 300)):
        q, k, v = tensors(rng, dtype, n=n, m=m, dv=3)
        allow = rng.random((n, m)) < 0.6
        allow[1::3] = False
        bias = np.where(rng.random((1, 4, n, m)) < 0.3, -np.inf, rng.standard_normal((1, 4, n, m)))
        bias[0, 2, n // 2], bias[..., m // 2] = -np.inf, -np.inf
        bias = bias.astype(np.float32).astype(dtype)
        sink = np.array([0.5, -np.inf, -3, 30], real(dtype))
        for o in (dict(allow=allow), dict(bias=bias), dict(allow=allow, bias=bias), dict(allow=np.zeros((), bool)),
                  dict(bias=np.where(allow, -np.inf, 0).astype(np.float32), allow=allow)):  # none of the two hides all, both do
            yield q, k, v, o
            yield q, k, v, dict(o, sink=sink)
        yield q, k, v, dict(query_count=[n // 2, 0], key_count=[0, m], sink=sink)


@kind("gqa-grads", "gqa-repeat-not-tile", "sink-grads")
def groups_of_heads(rng, dtype):
    for heads, kv_heads in ((6, 2), (6, 3), (4, 1), (5, 5), (12, 4), (16, 1)):
        for n in (1, 3, 20):
            q, k, v = tensors(rng, dtype, h=heads, g=kv_heads, n=n)
            yield q, k, v, {}
            yield q, k, v, dict(sink=rng.uniform(-2, 2, heads).astype(real(dtype)), causal=True, align="bottom_right")


@kind("huge-logits-softcap", "softcap-before-mask")
def caps(rng, dtype):
    """Products of one sign do not cancel, so what rounding does to a score is small beside it, and the cap bounds what it does after."""
    for cap, big, m in itertools.product((0.5, 30.0, 50.0), (1, 100, 10000), (5, 131)):
        q, k, v = tensors(rng, dtype, n=3, m=m, d=4, dv=3)
        q, k = np.abs(q), np.sign(k[..., :1]) * np.abs(k) * np.asarray(big, dtype)
        yield q, k, v, dict(scale=1.0, softcap=cap, size=cap)
        hidden = np.where(rng.random((3, m)) < 0.4, -np.inf, 0).astype(dtype)
        yield q, k, v, dict(scale=1.0, softcap=cap, bias=hidden, size=cap)
        yield q, k, v, dict(scale=1.0, softcap=cap, causal=True, align="bottom_right", allow=hidden == 0, size=cap)


@kind("inner-stride-2", "negative-strides", "unaligned-base", "strided-dout")
def layouts(rng, dtype):
    for how, (n, m, d) in itertools.product(calls.LAYOUTS, ((3, 5, 4), (20, 131, 17))):
        arrays = tensors(rng, dtype, n=n, m=m, d=d)
        bias, allow = random(dtype, rng, 2, 1, n, m), rng.random((4, n, m)) < 0.8
        bias, allow, *arrays = (calls.lay(t, how, rng) for t in (bias, allow, *arrays))
        yield *arrays, dict(out=calls.strided_out((2, 4, n, d), dtype, how, rng)[0])
        yield *arrays, dict(bias=bias, allow=allow)


@kind("v-inside-k")
def values_inside_the_keys(rng, dtype):
    for d, dv in ((9, 8), (40, 33), (130, 64)):
        q, k, _ = tensors(rng, dtype, h=4, g=1, d=d, m=140)
        yield q, k, k[..., :dv], {}
        yield q, k, k[..., d - dv:], dict(causal=True, align="bottom_right")
        yield q, k[..., ::-1], k[:, :, ::-1, :dv], {}


@kind("mask-and-causal-both")
def a_causal_mask_and_causal(rng, dtype):
    for n in (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 127, 128, 129, 130, 200):
        q, k, v = tensors(rng, dtype, b=1, h=2, g=1, n=n, m=n, d=4)
        below = np.tri(n, dtype=bool)
        yield q, k, v, dict(causal=True, bias=np.where(below, 0, -np.inf).astype(dtype))
        yield q, k, v, dict(causal=True, allow=below)
        yield q, k, v, dict(causal=True, bias=np.where(below, 0, -np.inf).astype(dtype), allow=below[:, ::-1])


@kind("masked-weight-floor")
def weights_too_small_to_be(rng, dtype):
    big = {"float16": 60000.0}.get(dtype.name, 3e38)
    for m in (12, 140):
        for far in (-1e30, -20000.0, -500.0):
            q, k, v = tensors(rng, dtype, b=1, n=2, m=m, dv=2)
            if dtype == np.float64:
                far *= 10
            bias = np.zeros(m, F32)
            bias[-m // 3:] = far
            v[:, :, -m // 3:] = big
            yield q, k, v, dict(bias=bias, size=reference.reference(q, k, v).size)


@kind("nan-masked-value")
def nan_at_hidden_places(rng, dtype):
    for n, m in ((4, 6), (20, 140), (2, 2100)):
        for how in (dict(allow=rng.random((n, m)) < 0.5), dict(bias=np.where(rng.random(m) < 0.5, -np.inf, 0).astype(F32)),
                    dict(causal=True, align="top_left"), dict(window=(1, 0), align="bottom_right"), dict(key_count=m // 2),
                    dict(key_start=m // 2), dict(query_count=1)):
            q, k, v = tensors(rng, dtype, n=n, m=m)
            for bad in calls.GARBAGE:
                o = {"bias": None, **how}
                call = calls.spoil(calls.Call(q, k, v, o), np.random.default_rng(1))
                seen = reference.seen_pairs(call.shape, **o)[0].reshape(2, 2, -1, m).any(axis=2)
                call.v[~seen] = bad
                yield call.q, call.k, call.v, call.options


@kind("pad-left-start")
def padding_on_the_left(rng, dtype):
    for n, m in ((2, 6), (1, 140), (20, 300)):
        q, k, v = tensors(rng, dtype, b=3, n=n, m=m)
        start = rng.integers(0, m // 2, 3)
        for o in (dict(), dict(causal=True, align="bottom_right"), dict(causal=True, align="bottom_right", window=(2, None)),
                  dict(align="top_left", alibi=np.full(4, 0.25, real(dtype)))):
            yield q, k, v, dict(o, key_start=start)
            yield q, k, v, dict(o, key_start=start, key_count=(m - start) // 2)


@kind("tail-tile-low-lse-grad")
def low_scores_in_a_partial_tile(rng, dtype):
    for m in (1, 15, 17, 19, 127, 129, 2049):
        q, k, v = tensors(rng, dtype, b=1, n=3, m=m, d=16)
        q, k = -np.abs(q) * np.asarray(2, dtype) - np.asarray(2, dtype), np.abs(k) + np.asarray(8, dtype)
        yield q, k, v, dict(allow=rng.random((3, m)) < 0.8)
        yield q, k, v, dict(scale=5.0)


@kind("window-left-excludes-self")
def window_edges(rng, dtype):
    for n, m in ((8, 8), (3, 9), (130, 140)):
        q, k, v = tensors(rng, dtype, b=1, h=2, g=1, n=n, m=m, d=4)
        for left, right in itertools.product((None, 0, 1, 3, 128), repeat=2):
            for causal, align in itertools.product((False, True), ("top_left", "bottom_right")):
                yield q, k, v, dict(window=(left, right), causal=causal, align=align)


@kind("zero-kv")
def empty_axes(rng, dtype):
    whole = dict(b=2, h=4, g=2, n=3, m=5, d=4, dv=6)
    for name in ("b", "n", "m", "d"):
        for sink in (None, np.ones(4, real(dtype))):
            yield *tensors(rng, dtype, **{**whole, name: 0}), dict(sink=sink, causal=True, align="top_left")
    q, k, v = tensors(rng, dtype, **whole)
    yield q[:, :0], k, v, {}
    yield q[:, :0], k[:, :0], v[:, :0], {}
    yield q, k, v[..., :0], {}
    yield q, k, v, dict(key_count=0)
    yield q[..., :0], k[..., :0], v, dict(scale=3.0)


@kind("stride-past-2g")
def views_beyond_32_bits(rng, dtype):
    far = 2**31 + 64
    q, k, v = tensors(rng, dtype, g=1, n=2, m=3, d=4)
    bias, allow = random(dtype, rng, 2, 1, 2, 3), rng.random((2, 1, 2, 3)) < 0.8
    for name in ("q", "k", "v", "bias", "allow", "out"):
        arrays = dict(q=q, k=k, v=v, bias=bias, allow=allow, out=np.zeros_like(q))
        array = arrays[name]
        strides = [far, *(step // array.itemsize for step in array.strides[1:])]
        arrays[name] = memory.view(memory.reserve(far + 64, array.dtype), array.shape, strides, 0)
        arrays[name][...] = array
        yield *(arrays.pop(t) for t in "qkv"), arrays


# ---- the tests ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("generate", sorted(set(KINDS.values()), key=lambda f: f.__name__), ids=lambda f: f.__name__)
def test_kind(generate, dtype):
    rng = np.random.default_rng(SEED)
    for q, k, v, o in generate(rng, DTYPES[dtype]):
        for isa in ISAS:
            agree(isa, q, k, v, dict(o))


REFUSED = {
    "kv-lengths-differ": [((1, 1, 3, 8), (1, 1, 5, 8), (1, 1, n, 8)) for n in (0, 4, 6)],
    "batches differ": [((2, 1, 3, 8), (1, 1, 5, 8), (1, 1, 5, 8)), ((1, 1, 3, 8), (1, 1, 5, 8), (2, 1, 5, 8))],
    "heads differ": [((1, h, 3, 8), (1, g, 5, 8), (1, g2, 5, 8)) for h, g, g2 in ((4, 2, 4), (4, 3, 3), (4, 0, 0), (2, 4, 4))],
    "widths differ": [((1, 1, 3, 8), (1, 1, 5, 7), (1, 1, 5, 8))],
    "ranks differ": [((3, 8), (1, 5, 8), (5, 8)), ((8,), (8,), (8,)), ((1, 1, 1, 3, 8), (1, 1, 1, 5, 8), (1, 1, 1, 5, 8))],
}


@pytest.mark.parametrize("shapes", [s for several in REFUSED.values() for s in several], ids=str)
def test_shapes_that_do_not_fit_are_refused(shapes):
    out = np.full(shapes[0], 77, np.float32)
    with pytest.raises(ValueError, match="."):
        attn.attention(*(np.zeros(shape, np.float32) for shape in shapes), out=out)
    assert (out == 77).all()


@needs_data
def test_every_case_has_its_kind():
    import test_cases
    assert {case["slug"] for case in test_cases.CASES} <= {*KINDS, *REFUSED}
