"""The same bits: whatever attn.h says cannot change them, does not, on every isa, for random calls and for some larger ones.
SPDX-License-Identifier: MIT
"""
import contextlib
import ctypes
import platform

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import calls
import reference
from calls import Call
from testdata import DTYPES, ISAS, SEED, random, tensors


def same(what, got, want, rows=None):
    """Asserts equal bits of out and lse, of the rows (b, h, i) that are given."""
    for name, a, b in zip(("out", "lse"), got, want):
        a, b = (a, b) if rows is None else (a[rows], b[rows])
        a, b = (np.where(np.isnan(x), np.asarray(np.nan, x.dtype), x) for x in (a, b))  # any NaN is as good as another
        if a.tobytes() != b.tobytes():
            differ = np.argwhere((a.view(np.uint8) != b.view(np.uint8)).reshape(*a.shape, -1).any(axis=-1))
            first = differ[:1].tolist()
            raise AssertionError("%s: %d of %d elements of %s differ, the first at %s" % (what, len(differ), a.size, name, first))


def said(call):
    """The same call with every length and offset spelled out, so that parts can be cut from it."""
    lengths = {name: np.array(value) for name, value in call.lengths().items()}
    return Call(call.q, call.k, call.v, {**call.options, **lengths, "align": None})


def cut(call, b=slice(None), h=slice(None), i=slice(None), j=slice(None)):
    """A part of a call whose lengths are said: batches, key heads, queries and keys, all slices with both ends."""
    batch, heads, queries, keys = call.shape
    kv_heads = call.k.shape[1]
    group = heads // kv_heads
    b, h, i, j = (s if s.start is not None else slice(0, n) for s, n in zip((b, h, i, j), (batch, kv_heads, queries, keys)))
    qh = slice(h.start * group, h.stop * group)
    o = {name: value[b] if name in calls.POSITION_FIELDS else value for name, value in call.options.items()}
    for name in ("bias", "allow"):
        if o[name] is not None:
            mask = o[name]
            wide = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
            o[name] = wide[tuple(s if n > 1 else slice(None) for s, n in zip((b, qh, i, j), wide.shape))]
    if o["alibi"] is not None:
        o["alibi"] = o["alibi"][qh] if o["alibi"].ndim == 1 else o["alibi"][b, qh]
    if o["sink"] is not None:
        o["sink"] = o["sink"][qh]
    o["query_offset"] = o["query_offset"] + i.start
    o["query_count"] = np.clip(o["query_count"] - i.start, 0, i.stop - i.start)
    o["key_count"] = np.clip(o["key_count"], 0, np.maximum(j.stop - o["key_start"], 0))
    o["key_start"] = np.minimum(o["key_start"], j.stop)
    return Call(call.q[b, qh, i], call.k[b, h, j], call.v[b, h, j], o)


def join(parts, axis):
    return [np.concatenate([part[n] for part in parts], axis) for n in (0, 1)]


def run(call, isa, **more):
    return call.run(isa=isa, return_lse=True, **more)


# ---- each promise -------------------------------------------------------------------------------------------------------------------


def threads(call, isa, want, rng):
    for count in (2, 3):
        same("%d threads" % count, run(call, isa, threads=count), want)


def batch_alone(call, isa, want, rng):
    parts = [run(cut(call, b=slice(b, b + 1)), isa) for b in range(call.shape[0])]
    same("each batch entry alone", join(parts, 0), want)


def head_alone(call, isa, want, rng):
    parts = [run(cut(call, h=slice(h, h + 1)), isa) for h in range(call.k.shape[1])]
    same("each key head alone", join(parts, 1), want)


def split_queries(call, isa, want, rng):
    queries = call.shape[2]
    some = np.unique(rng.integers(0, queries + 1, 3))
    for name, ends in (("queries one by one", np.arange(1, min(queries, 20))), ("queries in chunks", some)):
        ends = [0, *(int(n) for n in ends if 0 < n < queries), queries]
        parts = [run(cut(call, i=slice(a, b)), isa, threads=int(rng.integers(1, 4))) for a, b in zip(ends, ends[1:])]
        same(name, join(parts, 2), want)


