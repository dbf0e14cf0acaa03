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
memory or a thread could not be had. The library is found by ATTN_LIBRARY if that is set, else in ../build, else as the system's
libattn.so.0.
"""
import ctypes
import operator
import os

import numpy as np

__all__ = ["attention", "merge", "alibi_slopes", "isas", "work_bytes", "version"]

_DTYPES = {"float32": 1, "float64": 2, "float16": 3, "bfloat16": 4, "bool": 5}
_FLOATS = ("float32", "float64", "float16", "bfloat16")
_ALIGNS = {None: 0, "top_left": 1, "bottom_right": 2}
_STAGES = {"weight": 0, "scaled": 1, "capped": 2, "biased": 3}
_ERRORS = {4: MemoryError, 6: RuntimeError}  # every other code is the caller's: ValueError
_AXES = "(batch, heads, queries, keys)"


class _View(ctypes.Structure):  # attn_in and attn_out
    _fields_ = [("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4), ("bytes", ctypes.c_size_t),
                ("dtype", ctypes.c_int32), ("reserved", ctypes.c_int32)]


class _Error(ctypes.Structure):  # attn_error
    _fields_ = [("status", ctypes.c_int32), ("message", ctypes.c_char * 252)]


class _Desc(ctypes.Structure):  # attn_desc
    _fields_ = ([("size", ctypes.c_size_t)]
                + [(n, ctypes.c_int64) for n in ("batch", "heads", "kv_heads", "queries", "keys", "dim", "value_dim")]
                + [(n, _View) for n in ("q", "k", "v", "out")]
                + [(n, ctypes.c_int32) for n in ("align", "causal", "window", "scale_given")]
                + [(n, ctypes.c_int64) for n in ("window_left", "window_right")]
                + [(n, ctypes.c_void_p) for n in ("query_offset", "query_count", "key_count", "key_start")]
                + [(n, _View) for n in ("allow", "bias", "alibi", "sink")]
                + [(n, ctypes.c_double) for n in ("scale", "softcap")]
                + [(n, _View) for n in ("lse", "weights")]
                + [("weights_stage", ctypes.c_int32), ("reserved", ctypes.c_int32), ("isa", ctypes.c_char_p),
                   ("executor", ctypes.c_void_p), ("work", ctypes.c_void_p), ("work_bytes", ctypes.c_size_t)])


class _MergeDesc(ctypes.Structure):  # attn_merge_desc
    _fields_ = [("size", ctypes.c_size_t), ("batch", ctypes.c_int64), ("heads", ctypes.c_int64), ("queries", ctypes.c_int64),
                ("value_dim", ctypes.c_int64), ("parts", ctypes.c_int64), ("part_out", ctypes.POINTER(_View)),
                ("part_lse", ctypes.POINTER(_View)), ("out", _View), ("lse", _View)]


def _load():
    """The library, its functions declared. A library that ATTN_LIBRARY names but that does not load is an error, not passed over."""
    named = os.environ.get("ATTN_LIBRARY")
    built = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "build", "libattn.so")
    try:
        lib = ctypes.CDLL(named or (built if os.path.exists(built) else "libattn.so.0"))
    except OSError as fault:
        raise ImportError("libattn was not found: run make, or set ATTN_LIBRARY to its path (%s)" % fault) from None
    error = ctypes.POINTER(_Error)
    for name, result, *args in (
            ("attn_run", ctypes.c_int32, ctypes.POINTER(_Desc), error),
            ("attn_work_bytes", ctypes.c_int32, ctypes.POINTER(_Desc), ctypes.POINTER(ctypes.c_size_t), error),
            ("attn_merge", ctypes.c_int32, ctypes.POINTER(_MergeDesc), error),
            ("attn_alibi_slopes", ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, error),
            ("attn_pool_new", ctypes.c_void_p, ctypes.c_int32, error),
            ("attn_pool_free", None, ctypes.c_void_p),
            ("attn_pool_executor", ctypes.c_void_p, ctypes.c_void_p),
            ("attn_isa_name", ctypes.c_char_p, ctypes.c_int32),
            ("attn_isa_usable", ctypes.c_int32, ctypes.c_int32),
            ("attn_version_text", ctypes.c_char_p)):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, args
    return lib


_lib = _load()
version = _lib.attn_version_text().decode()


def _call(function, *args):
    error = _Error()
    status = function(*args, ctypes.byref(error))
    if status:
        raise _ERRORS.get(status, ValueError)(error.message.decode())


# ---- Python values to descriptor fields ---------------------------------------------------------------------------------------------


def _integer(name, value, bits=64):
    """An int that fits; ctypes alone would cut one off silently."""
    value = operator.index(value)
    if not -1 << bits - 1 <= value < 1 << bits - 1:
        raise ValueError("%s is %d, which does not fit %d bits" % (name, value, bits))
    return value


def _floats(name, value):
    array = np.asarray(value)
    if array.dtype.name not in _FLOATS:
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
    return _View(array.__array_interface__["data"][0], stride, 0, _DTYPES[array.dtype.name], 0)


def _input(array, keep):
    return _view(array if _in_place(array) else array.astype(array.dtype.newbyteorder("="), order="C"), keep)


def _broadcast(name, array, shape, keep):
    """A mask or bias; axes of one element, and those it lacks, get stride 0."""
    if array.ndim > 4 or any(n not in (1, full) for n, full in zip(array.shape[::-1], shape[::-1])):
        raise ValueError("%s has shape %s, which does not broadcast to %s = %s" % (name, array.shape, _AXES, shape))
    return _input(array, keep)


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


def _result(name, array, shape, dtype, keep):
    """An output and its view: made when None, else the caller's, written in place."""
    if array is None:
        array = np.empty(shape, dtype)
    if not isinstance(array, np.ndarray) or array.shape != shape:
        raise ValueError("%s has shape %s; the result has shape %s" % (name, getattr(array, "shape", None), shape))
    if array.dtype.name not in _FLOATS or not _in_place(array) or not array.flags.writeable:
        raise ValueError("%s must be a writeable, aligned array of floats in native byte order" % name)
    return array, _view(array[..., None] if name == "lse" else array, keep)  # lse has no channels


