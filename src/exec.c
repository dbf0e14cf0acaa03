/* exec.c: the tiling loop: a task is one block of queries, walking the keys that any of them sees.
 * SPDX-License-Identifier: MIT */
#include <fenv.h>
#include <float.h>
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

struct run {
    const struct attn_plan *plan;
    char                   *work;
    int64_t                 count;
    const struct unit      *units; /* what is counted; NULL: tasks */
    _Atomic int64_t         next;
};

/* A task in flight: the block, its rows and where its slot's scratch lies. */
struct task {
    const struct attn_plan *plan;
    char                   *slot;
    int64_t                 batch, group_head; /* the key head */
    struct attn_block       block;
    struct attn_row         rows[ATTN_ROWS_MAX];
};

/* ---- addresses -------------------------------------------------------------------------------------------------------------------- */

static const char *element(const void *data, const int64_t stride[4], int32_t dtype, int64_t b, int64_t h, int64_t i)
{
    return (const char *)data + (b * stride[0] + h * stride[1] + i * stride[2]) * (int64_t)attn_dtype_bytes(dtype);
}

static void load(const struct attn_plan *plan, const struct attn_convert *c, void *to, const void *from, int64_t stride, int64_t n)
{
    if (plan->kernel->real_bytes == 4)
        c->load_f32(to, from, stride, n);
    else
        c->load_f64(to, from, stride, n);
}

/* A line of each row to an output, `skip` elements along its last axis. The edit tile serves as the lines: when something is stored it is not in use. */
static void store_lines(const struct task *t, const attn_out *to, const struct attn_convert *convert, int64_t n, int64_t skip)
{
    const int64_t real = t->plan->kernel->real_bytes, width = (int64_t)attn_dtype_bytes(to->dtype);
    const char   *lines = t->slot + t->plan->at.edit;
    for (int64_t r = 0; r < t->block.m; r++) {
        char *place =
            (char *)element(to->data, to->stride, to->dtype, t->batch, t->rows[r].head, t->rows[r].query) + skip * to->stride[3] * width;
        if (real == 4)
            convert->store_f32(place, to->stride[3], (const float *)(lines + r * ATTN_TILE * real), n);
        else
            convert->store_f64(place, to->stride[3], (const double *)(lines + r * ATTN_TILE * real), n);
    }
}

/* array[row] = x, in the kernel's arithmetic */
static void put(const struct attn_plan *plan, void *array, int64_t row, double x)
{
    if (plan->kernel->real_bytes == 4)
        ((float *)array)[row] = (float)x;
    else
        ((double *)array)[row] = x;
}

static double get(const attn_in *t, int64_t offset)
{
    return t->dtype == ATTN_F64 ? ((const double *)t->data)[offset] : (double)((const float *)t->data)[offset];
}

/* ---- a block ---------------------------------------------------------------------------------------------------------------------- */

/* Queries into [dim][rows], times the scale, rounded once. The edit tile serves as a buffer here too. */
static void load_queries(const struct task *t)
{
    const struct attn_plan *plan = t->plan;
    const attn_in          *q = &plan->d.q;
    const int64_t           real = plan->kernel->real_bytes, width = (int64_t)attn_dtype_bytes(q->dtype);
    const double            size = fabs(plan->factor);
    const int odd = real == 4 && size != 0 && (size > 0x1p60 || size < 0x1p-60); /* no float to multiply with: done here, in double */
    for (int64_t at = 0; at < plan->d.dim; at += ATTN_TILE) {
        int64_t     some = plan->d.dim - at < ATTN_TILE ? plan->d.dim - at : ATTN_TILE;
        const void *lines[ATTN_ROWS_MAX];
        for (int64_t r = 0; r < t->block.m; r++) {
            char *line = t->slot + plan->at.edit + r * ATTN_TILE * real;
            lines[r] = element(q->data, q->stride, q->dtype, t->batch, t->rows[r].head, t->rows[r].query) + at * q->stride[3] * width;
            if (width == real && q->stride[3] == 1 && some % 16 == 0 && !odd) continue;
            memset(line, 0, (size_t)(ATTN_TILE * real));
            load(plan, plan->in, line, lines[r], q->stride[3], some);
            lines[r] = line;
            for (int64_t c = 0; odd && c < some; c++) {
                double x = (double)((float *)line)[c], y = x * plan->factor;
                ((float *)line)[c] = (float)(isfinite(x) ? fmax(-FLT_MAX, fmin(FLT_MAX, y)) : y);
            }
        }
        plan->kernel->load(&t->block, t->slot + plan->at.q, at, some, lines, odd ? 1 : plan->factor);
    }
}

