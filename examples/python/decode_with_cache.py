"""Decoding with a cache: a prefill of 6 tokens, then one token at a time. The bits are those of one call over all 9 tokens.
SPDX-License-Identifier: MIT

prints
    step with 7 tokens in the cache: the bits of the whole call: True
    step with 8 tokens in the cache: the bits of the whole call: True
    step with 9 tokens in the cache: the bits of the whole call: True
"""
import numpy as np

import attn

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 8, 9, 64), np.float32)             # 8 query heads
k, v = rng.standard_normal((2, 1, 2, 9, 64), np.float32)       # share 2 key heads
whole = attn.attention(q, k, v, causal=True)

capacity = 16
cache_k, cache_v = np.full((2, 1, 2, capacity, 64), np.nan, np.float32)  # the unused end may hold anything
cache_k[:, :, :6], cache_v[:, :, :6] = k[:, :, :6], v[:, :, :6]
attn.attention(q[:, :, :6], cache_k, cache_v, causal=True, key_count=6, align="bottom_right")
for used in (7, 8, 9):
    cache_k[:, :, used - 1], cache_v[:, :, used - 1] = k[:, :, used - 1], v[:, :, used - 1]
    # one query and `used` keys: it is the last of them, which has to be said
    step = attn.attention(q[:, :, used - 1:used], cache_k, cache_v, causal=True, key_count=used, align="bottom_right")
    print("step with %d tokens in the cache: the bits of the whole call: %s" % (used, np.array_equal(step, whole[:, :, used - 1:used])))
