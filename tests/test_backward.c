/* test_backward.c: attn_backward() on every isa against the gradients in double and against differences of runs, and what its header promises.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* ---- against the formula ------------------------------------------------------------------------------------------------------------- */

static void random_problems(void **state)
{
    (void)state;
    assert_int_equal(sweep_backward("backward", test_count(400), WITH_STRANGE_VIEWS | WITH_EXECUTORS | WITH_EMPTY), 0);
}

/* Several strips of queries and of keys, whatever the isa; causal and windowed ones leave pairs of strips out. */
static void strips(void **state)
{
    static const int64_t queries[] = {193, 400, 577, 384}, keys[] = {800, 513, 1025, 600};
    (void)state;
    for (int at = 0; at < 8; at++) {
        rng  r = rng_make("strips", at);
        back k;
        memset(&k, 0, sizeof k);
        problem_dense(&k.p, &r, at % 3 == 2 ? ATTN_F64 : ATTN_F32, 1, 1 + at % 2, 1, queries[at % 4], keys[at % 4], 3 + at, 5);
        k.p.d.causal = at & 1, k.p.d.align = ATTN_ALIGN_BOTTOM_RIGHT;
        if (at & 2) k.p.d.window = 1, k.p.d.window_left = 150, k.p.d.window_right = 90;
        if (at & 4) problem_add_mask(&k.p, &r, ATTN_F32, (const int[]){1, 1, at & 1, 0}, 1);
        back_make(&k, &r, VIEW_PLAIN);
        assert_int_equal(back_check_all(&k, "strips"), 0);
        back_free(&k);
    }
}

/* ---- against differences of runs ----------------------------------------------------------------------------------------------------- */

/* sum(out d_out) + sum(lse d_lse) of a run in f64 */
static double objective(back *k)
{
    double sum = 0;
    back_forward(k, NULL);
    const attn_desc *d = &k->p.d;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads; h++)
            for (int64_t i = 0; i < d->queries; i++) {
                for (int64_t c = 0; c < d->value_dim; c++) sum += view_get(&k->out, b, h, i, c) * view_get(&k->d_out, b, h, i, c);
                if (k->g.d_lse.data) sum += view_get(&k->lse, b, h, i, 0) * view_get(&k->d_lse, b, h, i, 0);
            }
    return sum;
}

/* d objective / d one number, by a step to either side; the step leaves about 1e-9 of rounding and as much of curvature. */
static double difference(back *k, view *w, int64_t b, int64_t h, int64_t i, int64_t c)
{
    const double x = view_get(w, b, h, i, c), step = 1e-4;
    view_set(w, b, h, i, c, x + step);
    double up = objective(k);
    view_set(w, b, h, i, c, x - step);
    double down = objective(k);
    view_set(w, b, h, i, c, x);
    return (up - down) / (2 * step);
}

static void differences_of_runs(void **state)
{
    (void)state;
    for (int64_t at = 0; at < 6; at++) {
        rng  r = rng_make("differences", at);
        back k;
        memset(&k, 0, sizeof k);
        problem_dense(&k.p, &r, ATTN_F64, 2, 4, 2, 5, 7, 3, 4);
        problem_add_mask(&k.p, &r, ATTN_F64, (const int[]){at & 1, at >> 1 & 1, at % 3 == 1, at % 3 == 2}, 1);
        problem_add_sink(&k.p, &r);
        problem_add_alibi(&k.p, &r, at & 1);
        k.p.d.align = ATTN_ALIGN_BOTTOM_RIGHT, k.p.d.causal = at & 1, k.p.d.softcap = at & 2 ? 2 : 0;
        k.p.d.dropout = at > 2 ? 0.3 : 0, k.p.d.dropout_seed = 7, k.p.d.dropout_offset = (uint64_t)at;
        back_make(&k, &r, VIEW_PLAIN);
        back_forward(&k, NULL);
        attn_error e;
        if (attn_backward(&k.p.d, &k.g, &e)) fail_msg("%s", e.message);
        view *const by[GRADIENTS] = {&k.p.q, &k.p.k, &k.p.v, &k.p.bias, &k.p.sink, &k.p.alibi};
        for (int w = 0; w < GRADIENTS; w++)
            for (int try = 0; try < 6; try++) {
                int64_t p[4];
                for (int a = 0; a < 4; a++) p[a] = rng_range(&r, 0, k.to[w].shape[a] - 1);
                if (w == BY_BIAS && view_get(by[w], p[0], p[1], p[2], p[3]) == -INFINITY) continue;
                const double want = difference(&k, by[w], p[0], p[1], p[2], p[3]), got = view_get(&k.to[w], p[0], p[1], p[2], p[3]);
                if (fabs(got - want) > 1e-6 * (1 + fabs(want)) * (w == BY_ALIBI ? 10 : 1)) /* a slope moves a score by up to 10 steps */
                    fail_msg("gradient %d of case %d: %.12g, differences say %.12g", w, (int)at, got, want);
            }
        back_free(&k);
    }
}

