/* test_conversions.c: every conversion of kernels.inc: all 16-bit values, rounding to nearest even, strides, nothing outside.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "kernel.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const struct {
    const char                *name;
    const struct attn_convert *row;
    int32_t                    dtype;
} converts[] = {
    {"f32", &attn_convert_f32, ATTN_F32},
    {"f64", &attn_convert_f64, ATTN_F64},
    {"f16", &attn_convert_f16, ATTN_F16},
    {"bf16", &attn_convert_bf16, ATTN_BF16},
};

static int same_number(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

/* All 65536 values, forwards, backwards and with steps. */
static void halves_load_exactly(void **state)
{
    (void)state;
    static const int64_t strides[] = {1, 2, -1, 3, 0};
    for (int row = 2; row < 4; row++)
        for (int s = 0; s < COUNT(strides); s++) {
            enum { N = 65536 };
            int64_t   stride = strides[s];
            uint16_t *from = malloc(N * 3 * sizeof *from);
            float    *to = malloc(N * sizeof *to);
            for (int64_t i = 0; i < N * 3; i++) from[i] = (uint16_t)(stride < 0 ? N - 1 - i : stride > 1 ? i / stride : i);
            converts[row].row->load_f32(to, stride < 0 ? from + N - 1 : from, stride, N);
            for (int64_t i = 0; i < N; i++) {
                double want = element_get(from, converts[row].dtype, stride < 0 ? N - 1 - i : i * stride);
                if (!same_number(to[i], want))
                    fprintf(stderr, "%s: %" PRId64 " stride %" PRId64 ": want %g got %g\n", converts[row].name, i, stride, want,
                            (double)to[i]);
                assert_true(same_number(to[i], want));
            }
            free(from), free(to);
        }
}

static void check_store(int row, float x)
{
    uint16_t got[3] = {0x1234, 0x1234, 0x1234};
    converts[row].row->store_f32(got + 1, 1, &x, 1);
    double want = row == 2 ? half_to_double(half_from_double(x)) : brain_to_double(brain_from_double(x)),
           back = element_get(got, converts[row].dtype, 1);
    if (!same_number(back, want)) fprintf(stderr, "%s: %a: want %a got %a\n", converts[row].name, (double)x, want, back);
    assert_true(same_number(back, want));
    assert_true(got[0] == 0x1234 && got[2] == 0x1234);
}

/* Every value, every midpoint between neighbours and the floats next to those; then random bits. */
static void halves_store_to_nearest_even(void **state)
{
    (void)state;
    for (int row = 2; row < 4; row++) {
        for (int32_t bits = 0; bits < 65536; bits++) {
            uint16_t here = (uint16_t)bits, next = (uint16_t)(bits + 1);
            double   x = element_get(&here, converts[row].dtype, 0), y = element_get(&next, converts[row].dtype, 0);
            float    middle = (float)((x + y) / 2);
            check_store(row, (float)x);
            if (!isfinite(x) || !isfinite(y)) continue;
            check_store(row, middle);
            check_store(row, nextafterf(middle, INFINITY));
            check_store(row, nextafterf(middle, -INFINITY));
        }
        static const float edge[] = {65504,       65519.996f,      65520,    65536,    FLT_MAX,         0x1.FEp127f,
                                     0x1.FFp127f, 0x1.FEFFFEp127f, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1p-133f,
                                     0x1p-134f,   0x1p-149f,       0.0f,     NAN,      INFINITY};
        for (int i = 0; i < COUNT(edge); i++) check_store(row, edge[i]), check_store(row, -edge[i]);
        rng r = rng_make("store", row);
        for (int64_t i = 0; i < test_count(200000); i++) {
            uint32_t word = (uint32_t)rng_bits(&r);
            float    x;
            memcpy(&x, &word, sizeof x);
            check_store(row, x);
        }
    }
}

/* All forms of every conversion over strides, flush against a guard, through gaps that stay. */
static void conversions_stay_in_bounds(void **state)
{
    (void)state;
    for (int row = 0; row < COUNT(converts); row++)
        for (int at = 0; at < 200; at++) {
            rng                        r = rng_make("convert", row * 1000 + at);
            const struct attn_convert *c = converts[row].row;
            int32_t                    dtype = converts[row].dtype, arithmetic = at & 1 ? ATTN_F64 : ATTN_F32;
            int64_t                    n = rng_range(&r, 1, 70), stride = rng_pick(&r, (const int64_t[]){1, 1, 2, 5, -1, -3}, 6),
                    span = (n - 1) * llabs(stride) + 1;
            guarded outside, inside;
            guarded_make(&outside, (size_t)span * element_bytes(dtype), at % 3 ? GUARD_ABOVE : GUARD_BELOW, 0xA5);
            guarded_make(&inside, (size_t)n * element_bytes(arithmetic), at % 3 ? GUARD_ABOVE : GUARD_BELOW, 0xA5);
            char *first = (char *)outside.bytes + (stride < 0 ? (span - 1) * (int64_t)element_bytes(dtype) : 0);
            for (int64_t i = 0; i < n; i++) element_set(inside.bytes, arithmetic, i, rng_normal(&r));
            if (arithmetic == ATTN_F32 && c->store_f32)
                c->store_f32(first, stride, (float *)(void *)inside.bytes, n);
            else if (arithmetic == ATTN_F64 && c->store_f64)
                c->store_f64(first, stride, (double *)(void *)inside.bytes, n);
            else
                goto next;
            for (int64_t i = 0; i < span; i++) {
                unsigned char want[8];
                int64_t       index = stride < 0 ? (span - 1 - i) / -stride : i / stride;
                memset(want, 0xA5, sizeof want);
                if (i % llabs(stride) == 0) element_set(want, dtype, 0, element_get(inside.bytes, arithmetic, index));
                assert_memory_equal(want, outside.bytes + i * (int64_t)element_bytes(dtype), element_bytes(dtype));
            }
            memset(inside.bytes, 0xA5, inside.size);
            if (arithmetic == ATTN_F32 && c->load_f32)
                c->load_f32((float *)(void *)inside.bytes, first, stride, n);
            else if (arithmetic == ATTN_F64 && c->load_f64)
                c->load_f64((double *)(void *)inside.bytes, first, stride, n);
            else
                goto next;
            for (int64_t i = 0; i < n; i++)
                assert_true(same_number(element_get(inside.bytes, arithmetic, i), element_get(first, dtype, i * stride)));
        next:
            assert_null(guarded_broken(&outside));
            assert_null(guarded_broken(&inside));
            guarded_free(&outside), guarded_free(&inside);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_load_exactly),
        cmocka_unit_test(halves_store_to_nearest_even),
        cmocka_unit_test(conversions_stay_in_bounds),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("conversions", tests, NULL, NULL);
}
