"""Gradients: random calls on every isa against the oracle's explicit ones, the cases with gradients, what is promised beside the numbers.
SPDX-License-Identifier: MIT
"""
import glob

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import calls
import test_cases
import tolerance
from testdata import DATA, DTYPES, ISAS, SEED, attn, data, needs_data, random

if DATA:
    import attention_oracle as oracle
    import case_io

NAMES = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sink": "dsinks", "alibi": "dslopes"}  # in the oracle's words


def oracle_options(o):
    left, right = (-1 if side is None else side for side in o["window"] or (None, None))
    return oracle.Options(scale=o["scale"], softcap=o["softcap"], causal=o["causal"], window_left=left, window_right=right,
                          align=o["align"] or "top_left", q_offset=o["query_offset"], kv_len=o["key_count"], kv_start=o["key_start"],
                          q_len=o["query_count"], alibi_slopes=o["alibi"], sinks=o["sink"])


def wanted_gradients(call, d_out, d_lse):
    o = call.options
    bias = None if o["bias"] is None else np.asarray(o["bias"], np.float64)
    want = oracle.attention_backward(call.q, call.k, call.v, d_out, d_lse, bias=bias, mask=o["allow"], opt=oracle_options(o))
    if o["alibi"] is not None and o["alibi"].ndim == 1:
        want["dslopes"] = want["dslopes"].sum(axis=0)
    return {name: want[theirs] for name, theirs in NAMES.items() if name in "qkv" or o[name] is not None}


def gradients(call, d_out, d_lse, out=None, **more):
    """The gradients by all that has one; a run's out in float32, so that 16 bits are rounded once."""
    real = np.float64 if call.q.dtype == np.float64 else np.float32
    if out is None:
        out = np.empty(d_out.shape, real)
    out, lse = call.run(out=out, return_lse=True, isa=more.get("isa"))
    wanted = [name for name in NAMES if name in "qkv" or call.options[name] is not None]
    return attn.attention_backward(call.q, call.k, call.v, out, lse, d_out, d_lse=d_lse, wanted=wanted, **{**call.options, **more})


def draw_back(call, rng, with_lse):
    real = np.float64 if call.q.dtype == np.float64 else np.float32
    d_out = random(call.q.dtype, rng, *call.q.shape[:3], call.v.shape[3])
    return d_out, rng.standard_normal(call.q.shape[:3]).astype(real) if with_lse else None


def magnitudes(call, d_out, d_lse):
    """The largest sum of absolute terms of each gradient. Gradients are differences: where all of a tensor cancels (one key: dq is 0), what is
    left is rounding of terms of this size, so the tolerance's largest element counts as at least that."""
    o, own = call.options, call.reference()
    group = call.q.shape[1] // call.k.shape[1] if call.k.shape[1] else 1
    q, d = (np.abs(t.astype(np.float64)) for t in (call.q, d_out))
    k, v = (np.abs(np.repeat(t.astype(np.float64), group, axis=1)) for t in (call.k, call.v))
    scale = abs(o["scale"]) if o["scale"] is not None else 1 / np.sqrt(max(q.shape[3], 1))
    dp = d @ v.swapaxes(2, 3)
    row = (own.weight * dp).sum(axis=3, keepdims=True)
    if d_lse is not None:
        row = row + np.abs(d_lse)[..., None]
    ds = own.weight * (dp + row)
    apart = np.abs(calls.reference.seen_pairs(call.shape, **{n: x for n, x in o.items() if n in SEEN})[1])
    terms = {"q": scale * (ds @ k), "k": scale * (ds.swapaxes(2, 3) @ q) * group, "v": (own.weight.swapaxes(2, 3) @ d) * group,
             "sink": row.sum(axis=(0, 2)), "alibi": (ds * apart).sum(axis=(0, 2, 3))}
    if o["bias"] is not None:
        full = (1,) * (4 - o["bias"].ndim) + o["bias"].shape
        terms["bias"] = ds.sum(axis=tuple(a for a in range(4) if full[a] == 1))
    return {name: x.max(initial=0.0) for name, x in terms.items()}


