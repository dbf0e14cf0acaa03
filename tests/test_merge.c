/* test_merge.c: attn_merge joins results over disjoint keys as the formula says, in place too, and refuses what is not a set of parts.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

enum { MOST = 6 };

struct parts {
    attn_merge_desc d;
    view            out[MOST + 1], lse[MOST + 1]; /* the last are the results */
    attn_in         part_out[MOST], part_lse[MOST];
};

static const int none[4] = {0, 0, 0, 0}, no_channel[4] = {0, 0, 0, 1};

static void parts_make(struct parts *p, rng *r)
{
    memset(p, 0, sizeof *p);
    p->d = attn_merge_desc_new();
    p->d.batch = rng_range(r, 1, 2), p->d.heads = rng_range(r, 1, 3), p->d.queries = rng_range(r, 1, 9),
    p->d.value_dim = rng_range(r, 0, 9);
    p->d.parts = rng_range(r, 1, MOST);
    const int64_t shape[4] = {p->d.batch, p->d.heads, p->d.queries, p->d.value_dim}, rows[4] = {p->d.batch, p->d.heads, p->d.queries, 1};
    for (int64_t part = 0; part <= p->d.parts; part++) {
        int64_t at = part == p->d.parts ? MOST : part;
        int     style = rng_percent(r, 50) ? VIEW_STRANGE : VIEW_PLAIN;
        view_make(&p->out[at], r, (int32_t)rng_range(r, ATTN_F32, ATTN_BF16), shape, none, style, at == MOST);
        view_make(&p->lse[at], r, (int32_t)rng_range(r, ATTN_F32, ATTN_F64), rows, no_channel, style, at == MOST);
        if (at == MOST) break;
        double away = rng_percent(r, 30) ? 80 : 2;
        for (int64_t b = 0; b < shape[0]; b++)
            for (int64_t h = 0; h < shape[1]; h++)
                for (int64_t i = 0; i < shape[2]; i++) {
                    view_set(&p->lse[at], b, h, i, 0, rng_percent(r, 20) ? -INFINITY : rng_percent(r, 3) ? NAN : away * rng_normal(r));
                    for (int64_t c = 0; c < shape[3]; c++) view_set(&p->out[at], b, h, i, c, rng_normal(r));
                }
        p->part_out[at] = view_in(&p->out[at]), p->part_lse[at] = view_in(&p->lse[at]);
    }
    /* where a part saw nothing, its out may hold anything; views may repeat, so a place counts as what it holds in the end */
    for (int64_t at = 0; at < p->d.parts; at++)
        for (int64_t i = 0; i < shape[2] && rng_percent(r, 30); i++)
            if (p->out[at].stride[2] && view_get(&p->lse[at], 0, 0, i, 0) == -INFINITY)
                for (int64_t c = 0; c < shape[3]; c++) view_set(&p->out[at], 0, 0, i, c, c % 2 ? NAN : INFINITY);
    p->d.part_out = p->part_out, p->d.part_lse = p->part_lse;
    p->d.out = view_out(&p->out[MOST]);
    if (rng_percent(r, 80)) p->d.lse = view_out(&p->lse[MOST]);
}

static void parts_free(struct parts *p)
{
    for (int i = 0; i <= MOST; i++) view_free(&p->out[i]), view_free(&p->lse[i]);
}

/* The formula at attn_merge_desc for one row. Returns how many results are off. */
static int64_t row_bad(const struct parts *p, int64_t b, int64_t h, int64_t i)
{
    double  top = -INFINITY, sum = 0, size = 0, want[16] = {0};
    int64_t bad = 0, nan = 0;
    for (int64_t r = 0; r < p->d.parts; r++) {
        double lse = view_get(&p->lse[r], b, h, i, 0);
        nan |= isnan(lse);
        if (lse > top) top = lse;
        if (isfinite(lse) && fabs(lse) > size) size = fabs(lse);
    }
    for (int64_t r = 0; r < p->d.parts; r++) {
        double lse = view_get(&p->lse[r], b, h, i, 0);
        if (lse == -INFINITY) continue;
        sum += exp(lse - top);
        for (int64_t c = 0; c < p->d.value_dim; c++) want[c] += exp(lse - top) * view_get(&p->out[r], b, h, i, c);
    }
    for (int64_t c = 0; c <= p->d.value_dim; c++) {
        const view *to = c < p->d.value_dim ? &p->out[MOST] : &p->lse[MOST];
        if (c == p->d.value_dim && !p->d.lse.data) continue;
        double got = view_get(to, b, h, i, c < p->d.value_dim ? c : 0);
        double x = nan ? NAN : c < p->d.value_dim ? (top == -INFINITY ? 0 : want[c] / sum) : top == -INFINITY ? top : top + log(sum);
        /* computed in f64, rounded once: an f64 result keeps f64's tolerance whatever the parts are */
        double allowed = tolerance(to->dtype, ATTN_F64, to->dtype == ATTN_F64 ? 4 : 1, x, to->dtype == ATTN_F64 ? size : 0);
        int    good = isnan(x) ? isnan(got) : isinf(x) || top == -INFINITY ? got == x : fabs(got - x) <= allowed;
        if (!good) fprintf(stderr, "  [%" PRId64 ",%" PRId64 ",%" PRId64 "] %" PRId64 ": want %.17g got %.17g\n", b, h, i, c, x, got);
        bad += !good;
    }
    return bad;
}

