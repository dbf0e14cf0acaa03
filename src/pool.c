/* pool.c: worker threads and parallel-for.
 * SPDX-License-Identifier: MIT
 *
 * Callers put a job into the pool's list and take indices of it themselves; workers take indices of any job in the list. A caller returns when all
 * indices of its job have been done, so calls that share a pool can neither starve nor block each other: in the worst case a caller does its job alone. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

struct job {
    struct job *next;
    void (*body)(void *arg, int32_t index);
    void   *arg;
    int32_t count, taken, done;
};

struct attn_pool {
    attn_executor   executor;
    pthread_mutex_t lock;
    pthread_cond_t  work, finished;
    struct job     *jobs;  /* those with indices left */
    pid_t           owner; /* the process that has the threads */
    int32_t         stop, started;
    pthread_t       threads[];
};

/* With the lock held: does one index of the job; the job leaves the list with its last index. */
static void do_one(struct attn_pool *pool, struct job *job)
{
    int32_t index = job->taken++;
    if (job->taken == job->count) {
        struct job **at = &pool->jobs;
        while (*at != job) at = &(*at)->next;
        *at = job->next;
    }
    pthread_mutex_unlock(&pool->lock);
    job->body(job->arg, index);
    pthread_mutex_lock(&pool->lock);
    if (++job->done == job->count) pthread_cond_broadcast(&pool->finished);
}

static void *worker(void *arg)
{
    struct attn_pool *pool = arg;
    pthread_mutex_lock(&pool->lock);
    while (!pool->stop) {
        if (pool->jobs)
            do_one(pool, pool->jobs);
        else
            pthread_cond_wait(&pool->work, &pool->lock);
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
    pthread_mutex_lock(&pool->lock);
    struct job **end = &pool->jobs;
    while (*end) end = &(*end)->next;
    *end = &job;
    pthread_cond_broadcast(&pool->work);
    while (job.taken < count) do_one(pool, &job);
    while (job.done < count) pthread_cond_wait(&pool->finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

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
    pool->stop = pool->started = 0;
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
        pthread_mutex_lock(&pool->lock);
        pool->stop = 1;
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
