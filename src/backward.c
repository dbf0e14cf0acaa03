/* backward.c: gradients: rounds of pairs of a strip of queries and a strip of keys, so that no sum is shared by two threads.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "internal.h"

/* A step of the run: `count` pieces that may go on at the same time. */
struct step {
    const struct attn_backward_plan *plan;
    char                            *work;
    void (*piece)(const struct step *s, char *slot, int64_t index);
    int64_t         count;
    int64_t         column, round; /* of pairs: the first key head of the bundle that the round belongs to */
    _Atomic int64_t next;
};

/* A task in flight. */
struct group {
    struct attn_task           task;
    struct attn_gradient_block grad;
    struct attn_tile           tile;
    struct attn_gradient_rows  rows;
    int32_t                    sees;
};

static char *task_row(const struct attn_backward_plan *plan, char *work, size_t part, int64_t task)
{
    return work + part + (size_t)(task * plan->run.kernel->rows * plan->run.kernel->real_bytes);
}

static int alive(const struct attn_backward_plan *plan, const void *lse, int64_t row)
{
    return plan->run.kernel->real_bytes == 4 ? ((const float *)lse)[row] != INFINITY : ((const double *)lse)[row] != INFINITY;
}

/* ---- before: what each query brings ---------------------------------------------------------------------------------------------------- */

/* Part of a row as the kernel's numbers: in place where it lies so, else copied to line. */
static const void *line_of(const struct attn_backward_plan *plan, const attn_in *x, const struct attn_convert *convert, const char *row,
                           int64_t at, int64_t n, char *line)
{
    const int64_t width = attn_width(x->dtype);
    row += at * x->stride[3] * width;
    if (width == plan->run.kernel->real_bytes && x->stride[3] == 1) return row;
    if (plan->run.kernel->real_bytes == 4)
        convert->load_f32((float *)(void *)line, row, x->stride[3], n);
    else
        convert->load_f64((double *)(void *)line, row, x->stride[3], n);
    return line;
}

/* d_out . out. Where out is 0 d_out may be anything: so it is in a query that sees nothing but a sink. */
static double dot_outputs(const struct attn_backward_plan *plan, const struct attn_row *row, int64_t batch, char *lines)
{
    const attn_in *out = &plan->g.out, *d_out = &plan->g.d_out;
    const char    *a = attn_task_element(out->data, out->stride, out->dtype, batch, row->head, row->query);
    const char    *b = attn_task_element(d_out->data, d_out->stride, d_out->dtype, batch, row->head, row->query);
    char          *other = lines + ATTN_TILE * plan->run.kernel->real_bytes;
    double         sum = 0;
    for (int64_t at = 0; at < plan->run.d.value_dim; at += ATTN_TILE) {
        const int64_t n = plan->run.d.value_dim - at < ATTN_TILE ? plan->run.d.value_dim - at : ATTN_TILE;
        sum += plan->run.kernel->gradient->dot(line_of(plan, out, plan->out, a, at, n, lines),
                                               line_of(plan, d_out, plan->d_out, b, at, n, other), n);
    }
    return sum;
}

/* lse and delta of a task's rows, and nothing in its sums. An lse of +inf marks a query that takes no part; one of NaN makes all its weights NaN. */
static void prepare(const struct step *s, char *slot, int64_t index)
{
    const struct attn_backward_plan *plan = s->plan;
    const attn_desc                 *d = &plan->run.d;
    const size_t                     row_bytes = (size_t)(plan->run.kernel->rows * plan->run.kernel->real_bytes);
    char                            *lse = task_row(plan, s->work, plan->lse, index), *delta = task_row(plan, s->work, plan->delta, index);
    struct attn_task                 t = {.plan = &plan->run, .slot = slot};
    attn_task_locate(&t, index);
    memset(lse, 0, row_bytes);
    memset(delta, 0, row_bytes);
    attn_mask_rows(d, t.batch, t.rows, t.block.m);
    for (int64_t r = 0; r < t.block.m; r++) {
        const struct attn_row *row = &t.rows[r];
        const double           x = attn_backward_get(&plan->g.lse, t.batch, row->head, row->query);
        const int              dead = row->low >= row->high || x == -INFINITY;
        attn_task_put(&plan->run, lse, r, dead ? INFINITY : x == INFINITY ? NAN : x * ATTN_DOMAIN);
        if (x == -INFINITY) continue;
        const double back = plan->g.d_lse.data ? attn_backward_get(&plan->g.d_lse, t.batch, row->head, row->query) : 0;
        attn_task_put(&plan->run, delta, r,
                      (dead ? 0 : dot_outputs(plan, row, t.batch, slot + plan->lines)) - back); /* dead: for the sink */
    }
    if (plan->bias == ATTN_BIAS_ROWS) memset(task_row(plan, s->work, plan->sum, index), 0, row_bytes);
    if (plan->g.dalibi.data) memset(task_row(plan, s->work, plan->away, index), 0, row_bytes);
    if (plan->g.dq.data) memset(s->work + plan->dq_sums + (size_t)(index * d->dim) * row_bytes, 0, (size_t)d->dim * row_bytes);
    attn_backward_clear(plan, s->work, &t);
}

