"""_operator.py: the operator itself and what belongs to it.
SPDX-License-Identifier: MIT
"""
import ctypes
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _arrays, _describe, _library

STAGES = {"weight": 0, "scaled": 1, "capped": 2, "biased": 3}
Array = Any  # a NumPy array, or whatever speaks DLPack; there is no common type to name
Ints = Union[int, Sequence[int], np.ndarray]
Window = Tuple[Optional[int], Optional[int]]


def attention(q: Array, k: Array, v: Array, *, bias: Optional[Array] = None, allow: Optional[Array] = None, causal: bool = False,
              align: Optional[str] = None, window: Optional[Window] = None, query_offset: Optional[Ints] = None,
              query_count: Optional[Ints] = None, key_count: Optional[Ints] = None, key_start: Optional[Ints] = None,
              scale: Optional[float] = None, softcap: float = 0.0, alibi: Optional[Array] = None, sink: Optional[Array] = None,
              dropout: float = 0.0, dropout_seed: int = 0, dropout_offset: int = 0, out: Optional[Array] = None, return_lse: bool = False,
              return_weights: Optional[str] = None, isa: Optional[str] = None, threads: Optional[int] = None) -> Any:
    """softmax(scale q k^T + bias, over the keys that may be seen) v.

    q is (batch, heads, queries, dim), k is (batch, kv_heads, keys, dim), v is (batch, kv_heads, keys, value_dim), out is (batch, heads,
    queries, value_dim). Rank 3 has no batch, rank 2 no head either, and results have q's rank. q, k and v are float32, float64, float16
    or bfloat16, all of one type; out has it too. heads is a multiple of kv_heads: query head h reads key head h // (heads // kv_heads).

    >>> import numpy as np, attn
    >>> rng = np.random.default_rng(1)
    >>> q = rng.standard_normal((2, 8, 5, 16), np.float32)     # 8 query heads
    >>> k, v = rng.standard_normal((2, 2, 2, 7, 16), np.float32)   # 2 key heads, 7 keys
    >>> attn.attention(q, k, v, causal=True, align="bottom_right", window=(3, None), threads=2).shape
    (2, 8, 5, 16)

    Where queries stand among the keys is said, never guessed: `align` ("top_left" or "bottom_right") or `query_offset`, as soon as
    causal, a window or alibi needs it. query_offset, query_count, key_count and key_start are one int, or one per batch entry:

    >>> attn.attention(q, k, v, causal=True)
    Traceback (most recent call last):
        ...
    ValueError: align is not said: causal needs it, as batch entry 0 has 5 queries and 7 keys; ...
    >>> attn.attention(q, k, v, key_count=[7, 4], scale=0.5, return_lse=True)[1].shape
    (2, 8, 5)

    bias: float, q's type or float32, broadcasts from the right to (batch, heads, queries, keys); added to the scores; -inf hides.
    allow: bool, same axes; True = may be seen. A float mask is a bias, never an allow.
    causal: a query sees the keys up to its own position. window: (left, right), keys before and after its own; None or -1 = no bound.
    key_count, key_start: the keys of a batch entry that exist, and the first of them; query_count: its queries, the rest is padding.
    scale: 1 / sqrt(dim) when None. softcap: c * tanh(score / c), 0 = off.
    alibi: slopes, (heads,) or (batch, heads). sink: one logit a head, (heads,). These, and a bias given as a number or list, are
    converted to float32 (float64 with float64 inputs).
    dropout: the rate at which weights are dropped before they meet the values, for training; the others are raised by 1 / (1 - dropout).
    dropout_mask() tells which ones dropout_seed and dropout_offset keep. lse and weights are those before.
    out: an array to write into, through its strides; also float32 for 16-bit inputs; must not overlap an input.
    return_lse: also the logarithm of each softmax's sum, (batch, heads, queries).
    return_weights: also a stage of the weights, (batch, heads, queries, keys): "weight", "scaled", "capped" or "biased". That is a matrix
    of queries * keys; weights() and summary() need none. lse and weights are float32 (float64 with float64 inputs).
    isa: one of isas(); None = the best. threads: 1 is the calling thread alone; None is ATTN_NUM_THREADS, else as many as this process
    may use CPUs, and the calling thread alone where a call is too small for more. A pool is made once per number and kept; the bits
    are the same for any number.

    The result is out, or a tuple (out, lse, weights) of what was asked for. A refused argument raises ValueError with a sentence before
    anything is written; MemoryError and RuntimeError say that memory or a thread could not be had. Python's lock is released meanwhile;
    any number of threads may call.
    """
    c = _describe.tensors(q, k, v)
    _describe.options(c, bias, allow, causal, align, window, query_offset, query_count, key_count, key_start, scale, softcap, alibi, sink,
                      dropout, dropout_seed, dropout_offset, isa)  # in their order: by name they cost a microsecond
    _describe.run_on(c, threads)
    rows = c.q.shape[:-1]
    results = [c.result("out", rows + c.v.shape[-1:], c.q.dtype, out)]
    if return_lse:
        results.append(c.result("lse", rows, missing=1))
    if return_weights is not None:
        if return_weights not in STAGES:
            raise ValueError("return_weights is %r; it must be one of %s" % (return_weights, ", ".join(STAGES)))
        c.desc.weights_stage = STAGES[return_weights]
        results.append(c.result("weights", rows + c.k.shape[-2:-1]))
    _library.call(_library.lib.attn_run, ctypes.byref(c.desc))
    if c.kind == "jax":
        results = [_arrays.finish(c.kind, array) for array in results]
    return results[0] if len(results) == 1 else tuple(results)


