/* neon.c: 4 lanes of f32.
 * SPDX-License-Identifier: MIT */
#if defined(__aarch64__)
#include <arm_neon.h>

#include "vocabulary.h"

#define NAME     attn_kernel_neon
#define FEW_NAME attn_kernel_neon_few
#define ISA      "neon"
#define TARGET
#define REAL_BITS 32
#define LANES     4
#define NV        4 /* 5 x 4 accumulators + 4 + 1 of 32 registers */
#define NB        5
typedef float       real;
typedef float32x4_t vec;
typedef uint32x4_t  mask;

static FORCE vec v_set(real a)
{
    return vdupq_n_f32(a);
}
static FORCE vec v_load(const real *a)
{
    return vld1q_f32(a);
}
static FORCE vec v_load_any(const real *a)
{
    return vld1q_f32(a);
}
static FORCE void v_store(real *to, vec a)
{
    vst1q_f32(to, a);
}
static FORCE vec v_add(vec a, vec b)
{
    return vaddq_f32(a, b);
}
static FORCE vec v_sub(vec a, vec b)
{
    return vsubq_f32(a, b);
}
static FORCE vec v_div(vec a, vec b)
{
    return vdivq_f32(a, b);
}
static FORCE vec v_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}
static FORCE vec v_max(vec a, vec b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
static FORCE vec v_min(vec a, vec b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
static FORCE mask v_lt(vec a, vec b)
{
    return vcltq_f32(a, b);
}
static FORCE mask v_eq(vec a, vec b)
{
    return vceqq_f32(a, b);
}
static FORCE vec v_pick(mask m, vec yes, vec no)
{
    return vbslq_f32(m, yes, no);
}
static FORCE int v_any(mask m)
{
    return vmaxvq_u32(m) != 0;
}
static FORCE vec v_power(vec a)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(a), 23));
}
static FORCE vec v_fma_seen(vec p, vec v, vec acc)
{
    return vbslq_f32(vcltq_s32(vreinterpretq_s32_f32(p), vdupq_n_s32(0)), acc, v_fma(p, v, acc));
}
static FORCE mask v_seen(const unsigned char *a)
{
    uint32_t lanes[4] = {a[0], a[1], a[2], a[3]};
    return vcgtq_u32(vld1q_u32(lanes), vdupq_n_u32(0));
}
static FORCE mask v_no_byte(vec a, int i)
{
    return vceqzq_u32(vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(255u << 8 * i)));
}
static FORCE vec v_read_f16(const void *a)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(a)));
}
static FORCE vec v_read_bf16(const void *a)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(a), 16));
}
static FORCE vec v_even_bf16(vec a)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(a), 16));
}
static FORCE vec v_odd_bf16(vec a)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0xffff0000u)));
}
static FORCE vec v_first_f16(vec a)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_f32(a))));
}
static FORCE vec v_second_f16(vec a)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(vreinterpretq_u32_f32(a), 16)));
}
static FORCE void v_transpose(vec *x)
{
    float32x4x2_t a = vtrnq_f32(x[0], x[1]), b = vtrnq_f32(x[2], x[3]);
    x[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    x[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    x[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    x[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}
#define F16_RUN 1
static FORCE void v_transpose_f16(vec *x)
{
    v_transpose(x);
}

#include "tile.h"
#else
typedef int attn_no_neon; /* ISO C wants something in a file */
#endif