_pools = {}


def _executor(threads):
    """The executor of a pool that is made once per process and number; None for the calling thread alone. No lock: one that another
    thread held during fork() would never open in the child. A loser of a race frees its pool."""
    threads = 1 if threads is None else _integer("threads", threads, 32)
    if threads == 1:
        return None
    key = (os.getpid(), threads)  # a forked child's pools have no threads: it makes its own
    pool = _pools.get(key)
    if pool is None:
        error = _Error()
        made = _lib.attn_pool_new(threads, ctypes.byref(error))
        if not made:
            raise _ERRORS.get(error.status, ValueError)(error.message.decode())
        pool = _pools.setdefault(key, made)
        if pool != made:
            _lib.attn_pool_free(made)
    return _lib.attn_pool_executor(pool)


def _sizes(q, k, v, keep):
    """The descriptor with sizes and inputs, and the inputs as arrays."""
    q, k, v = _floats("q", q), _floats("k", k), _floats("v", v)
    if q.ndim not in (2, 3, 4) or k.ndim != q.ndim or v.ndim != q.ndim:
        raise ValueError("q, k and v have ranks %d, %d and %d; they must be alike, 2 to 4" % (q.ndim, k.ndim, v.ndim))
    full_q, full_k, full_v = ((1,) * (4 - a.ndim) + a.shape for a in (q, k, v))
    for axis, name in ((0, "batch"), (1, "head"), (2, "position")):
        if full_k[axis] != full_v[axis]:
            raise ValueError("k and v differ in their %s axis: %d and %d" % (name, full_k[axis], full_v[axis]))
    if full_q[0] != full_k[0] or full_q[3] != full_k[3]:
        raise ValueError("q has batch %d and %d channels, k has %d and %d; they must be equal"
                         % (full_q[0], full_q[3], full_k[0], full_k[3]))
    d = _Desc(size=ctypes.sizeof(_Desc), batch=full_q[0], heads=full_q[1], kv_heads=full_k[1],
              queries=full_q[2], keys=full_k[2], dim=full_q[3], value_dim=full_v[3])
    d.q, d.k, d.v = _input(q, keep), _input(k, keep), _input(v, keep)
    return d, q, k, v


def _masks(d, bias, allow, alibi, sink, real, keep):
    shape = (d.batch, d.heads, d.queries, d.keys)
    if allow is not None:
        allow = np.asarray(allow)
        if allow.dtype != np.bool_:
            raise ValueError("allow has dtype %s; it must be bool (True = may be seen), and a float mask is a bias" % allow.dtype.name)
        d.allow = _broadcast("allow", allow, shape, keep)
    if bias is not None:
        array = np.asarray(bias)
        if array.dtype.name not in _FLOATS:
            raise ValueError("bias has dtype %s; it must be a float type, and a bool mask is allow" % array.dtype.name)
        if not isinstance(bias, (np.ndarray, np.generic)):
            array = array.astype(real)  # Python numbers have no type of their own
        d.bias = _broadcast("bias", array, shape, keep)
    if alibi is not None:
        d.alibi = _per_head("alibi", alibi, ((d.heads,), (d.batch, d.heads)), real, keep)
    if sink is not None:
        d.sink = _per_head("sink", sink, ((d.heads,),), real, keep)