/* Which queries task number `index` has. */
static void locate(struct task *t, int64_t index)
{
    const struct attn_plan *plan = t->plan;
    const attn_desc        *d = &plan->d;
    int64_t                 qb = index % plan->query_blocks, hb = index / plan->query_blocks % plan->head_blocks,
            bg = index / plan->query_blocks / plan->head_blocks;
    int64_t group = d->heads / d->kv_heads, h0 = hb * plan->block_heads, i0 = qb * plan->block_queries;
    int64_t heads = group - h0 < plan->block_heads ? group - h0 : plan->block_heads;
    int64_t queries = d->queries - i0 < plan->block_queries ? d->queries - i0 : plan->block_queries;
    t->batch = bg / d->kv_heads;
    t->group_head = bg % d->kv_heads;
    t->block.m = heads * queries;
    for (int64_t r = 0; r < t->block.m; r++) {
        t->rows[r].head = t->group_head * group + h0 + r / queries;
        t->rows[r].query = i0 + r % queries;
    }
}

/* The next task's queries are on their way while this one computes: short sequences would wait for them. */
static void prefetch_queries(const struct attn_plan *plan, int64_t index)
{
    const attn_in *q = &plan->d.q;
    struct task    t;
    if (index >= plan->tasks || q->stride[3] != 1) return;
    t.plan = plan;
    locate(&t, index);
    for (int64_t r = 0; r < t.block.m; r++) {
        const char *row = element(q->data, q->stride, q->dtype, t.batch, t.rows[r].head, t.rows[r].query);
        for (int64_t at = 0; at < plan->d.dim * (int64_t)attn_dtype_bytes(q->dtype); at += 64) __builtin_prefetch(row + at);
    }
}

/* Task number `index`: its queries, and what belongs to each row. */
static void begin_task(struct task *t, int64_t index)
{
    const struct attn_plan *plan = t->plan;
    const attn_desc        *d = &plan->d;
    locate(t, index);
    struct attn_block *b = &t->block;
    *b = (struct attn_block){.m = b->m, .dim = d->dim, .value_dim = d->value_dim, .cap = d->softcap * ATTN_DOMAIN};
    b->q = t->slot + plan->at.q;
    b->s = t->slot + plan->at.s;
    b->near = t->slot + plan->at.near;
    b->shift = t->slot + plan->at.shift;
    b->slope = d->alibi.data ? t->slot + plan->at.slope : 0;
    memset(t->slot + plan->at.slope, 0, (size_t)(plan->kernel->rows * plan->kernel->real_bytes));
    memset(t->slot + plan->at.near, 0, (size_t)(plan->kernel->rows * plan->kernel->real_bytes));
    memset(t->slot + plan->at.shift, 0, (size_t)(plan->kernel->rows * plan->kernel->real_bytes));
    for (int64_t r = 0; r < plan->kernel->rows; r++) put(plan, t->slot + plan->at.sink, r, -INFINITY);
    for (int64_t r = 0; r < b->m; r++) {
        struct attn_row *row = &t->rows[r];
        attn_mask_row(d, t->batch, row);
        if (d->alibi.data)
            put(plan, t->slot + plan->at.slope, r,
                get(&d->alibi, t->batch * d->alibi.stride[0] + row->head * d->alibi.stride[1]) * ATTN_DOMAIN);
        if (d->sink.data && row->query < attn_query_count(d, t->batch))
            put(plan, t->slot + plan->at.sink, r, get(&d->sink, row->head * d->sink.stride[1]));
    }
    load_queries(t);
    prefetch_queries(plan, index + 1);
}

