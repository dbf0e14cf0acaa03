/* test_threads.c: pools: shared by calls that run at the same time, made and freed in storms, carried through a fork.
 * SPDX-License-Identifier: MIT
 *
 * What the thread sanitizer runs.
 */
#define _GNU_SOURCE
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#if defined(__SANITIZE_THREAD__)
#define HAVE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAVE_TSAN 1
#endif
#endif

enum { CALLERS = 4, QUERIES = 150, KEYS = 150, DIM = 8, HEADS = 3, SIZE = HEADS * QUERIES * DIM };

static float q[SIZE], k[SIZE], v[SIZE], want[SIZE];

static attn_desc call(float *out, const attn_executor *executor)
{
    attn_desc d = attn_desc_new();
    d.batch = 1, d.heads = d.kv_heads = HEADS, d.queries = QUERIES, d.keys = KEYS, d.dim = d.value_dim = DIM, d.causal = 1;
    d.q = attn_in_dense(q, ATTN_F32, HEADS, QUERIES, DIM), d.k = attn_in_dense(k, ATTN_F32, HEADS, KEYS, DIM),
    d.v = attn_in_dense(v, ATTN_F32, HEADS, KEYS, DIM);
    d.out = attn_out_dense(out, ATTN_F32, HEADS, QUERIES, DIM);
    d.executor = executor;
    return d;
}

/* 1 if the call gives what one thread gives. */
static int right(const attn_executor *executor)
{
    float    *out = malloc(sizeof want);
    attn_desc d = call(out, executor);
    int       good = attn_run(&d, NULL) == ATTN_OK && !memcmp(out, want, sizeof want);
    free(out);
    return good;
}

static int set_up(void **state)
{
    rng r = rng_make("threads", 0);
    (void)state;
    for (int i = 0; i < SIZE; i++) q[i] = (float)rng_normal(&r), k[i] = (float)rng_normal(&r), v[i] = (float)rng_normal(&r);
    attn_desc d = call(want, NULL);
    return attn_run(&d, NULL) != ATTN_OK;
}

/* ---- the parallel loop itself ---------------------------------------------------------------------------------------------------------- */

static void count_index(void *arg, int32_t index)
{
    atomic_fetch_add(&((_Atomic int32_t *)arg)[index], 1);
}

static void every_index_once(void **state)
{
    (void)state;
    for (int32_t threads = 1; threads <= 6; threads++) {
        attn_error e;
        attn_pool *pool = attn_pool_new(threads, &e);
        assert_non_null(pool);
        assert_int_equal(e.status, ATTN_OK);
        assert_string_equal(e.message, "");
        const attn_executor *x = attn_pool_executor(pool);
        assert_int_equal(x->width, threads);
        assert_int_equal(x->reserved, 0);
        for (int32_t count = 0; count <= 3 * threads; count++) {
            _Atomic int32_t seen[32] = {0};
            x->parallel_for(x->context, count, count_index, seen);
            for (int32_t i = 0; i < 32; i++) assert_int_equal(seen[i], i < count);
        }
        attn_pool_free(pool);
    }
}

struct inner {
    const attn_executor *x;
    _Atomic int32_t      sum[8];
};

static void count_inner(void *arg, int32_t index)
{
    struct inner *t = arg;
    t->x->parallel_for(t->x->context, 8, count_index, t->sum);
    (void)index;
}

/* A loop inside a loop on the same pool ends: a caller does what nobody else does. */
static void loops_may_nest(void **state)
{
    (void)state;
    attn_pool   *pool = attn_pool_new(3, NULL);
    struct inner t = {attn_pool_executor(pool), {0}};
    t.x->parallel_for(t.x->context, 6, count_inner, &t);
    for (int i = 0; i < 8; i++) assert_int_equal(t.sum[i], 6);
    attn_pool_free(pool);
}

static void pools_refuse_and_forgive(void **state)
{
    (void)state;
    static const int32_t wrong[] = {0, -1, 1025, INT32_MIN, INT32_MAX};
    for (int i = 0; i < 5; i++) {
        attn_error e;
        char       number[16];
        assert_null(attn_pool_new(wrong[i], &e));
        assert_int_equal(e.status, ATTN_E_ARGUMENT);
        snprintf(number, sizeof number, "%d", wrong[i]);
        assert_non_null(strstr(e.message, "threads"));
        assert_non_null(strstr(e.message, number));
        assert_null(attn_pool_new(wrong[i], NULL));
    }
    attn_pool_free(NULL);
    assert_null(attn_pool_executor(NULL));
    assert_true(right(attn_pool_executor(NULL)));
}

