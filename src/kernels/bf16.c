/* bf16.c: the upper half of an f32 in memory.
 * SPDX-License-Identifier: MIT */
#include "../kernel.h"
#include "vocabulary.h"

static FORCE float widen(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float    f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To nearest even; NaN stays NaN when its low bits are cut off. */
static FORCE uint16_t narrow(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

#include "half.h"

const struct attn_convert attn_convert_bf16 = {load_f32, 0, store_f32, 0};
