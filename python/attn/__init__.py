"""attn: exact attention for NumPy, PyTorch and JAX arrays, by the C library libattn.
SPDX-License-Identifier: MIT

One function does the work; include/attn/attn.h says exactly what it computes.

>>> import numpy as np, attn
>>> q = np.array([[1, 0]], np.float32)                     # (queries, channels)
>>> k = np.array([[1, 0], [0, 1]], np.float32)             # (keys, channels)
>>> v = np.array([[10, 0], [0, 10]], np.float32)
>>> out, lse, weights = attn.attention(q, k, v, return_lse=True, return_weights="weight")
>>> [round(float(x), 3) for x in out[0]], [round(float(x), 2) for x in weights[0]]
([6.698, 3.302], [0.67, 0.33])
>>> attn.attention(q, k, v, allow=np.array([True, False])).tolist()       # only the first key may be seen
[[10.0, 0.0]]

Arrays are NumPy's, or any other library's that speaks DLPack and keeps them in the CPU's memory, such as PyTorch and JAX; results are
arrays of the library that q is from. Strided arrays (slices, transposes, reversed or broadcast views) are used in place, without a copy,
and nothing is ever broadcast in memory. Only a NumPy input that is not aligned for its type, steps by part of an element, or has foreign
byte order is copied first; such an `out` is refused.

The library is found by ATTN_LIBRARY if that is set, else in the package or the tree's build/, else as the system's libattn.so.0.

Tested with CPython 3.11 on Linux. That 3.9 suffices is checked by reading the sources; other versions and free-threaded builds were not run.
"""
from . import _library
from ._backward import attention_backward
from ._check import Check, check
from ._explain import Explanation, explain
from ._inspect import Summary, summary, weights
from ._layer import Layer
from ._operator import alibi_slopes, attention, dropout_mask, isas, merge, work_bytes
from ._show import Page, show

__all__ = ["attention", "attention_backward", "merge", "alibi_slopes", "dropout_mask", "isas", "work_bytes", "weights", "summary",
           "Summary", "explain", "Explanation", "check", "Check", "show", "Page", "Layer", "version"]

version: str = _library.lib.attn_version_text().decode()
__version__ = version
