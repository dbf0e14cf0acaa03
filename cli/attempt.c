/* attempt.c: rows of attention gone wrong in a known way, beside rows of somebody else's result.
 * SPDX-License-Identifier: MIT
 */
#include "causes.h"

#include <math.h>
#include <stdlib.h>

/* These look at the scores of hidden keys too. */
#define NEEDS_HIDDEN (TWIST_CAP_LAST | TWIST_ZERO_SCORE | TWIST_LATE | TWIST_STAGE_SCALED | TWIST_STAGE_CAPPED)

/* ---- rows gone wrong ----------------------------------------------------------------------------------------------------------------- */

static void twist_scores(cli_row *r, unsigned twist)
{
    const double cap = r->desc->softcap;
    for (int64_t j = 0; j < r->desc->keys; j++) {
        row_key     *k = &r->key[j];
        const double added = (isinf(k->bias) ? 0 : k->bias) + k->alibi;
        if (k->hidden && !(twist & (TWIST_CAP_LAST | TWIST_ZERO_SCORE | TWIST_LATE))) continue;
        if (twist & TWIST_LATE) k->score = k->capped + added;
        if (twist & TWIST_ZERO_SCORE && k->hidden) k->score = 0;
        if (twist & TWIST_CAP_BIAS) k->score = cap * tanh((k->scaled + added) / cap);
        if (twist & TWIST_CAP_LAST) k->score = k->hidden ? -cap : cap * tanh((k->scaled + added) / cap);
        if (twist & TWIST_SCALE_BIAS) k->score += (r->scale - 1) * k->bias;
        if (twist & TWIST_ALIBI) k->score -= 2 * k->alibi;
        if (twist & TWIST_EXP2) k->score *= 0.69314718055994530942;
        if (twist & (TWIST_CAP_LAST | TWIST_ZERO_SCORE | TWIST_LATE)) k->reserved = k->hidden, k->hidden = 0;
    }
}

/* A row that sees nothing, as others leave it. */
static void twist_empty(cli_row *r, unsigned twist)
{
    const int mean = (twist & (TWIST_MEAN | TWIST_MEAN_USED)) != 0;
    int64_t   count = 0;
    for (int64_t j = 0; j < r->desc->keys; j++) {
        const int64_t place = j - r->key_start;
        r->key[j].weight = mean && ((twist & TWIST_MEAN) || (place >= 0 && place < r->key_count)) ? 1 : twist & TWIST_NAN ? NAN : 0;
        count += r->key[j].weight == 1;
    }
    for (int64_t j = 0; j < r->desc->keys && count; j++) r->key[j].weight /= (double)count;
    if (twist & TWIST_LSE_PLUS) r->lse = INFINITY;
}

/* The log of the sum over all queries of exp(score), for each key: the operator with the parts of queries and keys exchanged, so that memory
 * does not grow with their product. */
static int over_queries(const cli_row *r, double *lse)
{
    const attn_desc *d = r->desc;
    const int64_t    b = r->batch, h = r->head;
    attn_desc        t = *d;
    int64_t          offset = -r->key_start - r->offset, count = r->query_count;
    io_array         room = {0};
    attn_error       e;
    attn_in *const   in[] = {&t.q, &t.k, &t.allow, &t.bias, &t.alibi};
    const int64_t    at[][2] = {{b, r->kv_head}, {b, h}, {b, h}, {b, h}, {b, h}};
    t.q = d->k, t.k = d->q;
    for (int n = 0; n < 5; n++) {
        if (!in[n]->data) continue;
        const int64_t far = at[n][0] * in[n]->stride[0] + at[n][1] * in[n]->stride[1], inner = in[n]->stride[3];
        in[n]->data = (const char *)in[n]->data + far * (int64_t)attn_dtype_bytes(in[n]->dtype);
        in[n]->bytes = 0;
        if (n == 2 || n == 3) in[n]->stride[3] = in[n]->stride[2], in[n]->stride[2] = inner;
    }
    t.batch = t.heads = t.kv_heads = 1, t.queries = d->keys, t.keys = d->queries, t.value_dim = 0;
    t.v = t.k, t.v.stride[3] = 0;
    t.align = 0, t.query_offset = &offset, t.query_count = NULL, t.key_start = NULL, t.key_count = &count;
    t.window = d->window || d->causal;
    t.window_left = d->causal || !d->window ? 0 : d->window_right; /* key <= place + bound is place >= key - bound */
    t.window_right = d->window ? d->window_left : -t.window;
    t.causal = 0;
    t.sink = (attn_in){0}, t.scale = r->scale, t.scale_given = 1;
    const int32_t real = d->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    if (!convert_new(&room, real, 1, &d->keys)) return out_fail(CLI_OUTPUT, "no memory for the sums over queries");
    t.out = (attn_out){room.data, {0}, 0, real, 0};
    t.lse = (attn_out){room.data, {0, 0, 1, 0}, 0, real, 0};
    t.weights = (attn_out){0}, t.weights_stage = 0;
    const int code = attn_run(&t, &e) ? out_library(&e) : CLI_OK;
    for (int64_t j = 0; j < d->keys && !code; j++) lse[j] = io_get(&room, j);
    io_free(&room);
    return code;
}

