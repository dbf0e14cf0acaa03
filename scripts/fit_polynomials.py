"""Coefficients of src/kernels/tile.h: 2^r on [-1/2, 1/2] with 2^0 exactly 1, and tanh(u)/u in u^2 for |u| <= 0.6.
SPDX-License-Identifier: MIT

Needs numpy and mpmath. Prints C initialisers, highest degree first, and the largest relative error after rounding the coefficients.
"""
import itertools

import numpy as np
from mpmath import mp, mpf, chebyfit, polyval, tanh, sqrt, log, nstr

mp.dps = 60


def rounded(x, bits):
    m, e = mp.frexp(x)
    return mp.ldexp(mp.nint(mp.ldexp(m, bits)), e - bits)


def show(name, coefficients, error):
    print("%s: max relative error %s" % (name, nstr(mpf(error), 3)))
    print("    " + ", ".join("%s (%s)" % (nstr(c, 18), float(c).hex()) for c in coefficients))


def exp2_float(degree):
    """Minimax of the relative error by Lawson's reweighting, then the best of the neighbouring roundings of the three largest coefficients."""
    r = np.cos(np.linspace(0, np.pi, 4001)) * 0.5
    f = 2.0 ** r
    a, b, w = np.stack([r ** k / f for k in range(1, degree + 1)], 1), (f - 1) / f, np.ones_like(r)
    for _ in range(3000):
        s = np.sqrt(w)
        c = np.linalg.lstsq(a * s[:, None], b * s, rcond=None)[0]
        w *= np.abs(a @ c - b)
        w /= w.sum()
    best = (1.0, None)
    for step in itertools.product((-1, 0, 1), repeat=3):
        x = c.astype(np.float32)
        for i, d in enumerate(step):
            x[i] = np.nextafter(x[i], np.float32(10 * d)) if d else x[i]
        p = 1 + sum(np.float64(x[k - 1]) * r ** k for k in range(1, degree + 1))
        best = min(best, (np.abs(p / f - 1).max(), tuple(x)), key=lambda pair: pair[0])
    show("float 2^r, degree %d" % degree, [float(x) for x in best[1][::-1]] + [1.0], best[0])


def exp2_double(degree):
    low = chebyfit(lambda r: (mpf(2) ** r - 1) / r if r else log(2), [-0.5, 0.5], degree)
    c = [rounded(x, 53) for x in low] + [mpf(1)]
    points = [mpf(i) / 2000 - mpf(1) / 2 for i in range(2001)]
    show("double 2^r, degree %d" % degree, c, max(abs(polyval(c, r) / mpf(2) ** r - 1) for r in points))


def tanh_over_u(degree, bits, name):
    top = mpf("0.36")
    low = chebyfit(lambda w: (tanh(sqrt(w)) / sqrt(w) - 1) / w if w > mpf(10) ** -25 else -mpf(1) / 3, [0, top], degree)
    c = [rounded(x, bits) for x in low] + [mpf(1)]
    points = [top * i / 2000 for i in range(1, 2001)]
    show("%s tanh(u)/u in u^2, degree %d" % (name, degree), c, max(abs(polyval(c, w) * sqrt(w) / tanh(sqrt(w)) - 1) for w in points))


exp2_float(5)
tanh_over_u(5, 24, "float")
exp2_double(11)
tanh_over_u(12, 53, "double")
