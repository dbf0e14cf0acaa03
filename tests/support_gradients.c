/* support_gradients.c: the gradients of attn.h in double, every score held in memory, and the comparison against them.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static const char *const names[GRADIENTS] = {"dq", "dk", "dv", "dbias", "dsink", "dalibi"};

static double in_get(const attn_in *t, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return element_get(t->data, t->dtype, b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + c * t->stride[3]);
}

static const attn_out *output(const attn_backward_desc *back, int which)
{
    const attn_out *const all[GRADIENTS] = {&back->dq, &back->dk, &back->dv, &back->dbias, &back->dsink, &back->dalibi};
    return all[which];
}

/* Element [b,h,i,j] of a gradient, where axes with one entry repeat. */
static int64_t place(const gradients *g, int which, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t *s = g->shape[which];
    return (((s[0] > 1 ? b : 0) * s[1] + (s[1] > 1 ? h : 0)) * s[2] + (s[2] > 1 ? i : 0)) * s[3] + (s[3] > 1 ? j : 0);
}

static int64_t count(const gradients *g, int which)
{
    const int64_t *s = g->shape[which];
    return s[0] * s[1] * s[2] * s[3];
}

/* Sizes of terms, summed up beside the values. */
struct sizes {
    double *of[GRADIENTS];
};

static void add(gradients *g, struct sizes *sizes, int which, int64_t at, double term, double size)
{
    g->value[which][at] += term;
    if (isfinite(size)) sizes->of[which][at] += size;
}

/* One query: row r of dense references of weights (p) and capped scores. */
static void row(gradients *g, struct sizes *sizes, const attn_desc *d, const attn_backward_desc *back, const reference *p,
                const reference *capped, int64_t b, int64_t h, int64_t i)
{
    const int64_t at = (b * d->heads + h) * d->queries + i, kg = h / (d->heads / d->kv_heads);
    const double  scale = d->scale_given ? d->scale : d->dim ? 1 / sqrt((double)d->dim) : 0, lse = p->lse[at];
    const double  dz = back->d_lse.data ? in_get(&back->d_lse, b, h, i, 0) : 0;
    const int64_t count_q = d->query_count ? d->query_count[b] : d->queries, start = d->key_start ? d->key_start[b] : 0;
    const int64_t keys = d->key_count ? d->key_count[b] : d->keys - start;
    const int64_t offset = d->query_offset ? d->query_offset[b] : d->align == ATTN_ALIGN_BOTTOM_RIGHT ? keys - count_q : 0;
    double       *dp = calloc((size_t)d->keys * 2 + 2, sizeof *dp), *size = dp + d->keys + 1, delta = 0, all = fabs(dz);
    if (i >= count_q || lse == -INFINITY) {
        free(dp);
        return;
    }
    for (int64_t j = 0; j < d->keys; j++) {
        if (!p->seen[at * d->keys + j]) continue;
        for (int64_t c = 0; c < d->value_dim; c++) {
            const double term = in_get(&back->d_out, b, h, i, c) * in_get(&d->v, b, kg, j, c);
            dp[j] += term, size[j] += fabs(term);
        }
        delta += p->weights[at * d->keys + j] * dp[j], all += p->weights[at * d->keys + j] * size[j];
    }
    for (int64_t j = 0; j < d->keys; j++) {
        if (!p->seen[at * d->keys + j]) continue;
        const double w = p->weights[at * d->keys + j], ds = w * (dp[j] - delta + dz), most = w * (size[j] + all);
        const double turn = d->softcap > 0 ? capped->weights[at * d->keys + j] / d->softcap : 0, dx = ds * (1 - turn * turn);
        for (int64_t c = 0; c < d->dim; c++) {
            const double q = in_get(&d->q, b, h, i, c), k = in_get(&d->k, b, kg, j, c);
            add(g, sizes, BY_Q, place(g, BY_Q, b, h, i, c), scale * dx * k, fabs(scale * most * k));
            add(g, sizes, BY_K, place(g, BY_K, b, kg, j, c), scale * dx * q, fabs(scale * most * q));
        }
        for (int64_t c = 0; c < d->value_dim; c++) {
            const double term = w * in_get(&back->d_out, b, h, i, c);
            add(g, sizes, BY_V, place(g, BY_V, b, kg, j, c), term, fabs(term));
        }
        if (g->value[BY_BIAS]) add(g, sizes, BY_BIAS, place(g, BY_BIAS, b, h, i, j), ds, most);
        const double away = fabs((double)(i + offset - (j - start)));
        if (g->value[BY_ALIBI]) add(g, sizes, BY_ALIBI, place(g, BY_ALIBI, b, h, 0, 0), -away * ds, away * most);
    }
    if (g->value[BY_SINK]) {
        const double share = exp(in_get(&d->sink, 0, h, 0, 0) - lse);
        add(g, sizes, BY_SINK, place(g, BY_SINK, 0, h, 0, 0), share * (dz - delta), share * all);
    }
    free(dp);
}

