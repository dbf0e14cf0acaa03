"""Where the optional test data is, the seed of this run, and what the library here can run.
SPDX-License-Identifier: MIT
"""
import os
import sys

import ml_dtypes
import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "python"))

import attn  # noqa: E402

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64), "f16": np.dtype(np.float16), "bf16": BF16}
ISAS = attn.isas()
SEED = int(os.environ.get("ATTN_SEED", "1"))  # fixed unless given, so that a failure in CI is the same at home
EXAMPLES = float(os.environ.get("ATTN_EXAMPLES", "1"))  # multiplies the number of random examples


def find_data():
    """The folder of test data, or None: ATTN_TEST_DATA, else `shared` beside the project."""
    folder = os.environ.get("ATTN_TEST_DATA") or os.path.join(os.path.dirname(ROOT), "shared")
    return os.path.abspath(folder) if os.path.isdir(folder) else None


DATA = find_data()
needs_data = pytest.mark.skipif(DATA is None, reason="no test data: set ATTN_TEST_DATA to its folder")
if DATA:
    sys.path.insert(0, os.path.join(DATA, "oracle"))
    sys.path.insert(0, os.path.join(DATA, "cases"))


def data(*parts):
    return os.path.join(DATA, *parts)


def random(dtype, rng, *shape):
    return rng.standard_normal(shape).astype(np.float32 if dtype != np.float64 else np.float64).astype(dtype)


def tensors(rng, dtype, b=2, h=4, g=2, n=5, m=7, d=8, dv=None):
    """q, k and v of batch b, h heads, g key heads, n queries, m keys, widths d and dv."""
    return [random(dtype, rng, *shape) for shape in ((b, h, n, d), (b, g, m, d), (b, g, m, d if dv is None else dv))]
