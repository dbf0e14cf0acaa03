"""_torch_op.py: the operator attn::attention of torch.library and attention(), the function around it.
SPDX-License-Identifier: MIT
"""
import ctypes
from typing import Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _arrays, _describe, _library
from ._backward import NAMES, attention_backward
from ._describe import word
from ._operator import STAGES

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
Ints = Union[None, int, Sequence[int], Tensor]


def _results(q, k, v, stage):
    """out, lse and weights, not filled. The heads of a token lie side by side, as the projection that follows wants them."""
    batch, heads, queries, _ = q.shape
    real = torch.float64 if q.dtype == torch.float64 else torch.float32
    weights = (batch, heads, queries, k.shape[2]) if stage is not None else (0,)
    return (q.new_empty((batch, queries, heads, v.shape[3])).transpose(1, 2), q.new_empty((batch, heads, queries), dtype=real),
            q.new_empty(weights, dtype=real))


def threads_of(said):
    """What attention() takes for `threads`: never more than PyTorch may use, unless said; in workers of its DataLoader that is one."""
    most = torch.get_num_threads()
    return said if said is not None or most >= _describe.default_threads() else most


def _dropout(rate, seed):
    """The operator's dropout as attn.attention() has it; seed holds seed and offset as signed numbers."""
    if not rate:
        return {}
    return {"dropout": rate, **{name: x & (1 << 64) - 1 for name, x in zip(("dropout_seed", "dropout_offset"), seed.tolist())}}


@torch.library.custom_op("attn::attention", mutates_args=(), device_types="cpu")
def op(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], allow: Optional[Tensor], alibi: Optional[Tensor],
       sink: Optional[Tensor], query_offset: Optional[Tensor], query_count: Optional[Tensor], key_count: Optional[Tensor],
       key_start: Optional[Tensor], causal: bool, align: Optional[str], window: Optional[Sequence[int]], scale: Optional[float],
       softcap: float, dropout: float, seed: Optional[Tensor], stage: Optional[str],
       threads: Optional[int]) -> Tuple[Tensor, Tensor, Tensor]:
    c = _describe.describe(q, k, v, bias=bias, allow=allow, alibi=alibi, sink=sink, query_offset=query_offset, query_count=query_count,
                           key_count=key_count, key_start=key_start, causal=causal, align=align, window=window, scale=scale,
                           softcap=softcap, **_dropout(dropout, seed), threads=threads_of(threads))
    out, lse, weights = _results(q, k, v, stage)
    _describe.put(c.desc, "out", _arrays.of_torch("out", out))
    _describe.put(c.desc, "lse", _arrays.of_torch("lse", lse), missing=1)
    if stage is not None:
        c.desc.weights_stage = STAGES[stage]
        _describe.put(c.desc, "weights", _arrays.of_torch("weights", weights))
    _library.call(_library.lib.attn_run, ctypes.byref(c.desc))
    return out, lse, weights


@op.register_fake
def _fake(q, k, v, bias, allow, alibi, sink, query_offset, query_count, key_count, key_start, causal, align, window, scale, softcap,
          dropout, seed, stage, threads):
    return _results(q, k, v, stage)


# ---- its gradients --------------------------------------------------------------------------------------------------------------------

# Places among the arguments of op of what gradients exist for, in the order of NAMES.
_PLACES = (0, 1, 2, 3, 5, 6)


def _gradients(q, k, v, bias, alibi, sink, wanted):
    """The gradients, not filled; one that is not wanted has no elements."""
    return tuple(x.new_empty(x.shape) if want else q.new_empty((0,)) for x, want in zip((q, k, v, bias, alibi, sink), wanted))


@torch.library.custom_op("attn::attention_backward", mutates_args=(), device_types="cpu")
def backward_op(d_out: Tensor, d_lse: Optional[Tensor], out: Tensor, lse: Tensor, wanted: Sequence[bool], q: Tensor, k: Tensor, v: Tensor,
                bias: Optional[Tensor], allow: Optional[Tensor], alibi: Optional[Tensor], sink: Optional[Tensor],
                query_offset: Optional[Tensor], query_count: Optional[Tensor], key_count: Optional[Tensor], key_start: Optional[Tensor],
                causal: bool, align: Optional[str], window: Optional[Sequence[int]], scale: Optional[float], softcap: float,
                dropout: float, seed: Optional[Tensor], threads: Optional[int]) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    made = _gradients(q, k, v, bias, alibi, sink, wanted)
    into = {name: x for name, x, want in zip(NAMES, made, wanted) if want}
    real = torch.float64 if q.dtype == torch.float64 else torch.float32
    into.update({name: into[name].to(real) for name in ("alibi", "sink") if name in into})  # what the library holds them in
    attention_backward(q, k, v, out, lse, d_out, d_lse=d_lse, wanted=tuple(into), into=into, bias=bias, allow=allow, alibi=alibi, sink=sink,
                       query_offset=query_offset, query_count=query_count, key_count=key_count, key_start=key_start, causal=causal,
                       align=align, window=window, scale=scale, softcap=softcap, **_dropout(dropout, seed), threads=threads_of(threads))
    return tuple(into[name].to(x.dtype) if want else x for name, x, want in zip(NAMES, made, wanted))


@backward_op.register_fake
def _backward_fake(d_out, d_lse, out, lse, wanted, q, k, v, bias, allow, alibi, sink, *options):
    return _gradients(q, k, v, bias, alibi, sink, wanted)


def _keep(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[:2], *(x for x in inputs if isinstance(x, Tensor)))
    ctx.options = [None if isinstance(x, Tensor) else x for x in inputs]
    ctx.tensors = [isinstance(x, Tensor) for x in inputs]


