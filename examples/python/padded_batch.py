"""A padded batch: sentences of unlike lengths in one tensor. What the padding holds, NaN included, reaches nothing.
SPDX-License-Identifier: MIT

prints
    sentence 0: 7 tokens, the same as alone: True
    sentence 1: 4 tokens, the same as alone: True
    padded rows are zero: True
"""
import numpy as np

import attn

lengths = [7, 4]
rng = np.random.default_rng(0)
q, k, v = rng.standard_normal((3, 2, 8, 7, 64), np.float32)  # batch, heads, tokens, channels
k[1, :, 4:] = v[1, :, 4:] = np.nan                           # as memory that nobody has set

out = attn.attention(q, k, v, query_count=lengths, key_count=lengths)
for b, n in enumerate(lengths):
    alone = attn.attention(q[b, :, :n], k[b, :, :n], v[b, :, :n])
    print("sentence %d: %d tokens, the same as alone: %s" % (b, n, np.array_equal(out[b, :, :n], alone)))
print("padded rows are zero:", not out[1, :, 4:].any())
