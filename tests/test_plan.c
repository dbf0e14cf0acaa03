/* test_plan.c: what attn_plan_describe() says is what a run does, and no shape of the bench leaves many threads idle.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include "internal.h"

#define problem bench_problem /* not that of support.h */
#include "bench/bench.h"
#undef problem

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

enum { MOST_THREADS = 40, BUSY = 16 };

static attn_plan_info describe_plan(const attn_desc *d)
{
    attn_plan_info info = attn_plan_info_new();
    attn_error     e;
    if (attn_plan_describe(d, &info, &e) != ATTN_OK) fail_msg("%s", e.message);
    assert_int_equal(e.status, ATTN_OK);
    return info;
}

static struct attn_plan plan_of(const attn_desc *d)
{
    struct attn_plan plan;
    assert_int_equal(attn_check_desc(d, &plan.d, 0, NULL), ATTN_OK);
    assert_int_equal(attn_plan_make(&plan, NULL), ATTN_OK);
    return plan;
}

static attn_desc square(int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys, int64_t dim)
{
    attn_desc d = attn_desc_new();
    d.batch = 1, d.heads = heads, d.kv_heads = kv_heads, d.queries = queries, d.keys = keys, d.dim = d.value_dim = dim;
    d.q = attn_in_dense(NULL, ATTN_F32, heads, queries, dim);
    d.k = d.v = attn_in_dense(NULL, ATTN_F32, kv_heads, keys, dim);
    d.out = attn_out_dense(NULL, ATTN_F32, heads, queries, dim);
    return d;
}

/* ---- against counting one by one --------------------------------------------------------------------------------------------------- */

/* What a piece computes, pair by pair; *low and *high: the keys it walks. */
static double count(const attn_desc *d, const struct attn_place *p, int64_t from, int64_t to, int64_t *low, int64_t *high)
{
    int64_t pairs = 0;
    *low = INT64_MAX, *high = 0;
    for (int64_t i = p->query; i < p->query + p->queries; i++) {
        struct attn_row row = {.head = p->head, .query = i};
        attn_mask_rows(d, p->batch, &row, 1);
        for (int64_t j = from; j < to; j++)
            if (j >= row.low && j < row.high) pairs++, *low = j < *low ? j : *low, *high = j >= *high ? j + 1 : *high;
    }
    return (double)(pairs * p->heads * 2 * (d->dim + d->value_dim));
}

/* The first thread that is free takes the piece. */
static void give(double *threads, int64_t n, double cost)
{
    int64_t first = 0;
    for (int64_t t = 1; t < n; t++) first = threads[t] < threads[first] ? t : first;
    threads[first] += cost;
}

static double longest(double *threads, int64_t n)
{
    double most = 0;
    for (int64_t t = 0; t < n; t++) most = threads[t] > most ? threads[t] : most, threads[t] = 0;
    return most;
}

struct counted {
    double  flop, longest, critical, walked; /* walked: keys of all tasks, times their heads' one key head */
    int64_t units, waves;
};

static struct counted play_slowly(const struct attn_plan *plan)
{
    const attn_desc *d = &plan->d;
    struct counted   c = {0};
    double           walk[MOST_THREADS] = {0}, fold[MOST_THREADS] = {0};
    int64_t          low, high, in_wave = 0, from_task = 0, last = -1;
    for (int64_t task = 0; task < plan->tasks; task++) {
        const struct attn_place p = attn_plan_place(plan, task);
        double                  all = count(d, &p, 0, d->keys, &low, &high);
        c.flop += all;
        if (low < high) c.walked += (double)(high - low);
        if (!plan->wave) {
            c.longest = all > c.longest ? all : c.longest;
            give(walk, plan->slots, all);
            continue;
        }
        const double one = 8 * (double)(p.heads * p.queries * (d->value_dim + 2));
        for (int64_t j = low < high ? low / ATTN_CHUNK * ATTN_CHUNK : high; j < high; j += ATTN_CHUNK) {
            if (in_wave == plan->wave) {
                if (last >= 0) give(fold, plan->slots, (double)from_task * one);
                c.critical += longest(walk, plan->slots) + longest(fold, plan->slots);
                in_wave = from_task = 0, c.waves++;
            }
            int64_t unit_low, unit_high;
            double  flop = count(d, &p, j, j + ATTN_CHUNK < high ? j + ATTN_CHUNK : high, &unit_low, &unit_high);
            c.longest = flop > c.longest ? flop : c.longest;
            give(walk, plan->slots, flop);
            last = task, in_wave++, from_task++, c.units++;
        }
        give(fold, plan->slots, (double)from_task * one);
        from_task = 0;
    }
    c.waves += in_wave > 0;
    c.critical += longest(walk, plan->slots) + longest(fold, plan->slots);
    return c;
}