/* The same over the heads, from the scores of all of them. */
static int over_heads(const cli_row *r, double *lse)
{
    for (int64_t j = 0; j < r->desc->keys; j++) lse[j] = -INFINITY;
    for (int64_t h = 0; h < r->desc->heads; h++) {
        cli_row   other;
        const int code = row_begin(&other, r->desc, r->batch, h, r->query);
        if (!code) row_see(&other), row_score(&other, 0);
        for (int64_t j = 0; j < r->desc->keys && !code; j++) {
            const double s = other.key[j].score, top = fmax(s, lse[j]);
            if (top > -INFINITY) lse[j] = top + log(exp(s - top) + exp(lse[j] - top));
        }
        row_close(&other);
        if (code) return code;
    }
    return CLI_OK;
}

static int other_axis(cli_row *r, unsigned twist)
{
    double *lse = malloc(((size_t)r->desc->keys + 1) * sizeof *lse);
    if (!lse) return out_fail(CLI_OUTPUT, "no memory for the other axis");
    const int code = twist & TWIST_OVER_QUERIES ? over_queries(r, lse) : over_heads(r, lse);
    for (int64_t j = 0; j < r->desc->keys && !code; j++) r->key[j].weight = r->key[j].hidden ? 0 : exp(r->key[j].score - lse[j]);
    free(lse);
    return code;
}

/* Dot products, sum and mixture with every result rounded to 16 bits. */
static void narrow_sums(cli_row *r, int32_t dtype)
{
    double sum = 0;
    for (int64_t j = 0; j < r->desc->keys; j++) {
        row_key *k = &r->key[j];
        double   dot = 0;
        if (k->hidden) continue;
        for (int64_t c = 0; c < r->desc->dim; c++) dot = convert_rounded(dot + row_q(r, c) * row_k(r, j, c), dtype);
        const double scaled = convert_rounded(r->scale * dot, dtype);
        k->score += scaled - k->scaled;
        k->exp = convert_rounded(exp(k->score - r->max), dtype);
        sum = convert_rounded(sum + k->exp, dtype);
    }
    for (int64_t c = 0; c < r->desc->value_dim; c++) {
        double x = 0;
        for (int64_t j = 0; j < r->desc->keys; j++)
            if (!r->key[j].hidden) x = convert_rounded(x + convert_rounded(r->key[j].exp / sum, dtype) * row_v(r, j, c), dtype);
        r->out[c] = x;
    }
}

static int compute(cli_row *r, const attempt *t, const int64_t at[3])
{
    const unsigned twist = t->twist;
    int            code = row_begin(r, &t->desc, at[0], at[1], at[2]);
    if (code) return code;
    if (twist & TWIST_TILED) r->kv_head = r->head % t->desc.kv_heads;
    if (twist & TWIST_SINK) r->sink = 0;
    row_see(r);
    for (int64_t j = 0; j < t->desc.keys && twist & TWIST_INVERTED; j++) r->key[j].hidden ^= 1 << SEEN_MASK;
    row_score(r, (twist & NEEDS_HIDDEN) != 0);
    twist_scores(r, twist);
    row_soften(r);
    if (r->sum == 0) twist_empty(r, twist);
    for (int64_t j = 0; j < t->desc.keys && twist & TWIST_LATE; j++)
        if (r->key[j].reserved) r->key[j].weight = 0;
    if (twist & (TWIST_OVER_QUERIES | TWIST_OVER_HEADS)) code = other_axis(r, twist);
    if (twist & TWIST_LSE_2) r->lse /= 0.69314718055994530942;
    if (twist & TWIST_LSE_SUM) r->lse = log(r->sum);
    if (twist & TWIST_LSE_ALIBI) r->lse += r->slope * (double)(r->query + r->offset);
    row_mix(r);
    if (twist & (TWIST_F16 | TWIST_BF16) && r->sum > 0) narrow_sums(r, twist & TWIST_F16 ? ATTN_F16 : ATTN_BF16);
    return code;
}