@needs_data
@calls.random_examples(250)
@given(calls.random_calls(), st.data())
def test_random_gradients(drawn, data):
    call, rng = drawn
    if call.needs_position():
        return
    d_out, d_lse = draw_back(call, rng, data.draw(st.booleans()))
    finite, call = call, calls.spoil(call, rng)
    want = wanted_gradients(call, d_out, d_lse)
    most = magnitudes(finite, d_out, d_lse)
    seen = calls.reference.seen_pairs(call.shape, **{n: x for n, x in call.options.items() if n in SEEN})[0]
    d_out[~seen.any(axis=3)] = np.nan  # a query that sees nothing
    size = call.reference().size
    note("%s %s %s %s %s" % (call.q.dtype, call.q.shape, call.k.shape, call.v.shape, call.options))
    threads = data.draw(st.sampled_from([1, 1, 2, 3]))
    layouts = [data.draw(st.sampled_from(calls.LAYOUTS)) for _ in range(3)]
    laid = calls.Call(*(calls.lay(t, how, rng) for t, how in zip((call.q, call.k, call.v), layouts)), call.options)
    for isa in ISAS:
        note("isa %s" % isa)
        got = gradients(laid, calls.lay(d_out, layouts[0], rng), d_lse, isa=isa, threads=threads)
        check(call, got, want, size, most, seen)


SEEN = ("bias", "causal", "align", "window", "query_offset", "query_count", "key_count", "key_start", "allow")


