/* exec.c: the tiling loop: a task is one block of queries, walking the keys that any of them sees.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "internal.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif
#ifdef HAVE_ASAN
#include <sanitizer/asan_interface.h>
#endif

/* A piece of a wave: one chunk of a task. */
struct unit {
    int64_t task, chunk;
};

enum { TASKS, CHUNKS, FOLDS }; /* what the threads share: whole tasks, or a wave's units, to be walked or folded */

struct run {
    const struct attn_plan *plan;
    char                   *work;
    int64_t                 what;
    const struct unit      *units;
    int64_t                 count, whole;
    _Atomic int64_t         next;
};

/* What the block, which sees the keys from low to high - 1, sees of one chunk, tile by tile, into block.part. */
static void walk_chunk(struct attn_task *t, int64_t chunk, int64_t low, int64_t high)
{
    const struct attn_plan *plan = t->plan;
    int64_t                 from = chunk * ATTN_CHUNK, to = from + ATTN_CHUNK;
    plan->kernel->begin(&t->block, &t->block.part);
    if (low > from) from = low / ATTN_TILE * ATTN_TILE;
    if (high < to) to = high;
    for (int64_t first = from; first < to; first += ATTN_TILE) {
        struct attn_tile tile;
        int64_t          n = to - first < ATTN_TILE ? to - first : ATTN_TILE;
        if (attn_task_tile(t, &tile, first, n, 1) == ATTN_SEES_NONE) continue;
        attn_task_values(t, &tile, first);
        attn_task_ahead(t, &tile, first, to);
        attn_dropout_tile(t, &tile, first);
        plan->kernel->step(&t->block, &tile);
    }
}

static struct attn_part part_at(const struct attn_plan *plan, char *at)
{
    return (struct attn_part){at, at + plan->at.top[0] - plan->at.o[0], at + plan->at.sum[0] - plan->at.o[0]};
}

/* All keys that the block sees, chunk by chunk, left to right. */
static void walk(struct attn_task *t)
{
    const struct attn_plan *plan = t->plan;
    struct attn_block      *b = &t->block;
    const struct attn_part  first = part_at(plan, t->slot + plan->at.o[0]), later = part_at(plan, t->slot + plan->at.o[1]);
    int64_t                 low, high;
    attn_task_span(t, &low, &high);
    int64_t chunk = low / ATTN_CHUNK;
    b->part = first;
    walk_chunk(t, chunk, low, high);
    for (b->part = later; ++chunk * ATTN_CHUNK < high;) {
        walk_chunk(t, chunk, low, high);
        plan->kernel->fold(b, &first);
    }
    b->part = first;
}

void attn_exec_weights(struct attn_task *t, const attn_out *to, const struct attn_convert *convert, int32_t stage, int64_t from,
                       int64_t count)
{
    const struct attn_plan *plan = t->plan;
    const attn_desc        *d = &plan->d;
    const int64_t           start = attn_key_start(d, t->batch);
    const double           *lse = (const double *)(t->slot + plan->at.lse);
    const int               masked = stage == ATTN_STAGE_WEIGHT || stage == ATTN_STAGE_BIASED;
    for (int64_t j = from; j < from + count; j += ATTN_TILE) {
        struct attn_tile tile;
        int64_t          n = from + count - j < ATTN_TILE ? from + count - j : ATTN_TILE;
        int32_t          sees = attn_task_tile(t, &tile, j - start, n, masked);
        if (sees != ATTN_SEES_NONE) {
            plan->kernel->scores(&t->block, &tile, stage);
            plan->kernel->weights(&t->block, n, stage);
            plan->kernel->unload(&t->block, t->slot + plan->at.edit, ATTN_TILE, t->block.s, ATTN_TILE, 0, n);
        }
        for (int64_t r = 0; r < t->block.m; r++)
            for (int64_t i = 0; i < n; i++) {
                int64_t at = r * ATTN_TILE + i;
                if (sees == ATTN_SEES_NONE) attn_task_put(plan, t->slot + plan->at.edit, at, stage == ATTN_STAGE_WEIGHT ? 0 : -INFINITY);
                /* a seen score of -inf looks hidden to the kernel, but in a row of NaN its weight is NaN too */
                else if (stage == ATTN_STAGE_WEIGHT && isnan(lse[r]) && attn_mask_sees(d, t->batch, &t->rows[r], j - start + i))
                    attn_task_put(plan, t->slot + plan->at.edit, at, (double)NAN);
            }
        attn_task_store(t, to, convert, n, j - from);
    }
}

