"""_describe.py: Python values to fields of a descriptor; nothing here computes or calls the operator.
SPDX-License-Identifier: MIT
"""
import ctypes
import operator
import os
import struct

import numpy as np

from . import _arrays
from ._arrays import FLOATS, NAMES, operand
from ._library import Desc, Error, View, lib, raise_error

_ALIGNS = {None: 0, "top_left": 1, "bottom_right": 2, "top-left": 1, "bottom-right": 2}
_AXES = "(batch, heads, queries, keys)"
_FLOAT_NAMES = "float32, float64, float16 or bfloat16"
_SMALL = 1 << 19  # multiply-adds below which waking a thread costs more than it does; the bits are the same either way

# Assigning to a ctypes structure inside another costs a microsecond a piece; packing its bytes costs a fifth.
_SIZES = struct.Struct("@N7q")
_VIEW = struct.Struct("@P4qNii")
_AT = {name: getattr(Desc, name).offset for name, kind in Desc._fields_ if kind is View}
assert _VIEW.size == ctypes.sizeof(View)


def whole(name, value):
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError("%s is %r; it must be a whole number" % (name, value)) from None


def integer(name, value, bits=64):
    """An int that fits; ctypes alone would cut one off silently."""
    value = whole(name, value)
    if not -1 << bits - 1 <= value < 1 << bits - 1:
        raise ValueError("%s is %d, which does not fit %d bits" % (name, value, bits))
    return value


def word(name, value):
    """An int of 64 bits without a sign."""
    value = whole(name, value)
    if not 0 <= value < 1 << 64:
        raise ValueError("%s is %d, and must be from 0 to 2^64 - 1" % (name, value))
    return value


def pair(name, value, what):
    """Two whole numbers, or None in a place of one."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError("%s is %r; it must be a pair (%s)" % (name, value, what))
    return tuple(None if side is None else integer(name, side) for side in value)


def put_real(d, name, value):
    """The number as the descriptor's field."""
    try:
        setattr(d, name, value)
    except TypeError:
        raise ValueError("%s is %r; it must be a number" % (name, value)) from None


def floats(name, value):
    x = operand(name, value)
    if x.dtype not in FLOATS:
        raise ValueError("%s has dtype %s; it must be %s" % (name, x.name or NAMES[x.dtype], _FLOAT_NAMES))
    return x


def put(d, name, x, missing=0):
    """The operand as the descriptor's field; its axes are the field's last ones but for the `missing` ones after them."""
    stride = (0,) * (4 - len(x.stride) - missing) + x.stride + (0,) * missing
    _VIEW.pack_into(d, _AT[name], x.data, *stride, 0, x.dtype, 0)


def view(x, missing=0):
    """The operand as an attn_in or attn_out of its own."""
    return View.from_buffer_copy(_VIEW.pack(x.data, *(0,) * (4 - len(x.stride) - missing), *x.stride, *(0,) * missing, 0, x.dtype, 0))


def result(name, given, shape, code, kind, like, missing=0):
    """An output, made when None, else the caller's, written in place: (array, operand)."""
    if given is None:
        return _arrays.empty(kind, shape, code, like)
    if not isinstance(given, np.ndarray) and not hasattr(given, "__dlpack_device__"):
        raise ValueError("%s is a %s; it must be an array that can be written in place" % (name, type(given).__name__))
    x = operand(name, given)
    if x.shape != shape:
        raise ValueError("%s has shape %s; the result has shape %s" % (name, x.shape, shape))
    writable = given.flags.writeable and _arrays.in_place(given) if isinstance(given, np.ndarray) else _arrays.library(given) == "torch"
    if x.dtype not in FLOATS or not writable:
        raise ValueError("%s must be a writeable, aligned array of floats in native byte order" % name)
    return given, x


# ---- threads --------------------------------------------------------------------------------------------------------------------------

pools = {}
_default_threads = None


def default_threads():
    """ATTN_NUM_THREADS, else the CPUs that this process may use; read once."""
    global _default_threads
    if _default_threads is None:
        said = os.environ.get("ATTN_NUM_THREADS")
        if said:
            if not said.isdigit() or not 1 <= int(said) <= 1024:
                raise ValueError("ATTN_NUM_THREADS is %r, and must be a number from 1 to 1024" % said)
            _default_threads = int(said)
        else:
            count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            _default_threads = min(count, 1024)
    return _default_threads