def prefill_and_decode(call, isa, want, rng):
    """Chunks of queries, each with a cache that ends where its last query's sight ends."""
    seen = reference.seen_pairs(call.shape, **call.options)[0]
    queries = call.shape[2]
    ends = sorted({0, queries, *(int(n) for n in rng.integers(0, queries + 1, 3))})
    parts = []
    for a, b in zip(ends, ends[1:]):
        used = np.flatnonzero(seen[:, :, a:b].any(axis=(0, 1, 2)))
        parts.append(run(cut(call, i=slice(a, b), j=slice(0, int(used[-1]) + 1 if used.size else 0)), isa))
    same("prefill in chunks, then decoding", join(parts, 2), want)


def strides(call, isa, want, rng):
    for how in calls.LAYOUTS[1:]:
        o = {name: x if name not in ("bias", "allow") or x is None else calls.lay(x, how, rng) for name, x in call.options.items()}
        laid = Call(*(calls.lay(t, how, rng) for t in (call.q, call.k, call.v)), o)
        out, check = calls.strided_out(want[0].shape, want[0].dtype, how, rng)
        same("%s in memory" % how, run(laid, isa, out=out), want)
        check()


def other_outputs(call, isa, want, rng):
    same("out alone", [call.run(isa=isa)], want)
    for stage in ("weight", "scaled", "capped", "biased"):
        same("with the stage %s" % stage, run(call, isa, return_weights=stage)[:2], want)


def padding(call, isa, want, rng):
    """Keys before the first and after the last, holding NaN: neither where the keys lie in the cache nor what is beside them matters."""
    before, after = int(rng.integers(1, 150)), int(rng.integers(0, 150))

    def pad(array, axis, fill):
        width = [(0, 0)] * array.ndim
        width[axis] = (before, after)
        return np.pad(array, width, constant_values=fill)

    o = dict(call.options, key_start=call.options["key_start"] + before)
    for name, fill in (("bias", np.nan), ("allow", True)):
        if o[name] is not None and o[name].ndim and o[name].shape[-1] > 1:
            o[name] = pad(o[name], -1, fill)
    if call.shape[3] > 1:
        same("shifted by padding", run(Call(call.q, pad(call.k, 2, np.nan), pad(call.v, 2, np.nan), o), isa), want)


def garbage(call, isa, want, rng):
    same("NaN and infinities where nothing looks", run(calls.spoil(call, rng), isa), want)


def neighbours(call, isa, want, rng):
    """What the other queries of a block are does not matter: NaN, huge or ordinary."""
    keep = rng.random(call.shape[:3]) < 0.5
    q = np.where(keep[..., None], call.q, rng.choice([np.nan, 1000.0, -1.0], call.q.shape).astype(call.q.dtype))
    same("other neighbours", run(Call(q, call.k, call.v, call.options), isa), want, keep)


X86 = platform.machine() == "x86_64"
TOWARD = {"x86_64": (0x400, 0x800, 0xC00), "aarch64": (0x400000, 0x800000, 0xC00000)}.get(platform.machine(), ())  # down, up, zero


@contextlib.contextmanager
def float_mode(rounding=None):
    """This thread's rounding mode, or (None, x86-64 only) subnormals flushed; asserts that the library left the mode as it was."""
    libm = ctypes.CDLL("libm.so.6")

    def environment():
        env = (ctypes.c_uint32 * 16)()  # fenv_t is 28 bytes of x87 state, then MXCSR, on x86-64
        libm.fegetenv(env)
        return env

    def mode():
        return environment()[7] & ~0x3F if X86 else libm.fegetround()  # the six low bits are flags that any sum may raise

    saved = environment()
    if rounding is None:
        flush = environment()
        flush[7] |= 0x8040  # flush to zero, denormals are zero
        libm.fesetenv(flush)
    else:
        libm.fesetround(rounding)
    try:
        before = mode()
        yield
        assert mode() == before, "the caller's floating-point mode was changed"
    finally:
        libm.fesetenv(saved)


def float_modes(call, isa, want, rng):
    for rounding in TOWARD:
        with float_mode(rounding):
            got = run(call, isa, threads=int(rng.integers(1, 3)))
        same("rounding mode %#x" % rounding, got, want)
    if X86:
        with float_mode():
            got = run(call, isa)
        same("subnormals flushed", got, want)