static void shapes(gradients *g, const attn_desc *d, const attn_backward_desc *back)
{
    const int64_t all[GRADIENTS][4] = {{d->batch, d->heads, d->queries, d->dim},
                                       {d->batch, d->kv_heads, d->keys, d->dim},
                                       {d->batch, d->kv_heads, d->keys, d->value_dim},
                                       {d->batch, d->heads, d->queries, d->keys},
                                       {1, d->heads, 1, 1},
                                       {d->batch, d->heads, 1, 1}};
    for (int w = 0; w < GRADIENTS; w++)
        for (int a = 0; a < 4; a++) g->shape[w][a] = w >= BY_BIAS && output(back, w)->stride[a] == 0 ? 1 : all[w][a];
}

void gradients_make(gradients *g, const attn_desc *d, const attn_backward_desc *back)
{
    static char  asked;
    attn_desc    copy = *d;
    reference    p, capped;
    struct sizes sizes;
    memset(g, 0, sizeof *g);
    shapes(g, d, back);
    copy.weights = (attn_out){&asked, {0, 0, 0, 0}, 0, ATTN_F64, 0}; /* the reference only looks whether they are there */
    copy.weights_stage = ATTN_STAGE_WEIGHT;
    reference_make(&p, &copy);
    copy.weights_stage = ATTN_STAGE_CAPPED;
    reference_make(&capped, &copy);
    for (int w = 0; w < GRADIENTS; w++) {
        const int there = w < BY_BIAS || (w == BY_BIAS ? d->bias.data : w == BY_SINK ? d->sink.data : d->alibi.data) != NULL;
        g->value[w] = there ? calloc((size_t)count(g, w) + 1, sizeof(double)) : NULL;
        sizes.of[w] = calloc((size_t)count(g, w) + 1, sizeof(double));
    }
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads; h++)
            for (int64_t i = 0; i < d->queries; i++) {
                const int64_t at = (b * d->heads + h) * d->queries + i;
                row(g, &sizes, d, back, &p, &capped, b, h, i);
                if (isfinite(p.size_seen[at]) && p.size_seen[at] > g->size) g->size = p.size_seen[at];
            }
    for (int w = 0; w < GRADIENTS; w++) {
        for (int64_t at = 0; at < count(g, w); at++) g->largest[w] = fmax(g->largest[w], sizes.of[w][at]);
        free(sizes.of[w]);
    }
    reference_free(&p), reference_free(&capped);
}

void gradients_free(gradients *g)
{
    for (int w = 0; w < GRADIENTS; w++) free(g->value[w]);
    memset(g, 0, sizeof *g);
}

static int64_t compare_one(const gradients *g, const attn_desc *d, const attn_out *t, int w, const double *before)
{
    const int64_t *s = g->shape[w];
    const int32_t  dtype = multiplies_bf16(d) ? ATTN_BF16 : t->dtype; /* the out that the run left is no better then */
    int64_t        bad = 0, n = 0;
    for (int64_t b = 0; b < s[0]; b++)
        for (int64_t h = 0; h < s[1]; h++)
            for (int64_t i = 0; i < s[2]; i++)
                for (int64_t c = 0; c < s[3]; c++, n++) {
                    const double got =
                        element_get(t->data, t->dtype, b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + c * t->stride[3]);
                    const double want = g->value[w][n] + (before ? before[n] : 0);
                    const double allowed =
                        gradient_tolerance(dtype, d->q.dtype, g->largest[w] + (before ? fabs(before[n]) : 0), want, g->size);
                    if (fabs(got - want) <= allowed) continue;
                    if (isinf(got) && fabs(want) + allowed >= element_max(t->dtype) && (got > 0) == (want > 0)) continue;
                    if (bad++ < 4)
                        fprintf(stderr, "  %s[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]: want %.17g got %.17g, allowed %.3g\n",
                                names[w], b, h, i, c, want, got, allowed);
                }
    return bad;
}

int64_t gradients_compare(const gradients *g, const attn_desc *d, const attn_backward_desc *back, double *const before[GRADIENTS])
{
    int64_t bad = 0;
    for (int w = 0; w < GRADIENTS; w++)
        if (output(back, w)->data) bad += compare_one(g, d, output(back, w), w, before ? before[w] : NULL);
    return bad;
}