static void set_pointers_null(attn_desc *d)
{
    d->q.data = d->k.data = d->v.data = d->allow.data = d->bias.data = d->alibi.data = d->sink.data = NULL;
    d->out.data = d->lse.data = d->weights.data = NULL;
}

/* Each query of each head belongs to one task. */
static void check_cover(const struct attn_plan *plan)
{
    const attn_desc *d = &plan->d;
    int64_t          size = d->batch * d->heads * d->queries, group = d->heads ? d->heads / d->kv_heads : 1;
    unsigned char   *seen = calloc((size_t)size + 1, 1);
    for (int64_t task = 0; task < plan->tasks; task++) {
        const struct attn_place p = attn_plan_place(plan, task);
        assert_true(p.heads >= 1 && p.queries >= 1 && p.heads * p.queries <= plan->kernel->rows);
        for (int64_t h = p.head; h < p.head + p.heads; h++)
            for (int64_t i = p.query; i < p.query + p.queries; i++) {
                assert_int_equal(h / group, p.group_head);
                assert_true(p.batch < d->batch && h < d->heads && i < d->queries);
                assert_int_equal(seen[(p.batch * d->heads + h) * d->queries + i]++, 0);
            }
    }
    for (int64_t at = 0; at < size; at++) assert_int_equal(seen[at], 1);
    free(seen);
}

static void check_described(attn_desc *d)
{
    const attn_plan_info   info = describe_plan(d);
    const struct attn_plan plan = plan_of(d);
    const struct counted   c = play_slowly(&plan);
    const double           key = (double)((d->dim + d->value_dim) * (int64_t)attn_dtype_bytes(d->q.dtype));
    size_t                 bytes;
    check_cover(&plan);
    assert_int_equal(attn_work_bytes(d, &bytes, NULL), ATTN_OK);
    assert_int_equal(info.work_bytes, bytes);
    assert_string_equal(info.kernel, plan.kernel->name);
    assert_string_equal(info.isa, plan.kernel->isa);
    assert_int_equal(info.tasks, plan.tasks);
    assert_int_equal(info.threads, plan.slots);
    assert_int_equal(info.units, c.units);
    assert_int_equal(info.waves, c.waves);
    assert_true(info.flop == c.flop);
    assert_true(info.pairs * 2 * (double)(d->dim + d->value_dim) == c.flop);
    assert_true(info.longest_flop == c.longest);
    assert_true(info.critical_flop == c.critical);
    assert_true(info.speedup == (c.critical > 0 ? c.flop / c.critical : 1));
    if (!plan.tasks) return;
    double moved = 0, rows = (double)(d->batch * d->heads * d->queries);
    rows *= (double)(d->dim * (int64_t)attn_dtype_bytes(d->q.dtype) + d->value_dim * (int64_t)attn_dtype_bytes(d->out.dtype));
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t                 low, high;
        const struct attn_place all = {.batch = b, .heads = 1, .queries = d->queries};
        count(d, &all, 0, d->keys, &low, &high);
        if (low < high) moved += (double)(d->kv_heads * (high - low)) * key;
    }
    assert_true(info.moved_bytes == rows + moved);
    assert_true(info.walked_bytes == rows + c.walked * key);
}

static void random_problems_count_right(void **state)
{
    (void)state;
    for (int64_t at = 0; at < test_count(300); at++) {
        rng     r = rng_make("plan", at);
        problem p;
        problem_random(&p, &r, WITH_EMPTY | WITH_LONG);
        attn_executor x = {NULL, NULL, (int32_t)rng_range(&r, 1, MOST_THREADS), 0};
        p.d.executor = rng_percent(&r, 80) ? &x : NULL;
        set_pointers_null(&p.d);
        report_faults(&p.d);
        for (int i = 0; attn_isa_name(i); i++)
            if (attn_isa_usable(i)) p.d.isa = attn_isa_name(i), check_described(&p.d);
        report_faults(NULL);
        problem_free(&p);
    }
}

/* Few queries, windows of every kind, many keys: waves that end inside a task; positions far outside. */
static void long_and_far(void **state)
{
    (void)state;
    static const int64_t far[] = {INT64_C(1) << 62, -(INT64_C(1) << 62), 0, 5000, -40, 3};
    static const int64_t bounds[] = {INT64_MAX, INT64_C(1) << 62, (INT64_C(1) << 62) - 3000, 4000, 100, 1, 0, -1};
    for (int64_t at = 0; at < test_count(300); at++) {
        rng           r = rng_make("far", at);
        attn_desc     d = square(4, 2, rng_range(&r, 1, 150), rng_range(&r, 2000, 9000), 4);
        attn_executor x = {NULL, NULL, (int32_t)rng_range(&r, 1, MOST_THREADS), 0};
        int64_t       offset = rng_pick(&r, far, 6) + rng_range(&r, -3, 3);
        if (offset > far[0]) offset = far[0];
        if (offset < far[1]) offset = far[1];
        d.executor = &x, d.query_offset = &offset, d.causal = rng_percent(&r, 40), d.window = rng_percent(&r, 80);
        if (d.window) d.window_left = rng_pick(&r, bounds, 8), d.window_right = rng_pick(&r, bounds, 8);
        report_faults(&d);
        check_described(&d);
        report_faults(NULL);
    }
}

