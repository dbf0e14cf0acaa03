/* test_operator.c: the whole operator on every row this machine has, against the double reference of support_reference.c.
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

static void rows_expected_here_are_here(void **state)
{
    (void)state;
    assert_int_equal(isa_report(), 0);
}

static void random_problems(void **state)
{
    (void)state;
    assert_int_equal(sweep("operator", test_count(1600), WITH_ALL), 0);
}

/* ---- every option alone and every pair of options ----------------------------------------------------------------------------------- */

static void causal_top(problem *p, rng *r)
{
    (void)r;
    p->d.causal = 1;
    if (!p->d.query_offset) p->d.align = ATTN_ALIGN_TOP_LEFT;
}

static void causal_bottom(problem *p, rng *r)
{
    (void)r;
    p->d.causal = 1;
    if (!p->d.query_offset) p->d.align = ATTN_ALIGN_BOTTOM_RIGHT;
}

static void offsets(problem *p, rng *r)
{
    p->d.align = 0;
    problem_counts(p, &p->query_offset, &p->d.query_offset, 0);
    for (int64_t b = 0; b < p->d.batch; b++) p->query_offset[b] = rng_range(r, -5, p->d.keys);
}

static void window(problem *p, rng *r)
{
    p->d.window = 1;
    p->d.window_left = rng_range(r, -1, 40);
    p->d.window_right = rng_range(r, -1, 40);
    if (!p->d.query_offset && !p->d.align) p->d.align = ATTN_ALIGN_BOTTOM_RIGHT;
}

static void query_counts(problem *p, rng *r)
{
    problem_counts(p, &p->query_count, &p->d.query_count, 0);
    for (int64_t b = 0; b < p->d.batch; b++) p->query_count[b] = rng_range(r, 0, p->d.queries);
}

static void key_counts(problem *p, rng *r)
{
    problem_counts(p, &p->key_count, &p->d.key_count, 0);
    for (int64_t b = 0; b < p->d.batch; b++) p->key_count[b] = rng_range(r, 0, p->d.keys - (p->key_start ? p->key_start[b] : 0));
}

static void key_starts(problem *p, rng *r)
{
    problem_counts(p, &p->key_start, &p->d.key_start, 0);
    for (int64_t b = 0; b < p->d.batch; b++) p->key_start[b] = rng_range(r, 0, p->d.keys - (p->key_count ? p->key_count[b] : 0));
}

static void allow_full(problem *p, rng *r)
{
    problem_add_mask(p, r, ATTN_BOOL, all_axes, 1);
}

static void bias_full(problem *p, rng *r)
{
    problem_add_mask(p, r, ATTN_F32, all_axes, 1);
}

static void alibi(problem *p, rng *r)
{
    problem_add_alibi(p, r, 1);
    if (!p->d.query_offset && !p->d.align) p->d.align = ATTN_ALIGN_BOTTOM_RIGHT;
}

static void softcap(problem *p, rng *r)
{
    p->d.softcap = 0.2 + rng_unit(r);
}

static void scale_zero(problem *p, rng *r)
{
    (void)r;
    p->d.scale_given = 1;
}

static void scale_negative(problem *p, rng *r)
{
    p->d.scale_given = 1;
    p->d.scale = -0.1 - rng_unit(r);
}

static const struct {
    const char *name;
    void (*apply)(problem *p, rng *r);
} options[] = {
    {"offsets", offsets},
    {"causal_top", causal_top},
    {"causal_bottom", causal_bottom},
    {"window", window},
    {"query_counts", query_counts},
    {"key_counts", key_counts},
    {"key_starts", key_starts},
    {"allow", allow_full},
    {"bias", bias_full},
    {"alibi", alibi},
    {"sink", problem_add_sink},
    {"softcap", softcap},
    {"scale_zero", scale_zero},
    {"scale_negative", scale_negative},
};

static void options_alone_and_in_pairs(void **state)
{
    (void)state;
    int64_t bad = 0;
    for (int first = 0; first < COUNT(options); first++)
        for (int second = first; second < COUNT(options); second++) {
            rng     r = rng_make("options", first * 100 + second);
            problem p;
            char    what[80];
            int64_t keys = 120 + rng_range(&r, 0, 30);
            problem_dense(&p, &r, ATTN_F32, 2, 4, 2, 1 + rng_range(&r, 0, 35), keys, 1 + rng_range(&r, 0, 16), 1 + rng_range(&r, 0, 16));
            problem_add_weights(&p, ATTN_F32, (first + second) % 4);
            options[first].apply(&p, &r);
            if (second != first) options[second].apply(&p, &r);
            snprintf(what, sizeof what, "%s with %s", options[first].name, options[second].name);
            bad += problem_check_all(&p, what);
            problem_free(&p);
        }
    assert_int_equal(bad, 0);
}

