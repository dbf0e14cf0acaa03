"""attn: exact attention for NumPy arrays, by the C library libattn.
SPDX-License-Identifier: MIT

One function does the work; include/attn/attn.h says exactly what it computes.

    attention(q, k, v, *, bias=None, allow=None, causal=False, align=None, window=None,
              query_offset=None, query_count=None, key_count=None, key_start=None,
              scale=None, softcap=0.0, alibi=None, sink=None, out=None,
              return_lse=False, return_weights=None, isa=None, threads=None)

>>> import numpy as np, attn
>>> q = np.array([[1, 0]], np.float32)                     # (queries, channels)
>>> k = np.array([[1, 0], [0, 1]], np.float32)             # (keys, channels)
>>> v = np.array([[10, 0], [0, 10]], np.float32)
>>> out, lse, weights = attn.attention(q, k, v, return_lse=True, return_weights="weight")
>>> [round(float(x), 3) for x in out[0]], [round(float(x), 2) for x in weights[0]]
([6.698, 3.302], [0.67, 0.33])
>>> attn.attention(q, k, v, allow=np.array([True, False])).tolist()       # only the first key may be seen
[[10.0, 0.0]]

Arrays have the axes (batch, head, position, channel); rank 3 has no batch, rank 2 no head either, and results have q's rank.
q, k and v are float32, float64, float16 or bfloat16 (ml_dtypes), all of one type. There may be fewer key heads than query heads:

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

`allow` (bool, True = may be seen) and `bias` (float: q's type or float32; -inf hides) broadcast from the right to (batch, heads,
queries, keys). `window` is (left, right); None or -1 is no bound. `alibi` holds slopes, (heads,) or (batch, heads); `sink` one logit a
head; these, and a bias given as a number or list, are converted to float32 (float64 with float64 inputs). `return_weights` names a
stage: "weight", "scaled", "capped" or "biased"; lse and weights are float32 (float64 with float64 inputs). `threads`: None or 1 is the
calling thread; the pool for another number is made once and kept. `isa` forces one of isas(). The result is out, or a tuple
(out, lse, weights) of what was asked for.

Strided arrays (slices, transposes, reversed or broadcast views) are used in place, without a copy, and nothing is ever broadcast in
memory. Only an input that is not aligned for its type, steps by part of an element, or has foreign byte order is copied first; such
an `out` is refused. `out` is written in place, through its strides, and returned; it may be float32 for 16-bit inputs, and must not
overlap an input. Refused arguments raise ValueError with a sentence, before anything is written; MemoryError and RuntimeError say that
memory or a thread could not be had. The library is found by ATTN_LIBRARY if that is set, else in the tree's build/, else as the system's
libattn.so.0.
"""
import ctypes

import numpy as np

from . import _describe, _library

__all__ = ["attention", "merge", "alibi_slopes", "isas", "work_bytes", "version"]

_STAGES = {"weight": 0, "scaled": 1, "capped": 2, "biased": 3}
version = _library.lib.attn_version_text().decode()


def attention(q, k, v, *, bias=None, allow=None, causal=False, align=None, window=None, query_offset=None, query_count=None,
              key_count=None, key_start=None, scale=None, softcap=0.0, alibi=None, sink=None, out=None, return_lse=False,
              return_weights=None, isa=None, threads=None):
    """softmax(scale q k^T + bias, over the keys that may be seen) v; the module's text says what each argument means."""
    c = _describe.describe(q, k, v, bias=bias, allow=allow, causal=causal, align=align, window=window, query_offset=query_offset,
                           query_count=query_count, key_count=key_count, key_start=key_start, scale=scale, softcap=softcap, alibi=alibi,
                           sink=sink, isa=isa, threads=threads)
    d, q, keep = c.desc, c.q, c.keep
    out, d.out = _describe.result("out", out, q.shape[:-1] + c.v.shape[-1:], q.dtype.newbyteorder("="), keep)
    results = [out]
    if return_lse:
        lse, d.lse = _describe.result("lse", None, q.shape[:-1], c.real, keep)
        results.append(lse)
    if return_weights is not None:
        if return_weights not in _STAGES:
            raise ValueError("return_weights is %r; it must be one of %s" % (return_weights, ", ".join(_STAGES)))
        weights, d.weights = _describe.result("weights", None, q.shape[:-1] + c.k.shape[-2:-1], c.real, keep)
        d.weights_stage = _STAGES[return_weights]
        results.append(weights)
    _library.call(_library.lib.attn_run, ctypes.byref(d))
    return out if len(results) == 1 else tuple(results)


