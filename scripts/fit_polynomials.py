"""Coefficients of src/kernels/tile.h: 2^r on [-1/2, 1/2] with 2^0 exactly 1, and tanh(u)/u in u^2 for |u| <= 0.6.
SPDX-License-Identifier: MIT

Needs mpmath. Prints C initialisers, highest degree first, and the largest relative error after rounding the coefficients.
"""
from mpmath import mp, mpf, chebyfit, polyval, tanh, sqrt, log, nstr

mp.dps = 60


def rounded(x, bits):
    m, e = mp.frexp(x)
    return mp.ldexp(mp.nint(mp.ldexp(m, bits)), e - bits)


def show(name, coefficients, bits, error):
    print("%s: max relative error %s" % (name, nstr(error, 3)))
    print("    " + ", ".join(nstr(rounded(c, bits), 10 if bits == 24 else 18) for c in coefficients))


def exp2_poly(degree, bits):
    low = chebyfit(lambda r: (mpf(2) ** r - 1) / r if r else log(2), [-0.5, 0.5], degree)
    co = [rounded(c, bits) for c in low] + [mpf(1)]
    err = max(abs(polyval(co, r) / mpf(2) ** r - 1) for r in [mpf(i) / 2000 - mpf(1) / 2 for i in range(2001)])
    show("2^r, degree %d" % degree, co, bits, err)


def tanh_poly(degree, bits):
    top = mpf("0.36")
    low = chebyfit(lambda w: (tanh(sqrt(w)) / sqrt(w) - 1) / w if w > mpf(10) ** -25 else -mpf(1) / 3, [0, top], degree)
    co = [rounded(c, bits) for c in low] + [mpf(1)]
    ws = [top * i / 2000 for i in range(1, 2001)]
    err = max(abs(polyval(co, w) / (tanh(sqrt(w)) / sqrt(w)) - 1) for w in ws)
    show("tanh(u)/u in u^2, degree %d" % degree, co, bits, err)


for d, b in ((5, 24), (6, 24), (11, 53), (12, 53)):
    exp2_poly(d, b)
for d, b in ((4, 24), (5, 24), (6, 24), (11, 53), (12, 53), (13, 53)):
    tanh_poly(d, b)
