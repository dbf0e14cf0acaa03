/* avx2.c: 8 lanes of f32, with FMA.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include <immintrin.h>

#include "vocabulary.h"

#define NAME      attn_kernel_avx2
#define FEW_NAME  attn_kernel_avx2_few
#define ISA       "avx2"
#define TARGET    __attribute__((target("avx2,fma,f16c")))
#define REAL_BITS 32
#define LANES     8
#define NV        3 /* 4 x 3 accumulators + 3 + 1 of 16 registers */
#define NB        4
typedef float  real;
typedef __m256 vec;
typedef __m256 mask;

static FORCE TARGET vec v_set(real a)
{
    return _mm256_set1_ps(a);
}
static FORCE TARGET vec v_load(const real *a)
{
    return _mm256_load_ps(a);
}
static FORCE TARGET vec v_load_any(const real *a)
{
    return _mm256_loadu_ps(a);
}
static FORCE TARGET void v_store(real *to, vec a)
{
    _mm256_storeu_ps(to, a);
}
static FORCE TARGET vec v_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
static FORCE TARGET vec v_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
static FORCE TARGET vec v_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
static FORCE TARGET vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static FORCE TARGET vec v_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
static FORCE TARGET vec v_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}
static FORCE TARGET mask v_lt(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
static FORCE TARGET mask v_eq(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}
static FORCE TARGET vec v_pick(mask m, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, m);
}
static FORCE TARGET int v_any(mask m)
{
    return _mm256_movemask_ps(m) != 0;
}
static FORCE TARGET vec v_power(vec a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23));
}
static FORCE TARGET vec v_fma_seen(vec p, vec v, vec acc)
{
    return _mm256_blendv_ps(v_fma(p, v, acc), acc, p);
}
static FORCE TARGET mask v_seen(const unsigned char *a)
{
    __m256i zero = _mm256_cmpeq_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)a)), _mm256_setzero_si256());
    return _mm256_castsi256_ps(_mm256_xor_si256(zero, _mm256_set1_epi32(-1)));
}
static FORCE TARGET mask v_no_byte(vec a, int i)
{
    __m256i byte = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32((int)(255u << 8 * i)));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(byte, _mm256_setzero_si256()));
}
static FORCE TARGET vec v_read_f16(const void *a)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)a));
}
static FORCE TARGET vec v_read_bf16(const void *a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)a)), 16));
}
static FORCE TARGET vec v_even_bf16(vec a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 16));
}
static FORCE TARGET vec v_odd_bf16(vec a)
{
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(-65536)));
}
static FORCE TARGET void v_transpose(vec *x)
{
    vec t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 4) { /* 4 x 4 inside each half */
        vec a = _mm256_unpacklo_ps(x[i], x[i + 1]), b = _mm256_unpackhi_ps(x[i], x[i + 1]);
        vec c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]), d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
        t[i] = _mm256_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* then the halves */
        x[i] = _mm256_permute2f128_ps(t[i], t[4 + i], 0x20);
        x[4 + i] = _mm256_permute2f128_ps(t[i], t[4 + i], 0x31);
    }
}
#define F16_RUN 8
static FORCE TARGET void v_transpose_f16(vec *x)
{
    __m256i t[8];
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) { /* 8 x 8 inside each half */
        __m256i p = _mm256_castps_si256(x[i]), q = _mm256_castps_si256(x[i + 1]);
        __m256i r = _mm256_castps_si256(x[i + 2]), s = _mm256_castps_si256(x[i + 3]);
        __m256i a = _mm256_unpacklo_epi16(p, q), b = _mm256_unpackhi_epi16(p, q);
        __m256i c = _mm256_unpacklo_epi16(r, s), d = _mm256_unpackhi_epi16(r, s);
        t[i] = _mm256_unpacklo_epi32(a, c);
        t[i + 1] = _mm256_unpackhi_epi32(a, c);
        t[i + 2] = _mm256_unpacklo_epi32(b, d);
        t[i + 3] = _mm256_unpackhi_epi32(b, d);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        x[2 * i] = _mm256_castsi256_ps(_mm256_unpacklo_epi64(t[i], t[4 + i]));
        x[2 * i + 1] = _mm256_castsi256_ps(_mm256_unpackhi_epi64(t[i], t[4 + i]));
    }
}
static FORCE TARGET vec v_first_f16(vec a)
{
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_castps_si256(a)));
}
static FORCE TARGET vec v_second_f16(vec a)
{
    return _mm256_cvtph_ps(_mm256_extracti128_si256(_mm256_castps_si256(a), 1));
}

#include "tile.h"
#else
typedef int attn_no_avx2; /* ISO C wants something in a file */
#endif
