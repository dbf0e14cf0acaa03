"""_describe.py: Python values to fields of a descriptor; nothing here computes or calls the operator.
SPDX-License-Identifier: MIT
"""
import ctypes
import operator
import os

import numpy as np

from ._library import Desc, Error, View, lib, raise_error

DTYPES = {"float32": 1, "float64": 2, "float16": 3, "bfloat16": 4, "bool": 5}
FLOATS = ("float32", "float64", "float16", "bfloat16")
_ALIGNS = {None: 0, "top_left": 1, "bottom_right": 2}
_AXES = "(batch, heads, queries, keys)"


def integer(name, value, bits=64):
    """An int that fits; ctypes alone would cut one off silently."""
    value = operator.index(value)
    if not -1 << bits - 1 <= value < 1 << bits - 1:
        raise ValueError("%s is %d, which does not fit %d bits" % (name, value, bits))
    return value


def floats(name, value):
    array = np.asarray(value)
    if array.dtype.name not in FLOATS:
        raise ValueError("%s has dtype %s; it must be float32, float64, float16 or bfloat16" % (name, array.dtype.name))
    return array


def _in_place(array):
    return array.dtype.isnative and array.flags.aligned and not any(
        step % array.itemsize for step, n in zip(array.strides, array.shape) if n > 1)