def executor(threads, work=None):
    """The executor of a pool that is made once per process and number; None for the calling thread alone. No lock: one that another
    thread held during fork() would never open in the child. A loser of a race frees its pool."""
    if threads is None:
        threads = 1 if work is not None and work < _SMALL else default_threads()
    else:
        threads = integer("threads", threads, 32)
    if threads == 1:
        return None
    key = (os.getpid(), threads)  # a forked child's pools have no threads: it makes its own
    pool = pools.get(key)
    if pool is None:
        error = Error()
        made = lib.attn_pool_new(threads, ctypes.byref(error))
        if not made:
            raise_error(error)
        pool = pools.setdefault(key, (made, lib.attn_pool_executor(made)))
        if pool[0] != made:
            lib.attn_pool_free(made)
    return pool[1]


# ---- the parts of a descriptor --------------------------------------------------------------------------------------------------------


def _sizes(d, q, k, v):
    sq, sk, sv = q.shape, k.shape, v.shape
    rank = len(sq)
    if not 2 <= rank <= 4 or len(sk) != rank or len(sv) != rank:
        raise ValueError("q, k and v have ranks %d, %d and %d; they must be alike, 2 to 4" % (len(sq), len(sk), len(sv)))
    if rank < 4:
        sq, sk, sv = ((1,) * (4 - rank) + s for s in (sq, sk, sv))
    if sk[:3] != sv[:3]:
        axis, name = next((a, n) for a, n in enumerate(("batch", "head", "position")) if sk[a] != sv[a])
        raise ValueError("k and v differ in their %s axis: %d and %d" % (name, sk[axis], sv[axis]))
    if sq[0] != sk[0] or sq[3] != sk[3]:
        raise ValueError("q has batch %d and %d channels, k has %d and %d; they must be equal" % (sq[0], sq[3], sk[0], sk[3]))
    _SIZES.pack_into(d, 0, _SIZE, sq[0], sq[1], sk[1], sq[2], sk[2], sq[3], sv[3])
    put(d, "q", q)
    put(d, "k", k)
    put(d, "v", v)
    return (sq[0], sq[1], sq[2], sk[2])


_SIZE = ctypes.sizeof(Desc)


def _broadcast(d, name, x, shape):
    """A mask or bias; axes of one element, and those it lacks, get stride 0."""
    if len(x.shape) > 4 or any(n not in (1, full) for n, full in zip(x.shape[::-1], shape[::-1])):
        raise ValueError("%s has shape %s, which does not broadcast to %s = %s" % (name, x.shape, _AXES, shape))
    put(d, name, x)


def _allow(d, value, shape, keep):
    x = operand("allow", value)
    if x.dtype != 5:
        raise ValueError("allow has dtype %s; it must be bool (True = may be seen), and a float mask is a bias"
                         % (x.name or NAMES[x.dtype]))
    _broadcast(d, "allow", x, shape)
    keep.append(x)


def _bias(d, value, shape, real, keep):
    typed = isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__dlpack_device__")
    x = operand("bias", value if typed else np.asarray(value, real))  # Python numbers have no type of their own
    if x.dtype not in FLOATS:
        raise ValueError("bias has dtype %s; it must be a float type, and a bool mask is allow" % (x.name or NAMES[x.dtype]))
    _broadcast(d, "bias", x, shape)
    keep.append(x)


def _per_head(d, name, value, shapes, real, keep):
    """Slopes or sinks: few numbers, so they are converted; axes (batch, head)."""
    array = _arrays.numbers(name, value)
    if array.dtype.name != "bfloat16" and array.dtype.kind not in "fiu":
        raise ValueError("%s has dtype %s; it must hold numbers" % (name, array.dtype.name))
    if array.shape not in shapes:
        raise ValueError("%s has shape %s; it must be %s" % (name, array.shape, " or ".join(map(str, shapes))))
    x = operand(name, array.astype(real, order="C"))
    put(d, name, x, missing=2)
    keep.append(x)