/* Workers spin, then sleep: loops that come at any time of that are done, on any number of threads, with a CPU for each of them or not. */
static void loops_come_at_any_time(void **state)
{
    (void)state;
    rng       r = rng_make("gaps", 0);
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    for (int32_t threads = 2; threads <= 5; threads++)
        for (int narrow = 0; narrow < 2; narrow++) {
            assert_int_equal(sched_setaffinity(0, sizeof one, narrow ? &one : &all), 0);
            attn_pool           *pool = attn_pool_new(threads, NULL);
            const attn_executor *x = attn_pool_executor(pool);
            for (int64_t loop = 0; loop < test_count(1000); loop++) {
                _Atomic int32_t seen[8] = {0};
                int32_t         count = (int32_t)rng_range(&r, 1, 8);
                const long      gap = rng_percent(&r, 50) ? (long)rng_range(&r, 0, 120000) : 0;
                nanosleep(&(struct timespec){0, gap}, NULL);
                x->parallel_for(x->context, count, count_index, seen);
                for (int32_t i = 0; i < 8; i++) assert_int_equal(seen[i], i < count);
            }
            attn_pool_free(pool);
        }
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

/* A pool that is not used uses no CPU. */
static void idle_threads_sleep(void **state)
{
    (void)state;
    attn_pool           *pool = attn_pool_new(2, NULL);
    const attn_executor *x = attn_pool_executor(pool);
    _Atomic int32_t      seen[2] = {0};
    x->parallel_for(x->context, 2, count_index, seen);
    const clock_t before = clock();
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    assert_true(clock() - before < CLOCKS_PER_SEC / 20);
    attn_pool_free(pool);
}

/* ---- many callers ------------------------------------------------------------------------------------------------------------------------ */

struct caller {
    attn_pool *pool; /* NULL: makes its own, again and again */
    int        rounds, bad;
};

static void *callers_body(void *arg)
{
    struct caller *c = arg;
    for (int i = 0; i < c->rounds; i++) {
        attn_pool *own = c->pool ? NULL : attn_pool_new(1 + i % 4, NULL);
        c->bad += !(c->pool || own);
        c->bad += !right(attn_pool_executor(c->pool ? c->pool : own));
        attn_pool_free(own);
    }
    return NULL;
}

static void run_callers(attn_pool *pool, int rounds)
{
    pthread_t     threads[CALLERS];
    struct caller callers[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){pool, rounds, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, callers_body, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(callers[i].bad, 0);
    }
}

static void callers_share_a_pool(void **state)
{
    (void)state;
    for (int32_t threads = 1; threads <= 5; threads += 2) {
        attn_pool *pool = attn_pool_new(threads, NULL);
        assert_non_null(pool);
        run_callers(pool, (int)test_count(20));
        attn_pool_free(pool);
    }
}

static void pools_come_and_go(void **state)
{
    (void)state;
    run_callers(NULL, (int)test_count(20));
    for (int i = 0; i < test_count(200); i++) attn_pool_free(attn_pool_new(1 + i % 5, NULL)); /* freed before its threads have begun */
}

/* More threads than work, and more work than threads. */
static void widths_beyond_the_work(void **state)
{
    (void)state;
    attn_pool *pool = attn_pool_new(40, NULL);
    assert_non_null(pool);
    for (int i = 0; i < test_count(10); i++) assert_true(right(attn_pool_executor(pool)));
    attn_pool_free(pool);
}

/* ---- fork ---------------------------------------------------------------------------------------------------------------------------------- */

static atomic_int stop_noise;

static void *make_noise(void *arg)
{
    while (!atomic_load(&stop_noise)) right(attn_pool_executor(arg));
    return NULL;
}

/* In the child a pool has no threads: calls give the same result, freeing frees, nothing hangs; a lock may have been held at the fork. */
static void forks(void **state)
{
    (void)state;
    attn_pool *pool = attn_pool_new(3, NULL);
    pthread_t  noise;
    assert_non_null(pool);
    atomic_store(&stop_noise, 0);
    assert_int_equal(pthread_create(&noise, NULL, make_noise, pool), 0);
    for (int i = 0; i < test_count(20); i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            alarm(60); /* a hang is a failure */
            static float out[SIZE];
            static char  work[1 << 20];
            attn_desc    d = call(out, attn_pool_executor(pool));
            d.work = work, d.work_bytes = sizeof work;
            int bad = attn_run(&d, NULL) != ATTN_OK || memcmp(out, want, sizeof want) != 0;
            attn_pool_free(pool);
#ifndef HAVE_TSAN /* it does not follow threads that begin after a fork */
            attn_pool *own = attn_pool_new(2, NULL);
            d.executor = attn_pool_executor(own);
            memset(out, 0, sizeof out);
            bad |= !own || attn_run(&d, NULL) != ATTN_OK || memcmp(out, want, sizeof want) != 0;
            attn_pool_free(own);
#endif
            _exit(bad);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        assert_true(right(attn_pool_executor(pool))); /* the parent's goes on */
    }
    atomic_store(&stop_noise, 1);
    pthread_join(noise, NULL);
    attn_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_once),   cmocka_unit_test(loops_may_nest),           cmocka_unit_test(loops_come_at_any_time),
        cmocka_unit_test(idle_threads_sleep), cmocka_unit_test(pools_refuse_and_forgive), cmocka_unit_test(callers_share_a_pool),
        cmocka_unit_test(pools_come_and_go),  cmocka_unit_test(widths_beyond_the_work),   cmocka_unit_test(forks),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("threads", tests, set_up, NULL);
}
