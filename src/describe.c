/* describe.c: what a plan costs, from the plan alone: work, the longest way through it, bytes.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "internal.h"

enum {
    MOST_PIECES = 1 << 20, /* with more of them the ends of the last hardly matter: bounds, in place of playing */
    FOLD_FLOP = 8          /* per number folded: two loads and a store for three operations */
};

/* Threads that take pieces from one list: when each is free again, as a heap, the first of them on top. */
struct crew {
    double *free_at, last;
    int64_t threads;
};

static void take(struct crew *c, double cost)
{
    const double end = c->free_at[0] + cost;
    int64_t      at = 0;
    for (int64_t child; (child = 2 * at + 1) < c->threads; at = child) {
        child += child + 1 < c->threads && c->free_at[child + 1] < c->free_at[child];
        if (end <= c->free_at[child]) break;
        c->free_at[at] = c->free_at[child];
    }
    c->free_at[at] = end;
    c->last = end > c->last ? end : c->last;
}

/* All wait for the last. Returns how long the list took. */
static double wait(struct crew *c)
{
    double last = c->last;
    for (int64_t i = 0; i < c->threads; i++) c->free_at[i] = 0;
    c->last = 0;
    return last;
}

static double flop_of(const struct attn_plan *plan, const struct attn_place *p, int64_t from, int64_t to)
{
    return 2 * ((double)plan->d.dim + (double)plan->d.value_dim) * (double)p->heads *
           attn_mask_pairs(&plan->d, p->batch, p->query, p->queries, from, to);
}

static void hand(struct crew *c, double flop, attn_plan_info *info)
{
    if (flop > info->longest_flop) info->longest_flop = flop;
    take(c, flop);
}

/* The run as exec.c does it: waves of chunks, each folded when all of it has been walked. */
static void play_waves(const struct attn_plan *plan, struct crew *walk, struct crew *fold, attn_plan_info *info)
{
    for (int64_t task = 0; task < plan->tasks; task++) {
        const struct attn_place p = attn_plan_place(plan, task);
        const double            one = FOLD_FLOP * (double)(p.heads * p.queries) * ((double)plan->d.value_dim + 2);
        int64_t                 low, high, parts = 0;
        attn_mask_span(&plan->d, p.batch, p.query, p.queries, &low, &high);
        for (int64_t chunk = low / ATTN_CHUNK; chunk * ATTN_CHUNK < high; chunk++, parts++) {
            if (info->units && info->units % plan->wave == 0) {
                take(fold, (double)parts * one), parts = 0;
                info->critical_flop += wait(walk) + wait(fold);
            }
            hand(walk, flop_of(plan, &p, chunk * ATTN_CHUNK, (chunk + 1) * ATTN_CHUNK), info);
            info->units++;
        }
        take(fold, (double)parts * one);
    }
    info->critical_flop += wait(walk) + wait(fold);
    info->waves = (info->units + plan->wave - 1) / plan->wave;
}

static int play(const struct attn_plan *plan, attn_plan_info *info)
{
    double     *clocks = calloc((size_t)plan->slots, 2 * sizeof *clocks);
    struct crew walk = {clocks, 0, plan->slots}, fold = {clocks + plan->slots, 0, plan->slots};
    if (!clocks) return 0;
    if (plan->wave)
        play_waves(plan, &walk, &fold, info);
    else {
        for (int64_t task = 0; task < plan->tasks; task++) {
            const struct attn_place p = attn_plan_place(plan, task);
            hand(&walk, flop_of(plan, &p, 0, plan->d.keys), info);
        }
        info->critical_flop = wait(&walk);
    }
    free(clocks);
    return 1;
}

/* For very many pieces: nobody is idle before the last ones are handed out, in each wave. */
static void bound(const struct attn_plan *plan, int64_t pieces, attn_plan_info *info)
{
    const int64_t keys = plan->wave && plan->d.keys > ATTN_CHUNK ? ATTN_CHUNK : plan->d.keys;
    info->longest_flop =
        2 * ((double)plan->d.dim + (double)plan->d.value_dim) * (double)(plan->block_heads * plan->block_queries) * (double)keys;
    if (plan->wave) info->units = pieces, info->waves = (pieces + plan->wave - 1) / plan->wave;
    info->critical_flop = info->flop / (double)plan->slots + (double)(plan->wave ? info->waves : 1) * info->longest_flop;
}

/* Pairs and bytes of all batch entries. Where no list tells them apart, one stands for all. */
static void sum(const struct attn_plan *plan, attn_plan_info *info)
{
    const attn_desc *d = &plan->d;
    const int        lists = d->query_offset || d->query_count || d->key_count || d->key_start;
    const double     rows = (double)d->batch * (double)d->heads * (double)d->queries, times = lists ? 1 : (double)d->batch,
                 width = (double)attn_width(d->q.dtype), key = width * ((double)d->dim + (double)d->value_dim);
    info->moved_bytes = rows * ((double)d->dim * width + (double)d->value_dim * (double)attn_width(d->out.dtype));
    info->walked_bytes = info->moved_bytes;
    for (int64_t b = 0; b < (lists ? d->batch : 1); b++) {
        int64_t low, high;
        attn_mask_span(d, b, 0, d->queries, &low, &high);
        info->pairs += times * (double)d->heads * attn_mask_pairs(d, b, 0, d->queries, 0, d->keys);
        info->moved_bytes += times * (double)d->kv_heads * (double)(high - low) * key;
        info->walked_bytes += times * (double)(d->kv_heads * plan->head_blocks) * attn_mask_walk(d, b, plan->block_queries) * key;
    }
    info->flop = info->pairs * 2 * ((double)d->dim + (double)d->value_dim);
}

int attn_describe_plan(const struct attn_plan *plan, attn_plan_info *info)
{
    int64_t pieces = plan->tasks, chunks = (plan->d.keys + ATTN_CHUNK - 1) / ATTN_CHUNK;
    int     done = 1;
    info->kernel = plan->kernel->name;
    info->isa = plan->kernel->isa;
    info->threads = plan->slots;
    info->block_heads = plan->block_heads;
    info->block_queries = plan->block_queries;
    info->tasks = plan->tasks;
    info->work_bytes = plan->work_bytes;
    info->speedup = 1;
    if (!plan->tasks) return 1;
    sum(plan, info);
    if (plan->wave) pieces *= chunks; /* fewer than 4 tasks per thread */
    if (pieces > MOST_PIECES)
        bound(plan, pieces, info);
    else
        done = play(plan, info);
    if (info->critical_flop > 0) info->speedup = info->flop / info->critical_flop;
    return done;
}
