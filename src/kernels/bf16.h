/* bf16.h: the upper half of an f32.
 * SPDX-License-Identifier: MIT */
#include "vocabulary.h"

static FORCE float widen_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float    f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To nearest even; NaN stays NaN when its low bits are cut off. */
static FORCE uint16_t narrow_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}
