/* inspect.c: attn_inspect on a problem, everything that it sums up at once, from the lse of a run.
 * SPDX-License-Identifier: MIT
 */
#include "bench.h"
#include <math.h>
#include <stdlib.h>

enum { TOP = 8, CELLS = 256, OUTPUTS = 8 };

struct looking {
    attn_desc         desc;
    attn_inspect_desc what;
    void             *lse, *out[OUTPUTS];
    double           *received;
};

static attn_out output(struct looking *l, int at, int32_t dtype, int64_t rows, int64_t columns)
{
    const attn_desc *d = &l->desc;
    attn_out         t;
    l->out[at] = calloc((size_t)(d->batch * d->heads * rows * columns) + 1, attn_dtype_bytes(dtype));
    if (!l->out[at]) exit(1);
    t = attn_out_dense(l->out[at], dtype, d->heads, rows, columns);
    if (columns == 1) t.stride[3] = 0;
    return t;
}

static int call(struct contender *c)
{
    struct looking *l = c->state;
    return attn_inspect(&l->desc, &l->what, NULL);
}

static void close_looking(struct contender *c)
{
    struct looking *l = c->state;
    for (int i = 0; i < OUTPUTS; i++) free(l->out[i]);
    free(l->lse), free(l->what.work), free(l);
}

/* The weights that the keys of a head receive are as many as its queries that see anything: here all. */
static int is_right(const struct looking *l)
{
    const attn_desc *d = &l->desc;
    for (int64_t h = 0; h < d->batch * d->heads; h++) {
        double sum = 0;
        for (int64_t j = 0; j < d->keys; j++) sum += l->received[h * d->keys + j];
        if (!(fabs(sum / (double)d->queries - 1) <= bench_error_limit(ATTN_F32))) return 0;
    }
    return 1;
}

const char *inspect_open(struct contender *c, void *ours, const attn_executor *threads)
{
    struct looking *l = calloc(1, sizeof *l);
    attn_error      e;
    if (!l) exit(1);
    l->desc = *(const attn_desc *)ours; /* the call of ours.c; an lse is what it lacks */
    attn_desc *d = &l->desc;
    d->executor = threads;
    const int64_t rows = d->queries < CELLS ? d->queries : CELLS, columns = d->keys < CELLS ? d->keys : CELLS;
    if (!(l->lse = calloc((size_t)(d->batch * d->heads * d->queries) + 1, sizeof(float)))) exit(1);
    d->lse = attn_out_dense(l->lse, ATTN_F32, d->heads, d->queries, 1), d->lse.stride[3] = 0;
    attn_inspect_desc *w = &l->what;
    *w = attn_inspect_desc_new();
    w->lse = attn_in_dense(l->lse, ATTN_F32, d->heads, d->queries, 1), w->lse.stride[3] = 0;
    w->top = TOP, w->mass_left = 64, w->map_rows = rows, w->map_columns = columns;
    w->entropy = output(l, 0, ATTN_F32, d->queries, 1), w->first_mass = output(l, 1, ATTN_F32, d->queries, 1);
    w->window_mass = output(l, 2, ATTN_F32, d->queries, 1), w->received = output(l, 3, ATTN_F64, d->keys, 1);
    w->top_weight = output(l, 4, ATTN_F32, d->queries, TOP), w->top_key = output(l, 5, ATTN_I64, d->queries, TOP);
    w->map_mean = output(l, 6, ATTN_F32, rows, columns), w->map_max = output(l, 7, ATTN_F32, rows, columns);
    l->received = l->out[3];
    c->state = l, c->call = call, c->close = close_looking;
    if (attn_inspect_work_bytes(d, w, &c->work_bytes, &e) || !(w->work = malloc(c->work_bytes))) return "attn_inspect refuses it";
    w->work_bytes = c->work_bytes;
    if (attn_run(d, &e) || attn_inspect(d, w, &e)) return "the call failed";
    return is_right(l) ? NULL : "WRONG RESULT";
}