/* All sixteen broadcast forms of a mask and of a bias, with rows and blocks wholly hidden. */
static void masks_broadcast(void **state)
{
    (void)state;
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    int64_t              bad = 0;
    for (int form = 0; form < 16; form++)
        for (int kind = 0; kind < 3; kind++) {
            rng       r = rng_make("broadcast", form * 3 + kind);
            problem   p;
            const int broadcast[4] = {form & 1, form >> 1 & 1, form >> 2 & 1, form >> 3 & 1};
            int32_t   inputs = dtypes[form % 4];
            problem_dense(&p, &r, inputs, 2, 2, 1, 19, 131, 5, 6);
            problem_add_mask(&p, &r, kind == 0 ? ATTN_BOOL : kind == 1 ? ATTN_F32 : inputs, broadcast, 1);
            bad += problem_check_all(&p, "broadcast mask");
            problem_free(&p);
        }
    assert_int_equal(bad, 0);
}

static void sizes_of_zero(void **state)
{
    (void)state;
    int64_t bad = 0;
    for (int zero = 0; zero < 64; zero++)
        for (int extra = 0; extra < 2; extra++) {
            rng           r = rng_make("zero", zero);
            problem       p;
            const int64_t size[6] = {2, 4, 5, 7, 3, 6};
            int64_t       s[6];
            for (int a = 0; a < 6; a++) s[a] = zero >> a & 1 ? 0 : size[a];
            problem_dense(&p, &r, ATTN_F32, s[0], s[1], 2, s[2], s[3], s[4], s[5]);
            if (extra) {
                problem_add_weights(&p, ATTN_F64, zero % 4);
                problem_add_sink(&p, &r);
                problem_add_mask(&p, &r, ATTN_BOOL, all_axes, 0);
            }
            bad += problem_check_all(&p, "sizes of zero");
            problem_free(&p);
        }
    assert_int_equal(bad, 0);
}

/* Short sequences padded to one length, of which the kernels may do a block at once or leave out rows: zeros for all that is no query. */
static void short_padded_sequences(void **state)
{
    (void)state;
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F64, ATTN_BF16};
    int64_t              bad = 0;
    for (int at = 0; at < 48; at++) {
        rng     r = rng_make("padded", at);
        problem p;
        problem_dense(&p, &r, dtypes[at % 3], 5, 2, 1 + at % 2, rng_range(&r, 1, 100), rng_range(&r, 1, 128), 16, 32);
        query_counts(&p, &r), key_counts(&p, &r);
        if (at / 3 % 2) p.d.lse = (attn_out){0};
        if (at / 6 % 2) p.d.causal = 1, p.d.align = ATTN_ALIGN_TOP_LEFT;
        bad += problem_check_all(&p, "short padded sequences");
        problem_free(&p);
    }
    assert_int_equal(bad, 0);
}

/* ---- the numbers of the textbook ----------------------------------------------------------------------------------------------------- */

static void worked_examples(void **state)
{
    (void)state;
    static const struct {
        float         q[2], k[3][2], v[3][2];
        int64_t       keys;
        unsigned char allow[3];
        double        scale, weight[3], out[2];
    } examples[] = {
        {{1, 0}, {{1, 0}, {0, 1}}, {{10, 0}, {0, 10}}, 2, {1, 1}, 0, {0.67, 0.33}, {6.698, 3.302}},
        {{1, 0}, {{1, 0}, {0, 1}}, {{10, 0}, {0, 10}}, 2, {1, 0}, 0, {1, 0}, {10, 0}},
        {{0, 1}, {{1, 0}, {0, 1}}, {{10, 0}, {0, 10}}, 2, {1, 1}, 0, {0.33, 0.67}, {3.302, 6.698}},
        {{1, 0}, {{2, 0}, {1, 0}, {0, 0}}, {{1, 0}, {0, 2}, {3, 1}}, 3, {1, 1, 1}, 1, {0.665, 0.245, 0.09}, {0.935, 0.579}},
    };
    for (int at = 0; at < COUNT(examples); at++)
        for (int i = 0; attn_isa_name(i); i++) {
            if (!attn_isa_usable(i)) continue;
            float     out[2], weights[3];
            attn_desc d = attn_desc_new();
            d.batch = d.heads = d.kv_heads = d.queries = 1, d.keys = examples[at].keys, d.dim = d.value_dim = 2;
            d.q = attn_in_dense(examples[at].q, ATTN_F32, 1, 1, 2);
            d.k = attn_in_dense(examples[at].k, ATTN_F32, 1, d.keys, 2);
            d.v = attn_in_dense(examples[at].v, ATTN_F32, 1, d.keys, 2);
            d.allow = attn_in_dense(examples[at].allow, ATTN_BOOL, 1, 1, d.keys);
            d.out = attn_out_dense(out, ATTN_F32, 1, 1, 2);
            d.weights = attn_out_dense(weights, ATTN_F32, 1, 1, d.keys);
            d.scale = examples[at].scale, d.scale_given = d.scale != 0;
            d.isa = attn_isa_name(i);
            assert_int_equal(attn_run(&d, NULL), ATTN_OK);
            for (int c = 0; c < 2; c++) assert_true(fabs(out[c] - examples[at].out[c]) <= 0.0005);            /* three decimals */
            for (int j = 0; j < d.keys; j++) assert_true(fabs(weights[j] - examples[at].weight[j]) <= 0.005); /* two of them */
        }
}