/* ---- what is promised besides ---------------------------------------------------------------------------------------------------------- */

static void added_to_what_is_there(void **state)
{
    (void)state;
    for (int64_t at = 0; at < 60; at++) {
        rng       r = rng_make("added", at);
        back      k;
        gradients want;
        double   *before[GRADIENTS] = {NULL};
        memset(&k, 0, sizeof k);
        problem_random(&k.p, &r, WITH_STRANGE_VIEWS);
        back_make(&k, &r, VIEW_STRANGE);
        gradients_make(&want, &k.p.d, &k.g);
        back_forward(&k, NULL);
        for (int w = 0; w < GRADIENTS; w++) {
            view   *v = &k.to[w];
            int64_t n = 0;
            if (!v->memory.bytes) continue;
            before[w] = calloc((size_t)(v->shape[0] * v->shape[1] * v->shape[2] * v->shape[3]) + 1, sizeof(double));
            view_refill(v);
            back_fill(v, &r);
            for (int64_t b = 0; b < v->shape[0]; b++)
                for (int64_t h = 0; h < v->shape[1]; h++)
                    for (int64_t i = 0; i < v->shape[2]; i++)
                        for (int64_t c = 0; c < v->shape[3]; c++) before[w][n++] = view_get(v, b, h, i, c);
        }
        k.g.accumulate = 1;
        if (back_check(&k, &want, before)) {
            describe(&k.p.d, stderr);
            fail_msg("case %d", (int)at);
        }
        for (int w = 0; w < GRADIENTS; w++) free(before[w]);
        gradients_free(&want);
        back_free(&k);
    }
}

static void the_same_bits_for_any_threads(void **state)
{
    (void)state;
    for (int at = 0; at < 4; at++) {
        rng  r = rng_make("threads", at);
        back k;
        memset(&k, 0, sizeof k);
        problem_dense(&k.p, &r, at & 1 ? ATTN_BF16 : ATTN_F32, 2, 2, 1, 300, 530, 8, 9);
        problem_add_mask(&k.p, &r, ATTN_F32, (const int[]){at < 2, at & 1, 0, at == 3}, 0);
        k.p.d.causal = 1, k.p.d.align = ATTN_ALIGN_BOTTOM_RIGHT, k.p.d.dropout = at == 2 ? 0.5 : 0;
        back_make(&k, &r, VIEW_PLAIN);
        back_forward(&k, NULL);
        unsigned char *first[GRADIENTS] = {NULL};
        for (int32_t threads = 1; threads <= 5; threads++) {
            attn_pool *pool = attn_pool_new(threads, NULL);
            assert_non_null(pool);
            k.p.d.executor = threads > 1 ? attn_pool_executor(pool) : NULL;
            back_refill(&k);
            assert_int_equal(attn_backward(&k.p.d, &k.g, NULL), ATTN_OK);
            attn_pool_free(pool);
            for (int w = 0; w < GRADIENTS; w++) {
                const guarded *m = &k.to[w].memory;
                if (!m->bytes) continue;
                if (first[w])
                    assert_memory_equal(first[w], m->bytes, m->size);
                else
                    memcpy(first[w] = malloc(m->size + 1), m->bytes, m->size);
            }
        }
        for (int w = 0; w < GRADIENTS; w++) free(first[w]);
        back_free(&k);
    }
}

