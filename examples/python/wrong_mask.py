"""A wrong mask found: someone continues a cache of 6 tokens with 3 more, and hangs the causal mask on the wrong corner.
SPDX-License-Identifier: MIT

prints
    right: False
    top-left
"""
import numpy as np

import attn

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 8, 3, 64), np.float32)
k, v = rng.standard_normal((2, 1, 8, 9, 64), np.float32)


def theirs(q, k, v):
    """Attention in plain NumPy, as one writes it in a hurry."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


found = attn.check(q, k, v, theirs(q, k, v), causal=True, align="bottom_right")
print("right:", bool(found))
print(*found.causes)