/* Positions may be anywhere from -2^62 to 2^62, window bounds anywhere in 63 bits. */
static void far_positions(void **state)
{
    (void)state;
    static const int64_t away[] = {INT64_C(1) << 62, -(INT64_C(1) << 62), INT64_C(1) << 40, -5, 70};
    static const int64_t bound[] = {-1, 0, 64, INT64_MAX, (INT64_C(1) << 62) - 20};
    int64_t              bad = 0;
    for (int at = 0; at < COUNT(away); at++)
        for (int left = 0; left < COUNT(bound); left++)
            for (int right = 0; right < COUNT(bound); right++) {
                rng     r = rng_make("far", at * 25 + left * 5 + right);
                problem p;
                problem_dense(&p, &r, ATTN_F32, 1, 1, 1, 3, 140, 2, 2);
                problem_counts(&p, &p.query_offset, &p.d.query_offset, away[at]);
                p.d.window = 1, p.d.window_left = bound[left], p.d.window_right = bound[right];
                p.d.causal = (left + right) % 2;
                bad += problem_check_all(&p, "far positions");
                problem_free(&p);
            }
    assert_int_equal(bad, 0);
}

/* q, k and v interleaved in one array (batch, position, 3, head, channel), and v inside k's memory. */
static void fused_and_shared_memory(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        rng     r = rng_make("fused", shared);
        problem p;
        view    all;
        int64_t n = 70, heads = 3, dim = 8;
        problem_dense(&p, &r, ATTN_F32, 2, heads, heads, n, n, dim, dim);
        view_make(&all, &r, ATTN_F32, (const int64_t[]){2, n, 3 * heads, dim}, all_axes, VIEW_PLAIN, 0);
        for (size_t at = 0; at < all.memory.size / 4; at++) element_set(all.memory.bytes, ATTN_F32, (int64_t)at, rng_normal(&r));
        const int64_t stride[4] = {n * 3 * heads * dim, dim, 3 * heads * dim, 1};
        const float  *base = (const float *)(const void *)all.memory.bytes;
        p.d.q = attn_in_strided(base, ATTN_F32, stride);
        p.d.k = attn_in_strided(base + heads * dim, ATTN_F32, stride);
        p.d.v = attn_in_strided(base + (shared ? heads * dim + 2 : 2 * heads * dim), ATTN_F32, stride);
        if (shared) p.d.value_dim = 5, p.d.out.stride[3] = 1;
        p.d.causal = 1;
        assert_int_equal(problem_check_all(&p, "fused memory"), 0);
        view_free(&all);
        problem_free(&p);
    }
}

/* ---- properties ----------------------------------------------------------------------------------------------------------------------- */

