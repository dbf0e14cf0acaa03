/* backward_store.c: gradients on their way out: scaled, added to what stands there if asked, rounded once.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "internal.h"

double attn_backward_get(const attn_in *t, int64_t b, int64_t h, int64_t i)
{
    const char *at = attn_task_element(t->data, t->stride, t->dtype, b, h, i);
    return t->dtype == ATTN_F64 ? *(const double *)(const void *)at : (double)*(const float *)(const void *)at;
}

/* ---- lines ----------------------------------------------------------------------------------------------------------------------------- */

/* n numbers of the kernel's, times a factor, to elements `stride` apart; added to what they hold if `add`. A factor may be too large for a float. */
static void put_line(const struct attn_backward_plan *plan, const struct attn_convert *to, char *at, int64_t stride, const void *line,
                     int64_t n, double factor, int add)
{
    float  f[ATTN_TILE], old_f[ATTN_TILE];
    double x[ATTN_TILE], old[ATTN_TILE];
    if (plan->run.kernel->real_bytes == 4) {
        const float *from = line;
        for (int64_t i = 0; i < n; i++) f[i] = factor == 1 ? from[i] : (float)((double)from[i] * factor);
        if (add) to->load_f32(old_f, at, stride, n);
        for (int64_t i = 0; add && i < n; i++) f[i] += old_f[i];
        to->store_f32(at, stride, f, n);
    } else {
        const double *from = line;
        for (int64_t i = 0; i < n; i++) x[i] = from[i] * factor;
        if (add) to->load_f64(old, at, stride, n);
        for (int64_t i = 0; add && i < n; i++) x[i] += old[i];
        to->store_f64(at, stride, x, n);
    }
}

static char *place(const attn_out *t, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return (char *)attn_task_element(t->data, t->stride, t->dtype, b, h, i) + c * t->stride[3] * attn_width(t->dtype);
}

/* A row of any length, its numbers one after another, or zeros if line is NULL. */
static void put_row(const struct attn_backward_plan *plan, const attn_out *t, int64_t b, int64_t h, int64_t i, const char *line, int64_t n,
                    double factor, int add)
{
    static const double zeros[ATTN_TILE];
    for (int64_t at = 0; at < n; at += ATTN_TILE)
        put_line(plan, attn_plan_convert(t->dtype), place(t, b, h, i, at), t->stride[3],
                 line ? line + at * plan->run.kernel->real_bytes : (const char *)zeros, n - at < ATTN_TILE ? n - at : ATTN_TILE, factor,
                 add);
}

/* ---- the bias, place by place ---------------------------------------------------------------------------------------------------------- */

static int in_work(const struct attn_backward_plan *plan)
{
    return plan->bias == ATTN_BIAS_PLACES && !plan->places.data;
}

static attn_out places(const struct attn_backward_plan *plan, char *work)
{
    attn_out t = plan->places;
    if (!t.data) t.data = work + plan->place_sums;
    return t;
}

/* Whether this task's rows are the ones that stand for all that share their places. */
static int leads(const struct attn_backward_plan *plan, const struct attn_task *t)
{
    return !(plan->one_batch && t->batch) && !(plan->one_head && t->rows[0].head);
}

/* What places start from. */
void attn_backward_clear(const struct attn_backward_plan *plan, char *work, const struct attn_task *t)
{
    const attn_out to = places(plan, work);
    if (plan->bias != ATTN_BIAS_PLACES || !leads(plan, t) || (plan->g.accumulate && !in_work(plan))) return;
    for (int64_t r = 0; r < t->block.m; r++) put_row(plan, &to, t->batch, t->rows[r].head, t->rows[r].query, 0, plan->run.d.keys, 1, 0);
}

/* The tile's ds to its places. */
void attn_backward_add_places(const struct attn_backward_plan *plan, char *work, const struct attn_task *t, const struct attn_tile *tile,
                              int64_t first, char *lines, const void *ds)
{
    const attn_out to = places(plan, work);
    plan->run.kernel->unload(&t->block, lines, ATTN_TILE, ds, ATTN_TILE, 0, tile->keys);
    for (int64_t r = 0; r < t->block.m; r++)
        put_line(plan, attn_plan_convert(to.dtype),
                 place(&to, t->batch, t->rows[r].head, t->rows[r].query, attn_key_start(&plan->run.d, t->batch) + first), to.stride[3],
                 lines + r * ATTN_TILE * plan->run.kernel->real_bytes, tile->keys, 1, 1);
}

/* ---- queries and keys ------------------------------------------------------------------------------------------------------------------ */

/* A task's dq, and its rows of the bias's gradient where that was summed up in the work. */
void attn_backward_store(const struct attn_backward_plan *plan, char *work, struct attn_task *t, int64_t index, char *lines)
{
    const attn_desc *d = &plan->run.d;
    const int64_t    real = plan->run.kernel->real_bytes, rows = plan->run.kernel->rows * real;
    const char      *sums = work + plan->dq_sums + index * d->dim * rows;
    for (int64_t at = 0; plan->g.dq.data && at < d->dim; at += ATTN_TILE) {
        const int64_t n = d->dim - at < ATTN_TILE ? d->dim - at : ATTN_TILE;
        plan->run.kernel->unload(&t->block, lines, ATTN_TILE, sums, d->dim, at, n);
        for (int64_t r = 0; r < t->block.m; r++)
            put_line(plan, plan->dq, place(&plan->g.dq, t->batch, t->rows[r].head, t->rows[r].query, at), plan->g.dq.stride[3],
                     lines + r * ATTN_TILE * real, n, d->scale, plan->g.accumulate);
    }
    if (!in_work(plan) || !leads(plan, t)) return;
    const attn_out from = places(plan, work);
    for (int64_t r = 0; r < t->block.m; r++)
        put_row(plan, &plan->g.dbias, t->batch, t->rows[r].head, t->rows[r].query,
                place(&from, t->batch, t->rows[r].head, t->rows[r].query, 0), d->keys, 1, plan->g.accumulate);
}

