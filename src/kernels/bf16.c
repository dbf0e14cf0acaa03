/* bf16.c: the upper half of an f32 in memory.
 * SPDX-License-Identifier: MIT */
#include "bf16.h"

#include "../kernel.h"

#define widen  widen_bf16
#define narrow narrow_bf16
#include "half.h"

const struct attn_convert attn_convert_bf16 = {load_f32, 0, store_f32, 0};
