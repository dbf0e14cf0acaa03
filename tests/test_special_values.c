/* test_special_values.c: NaN, infinity, the largest and the smallest numbers, seen and not seen.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const int all_axes[4] = {0, 0, 0, 0};

/* ---- NaN and infinity ---------------------------------------------------------------------------------------------------------------- */

/* NaN into everything that no result may depend on: places of q, k, v and bias that nothing sees. Views may repeat or overlap, so a place is
 * poisoned only when no seen index leads to it. */
static void poison_view(view *w, const unsigned char *used)
{
    static const double evil[] = {NAN, INFINITY, -INFINITY};
    size_t              bytes = element_bytes(w->dtype);
    for (size_t at = 0; at < w->memory.size / bytes; at++)
        if (!used[at]) element_set(w->memory.bytes, w->dtype, (int64_t)at, evil[at % 3]);
}

static void mark(unsigned char *used, const view *w, int64_t b, int64_t h, int64_t i)
{
    for (int64_t c = 0; c < w->shape[3]; c++) {
        const int64_t at[4] = {b, h, i, c};
        int64_t       place = w->origin;
        for (int a = 0; a < 4; a++)
            if (at[a]) place += at[a] * w->stride[a];
        used[place] = 1;
    }
}

static void poison_unseen(problem *p, const reference *r)
{
    view          *views[] = {&p->q, &p->k, &p->v, &p->bias};
    unsigned char *used[4];
    for (int i = 0; i < 4; i++) used[i] = calloc(views[i]->memory.size + 1, 1);
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t h = 0; h < r->heads; h++)
            for (int64_t i = 0; i < r->queries; i++)
                for (int64_t j = 0; j < r->keys; j++) {
                    int64_t g = h / (r->heads / p->d.kv_heads);
                    if (p->bias.memory.size && p->bias.dtype && (r->seen[((b * r->heads + h) * r->queries + i) * r->keys + j]))
                        used[3][p->bias.origin + (b ? b * p->bias.stride[0] : 0) + (h ? h * p->bias.stride[1] : 0) +
                                (i ? i * p->bias.stride[2] : 0) + (j ? j * p->bias.stride[3] : 0)] = 1;
                    if (!r->seen[((b * r->heads + h) * r->queries + i) * r->keys + j]) continue;
                    mark(used[0], &p->q, b, h, i), mark(used[1], &p->k, b, g, j), mark(used[2], &p->v, b, g, j);
                }
    for (int i = 0; i < 3; i++) poison_view(views[i], used[i]);
    /* A bias of -inf hides and must stay; NaN in its place would be a score. So only what other rules hide may change. */
    for (size_t at = 0; p->bias.memory.size && at < p->bias.memory.size / element_bytes(p->bias.dtype); at++)
        if (!used[3][at] && element_get(p->bias.memory.bytes, p->bias.dtype, (int64_t)at) != -INFINITY)
            element_set(p->bias.memory.bytes, p->bias.dtype, (int64_t)at, NAN);
    for (int i = 0; i < 4; i++) free(used[i]);
}

static void hidden_nan_changes_no_bit(void **state)
{
    (void)state;
    for (int64_t at = 0; at < test_count(250); at++) {
        if (!test_case_wanted(at)) continue;
        rng       r = rng_make("hidden", at);
        problem   p;
        reference want;
        problem_random(&p, &r, WITH_ALL & ~WITH_POISON);
        if (p.d.weights_stage == ATTN_STAGE_SCALED || p.d.weights_stage == ATTN_STAGE_CAPPED)
            p.d.weights_stage = ATTN_STAGE_BIASED; /* those show what is hidden */
        reference_make(&want, &p.d);
        for (int i = 0; attn_isa_name(i); i++) {
            size_t     size;
            attn_error e;
            if (!attn_isa_usable(i)) continue;
            p.d.isa = attn_isa_name(i);
            problem_refill(&p);
            assert_int_equal(attn_run(&p.d, &e), ATTN_OK);
            unsigned char *clean = problem_results(&p, &size);
            size_t         saved_sizes[4] = {p.q.memory.size, p.k.memory.size, p.v.memory.size, p.bias.memory.size};
            unsigned char *saved[4] = {p.q.memory.bytes, p.k.memory.bytes, p.v.memory.bytes, p.bias.memory.bytes}, *copies[4];
            for (int s = 0; s < 4; s++) {
                copies[s] = malloc(saved_sizes[s] + 1);
                if (saved_sizes[s]) memcpy(copies[s], saved[s], saved_sizes[s]);
            }
            poison_unseen(&p, &want);
            problem_refill(&p);
            assert_int_equal(attn_run(&p.d, &e), ATTN_OK);
            unsigned char *dirty = problem_results(&p, &size);
            int            same = !memcmp(clean, dirty, size);
            for (int s = 0; s < 4; s++) {
                if (saved_sizes[s]) memcpy(saved[s], copies[s], saved_sizes[s]);
                free(copies[s]);
            }
            free(clean), free(dirty);
            if (!same) {
                fprintf(stderr, "hidden: ATTN_SEED=%llu ATTN_CASE=%lld: what is hidden changed a result\n", (unsigned long long)test_seed(),
                        (long long)at);
                describe(&p.d, stderr);
            }
            assert_true(same);
        }
        reference_free(&want);
        problem_free(&p);
    }
}