def check(call, got, want, size, most, seen):
    for name, g in got.items():
        tolerance.check("d" + name, g, want[name], call.q.dtype, size, gradient=True, least=most[name])
    assert (got["q"][~seen.any(axis=3)] == 0).all()
    batch, heads, queries, keys = call.shape
    kv_heads = call.k.shape[1]
    if kv_heads and heads:
        by_key = seen.reshape(batch, kv_heads, heads // kv_heads * queries, keys).any(axis=2)
        assert (got["k"][~by_key] == 0).all() and (got["v"][~by_key] == 0).all()


# ---- what must not matter, and what must ------------------------------------------------------------------------------------------------


@calls.random_examples(80)
@given(calls.random_calls(), st.data())
def test_any_output_layout_and_accumulate(drawn, data):
    """Gradients written through strides, and added to what is there, are those of a dense array."""
    call, rng = drawn
    if call.needs_position():
        return
    d_out, d_lse = draw_back(call, rng, True)
    isa = data.draw(st.sampled_from(ISAS))
    want = gradients(call, d_out, d_lse, isa=isa)
    into, checks, before = {}, [], {}
    accumulate = data.draw(st.booleans())
    for name, g in want.items():
        into[name], check_between = calls.strided_out(g.shape, g.dtype, data.draw(st.sampled_from(["dense", "transposed", "step"])), rng)
        checks.append(check_between)
        if accumulate:
            into[name][...] = random(g.dtype, rng, *g.shape)
        before[name] = np.array(into[name]).astype(np.float64)
    got = gradients(call, d_out, d_lse, isa=isa, into=into, accumulate=accumulate)
    for check_between in checks:
        check_between()
    for name, g in want.items():
        assert got[name] is into[name]
        if accumulate:
            most = magnitudes(call, d_out, d_lse)[name] + np.abs(before[name]).max(initial=0)
            tolerance.check("d" + name, got[name], before[name] + g.astype(np.float64), call.q.dtype, 0, gradient=True, least=most)
        else:
            assert got[name].tobytes() == g.tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("causal", [False, True])
def test_same_bits_for_any_threads_and_batch(isa, causal):
    """Several strips of queries and keys; the bits of one batch entry do not depend on threads or on its neighbours."""
    rng = np.random.default_rng(SEED)
    q, d_out = (random(np.dtype(np.float32), rng, 2, 2, 700, 24) for _ in range(2))
    k, v = (random(np.dtype(np.float32), rng, 2, 1, 800, 24) for _ in range(2))
    bias = random(np.dtype(np.float32), rng, 2, 1, 800)
    o = dict(bias=bias[0], causal=causal, align="top_left", isa=isa, sink=np.zeros(2, np.float32), alibi=np.ones(2, np.float32) * 0.01)
    names = ("q", "k", "v", "bias", "sink", "alibi")
    out, lse = attn.attention(q, k, v, return_lse=True, **o)
    want = attn.attention_backward(q, k, v, out, lse, d_out, wanted=names, threads=1, **o)
    for threads in (2, 3, 7):
        got = attn.attention_backward(q, k, v, out, lse, d_out, wanted=names, threads=threads, **o)
        assert all(got[name].tobytes() == want[name].tobytes() for name in names)
    for b in range(2):
        one = attn.attention_backward(q[b], k[b], v[b], out[b], lse[b], d_out[b], threads=2, **o)
        assert all(one[name].tobytes() == want[name][b].tobytes() for name in ("q", "k", "v"))
    want_d = calls.Call(q, k, v, {**dict.fromkeys(SEEN), "scale": None, "softcap": 0.0, **o, "isa": None})
    want_d.options.pop("isa")
    right = wanted_gradients(want_d, d_out, None) if DATA else {}
    most = magnitudes(want_d, d_out, None)
    for name in right:
        tolerance.check("d" + name, want[name], right[name], q.dtype, want_d.reference().size, gradient=True, least=most[name])


@needs_data
@calls.random_examples(120)
@given(calls.random_calls(), st.sampled_from(["q", "k", "v", "d_out"]))
def test_nan_that_is_seen(drawn, where):
    """NaN at one place reaches the query's dq, and dk and dv of the keys that it sees, and nothing else."""
    call, rng = drawn
    if call.needs_position() or call.q.dtype.itemsize == 2:
        return
    d_out, d_lse = draw_back(call, rng, False)
    target = d_out if where == "d_out" else getattr(call, where)
    if not target.size or not call.shape[1]:
        return
    target[tuple(int(rng.integers(n)) for n in target.shape)] = np.nan
    want = wanted_gradients(call, d_out, d_lse)
    if "sink" in want:  # a sink of -inf is none, even where the oracle takes NaN from it
        want["sink"] = np.where(np.isneginf(call.options["sink"]), 0, want["sink"])
    size = call.reference().size
    for isa in ISAS:
        for name, g in gradients(call, d_out, d_lse, isa=isa).items():
            assert g.shape == want[name].shape
            assert (np.isnan(g) == np.isnan(want[name])).all(), name
            good = ~np.isnan(g)
            tolerance.check("d" + name, np.where(good, g, 0).astype(g.dtype), np.where(good, want[name], 0), call.q.dtype, size, gradient=True,
                            least=1 + np.abs(np.where(good, want[name], 0)).max(initial=0) + 10 * np.abs(np.nan_to_num(call.v)).max(initial=0))


def gradient_cases():
    return [case for case in test_cases.CASES if "d_out" in case["inputs"]]


@needs_data
def test_there_are_gradient_cases():
    assert len(gradient_cases()) >= 13


@needs_data
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", gradient_cases() if DATA else [], ids=[case["slug"] for case in gradient_cases()] if DATA else [])
def test_gradient_case(case, isa):
    asked = test_cases.arguments(case)
    buffers = {}
    back = {name: test_cases.place(case_io.tensor(spec).astype(test_cases.TYPES[spec["dtype"]]), case.get("memory", {}).get(name), buffers)[1]
            for name, spec in case["inputs"].items() if name in ("d_out", "d_lse")}
    expect = {name: want for name, want in case["expect"].items() if name in NAMES.values()}
    out, lse = attn.attention(isa=isa, return_lse=True, **asked)
    names = {theirs: name for name, theirs in NAMES.items()}
    q, k, v = (asked.pop(name) for name in "qkv")
    got = attn.attention_backward(q, k, v, out, lse, back["d_out"], d_lse=back.get("d_lse"), wanted=[names[n] for n in expect], isa=isa, **asked)
    assert expect
    assert case_io.compare({**case, "expect": expect}, {NAMES[name]: g for name, g in got.items()}) == []


def test_refusals():
    q, k, v, d_out = (random(np.dtype(np.float32), np.random.default_rng(SEED), 2, 3, 4) for _ in range(4))
    out, lse = attn.attention(q, k, v, return_lse=True)
    for sentence, change in (
            ("no gradient by 'x'", {"wanted": ["x"]}), ("accumulate needs", {"accumulate": True}), ("there is no bias", {"wanted": ["bias"]}),
            ("softcap is -1", {"softcap": -1.0}), ("d_lse has shape", {"d_lse": lse[:1]}), ("lse.dtype", {"lse": lse.astype(np.float64)})):
        arguments = {"out": out, "lse": lse, "d_out": d_out, **change}
        with pytest.raises(ValueError, match=sentence):
            attn.attention_backward(q, k, v, **arguments)