/* ---- a pair of strips ------------------------------------------------------------------------------------------------------------------ */

/* The rows of a tensor that the task's queries have, as rows in memory. */
static const void *rows_of(const struct group *g, const attn_in *x, const struct attn_convert *convert, int64_t dim, int64_t wide, char *to,
                           int64_t *step)
{
    const struct attn_task *t = &g->task;
    const int64_t           real = t->plan->kernel->real_bytes, width = attn_width(x->dtype);
    const char             *from = attn_task_element(x->data, x->stride, x->dtype, t->batch, t->rows[0].head, t->rows[0].query);
    *step = x->stride[2];
    if (width == real && x->stride[3] == 1 && dim == wide) return from;
    *step = wide;
    memset(to, 0, (size_t)(t->block.m * wide * real));
    for (int64_t r = 0; r < t->block.m; r++)
        if (real == 4)
            convert->load_f32((float *)(void *)(to + r * wide * real), from + r * x->stride[2] * width, x->stride[3], dim);
        else
            convert->load_f64((double *)(void *)(to + r * wide * real), from + r * x->stride[2] * width, x->stride[3], dim);
    return to;
}

/* Queries that take no part see nothing. */
static void leave_out(const struct attn_backward_plan *plan, struct group *g)
{
    for (int64_t r = 0; r < g->task.block.m; r++)
        if (!alive(plan, g->grad.lse, r)) g->task.rows[r].low = g->task.rows[r].high = 0;
}

/* Task number `index` in the slot of a group; 0 if it sees none of the keys from low to high - 1. */
static int open_group(const struct step *s, char *slot, int64_t index, int64_t low, int64_t high, struct group *g)
{
    const struct attn_backward_plan *plan = s->plan;
    const attn_desc                 *d = &plan->run.d;
    struct attn_task                *t = &g->task;
    int64_t                          from, to;
    g->task.plan = &plan->run, g->task.slot = slot;
    g->grad.lse = task_row(plan, s->work, plan->lse, index);
    attn_task_locate(t, index);
    attn_mask_rows(d, t->batch, t->rows, t->block.m);
    leave_out(plan, g);
    if (!attn_task_span(t, &from, &to) || from >= high || to <= low) return 0;
    attn_task_begin(t, index);
    leave_out(plan, g);
    attn_task_load(t, &plan->g.d_out, plan->d_out, d->value_dim, slot + plan->run.at.o[0], 1);
    struct attn_gradient_block *b = &g->grad;
    const int64_t               row_bytes = plan->run.kernel->rows * plan->run.kernel->real_bytes;
    b->b = t->block;
    b->d_out = slot + plan->run.at.o[0];
    b->delta = task_row(plan, s->work, plan->delta, index);
    b->ds = slot + plan->ds;
    b->dq = plan->g.dq.data ? s->work + plan->dq_sums + index * d->dim * row_bytes : 0;
    b->sum = plan->bias == ATTN_BIAS_ROWS ? task_row(plan, s->work, plan->sum, index) : 0;
    b->away = plan->g.dalibi.data ? task_row(plan, s->work, plan->away, index) : 0;
    b->finite = plan->run.kernel->gradient->finite(b->b.q, plan->run.kernel->rows, d->dim, t->block.m) &&
                plan->run.kernel->gradient->finite(b->d_out, plan->run.kernel->rows, d->value_dim, t->block.m);
    g->rows.q = rows_of(g, &d->q, plan->run.in, d->dim, plan->dim, slot + plan->q_rows, &g->rows.q_step);
    g->rows.d_out = rows_of(g, &plan->g.d_out, plan->d_out, d->value_dim, plan->value_dim, slot + plan->d_out_rows, &g->rows.d_out_step);
    return 1;
}

