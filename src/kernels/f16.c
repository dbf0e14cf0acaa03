/* f16.c: IEEE binary16 in memory.
 * SPDX-License-Identifier: MIT */
#include "f16.h"

#include "../kernel.h"

#define widen  widen_f16
#define narrow narrow_f16
#include "half.h"

const struct attn_convert attn_convert_f16 = {load_f32, 0, store_f32, 0};
