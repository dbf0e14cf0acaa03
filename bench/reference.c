/* reference.c: some rows of the result in double precision, straight from the formula.
 * SPDX-License-Identifier: MIT
 */
#include "bench.h"
#include <math.h>
#include <stdlib.h>

enum { ROWS = 48 };

struct reference {
    int64_t count, dim;
    int64_t at[ROWS][3]; /* batch entry, head, query */
    double *out;         /* [count][dim] */
};

/* One row into out[dim], its scores by way of weight[keys]. */
static void compute(const struct problem *p, const int64_t at[3], double *weight, double *out)
{
    const struct row *row = &p->row;
    int64_t           b = at[0], h = at[1], i = at[2], g = h / (row->heads / row->kv_heads), dim = row->dim;
    double            top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < row->keys; j++) {
        int64_t q = b * p->q_stride[0] + h * p->q_stride[1] + i * p->q_stride[2];
        int64_t k = b * p->k_stride[0] + g * p->k_stride[1] + j * p->k_stride[2];
        int64_t m = b * p->mask_stride[0] + h * p->mask_stride[1] + i * p->mask_stride[2] + j;
        double  x = 0;
        weight[j] = -INFINITY;
        if (!row_sees(row, b, i, j) || (p->allow && !p->allow[m])) continue;
        for (int64_t c = 0; c < dim; c++) x += problem_get(p->q, row->dtype, q + c) * problem_get(p->k, row->dtype, k + c);
        weight[j] = x / sqrt((double)dim) + (p->bias ? (double)p->bias[m] : 0);
        if (weight[j] > top) top = weight[j];
    }
    for (int64_t c = 0; c < dim; c++) out[c] = 0;
    for (int64_t j = 0; j < row->keys; j++) {
        int64_t v = b * p->k_stride[0] + g * p->k_stride[1] + j * p->k_stride[2];
        if (weight[j] == -INFINITY) continue;
        double w = exp(weight[j] - top);
        sum += w;
        for (int64_t c = 0; c < dim; c++) out[c] += w * problem_get(p->v, row->dtype, v + c);
    }
    for (int64_t c = 0; c < dim; c++) out[c] /= sum;
}

/* The first and the last query, and others scattered between; only queries that there are. */
struct reference *bench_reference_new(const struct problem *p)
{
    const struct row *row = &p->row;
    int64_t           all = row->batch * row->heads * row->queries;
    struct reference *r = calloc(1, sizeof *r);
    double           *weight = malloc((size_t)row->keys * sizeof *weight);
    if (!r || !weight || !(r->out = malloc((size_t)(ROWS * row->dim) * sizeof *r->out))) exit(1);
    r->dim = row->dim;
    for (int64_t n = 0; n < ROWS && r->count < all; n++) {
        int64_t flat = n == 0 ? 0 : n == 1 ? all - 1 : all <= ROWS ? n - 1 : (int64_t)((uint64_t)n * 2654435761u % (uint64_t)all);
        int64_t at[3] = {flat / (row->heads * row->queries), flat / row->queries % row->heads, flat % row->queries};
        if (p->lengths) at[2] %= row_length(row, at[0]);
        for (int a = 0; a < 3; a++) r->at[r->count][a] = at[a];
        compute(p, at, weight, r->out + r->count++ * row->dim);
    }
    free(weight);
    return r;
}

void bench_reference_free(struct reference *r)
{
    if (r) free(r->out);
    free(r);
}

double bench_error(const struct reference *r, const void *out, int32_t dtype, const int64_t stride[4])
{
    double worst = 0, largest = 0;
    for (int64_t n = 0; n < r->count; n++)
        for (int64_t c = 0; c < r->dim; c++) {
            double want = r->out[n * r->dim + c];
            double got =
                problem_get(out, dtype, r->at[n][0] * stride[0] + r->at[n][1] * stride[1] + r->at[n][2] * stride[2] + c * stride[3]);
            if (!isfinite(got)) return INFINITY;
            worst = fmax(worst, fabs(got - want)), largest = fmax(largest, fabs(want));
        }
    return largest > 0 ? worst / largest : worst;
}

double bench_error_limit(int32_t dtype)
{
    return dtype == ATTN_F32 ? 2e-5 : dtype == ATTN_F16 ? 1e-2 : 3e-2;
}
