/* row_check.c: the kernels' results for one row beside the numbers of row.c.
 * SPDX-License-Identifier: MIT
 */
#include "explain.h"

#include <math.h>
#include <stdlib.h>

typedef struct results {
    double *out, *weight, lse;
} results;

void row_slice(attn_desc *part, const attn_desc *d, int64_t b, int64_t h, int64_t i, int64_t count, int64_t place[4])
{
    const int64_t  g = h / (d->heads / d->kv_heads), used = seen_query_count(d, b) - i;
    attn_in *const in[] = {&part->q, &part->k, &part->v, &part->allow, &part->bias, &part->alibi, &part->sink};
    const int64_t  at[][3] = {{b, h, i}, {b, g, 0}, {b, g, 0}, {b, h, i}, {b, h, i}, {b, h, 0}, {0, h, 0}};
    *part = *d;
    part->batch = part->heads = part->kv_heads = 1, part->queries = count;
    for (int n = 0; n < 7; n++) {
        if (!in[n]->data) continue;
        int64_t offset = 0;
        for (int a = 0; a < 3; a++) offset += at[n][a] * in[n]->stride[a];
        in[n]->data = (const char *)in[n]->data + offset * (int64_t)attn_dtype_bytes(in[n]->dtype);
        in[n]->bytes = 0;
    }
    place[0] = i + seen_offset(d, b), place[1] = used < 0 ? 0 : used < count ? used : count;
    place[2] = seen_key_count(d, b), place[3] = seen_key_start(d, b);
    part->align = 0;
    part->query_offset = place, part->query_count = place + 1, part->key_count = place + 2, part->key_start = place + 3;
    part->work = NULL, part->work_bytes = 0;
}

/* Replaces an operand of the one row by an f64 copy at *to: rows x columns elements. */
static void widen(attn_in *in, int64_t rows, int64_t columns, int row_axis, int column_axis, double **to)
{
    if (!in->data) return;
    const io_array a = {.data = (void *)in->data, .dtype = in->dtype};
    double *const  copy = *to;
    for (int64_t x = 0; x < rows; x++)
        for (int64_t y = 0; y < columns; y++) *(*to)++ = io_get(&a, x * in->stride[row_axis] + y * in->stride[column_axis]);
    *in = (attn_in){copy, {0}, 0, ATTN_F64, 0};
    if (row_axis != column_axis) in->stride[row_axis] = columns;
    in->stride[column_axis] = 1;
}

static int run(const attn_desc *call, int32_t real, io_array *room, results *got)
{
    const int64_t dv = call->value_dim, n = call->keys, count = dv + n + 1;
    attn_desc     d = *call;
    attn_error    e;
    if (!convert_new(room, real, 1, &count)) return out_fail(CLI_OUTPUT, "no memory for the check");
    char *const  at = room->data;
    const size_t size = io_dtype_bytes(real);
    d.out = attn_out_dense(at, real, 1, 1, dv);
    d.weights = attn_out_dense(at + (size_t)dv * size, real, 1, 1, n);
    d.weights_stage = ATTN_STAGE_WEIGHT;
    d.lse = (attn_out){at + (size_t)(dv + n) * size, {0}, 0, real, 0};
    if (attn_run(&d, &e)) return out_library(&e);
    for (int64_t c = 0; c < dv; c++) got->out[c] = io_get(room, c);
    for (int64_t j = 0; j < n; j++) got->weight[j] = io_get(room, dv + j);
    got->lse = io_get(room, dv + n);
    return CLI_OK;
}

/* How far apart, and whether further than accepted; numbers that are not finite must stand in the same places. */
static double apart(double got, double want, double absolute, double relative, int32_t *ok)
{
    if (isfinite(got) && isfinite(want)) {
        const double error = fabs(got - want);
        *ok = *ok && error <= absolute + relative * fabs(want);
        return error;
    }
    *ok = *ok && (got == want || (!isfinite(got) && isnan(want))); /* an lse of +inf may also be NaN */
    return got == want || isnan(want) ? 0 : NAN;
}

/* The table's bounds of a type, wider by how inexact large scores are. */
static void bounds(int32_t dtype, const cli_row *r, double *absolute, double *relative)
{
    const double wider = isfinite(r->terms) ? ldexp(r->terms, dtype == ATTN_F64 ? -50 : -21) : 0;
    compare_tolerance(dtype, absolute, relative);
    *absolute += wider, *relative += wider;
}

/* Weights and lse are kept in f32 (f64 with f64 inputs), and so judged. A row alone may cancel out: its output is measured by what was mixed. */
static void judge(row_check *c, int n, const cli_row *r, const results *got)
{
    const int32_t dtype = c->kernel[n].dtype, real = dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    double        absolute, relative;
    int32_t      *ok = &c->kernel[n].ok;
    *ok = 1;
    bounds(dtype, r, &absolute, &relative);
    for (int64_t i = 0; i < r->desc->value_dim; i++)
        c->kernel[n].out = fmax(c->kernel[n].out, apart(got->out[i], r->out[i], absolute * r->mixed, relative, ok));
    c->kernel[n].out_accepted = (absolute + relative) * r->mixed;
    bounds(real, r, &absolute, &relative);
    for (int64_t j = 0; j < r->desc->keys; j++) {
        c->kernel[n].weight = fmax(c->kernel[n].weight, apart(got->weight[j], r->key[j].weight, absolute, relative, ok));
        if (r->key[j].hidden && got->weight[j] != 0) *ok = 0; /* exactly 0 where not seen */
    }
    c->kernel[n].lse = apart(got->lse, r->lse, absolute * fmax(1, fabs(r->lse)), relative, ok);
    c->kernel[n].accepted = absolute + relative;
}

int row_check_run(row_check *c, const cli_row *r)
{
    const attn_desc *d = r->desc;
    const int64_t    keys = d->keys, sizes[] = {d->dim, keys * d->dim, keys * d->value_dim, keys, 2, d->value_dim + keys};
    int64_t          place[4], count = 1;
    attn_desc        one;
    io_array         room = {0};
    row_slice(&one, d, r->batch, r->head, r->query, 1, place);
    for (int n = 0; n < 6; n++) count += sizes[n];
    double *const wide = malloc((size_t)count * sizeof *wide), *to = wide;
    if (!wide) return out_fail(CLI_OUTPUT, "no memory for the check");
    results got = {wide, wide + d->value_dim, 0};
    to += d->value_dim + keys;
    memset(c, 0, sizeof *c);
    c->kernel[0].dtype = d->q.dtype, c->kernel[1].dtype = ATTN_F64;
    int code = run(&one, d->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, &room, &got);
    if (!code) judge(c, 0, r, &got);
    io_free(&room);
    widen(&one.q, 1, d->dim, 2, 3, &to), widen(&one.k, keys, d->dim, 2, 3, &to), widen(&one.v, keys, d->value_dim, 2, 3, &to);
    widen(&one.bias, 1, keys, 2, 3, &to), widen(&one.alibi, 1, 1, 1, 1, &to), widen(&one.sink, 1, 1, 1, 1, &to);
    if (!code) code = run(&one, ATTN_F64, &room, &got);
    if (!code) judge(c, 1, r, &got);
    io_free(&room);
    free(wide);
    return code;
}