def work_bytes(q: Array, k: Array, v: Array, *, isa: Optional[str] = None, threads: Optional[int] = None) -> int:
    """The bytes of memory that attention() takes beside its inputs and results; they do not depend on its other arguments."""
    size = ctypes.c_size_t()
    c = _describe.describe(q, k, v, isa=isa, threads=threads)
    c.result("out", c.q.shape[:-1] + c.v.shape[-1:], c.q.dtype)
    _library.call(_library.lib.attn_work_bytes, ctypes.byref(c.desc), ctypes.byref(size))
    return size.value


def merge(outs: Sequence[Array], lses: Sequence[Array], *, out: Optional[Array] = None) -> Tuple[Array, Array]:
    """Joins results over disjoint sets of keys, one out and one lse for each set, into (out, lse) over all of them.

    outs: each (batch, heads, queries, value_dim), or of rank 3 or 2; lses: each that shape without its last axis. The result's out has
    the type of the first part unless an array is given. A part with lse = -inf takes no part. Give a sink to one part only.

    >>> import numpy as np, attn
    >>> rng = np.random.default_rng(2)
    >>> q, k, v = rng.standard_normal((3, 2, 6, 4))
    >>> parts = [attn.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 4), slice(4, 6))]
    >>> out, lse = attn.merge([part[0] for part in parts], [part[1] for part in parts])
    >>> bool(np.allclose(out, attn.attention(q, k, v)))
    True
    """
    if not len(outs) or len(outs) != len(lses):
        raise ValueError("there are %d outs and %d lses; they must be as many, at least one" % (len(outs), len(lses)))
    kind = _arrays.library(outs[0])
    outs, lses = [_describe.floats("outs", a) for a in outs], [_describe.floats("lses", a) for a in lses]
    shape = outs[0].shape
    if len(shape) not in (2, 3, 4) or any(a.shape != shape for a in outs) or any(a.shape != shape[:-1] for a in lses):
        raise ValueError("all outs must have one shape of rank 2 to 4, and all lses that shape without its last axis")
    full = (1,) * (4 - len(shape)) + shape
    d = _library.MergeDesc(size=ctypes.sizeof(_library.MergeDesc), batch=full[0], heads=full[1], queries=full[2], value_dim=full[3],
                           parts=len(outs))
    d.part_out = (_library.View * len(outs))(*[_describe.view(a) for a in outs])
    d.part_lse = (_library.View * len(lses))(*[_describe.view(a, missing=1) for a in lses])
    out, to = _describe.result("out", out, shape, outs[0].dtype, kind, outs[0])
    lse, lse_to = _describe.result("lse", None, shape[:-1], lses[0].dtype, kind, lses[0])
    d.out, d.lse = _describe.view(to), _describe.view(lse_to, missing=1)
    _library.call(_library.lib.attn_merge, ctypes.byref(d))
    return _arrays.finish(kind, out), _arrays.finish(kind, lse)


def dropout_mask(dropout: float, shape: Sequence[int], *, seed: int = 0, offset: int = 0, first: Sequence[int] = (0, 0, 0, 0)) -> np.ndarray:
    """Which weights attention() with dropout keeps: bool (batch, heads, queries, keys) of that shape, from the numbers in `first` on.

    A weight's fate depends on seed, offset and its own batch, head, query and key numbers, and on nothing else.

    >>> import attn
    >>> keep = attn.dropout_mask(0.25, (1, 2, 100, 100), seed=7)
    >>> bool(abs(keep.mean() - 0.75) < 0.02)
    True
    >>> bool((attn.dropout_mask(0.25, (1, 1, 3, 5), seed=7, first=(0, 1, 10, 20)) == keep[:, 1:, 10:13, 20:25]).all())
    True
    """
    if len(shape) != 4 or len(first) != 4:
        raise ValueError("shape and first must have 4 entries: (batch, heads, queries, keys)")
    keep = np.empty([max(_describe.integer("shape", n), 0) for n in shape], bool)
    b = _library.DropoutBlock(ctypes.sizeof(_library.DropoutBlock), dropout, _describe.word("seed", seed), _describe.word("offset", offset),
                              *(_describe.integer("first", n) for n in first), *(_describe.integer("shape", n) for n in shape))
    b.keep = _describe.view(_arrays.of_numpy(keep))
    _library.call(_library.lib.attn_dropout_mask, ctypes.byref(b))
    return keep


def alibi_slopes(heads: int) -> np.ndarray:
    """The usual ALiBi slopes for `heads` heads: (heads,), float32.

    >>> import attn
    >>> attn.alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    heads = _describe.integer("heads", heads)
    slopes = np.empty(max(heads, 0), np.float32)
    _library.call(_library.lib.attn_alibi_slopes, heads, slopes.__array_interface__["data"][0])
    return slopes


def isas() -> List[str]:
    """The instruction sets that this machine can run, best first; the last is always "scalar"."""
    names, index = [], 0
    while True:
        name = _library.lib.attn_isa_name(index)
        if name is None:
            return names
        names += [name.decode()] if _library.lib.attn_isa_usable(index) else []
        index += 1