/* ---- what a person would expect ---------------------------------------------------------------------------------------------------- */

/* One decoding step of 8 key heads: 8 tasks, which 16 threads cut at key 2048. */
static void decoding_is_shared(void **state)
{
    (void)state;
    attn_desc     d = square(32, 8, 1, 4096, 128);
    attn_executor x = {NULL, NULL, 1, 0};
    d.executor = &x;
    attn_plan_info info = describe_plan(&d);
    assert_int_equal(info.tasks, 8);
    assert_int_equal(info.block_heads, 4);
    assert_int_equal(info.units, 0);
    assert_true(info.speedup == 1 && info.pairs == 32 * 4096 && info.flop == 32.0 * 4096 * 512);
    assert_true(info.moved_bytes == 4 * (2.0 * 32 * 128 + 2.0 * 8 * 4096 * 128));
    x.width = 16;
    info = describe_plan(&d);
    assert_int_equal(info.units, 16);
    assert_int_equal(info.waves, 1);
    assert_true(info.speedup > 15.5 && info.speedup <= 16);
    d = square(32, 8, 1, 32768, 128);
    d.executor = &x;
    info = describe_plan(&d);
    assert_int_equal(info.units, 128);
    assert_int_equal(info.waves, 2);
}

static double pairs_of(const struct attn_plan *plan, int64_t task)
{
    const struct attn_place p = attn_plan_place(plan, task);
    return attn_mask_pairs(&plan->d, p.batch, p.query, p.queries, 0, plan->d.keys);
}

/* Alone, a head's tasks come longest first; the one block that is not full may stand anywhere. */
static void longest_first(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        attn_desc     d = square(1, 1, 2000, 2000, 64);
        attn_executor x = {NULL, NULL, 16, 0};
        d.executor = &x, d.causal = way == 0;
        if (way == 1) d.window = 1, d.window_left = 10, d.window_right = -1;
        if (way == 2) d.window = 1, d.window_left = -1, d.window_right = 300;
        const struct attn_plan plan = plan_of(&d);
        double                 before = 1e300;
        assert_true(plan.tasks > 30);
        for (int64_t task = 0; task < plan.tasks; task++) {
            if (attn_plan_place(&plan, task).queries < plan.block_queries) continue;
            assert_true(pairs_of(&plan, task) <= before);
            before = pairs_of(&plan, task);
        }
        assert_true(describe_plan(&d).speedup > 0.85 * 16);
    }
}

/* One thread does not jump between heads, whose keys would not stay in its cache. */
static void one_thread_stays_with_its_head(void **state)
{
    (void)state;
    attn_desc d = square(6, 3, 1000, 1000, 64);
    d.causal = 1;
    const struct attn_plan plan = plan_of(&d);
    int64_t                changes = 0;
    for (int64_t task = 1; task < plan.tasks; task++) changes += attn_plan_place(&plan, task).head != attn_plan_place(&plan, task - 1).head;
    assert_int_equal(changes, 5);
}

/* What a task prepares for is the next one that has queries. */
static void padding_is_passed_over(void **state)
{
    (void)state;
    const int64_t counts[] = {60, 0, 120};
    attn_desc     d = square(2, 1, 120, 120, 64);
    d.batch = 3, d.query_count = counts;
    const struct attn_plan plan = plan_of(&d);
    for (int64_t task = 0; task + 1 < plan.tasks; task++) {
        const struct attn_place next = attn_plan_next(&plan, task);
        int64_t                 at = task + 1;
        while (at + 1 < plan.tasks && attn_plan_place(&plan, at).query >= counts[attn_plan_place(&plan, at).batch]) at++;
        const struct attn_place want = attn_plan_place(&plan, at);
        assert_true(next.batch == want.batch && next.head == want.head && next.query == want.query);
    }
}

/* ---- the shapes of the bench -------------------------------------------------------------------------------------------------------- */