/* dk and dv of key j of a key head. */
void attn_backward_store_key(const struct attn_backward_plan *plan, const char *work, int64_t b, int64_t g, int64_t j)
{
    const attn_desc *d = &plan->run.d;
    const int64_t    real = plan->run.kernel->real_bytes, row = (b * d->kv_heads + g) * d->keys + j;
    if (plan->g.dk.data)
        put_row(plan, &plan->g.dk, b, g, j, work + plan->dk_sums + row * plan->dim * real, d->dim, d->scale, plan->g.accumulate);
    if (plan->g.dv.data)
        put_row(plan, &plan->g.dv, b, g, j, work + plan->dv_sums + row * plan->value_dim * real, d->value_dim, 1, plan->g.accumulate);
}

/* ---- sums over everything else --------------------------------------------------------------------------------------------------------- */

static double number(const struct attn_backward_plan *plan, const char *array, int64_t at)
{
    return plan->run.kernel->real_bytes == 4 ? (double)((const float *)(const void *)array)[at] : ((const double *)(const void *)array)[at];
}

/* A query's number in an array of [task][rows]. */
static double row_number(const struct attn_backward_plan *plan, const char *array, int64_t b, int64_t h, int64_t i)
{
    const int64_t task = (b * plan->run.d.heads + h) * plan->run.query_blocks + i / plan->run.block_queries;
    return number(plan, array, task * plan->run.kernel->rows + i % plan->run.block_queries);
}

static double bias_number(const struct attn_backward_plan *plan, const char *work, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (plan->bias == ATTN_BIAS_ROWS) return row_number(plan, work + plan->sum, b, h, i);
    return number(plan, work + plan->columns, (b * plan->run.d.heads + h) * plan->run.d.keys + j);
}

static double slope_number(const struct attn_backward_plan *plan, const char *work, int64_t b, int64_t h, int64_t i, int64_t j)
{
    (void)j;
    return -row_number(plan, work + plan->away, b, h, i);
}

static double sink_number(const struct attn_backward_plan *plan, const char *work, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const attn_desc *d = &plan->run.d;
    const double     sink = attn_backward_get(&d->sink, 0, h, 0), lse = attn_backward_get(&plan->g.lse, b, h, i);
    (void)j;
    if (i >= attn_query_count(d, b) || lse == -INFINITY || sink == -INFINITY) return 0;
    return -exp(sink - lse) * row_number(plan, work + plan->delta, b, h, i);
}

typedef double number_fn(const struct attn_backward_plan *plan, const char *work, int64_t b, int64_t h, int64_t i, int64_t j);

/* t[b,h,i,j] = what `of` says, over axes of so many entries, summed over those where t has one entry (step 0); the axes from `last` on, and the first
 * one unless `batch`, t does not have at all. */
static void sum_up(const struct attn_backward_plan *plan, const char *work, const attn_out *t, const int64_t size[4], int batch, int last,
                   number_fn *of)
{
    int64_t kept[4], at[4], k[4];
    for (int a = 0; a < 4; a++) kept[a] = a >= last || (a == 0 && !batch) ? 1 : attn_check_kept(t, a, size[a]);
    const int64_t batches =
        size[1] && size[2] && size[3] ? size[0] : 0; /* nothing to sum, or nowhere to: however many there are of the others */
    if (!kept[1] || !kept[2] || !kept[3]) return;
    for (k[0] = 0; k[0] < kept[0]; k[0]++)
        for (k[1] = 0; k[1] < kept[1]; k[1]++)
            for (k[2] = 0; k[2] < kept[2]; k[2]++)
                for (k[3] = 0; k[3] < kept[3]; k[3]++) {
                    double sum = 0;
                    for (at[0] = k[0]; at[0] < batches; at[0] += kept[0])
                        for (at[1] = k[1]; at[1] < size[1]; at[1] += kept[1])
                            for (at[2] = k[2]; at[2] < size[2]; at[2] += kept[2])
                                for (at[3] = k[3]; at[3] < size[3]; at[3] += kept[3]) sum += of(plan, work, at[0], at[1], at[2], at[3]);
                    const float f = (float)sum;
                    put_line(plan, attn_plan_convert(t->dtype), place(t, k[0], k[1], k[2], k[3]), 1,
                             plan->run.kernel->real_bytes == 4 ? (const void *)&f : (const void *)&sum, 1, 1, plan->g.accumulate);
                }
}

void attn_backward_store_sums(const struct attn_backward_plan *plan, const char *work)
{
    const attn_desc *d = &plan->run.d;
    const int64_t    queries[] = {d->batch, d->heads, d->queries, 1};
    const int        pairs = plan->run.tasks && d->keys;
    /* numbers per query are summed over the keys already, numbers per key over the queries; where there are no pairs everything is 0 */
    const int64_t bias[] = {d->batch, d->heads, pairs && plan->bias == ATTN_BIAS_COLUMNS ? 1 : d->queries,
                            pairs && plan->bias == ATTN_BIAS_ROWS ? 1 : d->keys};
    if (plan->g.dbias.dtype && (plan->bias != ATTN_BIAS_PLACES || !pairs)) sum_up(plan, work, &plan->g.dbias, bias, 1, 4, bias_number);
    if (plan->g.dalibi.data) sum_up(plan, work, &plan->g.dalibi, queries, 1, 2, slope_number);
    if (plan->g.dsink.data) sum_up(plan, work, &plan->g.dsink, queries, 0, 2, sink_number);
}