/* One NaN or infinity at a place that some rows see: those rows get it, the bits of all others stay. */
static void seen_nan_stays_in_its_rows(void **state)
{
    (void)state;
    static const double evil[] = {NAN, INFINITY, -INFINITY};
    for (int at = 0; at < 48; at++) {
        rng     r = rng_make("visible", at);
        problem p;
        int64_t queries = rng_range(&r, 1, 60), keys = rng_range(&r, queries, 300), bad = 0, row_bytes;
        problem_dense(&p, &r, at % 2 ? ATTN_F64 : ATTN_F32, 1, 2, 1, queries, keys, 5, 4);
        p.d.causal = 1, p.d.align = ATTN_ALIGN_BOTTOM_RIGHT;
        if (at % 3 == 0) problem_add_mask(&p, &r, ATTN_BOOL, all_axes, 1);
        row_bytes = 4 * (int64_t)element_bytes(p.out.dtype);
        for (int i = 0; attn_isa_name(i); i++) {
            if (!attn_isa_usable(i)) continue;
            p.d.isa = attn_isa_name(i);
            assert_int_equal(attn_run(&p.d, NULL), ATTN_OK);
            size_t         size;
            unsigned char *clean = problem_results(&p, &size);
            int64_t        j = rng_range(&r, 0, keys - 1);
            view          *into = at % 4 < 2 ? &p.k : &p.v;
            double         saved = view_get(into, 0, 0, j, 1);
            reference      want;
            view_set(into, 0, 0, j, 1, evil[at % 3]);
            reference_make(&want, &p.d);
            bad += problem_check(&p, &want, p.d.isa);
            for (int64_t row = 0; row < 2 * queries; row++)
                if (!want.seen[row * keys + j])
                    bad += memcmp(clean + row * row_bytes, p.out.memory.bytes + row * row_bytes, (size_t)row_bytes) != 0;
            view_set(into, 0, 0, j, 1, saved);
            free(clean);
            reference_free(&want);
        }
        problem_free(&p);
        assert_int_equal(bad, 0);
    }
}

/* Rows whose every score is -inf are empty; with one finite score among them they are not; a score of +inf makes NaN. */
static void infinite_scores(void **state)
{
    (void)state;
    int64_t bad = 0;
    for (int at = 0; at < 32; at++) {
        rng     r = rng_make("infinite", at);
        problem p;
        problem_dense(&p, &r, at % 2 ? ATTN_F64 : ATTN_F32, 1, 1, 1, 20, 300, 1, 3);
        for (int64_t i = 0; i < 20; i++) view_set(&p.q, 0, 0, i, 0, i % 3 == 2 ? -1 : 1);
        for (int64_t j = 0; j < 300; j++) view_set(&p.k, 0, 0, j, 0, at & 2 ? -INFINITY : (j % 2 ? -INFINITY : 0.5));
        if (at & 4) view_set(&p.k, 0, 0, rng_range(&r, 0, 299), 0, 1.25);
        if (at & 2 && !(at & 4)) view_set(&p.v, 0, 0, rng_range(&r, 0, 299), 1, NAN); /* an empty row is 0 whatever the values hold */
        if (at & 8) problem_add_sink(&p, &r);
        if (at & 16) p.d.causal = 1, p.d.align = ATTN_ALIGN_BOTTOM_RIGHT;
        problem_add_weights(&p, ATTN_F64, at % 4 < 2 ? ATTN_STAGE_WEIGHT : ATTN_STAGE_BIASED);
        bad += problem_check_all(&p, "infinite scores");
        problem_free(&p);
    }
    assert_int_equal(bad, 0);
}

