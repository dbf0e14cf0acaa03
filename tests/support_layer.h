/* support_layer.h: what the tests of the layer share: random layers, and the projections in double.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_SUPPORT_LAYER_H
#define ATTN_TESTS_SUPPORT_LAYER_H

#include "support.h"

#include <attn/attn_layer.h>

enum { LINEAR, CONV1D, FUSED_LINEAR, FUSED_CONV1D, ORDERS };
enum { SELF, CROSS, CROSS_VALUES, SOURCES }; /* x_key, and x_value */

typedef struct sizes {
    int64_t batch, heads, kv_heads, queries, keys, dim, value_dim, width, key_width, value_width, out_width;
} sizes;

typedef struct layer {
    attn_layer_desc d;
    attn_desc       options;
    float          *memory[32];
    int             used;
    float          *lse, *weights;
} layer;

float *layer_floats(layer *l, int64_t count); /* memory of exactly so many, freed with the layer */
float *layer_normal(layer *l, rng *r, int64_t count, double scale);
void   layer_make(layer *l, rng *r, const sizes *s, int order, int source, int biases); /* biases: 1 b_q, 2 b_k, 4 b_v, 8 b_o */
void   layer_free(layer *l);

double  layer_at(const attn_in *t, int64_t b, int64_t i, int64_t c);
double *layer_projected(const attn_in *x, const attn_in *w, const attn_in *b, int64_t batch, int64_t tokens, int64_t inputs,
                        int64_t outputs); /* (batch, tokens, outputs) = x W^T + b; to free() */
attn_in layer_heads_of(const double *p, int64_t heads, int64_t tokens, int64_t dim);

#endif
