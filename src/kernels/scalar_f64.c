/* scalar_f64.c: the plain C row, f64 arithmetic. It is the row that every other one is compared with.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "vocabulary.h"

#define NAME attn_kernel_scalar_f64
#define ISA  "scalar"
#define TARGET
#define REAL_BITS 64
#define LANES     1
#define NV        4
#define NB        4
#include "scalar.h"
#include "tile.h"
