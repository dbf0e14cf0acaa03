/* support_reference.c: the formula of attn.h in double, every score held in memory, and the comparison against it.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

__extension__ typedef __int128 wide; /* positions and window bounds may each be near 2^63 */

/* One batch entry's positions, defaults resolved. */
struct entry {
    int64_t offset, query_count, key_count, key_start;
};

static int64_t index_of(const int64_t stride[4], int64_t b, int64_t h, int64_t i, int64_t c)
{
    return (b ? b * stride[0] : 0) + (h ? h * stride[1] : 0) + (i ? i * stride[2] : 0) + (c ? c * stride[3] : 0);
}

static double in_get(const attn_in *t, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return element_get(t->data, t->dtype, index_of(t->stride, b, h, i, c));
}

static double out_get(const attn_out *t, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return element_get(t->data, t->dtype, index_of(t->stride, b, h, i, c));
}

static void *zeros(int64_t count, size_t bytes)
{
    void *p = calloc((size_t)count + 1, bytes);
    assert(p);
    return p;
}

static struct entry resolve(const attn_desc *d, int64_t b)
{
    struct entry e = {0, d->queries, d->keys, 0};
    if (d->key_start) e.key_start = d->key_start[b];
    e.key_count = d->key_count ? d->key_count[b] : d->keys - e.key_start;
    if (d->query_count) e.query_count = d->query_count[b];
    if (d->query_offset)
        e.offset = d->query_offset[b];
    else if (d->align == ATTN_ALIGN_BOTTOM_RIGHT)
        e.offset = e.key_count - e.query_count;
    return e;
}

static int sees(const attn_desc *d, const struct entry *e, int64_t b, int64_t h, int64_t i, int64_t j)
{
    wide at = (wide)j - e->key_start, p = (wide)i + e->offset;
    if (at < 0 || at >= e->key_count || i >= e->query_count) return 0;
    if (d->causal && at > p) return 0;
    if (d->window && d->window_left >= 0 && at < p - d->window_left) return 0;
    if (d->window && d->window_right >= 0 && at > p + d->window_right) return 0;
    if (d->allow.data && in_get(&d->allow, b, h, i, j) == 0) return 0;
    return !d->bias.data || in_get(&d->bias, b, h, i, j) != -INFINITY;
}

static void grow(double *size, double by)
{
    if (isfinite(by) && by > *size) *size = by;
}

/* 1. scores of one row at every stage; seen marks membership. q and k are dense. */
static void row_scores(reference *r, const attn_desc *d, const struct entry *e, int64_t b, int64_t h, int64_t i, const double *q,
                       const double *k, double *scaled, double *capped, double *biased)
{
    int64_t row = (b * r->heads + h) * r->queries + i;
    double  scale = d->scale_given ? d->scale : d->dim ? 1 / sqrt((double)d->dim) : 0;
    for (int64_t j = 0; j < d->keys; j++) {
        double dot = 0, size = 0, bias = 0, slope = 0;
        for (int64_t c = 0; c < d->dim; c++) {
            dot += q[c] * k[j * d->dim + c];
            size += fabs(q[c] * k[j * d->dim + c]);
        }
        scaled[j] = d->dim ? scale * dot : 0;
        capped[j] = d->softcap > 0 ? d->softcap * tanh(scaled[j] / d->softcap) : scaled[j];
        biased[j] = -INFINITY;
        grow(&r->size_all[row], fabs(scale) * size);
        if (!sees(d, e, b, h, i, j)) continue;
        r->seen[row * d->keys + j] = 1;
        wide apart = (wide)i + e->offset - ((wide)j - e->key_start);
        if (d->bias.data) bias = in_get(&d->bias, b, h, i, j);
        if (d->alibi.data) slope = in_get(&d->alibi, b, h, 0, 0) * fabs((double)apart);
        biased[j] = capped[j] + bias - slope;
        /* an infinite product that a softcap makes finite has no size, but bias and distance still have theirs */
        grow(&r->size_seen[row], (isfinite(size) ? fabs(scale) * size : 0) + fabs(bias) + fabs(slope));
    }
}