/* ---- beside the other side's ------------------------------------------------------------------------------------------------------------ */

static double other(const cli_view *v, const int64_t at[3], int64_t last)
{
    return io_get(&v->array, at[0] * v->stride[0] + at[1] * v->stride[1] + at[2] * v->stride[2] + last * v->stride[3]);
}

static int near(double got, double want, double absolute, double relative)
{
    if (isfinite(got) && isfinite(want)) return fabs(got - want) <= absolute + relative * fabs(want);
    return got == want || (isnan(got) && isnan(want));
}

static double stage_value(const row_key *k, unsigned twist)
{
    return twist & TWIST_STAGE_SCALED   ? k->scaled
           : twist & TWIST_STAGE_CAPPED ? k->capped
           : twist & TWIST_STAGE_BIASED ? k->score
                                        : k->weight;
}

static int agrees(const attempt *t, const cli_row *r, const int64_t at[3], const bound *b)
{
    for (int64_t c = 0; t->out.array.data && c < t->desc.value_dim; c++)
        if (!near(other(&t->out, at, c), r->out[c], b->out, b->relative)) return 0;
    if (t->lse.array.data && !near(other(&t->lse, at, 0), r->lse, b->lse, b->relative)) return 0;
    for (int64_t j = 0; t->weights.array.data && j < t->desc.keys; j++)
        if (!near(other(&t->weights, at, j), stage_value(&r->key[j], t->twist), b->weights, b->relative)) return 0;
    return 1;
}

/* 16-bit sums differ with their order, so they are known by the size of what they do: the root mean square of the errors. */
static int noise_fits(const attempt *t, const sample *rows)
{
    const double each = (double)t->desc.keys * (double)(t->desc.dim + t->desc.value_dim);
    double       seen = 0, made = 0;
    for (int n = 0; n < rows->count && (n == 0 || n * each < 1e7); n++) { /* rounding every sum takes its time */
        attempt plain = *t;
        cli_row exact = {0}, narrow = {0};
        plain.twist = 0;
        int code = compute(&exact, &plain, rows->at[n]);
        if (!code) code = compute(&narrow, t, rows->at[n]);
        for (int64_t c = 0; c < t->desc.value_dim && !code; c++) {
            const double x = other(&t->out, rows->at[n], c) - exact.out[c], y = narrow.out[c] - exact.out[c];
            seen += x * x, made += y * y;
        }
        row_close(&exact), row_close(&narrow);
        if (code) return -1;
    }
    /* By a factor of 4 above, since other parts may be rounded too, and of 8 below, since some may not be. */
    return isfinite(seen) && seen <= 16 * made && made <= 64 * seen && made > 0;
}

int attempt_fits(const attempt *t, const sample *rows, const bound *accepted)
{
    sample even = *rows;
    if (t->twist & (TWIST_F16 | TWIST_BF16)) return noise_fits(t, rows);
    if (t->swapped) { /* these rows are not the call's */
        const attn_desc *d = &t->desc;
        const int64_t    all = d->batch * d->heads * d->queries;
        even.count = (int)(all < SAMPLE ? all : SAMPLE);
        for (int n = 0; n < even.count; n++) {
            const int64_t row = (int64_t)((double)all * n / even.count);
            even.at[n][0] = row / (d->heads * d->queries), even.at[n][1] = row / d->queries % d->heads, even.at[n][2] = row % d->queries;
        }
    }
    if (t->twist & TWIST_OVER_QUERIES && even.count > 8) even.count = 8; /* each is a pass over all queries */
    for (int n = 0; n < even.count; n++) {
        cli_row   r;
        const int code = compute(&r, t, even.at[n]), same = !code && agrees(t, &r, even.at[n], accepted);
        row_close(&r);
        if (code) return -1;
        if (!same) return 0;
    }
    return even.count > 0;
}
