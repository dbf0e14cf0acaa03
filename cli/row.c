/* row.c: one row of attention, step by step as the formula of attn.h says it: who is seen and why not, scores, softmax, output.
 * SPDX-License-Identifier: MIT
 */
#include "explain.h"

#include <math.h>
#include <stdlib.h>

/* In the order of SEEN_*, in short. */
static const char *const reasons[] = {"", "query", "start", "length", "causal", "window", "window", "mask", "bias -inf"};

const char *row_reason(int reason)
{
    return reason < SEEN_REASONS ? reasons[reason] : NULL;
}

const char *row_why(char text[80], unsigned hidden, const char *comma)
{
    char *to = text;
    *to = 0;
    for (int n = 1; n < SEEN_REASONS; n++)
        if (hidden >> n & 1) to += sprintf(to, "%s%s", to == text ? "" : comma, reasons[n]);
    return text;
}

/* ---- inputs ----------------------------------------------------------------------------------------------------------------------- */

static double element(const attn_in *in, int64_t b, int64_t h, int64_t i, int64_t c)
{
    const io_array a = {.data = (void *)in->data, .dtype = in->dtype}; /* the dtypes of both have the same numbers */
    return io_get(&a, b * in->stride[0] + h * in->stride[1] + i * in->stride[2] + c * in->stride[3]);
}

double row_q(const cli_row *r, int64_t channel)
{
    return element(&r->desc->q, r->batch, r->head, r->query, channel);
}

double row_k(const cli_row *r, int64_t key, int64_t channel)
{
    return element(&r->desc->k, r->batch, r->kv_head, key, channel);
}

double row_v(const cli_row *r, int64_t key, int64_t channel)
{
    return element(&r->desc->v, r->batch, r->kv_head, key, channel);
}