/* n groups meet the keys first .. first + keys - 1. */
static void meet(const struct step *s, char *slot, struct group *groups, int64_t n, int64_t first, int64_t keys)
{
    const struct attn_backward_plan *plan = s->plan;
    const attn_desc                 *d = &plan->run.d;
    const struct attn_gradient      *kernel = plan->run.kernel->gradient;
    const int64_t                    real = plan->run.kernel->real_bytes, b = groups[0].task.batch, g = groups[0].task.group_head;
    struct attn_gradient_rows        rows[ATTN_BLOCKS];
    struct attn_tile                 shared = {.keys = keys};
    int64_t                          seeing = 0;
    for (int64_t i = 0; i < n; i++)
        seeing += (groups[i].sees = attn_task_look(&groups[i].task, &groups[i].tile, first, keys, 1)) != ATTN_SEES_NONE;
    if (!seeing) return;
    attn_task_keys(&groups[0].task, &shared, first);
    attn_task_values(&groups[0].task, &shared, first);
    seeing = 0;
    for (int64_t i = 0; i < n; i++) {
        struct group *at = &groups[i];
        if (at->sees == ATTN_SEES_NONE) continue;
        at->tile.k = shared.k, at->tile.k_step = shared.k_step, at->tile.v = shared.v, at->tile.v_step = shared.v_step;
        at->grad.bend = slot + plan->bend;
        attn_dropout_tile(&at->task, &at->tile, first);
        kernel->scores(&at->grad, &at->tile);
        if (plan->bias == ATTN_BIAS_PLACES)
            attn_backward_add_places(plan, s->work, &at->task, &at->tile, first, slot + plan->lines, at->grad.ds);
        if (plan->bias == ATTN_BIAS_COLUMNS)
            kernel->columns(&at->grad, keys,
                            s->work + plan->columns +
                                ((b * d->heads + at->task.rows[0].head) * d->keys + attn_key_start(d, b) + first) * real);
        if (d->softcap > 0) kernel->bend(&at->grad, keys);
        if (plan->g.dq.data) kernel->query(&at->grad, &at->tile);
        rows[seeing] = at->rows;
        rows[seeing].block = &at->grad, rows[seeing++].tile = &at->tile;
    }
    const int64_t key = (b * d->kv_heads + g) * d->keys + attn_key_start(d, b) + first;
    kernel->keys(rows, seeing, plan->g.dk.data ? s->work + plan->dk_sums + key * plan->dim * real : 0, plan->dim,
                 plan->g.dv.data ? s->work + plan->dv_sums + key * plan->value_dim * real : 0, plan->value_dim);
}

/* Strip number `strip` of n things in whole pieces. */
static int64_t strip_at(const struct attn_backward_plan *plan, int64_t strip, int64_t n, int64_t piece)
{
    const int64_t at = (n * strip / plan->strips + piece - 1) / piece * piece;
    return at < n ? at : n;
}

static void pair(const struct step *s, char *slot, int64_t index)
{
    const struct attn_backward_plan *plan = s->plan;
    const attn_desc                 *d = &plan->run.d;
    const int64_t                    queries = index % plan->strips, keys = (s->round + plan->strips - queries) % plan->strips;
    const int64_t                    column = s->column + index / plan->strips, inner = plan->one_head ? d->batch : d->kv_heads;
    const int64_t b = plan->one_head ? column % inner : column / inner, g = plan->one_head ? column / inner : column % inner;
    const int64_t all = attn_key_count(d, b);
    const int64_t low = strip_at(plan, keys, all, ATTN_TILE), high = strip_at(plan, keys + 1, all, ATTN_TILE);
    const int64_t base = (b * d->kv_heads + g) * plan->head_tasks, end = base + strip_at(plan, queries + 1, plan->head_tasks, 1);
    struct group  groups[ATTN_BLOCKS];
    if (low >= high) return;
    for (int64_t task = base + strip_at(plan, queries, plan->head_tasks, 1); task < end;) {
        const int64_t left = (end - task + plan->groups - 1) / plan->groups,
                      some = (end - task + left - 1) / left; /* blocks of about one size */
        int64_t n = 0, from = INT64_MAX, to = 0, first, last;
        for (int64_t i = 0; i < some; i++) {
            memset(&groups[n].grad, 0, sizeof groups[n].grad);
            if (!open_group(s, slot + (size_t)n * plan->group_bytes, task + i, low, high, &groups[n])) continue;
            attn_task_span(&groups[n++].task, &first, &last);
            from = first < from ? first : from, to = last > to ? last : to;
        }
        task += some;
        from = from > low ? from / ATTN_TILE * ATTN_TILE : low;
        to = to < high ? to : high;
        for (int64_t at = from < low ? low : from; n && at < to; at += ATTN_TILE)
            meet(s, slot, groups, n, at, to - at < ATTN_TILE ? to - at : ATTN_TILE);
    }
}

