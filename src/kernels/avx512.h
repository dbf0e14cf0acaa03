/* avx512.h: the vocabulary of 16 lanes of f32, for the files whose rows compute with it; they define TARGET before.
 * SPDX-License-Identifier: MIT */
#include <immintrin.h>

#define REAL_BITS 32
#define LANES     16
#define NV        3 /* 8 x 3 accumulators + 3 + 1 of 32 registers */
#define NB        8
#define SCALES
typedef float     real;
typedef __m512    vec;
typedef __mmask16 mask;

static FORCE TARGET vec v_set(real a)
{
    return _mm512_set1_ps(a);
}
static FORCE TARGET vec v_load(const real *a)
{
    return _mm512_load_ps(a);
}
static FORCE TARGET vec v_load_any(const real *a)
{
    return _mm512_loadu_ps(a);
}
static FORCE TARGET void v_store(real *to, vec a)
{
    _mm512_storeu_ps(to, a);
}
static FORCE TARGET vec v_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
static FORCE TARGET vec v_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
static FORCE TARGET vec v_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
static FORCE TARGET vec v_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static FORCE TARGET vec v_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
static FORCE TARGET vec v_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}
static FORCE TARGET mask v_lt(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
static FORCE TARGET mask v_eq(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
static FORCE TARGET vec v_pick(mask m, vec yes, vec no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}
static FORCE TARGET int v_any(mask m)
{
    return m != 0;
}
static FORCE TARGET vec v_round(vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static FORCE TARGET vec v_scale(vec p, vec n)
{
    return _mm512_scalef_ps(p, n);
}
static FORCE TARGET vec v_fma_seen(vec p, vec v, vec acc)
{
    return _mm512_mask3_fmadd_ps(p, v, acc, (__mmask16)~_mm512_movepi32_mask(_mm512_castps_si512(p)));
}
static FORCE TARGET mask v_seen(const unsigned char *a)
{
    return _mm512_test_epi32_mask(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)a)), _mm512_set1_epi32(255));
}
static FORCE TARGET mask v_no_byte(vec a, int i)
{
    return _mm512_testn_epi32_mask(_mm512_castps_si512(a), _mm512_set1_epi32((int)(255u << 8 * i)));
}
static FORCE TARGET vec v_read_f16(const void *a)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)a));
}
static FORCE TARGET vec v_read_bf16(const void *a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)a)), 16));
}
static FORCE TARGET vec v_even_bf16(vec a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 16));
}
static FORCE TARGET vec v_odd_bf16(vec a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(-65536)));
}
static FORCE TARGET void v_transpose(vec *x)
{
    vec t[16];
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { /* 4 x 4 inside each quarter */
        vec a = _mm512_unpacklo_ps(x[i], x[i + 1]), b = _mm512_unpackhi_ps(x[i], x[i + 1]);
        vec c = _mm512_unpacklo_ps(x[i + 2], x[i + 3]), d = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
        t[i] = _mm512_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* then the quarters */
        vec a = _mm512_shuffle_f32x4(t[i], t[4 + i], 0x88), b = _mm512_shuffle_f32x4(t[i], t[4 + i], 0xdd);
        vec c = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0x88), d = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0xdd);
        x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        x[8 + i] = _mm512_shuffle_f32x4(a, c, 0xdd);
        x[4 + i] = _mm512_shuffle_f32x4(b, d, 0x88);
        x[12 + i] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}
#define F16_RUN 8
static FORCE TARGET void v_transpose_f16(vec *rows)
{
    const __m512i low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    __m512i       x[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) { /* eighths of 8 channels: keys i and 8 + i side by side */
        __m512i a = _mm512_castps_si512(rows[i]), b = _mm512_castps_si512(rows[8 + i]);
        x[i] = _mm512_permutex2var_epi64(a, low, b);
        x[8 + i] = _mm512_permutex2var_epi64(a, high, b);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 16; h += 8) { /* then 8 x 8 inside each quarter */
        __m512i t[8];
#pragma GCC unroll 2
        for (int i = 0; i < 8; i += 4) {
            __m512i a = _mm512_unpacklo_epi16(x[h + i], x[h + i + 1]), b = _mm512_unpackhi_epi16(x[h + i], x[h + i + 1]);
            __m512i c = _mm512_unpacklo_epi16(x[h + i + 2], x[h + i + 3]), d = _mm512_unpackhi_epi16(x[h + i + 2], x[h + i + 3]);
            t[i] = _mm512_unpacklo_epi32(a, c);
            t[i + 1] = _mm512_unpackhi_epi32(a, c);
            t[i + 2] = _mm512_unpacklo_epi32(b, d);
            t[i + 3] = _mm512_unpackhi_epi32(b, d);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            rows[h + 2 * i] = _mm512_castsi512_ps(_mm512_unpacklo_epi64(t[i], t[4 + i]));
            rows[h + 2 * i + 1] = _mm512_castsi512_ps(_mm512_unpackhi_epi64(t[i], t[4 + i]));
        }
    }
}
static FORCE TARGET vec v_first_f16(vec a)
{
    return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_castps_si512(a)));
}
static FORCE TARGET vec v_second_f16(vec a)
{
    return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(a), 1));
}
