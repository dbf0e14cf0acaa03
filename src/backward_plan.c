/* backward_plan.c: checked descriptors to the plan of a backward pass: how queries and keys are cut, where everything lies.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "internal.h"

enum { BLOCK_QUERIES = 192, STRIP_KEYS = 256, LONG_KEYS = 4096, STRIPS_MAX = 64 };

static int64_t blocks(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* By numbers of one batch entry alone, never by the batch or the threads: the order of all sums follows from it. */
static void cut(struct attn_backward_plan *plan)
{
    const attn_desc *d = &plan->run.d;
    const int64_t    threads = d->executor ? d->executor->width : 1, keys = d->keys >= LONG_KEYS ? 2 * STRIP_KEYS : STRIP_KEYS;
    plan->groups = least(ATTN_BLOCKS, BLOCK_QUERIES / plan->run.kernel->rows);
    plan->head_tasks = plan->run.tasks ? plan->run.head_blocks * plan->run.query_blocks : 0;
    plan->strips = least(STRIPS_MAX, least(blocks(plan->head_tasks, plan->groups), blocks(d->keys, keys)));
    if (plan->strips < 1) plan->strips = 1;
    int64_t pieces = d->batch * d->kv_heads * plan->strips;
    pieces = pieces < plan->run.tasks ? plan->run.tasks : pieces;
    plan->slots = pieces ? least(threads, pieces) : 1;
}

/* Whether the axis of the gradient is summed over. */
static int summed(const attn_out *t, int axis, int64_t size)
{
    return attn_check_kept(t, axis, size) != size;
}

static void choose_bias(struct attn_backward_plan *plan, int32_t real)
{
    const attn_desc *d = &plan->run.d;
    const attn_out  *to = &plan->g.dbias;
    if (!to->dtype) return;
    plan->bias = summed(to, 3, d->keys) ? ATTN_BIAS_ROWS : summed(to, 2, d->queries) ? ATTN_BIAS_COLUMNS : ATTN_BIAS_PLACES;
    plan->places = *to;
    if (plan->bias != ATTN_BIAS_PLACES) return;
    plan->one_batch = summed(to, 0, d->batch);
    plan->one_head = summed(to, 1, d->heads);
    if (to->dtype == real || !(plan->one_batch || plan->one_head)) return;
    const int64_t b = plan->one_batch ? 0 : 1, h = plan->one_head ? 0 : 1, heads = plan->one_head ? 1 : d->heads;
    plan->places = (attn_out){0, {b * heads * d->queries * d->keys, h * d->queries * d->keys, d->keys, 1}, 0, real, 0};
}

/* Offsets one after another; an overflow anywhere makes the end SIZE_MAX. */
static size_t next(size_t *end, int64_t a, int64_t b, int64_t c)
{
    size_t at = *end, bytes;
    if (at == SIZE_MAX || __builtin_mul_overflow((size_t)a, (size_t)b, &bytes) || __builtin_mul_overflow(bytes, (size_t)c, &bytes) ||
        __builtin_add_overflow(bytes, 63, &bytes) || __builtin_add_overflow(at, bytes / 64 * 64, end))
        *end = SIZE_MAX;
    return at;
}

static void map_work(struct attn_backward_plan *plan)
{
    const attn_desc *d = &plan->run.d;
    const int64_t    real = plan->run.kernel->real_bytes, rows = plan->run.kernel->rows * real, tasks = plan->run.tasks;
    const int64_t    keys = d->batch * d->kv_heads;
    size_t          *end = &plan->group_bytes;
    *end = (plan->run.at.bytes + 63) / 64 * 64;
    plan->ds = next(end, ATTN_TILE, rows, 1);
    plan->q_rows = next(end, plan->dim, rows, 1);
    plan->d_out_rows = next(end, plan->value_dim, rows, 1);
    end = &plan->slot_bytes;
    next(end, plan->groups, (int64_t)plan->group_bytes, 1);
    plan->bend = next(end, d->softcap > 0 ? ATTN_TILE : 0, rows, 1);
    plan->lines = next(end, ATTN_TILE, rows, 1);
    end = &plan->work_bytes;
    next(end, plan->slots, (int64_t)plan->slot_bytes, 1);
    plan->lse = next(end, tasks, rows, 1);
    plan->delta = next(end, tasks, rows, 1);
    plan->sum = next(end, plan->bias == ATTN_BIAS_ROWS ? tasks : 0, rows, 1);
    plan->away = next(end, plan->g.dalibi.dtype ? tasks : 0, rows, 1);
    plan->dq_sums = next(end, plan->g.dq.dtype ? tasks : 0, rows, d->dim);
    plan->dk_sums = next(end, plan->g.dk.dtype ? keys : 0, d->keys, plan->dim * real);
    plan->dv_sums = next(end, plan->g.dv.dtype ? keys : 0, d->keys, plan->value_dim * real);
    plan->columns = next(end, plan->bias == ATTN_BIAS_COLUMNS ? d->batch * d->heads : 0, d->keys, real);
    const int64_t b = plan->one_batch ? 1 : d->batch, h = plan->one_head ? 1 : d->heads;
    const int     own = plan->bias == ATTN_BIAS_PLACES && memcmp(&plan->places, &plan->g.dbias, sizeof plan->places) != 0;
    plan->place_sums = next(end, own ? b * h : 0, d->queries, d->keys * real);
    next(end, 64, 1, 1); /* to align what the caller hands in */
}

int32_t attn_backward_plan_make(struct attn_backward_plan *plan, attn_error *error)
{
    *plan = (struct attn_backward_plan){.run.d = plan->run.d, .g = plan->g};
    const attn_desc          *d = &plan->run.d;
    const attn_backward_desc *g = &plan->g;
    attn_plan_fill(&plan->run, 1);
    plan->out = attn_plan_convert(g->out.dtype);
    plan->d_out = attn_plan_convert(g->d_out.dtype);
    plan->dq = attn_plan_convert(g->dq.dtype);
    plan->dk = attn_plan_convert(g->dk.dtype);
    plan->dv = attn_plan_convert(g->dv.dtype);
    plan->dbias = attn_plan_convert(g->dbias.dtype);
    plan->dim = blocks(d->dim, 16) * 16;
    plan->value_dim = blocks(d->value_dim, 16) * 16;
    cut(plan);
    choose_bias(plan, d->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32);
    map_work(plan);
    if (plan->work_bytes > PTRDIFF_MAX / 2 || plan->slot_bytes > PTRDIFF_MAX / 2)
        return attn_fail(error, ATTN_E_MEMORY, "the sums of a backward pass are more than memory can hold");
    return ATTN_OK;
}