static void write_results(struct attn_task *t)
{
    const struct attn_plan *plan = t->plan;
    const attn_desc        *d = &plan->d;
    const double           *lse = (const double *)(t->slot + plan->at.lse);
    for (int64_t at = 0; at < d->value_dim; at += ATTN_TILE) {
        int64_t step = ATTN_TILE, some = d->value_dim - at < ATTN_TILE ? d->value_dim - at : ATTN_TILE;
        char   *there = attn_task_place(t, &d->out, some, at, &step), *lines = there ? there : t->slot + plan->at.edit;
        plan->kernel->unload(&t->block, lines, step, t->block.part.o, d->value_dim, at, some);
        if (!there) attn_task_store(t, &d->out, plan->out, some, at);
        attn_task_blank(t, &d->out, plan->out, some, at);
    }
    for (int64_t r = 0; d->lse.data && (r < t->block.m || r < t->queries); r++) {
        const struct attn_row *row = &t->rows[r];
        const double           none = -INFINITY;
        plan->lse->store_f64((char *)attn_task_element(d->lse.data, d->lse.stride, d->lse.dtype, t->batch, row->head, row->query), 1,
                             r < t->block.m ? &lse[r] : &none, 1);
    }
}

/* Ends a walk, and walks again where values near the largest number need a shift. */
static void end(struct attn_task *t, double *lse)
{
    char                   *slot = t->slot;
    const struct attn_plan *plan = t->plan;
    while (plan->kernel->finish(&t->block, slot + plan->at.sink, slot + plan->at.shift, lse)) {
        t->block.shifted = 1;
        walk(t);
    }
}

void attn_exec_finish(struct attn_task *t)
{
    walk(t);
    end(t, (double *)(void *)(t->slot + t->plan->at.lse));
}

/* A task; part: what its keys gave, when they were walked before. */
static void run_task(const struct attn_plan *plan, char *slot, int64_t index, char *part)
{
    struct attn_task t; /* rows that it has not are left alone: they are many */
    t.plan = plan, t.slot = slot;
    attn_task_begin(&t, index);
    if (part)
        t.block.part = part_at(plan, part);
    else
        walk(&t);
    end(&t, plan->d.lse.data || plan->d.weights.data ? (double *)(void *)(slot + plan->at.lse) : 0);
    write_results(&t);
    if (plan->d.weights.data) /* a second pass, so that the output's bits know nothing of it */
        attn_exec_weights(&t, &plan->d.weights, plan->weights, plan->d.weights_stage, 0, plan->d.keys);
}

static void run_chunk(const struct attn_plan *plan, char *slot, struct unit unit, char *part)
{
    struct attn_task t;
    int64_t          low, high;
    t.plan = plan, t.slot = slot;
    attn_task_begin(&t, unit.task);
    t.block.part = part_at(plan, part);
    attn_task_span(&t, &low, &high);
    walk_chunk(&t, unit.chunk, low, high);
}

/* ---- blocks that are done at once -------------------------------------------------------------------------------------------------- */

static int as_real(const struct attn_plan *plan, int32_t dtype, const int64_t *stride, int64_t channels)
{
    return attn_width(dtype) == plan->kernel->real_bytes && stride[3] == 1 && channels % 16 == 0;
}

/* Whether all blocks see all keys of one tile, whatever they are, and need nothing but attn_kernel.whole: most of a small call's time would go into
 * finding out so much for each of them. */
static int all_whole(const struct attn_plan *plan)
{
    const attn_desc *d = &plan->d;
    const double     size = fabs(plan->factor);
    return plan->kernel->whole && d->keys <= ATTN_TILE && plan->block_heads == 1 && !d->causal && !d->window && !d->allow.data &&
           !d->bias.data && !d->alibi.data && !d->sink.data && !d->lse.data && !d->weights.data && !(d->softcap > 0) && !(d->dropout > 0) &&
           size < 0x1p60 && size > 0x1p-60 && as_real(plan, d->q.dtype, d->q.stride, d->dim) && as_real(plan, d->k.dtype, d->k.stride, 0) &&
           as_real(plan, d->v.dtype, d->v.stride, 0) && as_real(plan, d->out.dtype, d->out.stride, d->value_dim) && d->value_dim && d->keys;
}

