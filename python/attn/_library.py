"""_library.py: finds and loads the shared library; its structs and functions as ctypes sees them.
SPDX-License-Identifier: MIT
"""
import ctypes
import os

_ERRORS = {4: MemoryError, 104: MemoryError, 6: RuntimeError, 106: OSError}  # every other code is the caller's: ValueError


class View(ctypes.Structure):  # attn_in and attn_out
    _fields_ = [("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4), ("bytes", ctypes.c_size_t),
                ("dtype", ctypes.c_int32), ("reserved", ctypes.c_int32)]


class Error(ctypes.Structure):  # attn_error
    _fields_ = [("status", ctypes.c_int32), ("message", ctypes.c_char * 252)]


class Desc(ctypes.Structure):  # attn_desc
    _fields_ = ([("size", ctypes.c_size_t)]
                + [(n, ctypes.c_int64) for n in ("batch", "heads", "kv_heads", "queries", "keys", "dim", "value_dim")]
                + [(n, View) for n in ("q", "k", "v", "out")]
                + [(n, ctypes.c_int32) for n in ("align", "causal", "window", "scale_given")]
                + [(n, ctypes.c_int64) for n in ("window_left", "window_right")]
                + [(n, ctypes.c_void_p) for n in ("query_offset", "query_count", "key_count", "key_start")]
                + [(n, View) for n in ("allow", "bias", "alibi", "sink")]
                + [(n, ctypes.c_double) for n in ("scale", "softcap")]
                + [(n, View) for n in ("lse", "weights")]
                + [("weights_stage", ctypes.c_int32), ("reserved", ctypes.c_int32), ("isa", ctypes.c_char_p),
                   ("executor", ctypes.c_void_p), ("work", ctypes.c_void_p), ("work_bytes", ctypes.c_size_t),
                   ("dropout", ctypes.c_double), ("dropout_seed", ctypes.c_uint64), ("dropout_offset", ctypes.c_uint64)])


class LayerDesc(ctypes.Structure):  # attn_layer_desc
    _fields_ = ([("size", ctypes.c_size_t)]
                + [(n, ctypes.c_int64) for n in ("batch", "heads", "kv_heads", "queries", "keys", "dim", "value_dim", "width", "key_width",
                                                 "value_width", "out_width")]
                + [(n, View) for n in ("x", "x_key", "x_value", "w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o",
                                       "out", "q", "k", "v", "y")]
                + [("options", ctypes.POINTER(Desc)), ("work", ctypes.c_void_p), ("work_bytes", ctypes.c_size_t)])


class LayerLoadOptions(ctypes.Structure):  # attn_layer_load_options
    _fields_ = [("size", ctypes.c_size_t), ("heads", ctypes.c_int64), ("kv_heads", ctypes.c_int64), ("prefix", ctypes.c_char_p)]


class LayerCheckpoint(ctypes.Structure):  # attn_layer_checkpoint
    _fields_ = ([("size", ctypes.c_size_t)]
                + [(n, ctypes.c_int64) for n in ("heads", "kv_heads", "dim", "value_dim", "width", "key_width", "value_width", "out_width")]
                + [(n, View) for n in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")]
                + [("causal", ctypes.c_int32), ("layout", ctypes.c_int32), ("prefix", ctypes.c_char_p), ("description", ctypes.c_char_p)])


class MergeDesc(ctypes.Structure):  # attn_merge_desc
    _fields_ = [("size", ctypes.c_size_t), ("batch", ctypes.c_int64), ("heads", ctypes.c_int64), ("queries", ctypes.c_int64),
                ("value_dim", ctypes.c_int64), ("parts", ctypes.c_int64), ("part_out", ctypes.POINTER(View)),
                ("part_lse", ctypes.POINTER(View)), ("out", View), ("lse", View)]


class DropoutBlock(ctypes.Structure):  # attn_dropout_block
    _fields_ = ([("size", ctypes.c_size_t), ("dropout", ctypes.c_double), ("seed", ctypes.c_uint64), ("offset", ctypes.c_uint64)]
                + [(n, ctypes.c_int64) for n in ("batch", "head", "query", "key")]
                + [(n + "_count", ctypes.c_int64) for n in ("batch", "head", "query", "key")] + [("keep", View)])


class BackwardDesc(ctypes.Structure):  # attn_backward_desc
    _fields_ = ([("size", ctypes.c_size_t)]
                + [(n, View) for n in ("out", "lse", "d_out", "d_lse", "dq", "dk", "dv", "dbias", "dsink", "dalibi")]
                + [("accumulate", ctypes.c_int32), ("reserved", ctypes.c_int32), ("work", ctypes.c_void_p),
                   ("work_bytes", ctypes.c_size_t)])


def find(name):
    """The library's file: beside this one in a wheel, in build/ in the tree, else what the system's loader finds."""
    here = os.path.dirname(os.path.realpath(__file__))
    for path in (os.path.join(here, name + ".so"), os.path.join(here, "..", "..", "build", name + ".so")):
        if os.path.exists(path):
            return path
    return name + ".so.0"


def load():
    """The library, its functions declared. A library that ATTN_LIBRARY names but that does not load is an error, not passed over."""
    try:
        lib = ctypes.CDLL(os.environ.get("ATTN_LIBRARY") or find("libattn"))
    except OSError as fault:
        raise ImportError("libattn was not found: run make, or set ATTN_LIBRARY to its path (%s)" % fault) from None
    error = ctypes.POINTER(Error)
    declare(lib, (
            ("attn_run", ctypes.c_int32, ctypes.POINTER(Desc), error),
            ("attn_check", ctypes.c_int32, ctypes.POINTER(Desc), error),
            ("attn_work_bytes", ctypes.c_int32, ctypes.POINTER(Desc), ctypes.POINTER(ctypes.c_size_t), error),
            ("attn_backward", ctypes.c_int32, ctypes.POINTER(Desc), ctypes.POINTER(BackwardDesc), error),
            ("attn_dropout_mask", ctypes.c_int32, ctypes.POINTER(DropoutBlock), error),
            ("attn_merge", ctypes.c_int32, ctypes.POINTER(MergeDesc), error),
            ("attn_alibi_slopes", ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, error),
            ("attn_pool_new", ctypes.c_void_p, ctypes.c_int32, error),
            ("attn_pool_free", None, ctypes.c_void_p),
            ("attn_pool_executor", ctypes.c_void_p, ctypes.c_void_p),
            ("attn_isa_name", ctypes.c_char_p, ctypes.c_int32),
            ("attn_isa_usable", ctypes.c_int32, ctypes.c_int32),
            ("attn_version_text", ctypes.c_char_p)))
    return lib


def declare(lib, functions):
    """Sets the types of functions: (name, result, arguments...)."""
    for name, result, *args in functions:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, args


lib = load()


def beside(name, what, functions):
    """A library that some builds of the package lack, its functions declared; `what` says what is missing then."""
    try:
        more = ctypes.CDLL(find(name))
    except OSError as fault:
        raise ImportError("%s needs the library %s, which this build of the package does not have (%s)" % (what, name, fault)) from None
    declare(more, functions)
    return more


def raise_error(error):
    raise _ERRORS.get(error.status, ValueError)(error.message.decode())


def call(function, *args):
    """Calls a function of the library that ends with an attn_error; a failure is raised with the library's sentence."""
    error = Error()
    if function(*args, ctypes.byref(error)):
        raise_error(error)
