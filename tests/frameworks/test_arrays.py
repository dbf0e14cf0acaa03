"""Arrays of other libraries go in without a copy and results come back in the caller's type.
SPDX-License-Identifier: MIT
"""
import numpy as np
import torch

from testdata import attn


def test_torch_arrays_by_numpy():
    q, k, v = torch.randn(3, 2, 4, 8)
    out = attn.attention(q.numpy(), k.numpy(), v.numpy())
    want = torch.nn.functional.scaled_dot_product_attention(q.double()[None], k.double()[None], v.double()[None])[0]
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=2e-6)
