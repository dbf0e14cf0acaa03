/* avx2_f64.c: 4 lanes of f64, with FMA.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include <immintrin.h>

#include "vocabulary.h"

#define NAME      attn_kernel_avx2_f64
#define FEW_NAME  attn_kernel_avx2_few_f64
#define ISA       "avx2"
#define TARGET    __attribute__((target("avx2,fma")))
#define REAL_BITS 64
#define LANES     4
#define NV        3 /* 4 x 3 accumulators + 3 + 1 of 16 registers */
#define NB        4
typedef double  real;
typedef __m256d vec;
typedef __m256d mask;

static FORCE TARGET vec v_set(real a)
{
    return _mm256_set1_pd(a);
}
static FORCE TARGET vec v_load(const real *a)
{
    return _mm256_load_pd(a);
}
static FORCE TARGET vec v_load_any(const real *a)
{
    return _mm256_loadu_pd(a);
}
static FORCE TARGET void v_store(real *to, vec a)
{
    _mm256_storeu_pd(to, a);
}
static FORCE TARGET vec v_add(vec a, vec b)
{
    return _mm256_add_pd(a, b);
}
static FORCE TARGET vec v_sub(vec a, vec b)
{
    return _mm256_sub_pd(a, b);
}
static FORCE TARGET vec v_div(vec a, vec b)
{
    return _mm256_div_pd(a, b);
}
static FORCE TARGET vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_pd(a, b, c);
}
static FORCE TARGET vec v_max(vec a, vec b)
{
    return _mm256_max_pd(a, b);
}
static FORCE TARGET vec v_min(vec a, vec b)
{
    return _mm256_min_pd(a, b);
}
static FORCE TARGET mask v_lt(vec a, vec b)
{
    return _mm256_cmp_pd(a, b, _CMP_LT_OQ);
}
static FORCE TARGET mask v_eq(vec a, vec b)
{
    return _mm256_cmp_pd(a, b, _CMP_EQ_OQ);
}
static FORCE TARGET vec v_pick(mask m, vec yes, vec no)
{
    return _mm256_blendv_pd(no, yes, m);
}
static FORCE TARGET int v_any(mask m)
{
    return _mm256_movemask_pd(m) != 0;
}
static FORCE TARGET vec v_power(vec a)
{
    return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(a), 52));
}
static FORCE TARGET vec v_fma_seen(vec p, vec v, vec acc)
{
    return _mm256_blendv_pd(v_fma(p, v, acc), acc, p);
}
static FORCE TARGET mask v_seen(const unsigned char *a)
{
    int32_t four;
    memcpy(&four, a, sizeof four);
    __m256i zero = _mm256_cmpeq_epi64(_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four)), _mm256_setzero_si256());
    return _mm256_castsi256_pd(_mm256_xor_si256(zero, _mm256_set1_epi32(-1)));
}
static FORCE TARGET mask v_no_byte(vec a, int i)
{
    __m256i byte = _mm256_and_si256(_mm256_castpd_si256(a), _mm256_set1_epi64x((int64_t)(UINT64_C(255) << 8 * i)));
    return _mm256_castsi256_pd(_mm256_cmpeq_epi64(byte, _mm256_setzero_si256()));
}
static FORCE TARGET void v_transpose(vec *x)
{
    vec a = _mm256_unpacklo_pd(x[0], x[1]), b = _mm256_unpackhi_pd(x[0], x[1]);
    vec c = _mm256_unpacklo_pd(x[2], x[3]), d = _mm256_unpackhi_pd(x[2], x[3]);
    x[0] = _mm256_permute2f128_pd(a, c, 0x20);
    x[1] = _mm256_permute2f128_pd(b, d, 0x20);
    x[2] = _mm256_permute2f128_pd(a, c, 0x31);
    x[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

#include "tile.h"
#else
typedef int attn_no_avx2_f64; /* ISO C wants something in a file */
#endif
