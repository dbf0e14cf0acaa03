"""Random calls on every isa against the oracle, or the project's own reference where there is no oracle: every option, alone and together.
SPDX-License-Identifier: MIT
"""
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import calls
import tolerance
from testdata import DATA, ISAS, attn, needs_data

if DATA:
    import attention_oracle as oracle

STAGES = {"weight": "weights", "scaled": "scores_raw", "capped": "scores_softcap", "biased": "scores_biased"}  # in the oracle's words


def ask_oracle(call):
    """The oracle's answer in reference.py's words."""
    o = call.options
    left, right = (-1 if side is None else side for side in o["window"] or (None, None))
    options = oracle.Options(scale=o["scale"], softcap=o["softcap"], causal=o["causal"], window_left=left, window_right=right,
                             align=o["align"] or "top_left", q_offset=o["query_offset"], kv_len=o["key_count"],
                             kv_start=o["key_start"], q_len=o["query_count"], alibi_slopes=o["alibi"], sinks=o["sink"])
    bias = None if o["bias"] is None else np.asarray(o["bias"], np.float64)
    r = oracle.attention(call.q, call.k, call.v, bias=bias, mask=o["allow"], opt=options)
    return SimpleNamespace(out=r["out"], lse=r["lse"], seen=r["allowed"], **{name: r[theirs] for name, theirs in STAGES.items()})


def wanted(call):
    """What is right, and the scores' sizes for the bounds."""
    own = call.reference()
    return (ask_oracle(call) if DATA else own), own.size, own.size_all


def check(call, right, got, stage):
    """Every result, then the promised exact zeros and infinities."""
    want, size, size_all = right
    out, lse, *weights = got
    inputs = call.q.dtype
    tolerance.check("out", out, want.out, inputs, size)
    tolerance.check("lse", lse, want.lse, inputs, size)
    empty = ~want.seen.any(axis=3)
    rows = np.arange(call.shape[2])[None, None] < call.lengths()["query_count"][:, None, None]
    sink = np.full(call.shape[1], -np.inf, lse.dtype) if call.options["sink"] is None else call.options["sink"]
    assert (out[empty] == 0).all()
    assert (lse[empty] == np.where(rows, sink[None, :, None], -np.inf)[empty]).all()
    if weights:
        tolerance.check(stage, weights[0], getattr(want, stage), inputs, size_all if stage in ("scaled", "capped") else size)
        if stage in ("weight", "biased"):
            assert (weights[0][~want.seen] == (0 if stage == "weight" else -np.inf)).all()


@calls.random_examples(300)
@given(calls.random_calls(), st.data())
def test_random_calls(drawn, data):
    call, rng = drawn
    layouts = [data.draw(st.sampled_from(calls.LAYOUTS)) for _ in range(6)]
    stage = data.draw(st.sampled_from([None, "weight", "weight", *STAGES]))
    threads = data.draw(st.sampled_from([None, 1, 2, 3]))
    half = call.q.dtype.itemsize == 2 and data.draw(st.booleans())
    call = calls.spoil(call, rng)
    o = {name: x if name not in ("bias", "allow") or x is None else calls.lay(x, how, rng)
         for (name, x), how in zip(call.options.items(), layouts[:1] * 20)}
    laid = calls.Call(*(calls.lay(t, how, rng) for t, how in zip((call.q, call.k, call.v), layouts[1:])), o)
    note("%s %s %s %s" % (call.q.dtype, call.q.shape, call.k.shape, call.v.shape))
    if call.needs_position():
        with pytest.raises(ValueError, match="align"):
            laid.run()
        return
    right = wanted(call)
    for isa in ISAS:
        note("isa %s" % isa)
        out, check_between = calls.strided_out(call.q.shape[:3] + call.v.shape[3:], np.float32 if half else call.q.dtype, layouts[4], rng)
        got = laid.run(isa=isa, threads=threads, return_lse=True, return_weights=stage, out=out)
        assert got[0] is out
        check_between()
        check(call, right, got, stage)


@calls.random_examples(60)
@given(calls.random_calls(), st.sampled_from(["head", "batch", "position", "inside k"]))
def test_repeated_and_shared_memory(drawn, how):
    """Operands that repeat themselves by stride 0, and values that lie inside the keys."""
    call, _ = drawn
    axis = {"batch": 0, "head": 1, "position": 2}.get(how)
    if axis is None:
        call.v = call.k[..., :call.v.shape[3]]
    else:
        first = (slice(None),) * axis + (slice(0, 1),)
        call.k, call.v = (np.broadcast_to(t[first] if t.shape[axis] else t, t.shape) for t in (call.k, call.v))
    if not call.needs_position():
        right = wanted(call)
        for isa in ISAS:
            check(call, right, call.run(isa=isa, return_lse=True), None)


