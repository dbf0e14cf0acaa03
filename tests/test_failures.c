/* test_failures.c: each allocation and each thread start of the library fails in turn: the code says so, nothing leaks, nothing is written.
 * SPDX-License-Identifier: MIT
 *
 * Linked with -Wl,--wrap for malloc, calloc, realloc, aligned_alloc, posix_memalign and pthread_create, so the library's calls come by here.
 */
#include "support.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

/* ---- what fails ------------------------------------------------------------------------------------------------------------------------------ */

static int     armed;    /* only the library's calls count, not the test's own */
static int64_t fail_at;  /* the allocation that fails, counted from 0; -1: none */
static int64_t done;     /* allocations so far */
static int64_t start_at; /* the thread start that fails; -1: none */
static int64_t started;

static int fails(void)
{
    return armed && done++ == fail_at;
}

#include "failing.h"

void *__real_aligned_alloc(size_t alignment, size_t size);
int   __real_posix_memalign(void **to, size_t alignment, size_t size);
int   __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *arg);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int   __wrap_posix_memalign(void **to, size_t alignment, size_t size);
int   __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *arg);

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails() ? NULL : __real_aligned_alloc(alignment, size);
}

int __wrap_posix_memalign(void **to, size_t alignment, size_t size)
{
    return fails() ? ENOMEM : __real_posix_memalign(to, alignment, size);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *arg)
{
    return armed && started++ == start_at ? EAGAIN : __real_pthread_create(thread, how, body, arg);
}

static void arm(int64_t allocation, int64_t start)
{
    fail_at = allocation, start_at = start, done = started = 0, armed = 1;
}

/* ---- the operator ------------------------------------------------------------------------------------------------------------------------------ */

enum { N = 40, C = 8 };

static float q[N * C], k[N * C], v[N * C], out[N * C];

static attn_desc call(const attn_executor *executor)
{
    attn_desc d = attn_desc_new();
    d.batch = d.heads = d.kv_heads = 1, d.queries = d.keys = N, d.dim = d.value_dim = C, d.causal = 1;
    d.q = attn_in_dense(q, ATTN_F32, 1, N, C), d.k = attn_in_dense(k, ATTN_F32, 1, N, C), d.v = attn_in_dense(v, ATTN_F32, 1, N, C);
    d.out = attn_out_dense(out, ATTN_F32, 1, N, C);
    d.executor = executor;
    memset(out, 0xA5, sizeof out);
    return d;
}

static int out_touched(void)
{
    for (size_t at = 0; at < sizeof out; at++)
        if (((unsigned char *)out)[at] != 0xA5) return 1;
    return 0;
}

static void run_without_memory(void **state)
{
    (void)state;
    int64_t failures = 0;
    for (int way = 0; way < 2; way++)
        for (int64_t at = 0;; at++) {
            attn_error e;
            attn_desc  d = call(way ? &executor_forward : NULL);
            arm(at, -1);
            int32_t code = attn_run(&d, &e);
            armed = 0;
            if (done <= at) { /* it needed fewer: the last one could not fail */
                assert_int_equal(code, ATTN_OK);
                break;
            }
            failures++;
            assert_int_equal(code, ATTN_E_MEMORY);
            assert_int_equal(e.status, code);
            assert_true(strlen(e.message) > 10);
            assert_false(out_touched());
        }
    assert_true(failures >= 2); /* or the wrap has not reached the library */
}

/* With work given nothing is allocated: the header promises it, and that MEMORY cannot come back then. */
static void work_means_no_allocation(void **state)
{
    (void)state;
    attn_pool           *pool = attn_pool_new(3, NULL);
    const attn_executor *ways[] = {NULL, &executor_backward, attn_pool_executor(pool)};
    for (int isa = 0; attn_isa_name(isa); isa++)
        for (int way = 0; way < 3 && attn_isa_usable(isa); way++) {
            attn_desc d = call(ways[way]);
            float     lse[N], weights[N * N];
            d.lse = attn_out_dense(lse, ATTN_F32, 1, N, 1), d.lse.stride[3] = 0;
            d.weights = attn_out_dense(weights, ATTN_F32, 1, N, N);
            d.isa = attn_isa_name(isa);
            size_t bytes;
            arm(-1, -1);
            assert_int_equal(attn_work_bytes(&d, &bytes, NULL), ATTN_OK);
            assert_int_equal(done, 0);
            d.work = __real_malloc(bytes), d.work_bytes = bytes;
            arm(-1, -1);
            int32_t code = attn_run(&d, NULL);
            armed = 0;
            assert_int_equal(code, ATTN_OK);
            assert_int_equal(done, 0);
            assert_int_equal(started, 0);
            free(d.work);
        }
    attn_pool_free(pool);
}