PROMISES = (threads, batch_alone, head_alone, split_queries, prefill_and_decode, strides, other_outputs, padding, garbage, neighbours,
            float_modes)


# ---- on random calls ----------------------------------------------------------------------------------------------------------------


def make_wild(call, how, rng):
    """NaN and infinities in what is seen: anywhere, or as values whose keys score -inf, where 0 times NaN must not hang on neighbours."""
    if how == "anywhere":
        for array in (call.q, call.k, call.v):
            bad = rng.random(array.shape) < 0.02
            array[bad] = rng.choice(calls.GARBAGE, bad.sum()).astype(array.dtype)
    elif how == "under -inf" and call.q.shape[3]:
        call.q[..., 0] = np.abs(call.q[..., 0])
        far = rng.random(call.k.shape[:3]) < 0.2
        call.k[far, 0] = -np.inf
        call.v[far] = rng.choice(calls.GARBAGE, call.v[far].shape).astype(call.v.dtype)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda f: f.__name__)
@calls.random_examples(80)
@given(drawn=calls.random_calls(), isa=st.sampled_from(ISAS), wild=st.sampled_from(["", "", "anywhere", "under -inf"]))
def test_random_calls(promise, drawn, isa, wild):
    call, rng = drawn
    if call.needs_position() or 0 in call.shape[:3]:
        return
    call = said(call)
    make_wild(call, wild, rng)
    note("isa %s, %s, %s keys, %s values" % (isa, call.q.dtype, call.shape, call.v.shape[3]))
    promise(call, isa, run(call, isa), rng)


# ---- on larger ones, whose keys span several chunks and whose queries span several blocks -----------------------------------------------

LARGE = {
    "plain": dict(),
    "causal": dict(causal=True),
    "window": dict(causal=True, window=(300, None)),
    "all": dict(causal=True, window=(1500, 700), softcap=8.0, scale=0.4, bias=True, allow=True, alibi=True, sink=True),
}


def large_call(kind, dtype, rng):
    batch, heads, kv_heads, queries, keys, dim, value_dim = 2, 4, 2, 67, 2310, 40, 24
    o = dict(bias=None, allow=None, causal=False, window=None, align=None, query_offset=None, query_count=None, key_count=[keys, keys - 77],
             key_start=[0, 33], scale=None, softcap=0.0, alibi=None, sink=None)
    o.update(LARGE[kind])
    o["align"] = "bottom_right"
    if o["bias"]:
        o["bias"] = np.where(rng.random((queries, keys)) < 0.1, np.float32(-np.inf), random(np.dtype(np.float32), rng, queries, keys))
    if o["allow"]:
        o["allow"] = rng.random((batch, 1, 1, keys)) < 0.9
        o["allow"][..., 512:1100] = False
    real = np.float64 if dtype == np.float64 else np.float32
    o["alibi"] = np.linspace(0.01, 0.2, heads).astype(real) if o["alibi"] else None
    o["sink"] = rng.standard_normal(heads).astype(real) if o["sink"] else None
    return said(Call(*tensors(rng, dtype, batch, heads, kv_heads, queries, keys, dim, value_dim), o))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("isa", ISAS)
def test_large_calls(isa, kind, dtype):
    if dtype != "f32" and kind not in ("causal", "all"):
        return
    rng = np.random.default_rng(SEED)
    call = large_call(kind, DTYPES[dtype], rng)
    want = run(call, isa)
    assert np.isfinite(want[0].astype(np.float64)).all()
    for promise in PROMISES if dtype == "f32" else (threads, split_queries, prefill_and_decode, padding):
        promise(call, isa, want, rng)


def test_the_pool_is_shared_by_calls_at_the_same_time():
    """Several Python threads in one pool at once: the library is called without the interpreter's lock."""
    import concurrent.futures
    rng = np.random.default_rng(SEED)
    call = large_call("causal", DTYPES["f32"], rng)
    want = run(call, ISAS[0])
    with concurrent.futures.ThreadPoolExecutor(4) as workers:
        for got in workers.map(lambda _: run(call, ISAS[0], threads=3), range(8)):
            same("a shared pool", got, want)