/* Keys j .. j + n - 1 of the tensor as the kernel wants them: in place where the layout allows, else copied. */
static const void *rows_of(const struct task *t, const attn_in *x, int64_t dim, int64_t j, int64_t n, size_t scratch, int64_t *step)
{
    const struct attn_plan *plan = t->plan;
    const size_t            width = attn_dtype_bytes(x->dtype);
    *step = dim;
    const char *from = element(x->data, x->stride, x->dtype, t->batch, t->group_head, j);
    if ((int64_t)width == plan->kernel->real_bytes && (x->stride[3] == 1 || dim == 1)) {
        *step = x->stride[2];
        return from;
    }
    char *to = t->slot + scratch;
    for (int64_t i = 0; i < n; i++)
        load(plan, plan->in, to + i * dim * plan->kernel->real_bytes, from + i * x->stride[2] * (int64_t)width, x->stride[3], dim);
    return to;
}

/* Keys first .. first + n - 1, counted from key_start. Returns what mask.c says of them. */
static int32_t prepare_tile(struct task *t, struct attn_tile *tile, int64_t first, int64_t n, int masked)
{
    const struct attn_plan *plan = t->plan;
    const attn_desc        *d = &plan->d;
    int32_t                 sees = masked ? attn_mask_tile(plan, t->slot, t->batch, t->rows, t->block.m, first, n) : ATTN_SEES_ALL;
    if (sees == ATTN_SEES_NONE) return sees;
    *tile = (struct attn_tile){.keys = n};
    if (sees & ATTN_SEES_RANGE) tile->low = t->slot + plan->at.low, tile->high = t->slot + plan->at.high;
    if (sees & ATTN_SEES_EDIT) tile->edit = t->slot + plan->at.edit;
    tile->k = rows_of(t, &d->k, d->dim, attn_key_start(d, t->batch) + first, n, plan->at.k, &tile->k_step);
    if (d->alibi.data)
        for (int64_t r = 0; r < t->block.m; r++) put(plan, t->slot + plan->at.near, r, (double)(t->rows[r].position - first));
    return sees;
}

/* The keys that any row sees by position: from *low, to *high; 0 if there are none. */
static int span(const struct task *t, int64_t *low, int64_t *high)
{
    *low = INT64_MAX;
    *high = 0;
    for (int64_t r = 0; r < t->block.m; r++)
        if (t->rows[r].low < t->rows[r].high) {
            *low = t->rows[r].low < *low ? t->rows[r].low : *low;
            *high = t->rows[r].high > *high ? t->rows[r].high : *high;
        }
    return *low < *high;
}

/* What the block sees of one chunk, tile by tile, into block.part. */
static void walk_chunk(struct task *t, int64_t chunk)
{
    const struct attn_plan *plan = t->plan;
    int64_t                 low, high, start = attn_key_start(&plan->d, t->batch), from = chunk * ATTN_CHUNK, to = from + ATTN_CHUNK;
    plan->kernel->begin(&t->block, &t->block.part);
    if (!span(t, &low, &high)) return;
    if (low > from) from = low / ATTN_TILE * ATTN_TILE;
    if (high < to) to = high;
    for (int64_t first = from; first < to; first += ATTN_TILE) {
        struct attn_tile tile;
        int64_t          n = to - first < ATTN_TILE ? to - first : ATTN_TILE;
        if (prepare_tile(t, &tile, first, n, 1) == ATTN_SEES_NONE) continue;
        tile.v = rows_of(t, &plan->d.v, plan->d.value_dim, start + first, n, plan->at.v, &tile.v_step);
        plan->kernel->step(&t->block, &tile);
    }
}

static struct attn_part part_at(const struct attn_plan *plan, char *at)
{
    return (struct attn_part){at, at + plan->at.top[0] - plan->at.o[0], at + plan->at.sum[0] - plan->at.o[0]};
}