static const char *row_at(const attn_in *x, int64_t batch, int64_t head, int64_t i)
{
    return attn_task_element(x->data, x->stride, x->dtype, batch, head, i);
}

static struct attn_soon soon(const char *from, int64_t step, int64_t n, int64_t rows, int64_t width, struct attn_soon *then)
{
    return (struct attn_soon){(uintptr_t)from, (uintptr_t)(step * width), (uintptr_t)(n * width), rows, then};
}

/* Such a task; 0 where the long way must be gone. */
static int run_whole(const struct attn_plan *plan, char *slot, int64_t index)
{
    const attn_desc        *d = &plan->d;
    const int64_t           width = plan->kernel->real_bytes;
    const struct attn_place p = attn_plan_place(plan, index);
    const int64_t keys = attn_key_count(d, p.batch), start = attn_key_start(d, p.batch), left = attn_query_count(d, p.batch) - p.query;
    const int64_t m = left < p.queries ? left : p.queries;
    if (m <= 0 || keys <= 0) return 0;
    const struct attn_place next = index + 1 < plan->tasks ? attn_plan_next(plan, index) : p;
    const int64_t           other = next.group_head != p.group_head || next.batch != p.batch;
    char                   *out = (char *)attn_task_element(d->out.data, d->out.stride, d->out.dtype, p.batch, p.head, p.query);
    const char             *line = row_at(&d->q, p.batch, p.head, p.query);
    const void             *lines[ATTN_ROWS_MAX];
    struct attn_ahead       ahead;
    struct attn_soon       *list = ahead.list;
    struct attn_block       b = {.m = m,
                                 .dim = d->dim,
                                 .value_dim = d->value_dim,
                                 .q = slot + plan->at.q,
                                 .s = slot + plan->at.s,
                                 .part = part_at(plan, slot + plan->at.o[0]),
                                 .ahead = &ahead};
    struct attn_tile        t = {.k = row_at(&d->k, p.batch, p.group_head, start),
                                 .v = row_at(&d->v, p.batch, p.group_head, start),
                                 .k_step = d->k.stride[2],
                                 .v_step = d->v.stride[2],
                                 .keys = keys};
    ahead.at = ahead.end = 0, ahead.now = list;
    list[0] = soon(t.v, t.v_step, d->value_dim, t.keys, width, &list[1]);
    list[1] = soon(out, d->out.stride[2], d->value_dim, p.queries, width, &list[2]);
    list[2] = soon(row_at(&d->q, next.batch, next.head, next.query), d->q.stride[2], d->dim, next.queries, width, &list[other ? 3 : 5]);
    list[3] = soon(row_at(&d->k, next.batch, next.group_head, 0), d->k.stride[2], d->dim, d->keys, width, &list[4]);
    list[4] = soon(row_at(&d->v, next.batch, next.group_head, 0), d->v.stride[2], d->value_dim, d->keys, width, &list[5]);
    list[5] = soon(b.q, 0, 1, INT64_MAX, 1, 0);
    for (int64_t r = 0; r < m; r++, line += d->q.stride[2] * width) lines[r] = line;
    for (int64_t r = m; r < p.queries; r++) memset(out + r * d->out.stride[2] * width, 0, (size_t)(d->value_dim * width));
    plan->kernel->load(&b, slot + plan->at.q, 0, d->dim, lines, plan->factor);
    return plan->kernel->whole(&b, &t, out, d->out.stride[2]);
}

/* ---- the run ---------------------------------------------------------------------------------------------------------------------- */

/* Before and after a run uses a slot. The gaps between its parts are poisoned in between. */
void attn_exec_guard(const struct attn_plan *plan, char *slot, int on)
{
    if (on) attn_task_open(plan, slot);
#ifdef HAVE_ASAN
    const size_t *at = &plan->at.q;
    for (int i = 0; i < ATTN_SCRATCH_PARTS; i++) {
        char *gap = slot + at[i + 1] - ATTN_RED_ZONE; /* parts follow each other in the struct, `bytes` last */
        if (on)
            ASAN_POISON_MEMORY_REGION(gap, ATTN_RED_ZONE);
        else
            ASAN_UNPOISON_MEMORY_REGION(gap, ATTN_RED_ZONE);
    }
#else
    (void)plan, (void)slot, (void)on;
#endif
}