def _backward(ctx, d_out, d_lse, d_weights):
    if d_weights is not None and d_weights.numel():
        raise NotImplementedError("weights have no gradient: use out, or detach them")
    out, lse, *saved = ctx.saved_tensors
    saved = iter(saved)
    inputs = [next(saved) if tensor else option for tensor, option in zip(ctx.tensors, ctx.options)]
    wanted = [bool(ctx.needs_input_grad[place]) for place in _PLACES]
    d_out = torch.zeros_like(out) if d_out is None else d_out
    *options, _, threads = inputs  # without the stage of the weights
    found = backward_op(d_out, d_lse, out, lse, wanted, *options, threads)
    gradients = [None] * len(inputs)
    for place, want, gradient in zip(_PLACES, wanted, found):
        gradients[place] = gradient if want else None
    return tuple(gradients)


def _no_second(ctx, *gradients):
    raise NotImplementedError("attn.torch has no second derivatives")


op.register_autograd(_backward, setup_context=_keep)
backward_op.register_autograd(_no_second)


def _no_vmap(info, in_dims, *args):
    raise NotImplementedError("attn.torch does not work under torch.vmap: call it with a batch axis instead, of which it takes any number")


if hasattr(torch.library, "register_vmap"):  # from 2.5 on; before, PyTorch refuses with a sentence of its own
    torch.library.register_vmap(op, _no_vmap)
    torch.library.register_vmap(backward_op, _no_vmap)


# ---- the function around it -----------------------------------------------------------------------------------------------------------


def refuse(condition, sentence, *values):
    if condition:
        raise ValueError(sentence % values)


def check(q, k, v):
    if isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor) and \
            q.dtype in _FLOATS and q.dtype == k.dtype == v.dtype and q.is_cpu and k.is_cpu and v.is_cpu and \
            q.layout == k.layout == v.layout == torch.strided:
        return
    for name, x in (("query", q), ("key", k), ("value", v)):
        refuse(not isinstance(x, Tensor), "%s is a %s; it must be a tensor", name, type(x).__name__)
        refuse(x.dtype not in _FLOATS, "%s has dtype %s; it must be float32, float64, float16 or bfloat16", name, x.dtype)
        refuse(x.dtype != q.dtype, "query has dtype %s and %s has %s; they must be alike", q.dtype, name, x.dtype)
        refuse(x.device.type not in ("cpu", "meta"), "%s is on %s, and must be in the CPU's memory", name, x.device)
        refuse(x.layout != torch.strided, "%s has layout %s; it must be strided, not sparse or nested", name, x.layout)


def run(*arguments):
    """The operator, whose arguments still show what is lost inside it."""
    for x in arguments:
        if isinstance(x, Tensor):
            _arrays.no_tangent("an argument", x)
    return op(*arguments)


def autocast(*tensors):
    """What torch.autocast does to its own scaled_dot_product_attention."""
    if torch.is_autocast_enabled("cpu"):
        to = torch.get_autocast_dtype("cpu")
        return [x.to(to) if x is not None and x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors]
    return tensors


def seed_of(dropout, seed=None, offset=0):
    """Seed and offset for the operator; a seed that is not said comes from PyTorch's generator, so torch.manual_seed() repeats it."""
    if not dropout:
        return None
    if seed is None:
        return torch.randint(1 << 62, (2,))
    return torch.tensor([word(name, x) - (x >> 63 << 64) for name, x in (("dropout_seed", seed), ("dropout_offset", offset))])


def attention(q: Tensor, k: Tensor, v: Tensor, *, bias: Optional[Tensor] = None, allow: Optional[Tensor] = None, causal: bool = False,
              align: Optional[str] = None, window: Optional[Tuple[Optional[int], Optional[int]]] = None, query_offset: Ints = None,
              query_count: Ints = None, key_count: Ints = None, key_start: Ints = None, scale: Optional[float] = None,
              softcap: float = 0.0, alibi: Optional[Tensor] = None, sink: Optional[Tensor] = None, dropout: float = 0.0,
              dropout_seed: Optional[int] = None, dropout_offset: int = 0, return_lse: bool = False,
              return_weights: Optional[str] = None, threads: Optional[int] = None) -> Union[Tensor, Tuple[Tensor, ...]]:
    """attn.attention() as an operator of PyTorch: the same arguments with the same meaning, for tensors of rank 4.

    q is (batch, heads, queries, dim), k (batch, kv_heads, keys, dim), v (batch, kv_heads, keys, value_dim); out is (batch, heads, queries,
    value_dim), in memory (batch, queries, heads, value_dim). dropout_seed None: drawn from PyTorch's generator. threads None: as there,
    but no more than torch.get_num_threads(). Returns out, or (out, lse, weights) of what was asked for. Gradients flow from out and lse to
    q, k, v, bias, alibi and sink.
    """
    check(q, k, v)
    refuse(q.dim() != 4 or k.dim() != 4 or v.dim() != 4, "q, k and v have ranks %d, %d and %d; they must be 4", q.dim(), k.dim(), v.dim())
    refuse(return_weights is not None and return_weights not in STAGES, "return_weights is %r; it must be one of %s", return_weights,
           ", ".join(STAGES))
    counts = [x if x is None or isinstance(x, Tensor) else torch.tensor(x, dtype=torch.int64)
              for x in (query_offset, query_count, key_count, key_start)]
    sides = None if window is None else [-1 if side is None else side for side in window]
    out, lse, weights = run(q, k, v, bias, allow, alibi, sink, *counts, causal, align, sides, scale, float(softcap), float(dropout),
                           seed_of(dropout, dropout_seed, dropout_offset), return_weights, threads)
    results = [out] + ([lse] if return_lse else []) + ([weights] if return_weights is not None else [])
    return out if len(results) == 1 else tuple(results)
