"""_arrays.py: arrays of NumPy and of other libraries as the C library sees them, without a copy, and results in the caller's type.
SPDX-License-Identifier: MIT
"""
import ctypes
import sys

import numpy as np

CODES = {"float32": 1, "float64": 2, "float16": 3, "bfloat16": 4, "bool": 5, "int64": 6}  # ATTN_F32, ...
NAMES = {code: name for name, code in CODES.items()}
FLOATS = (1, 2, 3, 4)
_BY_DTYPE = {np.dtype(name): code for name, code in CODES.items() if name != "bfloat16"}  # NumPy has no bfloat16 of its own
_NUMPY = {code: dtype for dtype, code in _BY_DTYPE.items()}
_DLPACK = {(2, 32): 1, (2, 64): 2, (2, 16): 3, (4, 16): 4, (6, 8): 5, (0, 64): 6}  # (type code, bits)
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class Operand:
    """An array's address, shape, steps in elements (0 along axes of one element) and dtype code; `array` is what keeps it alive. A type
    that the library does not have is dtype 0, and `name` says which."""
    __slots__ = ("array", "data", "shape", "stride", "dtype", "name")

    def __init__(self, array, data, shape, stride, dtype, name=None):
        self.array, self.data, self.shape, self.stride, self.dtype, self.name = array, data, shape, stride, dtype, name


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


# NumPy keeps an array's address right behind the object's header (PyArrayObject_fields); there it is read in a fifth of the time that
# __array_interface__ takes, which every call pays four times.
_HEADER = object.__basicsize__


def address(array):
    return ctypes.c_size_t.from_address(id(array) + _HEADER).value


_probe = np.empty(1)
if sys.implementation.name != "cpython" or address(_probe) != _probe.__array_interface__["data"][0]:
    def address(array):  # noqa: F811
        return array.__array_interface__["data"][0]


def in_place(array):
    """Whether the library can read the NumPy array where it lies."""
    size = array.itemsize
    return array.dtype.isnative and array.flags.aligned and not any(
        step % size for step, n in zip(array.strides, array.shape) if n > 1)


_STEPS = {}  # of arrays seen before that are used in place: (type, shape, strides) to code and steps