/* NaN in what nobody sees, and in d_out and q of queries that see nothing, changes no bit; a NaN that is seen spoils its own row alone. */
static void nothing_hidden_leaks(void **state)
{
    (void)state;
    for (int i = 0; attn_isa_name(i); i++) {
        if (!attn_isa_usable(i)) continue;
        rng  r = rng_make("hidden", i);
        back k;
        memset(&k, 0, sizeof k);
        problem_dense(&k.p, &r, ATTN_F32, 1, 2, 1, 70, 150, 20, 17);
        k.p.d.causal = 1, k.p.d.align = ATTN_ALIGN_BOTTOM_RIGHT; /* query 7 sees the keys up to 87 */
        problem_add_mask(&k.p, &r, ATTN_BOOL, (const int[]){1, 1, 0, 0}, 0);
        for (int64_t q = 0; q < 70; q++)
            for (int64_t j = 0; j < 150; j++) view_set(&k.p.allow, 0, 0, q, j, q != 5 && j != 3 && j != 140 && (q + j) % 3 != 0);
        back_make(&k, &r, VIEW_PLAIN);
        back_forward(&k, attn_isa_name(i));
        gradients want;
        gradients_make(&want, &k.p.d, &k.g);
        assert_int_equal(back_check(&k, &want, NULL), 0);
        unsigned char *clean[BY_BIAS];
        for (int w = BY_Q; w <= BY_V; w++) memcpy(clean[w] = malloc(k.to[w].memory.size), k.to[w].memory.bytes, k.to[w].memory.size);
        for (int64_t c = 0; c < 20; c++) {
            view_set(&k.p.k, 0, 0, 3, c, NAN), view_set(&k.p.k, 0, 0, 140, c, INFINITY);
            view_set(&k.p.q, 0, 0, 5, c, NAN), view_set(&k.p.q, 0, 1, 5, c, -INFINITY);
        }
        for (int64_t c = 0; c < 17; c++) {
            view_set(&k.p.v, 0, 0, 3, c, INFINITY), view_set(&k.p.v, 0, 0, 140, c, NAN);
            view_set(&k.d_out, 0, 0, 5, c, NAN), view_set(&k.d_out, 0, 1, 5, c, NAN);
        }
        back_forward(&k, attn_isa_name(i));
        assert_int_equal(back_check(&k, &want, NULL), 0);
        for (int w = BY_Q; w <= BY_V; w++) {
            assert_memory_equal(clean[w], k.to[w].memory.bytes, k.to[w].memory.size);
            free(clean[w]);
        }
        for (int64_t c = 0; c < 20; c++) {
            assert_true(view_get(&k.to[BY_K], 0, 0, 3, c) == 0 && view_get(&k.to[BY_K], 0, 0, 140, c) == 0);
            assert_true(view_get(&k.to[BY_Q], 0, 0, 5, c) == 0 && view_get(&k.to[BY_Q], 0, 1, 5, c) == 0);
        }
        view_set(&k.d_out, 0, 0, 7, 0, NAN); /* query 7 of head 0 */
        assert_int_equal(attn_backward(&k.p.d, &k.g, NULL), ATTN_OK);
        for (int64_t q = 0; q < 70; q++) assert_true(isnan(view_get(&k.to[BY_Q], 0, 0, q, 1)) == (q == 7));
        for (int64_t j = 0; j < 150; j++)
            assert_true(isnan(view_get(&k.to[BY_K], 0, 0, j, 1)) == (j <= 87 && view_get(&k.p.allow, 0, 0, 7, j) != 0));
        view_set(&k.d_out, 0, 0, 7, 0, 1);
        view_set(&k.p.q, 0, 0, 7, 0, -(double)NAN); /* its weights are NaN, with the sign that hidden ones have */
        back_forward(&k, attn_isa_name(i));
        assert_int_equal(attn_backward(&k.p.d, &k.g, NULL), ATTN_OK);
        for (int64_t q = 0; q < 70; q++) assert_true(isnan(view_get(&k.to[BY_Q], 0, 0, q, 1)) == (q == 7));
        for (int w = BY_K; w <= BY_V; w++)
            for (int64_t j = 0; j < 150; j++)
                assert_true(isnan(view_get(&k.to[w], 0, 0, j, 1)) == (j <= 87 && view_get(&k.p.allow, 0, 0, 7, j) != 0));
        gradients_free(&want);
        back_free(&k);
    }
}