/* ---- large and small numbers --------------------------------------------------------------------------------------------------------- */

/* A finite bias, however negative, does not hide: weights are as the rounded scores say. No S in the tolerance here: the scores are exact. */
static void lowest_bias_does_not_hide(void **state)
{
    (void)state;
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    for (int at = 0; at < 12; at++)
        for (int i = 0; attn_isa_name(i); i++) {
            if (!attn_isa_usable(i)) continue;
            rng     r = rng_make("lowest", at);
            problem p;
            int32_t inputs = dtypes[at % 4];
            int     mixed = at >= 8;
            problem_dense(&p, &r, inputs, 1, 1, 1, 3, 200, 4, 4);
            problem_add_mask(&p, &r, at < 4 ? ATTN_F32 : inputs, all_axes, 0);
            problem_add_weights(&p, ATTN_F64, ATTN_STAGE_WEIGHT);
            p.d.scale_given = 1; /* 0: every score is its bias */
            for (int64_t q = 0; q < 3; q++)
                for (int64_t j = 0; j < 200; j++) view_set(&p.bias, 0, 0, q, j, mixed && j % 2 ? 0 : -element_max(p.bias.dtype));
            p.d.isa = attn_isa_name(i);
            assert_int_equal(attn_run(&p.d, NULL), ATTN_OK);
            for (int64_t q = 0; q < 3; q++)
                for (int64_t j = 0; j < 200; j++) {
                    double want = mixed ? (j % 2 ? 0.01 : 0) : 0.005;
                    assert_true(fabs(view_get(&p.weights, 0, 0, q, j) - want) <= tolerance(ATTN_F32, ATTN_F32, 0.01, want, 0));
                }
            problem_free(&p);
        }
}

static void set_all(view *w, double value)
{
    for (int64_t h = 0; h < w->shape[1]; h++)
        for (int64_t i = 0; i < w->shape[2]; i++)
            for (int64_t c = 0; c < w->shape[3]; c++) view_set(w, 0, h, i, c, value);
}

/* Scores of +-2.5e5, 1e30 and close to the largest number; exact ones, so that the tolerance is the plain one through equal scores. */
static void huge_scores(void **state)
{
    (void)state;
    static const double sizes[] = {2.5e5, -2.5e5, 1e30, -1e30, 3e38, -3e38};
    for (int at = 0; at < COUNT(sizes); at++)
        for (int spread = 0; spread < 3; spread++)
            for (int i = 0; attn_isa_name(i); i++) {
                if (!attn_isa_usable(i)) continue;
                rng     r = rng_make("huge", at);
                problem p;
                problem_dense(&p, &r, ATTN_F32, 1, 1, 1, 18, 140, 1, 2);
                p.d.scale_given = 1, p.d.scale = 1;
                set_all(&p.q, 1), set_all(&p.k, sizes[at]), set_all(&p.v, 3);
                /* 1: one key far above all others wins; 2: it is far below them and vanishes */
                int64_t odd = rng_range(&r, 0, 139);
                if (spread) view_set(&p.k, 0, 0, odd, 0, spread == 1 ? fabs(sizes[at]) * 1.1 : -fabs(sizes[at]) * 1.1);
                if (spread) view_set(&p.v, 0, 0, odd, 0, -7);
                p.d.isa = attn_isa_name(i);
                assert_int_equal(attn_run(&p.d, NULL), ATTN_OK);
                for (int64_t q = 0; q < 18; q++) {
                    double want = spread == 1 ? -7 : 3;
                    assert_true(fabs(view_get(&p.out, 0, 0, q, 0) - want) <= tolerance(ATTN_F32, ATTN_F32, 7, want, 0));
                    assert_true(isfinite(view_get(&p.lse, 0, 0, q, 0)));
                }
                problem_free(&p);
            }
}

