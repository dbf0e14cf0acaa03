/* scalar.c: the plain C row, f32 arithmetic. It is the row that every other one is compared with.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "vocabulary.h"

#define NAME attn_kernel_scalar
#define ISA  "scalar"
#define TARGET
#define REAL_BITS 32
#define LANES     1
#define NV        4
#define NB        4
#include "scalar.h"
#include "tile.h"