/* 2. softmax over what is seen, 3. weights times values. */
static void row_result(reference *r, const attn_desc *d, const struct entry *e, int64_t b, int64_t h, int64_t i, const double *v,
                       const double *biased, double *weight)
{
    int64_t              row = (b * r->heads + h) * r->queries + i;
    const unsigned char *seen = r->seen + row * d->keys;
    double               sink = d->sink.data ? in_get(&d->sink, 0, h, 0, 0) : -INFINITY, top = -INFINITY, sum = 0;
    int                  empty = 1;
    if (i >= e->query_count) sink = -INFINITY;
    for (int64_t j = 0; j < d->keys; j++) weight[j] = 0;
    for (int64_t j = 0; j < d->keys; j++) {
        if (!seen[j]) continue;
        if (biased[j] != -INFINITY) empty = 0;
        if (biased[j] == INFINITY) r->row[row] |= ROW_INFINITE;
        if (biased[j] > top || isnan(biased[j])) top = biased[j];
        if (isnan(top)) break;
    }
    r->lse[row] = sink;
    if (empty) r->row[row] |= ROW_EMPTY;
    if (empty) return;
    if (sink > top) top = sink;
    if (sink != -INFINITY) sum = exp(sink - top);
    for (int64_t j = 0; j < d->keys; j++)
        if (seen[j]) sum += weight[j] = exp(biased[j] - top);
    r->lse[row] = top + log(sum);
    double tiny = d->q.dtype == ATTN_F64 ? 1e-306 : 1e-36; /* what may underflow to 0, where 0 times infinity is open */
    for (int64_t j = 0; j < d->keys; j++) {
        if (!seen[j]) continue;
        weight[j] /= sum;
        for (int64_t c = 0; c < d->value_dim; c++) {
            r->out[row * d->value_dim + c] += weight[j] * v[j * d->value_dim + c];
            if (!isfinite(v[j * d->value_dim + c]) && weight[j] < tiny) r->loose[row * d->value_dim + c] = 1;
        }
    }
}

static double *dense(const attn_in *t, int64_t b, int64_t g, int64_t rows, int64_t columns)
{
    double *copy = zeros(rows * columns, sizeof *copy);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < columns; c++) copy[i * columns + c] = in_get(t, b, g, i, c);
    return copy;
}

static void head(reference *r, const attn_desc *d, const struct entry *e, int64_t b, int64_t h)
{
    int64_t g = h / (d->heads / d->kv_heads);
    double *q = dense(&d->q, b, h, d->queries, d->dim), *k = dense(&d->k, b, g, d->keys, d->dim),
           *v = dense(&d->v, b, g, d->keys, d->value_dim);
    double *stage[4];
    for (int s = 0; s < 4; s++) stage[s] = zeros(d->keys, sizeof(double));
    for (int64_t i = 0; i < d->queries; i++) {
        row_scores(r, d, e, b, h, i, q + i * d->dim, k, stage[1], stage[2], stage[3]);
        row_result(r, d, e, b, h, i, v, stage[3], stage[0]);
        if (d->weights.data)
            memcpy(r->weights + ((b * d->heads + h) * d->queries + i) * d->keys, stage[d->weights_stage], (size_t)d->keys * sizeof(double));
    }
    for (int s = 0; s < 4; s++) free(stage[s]);
    free(q), free(k), free(v);
}

void reference_make(reference *r, const attn_desc *d)
{
    int64_t rows = d->batch * d->heads * d->queries;
    memset(r, 0, sizeof *r);
    r->batch = d->batch, r->heads = d->heads, r->queries = d->queries, r->keys = d->keys, r->value_dim = d->value_dim;
    r->out = zeros(rows * d->value_dim, sizeof(double));
    r->lse = zeros(rows, sizeof(double));
    r->weights = d->weights.data ? zeros(rows * d->keys, sizeof(double)) : NULL;
    r->size_seen = zeros(rows, sizeof(double));
    r->size_all = zeros(rows, sizeof(double));
    r->seen = zeros(rows * d->keys, 1);
    r->row = zeros(rows, 1);
    r->loose = zeros(rows * d->value_dim, 1);
    for (int64_t b = 0; b < d->batch; b++) {
        struct entry e = resolve(d, b);
        for (int64_t h = 0; h < d->heads; h++) head(r, d, &e, b, h);
    }
}

void reference_free(reference *r)
{
    free(r->out), free(r->lse), free(r->weights), free(r->size_seen), free(r->size_all), free(r->seen), free(r->row), free(r->loose);
    memset(r, 0, sizeof *r);
}

/* ---- comparison -------------------------------------------------------------------------------------------------------------------- */