def of_numpy(array):
    """The operand of a NumPy array; copied only if it is not aligned, steps by part of an element or has foreign byte order."""
    dtype = array.dtype
    known = _STEPS.get((dtype, array.shape, array.strides))
    if known is not None and array.flags.aligned:
        return Operand(array, address(array), array.shape, known[1], known[0])
    code = _BY_DTYPE.get(dtype)
    if code is None:
        code = CODES.get(dtype.name)
        if code is None:
            return Operand(array, 0, array.shape, (), 0, dtype.name)
        if dtype.isnative:
            _BY_DTYPE[dtype] = code  # ml_dtypes' bfloat16; from now on it is found at once
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and dtype.isnative) and not in_place(array):
        array = array.astype(dtype.newbyteorder("="), order="C")
    size, shape = dtype.itemsize, array.shape
    steps = tuple([step // size if n != 1 else 0 for step, n in zip(array.strides, shape)])
    if len(_STEPS) >= 256:
        _STEPS.clear()
    _STEPS[array.dtype, shape, array.strides] = code, steps
    return Operand(array, address(array), shape, steps, code)


def _of_dlpack(name, array):
    device = array.__dlpack_device__()
    if int(device[0]) != 1:
        raise ValueError("%s lies on device type %d (DLPack), and must be in the CPU's memory" % (name, device[0]))
    try:
        capsule = array.__dlpack__()
    except (BufferError, RuntimeError) as fault:  # an array that requires a gradient, for one
        raise ValueError("%s cannot be read in place: %s" % (name, fault)) from None
    t = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(t.shape[:t.ndim])
    if t.strides:
        strides = t.strides[:t.ndim]
    else:
        strides = [1] * t.ndim
        for axis in range(t.ndim - 2, -1, -1):
            strides[axis] = strides[axis + 1] * shape[axis + 1]
    steps = tuple([step if n != 1 else 0 for step, n in zip(strides, shape)])
    code = _DLPACK.get((t.code, t.bits), 0) if t.lanes == 1 else 0
    kind = None if code else "%s%d" % (_DLPACK_KINDS.get(t.code, "type %d of " % t.code), t.bits)
    return Operand((array, capsule), (t.data or 0) + t.byte_offset, shape, steps, code, kind)


def no_tangent(name, tensor):
    """Refuses what torch.func.jvp() and others hand in: the result would have no tangent, which they take for one of 0."""
    forward = sys.modules["torch"].autograd.forward_ad
    if forward._current_level >= 0 and forward.unpack_dual(tensor).tangent is not None:
        raise NotImplementedError("%s carries a forward-mode derivative (jvp), and the library has none: use backward()" % name)


def _plain(name, tensor):
    """The tensor without its history, which may be dropped only where PyTorch does not record."""
    no_tangent(name, tensor)
    if not tensor.requires_grad and not tensor.is_neg():
        return tensor
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise ValueError("%s requires a gradient, which only attn.torch computes: hand in %s.detach(), or call that" % (name, name))
    return tensor.detach().resolve_neg()


_BY_TORCH_DTYPE = {}


def of_torch(name, tensor):
    """DLPack would do, at 20 times the cost."""
    torch = sys.modules["torch"]
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise ValueError("%s is a %s tensor on %s, and must be a strided one in the CPU's memory" % (name, tensor.layout, tensor.device))
    if not _BY_TORCH_DTYPE:
        _BY_TORCH_DTYPE.update({getattr(torch, kind): code for kind, code in CODES.items()})
    code, shape = _BY_TORCH_DTYPE.get(tensor.dtype, 0), tuple(tensor.shape)
    steps = tuple([step if n != 1 else 0 for step, n in zip(tensor.stride(), shape)])
    return Operand(tensor, tensor.data_ptr(), shape, steps, code, None if code else str(tensor.dtype)[6:])


def _bare(name, value):
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("%s is a masked array, whose mask would be lost: say it with allow, or hand in %s.filled(..)" % (name, name))
    return np.asarray(value)


def operand(name, value):
    """The operand of whatever array the caller has; lists and numbers become NumPy arrays."""
    if type(value) is np.ndarray:
        return of_numpy(value)
    if library(value) == "torch":
        return of_torch(name, _plain(name, value))
    if not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "__dlpack_device__"):
        return _of_dlpack(name, value)
    return of_numpy(_bare(name, value))


def numbers(name, value):
    """A few numbers as a NumPy array, to be converted."""
    if library(value) == "torch":
        value = _plain(name, value)
        value = (value.float() if value.dtype == sys.modules["torch"].bfloat16 else value).numpy()
    return _bare(name, value)


# ---- results --------------------------------------------------------------------------------------------------------------------------


_LIBRARIES = {}  # by type


def library(value):
    """The name of the library whose arrays the results of a call with this q are: "numpy", "torch", "jax"."""
    if type(value) is np.ndarray:
        return "numpy"
    kind = type(value)
    if kind not in _LIBRARIES:
        _LIBRARIES[kind] = {"torch": "torch", "jax": "jax", "jaxlib": "jax"}.get(kind.__module__.partition(".")[0], "numpy")
    return _LIBRARIES[kind]


def empty(kind, shape, code, like):
    """A new array for a result: (what is handed to finish(), its operand). `like` is q's operand, whose own NumPy dtype is bfloat16's."""
    if kind == "torch":
        torch = sys.modules["torch"]
        array = torch.empty(shape, dtype=getattr(torch, NAMES[code]))
        return array, of_torch("result", array)
    dtype = _NUMPY.get(code)
    if dtype is None:
        dtype = like.array.dtype if isinstance(like.array, np.ndarray) else _bfloat16()
    array = np.empty(shape, dtype)
    return array, of_numpy(array)


def _bfloat16():
    import ml_dtypes  # only a result in bfloat16 that is no NumPy array's needs it; JAX brings it
    return np.dtype(ml_dtypes.bfloat16)


def finish(kind, array):
    """The filled result in the caller's type."""
    return sys.modules["jax"].numpy.asarray(array) if kind == "jax" else array