/* Keys and values in another order, together with their mask and bias, give the same results. */
static void keys_may_be_permuted(void **state)
{
    (void)state;
    int64_t bad = 0;
    for (int at = 0; at < 24; at++) {
        rng       r = rng_make("permuted", at);
        problem   p;
        reference want;
        int64_t   n = rng_range(&r, 2, 300);
        problem_dense(&p, &r, (int32_t)(at % 4 + 1), 1, 2, 1, 17, n, 5, 6);
        problem_add_mask(&p, &r, ATTN_BOOL, all_axes, 1), problem_add_mask(&p, &r, ATTN_F32, all_axes, 1);
        if (at & 4) problem_add_sink(&p, &r);
        reference_make(&want, &p.d);
        for (int64_t j = n - 1; j > 0; j--) {
            int64_t other = rng_range(&r, 0, j);
            view   *rows[] = {&p.k, &p.v};
            for (int w = 0; w < 2; w++)
                for (int64_t c = 0; c < rows[w]->shape[3]; c++) {
                    double saved = view_get(rows[w], 0, 0, j, c);
                    view_set(rows[w], 0, 0, j, c, view_get(rows[w], 0, 0, other, c)), view_set(rows[w], 0, 0, other, c, saved);
                }
            view *columns[] = {&p.allow, &p.bias};
            for (int w = 0; w < 2; w++)
                for (int64_t i = 0; i < 2 * 17; i++) {
                    double saved = view_get(columns[w], 0, i / 17, i % 17, j);
                    view_set(columns[w], 0, i / 17, i % 17, j, view_get(columns[w], 0, i / 17, i % 17, other)),
                        view_set(columns[w], 0, i / 17, i % 17, other, saved);
                }
        }
        for (int i = 0; attn_isa_name(i); i++)
            if (attn_isa_usable(i)) bad += problem_check(&p, &want, attn_isa_name(i));
        reference_free(&want);
        problem_free(&p);
    }
    assert_int_equal(bad, 0);
}

/* The same number added to every score of a row changes lse by it, and nothing else. */
static void scores_may_be_shifted(void **state)
{
    (void)state;
    int64_t bad = 0;
    for (int at = 0; at < 24; at++) {
        rng       r = rng_make("shifted", at);
        problem   p;
        reference want;
        double    by[19];
        problem_dense(&p, &r, at % 2 ? ATTN_F64 : ATTN_F32, 1, 1, 1, 19, rng_range(&r, 1, 300), 5, 6);
        problem_add_mask(&p, &r, ATTN_BOOL, all_axes, 1);
        reference_make(&want, &p.d);
        problem_add_mask(&p, &r, p.d.q.dtype, (const int[]){0, 0, 0, 1}, 0);
        for (int64_t i = 0; i < 19; i++) {
            view_set(&p.bias, 0, 0, i, 0, (at % 3 + 1) * 20 * rng_normal(&r));
            by[i] = view_get(&p.bias, 0, 0, i, 0);
            want.lse[i] += by[i], want.size_seen[i] += fabs(by[i]);
        }
        for (int i = 0; attn_isa_name(i); i++)
            if (attn_isa_usable(i)) bad += problem_check(&p, &want, attn_isa_name(i));
        reference_free(&want);
        problem_free(&p);
    }
    assert_int_equal(bad, 0);
}

/* Queries in another order give their results in that order: nothing but the order changes. */
static void queries_are_equivariant(void **state)
{
    (void)state;
    for (int i = 0; attn_isa_name(i); i++) {
        if (!attn_isa_usable(i)) continue;
        rng     r = rng_make("equivariant", i);
        problem p;
        size_t  size;
        problem_dense(&p, &r, ATTN_F32, 1, 2, 1, 50, 140, 6, 7);
        p.d.isa = attn_isa_name(i);
        assert_int_equal(attn_run(&p.d, NULL), ATTN_OK);
        unsigned char *forward = problem_results(&p, &size);
        p.d.q.data = (const float *)p.d.q.data + 49 * 6, p.d.q.stride[2] = -6; /* last query first */
        assert_int_equal(attn_run(&p.d, NULL), ATTN_OK);
        for (int64_t h = 0; h < 2; h++)
            for (int64_t n = 0; n < 50; n++)
                assert_memory_equal(forward + (h * 50 + n) * 7 * 4, p.out.memory.bytes + (h * 50 + 49 - n) * 7 * 4, 7 * 4);
        free(forward);
        problem_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_expected_here_are_here),
        cmocka_unit_test(worked_examples),
        cmocka_unit_test(options_alone_and_in_pairs),
        cmocka_unit_test(masks_broadcast),
        cmocka_unit_test(sizes_of_zero),
        cmocka_unit_test(short_padded_sequences),
        cmocka_unit_test(far_positions),
        cmocka_unit_test(fused_and_shared_memory),
        cmocka_unit_test(keys_may_be_permuted),
        cmocka_unit_test(scores_may_be_shifted),
        cmocka_unit_test(queries_are_equivariant),
        cmocka_unit_test(random_problems),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("operator", tests, NULL, NULL);
}
