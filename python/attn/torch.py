"""attn.torch: exact attention for PyTorch on the CPU.
SPDX-License-Identifier: MIT

scaled_dot_product_attention() has the arguments and the meaning of torch.nn.functional's; MultiheadAttention those of torch.nn's;
attention() has all that attn.attention() has. They are one operator of torch.library, `attn::attention`, so that torch.compile and
torch.export take a call as it is. First derivatives by autograd; torch.vmap, torch.func's transforms, forward mode and second derivatives are
refused. A call uses no more threads than torch.get_num_threads().

>>> import torch, attn.torch
>>> q, k, v = torch.tensor([[1.0, 0.0]]), torch.eye(2), 10 * torch.eye(2)
>>> [round(x, 3) for x in attn.torch.scaled_dot_product_attention(q, k, v)[0].tolist()]
[6.698, 3.302]

Needs PyTorch 2.4 or newer; tested with 2.13.
"""
from typing import Optional

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from ._multihead import MultiheadAttention
from ._torch_op import attention, autocast, check, refuse, run, seed_of

__all__ = ["attention", "scaled_dot_product_attention", "MultiheadAttention"]


def _flatten(x, outer):
    """(*outer, heads, positions, channels), the outer axes broadcast and made one; a view wherever the strides allow it."""
    x = x.expand(*outer, *x.shape[-3:])
    return x if len(outer) == 1 else x.reshape(-1, *x.shape[-3:])


def _broadcast(query, key, value, enable_gqa):
    """The three with all batch axes alike, at least one, and heads that the operator takes; and the rank of the result."""
    rank = max(query.dim(), key.dim(), value.dim())
    refuse(min(query.dim(), key.dim(), value.dim()) < 2, "query, key and value need at least 2 axes, (positions, channels)")
    query, key, value = (x[(None,) * (max(rank, 4) - x.dim())] for x in (query, key, value))
    outer = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    heads, kv_heads, value_heads = query.shape[-3], key.shape[-3], value.shape[-3]
    if enable_gqa:
        refuse(kv_heads != value_heads or not kv_heads or heads % kv_heads,
               "with enable_gqa query, key and value have %d, %d and %d heads; "
               "key and value must have as many, a divisor of query's", heads, kv_heads, value_heads)
    elif not heads == kv_heads == value_heads and not kv_heads == value_heads == 1:
        refuse(len({heads, kv_heads, value_heads} - {1}) > 1, "query, key and value have %d, %d and %d heads, which do not broadcast; "
               "enable_gqa=True lets heads of query share heads of key and value", heads, kv_heads, value_heads)
        (heads,) = torch.broadcast_shapes((heads,), (kv_heads,), (value_heads,))
        query, key, value = (x.expand(*x.shape[:-3], heads, *x.shape[-2:]) for x in (query, key, value))
    return (*(x.expand(*outer, *x.shape[-3:]) for x in (query, key, value)), rank)


def _mask_arguments(mask, is_causal, outer, dtype, heads, queries, keys):
    """attn_mask and is_causal as arguments of the operator."""
    if isinstance(mask, CausalBias):
        refuse(is_causal, "attn_mask is given and is_causal is True; at most one may be")
        refuse((mask.seq_len_q, mask.seq_len_kv) != (queries, keys), "attn_mask is a bias for %d queries and %d keys; there are %d and %d",
               mask.seq_len_q, mask.seq_len_kv, queries, keys)
        return None, None, True, "top_left" if mask.variant == CausalVariant.UPPER_LEFT else "bottom_right"
    if mask is None:
        return None, None, is_causal, "top_left" if is_causal else None
    refuse(is_causal, "attn_mask is given and is_causal is True; at most one may be")
    refuse(mask.dtype not in (torch.bool, torch.float32, dtype), "attn_mask has dtype %s; it must be bool, float32 or query's %s", mask.dtype,
           dtype)
    full = (*outer, heads, queries, keys)
    refuse(mask.dim() > len(full) or any(n not in (1, m) for n, m in zip(mask.shape[::-1], full[::-1])),
           "attn_mask has shape %s, which does not broadcast to (..., heads, queries, keys) = %s", tuple(mask.shape), full)
    if mask.dim() > 4 or (len(outer) > 1 and mask.dim() > 3):
        mask = _flatten(mask, outer)
    return (None, mask, False, None) if mask.dtype == torch.bool else (mask, None, False, None)


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by libattn: the same arguments, the same meaning.

    query is (..., heads, queries, E), key (..., kv_heads, keys, E), value (..., kv_heads, keys, Ev); out is (..., heads, queries, Ev).
    The axes before the heads are any number, and broadcast; so do the heads, unless enable_gqa makes query head h read key head
    h // (heads // kv_heads). Any strides are read in place.

    attn_mask broadcasts to (..., heads, queries, keys): bool, True = takes part; or float, added to the scores (-inf hides); or one of
    torch.nn.attention.bias.causal_upper_left and causal_lower_right. is_causal counts positions from the top left, as in PyTorch, and
    excludes attn_mask. dropout_p drops weights as PyTorch does, in training or not, with random numbers of the library's own that
    torch.manual_seed() repeats. A query that sees no key gives zeros. scale is 1 / sqrt(E) when None. Under torch.autocast the inputs are
    converted as PyTorch does.

    >>> import torch, attn.torch
    >>> q, k = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 7, 16)
    >>> attn.torch.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).shape
    torch.Size([2, 8, 5, 16])
    """
    check(query, key, value)
    refuse(not 0 <= dropout_p <= 1, "dropout_p is %s, and must be from 0 to 1", dropout_p)
    rank = query.dim()
    if not (rank == key.dim() == value.dim() == 4 and query.shape[:2] == key.shape[:2] == value.shape[:2]):
        query, key, value, rank = _broadcast(query, key, value, enable_gqa)
    outer = query.shape[:-3]
    query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    bias, allow, causal, align = _mask_arguments(attn_mask, is_causal, outer, query.dtype, *query.shape[-3:-1], key.shape[-2])
    if len(outer) > 1:
        query, key, value = (_flatten(x, outer) for x in (query, key, value))
    out = run(query, key, value, bias, allow, None, None, None, None, None, None, causal, align, None, scale, 0.0, float(dropout_p),
             seed_of(dropout_p), None, None)[0]
    if len(outer) > 1:
        out = out.unflatten(0, outer)
    return out if rank >= 4 else out[(0,) * (4 - rank)]
