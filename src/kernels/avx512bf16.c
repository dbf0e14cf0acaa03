/* avx512bf16.c: rows of 16 lanes of f32 that multiply bf16 in pairs.
 * SPDX-License-Identifier: MIT */
#if defined(__x86_64__)
#include "vocabulary.h"

#define NAME     attn_kernel_avx512bf16
#define FEW_NAME attn_kernel_avx512bf16_few
#define ISA      "avx512bf16"
#define TARGET   __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,fma")))
#define PAIRS    1
#include "avx512.h"

typedef uint16_t element;

static FORCE TARGET vec v_unit(const element *a)
{
    int32_t unit;
    memcpy(&unit, a, sizeof unit);
    return _mm512_castsi512_ps(_mm512_set1_epi32(unit));
}
static FORCE TARGET vec v_half_unit(const element *a)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32(*a));
}
static FORCE TARGET vec v_some(const element *a, int64_t n)
{
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(n >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << n) - 1, a));
}
/* each sum is fma(odd, odd, acc), then fma(even, even, that); what is below the smallest normal number is 0 */
static FORCE TARGET vec v_dot(vec a, vec b, vec acc)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}
static FORCE TARGET vec v_dot_seen(vec p, vec v, vec acc)
{
    const __mmask32 seen = ~_mm512_movepi16_mask(_mm512_castps_si512(p));
    return v_dot(p, _mm512_castsi512_ps(_mm512_maskz_mov_epi16(seen, _mm512_castps_si512(v))), acc);
}
static FORCE TARGET vec v_pair(vec even, vec odd)
{
    const __m512i each = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                                          18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(each, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
}
static FORCE TARGET void v_store_row(element *to, vec a)
{
    _mm256_store_si256((__m256i *)(void *)to, (__m256i)_mm512_cvtneps_pbh(a));
}
static FORCE TARGET vec v_even(vec units)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(units), 16));
}
static FORCE TARGET vec v_odd(vec units)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(units), _mm512_set1_epi32((int)0xffff0000u)));
}
static FORCE TARGET vec v_join(vec even, vec odd)
{
    return _mm512_castsi512_ps(
        _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd)));
}
static FORCE TARGET void v_zip(vec a, vec b, vec *x, vec *y)
{
    *x = _mm512_castsi512_ps(_mm512_unpacklo_epi16(_mm512_castps_si512(a), _mm512_castps_si512(b)));
    *y = _mm512_castsi512_ps(_mm512_unpackhi_epi16(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
static FORCE TARGET void v_unzip(vec *x, vec *y)
{
    const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    __m512i       a = _mm512_castps_si512(*x), b = _mm512_castps_si512(*y);
    *x = _mm512_castsi512_ps(_mm512_permutex2var_epi64(a, first, b));
    *y = _mm512_castsi512_ps(_mm512_permutex2var_epi64(a, second, b));
}
static FORCE TARGET vec v_largest(vec most, vec units)
{
    __m512i size = _mm512_and_si512(_mm512_castps_si512(units), _mm512_set1_epi16(0x7fff));
    return _mm512_castsi512_ps(_mm512_max_epu16(_mm512_castps_si512(most), size));
}
static FORCE TARGET int v_wild(vec most)
{
    return _mm512_cmpge_epu16_mask(_mm512_castps_si512(most), _mm512_set1_epi16(0x7f80)) != 0;
}
static FORCE TARGET int v_all(mask m)
{
    return m == 0xffff;
}

#include "tile.h"
#else
typedef int attn_no_avx512bf16; /* ISO C wants something in a file */
#endif