static void random_parts(void **state)
{
    (void)state;
    for (int64_t at = 0; at < test_count(2000); at++) {
        if (!test_case_wanted(at)) continue;
        rng          r = rng_make("merge", at);
        struct parts p;
        attn_error   e;
        int64_t      bad = 0;
        parts_make(&p, &r);
        assert_int_equal(attn_merge(&p.d, &e), ATTN_OK);
        assert_string_equal(e.message, "");
        for (int64_t b = 0; b < p.d.batch; b++)
            for (int64_t h = 0; h < p.d.heads; h++)
                for (int64_t i = 0; i < p.d.queries; i++) bad += row_bad(&p, b, h, i);
        if (view_broken(&p.out[MOST]) || (p.d.lse.data && view_broken(&p.lse[MOST])))
            bad++, fprintf(stderr, "  written outside the results\n");
        if (bad) fprintf(stderr, "merge: ATTN_SEED=%" PRIu64 " ATTN_CASE=%" PRId64 "\n", test_seed(), at);
        assert_int_equal(bad, 0);
        parts_free(&p);
    }
}

/* Results may lie exactly where one part lies: the same bits as elsewhere. */
static void in_place(void **state)
{
    (void)state;
    for (int64_t at = 0; at < test_count(500); at++) {
        if (!test_case_wanted(at)) continue;
        rng          r = rng_make("in place", at);
        struct parts p;
        parts_make(&p, &r);
        int64_t target = rng_range(&r, 0, p.d.parts - 1);
        view   *out = &p.out[target], *lse = &p.lse[target];
        if (out->dtype == p.out[MOST].dtype && lse->dtype == p.lse[MOST].dtype && p.d.lse.data) {
            assert_int_equal(attn_merge(&p.d, NULL), ATTN_OK);
            p.d.out = attn_out_strided(out->memory.bytes + out->origin * (int64_t)element_bytes(out->dtype), out->dtype, out->stride);
            p.d.lse = attn_out_strided(lse->memory.bytes + lse->origin * (int64_t)element_bytes(lse->dtype), lse->dtype, lse->stride);
            if (attn_merge(&p.d, NULL) == ATTN_OK) /* not where that part repeats elements: it cannot hold results */
                for (int64_t b = 0; b < p.d.batch; b++)
                    for (int64_t h = 0; h < p.d.heads; h++)
                        for (int64_t i = 0; i < p.d.queries; i++) {
                            double a = view_get(&p.lse[MOST], b, h, i, 0), c = view_get(lse, b, h, i, 0);
                            assert_true(isnan(a) ? isnan(c) : a == c);
                            for (int64_t x = 0; x < p.d.value_dim; x++) {
                                a = view_get(&p.out[MOST], b, h, i, x), c = view_get(out, b, h, i, x);
                                assert_true(isnan(a) ? isnan(c) : a == c);
                            }
                        }
        }
        parts_free(&p);
    }
}