/* Weights are rebuilt as exp(s - lse): a place that is hidden, or no place at all, must not overflow where lse is far below 0. */
static void a_low_lse_overflows_nothing(void **state)
{
    (void)state;
    rng  r = rng_make("low", 0);
    back k;
    memset(&k, 0, sizeof k);
    problem_dense(&k.p, &r, ATTN_F32, 1, 1, 1, 21, 37, 4, 4);
    problem_add_mask(&k.p, &r, ATTN_F32, (const int[]){1, 1, 1, 0}, 0);
    for (int64_t j = 0; j < 37; j++) view_set(&k.p.bias, 0, 0, 0, j, j % 5 ? -300 : -INFINITY);
    k.p.d.causal = 1, k.p.d.align = ATTN_ALIGN_TOP_LEFT;
    back_make(&k, &r, VIEW_PLAIN);
    assert_int_equal(back_check_all(&k, "low lse"), 0);
    back_free(&k);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *says;
        int         which;
    } cases[] = {{"dsink is asked for though there is no sink", 0},
                 {"accumulate is 2", 1},
                 {"lse.dtype is f64", 2},
                 {"dq.stride[3] is 0", 3},
                 {"work_bytes is 1", 4},
                 {"d_out.data is NULL", 5},
                 {"attn_backward_desc.size is 8", 6},
                 {"dbias is asked for", 7},
                 {"dropout is 2", 8},
                 {"attn_backward_desc is NULL", 9},
                 {"out.stride[0] is", 10}};
    for (size_t at = 0; at < COUNT(cases); at++) {
        rng        r = rng_make("refusals", 0);
        back       k;
        attn_error e = {0};
        char       one;
        memset(&k, 0, sizeof k);
        problem_dense(&k.p, &r, ATTN_F32, 2, 2, 1, 3, 4, 5, 6);
        back_make(&k, &r, VIEW_PLAIN);
        back_forward(&k, NULL);
        back_refill(&k);
        attn_backward_desc *g = &k.g;
        switch (cases[at].which) {
        case 0:
            g->dsink = (attn_out){g->dq.data, {0, 1, 0, 0}, 0, ATTN_F32, 0};
            break;
        case 1:
            g->accumulate = 2;
            break;
        case 2:
            g->lse.dtype = ATTN_F64;
            break;
        case 3:
            g->dq.stride[3] = 0;
            break;
        case 4:
            g->work = &one, g->work_bytes = 1;
            break;
        case 5:
            g->d_out.data = NULL;
            break;
        case 6:
            g->size = 8;
            break;
        case 7:
            g->dbias = g->dq;
            break;
        case 8:
            k.p.d.dropout = 2;
            break;
        case 10:
            g->out.stride[0] = INT64_MIN;
            break;
        default:
            break;
        }
        int32_t status = attn_backward(&k.p.d, cases[at].which == 9 ? NULL : g, &e);
        if (status == ATTN_OK || !strstr(e.message, cases[at].says)) fail_msg("%s: %d, \"%s\"", cases[at].says, status, e.message);
        for (int w = 0; w < GRADIENTS; w++) assert_true(!k.to[w].memory.bytes || !view_touched(&k.to[w]));
        back_free(&k);
    }
}

