/* support_layer.c: random layers, and the projections in double.
 * SPDX-License-Identifier: MIT
 */
#include "support_layer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* Memory of exactly `count` floats that the layer frees. */
float *layer_floats(layer *l, int64_t count)
{
    float *p = malloc((size_t)(count ? count : 1) * sizeof *p);
    assert(p);
    assert(l->used < (int)(sizeof l->memory / sizeof l->memory[0]));
    return l->memory[l->used++] = p;
}

float *layer_normal(layer *l, rng *r, int64_t count, double scale)
{
    float *p = layer_floats(l, count);
    for (int64_t i = 0; i < count; i++) p[i] = (float)(scale * rng_normal(r));
    return p;
}

static attn_in weight(layer *l, rng *r, int64_t outputs, int64_t inputs, int order)
{
    const float *w = layer_normal(l, r, outputs * inputs, 1 / sqrt((double)inputs + 1));
    return order == LINEAR || order == FUSED_LINEAR ? attn_layer_linear(w, inputs) : attn_layer_conv1d(w, outputs);
}

/* Part of a fused weight: `skip` outputs further. */
static attn_in further(attn_in w, int64_t skip)
{
    w.data = (const float *)w.data + skip * w.stride[2];
    return w;
}

void layer_make(layer *l, rng *r, const sizes *s, int order, int source, int biases)
{
    const int64_t hk = s->heads * s->dim, gk = s->kv_heads * s->dim, gv = s->kv_heads * s->value_dim, hv = s->heads * s->value_dim;
    memset(l, 0, sizeof *l);
    l->options = attn_desc_new();
    attn_layer_desc *d = &l->d;
    *d = attn_layer_desc_new();
    d->batch = s->batch, d->heads = s->heads, d->kv_heads = s->kv_heads, d->queries = s->queries, d->keys = s->keys;
    d->dim = s->dim, d->value_dim = s->value_dim, d->out_width = s->out_width;
    d->width = s->width, d->key_width = s->key_width, d->value_width = s->value_width;
    if (source == SELF) d->keys = d->queries, d->key_width = d->value_width = d->width;
    if (source == CROSS) d->value_width = d->key_width;
    d->x = attn_layer_tokens(layer_normal(l, r, s->batch * d->queries * d->width, 1), d->queries, d->width);
    if (source != SELF) d->x_key = attn_layer_tokens(layer_normal(l, r, s->batch * d->keys * d->key_width, 1), d->keys, d->key_width);
    if (source == CROSS_VALUES)
        d->x_value = attn_layer_tokens(layer_normal(l, r, s->batch * d->keys * d->value_width, 1), d->keys, d->value_width);
    if (order == FUSED_LINEAR || order == FUSED_CONV1D) { /* one matrix needs one width */
        d->w_q = weight(l, r, hk + gk + gv, d->width, order);
        d->w_k = further(d->w_q, hk), d->w_v = further(d->w_q, hk + gk);
    } else {
        d->w_q = weight(l, r, hk, d->width, order);
        d->w_k = weight(l, r, gk, d->key_width, order);
        d->w_v = weight(l, r, gv, d->value_width, order);
    }
    d->w_o = weight(l, r, s->out_width, hv, order);
    if (biases & 1) d->b_q = attn_layer_bias(layer_normal(l, r, hk, 0.5));
    if (biases & 2) d->b_k = attn_layer_bias(layer_normal(l, r, gk, 0.5));
    if (biases & 4) d->b_v = attn_layer_bias(layer_normal(l, r, gv, 0.5));
    if (biases & 8) d->b_o = attn_layer_bias(layer_normal(l, r, s->out_width, 0.5));
    d->out = attn_layer_tokens_out(layer_floats(l, s->batch * d->queries * s->out_width), d->queries, s->out_width);
    d->options = &l->options;
}

void layer_free(layer *l)
{
    for (int i = 0; i < l->used; i++) free(l->memory[i]);
}

double layer_at(const attn_in *t, int64_t b, int64_t i, int64_t c)
{
    return ((const float *)t->data)[b * t->stride[0] + i * t->stride[2] + c * t->stride[3]];
}

/* (batch, tokens, outputs) = x W^T + b */
double *layer_projected(const attn_in *x, const attn_in *w, const attn_in *b, int64_t batch, int64_t tokens, int64_t inputs,
                        int64_t outputs)
{
    double *to = calloc((size_t)(batch * tokens * outputs + 1), sizeof *to);
    assert(to);
    for (int64_t n = 0; n < batch; n++)
        for (int64_t i = 0; i < tokens; i++)
            for (int64_t o = 0; o < outputs; o++) {
                double sum = b->data ? layer_at(b, 0, 0, o) : 0;
                for (int64_t c = 0; c < inputs; c++) sum += layer_at(x, n, i, c) * layer_at(w, 0, o, c);
                to[(n * tokens + i) * outputs + o] = sum;
            }
    return to;
}

attn_in layer_heads_of(const double *p, int64_t heads, int64_t tokens, int64_t dim)
{
    const int64_t stride[4] = {tokens * heads * dim, dim, heads * dim, 1};
    return attn_in_strided(p, ATTN_F64, stride);
}