/* All keys that the block sees, chunk by chunk, left to right. */
static void walk(struct task *t)
{
    const struct attn_plan *plan = t->plan;
    struct attn_block      *b = &t->block;
    const struct attn_part  first = part_at(plan, t->slot + plan->at.o[0]), later = part_at(plan, t->slot + plan->at.o[1]);
    int64_t                 low, high, chunk = 0;
    if (span(t, &low, &high)) chunk = low / ATTN_CHUNK;
    b->part = first;
    walk_chunk(t, chunk);
    for (b->part = later; ++chunk * ATTN_CHUNK < high;) {
        walk_chunk(t, chunk);
        plan->kernel->fold(b, &first);
    }
    b->part = first;
}

/* The optional weights: a second pass, so that the output's bits know nothing of it. */
static void write_weights(struct task *t)
{
    const struct attn_plan *plan = t->plan;
    const attn_desc        *d = &plan->d;
    const int64_t           start = attn_key_start(d, t->batch);
    const int32_t           stage = d->weights_stage;
    const double           *lse = (const double *)(t->slot + plan->at.lse);
    const int               masked = stage == ATTN_STAGE_WEIGHT || stage == ATTN_STAGE_BIASED;
    for (int64_t j = 0; j < d->keys; j += ATTN_TILE) {
        struct attn_tile tile;
        int64_t          n = d->keys - j < ATTN_TILE ? d->keys - j : ATTN_TILE;
        int32_t          sees = prepare_tile(t, &tile, j - start, n, masked);
        if (sees != ATTN_SEES_NONE) {
            plan->kernel->scores(&t->block, &tile, stage);
            plan->kernel->weights(&t->block, n, stage);
            plan->kernel->unload(&t->block, t->slot + plan->at.edit, t->block.s, ATTN_TILE, 0, n);
        }
        for (int64_t r = 0; r < t->block.m; r++)
            for (int64_t i = 0; i < n; i++) {
                int64_t at = r * ATTN_TILE + i;
                if (sees == ATTN_SEES_NONE) put(plan, t->slot + plan->at.edit, at, stage == ATTN_STAGE_WEIGHT ? 0 : -INFINITY);
                /* a seen score of -inf looks hidden to the kernel, but in a row of NaN its weight is NaN too */
                else if (stage == ATTN_STAGE_WEIGHT && isnan(lse[r]) && attn_mask_sees(d, t->batch, &t->rows[r], j - start + i))
                    put(plan, t->slot + plan->at.edit, at, (double)NAN);
            }
        store_lines(t, &d->weights, plan->weights, n, j);
    }
}

static void write_results(struct task *t)
{
    const struct attn_plan *plan = t->plan;
    const attn_desc        *d = &plan->d;
    const double           *lse = (const double *)(t->slot + plan->at.lse);
    for (int64_t at = 0; at < d->value_dim; at += ATTN_TILE) {
        int64_t some = d->value_dim - at < ATTN_TILE ? d->value_dim - at : ATTN_TILE;
        plan->kernel->unload(&t->block, t->slot + plan->at.edit, t->block.part.o, d->value_dim, at, some);
        store_lines(t, &d->out, plan->out, some, at);
    }
    for (int64_t r = 0; d->lse.data && r < t->block.m; r++) {
        const struct attn_row *row = &t->rows[r];
        plan->lse->store_f64((char *)element(d->lse.data, d->lse.stride, d->lse.dtype, t->batch, row->head, row->query), 1, &lse[r], 1);
    }
}

/* A task; part: what its keys gave, when they were walked before. */
static void run_task(const struct attn_plan *plan, char *slot, int64_t index, char *part)
{
    struct task t = {.plan = plan, .slot = slot};
    begin_task(&t, index);
    if (part)
        t.block.part = part_at(plan, part);
    else
        walk(&t);
    while (plan->kernel->finish(&t.block, slot + plan->at.sink, slot + plan->at.shift, (double *)(slot + plan->at.lse))) {
        t.block.shifted = 1;
        walk(&t);
    }
    write_results(&t);
    if (plan->d.weights.data) write_weights(&t);
}

