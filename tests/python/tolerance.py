"""How far a result may be from the double-precision one: the only table of tolerances in these tests.
SPDX-License-Identifier: MIT
"""
import ml_dtypes
import numpy as np

# |got - want| <= A * (largest |want| of the tensor) + R * |want|, by type; the finest first.
TABLE = {"float64": (1e-13, 1e-12), "float32": (2e-6, 1e-5), "float16": (1e-3, 2e-3), "bfloat16": (8e-3, 1e-2)}
GRADIENTS = {"float64": (1e-12, 1e-11), "float32": (1e-5, 1e-4), "float16": (3e-3, 6e-3), "bfloat16": (2e-2, 3e-2)}
WIDEN = {"float64": 2.0**-50, "float32": 2.0**-21}  # times the largest inexact score, added to A and R


def row(name, inputs, result, gradient=False):
    """The row of the table for a result of type `result` from inputs of type `inputs`: what computes in f32 is no finer than f32, and weights
    may be rounded to bfloat16 before they are multiplied with values of that type; gradients need that out."""
    if (gradient or name.startswith("out")) and np.dtype(inputs).name == "bfloat16":
        result = inputs
    order = list(TABLE)
    arithmetic = "float64" if np.dtype(inputs).name == "float64" else "float32"
    return arithmetic, order[max(order.index(arithmetic), order.index(np.dtype(result).name))]


def limit(name, want, inputs, result, size, least=0.0, gradient=False):
    """The largest difference allowed at each element; `size` is the largest score before rounding could matter (reference.py, size),
    `least` the largest |want| that is assumed at least."""
    arithmetic, kind = row(name, inputs, result, gradient)
    a, r = (bound + WIDEN[arithmetic] * size for bound in (GRADIENTS if gradient else TABLE)[kind])
    finite = np.abs(want[np.isfinite(want)])
    rounding = float(ml_dtypes.finfo(result).smallest_subnormal) / 2  # below the normal numbers it is no longer relative
    return a * finite.max(initial=least) + r * np.abs(want) + rounding


def check(name, got, want, inputs, size, gradient=False, least=0.0):
    """Asserts that `got` is `want` within the table, with NaN and infinities in the same places."""
    want = np.asarray(want, np.float64)
    assert got.shape == want.shape, "%s has shape %s, not %s" % (name, got.shape, want.shape)
    result, got = got.dtype, got.astype(np.float64)
    # an error of a logarithm is a relative one of its argument, also where all logarithms of a tensor happen to be near 0
    most = limit(name, want, inputs, result, size, least=1.0 if name.startswith("lse") else least, gradient=gradient)
    with np.errstate(invalid="ignore"):
        close = (np.abs(got - want) <= most) | ((got == 0) & (np.abs(want) < float(ml_dtypes.finfo(result).tiny)))  # may be flushed to 0
        good = np.where(np.isfinite(want), close, (got == want) | (np.isnan(got) & np.isnan(want)))
    if not good.all():
        at = tuple(int(i) for i in np.argwhere(~good)[0])
        raise AssertionError("%s%s is %r, wanted %r within %.3g; %d of %d elements are off (inputs %s, result %s)" % (
            name, list(at), float(got[at]), float(want[at]), float(most[at]), (~good).sum(), good.size, np.dtype(inputs).name, result.name))