def _positions(d, causal, align, window, per_batch, keep):
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
        left, right = (-1 if side is None else _integer("window", side) for side in window)
        if (left, right) != (-1, -1):  # no bound on either side is no window
            d.window, d.window_left, d.window_right = 1, left, right
    for field, value in per_batch.items():
        if value is not None:
            setattr(d, field, _per_batch(field, value, d.batch, keep))


# ---- the functions ------------------------------------------------------------------------------------------------------------------


def attention(q, k, v, *, bias=None, allow=None, causal=False, align=None, window=None, query_offset=None, query_count=None,
              key_count=None, key_start=None, scale=None, softcap=0.0, alibi=None, sink=None, out=None, return_lse=False,
              return_weights=None, isa=None, threads=None):
    """softmax(scale q k^T + bias, over the keys that may be seen) v; the module's text says what each argument means."""
    keep = []  # what the descriptor's pointers point to
    d, q, k, v = _sizes(q, k, v, keep)
    real = np.float64 if q.dtype.name == "float64" else np.float32
    _masks(d, bias, allow, alibi, sink, real, keep)
    _positions(d, causal, align, window, {"query_offset": query_offset, "query_count": query_count,
                                          "key_count": key_count, "key_start": key_start}, keep)
    if scale is not None:
        d.scale_given, d.scale = 1, scale
    d.softcap = softcap
    d.isa = None if isa is None else str(isa).encode()
    d.executor = _executor(threads)
    out, d.out = _result("out", out, q.shape[:-1] + v.shape[-1:], q.dtype.newbyteorder("="), keep)
    results = [out]
    if return_lse:
        lse, d.lse = _result("lse", None, q.shape[:-1], real, keep)
        results.append(lse)
    if return_weights is not None:
        if return_weights not in _STAGES:
            raise ValueError("return_weights is %r; it must be one of %s" % (return_weights, ", ".join(_STAGES)))
        weights, d.weights = _result("weights", None, q.shape[:-1] + k.shape[-2:-1], real, keep)
        d.weights_stage = _STAGES[return_weights]
        results.append(weights)
    _call(_lib.attn_run, ctypes.byref(d))
    return out if len(results) == 1 else tuple(results)


def work_bytes(q, k, v, *, isa=None, threads=None):
    """The bytes of memory that attention() takes beside its inputs and results; they do not depend on its other arguments."""
    keep, size = [], ctypes.c_size_t()
    d, q, k, v = _sizes(q, k, v, keep)
    d.isa = None if isa is None else str(isa).encode()
    d.executor = _executor(threads)
    d.out = _result("out", None, q.shape[:-1] + v.shape[-1:], q.dtype.newbyteorder("="), keep)[1]
    _call(_lib.attn_work_bytes, ctypes.byref(d), ctypes.byref(size))
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
    outs, lses = [_floats("outs", a) for a in outs], [_floats("lses", a) for a in lses]
    if not outs or len(outs) != len(lses):
        raise ValueError("there are %d outs and %d lses; they must be as many, at least one" % (len(outs), len(lses)))
    shape = outs[0].shape
    if len(shape) not in (2, 3, 4) or any(a.shape != shape for a in outs) or any(a.shape != shape[:-1] for a in lses):
        raise ValueError("all outs must have one shape of rank 2 to 4, and all lses that shape without its last axis")
    full = (1,) * (4 - len(shape)) + shape
    d = _MergeDesc(size=ctypes.sizeof(_MergeDesc), batch=full[0], heads=full[1], queries=full[2], value_dim=full[3], parts=len(outs))
    d.part_out = (_View * len(outs))(*[_input(a, keep) for a in outs])
    d.part_lse = (_View * len(lses))(*[_input(a[..., None], keep) for a in lses])
    out, d.out = _result("out", out, shape, outs[0].dtype.newbyteorder("="), keep)
    lse, d.lse = _result("lse", None, shape[:-1], lses[0].dtype.newbyteorder("="), keep)
    _call(_lib.attn_merge, ctypes.byref(d))
    return out, lse


def alibi_slopes(heads):
    """The usual slopes for `heads` heads, float32.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    heads = _integer("heads", heads)
    slopes = np.empty(max(heads, 0), np.float32)
    _call(_lib.attn_alibi_slopes, heads, slopes.__array_interface__["data"][0])
    return slopes


def isas():
    """The instruction sets that this machine can run, best first; the last is always "scalar"."""
    names, index = [], 0
    while (name := _lib.attn_isa_name(index)) is not None:
        names += [name.decode()] if _lib.attn_isa_usable(index) else []
        index += 1
    return names