static void no_shape_of_the_bench_leaves_threads_idle(void **state)
{
    (void)state;
    struct row *rows;
    int         n = bench_rows("bench/shapes.txt", &rows), judged = 0;
    for (int at = 0; at < n; at++) {
        const struct row *row = &rows[at];
        if (!strcmp(row->group, "overhead") || !strcmp(row->group, "quick")) continue; /* too small to share */
        int64_t      *lengths = malloc((size_t)row->batch * sizeof *lengths);
        attn_executor x = {NULL, NULL, BUSY, 0};
        attn_desc     d = square(row->heads, row->kv_heads, row->queries, row->keys, row->dim);
        d.batch = row->batch, d.q.dtype = d.k.dtype = d.v.dtype = d.out.dtype = row->dtype, d.executor = &x;
        if (row->mask == MASK_CAUSAL || row->mask == MASK_WINDOW || row->mask == MASK_PADDING_CAUSAL) d.causal = 1, d.align = 1;
        if (row->mask == MASK_WINDOW) d.window = 1, d.window_left = row->window - 1, d.window_right = -1;
        for (int64_t b = 0; b < row->batch; b++) lengths[b] = row_length(row, b);
        if (row->mask == MASK_PADDING || row->mask == MASK_PADDING_CAUSAL) d.query_count = d.key_count = lengths;
        for (int i = 0; attn_isa_name(i); i++) {
            if (!attn_isa_usable(i)) continue;
            d.isa = attn_isa_name(i);
            const attn_plan_info info = describe_plan(&d);
            assert_true(info.flop == bench_flop(row));
            if (info.speedup < 0.9 * BUSY) fail_msg("%s on %s: %g times with %d threads", row->name, d.isa, info.speedup, BUSY);
            judged++;
        }
        free(lengths);
    }
    free(rows);
    assert_true(judged >= 100);
}

/* ---- sizes and callers -------------------------------------------------------------------------------------------------------------- */

/* Beyond 2^20 pieces nothing is played through: at once, and on the safe side. */
static void huge_shapes_are_bounded(void **state)
{
    (void)state;
    static const int64_t queries[] = {INT64_C(1) << 40, INT64_C(1) << 31, 1, 1 << 14};
    for (int i = 0; i < 4; i++) {
        attn_desc     d = square(32, 8, queries[i], INT64_C(1) << 40, 128);
        attn_executor x = {NULL, NULL, 256, 0};
        clock_t       begin = clock();
        memset(d.q.stride, 0, sizeof d.q.stride), memset(d.k.stride, 0, sizeof d.k.stride), d.v = d.k;
        d.value_dim = 1, memset(d.out.stride, 0, sizeof d.out.stride), d.out.stride[1] = queries[i], d.out.stride[2] = 1;
        d.executor = &x, d.causal = i % 2, d.align = i % 2 ? ATTN_ALIGN_BOTTOM_RIGHT : 0;
        const attn_plan_info info = describe_plan(&d);
        assert_true(info.speedup > 0.7 * 256 && info.speedup <= 256);
        assert_true(info.flop > 1e12 && info.longest_flop * 256 < info.flop);
        assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 2);
    }
}

static void old_and_new_callers(void **state)
{
    (void)state;
    attn_desc    d = square(2, 2, 5, 5, 4);
    attn_error   e;
    const size_t whole = sizeof(attn_plan_info);
    struct {
        attn_plan_info info;
        unsigned char  more[16];
    } later;
    assert_int_equal(attn_plan_describe(&d, NULL, &e), ATTN_E_ARGUMENT);
    assert_non_null(strstr(e.message, "attn_plan_info is NULL"));
    assert_int_equal(attn_plan_describe(NULL, &later.info, &e), ATTN_E_ARGUMENT);
    memset(&later, 0xFF, sizeof later);
    for (size_t size = 0; size < whole; size += 8) {
        later.info.size = size;
        assert_int_equal(attn_plan_describe(&d, &later.info, &e), ATTN_E_ARGUMENT);
        assert_non_null(strstr(e.message, "attn_plan_info.size"));
    }
    assert_int_equal(later.info.tasks, -1); /* nothing was written */
    later.info.size = whole + 8;            /* a later version's caller: what is not known here is 0 */
    assert_int_equal(attn_plan_describe(&d, &later.info, &e), ATTN_OK);
    assert_int_equal(later.info.size, whole + 8);
    assert_int_equal(later.info.tasks, 2);
    for (int i = 0; i < 16; i++) assert_int_equal(later.more[i], i < 8 ? 0 : 0xFF);
    d.heads = 3;
    assert_int_equal(attn_plan_describe(&d, &later.info, &e), ATTN_E_ARGUMENT);
    assert_non_null(strstr(e.message, "kv_heads"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_problems_count_right),
        cmocka_unit_test(long_and_far),
        cmocka_unit_test(decoding_is_shared),
        cmocka_unit_test(longest_first),
        cmocka_unit_test(one_thread_stays_with_its_head),
        cmocka_unit_test(padding_is_passed_over),
        cmocka_unit_test(no_shape_of_the_bench_leaves_threads_idle),
        cmocka_unit_test(huge_shapes_are_bounded),
        cmocka_unit_test(old_and_new_callers),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
