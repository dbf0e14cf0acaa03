"""A sliding window: each token sees itself and the 2 before it, so a long input costs tokens * 3 and not tokens * tokens.
SPDX-License-Identifier: MIT

prints
    1 0 0 0 0 0
    1 1 0 0 0 0
    1 1 1 0 0 0
    0 1 1 1 0 0
    0 0 1 1 1 0
    0 0 0 1 1 1
    100000 tokens: a full matrix of weights would take 37 GiB, this call took 1 MiB besides its inputs and result
"""
import numpy as np

import attn

rng = np.random.default_rng(0)
q, k, v = rng.standard_normal((3, 6, 16), np.float32)
_, weights = attn.attention(q, k, v, causal=True, window=(2, None), return_weights="weight")
for row in weights:
    print(*(int(w > 0) for w in row))

q, k, v = rng.standard_normal((3, 100_000, 16), np.float32)
out = attn.attention(q, k, v, causal=True, window=(2, None))
taken = -(-attn.work_bytes(q, k, v, threads=2) // 2**20)
print("100000 tokens: a full matrix of weights would take %d GiB, this call took %d MiB besides its inputs and result"
      % (100_000**2 * 4 / 2**30, taken))