/* Keys cut into parts by key_start and key_count, each part a call, joined: what one call over all keys gives. */
static void split_keys_join(void **state)
{
    (void)state;
    int64_t bad = 0;
    for (int64_t at = 0; at < test_count(150); at++) {
        if (!test_case_wanted(at)) continue;
        rng       r = rng_make("split keys", at);
        problem   p;
        reference want;
        int64_t   keys = rng_range(&r, 1, 300), parts = rng_range(&r, 1, MOST), from = 0;
        int32_t   dtype = at % 2 ? ATTN_F64 : ATTN_F32;
        problem_dense(&p, &r, dtype, 1, 4, 2, rng_range(&r, 1, 30), keys, rng_range(&r, 1, 9), rng_range(&r, 1, 9));
        if (rng_percent(&r, 50)) problem_add_mask(&p, &r, ATTN_BOOL, none, 1);
        if (rng_percent(&r, 50)) problem_add_mask(&p, &r, ATTN_F32, none, 1);
        if (rng_percent(&r, 50)) problem_add_sink(&p, &r);
        problem_counts(&p, &p.query_offset, &p.d.query_offset, keys - p.d.queries);
        p.d.causal = rng_percent(&r, 50);
        reference_make(&want, &p.d);
        attn_in part_out[MOST], part_lse[MOST];
        view    outs[MOST], lses[MOST];
        for (int64_t part = 0; part < parts; part++) {
            attn_desc d = p.d;
            int64_t   to = part + 1 == parts ? keys : rng_range(&r, from, keys), count = to - from, offset = p.query_offset[0] - from;
            view_make(&outs[part], &r, dtype, p.out.shape, none, VIEW_PLAIN, 1),
                view_make(&lses[part], &r, dtype, p.lse.shape, no_channel, VIEW_PLAIN, 1);
            d.out = view_out(&outs[part]), d.lse = view_out(&lses[part]);
            d.key_start = &from, d.key_count = &count, d.query_offset = &offset;
            if (part) memset(&d.sink, 0, sizeof d.sink); /* the sink belongs to one part */
            assert_int_equal(attn_run(&d, NULL), ATTN_OK);
            part_out[part] = view_in(&outs[part]), part_lse[part] = view_in(&lses[part]);
            from = to;
        }
        attn_merge_desc m = attn_merge_desc_new();
        m.batch = 1, m.heads = 4, m.queries = p.d.queries, m.value_dim = p.d.value_dim, m.parts = parts, m.part_out = part_out,
        m.part_lse = part_lse;
        m.out = p.d.out, m.lse = p.d.lse;
        assert_int_equal(attn_merge(&m, NULL), ATTN_OK);
        int64_t here = compare_results(&p.d, &want);
        if (here) fprintf(stderr, "split keys: ATTN_SEED=%" PRIu64 " ATTN_CASE=%" PRId64 "\n", test_seed(), at), describe(&p.d, stderr);
        bad += here;
        for (int64_t part = 0; part < parts; part++) view_free(&outs[part]), view_free(&lses[part]);
        reference_free(&want);
        problem_free(&p);
    }
    assert_int_equal(bad, 0);
}