def _view(array, keep):
    """An attn_in or attn_out over the array, whose axes are the descriptor's last ones."""
    keep.append(array)
    stride = [step // array.itemsize if n > 1 else 0 for step, n in zip(array.strides, array.shape)]  # one element: no step
    stride = (ctypes.c_int64 * 4)(*[0] * (4 - array.ndim), *stride)
    return View(array.__array_interface__["data"][0], stride, 0, DTYPES[array.dtype.name], 0)


def input_view(array, keep):
    return _view(array if _in_place(array) else array.astype(array.dtype.newbyteorder("="), order="C"), keep)


def _broadcast(name, array, shape, keep):
    """A mask or bias; axes of one element, and those it lacks, get stride 0."""
    if array.ndim > 4 or any(n not in (1, full) for n, full in zip(array.shape[::-1], shape[::-1])):
        raise ValueError("%s has shape %s, which does not broadcast to %s = %s" % (name, array.shape, _AXES, shape))
    return input_view(array, keep)


def _per_batch(name, value, batch, keep):
    array = np.asarray(value)
    if (array.size and array.dtype.kind not in "iu") or array.ndim > 1 or (array.ndim and array.shape[0] != batch):
        raise ValueError("%s must be an int or %d ints, one for each batch entry" % (name, batch))
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError("%s is %d, which does not fit 64 bits" % (name, array.max()))
    array = np.ascontiguousarray(np.broadcast_to(array.astype(np.int64), (batch,)))
    keep.append(array)
    return array.__array_interface__["data"][0]


def _per_head(name, value, shapes, real, keep):
    """Slopes or sinks: few numbers, so they are converted; axes (batch, head)."""
    array = np.asarray(value)
    if array.dtype.name != "bfloat16" and array.dtype.kind not in "fiu":
        raise ValueError("%s has dtype %s; it must hold numbers" % (name, array.dtype.name))
    if array.shape not in shapes:
        raise ValueError("%s has shape %s; it must be %s" % (name, array.shape, " or ".join(map(str, shapes))))
    return _view(array.astype(real, order="C")[..., None, None], keep)


def result(name, array, shape, dtype, keep):
    """An output and its view: made when None, else the caller's, written in place."""
    if array is None:
        array = np.empty(shape, dtype)
    if not isinstance(array, np.ndarray) or array.shape != shape:
        raise ValueError("%s has shape %s; the result has shape %s" % (name, getattr(array, "shape", None), shape))
    if array.dtype.name not in FLOATS or not _in_place(array) or not array.flags.writeable:
        raise ValueError("%s must be a writeable, aligned array of floats in native byte order" % name)
    return array, _view(array[..., None] if name == "lse" else array, keep)  # lse has no channels


pools = {}


def executor(threads):
    """The executor of a pool that is made once per process and number; None for the calling thread alone. No lock: one that another
    thread held during fork() would never open in the child. A loser of a race frees its pool."""
    threads = 1 if threads is None else integer("threads", threads, 32)
    if threads == 1:
        return None
    key = (os.getpid(), threads)  # a forked child's pools have no threads: it makes its own
    pool = pools.get(key)
    if pool is None:
        error = Error()
        made = lib.attn_pool_new(threads, ctypes.byref(error))
        if not made:
            raise_error(error)
        pool = pools.setdefault(key, made)
        if pool != made:
            lib.attn_pool_free(made)
    return lib.attn_pool_executor(pool)


def sizes(q, k, v, keep):
    """The descriptor with sizes and inputs, and the inputs as arrays."""
    q, k, v = floats("q", q), floats("k", k), floats("v", v)
    if q.ndim not in (2, 3, 4) or k.ndim != q.ndim or v.ndim != q.ndim:
        raise ValueError("q, k and v have ranks %d, %d and %d; they must be alike, 2 to 4" % (q.ndim, k.ndim, v.ndim))
    full_q, full_k, full_v = ((1,) * (4 - a.ndim) + a.shape for a in (q, k, v))
    for axis, name in ((0, "batch"), (1, "head"), (2, "position")):
        if full_k[axis] != full_v[axis]:
            raise ValueError("k and v differ in their %s axis: %d and %d" % (name, full_k[axis], full_v[axis]))
    if full_q[0] != full_k[0] or full_q[3] != full_k[3]:
        raise ValueError("q has batch %d and %d channels, k has %d and %d; they must be equal"
                         % (full_q[0], full_q[3], full_k[0], full_k[3]))
    d = Desc(size=ctypes.sizeof(Desc), batch=full_q[0], heads=full_q[1], kv_heads=full_k[1],
              queries=full_q[2], keys=full_k[2], dim=full_q[3], value_dim=full_v[3])
    d.q, d.k, d.v = input_view(q, keep), input_view(k, keep), input_view(v, keep)
    return d, q, k, v


def masks(d, bias, allow, alibi, sink, real, keep):
    shape = (d.batch, d.heads, d.queries, d.keys)
    if allow is not None:
        allow = np.asarray(allow)
        if allow.dtype != np.bool_:
            raise ValueError("allow has dtype %s; it must be bool (True = may be seen), and a float mask is a bias" % allow.dtype.name)
        d.allow = _broadcast("allow", allow, shape, keep)
    if bias is not None:
        array = np.asarray(bias)
        if array.dtype.name not in FLOATS:
            raise ValueError("bias has dtype %s; it must be a float type, and a bool mask is allow" % array.dtype.name)
        if not isinstance(bias, (np.ndarray, np.generic)):
            array = array.astype(real)  # Python numbers have no type of their own
        d.bias = _broadcast("bias", array, shape, keep)
    if alibi is not None:
        d.alibi = _per_head("alibi", alibi, ((d.heads,), (d.batch, d.heads)), real, keep)
    if sink is not None:
        d.sink = _per_head("sink", sink, ((d.heads,),), real, keep)


def positions(d, causal, align, window, per_batch, keep):
    if causal not in (True, False):
        raise ValueError("causal is %r; it must be True or False" % (causal,))
    d.causal = bool(causal)
    name = align.replace("-", "_") if isinstance(align, str) else align
    if name not in _ALIGNS:
        raise ValueError("align is %r; it must be 'top_left', 'bottom_right' or None" % (align,))
    d.align = _ALIGNS[name]
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise ValueError("window is %r; it must be a pair (left, right)" % (window,))
        left, right = (-1 if side is None else integer("window", side) for side in window)
        if (left, right) != (-1, -1):  # no bound on either side is no window
            d.window, d.window_left, d.window_right = 1, left, right
    for field, value in per_batch.items():
        if value is not None:
            setattr(d, field, _per_batch(field, value, d.batch, keep))


class Call:
    """A described call: the descriptor, what its pointers point to (keep), the inputs as arrays, the type of lse, slopes and sinks (real)."""
    __slots__ = ("desc", "keep", "q", "k", "v", "real")


def describe(q, k, v, *, bias=None, allow=None, causal=False, align=None, window=None, query_offset=None, query_count=None, key_count=None,
             key_start=None, scale=None, softcap=0.0, alibi=None, sink=None, isa=None, threads=None):
    """Everything of attention()'s arguments but its results."""
    c = Call()
    c.keep = keep = []
    c.desc, c.q, c.k, c.v = d, q, k, v = sizes(q, k, v, keep)
    c.real = np.float64 if q.dtype.name == "float64" else np.float32
    masks(d, bias, allow, alibi, sink, c.real, keep)
    positions(d, causal, align, window, {"query_offset": query_offset, "query_count": query_count,
                                         "key_count": key_count, "key_start": key_start}, keep)
    if scale is not None:
        d.scale_given, d.scale = 1, scale
    d.softcap = softcap
    d.isa = None if isa is None else str(isa).encode()
    d.executor = executor(threads)
    return c
