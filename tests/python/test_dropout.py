"""Dropout: the mask is the generator's that the header describes, and a run and its gradients are the oracle's with that mask.
SPDX-License-Identifier: MIT
"""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calls
import test_backward
import tolerance
from testdata import DATA, ISAS, SEED, attn, needs_data, random

if DATA:
    import attention_oracle as oracle

MASK = 0xFFFFFFFF


def philox(counter, key):
    """Philox 4x32-10, written from its paper."""
    x, key = list(counter), list(key)
    for _ in range(10):
        p, q = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(q >> 32) ^ x[1] ^ key[0], q & MASK, (p >> 32) ^ x[3] ^ key[1], p & MASK]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return x


def words(n):
    return [n & MASK, n >> 32]


def kept(rate, seed, offset, batch, head, query, key):
    """attn.h, "dropout"."""
    a = philox(words(batch) + words(head), words(seed))
    b = philox([x ^ y for x, y in zip(words(offset) + words(query), a)], words(seed))
    return philox(words(key // 4) + [0, 0], b[:2])[key % 4] >= round(rate * 2**32)


def test_the_generator_is_philox():
    """Known answers of the generator's authors, for the reference above."""
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([MASK] * 4, [MASK] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("rate, seed, offset, first", [(0.5, 1, 0, (0, 0, 0, 0)), (0.1, 2**64 - 1, 2**63 + 5, (3, 1, 2**33 + 1, 2**36 + 7)),
                                                       (0.9, 12345678901, 7, (2**32, 2**32 + 1, 5, 2))])
def test_mask(rate, seed, offset, first):
    shape = (2, 2, 3, 11)
    got = attn.dropout_mask(rate, shape, seed=seed, offset=offset, first=first)
    want = [kept(rate, seed, offset, *(int(f + i) for f, i in zip(first, at))) for at in np.ndindex(shape)]
    assert (got.reshape(-1) == want).all()


def test_mask_of_rates():
    assert attn.dropout_mask(0.0, (1, 1, 8, 8)).all() and not attn.dropout_mask(1.0, (1, 1, 8, 8)).any()
    for bad in (-0.1, 1.5, np.nan):
        with pytest.raises(ValueError, match="dropout"):
            attn.dropout_mask(bad, (1, 1, 1, 1))
        with pytest.raises(ValueError, match="dropout"):
            attn.attention(*[np.zeros((2, 2), np.float32)] * 3, dropout=bad)


@needs_data
@calls.random_examples(150)
@given(calls.random_calls(), st.sampled_from([0.1, 0.5, 0.9, 1.0]), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_random_calls_with_dropout(drawn, rate, seed, offset):
    call, rng = drawn
    if call.needs_position():
        return
    d_out, d_lse = test_backward.draw_back(call, rng, True)
    size, most = call.reference().size, test_backward.magnitudes(call, d_out, d_lse)
    finite, call = call, calls.spoil(call, rng)
    o = call.options
    options = test_backward.oracle_options(o)
    options.dropout_p, options.dropout_keep = rate, attn.dropout_mask(rate, call.shape, seed=seed, offset=offset)
    bias = None if o["bias"] is None else np.asarray(o["bias"], np.float64)
    want = oracle.attention(call.q, call.k, call.v, bias=bias, mask=o["allow"], opt=options)
    grads = oracle.attention_backward(call.q, call.k, call.v, d_out, d_lse, bias=bias, mask=o["allow"], opt=options)
    raised = 1 / (1 - rate) if rate < 1 else 1
    terms = raised * np.abs(finite.v.astype(np.float64)).max(initial=0)  # what few kept weights, raised, may add up from
    dropping = {"dropout": rate, "dropout_seed": seed, "dropout_offset": offset}
    for isa in ISAS:
        out = np.empty(d_out.shape, np.float64 if call.q.dtype == np.float64 else np.float32)
        out, lse, weights = call.run(isa=isa, return_lse=True, return_weights="weight", out=out, **dropping)
        tolerance.check("out", out, want["out"], call.q.dtype, size, least=terms)
        tolerance.check("lse", lse, want["lse"], call.q.dtype, size)
        tolerance.check("weight", weights, want["weights"], call.q.dtype, size)
        wanted = [name for name in test_backward.NAMES if name in "qkv" or (o[name] is not None and name != "alibi")]
        got = attn.attention_backward(call.q, call.k, call.v, out, lse, d_out, d_lse=d_lse, wanted=wanted, isa=isa, **dropping, **o)
        for name, g in got.items():
            tolerance.check("d" + name, g, grads[test_backward.NAMES[name]], call.q.dtype, size, gradient=True, least=raised * most[name])


@pytest.mark.parametrize("isa", ISAS)
def test_queries_in_pieces_and_threads(isa):
    """Rows of one query, of blocks, by any number of threads and on every isa: the same weights are dropped, and the bits are the same."""
    q, k, v = (random(np.dtype(np.float32), np.random.default_rng(SEED), 2, 3, n, 16) for n in (90, 300, 300))
    o = {"dropout": 0.3, "dropout_seed": 5, "isa": isa}
    whole = attn.attention(q, k, v, threads=1, **o)
    assert attn.attention(q, k, v, threads=3, **o).tobytes() == whole.tobytes()
    assert attn.attention(q[:, :, :1], k, v, **o).tobytes() == whole[:, :, :1].tobytes()
    assert (attn.attention(q, k, v, dropout_offset=1, **o) != whole).any()