static void run_chunk(const struct attn_plan *plan, char *slot, struct unit unit, char *part)
{
    struct task t = {.plan = plan, .slot = slot};
    begin_task(&t, unit.task);
    t.block.part = part_at(plan, part);
    walk_chunk(&t, unit.chunk);
}

/* ---- the run ---------------------------------------------------------------------------------------------------------------------- */

/* Gaps between the parts of a slot: poisoned while a run uses it. */
static void guard(const struct attn_plan *plan, char *slot, int on)
{
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

/* One thread's share: tasks from one counter. Which thread takes which task is of no matter to the bits. */
static void share(void *arg, int32_t index)
{
    struct run             *run = arg;
    const struct attn_plan *plan = run->plan;
    char                   *slot = run->work + (size_t)index * plan->at.bytes;
    fenv_t                  env;
    fegetenv(&env);
    fesetenv(FE_DFL_ENV);
    guard(plan, slot, 1);
    for (int64_t i; (i = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < run->count;)
        if (run->units)
            run_chunk(plan, slot, run->units[i], wave_part(plan, run->work, i));
        else
            run_task(plan, slot, i, plan->wave ? task_part(plan, run->work, i) : 0);
    guard(plan, slot, 0);
    fesetenv(&env);
}

static void run_all(const struct attn_plan *plan, char *work, int64_t count, const struct unit *units)
{
    struct run run = {plan, work, count, units, 0};
    if (plan->slots == 1)
        share(&run, 0);
    else
        plan->d.executor->parallel_for(plan->d.executor->context, (int32_t)plan->slots, share, &run);
}

static void fold_wave(const struct attn_plan *plan, char *work, const struct unit *units, int64_t n)
{
    struct task t = {.plan = plan};
    fenv_t      env;
    fegetenv(&env);
    fesetenv(FE_DFL_ENV);
    for (int64_t i = 0; i < n; i++) {
        const struct attn_part whole = part_at(plan, task_part(plan, work, units[i].task));
        locate(&t, units[i].task);
        t.block.value_dim = plan->d.value_dim;
        t.block.part = part_at(plan, wave_part(plan, work, i));
        plan->kernel->fold(&t.block, &whole);
    }
    fesetenv(&env);
}

/* Walks the chunks of all tasks that anybody sees, a wave of them at a time, and folds each wave in order: chunks of a task left to right. */
static void run_waves(const struct attn_plan *plan, char *work)
{
    struct unit *units = (struct unit *)(void *)wave_part(plan, work, plan->wave);
    struct task  t = {.plan = plan};
    int64_t      low = 0, high = 0, n = 0;
    for (int64_t task = 0; task < plan->tasks; task++) {
        locate(&t, task);
        for (int64_t r = 0; r < t.block.m; r++) attn_mask_row(&plan->d, t.batch, &t.rows[r]);
        t.block.value_dim = plan->d.value_dim;
        const struct attn_part whole = part_at(plan, task_part(plan, work, task));
        plan->kernel->begin(&t.block, &whole);
        if (!span(&t, &low, &high)) low = high = 0;
        for (int64_t chunk = low / ATTN_CHUNK; chunk * ATTN_CHUNK < high; chunk++) {
            units[n++] = (struct unit){task, chunk};
            if (n < plan->wave) continue;
            run_all(plan, work, n, units);
            fold_wave(plan, work, units, n);
            n = 0;
        }
    }
    if (n) run_all(plan, work, n, units);
    fold_wave(plan, work, units, n);
}

void attn_exec(const struct attn_plan *plan, void *work)
{
    char *aligned = (char *)(((uintptr_t)work + 63) & ~(uintptr_t)63);
    if (plan->wave) run_waves(plan, aligned);
    run_all(plan, aligned, plan->tasks, 0);
}