double tolerance(int32_t dtype, int32_t inputs, double largest, double want, double size)
{
    static const double table[][2] = {
        [ATTN_F32] = {2e-6, 1e-5}, [ATTN_F64] = {1e-13, 1e-12}, [ATTN_F16] = {1e-3, 2e-3}, [ATTN_BF16] = {8e-3, 1e-2}};
    int32_t row = dtype == ATTN_F64 && inputs != ATTN_F64 ? ATTN_F32 : dtype; /* an f64 tensor of f32 sums is as good as f32 */
    double  more = (inputs == ATTN_F64 ? 0x1p-50 : 0x1p-21) * size;
    double  flushed = inputs == ATTN_F64 && dtype == ATTN_F64 ? DBL_MIN : FLT_MIN; /* smaller results may be flushed to 0: section 6 */
    if (dtype == ATTN_F16) flushed = 0x1p-25; /* half a step where binary16 is subnormal: rounding alone */
    return (table[row][0] + more) * largest + (table[row][1] + more) * fabs(want) + flushed;
}

double gradient_tolerance(int32_t dtype, int32_t inputs, double largest, double want, double size)
{
    static const double table[][2] = {
        [ATTN_F32] = {1e-5, 1e-4}, [ATTN_F64] = {1e-12, 1e-11}, [ATTN_F16] = {3e-3, 6e-3}, [ATTN_BF16] = {2e-2, 3e-2}};
    double more = (inputs == ATTN_F64 ? 0x1p-50 : 0x1p-21) * size, flushed = inputs == ATTN_F64 && dtype == ATTN_F64 ? DBL_MIN : FLT_MIN;
    if (dtype == ATTN_F16) flushed = 0x1p-25;
    return (table[dtype][0] + more) * largest + (table[dtype][1] + more) * fabs(want) + flushed;
}

struct verdict {
    const attn_desc *d;
    const char      *name;
    int32_t          dtype;
    double           largest;
    int64_t          bad;
};

static double largest_of(const double *want, int64_t count)
{
    double largest = 0;
    for (int64_t at = 0; at < count; at++) grow(&largest, fabs(want[at]));
    return largest;
}

static void judge(struct verdict *t, int64_t b, int64_t h, int64_t i, int64_t c, double got, double want, double size, int exact)
{
    double allowed = exact ? 0 : tolerance(t->dtype, t->d->q.dtype, t->largest, want, size);
    int    good = isnan(want) ? isnan(got) : isinf(want) ? got == want : fabs(got - want) <= allowed;
    if (!good && !exact && isinf(got) && fabs(want) + allowed >= element_max(t->dtype) && (got > 0) == (want > 0))
        good = 1; /* rounds past the largest */
    if (good) return;
    if (t->bad++ < 5)
        fprintf(stderr, "  %s[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]: want %.17g got %.17g, apart %.3g, allowed %.3g\n", t->name,
                b, h, i, c, want, got, fabs(got - want), allowed);
}

static void judge_row(struct verdict *out, struct verdict *lse, struct verdict *weights, const reference *r, int64_t b, int64_t h,
                      int64_t i)
{
    const attn_desc *d = out->d;
    int64_t          row = (b * r->heads + h) * r->queries + i;
    int              empty = r->row[row] & ROW_EMPTY, infinite = r->row[row] & ROW_INFINITE;
    double           size = r->size_seen[row];
    for (int64_t c = 0; c < r->value_dim && d->out.data; c++)
        if (!r->loose[row * r->value_dim + c])
            judge(out, b, h, i, c, out_get(&d->out, b, h, i, c), r->out[row * r->value_dim + c], size, empty);
    if (d->lse.data) {
        double got = out_get(&d->lse, b, h, i, 0);
        if (!infinite || got != INFINITY) judge(lse, b, h, i, 0, got, infinite ? NAN : r->lse[row], size, empty);
    }
    for (int64_t j = 0; j < r->keys && d->weights.data; j++) {
        double want = r->weights[row * r->keys + j];
        int    seen = r->seen[row * r->keys + j], every = d->weights_stage == ATTN_STAGE_SCALED || d->weights_stage == ATTN_STAGE_CAPPED;
        judge(weights, b, h, i, j, out_get(&d->weights, b, h, i, j), want, every ? r->size_all[row] : size,
              !every && (!seen || (empty && !d->weights_stage)));
    }
}