static void half_beyond_65504(void **state)
{
    (void)state;
    int64_t bad = 0;
    for (int at = 0; at < 8; at++) {
        rng     r = rng_make("half", at);
        problem p;
        problem_dense(&p, &r, ATTN_F16, 1, 2, 1, 17, 150, 64, 8);
        for (int64_t i = 0; i < 17; i++)
            for (int64_t c = 0; c < 64; c++) view_set(&p.q, 0, 0, i, c, 200 + rng_range(&r, 0, 3));
        for (int64_t j = 0; j < 150; j++)
            for (int64_t c = 0; c < 64; c++) view_set(&p.k, 0, 0, j, c, 200 + rng_range(&r, 0, 3));
        for (int64_t j = 0; j < 150; j++)
            for (int64_t c = 0; c < 8; c++)
                view_set(&p.v, 0, 0, j, c, c % 2 ? 65504 : -60000); /* their sum passes 65504 before it is divided */
        if (at % 2) p.d.scale_given = 1, p.d.scale = 1e-6;
        if (at & 4) p.d.softcap = 20;
        bad += problem_check_all(&p, "half beyond 65504");
        problem_free(&p);
    }
    assert_int_equal(bad, 0);
}

/* Values near the largest number average to a number that is representable: the sum before the division must not be the result's fate. */
static void values_near_the_largest(void **state)
{
    (void)state;
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F64, ATTN_BF16};
    int64_t              bad = 0;
    for (int at = 0; at < 12; at++) {
        rng     r = rng_make("largest", at);
        problem p;
        problem_dense(&p, &r, dtypes[at % 3], 1, 2, 1, 21, at < 6 ? 40 : 2300, 3, 5);
        if (at & 1) p.d.causal = 1, p.d.align = ATTN_ALIGN_BOTTOM_RIGHT;
        for (int64_t j = 0; j < p.d.keys; j++)
            for (int64_t c = 0; c < 5; c++)
                view_set(&p.v, 0, 0, j, c,
                         (c == 1 ? -1 : 1) * (c == 4 ? rng_normal(&r) : element_max(p.v.dtype) * (c == 3 ? rng_unit(&r) : 0.99)));
        bad += problem_check_all(&p, "values near the largest");
        problem_free(&p);
    }
    assert_int_equal(bad, 0);
}

