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

/* ---- a problem and its way back ---------------------------------------------------------------------------------------------------- */

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static attn_out *field(attn_backward_desc *g, int which)
{
    attn_out *const all[GRADIENTS] = {&g->dq, &g->dk, &g->dv, &g->dbias, &g->dsink, &g->dalibi};
    return all[which];
}

void back_fill(view *w, rng *r)
{
    for (int64_t b = 0; b < w->shape[0]; b++)
        for (int64_t h = 0; h < w->shape[1]; h++)
            for (int64_t i = 0; i < w->shape[2]; i++)
                for (int64_t c = 0; c < w->shape[3]; c++) view_set(w, b, h, i, c, rng_normal(r));
}

/* Output `which`, an axis of the bias, sink or slopes that repeats being summed over. */
static void make_output(back *k, rng *r, int which, const int64_t full[4], const attn_in *of, int32_t dtype, int style)
{
    int64_t shape[4];
    int     lasting[4] = {0};
    for (int a = 0; a < 4; a++) {
        shape[a] = full[a];
        if (of && (of->stride[a] == 0 || full[a] == 1)) lasting[a] = 1, shape[a] = 1;
    }
    view_make(&k->to[which], r, dtype, shape, lasting, style, 1);
    *field(&k->g, which) = view_out(&k->to[which]);
    for (int a = 0; a < 4; a++)
        if (shape[a] == 1) field(&k->g, which)->stride[a] = 0;
}

void back_make(back *k, rng *r, int style)
{
    static const int none[4] = {0};
    const attn_desc *d = &k->p.d;
    const int32_t    inputs = d->q.dtype, real = inputs == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    const int64_t    out[] = {d->batch, d->heads, d->queries, d->value_dim}, row[] = {d->batch, d->heads, d->queries, 1};
    k->g = attn_backward_desc_new();
    view_make(&k->out, r, real, out, none, style, 1); /* what a run writes; in 16 bits it would be rounded before its time */
    view_make(&k->lse, r, real, row, (const int[]){0, 0, 0, 1}, style, 1);
    view_make(&k->d_out, r, rng_percent(r, 70) ? inputs : ATTN_F32, out, none, style, 0);
    back_fill(&k->d_out, r);
    k->g.d_out = view_in(&k->d_out);
    if (rng_percent(r, 50)) {
        view_make(&k->d_lse, r, real, row, (const int[]){0, 0, 0, 1}, style, 0);
        back_fill(&k->d_lse, r);
        k->g.d_lse = view_in(&k->d_lse);
    }
    const int32_t dtype = rng_percent(r, 70) ? inputs : ATTN_F32;
    make_output(k, r, BY_Q, (const int64_t[]){d->batch, d->heads, d->queries, d->dim}, NULL, dtype, style);
    make_output(k, r, BY_K, (const int64_t[]){d->batch, d->kv_heads, d->keys, d->dim}, NULL, dtype, style);
    make_output(k, r, BY_V, (const int64_t[]){d->batch, d->kv_heads, d->keys, d->value_dim}, NULL, dtype, style);
    if (d->bias.data) make_output(k, r, BY_BIAS, (const int64_t[]){d->batch, d->heads, d->queries, d->keys}, &d->bias, dtype, style);
    if (d->sink.data) make_output(k, r, BY_SINK, (const int64_t[]){1, d->heads, 1, 1}, &d->sink, real, style);
    if (d->alibi.data) make_output(k, r, BY_ALIBI, (const int64_t[]){d->batch, d->heads, 1, 1}, &d->alibi, real, style);
}

void back_free(back *k)
{
    view *const views[] = {&k->out, &k->lse, &k->d_out, &k->d_lse};
    for (size_t i = 0; i < COUNT(views); i++) view_free(views[i]);
    for (int w = 0; w < GRADIENTS; w++) view_free(&k->to[w]);
    problem_free(&k->p);
}

/* The run on this isa, whose out and lse flow back. */
void back_forward(back *k, const char *isa)
{
    attn_error e;
    attn_desc *d = &k->p.d;
    d->isa = isa;
    d->out = view_out(&k->out), d->lse = view_out(&k->lse), d->weights = (attn_out){0}, d->weights_stage = 0;
    if (attn_run(d, &e)) fprintf(stderr, "  the run is refused: %s\n", e.message);
    const attn_out *o = &d->out, *l = &d->lse;
    k->g.out = attn_in_strided(o->data, o->dtype, o->stride), k->g.lse = attn_in_strided(l->data, l->dtype, l->stride);
}

/* The way back in exactly the work that it asks for, full of NaN, before a page that cannot be touched. Returns the number of faults. */
int64_t back_check(back *k, const gradients *want, double *const before[GRADIENTS])
{
    attn_error e;
    size_t     bytes = 0;
    guarded    work;
    int64_t    bad = 0;
    attn_backward_work_bytes(&k->p.d, &k->g, &bytes, NULL); /* where it fails, attn_backward will say why */
    guarded_make(&work, bytes, bytes % 2 ? GUARD_BELOW : GUARD_ABOVE, 0xFF);
    k->g.work = work.bytes, k->g.work_bytes = bytes;
    report_faults(&k->p.d);
    int32_t code = attn_backward(&k->p.d, &k->g, &e);
    report_faults(NULL);
    if (code) {
        fprintf(stderr, "  refused with %d: %s\n", code, e.message);
        bad++;
    }
    for (int w = 0; w < GRADIENTS; w++)
        if (k->to[w].memory.bytes && view_broken(&k->to[w])) {
            fprintf(stderr, "  written %s the elements of gradient %d\n", view_broken(&k->to[w]), w);
            bad++;
        }
    if (guarded_broken(&work)) fprintf(stderr, "  written %s the work\n", guarded_broken(&work));
    bad += guarded_broken(&work) != NULL;
    if (!bad) bad = gradients_compare(want, &k->p.d, &k->g, before);
    guarded_free(&work);
    k->g.work = NULL, k->g.work_bytes = 0;
    return bad;
}

void back_refill(back *k)
{
    for (int w = 0; w < GRADIENTS; w++)
        if (k->to[w].memory.bytes) view_refill(&k->to[w]);
}

int64_t back_check_all(back *k, const char *what)
{
    gradients want;
    int64_t   bad = 0;
    gradients_make(&want, &k->p.d, &k->g);
    for (int i = 0; attn_isa_name(i); i++) {
        if (!attn_isa_usable(i)) continue;
        back_forward(k, attn_isa_name(i));
        back_refill(k);
        int64_t here = back_check(k, &want, NULL);
        if (here) {
            fprintf(stderr, "%s failed:\n", what);
            describe(&k->p.d, stderr);
        }
        bad += here;
    }
    gradients_free(&want);
    return bad;
}

int64_t sweep_backward(const char *test, int64_t count, int with)
{
    int64_t failed = 0;
    for (int64_t at = 0; at < count && failed < 5; at++) {
        if (!test_case_wanted(at)) continue;
        rng  r = rng_make(test, at);
        back k;
        char what[96];
        memset(&k, 0, sizeof k);
        snprintf(what, sizeof what, "%s: ATTN_SEED=%" PRIu64 " ATTN_CASE=%" PRId64, test, test_seed(), at);
        problem_random(&k.p, &r, with);
        back_make(&k, &r, (with & WITH_STRANGE_VIEWS) && rng_percent(&r, 50) ? VIEW_STRANGE : VIEW_PLAIN);
        failed += back_check_all(&k, what) != 0;
        back_free(&k);
    }
    return failed;
}
