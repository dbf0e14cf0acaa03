/* f16.h: IEEE binary16. Branch-free, so that a compiler can vectorise it; right for subnormals, infinities and NaN.
 * SPDX-License-Identifier: MIT */
#include "vocabulary.h"

static FORCE float widen_f16(uint16_t h)
{
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13, scale = (uint32_t)(127 + 112) << 23;
    float    f, by;
    memcpy(&f, &bits, sizeof f);
    memcpy(&by, &scale, sizeof by);
    f *= by; /* moves the exponent's bias from 15 to 127, and makes subnormals normal */
    memcpy(&bits, &f, sizeof bits);
    bits |= (h & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
    bits |= (uint32_t)(h & 0x8000) << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Without a branch: gcc makes one of ?: here, and then no vectors. */
static FORCE uint32_t pick(int32_t condition, uint32_t yes, uint32_t no)
{
    const uint32_t all = 0 - (uint32_t)condition;
    return (yes & all) | (no & ~all);
}

/* To nearest even. A float is cut to 10 bits by adding half a unit; below 2^-14 an addition to 0.5 aligns the bits. */
static FORCE uint16_t narrow_f16(float f)
{
    uint32_t bits, small, half = 0x3f000000;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    float    aligned, magnitude, offset;
    memcpy(&magnitude, &size, sizeof magnitude);
    memcpy(&offset, &half, sizeof offset);
    aligned = magnitude + offset;
    memcpy(&small, &aligned, sizeof small);
    small -= half;
    uint32_t normal = (size + 0xfff + (size >> 13 & 1) - ((uint32_t)112 << 23)) >> 13;
    uint32_t r = pick((int32_t)size < 0x38800000, small, normal); /* 2^-14 */
    r = pick((int32_t)size >= 0x477ff000, 0x7c00, r);             /* 65520 rounds to infinity */
    r = pick((int32_t)size > 0x7f800000, 0x7e00, r);              /* NaN */
    return (uint16_t)(r | sign);
}
