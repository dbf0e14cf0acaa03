/* neon_f64.c: 2 lanes of f64.
 * SPDX-License-Identifier: MIT */
#if defined(__aarch64__)
#include <arm_neon.h>

#include "vocabulary.h"

#define NAME     attn_kernel_neon_f64
#define FEW_NAME attn_kernel_neon_few_f64
#define ISA      "neon"
#define TARGET
#define REAL_BITS 64
#define LANES     2
#define NV        4 /* 5 x 4 accumulators + 4 + 1 of 32 registers */
#define NB        5
typedef double      real;
typedef float64x2_t vec;
typedef uint64x2_t  mask;

static FORCE vec v_set(real a)
{
    return vdupq_n_f64(a);
}
static FORCE vec v_load(const real *a)
{
    return vld1q_f64(a);
}
static FORCE vec v_load_any(const real *a)
{
    return vld1q_f64(a);
}
static FORCE void v_store(real *to, vec a)
{
    vst1q_f64(to, a);
}
static FORCE vec v_add(vec a, vec b)
{
    return vaddq_f64(a, b);
}
static FORCE vec v_sub(vec a, vec b)
{
    return vsubq_f64(a, b);
}
static FORCE vec v_div(vec a, vec b)
{
    return vdivq_f64(a, b);
}
static FORCE vec v_fma(vec a, vec b, vec c)
{
    return vfmaq_f64(c, a, b);
}
static FORCE vec v_max(vec a, vec b)
{
    return vbslq_f64(vcgtq_f64(a, b), a, b);
}
static FORCE vec v_min(vec a, vec b)
{
    return vbslq_f64(vcltq_f64(a, b), a, b);
}
static FORCE mask v_lt(vec a, vec b)
{
    return vcltq_f64(a, b);
}
static FORCE mask v_eq(vec a, vec b)
{
    return vceqq_f64(a, b);
}
static FORCE vec v_pick(mask m, vec yes, vec no)
{
    return vbslq_f64(m, yes, no);
}
static FORCE int v_any(mask m)
{
    return (vgetq_lane_u64(m, 0) | vgetq_lane_u64(m, 1)) != 0;
}
static FORCE vec v_power(vec a)
{
    return vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(a), 52));
}
static FORCE vec v_fma_seen(vec p, vec v, vec acc)
{
    return vbslq_f64(vcltq_s64(vreinterpretq_s64_f64(p), vdupq_n_s64(0)), acc, v_fma(p, v, acc));
}
static FORCE mask v_seen(const unsigned char *a)
{
    uint64_t lanes[2] = {a[0], a[1]};
    return vcgtq_u64(vld1q_u64(lanes), vdupq_n_u64(0));
}
static FORCE mask v_no_byte(vec a, int i)
{
    return vceqzq_u64(vandq_u64(vreinterpretq_u64_f64(a), vdupq_n_u64(UINT64_C(255) << 8 * i)));
}
static FORCE void v_transpose(vec *x)
{
    vec a = vtrn1q_f64(x[0], x[1]), b = vtrn2q_f64(x[0], x[1]);
    x[0] = a;
    x[1] = b;
}

#include "tile.h"
#else
typedef int attn_no_neon_f64; /* ISO C wants something in a file */
#endif