/* Behind the slots, when threads share keys: a part per task, a part per unit of a wave, the units. */
static char *task_part(const struct attn_plan *plan, char *work, int64_t task)
{
    return work + (size_t)plan->slots * plan->at.bytes + (size_t)task * plan->part_bytes;
}

static char *wave_part(const struct attn_plan *plan, char *work, int64_t unit)
{
    return task_part(plan, work, plan->tasks + unit);
}

/* Folds what the wave left of one task, left to right: the unit's and the units' after it that belong to the same task. */
static void fold_task(const struct run *run, int64_t unit)
{
    const struct attn_plan *plan = run->plan;
    const int64_t           task = run->units[unit].task;
    const struct attn_part  whole = part_at(plan, task_part(plan, run->work, task));
    struct attn_task        t = {.plan = plan};
    if (unit && run->units[unit - 1].task == task) return; /* done with an earlier unit */
    attn_task_locate(&t, task);
    t.block.value_dim = plan->d.value_dim;
    for (; unit < run->count && run->units[unit].task == task; unit++) {
        t.block.part = part_at(plan, wave_part(plan, run->work, unit));
        plan->kernel->fold(&t.block, &whole);
    }
}

/* One thread's share: pieces from one counter. Which thread takes which is of no matter to the bits. */
static void share(void *arg, int32_t index)
{
    struct run             *run = arg;
    const struct attn_plan *plan = run->plan;
    char                   *slot = run->work + (size_t)index * plan->at.bytes;
    const uint64_t          env = attn_cpu_enter();
    attn_exec_guard(plan, slot, 1);
    for (int64_t i; (i = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < run->count;)
        if (run->what == CHUNKS)
            run_chunk(plan, slot, run->units[i], wave_part(plan, run->work, i));
        else if (run->what == FOLDS)
            fold_task(run, i);
        else if (!run->whole || !run_whole(plan, slot, i))
            run_task(plan, slot, i, plan->wave ? task_part(plan, run->work, i) : 0);
    attn_exec_guard(plan, slot, 0);
    attn_cpu_leave(env);
}

static void run_all(const struct attn_plan *plan, char *work, int64_t what, const struct unit *units, int64_t count)
{
    struct run run = {plan, work, what, units, count, what == TASKS && all_whole(plan), 0};
    if (plan->slots == 1)
        share(&run, 0);
    else
        plan->d.executor->parallel_for(plan->d.executor->context, (int32_t)plan->slots, share, &run);
}

static void run_wave(const struct attn_plan *plan, char *work, const struct unit *units, int64_t n)
{
    run_all(plan, work, CHUNKS, units, n);
    run_all(plan, work, FOLDS, units, n);
}

/* Walks the chunks of all tasks that anybody sees, a wave of them at a time, and folds each wave in order: chunks of a task left to right. */
static void run_waves(const struct attn_plan *plan, char *work)
{
    struct unit     *units = (struct unit *)(void *)wave_part(plan, work, plan->wave);
    struct attn_task t = {.plan = plan};
    int64_t          low, high, n = 0;
    for (int64_t task = 0; task < plan->tasks; task++) {
        attn_task_locate(&t, task);
        t.block.value_dim = plan->d.value_dim;
        const struct attn_part whole = part_at(plan, task_part(plan, work, task));
        plan->kernel->begin(&t.block, &whole);
        attn_task_span(&t, &low, &high);
        for (int64_t chunk = low / ATTN_CHUNK; chunk * ATTN_CHUNK < high; chunk++) {
            units[n++] = (struct unit){task, chunk};
            if (n < plan->wave) continue;
            run_wave(plan, work, units, n);
            n = 0;
        }
    }
    if (n) run_wave(plan, work, units, n);
}

void attn_exec(const struct attn_plan *plan, void *work)
{
    char *aligned = (char *)(((uintptr_t)work + 63) & ~(uintptr_t)63);
    if (plan->wave) run_waves(plan, aligned);
    run_all(plan, aligned, TASKS, 0, plan->tasks);
}