static void refusals(void **state)
{
    (void)state;
    float   outs[2][24], lses[2][6], out[24], lse[6];
    attn_in part_out[2], part_lse[2];
    int64_t bad = 0;
    memset(outs, 0, sizeof outs), memset(lses, 0, sizeof lses);
    attn_merge_desc d;
#define START                                                                                                                              \
    d = attn_merge_desc_new();                                                                                                             \
    d.batch = 1, d.heads = 2, d.queries = 3, d.value_dim = 4, d.parts = 2, d.part_out = part_out, d.part_lse = part_lse;                   \
    for (int r = 0; r < 2; r++)                                                                                                            \
        part_out[r] = attn_in_dense(outs[r], ATTN_F32, 2, 3, 4),                                                                           \
        part_lse[r] = attn_in_strided(lses[r], ATTN_F32, (const int64_t[]){6, 3, 1, 0});                                                   \
    d.out = attn_out_dense(out, ATTN_F32, 2, 3, 4), d.lse = attn_out_strided(lse, ATTN_F32, (const int64_t[]){6, 3, 1, 0});                \
    memset(out, 0xA5, sizeof out), memset(lse, 0xA5, sizeof lse);
#define REFUSED(field, value, change)                                                                                                      \
    do {                                                                                                                                   \
        attn_error e;                                                                                                                      \
        START(void)(change);                                                                                                               \
        int32_t code = attn_merge(&d, &e);                                                                                                 \
        int     good = code == ATTN_E_ARGUMENT && e.status == code && strstr(e.message, field) && strstr(e.message, value) &&              \
                   attn_merge(&d, NULL) == code;                                                                                           \
        for (size_t i = 0; i < sizeof out; i++) good &= ((unsigned char *)out)[i] == 0xA5;                                                 \
        for (size_t i = 0; i < sizeof lse; i++) good &= ((unsigned char *)lse)[i] == 0xA5;                                                 \
        if (!good) fprintf(stderr, "  %s %s: %d, \"%.250s\"\n", field, value, code, code ? e.message : ""), bad++;                         \
    } while (0)
    REFUSED("parts", "0", d.parts = 0);
    REFUSED("parts", "-1", d.parts = -1);
    REFUSED("batch", "-1", d.batch = -1);
    REFUSED("heads", "-2", d.heads = -2);
    REFUSED("queries", "-2", d.queries = -2);
    REFUSED("value_dim", "-2", d.value_dim = -2);
    REFUSED("part_out", "NULL", d.part_out = NULL);
    REFUSED("part_lse", "NULL", d.part_lse = NULL);
    REFUSED("part_out[1]", "NULL", part_out[1].data = NULL);
    REFUSED("part_lse[0]", "NULL", part_lse[0].data = NULL);
    REFUSED("part_out[1].dtype", "bool", part_out[1].dtype = ATTN_BOOL);
    REFUSED("part_lse[1].dtype", "f16", part_lse[1].dtype = ATTN_F16);
    REFUSED("part_out[0].reserved", "3", part_out[0].reserved = 3);
    REFUSED("part_lse[0].reserved", "3", part_lse[0].reserved = 3);
    REFUSED("part_out[1]", "95", part_out[1].bytes = 95);
    REFUSED("part_lse[1].stride[3]", "1", part_lse[1].stride[3] = 1);
    REFUSED("out", "NULL", d.out.data = NULL);
    REFUSED("out.dtype", "0", d.out.dtype = 0);
    REFUSED("out.reserved", "1", d.out.reserved = 1);
    REFUSED("out.stride[2]", "0", d.out.stride[2] = 0);
    REFUSED("out", "aligned", d.out.data = (char *)out + 1);
    REFUSED("lse.dtype", "bf16", d.lse.dtype = ATTN_BF16);
    REFUSED("lse.reserved", "1", d.lse.reserved = 1);
    REFUSED("lse.stride[3]", "1", d.lse.stride[3] = 1);
    REFUSED("lse.stride[1]", "2", d.lse.stride[1] = 2);
    REFUSED("size", "175", d.size = 175);
    assert_int_equal(bad, 0);
    START;
    assert_int_equal(attn_merge(&d, NULL), ATTN_OK);
    unsigned char *later = calloc(1, sizeof d + 8);
    d.size = sizeof d + 8;
    memcpy(later, &d, sizeof d);
    assert_int_equal(attn_merge((const attn_merge_desc *)(const void *)later, NULL), ATTN_OK);
    later[sizeof d + 7] = 1;
    assert_int_equal(attn_merge((const attn_merge_desc *)(const void *)later, NULL), ATTN_E_TOO_NEW);
    free(later);
}

/* One rounding: a sum that lies just beside a midpoint of f16 must not be rounded twice by way of f32. */
static void rounds_once(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        /* out = (a + b) / 2 with a = 1 + 2^-10 + 2^-30 or so: the f32 nearest to the mean is the f16 midpoint, the f64 is past it */
        double   a = 1 + 0x1p-11 + (way ? 0x1p-40 : -0x1p-40), lse[1] = {0}, expect = way ? 1 + 0x1p-10 : 1;
        uint16_t out[1];
        attn_in  part_out = attn_in_dense(&a, ATTN_F64, 1, 1, 1), part_lse = attn_in_strided(lse, ATTN_F64, (const int64_t[]){0, 0, 0, 0});
        attn_merge_desc d = attn_merge_desc_new();
        d.batch = d.heads = d.queries = d.value_dim = d.parts = 1, d.part_out = &part_out, d.part_lse = &part_lse;
        d.out = attn_out_dense(out, ATTN_F16, 1, 1, 1);
        assert_int_equal(attn_merge(&d, NULL), ATTN_OK);
        assert_true(half_to_double(out[0]) == expect);
        a = 1 + 0x1p-8 + (way ? 0x1p-40 : -0x1p-40), expect = way ? 1 + 0x1p-7 : 1;
        d.out.dtype = ATTN_BF16;
        assert_int_equal(attn_merge(&d, NULL), ATTN_OK);
        assert_true(brain_to_double(out[0]) == expect);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_parts), cmocka_unit_test(in_place),    cmocka_unit_test(split_keys_join),
        cmocka_unit_test(refusals),     cmocka_unit_test(rounds_once),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("merge", tests, NULL, NULL);
}
