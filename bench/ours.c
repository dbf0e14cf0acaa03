/* ours.c: attn_run on a problem, prepared once: descriptor and workspace, so that a call allocates nothing.
 * SPDX-License-Identifier: MIT
 */
#include "bench.h"
#include <stdlib.h>

struct ours {
    attn_desc desc;
    size_t    bytes;
};

static void set_mask(attn_desc *d, const struct problem *p)
{
    const struct row *row = &p->row;
    if (row->mask == MASK_CAUSAL || row->mask == MASK_WINDOW || row->mask == MASK_PADDING_CAUSAL) {
        d->causal = 1;
        d->align = ATTN_ALIGN_TOP_LEFT;
    }
    if (row->mask == MASK_WINDOW) d->window = 1, d->window_left = row->window - 1, d->window_right = -1;
    if (p->lengths) d->query_count = d->key_count = p->lengths;
    if (p->allow) d->allow = attn_in_strided(p->allow, ATTN_BOOL, p->mask_stride);
    if (p->bias) d->bias = attn_in_strided(p->bias, ATTN_F32, p->mask_stride);
}

void *bench_ours_new(struct problem *p, const char *isa, const attn_executor *threads, size_t *work_bytes)
{
    const struct row *row = &p->row;
    struct ours      *ours = calloc(1, sizeof *ours);
    attn_error        error;
    if (!ours) exit(1);
    attn_desc d = attn_desc_new();
    d.batch = row->batch, d.heads = row->heads, d.kv_heads = row->kv_heads;
    d.queries = row->queries, d.keys = row->keys, d.dim = d.value_dim = row->dim;
    d.q = attn_in_strided(p->q, row->dtype, p->q_stride);
    d.k = attn_in_strided(p->k, row->dtype, p->k_stride);
    d.v = attn_in_strided(p->v, row->dtype, p->k_stride);
    d.out = attn_out_strided(p->out, row->dtype, p->q_stride);
    d.isa = isa, d.executor = threads;
    set_mask(&d, p);
    if (attn_work_bytes(&d, &ours->bytes, &error) != ATTN_OK) {
        fprintf(stderr, "bench: %s: %s\n", row->name, error.message);
        free(ours);
        return NULL;
    }
    *work_bytes = ours->bytes;
    if (!(d.work = malloc(ours->bytes))) exit(1); /* not on large pages, which would blur the peak of memory */
    d.work_bytes = ours->bytes;
    ours->desc = d;
    return ours;
}

int bench_ours_run(void *ours)
{
    attn_error error;
    int        status = attn_run(&((struct ours *)ours)->desc, &error);
    if (status) fprintf(stderr, "bench: %s\n", error.message);
    return status;
}

void bench_ours_free(void *ours)
{
    struct ours *o = ours;
    if (o) free(o->desc.work);
    free(o);
}

static int call(struct contender *c)
{
    return bench_ours_run(c->state);
}

static void close_ours(struct contender *c)
{
    bench_ours_free(c->state);
}

const char *ours_open(struct contender *c, const attn_executor *threads)
{
    c->state = bench_ours_new(c->problem, c->isa, threads, &c->work_bytes);
    c->call = call, c->close = close_ours;
    return c->state ? NULL : "attn refuses it";
}