/* What `largest` is of: a tensor of a few elements may hold nothing but what cancellation has left, so an lse counts as at least 1 (a sum of
 * exponentials near 1) and a score as what was summed. */
static double largest_score(const attn_desc *d, const reference *r, int64_t rows)
{
    double largest = largest_of(r->weights, rows * r->keys);
    if (d->weights_stage == ATTN_STAGE_WEIGHT) return largest;
    for (int64_t row = 0; row < rows; row++) grow(&largest, d->weights_stage == ATTN_STAGE_BIASED ? r->size_seen[row] : r->size_all[row]);
    return largest;
}

int multiplies_bf16(const attn_desc *d)
{
    const char *isa = d->isa ? d->isa : isa_default();
    return d->q.dtype == ATTN_BF16 && strcmp(isa, "avx512bf16") == 0;
}

int64_t compare_results(const attn_desc *d, const reference *r)
{
    int64_t        rows = r->batch * r->heads * r->queries;
    struct verdict out = {d, "out", multiplies_bf16(d) ? ATTN_BF16 : d->out.dtype, largest_of(r->out, rows * r->value_dim), 0};
    struct verdict lse = {d, "lse", d->lse.dtype, fmax(1, largest_of(r->lse, rows)), 0};
    struct verdict weights = {d, "weights", d->weights.dtype, r->weights ? largest_score(d, r, rows) : 0, 0};
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t h = 0; h < r->heads; h++)
            for (int64_t i = 0; i < r->queries; i++) judge_row(&out, &lse, &weights, r, b, h, i);
    if (out.bad + lse.bad + weights.bad)
        fprintf(stderr, "  differences: out %" PRId64 ", lse %" PRId64 ", weights %" PRId64 "\n", out.bad, lse.bad, weights.bad);
    return out.bad + lse.bad + weights.bad;
}

static void describe_view(FILE *to, const char *name, const void *data, int32_t dtype, const int64_t s[4])
{
    if (data)
        fprintf(to, "  %s: %s at %p strides %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n", name, attn_dtype_name(dtype), data, s[0],
                s[1], s[2], s[3]);
}

static void describe_counts(FILE *to, const char *name, const int64_t *counts, int64_t batch)
{
    if (!counts) return;
    fprintf(to, "  %s:", name);
    for (int64_t b = 0; b < batch && b < 8; b++) fprintf(to, " %" PRId64, counts[b]);
    fprintf(to, "\n");
}

void describe(const attn_desc *d, FILE *to)
{
    fprintf(to,
            "  batch %" PRId64 " heads %" PRId64 "/%" PRId64 " queries %" PRId64 " keys %" PRId64 " dim %" PRId64 " value_dim %" PRId64
            " isa %s\n",
            d->batch, d->heads, d->kv_heads, d->queries, d->keys, d->dim, d->value_dim, d->isa ? d->isa : "(best)");
    fprintf(to, "  align %d causal %d window %d: %" PRId64 " %" PRId64 " scale %d: %g softcap %g stage %d width %d work %zu\n", d->align,
            d->causal, d->window, d->window_left, d->window_right, d->scale_given, d->scale, d->softcap, d->weights_stage,
            d->executor ? d->executor->width : 0, d->work_bytes);
    describe_counts(to, "query_offset", d->query_offset, d->batch);
    describe_counts(to, "query_count", d->query_count, d->batch);
    describe_counts(to, "key_count", d->key_count, d->batch);
    describe_counts(to, "key_start", d->key_start, d->batch);
    describe_view(to, "q", d->q.data, d->q.dtype, d->q.stride);
    describe_view(to, "k", d->k.data, d->k.dtype, d->k.stride);
    describe_view(to, "v", d->v.data, d->v.dtype, d->v.stride);
    describe_view(to, "out", d->out.data, d->out.dtype, d->out.stride);
    describe_view(to, "allow", d->allow.data, d->allow.dtype, d->allow.stride);
    describe_view(to, "bias", d->bias.data, d->bias.dtype, d->bias.stride);
    describe_view(to, "alibi", d->alibi.data, d->alibi.dtype, d->alibi.stride);
    describe_view(to, "sink", d->sink.data, d->sink.dtype, d->sink.stride);
    describe_view(to, "lse", d->lse.data, d->lse.dtype, d->lse.stride);
    describe_view(to, "weights", d->weights.data, d->weights.dtype, d->weights.stride);
}