@calls.random_examples(60)
@given(calls.random_calls())
def test_ranks(drawn):
    """Without batch, and without heads, the same arrays give the same results."""
    call, _ = drawn
    if call.needs_position() or not call.shape[0] or not call.shape[1]:
        return
    one = calls.Call(call.q[:1], call.k[:1], call.v[:1], dict(call.options))
    for name, x in one.options.items():
        if name in calls.POSITION_FIELDS and isinstance(x, list):
            one.options[name] = x[0]
        elif name in ("bias", "allow") and x is not None and x.ndim == 4:
            one.options[name] = x[:1]
        elif name == "alibi" and x is not None and x.ndim == 2:
            one.options[name] = x[:1]
    want = one.run(return_lse=True, return_weights="weight")
    got = attn.attention(one.q[0], one.k[0], one.v[0], return_lse=True, return_weights="weight", **one.options)
    for a, b in zip(got, want):
        assert a.shape == b.shape[1:] and a.tobytes() == b.tobytes()
    if call.shape[1] == 1:
        got = attn.attention(one.q[0, 0], one.k[0, 0], one.v[0, 0], return_lse=True, return_weights="weight", **one.options)
        for a, b in zip(got, want):
            assert a.shape == b.shape[2:] and a.tobytes() == b.tobytes()


@calls.random_examples(150)
@given(calls.random_calls(), st.sampled_from(calls.GARBAGE), st.sampled_from(["q", "k", "v"]))
def test_nan_and_infinity_that_are_seen(drawn, bad, where):
    """One bad number at a random place, seen or not: NaN reaches the rows that see it and no other; a score of +inf makes its row NaN."""
    call, rng = drawn
    target = getattr(call, where)
    if call.needs_position() or not target.size or not call.shape[1]:
        return
    at = tuple(int(rng.integers(n)) for n in target.shape)
    target[at] = bad
    want, size, _ = wanted(call)
    infinite = (want.biased == np.inf).any(axis=3)
    for isa in ISAS:
        out, lse, weights = call.run(isa=isa, return_lse=True, return_weights="weight")
        assert (np.isnan(lse[infinite]) | (lse[infinite] == np.inf)).all()
        lse[infinite] = want.lse[infinite]
        if where == "v":  # a weight that underflowed to 0 here or there makes 0 * inf
            channel = (slice(None),) * 3 + (at[3],)
            tiny = (want.weight[..., at[2]] < np.finfo(np.float32).tiny) & want.seen[..., at[2]]
            out[channel] = np.where(tiny, want.out[channel], out[channel])
        tolerance.check("out", out, want.out, call.q.dtype, size)
        tolerance.check("lse", lse, want.lse, call.q.dtype, size)
        tolerance.check("weight", weights, want.weight, call.q.dtype, size)


@needs_data
@calls.random_examples(120)
@given(calls.random_calls())
def test_the_reference_is_the_oracle(drawn):
    """reference.py stands in for the oracle where there is no test data: both must say the same."""
    call, rng = drawn
    call = calls.spoil(call, rng)
    want, own = ask_oracle(call), call.reference()
    assert (own.seen == want.seen).all()
    for name in ("out", "lse", *STAGES):
        tolerance.check(name, getattr(own, name), getattr(want, name), np.float64, own.size_all)


@calls.random_examples(60)
@given(calls.random_calls(), st.integers(1, 4))
def test_merge(drawn, parts):
    """Results over disjoint sets of keys, merged, are the result over all keys; the sink goes to the first part only."""
    call, rng = drawn
    if call.needs_position():
        return
    whole, size, _ = wanted(call)
    owner = rng.integers(parts, size=call.shape[3])
    results = []
    for part in range(parts):
        allow = owner == part
        o = dict(call.options, allow=allow if call.options["allow"] is None else call.options["allow"] & allow)
        o["sink"] = o["sink"] if part == 0 else None
        # 16-bit parts would each be rounded before they are joined, absolutely where they are small
        out = np.empty(call.q.shape[:3] + call.v.shape[3:], np.float32 if call.q.dtype.itemsize == 2 else call.q.dtype)
        results.append(calls.Call(call.q, call.k, call.v, o).run(return_lse=True, out=out))
    for out, lse in results[1:]:
        out[lse == -np.inf] = np.nan  # must take no part
    out, lse = attn.merge([r[0] for r in results], [r[1] for r in results])
    tolerance.check("out", out, whole.out, call.q.dtype, size)
    tolerance.check("lse", lse, whole.lse, call.q.dtype, size)
