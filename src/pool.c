/* pool.c: worker threads and parallel-for.
 * SPDX-License-Identifier: MIT
 *
 * Callers put a job into the pool's list and take indices of it themselves; workers take indices of any job in the list. A caller returns when all
 * indices of its job have been done, so calls that share a pool can neither starve nor block each other: in the worst case a caller does its job alone.
 *
 * Whoever waits looks at one atomic number for a while before it sleeps, for waking a thread takes longer than a small call. The numbers are only
 * hints: what counts is looked at again with the lock held, before sleeping too, so that nobody sleeps through a change. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum {
    SPIN_NANOSECONDS = 50000, /* a few times what waking a thread takes */
    SPIN_TRIES = 64           /* for the lock, which is held for less than a microsecond */
};

struct job {
    struct job *next;
    void (*body)(void *arg, int32_t index);
    void           *arg;
    int32_t         count, taken;
    _Atomic int32_t done;
};

struct attn_pool {
    attn_executor   executor;
    pthread_mutex_t lock;
    pthread_cond_t  work, finished;
    struct job     *jobs;  /* those with indices left */
    pid_t           owner; /* the process that has the threads */
    _Atomic int32_t open;  /* how many jobs are in the list; at the end one more */
    int32_t         stop, started, asleep, spins;
    pthread_t       threads[];
};

/* ---- waiting ----------------------------------------------------------------------------------------------------------------------- */

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Where threads outnumber CPUs, one that spins would take the CPU from the one it waits for. */
static int32_t cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return (int32_t)sysconf(_SC_NPROCESSORS_ONLN); /* more than a cpu_set_t has */
}

/* The lock; a sleep would cost more than all that is done under it. */
static void acquire(struct attn_pool *pool)
{
    for (int i = 0; pool->spins && i < SPIN_TRIES; i++) {
        if (pthread_mutex_trylock(&pool->lock) == 0) return;
        for (int k = 0; k < 4; k++) pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
}

/* With the lock held, which is let go meanwhile: until *number has got to `wanted`, or the time is over. A thread that was just woken may sit on the CPU
 * of the one that woke it, which then cannot go on before this one yields. */
static void watch(struct attn_pool *pool, const _Atomic int32_t *number, int32_t wanted)
{
    if (!pool->spins) return;
    pthread_mutex_unlock(&pool->lock);
    for (int64_t end = nanoseconds() + SPIN_NANOSECONDS; nanoseconds() < end; sched_yield()) {
        for (int i = 0; i < 32 && atomic_load_explicit(number, memory_order_acquire) < wanted; i++) pause_briefly();
        if (atomic_load_explicit(number, memory_order_acquire) >= wanted) break;
    }
    acquire(pool);
}

/* ---- working ----------------------------------------------------------------------------------------------------------------------- */

/* With the lock held: does one index of the job; the job leaves the list with its last index. */
static void do_one(struct attn_pool *pool, struct job *job)
{
    int32_t index = job->taken++;
    if (job->taken == job->count) {
        struct job **at = &pool->jobs;
        while (*at != job) at = &(*at)->next;
        *at = job->next;
        pool->open--;
    }
    pthread_mutex_unlock(&pool->lock);
    job->body(job->arg, index);
    acquire(pool);
    if (++job->done == job->count) pthread_cond_broadcast(&pool->finished); /* its caller needs the lock to go on, and so to end the job */
}

static void *worker(void *arg)
{
    struct attn_pool *pool = arg;
    acquire(pool);
    while (!pool->stop) {
        if (!pool->jobs) watch(pool, &pool->open, 1);
        if (pool->jobs)
            do_one(pool, pool->jobs);
        else if (!pool->stop) {
            pool->asleep++;
            pthread_cond_wait(&pool->work, &pool->lock);
            pool->asleep--;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

static void parallel_for(void *context, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    struct attn_pool *pool = context;
    if (getpid() != pool->owner) { /* after a fork: no threads here, and the lock may be held for ever */
        for (int32_t i = 0; i < count; i++) body(arg, i);
        return;
    }
    struct job job = {0, body, arg, count, 0, 0};
    if (count < 1) return;
    acquire(pool);
    struct job **end = &pool->jobs;
    while (*end) end = &(*end)->next;
    *end = &job;
    pool->open++;
    /* no more threads than there is work for; those that spin come by themselves, and may leave one too many to be woken */
    if (pool->asleep > count - 1)
        for (int32_t i = 1; i < count; i++) pthread_cond_signal(&pool->work);
    else if (pool->asleep)
        pthread_cond_broadcast(&pool->work);
    while (job.taken < count) do_one(pool, &job);
    if (job.done < count) watch(pool, &job.done, count);
    while (job.done < count) pthread_cond_wait(&pool->finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- the pool ---------------------------------------------------------------------------------------------------------------------- */

ATTN_API attn_pool *attn_pool_new(int32_t threads, attn_error *error)
{
    attn_fail(error, ATTN_OK, "%s", "");
    if (threads < 1 || threads > 1024) {
        attn_fail(error, ATTN_E_ARGUMENT, "threads is %d, and must be from 1 to 1024", threads);
        return 0;
    }
    struct attn_pool *pool = malloc(sizeof *pool + (size_t)threads * sizeof pool->threads[0]);
    if (!pool) {
        attn_fail(error, ATTN_E_MEMORY, "no memory for a pool of %d threads", threads);
        return 0;
    }
    pool->executor = (attn_executor){parallel_for, pool, threads, 0};
    pool->jobs = 0;
    pool->owner = getpid();
    pool->open = 0;
    pool->stop = pool->started = pool->asleep = 0;
    pool->spins = threads <= cpus();
    pthread_mutex_init(&pool->lock, 0);
    pthread_cond_init(&pool->work, 0);
    pthread_cond_init(&pool->finished, 0);
    sigset_t all, before; /* the embedder's signals are for the embedder's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->started < threads - 1 && pthread_create(&pool->threads[pool->started], 0, worker, pool) == 0) pool->started++;
    pthread_sigmask(SIG_SETMASK, &before, 0);
    if (pool->started < threads - 1) {
        attn_fail(error, ATTN_E_THREAD, "thread %d of %d could not be started", pool->started + 1, threads - 1);
        attn_pool_free(pool);
        return 0;
    }
    return pool;
}

ATTN_API void attn_pool_free(attn_pool *pool)
{
    if (!pool) return;
    if (getpid() == pool->owner) {
        acquire(pool);
        pool->stop = 1;
        pool->open++;
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
        for (int32_t i = 0; i < pool->started; i++) pthread_join(pool->threads[i], 0);
        pthread_cond_destroy(&pool->finished);
        pthread_cond_destroy(&pool->work);
        pthread_mutex_destroy(&pool->lock);
    }
    free(pool);
}

ATTN_API const attn_executor *attn_pool_executor(const attn_pool *pool)
{
    return pool ? &pool->executor : 0;
}