/* The way back allocates its work and nothing else, and nothing when that is given. */
static void backward_without_memory(void **state)
{
    (void)state;
    static float       lse[N], d_q[N * C];
    attn_desc          d = call(&executor_forward);
    attn_backward_desc g = attn_backward_desc_new();
    attn_error         e;
    d.lse = attn_out_dense(lse, ATTN_F32, 1, N, 1), d.lse.stride[3] = 0;
    assert_int_equal(attn_run(&d, NULL), ATTN_OK);
    g.out = g.d_out = attn_in_dense(out, ATTN_F32, 1, N, C);
    g.lse = attn_in_dense(lse, ATTN_F32, 1, N, 1), g.lse.stride[3] = 0;
    g.dq = attn_out_dense(d_q, ATTN_F32, 1, N, C);
    arm(0, -1);
    int32_t code = attn_backward(&d, &g, &e);
    armed = 0;
    assert_int_equal(code, ATTN_E_MEMORY);
    assert_int_equal(e.status, code);
    for (int i = 0; i < N * C; i++) assert_true(d_q[i] == 0);
    assert_int_equal(attn_backward_work_bytes(&d, &g, &g.work_bytes, NULL), ATTN_OK);
    g.work = __real_malloc(g.work_bytes);
    arm(0, -1);
    code = attn_backward(&d, &g, &e);
    armed = 0;
    assert_int_equal(code, ATTN_OK);
    assert_int_equal(done, 0);
    free(g.work);
}

static void merge_and_check_allocate_nothing(void **state)
{
    (void)state;
    float   a[2] = {1, 2}, lse[1] = {0}, slopes[5];
    attn_in part_out = attn_in_dense(a, ATTN_F32, 1, 1, 2), part_lse = attn_in_strided(lse, ATTN_F32, (const int64_t[]){0, 0, 0, 0});
    attn_merge_desc m = attn_merge_desc_new();
    attn_desc       d = call(NULL);
    m.batch = m.heads = m.queries = m.parts = 1, m.value_dim = 2, m.part_out = &part_out, m.part_lse = &part_lse;
    m.out = attn_out_dense(out, ATTN_F32, 1, 1, 2);
    arm(-1, -1);
    int32_t codes = attn_merge(&m, NULL) | attn_check(&d, NULL) | attn_alibi_slopes(5, slopes, NULL);
    d.align = 7;
    codes |= attn_run(&d, NULL) != ATTN_E_ARGUMENT;
    armed = 0;
    assert_int_equal(codes, 0);
    assert_int_equal(done, 0);
}

static void pools_without_memory_or_threads(void **state)
{
    (void)state;
    int64_t memory = 0, threads = 0;
    for (int64_t at = 0;; at++) {
        attn_error e;
        arm(at, -1);
        attn_pool *pool = attn_pool_new(4, &e);
        armed = 0;
        attn_pool_free(pool);
        if (done <= at) {
            assert_non_null(pool);
            break;
        }
        memory++;
        assert_null(pool);
        assert_int_equal(e.status, ATTN_E_MEMORY);
        assert_true(strlen(e.message) > 10);
    }
    for (int64_t at = 0;; at++) {
        attn_error e;
        arm(-1, at);
        attn_pool *pool = attn_pool_new(4, &e);
        armed = 0;
        attn_pool_free(pool);
        if (started <= at) {
            assert_non_null(pool);
            break;
        }
        threads++;
        assert_null(pool);
        assert_int_equal(e.status, ATTN_E_THREAD);
        assert_true(strlen(e.message) > 10);
    }
    assert_true(memory >= 1);
    assert_int_equal(threads, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_without_memory),
        cmocka_unit_test(work_means_no_allocation),
        cmocka_unit_test(merge_and_check_allocate_nothing),
        cmocka_unit_test(backward_without_memory),
        cmocka_unit_test(pools_without_memory_or_threads),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("failures", tests, NULL, NULL);
}
