/* avx512.c: rows of 16 lanes of f32.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "vocabulary.h"

#define NAME     attn_kernel_avx512
#define FEW_NAME attn_kernel_avx512_few
#define ISA      "avx512"
#define TARGET   __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma")))
#include "avx512.h"
#include "tile.h"
#else
typedef int attn_no_avx512; /* ISO C wants something in a file */
#endif
