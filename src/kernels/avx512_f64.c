/* avx512_f64.c: 8 lanes of f64.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include <immintrin.h>

#include "vocabulary.h"

#define NAME      attn_kernel_avx512_f64
#define FEW_NAME  attn_kernel_avx512_few_f64
#define ISA       "avx512"
#define TARGET    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma")))
#define REAL_BITS 64
#define LANES     8
#define NV        3 /* 8 x 3 accumulators + 3 + 1 of 32 registers */
#define NB        8
#define SCALES
typedef double   real;
typedef __m512d  vec;
typedef __mmask8 mask;

static FORCE TARGET vec v_set(real a)
{
    return _mm512_set1_pd(a);
}
static FORCE TARGET vec v_load(const real *a)
{
    return _mm512_load_pd(a);
}
static FORCE TARGET vec v_load_any(const real *a)
{
    return _mm512_loadu_pd(a);
}
static FORCE TARGET void v_store(real *to, vec a)
{
    _mm512_storeu_pd(to, a);
}
static FORCE TARGET vec v_add(vec a, vec b)
{
    return _mm512_add_pd(a, b);
}
static FORCE TARGET vec v_sub(vec a, vec b)
{
    return _mm512_sub_pd(a, b);
}
static FORCE TARGET vec v_div(vec a, vec b)
{
    return _mm512_div_pd(a, b);
}
static FORCE TARGET vec v_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_pd(a, b, c);
}
static FORCE TARGET vec v_max(vec a, vec b)
{
    return _mm512_max_pd(a, b);
}
static FORCE TARGET vec v_min(vec a, vec b)
{
    return _mm512_min_pd(a, b);
}
static FORCE TARGET mask v_lt(vec a, vec b)
{
    return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ);
}
static FORCE TARGET mask v_eq(vec a, vec b)
{
    return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ);
}
static FORCE TARGET vec v_pick(mask m, vec yes, vec no)
{
    return _mm512_mask_blend_pd(m, no, yes);
}
static FORCE TARGET int v_any(mask m)
{
    return m != 0;
}
static FORCE TARGET vec v_round(vec a)
{
    return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static FORCE TARGET vec v_scale(vec p, vec n)
{
    return _mm512_scalef_pd(p, n);
}
static FORCE TARGET vec v_fma_seen(vec p, vec v, vec acc)
{
    return _mm512_mask3_fmadd_pd(p, v, acc, (__mmask8)~_mm512_movepi64_mask(_mm512_castpd_si512(p)));
}
static FORCE TARGET mask v_seen(const unsigned char *a)
{
    return _mm512_test_epi64_mask(_mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)a)), _mm512_set1_epi64(255));
}
static FORCE TARGET mask v_no_byte(vec a, int i)
{
    return _mm512_testn_epi64_mask(_mm512_castpd_si512(a), _mm512_set1_epi64((int64_t)(UINT64_C(255) << 8 * i)));
}
static FORCE TARGET void v_transpose(vec *x)
{
    vec t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) { /* 2 x 2 inside each quarter */
        t[i] = _mm512_unpacklo_pd(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_pd(x[i], x[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 2; i++) { /* then the quarters */
        vec a = _mm512_shuffle_f64x2(t[i], t[2 + i], 0x88), b = _mm512_shuffle_f64x2(t[i], t[2 + i], 0xdd);
        vec c = _mm512_shuffle_f64x2(t[4 + i], t[6 + i], 0x88), d = _mm512_shuffle_f64x2(t[4 + i], t[6 + i], 0xdd);
        x[i] = _mm512_shuffle_f64x2(a, c, 0x88);
        x[4 + i] = _mm512_shuffle_f64x2(a, c, 0xdd);
        x[2 + i] = _mm512_shuffle_f64x2(b, d, 0x88);
        x[6 + i] = _mm512_shuffle_f64x2(b, d, 0xdd);
    }
}

#include "tile.h"
#else
typedef int attn_no_avx512_f64; /* ISO C wants something in a file */
#endif