/* ---- after ----------------------------------------------------------------------------------------------------------------------------- */

static void store(const struct step *s, char *slot, int64_t index)
{
    struct attn_task t = {.plan = &s->plan->run, .slot = slot};
    attn_task_locate(&t, index);
    attn_backward_store(s->plan, s->work, &t, index, slot + s->plan->lines);
}

static void store_keys(const struct step *s, char *slot, int64_t index)
{
    const attn_desc *d = &s->plan->run.d;
    const int64_t    tiles = (d->keys + ATTN_TILE - 1) / ATTN_TILE, head = index / tiles, first = index % tiles * ATTN_TILE;
    (void)slot;
    for (int64_t j = first; j < d->keys && j < first + ATTN_TILE; j++)
        attn_backward_store_key(s->plan, s->work, head / d->kv_heads, head % d->kv_heads, j);
}

static void store_sums(const struct step *s, char *slot, int64_t index)
{
    (void)slot, (void)index;
    attn_backward_store_sums(s->plan, s->work);
}

/* ---- the run --------------------------------------------------------------------------------------------------------------------------- */

static void share(void *arg, int32_t index)
{
    struct step   *s = arg;
    const uint64_t env = attn_cpu_enter();
    for (int64_t i; (i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < s->count;)
        s->piece(s, s->work + (size_t)index * s->plan->slot_bytes, i);
    attn_cpu_leave(env);
}

static void take(struct step *s, void (*piece)(const struct step *s, char *slot, int64_t index), int64_t count)
{
    const int64_t threads = s->plan->slots < count ? s->plan->slots : count;
    s->piece = piece;
    s->count = count;
    s->next = 0;
    if (threads == 1)
        share(s, 0);
    else if (threads > 1)
        s->plan->run.d.executor->parallel_for(s->plan->run.d.executor->context, (int32_t)threads, share, s);
}

/* A bundle of key heads, round by round: as few as keep all threads busy, so that what they read and sum up stays in cache. Those that share places of
 * the bias are never in one bundle. */
static void run_pairs(struct step *s)
{
    const struct attn_backward_plan *plan = s->plan;
    const attn_desc                 *d = &plan->run.d;
    const int64_t                    columns = plan->run.tasks ? d->batch * d->kv_heads : 0;
    const int64_t limit = plan->one_batch && plan->one_head ? 1 : plan->one_head ? d->batch : plan->one_batch ? d->kv_heads : columns;
    const int64_t most = plan->slots == 1 ? 1 : (4 * plan->slots + plan->strips - 1) / plan->strips;
    for (int64_t n; s->column < columns; s->column += n) {
        n = limit - s->column % limit < most ? limit - s->column % limit : most;
        for (s->round = 0; s->round < plan->strips; s->round++) take(s, pair, n * plan->strips);
    }
}

void attn_backward_exec(const struct attn_backward_plan *plan, void *work)
{
    const attn_desc *d = &plan->run.d;
    struct step      s = {.plan = plan, .work = (char *)(((uintptr_t)work + 63) & ~(uintptr_t)63)};
    memset(s.work + plan->dk_sums, 0, plan->place_sums - plan->dk_sums);
    take(&s, prepare, plan->run.tasks);
    run_pairs(&s);
    if (plan->g.dq.data || plan->bias == ATTN_BIAS_PLACES) take(&s, store, plan->run.tasks);
    if ((plan->g.dk.data && d->dim) || (plan->g.dv.data && d->value_dim))
        take(&s, store_keys, d->batch * d->kv_heads * ((d->keys + ATTN_TILE - 1) / ATTN_TILE));
    take(&s, store_sums, 1);
}