def _per_batch(name, value, batch, keep):
    array = _arrays.numbers(name, value)
    if (array.size and array.dtype.kind not in "iu") or array.ndim > 1 or (array.ndim and array.shape[0] != batch):
        raise ValueError("%s must be an int or %d ints, one for each batch entry" % (name, batch))
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError("%s is %d, which does not fit 64 bits" % (name, array.max()))
    array = np.ascontiguousarray(np.broadcast_to(array.astype(np.int64), (batch,)))
    keep.append(array)
    return array.__array_interface__["data"][0]


def _window(d, window):
    left, right = (-1 if side is None else side for side in pair("window", window, "left, right"))
    if (left, right) != (-1, -1):  # no bound on either side is no window
        d.window, d.window_left, d.window_right = 1, left, right


# ---- a whole call ---------------------------------------------------------------------------------------------------------------------


class Call:
    """A described call: the descriptor `desc`; `keep`, what its pointers point to; q, k and v as operands; `shape`, (batch, heads,
    queries, keys); `real` and `code`, the type of lse, slopes and sinks for NumPy and for the library; `kind`, whose arrays come back."""
    __slots__ = ("desc", "keep", "q", "k", "v", "shape", "real", "code", "kind")

    def result(self, name, shape, code=None, given=None, missing=0):
        """A result of the descriptor: made, or given by the caller; filled by the run."""
        array, x = result(name, given, shape, code or self.code, self.kind, self.q)
        put(self.desc, name, x, missing)
        return array


def options(c, bias=None, allow=None, causal=False, align=None, window=None, query_offset=None, query_count=None, key_count=None,
            key_start=None, scale=None, softcap=0.0, alibi=None, sink=None, dropout=0.0, dropout_seed=0, dropout_offset=0, isa=None):
    """The operator's options into c.desc; c.shape, c.real and c.keep are set."""
    d, shape, real, keep = c.desc, c.shape, c.real, c.keep
    if allow is not None:
        _allow(d, allow, shape, keep)
    if bias is not None:
        _bias(d, bias, shape, real, keep)
    if alibi is not None:
        _per_head(d, "alibi", alibi, (shape[1:2], shape[:2]), real, keep)
    if sink is not None:
        _per_head(d, "sink", sink, (shape[1:2],), real, keep)
    if causal is not False:
        if causal not in (True, False):
            raise ValueError("causal is %r; it must be True or False" % (causal,))
        d.causal = bool(causal)
    if align is not None:
        if align not in _ALIGNS:
            raise ValueError("align is %r; it must be 'top_left', 'bottom_right' or None" % (align,))
        d.align = _ALIGNS[align]
    if window is not None:
        _window(d, window)
    if query_offset is not None:
        d.query_offset = _per_batch("query_offset", query_offset, shape[0], keep)
    if query_count is not None:
        d.query_count = _per_batch("query_count", query_count, shape[0], keep)
    if key_count is not None:
        d.key_count = _per_batch("key_count", key_count, shape[0], keep)
    if key_start is not None:
        d.key_start = _per_batch("key_start", key_start, shape[0], keep)
    if scale is not None:
        d.scale_given = 1
        put_real(d, "scale", scale)
    if softcap:
        put_real(d, "softcap", softcap)
    if dropout:
        put_real(d, "dropout", dropout)
        d.dropout_seed, d.dropout_offset = word("dropout_seed", dropout_seed), word("dropout_offset", dropout_offset)
    if isa is not None:
        d.isa = str(isa).encode()


def tensors(q, k, v):
    """A call of which nothing but q, k and v is described yet."""
    c = Call()
    c.desc = Desc()
    c.keep = []
    c.kind = _arrays.library(q)
    c.q, c.k, c.v = floats("q", q), floats("k", k), floats("v", v)
    c.shape = _sizes(c.desc, c.q, c.k, c.v)
    c.real, c.code = (np.float64, 2) if c.q.dtype == 2 else (np.float32, 1)
    return c


def run_on(c, threads):
    """Who computes the call."""
    batch, heads, queries, keys = c.shape
    c.desc.executor = executor(threads, batch * heads * queries * keys * (c.q.shape[-1] + c.v.shape[-1]))


def describe(q, k, v, *, threads=None, **given):
    """Everything of attention()'s arguments but its results."""
    c = tensors(q, k, v)
    options(c, **given)
    run_on(c, threads)
    return c