int64_t row_distance(const cli_row *r, int64_t key)
{
    return key - r->key_start - (r->query + r->offset);
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------------ */

int row_begin(cli_row *r, const attn_desc *d, int64_t batch, int64_t head, int64_t query)
{
    memset(r, 0, sizeof *r);
    r->desc = d;
    r->batch = batch, r->head = head, r->query = query;
    r->kv_head = head / (d->heads / d->kv_heads);
    r->query_count = seen_query_count(d, batch), r->key_start = seen_key_start(d, batch), r->key_count = seen_key_count(d, batch);
    r->offset = seen_offset(d, batch);
    r->scale = d->scale_given ? d->scale : d->dim ? 1 / sqrt((double)d->dim) : 1;
    r->slope = d->alibi.data ? element(&d->alibi, batch, head, 0, 0) : 0;
    r->sink = d->sink.data ? element(&d->sink, 0, head, 0, 0) : -INFINITY;
    r->key = calloc((size_t)d->keys + 1, sizeof *r->key);
    r->out = calloc((size_t)d->value_dim + 1, sizeof *r->out);
    for (int64_t j = 0; r->key && j < d->keys; j++) r->key[j].key = j;
    return r->key && r->out ? CLI_OK : out_fail(CLI_OUTPUT, "no memory for a row of %lld keys", (long long)d->keys);
}

void row_see(cli_row *r)
{
    r->seen = 0;
    for (int64_t j = 0; j < r->desc->keys; j++) {
        r->key[j].hidden = seen_reasons(r->desc, r->batch, r->head, r->query, j);
        r->seen += !r->key[j].hidden;
    }
}

void row_score(cli_row *r, int hidden)
{
    const attn_desc *d = r->desc;
    r->terms = 0;
    for (int64_t j = 0; j < d->keys; j++) {
        row_key    *k = &r->key[j];
        long double dot = 0, size = 0;
        k->score = -INFINITY;
        if (k->hidden && !hidden) continue;
        for (int64_t c = 0; c < d->dim; c++) {
            const long double term = (long double)row_q(r, c) * row_k(r, j, c);
            dot += term, size += fabsl(term);
        }
        k->dot = (double)dot;
        k->scaled = d->dim ? r->scale * k->dot : 0;
        k->capped = d->softcap > 0 ? d->softcap * tanh(k->scaled / d->softcap) : k->scaled;
        k->bias = seen_bias(d, r->batch, r->head, r->query, j);
        k->alibi = d->alibi.data ? -r->slope * fabs((double)row_distance(r, j)) : 0;
        if (k->hidden) continue;
        k->score = k->capped + k->bias + k->alibi;
        r->terms = fmax(r->terms, fabs(r->scale) * (double)size + fabs(k->bias) + fabs(k->alibi));
    }
}

void row_soften(cli_row *r)
{
    const int   used = r->query < r->query_count; /* a query that is padding has no sink either */
    long double sum, weights = 0, entropy = 0;
    r->max = used ? r->sink : -INFINITY;
    for (int64_t j = 0; j < r->desc->keys; j++) {
        const double s = r->key[j].score;
        if (!r->key[j].hidden && (isnan(s) || s > r->max)) r->max = s; /* a NaN stays: nothing is larger */
    }
    r->sink_exp = r->max > -INFINITY && used && r->sink > -INFINITY ? exp(r->sink - r->max) : 0;
    sum = r->sink_exp;
    for (int64_t j = 0; j < r->desc->keys; j++) {
        row_key  *k = &r->key[j];
        const int in = !k->hidden && r->max != -INFINITY; /* every score -inf: nothing is seen */
        k->less_max = in ? k->score - r->max : -INFINITY;
        k->exp = in ? exp(k->less_max) : 0;
        sum += k->exp;
    }
    r->sum = (double)sum;
    r->lse = r->max == -INFINITY ? -INFINITY : r->max + log(r->sum);
    r->sink_weight = r->sink_exp > 0 ? r->sink_exp / r->sum : 0;
    for (int64_t j = 0; j < r->desc->keys; j++) {
        row_key *k = &r->key[j];
        k->weight = k->hidden || r->max == -INFINITY ? 0 : k->exp / r->sum; /* with a score of +inf all are NaN */
        weights += k->weight;
        if (k->weight != 0) entropy -= k->weight * log(k->weight);
    }
    r->weights = (double)weights;
    r->entropy = (double)entropy;
    r->effective = r->weights == 0 ? 0 : exp(r->entropy / r->weights + log(r->weights)); /* of weights that sum to 1, sink or not */
}

void row_mix(cli_row *r)
{
    for (int64_t c = 0; c < r->desc->value_dim; c++) {
        long double x = 0, size = 0;
        for (int64_t j = 0; j < r->desc->keys; j++) {
            if (r->key[j].weight == 0) continue;
            const long double part = (long double)r->key[j].weight * row_v(r, j, c);
            x += part, size += fabsl(part);
        }
        r->out[c] = (double)x;
        r->mixed = fmax(r->mixed, (double)size);
    }
}

void row_share(cli_row *r)
{
    const int64_t channels = r->desc->value_dim;
    long double   square = 0;
    for (int64_t c = 0; c < channels; c++) square += (long double)r->out[c] * r->out[c];
    for (int64_t j = 0; j < r->desc->keys; j++) {
        row_key    *k = &r->key[j];
        long double size = 0, along = 0;
        for (int64_t c = 0; c < channels; c++) {
            const long double v = row_v(r, j, c);
            size += v * v, along += v * r->out[c];
        }
        k->value_size = sqrt((double)size);
        k->contribution_size = k->weight == 0 ? 0 : k->weight * k->value_size;
        k->share = square == 0 ? NAN : k->weight == 0 ? 0 : (double)(k->weight * along / square);
    }
}

int row_open(cli_row *r, const attn_desc *d, int64_t batch, int64_t head, int64_t query)
{
    const int code = row_begin(r, d, batch, head, query);
    if (code) return code;
    row_see(r), row_score(r, 1), row_soften(r), row_mix(r), row_share(r);
    return CLI_OK;
}

void row_close(cli_row *r)
{
    free(r->key), free(r->out);
}