def work_bytes(q, k, v, *, isa=None, threads=None):
    """The bytes of memory that attention() takes beside its inputs and results; they do not depend on its other arguments."""
    keep, size = [], ctypes.c_size_t()
    d, q, k, v = _describe.sizes(q, k, v, keep)
    d.isa = None if isa is None else str(isa).encode()
    d.executor = _describe.executor(threads)
    d.out = _describe.result("out", None, q.shape[:-1] + v.shape[-1:], q.dtype.newbyteorder("="), keep)[1]
    _library.call(_library.lib.attn_work_bytes, ctypes.byref(d), ctypes.byref(size))
    return size.value


def merge(outs, lses, *, out=None):
    """Joins results over disjoint sets of keys, one out and one lse for each set, into (out, lse) over all of them.

    out has the type of the first part unless an array is given. A part with lse = -inf takes no part. Give a sink to one part only.

    >>> import numpy as np
    >>> rng = np.random.default_rng(2)
    >>> q, k, v = rng.standard_normal((3, 2, 6, 4))
    >>> parts = [attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 4), slice(4, 6))]
    >>> out, lse = merge([part[0] for part in parts], [part[1] for part in parts])
    >>> bool(np.allclose(out, attention(q, k, v)))
    True
    """
    keep = []
    outs, lses = [_describe.floats("outs", a) for a in outs], [_describe.floats("lses", a) for a in lses]
    if not outs or len(outs) != len(lses):
        raise ValueError("there are %d outs and %d lses; they must be as many, at least one" % (len(outs), len(lses)))
    shape = outs[0].shape
    if len(shape) not in (2, 3, 4) or any(a.shape != shape for a in outs) or any(a.shape != shape[:-1] for a in lses):
        raise ValueError("all outs must have one shape of rank 2 to 4, and all lses that shape without its last axis")
    full = (1,) * (4 - len(shape)) + shape
    d = _library.MergeDesc(size=ctypes.sizeof(_library.MergeDesc), batch=full[0], heads=full[1], queries=full[2], value_dim=full[3], parts=len(outs))
    d.part_out = (_library.View * len(outs))(*[_describe.input_view(a, keep) for a in outs])
    d.part_lse = (_library.View * len(lses))(*[_describe.input_view(a[..., None], keep) for a in lses])
    out, d.out = _describe.result("out", out, shape, outs[0].dtype.newbyteorder("="), keep)
    lse, d.lse = _describe.result("lse", None, shape[:-1], lses[0].dtype.newbyteorder("="), keep)
    _library.call(_library.lib.attn_merge, ctypes.byref(d))
    return out, lse


def alibi_slopes(heads):
    """The usual slopes for `heads` heads, float32.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    heads = _describe.integer("heads", heads)
    slopes = np.empty(max(heads, 0), np.float32)
    _library.call(_library.lib.attn_alibi_slopes, heads, slopes.__array_interface__["data"][0])
    return slopes


def isas():
    """The instruction sets that this machine can run, best first; the last is always "scalar"."""
    names, index = [], 0
    while (name := _library.lib.attn_isa_name(index)) is not None:
        names += [name.decode()] if _library.lib.attn_isa_usable(index) else []
        index += 1
    return names
