"""A drop-in for torch.nn.functional.scaled_dot_product_attention, gradients included.
SPDX-License-Identifier: MIT

prints
    the same result: True
    the same gradient: True
"""
import torch
import torch.nn.functional as F

import attn.torch

torch.manual_seed(0)
q = torch.randn(2, 8, 50, 64, requires_grad=True)
k, v = torch.randn(2, 2, 2, 50, 64)                          # 8 query heads share 2 key heads
results, gradients = [], []
for attention in (F.scaled_dot_product_attention, attn.torch.scaled_dot_product_attention):
    out = attention(q, k, v, is_causal=True, enable_gqa=True)
    out.square().sum().backward()
    results.append(out.detach())
    gradients.append(q.grad)
    q.grad = None
print("the same result:", torch.allclose(*results, rtol=1e-5, atol=1e-5))
print("the same gradient:", torch.allclose(*gradients, rtol=1e-4, atol=1e-4))
