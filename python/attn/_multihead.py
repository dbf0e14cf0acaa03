"""_multihead.py: attn.torch.MultiheadAttention, which takes the place of torch.nn.MultiheadAttention.
SPDX-License-Identifier: MIT
"""
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ._torch_op import attention, autocast, refuse


def _see(mask):
    """A mask of PyTorch's layer, in which True hides, as an allow, in which True may be seen."""
    return mask.logical_not()


def _one_more(mask, more):
    """The mask with `more` keys at the end that every query may see: False hides nothing here, and neither does adding 0."""
    return mask if mask is None or not more else F.pad(mask, (0, more))


class MultiheadAttention(torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention, computed by libattn: the same constructor, parameters and state dict, the same arguments of a call.

    query is (queries, batch, embed_dim), key (keys, batch, kdim), value (keys, batch, vdim), or with batch_first the batch comes first, or
    without a batch at all. Returns (out, weights), out shaped as query; weights are (batch, queries, keys), the mean of the heads, or with
    average_attn_weights=False (batch, heads, queries, keys), or None with need_weights=False, which spares memory and time.

    key_padding_mask is (batch, keys), attn_mask (queries, keys) or (batch * heads, queries, keys). In both True means hidden, as in
    PyTorch, or they are float and added to the scores. is_causal is a hint there about attn_mask, which must be given with it; here it
    changes nothing. Three differences: a query that sees no key gets zeros, not NaN; the weights are those before dropout; and they have no
    gradient: asking for one raises NotImplementedError.

    >>> import torch, attn.torch
    >>> theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    >>> ours = attn.torch.MultiheadAttention(16, 4, batch_first=True)
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x = torch.randn(2, 5, 16)
    >>> torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0], atol=1e-5)
    True
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._qkv_same_embed_dim = False  # else nn.TransformerEncoderLayer passes this class by in inference, with a kernel of its own

    def _project(self, query, key, value):
        """q, k and v as (batch, positions, embed_dim)."""
        if self.in_proj_weight is not None:
            if query is key and key is value:
                return F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [F.linear(x, weight, bias) for x, weight, bias in zip((query, key, value), weights, biases)]

    def _masks(self, key_padding_mask, attn_mask, batch, queries, keys, dtype):
        """(bias, allow) that mean both masks; keys are those of the call, and the layer's own follow them."""
        more = (self.bias_k is not None) + bool(self.add_zero_attn)
        for name, mask in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
            refuse(mask is not None and mask.dtype != torch.bool and not mask.is_floating_point(),
                   "%s has dtype %s; it must be bool (True = hidden) or a float type", name, None if mask is None else mask.dtype)
        if key_padding_mask is not None:
            refuse(key_padding_mask.shape != (batch, keys), "key_padding_mask has shape %s; it must be (batch, keys) = %s",
                   tuple(key_padding_mask.shape), (batch, keys))
            key_padding_mask = _one_more(key_padding_mask, more)[:, None, None, :]
        if attn_mask is not None:
            shapes = (queries, keys), (batch * self.num_heads, queries, keys)
            refuse(tuple(attn_mask.shape) not in shapes,
                   "attn_mask has shape %s; it must be (queries, keys) = %s or (batch * heads, queries, keys) = %s",
                   tuple(attn_mask.shape), *shapes)
            attn_mask = _one_more(attn_mask, more)
            if attn_mask.dim() == 3:
                attn_mask = attn_mask.unflatten(0, (batch, self.num_heads))
        given = [mask for mask in (attn_mask, key_padding_mask) if mask is not None]
        hidden = [mask for mask in given if mask.dtype == torch.bool]
        added = [mask.to(dtype) for mask in given if mask.dtype != torch.bool]
        if len(hidden) == 2:  # one of them as a bias: their union would have a row of every batch entry for each query
            added = [torch.zeros(attn_mask.shape, dtype=dtype).masked_fill(attn_mask, float("-inf"))]
            hidden = [key_padding_mask]
        return (sum(added) if added else None), (_see(hidden[0]) if hidden else None)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Optional[Tensor] = None, need_weights: bool = True,
                attn_mask: Optional[Tensor] = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> Tuple[Tensor, Optional[Tensor]]:
        """The class's text says what the arguments are."""
        rank = query.dim()
        refuse(rank not in (2, 3) or key.dim() != rank or value.dim() != rank,
               "query, key and value have ranks %d, %d and %d; they must be alike, 2 or 3", rank, key.dim(), value.dim())
        refuse(is_causal and attn_mask is None, "is_causal is True without attn_mask, about which it is a hint; that must be given too")
        inputs = {id(x): x for x in (query, key, value)}  # one object stays one, so that self-attention projects once
        if rank == 2:
            inputs = {name: x[None] for name, x in inputs.items()}
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            inputs = {name: x.transpose(0, 1) for name, x in inputs.items()}
        query, key, value = (inputs[id(x)] for x in (query, key, value))
        q, k, v = self._project(query, key, value)
        batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
        if self.bias_k is not None:
            k, v = (torch.cat([x, own.expand(batch, 1, -1).to(x.dtype)], dim=1) for x, own in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for x in autocast(q, k, v))
        bias, allow = self._masks(key_padding_mask, attn_mask, batch, queries, keys, q.dtype)
        out = attention(q, k, v, bias=bias, allow=allow, dropout=self.dropout if self.training else 0.0,
                        return_weights="weight" if need_weights else None)
        out, weights = out if need_weights else (out, None)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if need_weights:
            weights = weights.to(q.dtype)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        if rank == 2:
            return out[0], None if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights
