"""_backward.py: gradients of the operator.
SPDX-License-Identifier: MIT
"""
import ctypes
from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np

from . import _arrays, _describe, _library

NAMES = ("q", "k", "v", "bias", "alibi", "sink")
_FIELDS = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "alibi": "dalibi", "sink": "dsink"}
_MISSING = {"alibi": 2, "sink": 2}  # axes that the descriptor's field has behind the array's


def attention_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, d_out: Any, *, d_lse: Optional[Any] = None,
                       wanted: Sequence[str] = ("q", "k", "v"), into: Optional[Mapping[str, Any]] = None, accumulate: bool = False,
                       **options: Any) -> Dict[str, Any]:
    """Gradients of a number that depends on attention()'s out and, maybe, its lse.

    q, k, v and options (bias, allow, causal, ..., isa, threads) are those of the call; out and lse are what it returned; d_out, and d_lse
    if it is not 0, are the number's derivatives by them. A dict comes back: for each name in `wanted`, out of "q", "k", "v", "bias",
    "alibi" and "sink", the derivative by that argument, in its shape and type (alibi and sink: lse's type).

    >>> import numpy as np, attn
    >>> q, k, v, d_out = np.random.default_rng(3).standard_normal((4, 2, 6, 4))
    >>> bias = np.zeros((6, 6))
    >>> out, lse = attn.attention(q, k, v, bias=bias, causal=True, return_lse=True)
    >>> d = attn.attention_backward(q, k, v, out, lse, d_out, bias=bias, causal=True, wanted=("v", "bias"))
    >>> d["v"].shape, d["bias"].shape
    ((2, 6, 4), (6, 6))
    >>> step = np.zeros_like(v)
    >>> step[0, 2, 1] = 1e-3
    >>> moved = attn.attention(q, k, v + step, bias=bias, causal=True) - out
    >>> bool(np.isclose((moved * d_out).sum(), 1e-3 * d["v"][0, 2, 1]))
    True

    into: arrays to write into, by the same names. accumulate: add to what they hold. What is hidden gets exactly 0; nothing of size queries
    * keys is held; the bits are the same for any number of threads. With 16-bit inputs an out in float32 keeps more precision.
    """
    unknown = [name for name in (*wanted, *(into or ())) if name not in NAMES]
    if unknown:
        raise ValueError("there is no gradient by %r; it must be one of %s" % (unknown[0], ", ".join(NAMES)))
    if accumulate and set(wanted) - set(into or ()):
        raise ValueError("accumulate needs an array in `into` for each gradient wanted")
    c = _describe.describe(q, k, v, **options)
    g = _library.BackwardDesc(size=ctypes.sizeof(_library.BackwardDesc), accumulate=bool(accumulate))
    rows = c.q.shape[:-1]
    for name, value, shape, missing in (("out", out, rows + c.v.shape[-1:], 0), ("lse", lse, rows, 1),
                                        ("d_out", d_out, rows + c.v.shape[-1:], 0), ("d_lse", d_lse, rows, 1)):
        if value is None and name == "d_lse":
            continue
        x = _describe.floats(name, value)
        if x.shape != shape:
            raise ValueError("%s has shape %s, and must have %s" % (name, x.shape, shape))
        c.keep.append(x)
        setattr(g, name, _describe.view(x, missing))
    results = {}
    for name in wanted:
        if name in ("bias", "alibi", "sink") and options.get(name) is None:
            raise ValueError("the gradient by %s is wanted, but there is no %s" % (name, name))
        shape = getattr(c, name).shape if name in ("q", "k", "v") else tuple(np.shape(options[name]))
        code = getattr(c.desc, name).dtype
        array, x = _describe.result("into[%r]" % name, (into or {}).get(name), shape, code, c.kind, c.q)
        c.keep.append(x)
        setattr(g, _FIELDS[name], _describe.view(x, _MISSING.get(name, 0)))
        results[name] = array
    _library.call(_library.lib.attn_backward, ctypes.byref(c.desc), ctypes.byref(g))
    return {name: _arrays.finish(c.kind, array) for name, array in results.items()}