/* The bound of the header, by its letters. */
static double bound(const attn_desc *d, const attn_backward_desc *g, const char *isa)
{
    const int    wide = d->q.dtype == ATTN_F64, threads = d->executor ? d->executor->width : 1;
    const double real = wide ? 8 : 4, D = (double)((d->dim + 15) / 16 * 16), V = (double)((d->value_dim + 15) / 16 * 16);
    const double rows = strcmp(isa, "scalar") == 0 ? 4
                                                   : (strncmp(isa, "avx512", 6) == 0 ? 48
                                                      : strcmp(isa, "avx2") == 0     ? 24
                                                                                     : 16) /
                                                         (wide ? 2 : 1);
    const double G = fmin(8, 192 / rows),
                 S = real * (rows * (2 * D + 3 * V + 396) + 128 * (D + V)) + 2816 + (d->dropout > 0 ? real * rows * 128 : 0);
    const double N = (double)(d->batch * d->heads) * ceil((double)d->queries / rows) * rows, M = (double)(d->batch * d->kv_heads * d->keys);
    const int    bias = g->dbias.data != NULL, by_row = bias && g->dbias.stride[3] == 0 && d->keys > 1;
    const int    by_key = bias && !by_row && g->dbias.stride[2] == 0 && d->queries > 1;
    const double C = by_key ? (double)(d->batch * d->heads * d->keys) : 0;
    const double P = bias && !by_row && !by_key && g->dbias.dtype != (wide ? ATTN_F64 : ATTN_F32)
                         ? real * (double)(d->batch * d->heads * d->queries * d->keys)
                         : 0;
    return 1024 + threads * (G * S + real * rows * 256 + 192) + real * (N * (D + 4) + M * (D + V) + C) + P;
}

static void work_is_within_the_bound(void **state)
{
    (void)state;
    for (int64_t at = 0; at < 300; at++) {
        rng  r = rng_make("bound", at);
        back k;
        memset(&k, 0, sizeof k);
        problem_random(&k.p, &r, WITH_EXECUTORS);
        k.p.d.dropout = at % 3 ? 0 : 0.5;
        back_make(&k, &r, VIEW_PLAIN);
        k.g.out = k.g.d_out, k.g.out.dtype = k.p.d.q.dtype;
        k.g.lse = attn_in_strided(NULL, k.p.d.q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, (const int64_t[]){0, 0, 0, 0});
        for (int i = 0; attn_isa_name(i); i++) {
            size_t bytes;
            if (!attn_isa_usable(i)) continue;
            k.p.d.isa = attn_isa_name(i);
            assert_int_equal(attn_backward_work_bytes(&k.p.d, &k.g, &bytes, NULL), ATTN_OK);
            if ((double)bytes > bound(&k.p.d, &k.g, k.p.d.isa)) fail_msg("%s: %zu bytes, case %d", k.p.d.isa, bytes, (int)at);
        }
        back_free(&k);
    }
}

/* For one long head: what work is asked for grows with n and not with n * n, and with threads by a fixed step. */
static void work_grows_with_queries_and_keys(void **state)
{
    (void)state;
    size_t bytes[3];
    for (int at = 0; at < 3; at++) {
        const int64_t      n = INT64_C(1) << (16 + at);
        attn_desc          d = attn_desc_new();
        attn_backward_desc g = attn_backward_desc_new();
        d.batch = d.heads = d.kv_heads = 1, d.queries = d.keys = n, d.dim = d.value_dim = 64;
        d.q = d.k = d.v = attn_in_dense(NULL, ATTN_F32, 1, n, 64);
        g.out = g.d_out = attn_in_dense(NULL, ATTN_F32, 1, n, 64);
        g.lse = attn_in_dense(NULL, ATTN_F32, 1, n, 1), g.lse.stride[3] = 0;
        g.dq = g.dk = g.dv = attn_out_dense(NULL, ATTN_F32, 1, n, 64);
        assert_int_equal(attn_backward_work_bytes(&d, &g, &bytes[at], NULL), ATTN_OK);
        assert_true(bytes[at] >= (size_t)n * 3 * 64 * 4 && bytes[at] < (size_t)n * (3 * 64 + 4) * 4 + (4 << 20));
    }
    assert_true(bytes[2] - bytes[1] > 19 * (bytes[1] - bytes[0]) / 10 && bytes[2] - bytes[1] < 21 * (bytes[1] - bytes[0]) / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_problems),
        cmocka_unit_test(strips),
        cmocka_unit_test(differences_of_runs),
        cmocka_unit_test(added_to_what_is_there),
        cmocka_unit_test(nothing_hidden_leaks),
        cmocka_unit_test(the_same_bits_for_any_threads),
        cmocka_unit_test(refusals),
        cmocka_unit_test(a_low_lse_overflows_nothing),
        cmocka_unit_test(work_grows_with_queries_and_keys),
        cmocka_unit_test(work_is_within_the_bound),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("backward", tests, NULL, NULL);
}