/* Inputs below the smallest normal number count at their value: q tiny times k large is an ordinary score. */
static void subnormal_inputs(void **state)
{
    (void)state;
    static const double tiny[] = {[ATTN_F32] = 0x1p-140, [ATTN_F64] = 0x1p-1060, [ATTN_F16] = 0x1p-20, [ATTN_BF16] = 0x1p-130};
    static const double large[] = {[ATTN_F32] = 0x1p120, [ATTN_F64] = 0x1p1020, [ATTN_F16] = 0x1p15, [ATTN_BF16] = 0x1p120};
    int64_t             bad = 0;
    for (int32_t dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
        for (int at = 0; at < 3; at++) {
            rng     r = rng_make("subnormal", at);
            problem p;
            problem_dense(&p, &r, dtype, 1, 1, 1, 17, 130, 4, 4);
            view  *small = at == 0 ? &p.k : &p.q, *big = at == 0 ? &p.q : &p.k;
            double fit = at == 0 ? 8 : dtype == ATTN_F32 ? 0x1p20 : dtype == ATTN_F64 ? 0x1p40 : dtype == ATTN_BF16 ? 0x1p10 : 0x1p5;
            for (int64_t i = 0; i < small->shape[2]; i++)
                for (int64_t c = 0; c < 4; c++) view_set(small, 0, 0, i, c, tiny[dtype] * (double)rng_range(&r, 1, 15));
            for (int64_t i = 0; i < big->shape[2]; i++)
                for (int64_t c = 0; c < 4; c++) view_set(big, 0, 0, i, c, large[dtype] * (1 + rng_unit(&r)) / 2);
            p.d.scale_given = 1, p.d.scale = at == 2 ? fit * 4 : fit;
            reference want, zero;
            reference_make(&want, &p.d);
            p.d.scale = at == 0 ? 0 : p.d.scale; /* keys that are multiplied as bf16 count as 0 */
            reference_make(&zero, &p.d);
            for (int i = 0; attn_isa_name(i); i++) {
                if (!attn_isa_usable(i)) continue;
                p.d.isa = attn_isa_name(i), p.d.scale = at == 2 ? fit * 4 : fit;
                bad += problem_check(&p, multiplies_bf16(&p.d) ? &zero : &want, p.d.isa);
            }
            reference_free(&want), reference_free(&zero);
            problem_free(&p);
        }
    assert_int_equal(bad, 0);
}

/* Any finite double is a scale, also where float has no such number, as long as the scores have a place in float. */
static void scales_beyond_float(void **state)
{
    (void)state;
    int64_t bad = 0;
    for (int at = 0; at < 4; at++) {
        rng     r = rng_make("scale", at);
        problem p;
        problem_dense(&p, &r, ATTN_F32, 1, 1, 1, 9, 40, 3, 3);
        for (int64_t j = 0; j < 40; j++)
            for (int64_t c = 0; c < 3; c++)
                view_set(&p.k, 0, 0, j, c, at == 0 ? 1e-20 * rng_normal(&r) : at == 1 ? 1e35 * rng_normal(&r) : 0);
        for (int64_t i = 0; i < 9; i++)
            for (int64_t c = 0; c < 3; c++)
                view_set(&p.q, 0, 0, i, c, at == 0 ? 1e-19 * rng_normal(&r) : at == 1 ? 1e3 * rng_normal(&r) : rng_normal(&r));
        p.d.scale_given = 1, p.d.scale = at == 0 ? 1e39 : at == 1 ? 1e-40 : at == 2 ? 1e300 : -DBL_MAX;
        bad += problem_check_all(&p, "scales beyond float");
        problem_free(&p);
    }
    assert_int_equal(bad, 0);
}

static void softcap_of_huge_scores(void **state)
{
    (void)state;
    int64_t bad = 0;
    for (int at = 0; at < 12; at++) {
        rng     r = rng_make("cap", at);
        problem p;
        problem_dense(&p, &r, at % 2 ? ATTN_F64 : ATTN_F32, 1, 1, 1, 17, 140, 4, 4);
        p.d.scale_given = 1, p.d.scale = at < 4 ? 1e4 : at < 8 ? 1e-6 : 1e30;
        p.d.softcap = at % 4 < 2 ? 30 : 1e-3;
        if (at % 3 == 0) problem_add_mask(&p, &r, ATTN_F32, all_axes, 1); /* a capped -inf would be finite */
        problem_add_weights(&p, ATTN_F64, at % 4);
        bad += problem_check_all(&p, "softcap of huge scores");
        problem_free(&p);
    }
    assert_int_equal(bad, 0);
}

/* A cap that no float holds caps all the same: a score of -inf becomes a finite one, with a weight of 0. */
static void softcap_beyond_float(void **state)
{
    (void)state;
    static const double caps[] = {1e60, DBL_MAX, FLT_MAX};
    int64_t             bad = 0;
    for (int at = 0; at < 12; at++) {
        rng     r = rng_make("large cap", at);
        problem p;
        problem_dense(&p, &r, (int32_t)(at % 4 + 1), 1, 1, 1, 19, 150, 1, 4);
        for (int64_t i = 0; i < 19; i++) view_set(&p.q, 0, 0, i, 0, 0.5 + rng_unit(&r));
        for (int64_t j = 0; j < 150; j += 7) view_set(&p.k, 0, 0, j, 0, -INFINITY);
        p.d.softcap = caps[at / 4];
        bad += problem_check_all(&p, "softcap beyond float");
        problem_free(&p);
    }
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_nan_changes_no_bit),
        cmocka_unit_test(seen_nan_stays_in_its_rows),
        cmocka_unit_test(infinite_scores),
        cmocka_unit_test(lowest_bias_does_not_hide),
        cmocka_unit_test(huge_scores),
        cmocka_unit_test(half_beyond_65504),
        cmocka_unit_test(values_near_the_largest),
        cmocka_unit_test(subnormal_inputs),
        cmocka_unit_test(scales_beyond_float),
        cmocka_unit_test(softcap_of_huge_scores),
        cmocka_unit_test(softcap_beyond_float),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("special values", tests, NULL, NULL);
}
