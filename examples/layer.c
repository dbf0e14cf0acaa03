/* layer.c: where one token looks in every head of a checkpoint's layer.
 * SPDX-License-Identifier: MIT
 *
 * usage: layer MODEL.safetensors LAYER TOKEN < hidden states, raw f32, (tokens, width)
 *
 *     cc examples/layer.c $(pkg-config --cflags --libs attn_layer) -o layer
 *     tail -c 26112 examples/minilm-layer.safetensors | ./layer examples/minilm-layer.safetensors 5 11
 *
 * The file's last 26112 bytes are the hidden states of its sentence; token 11 is "missing", and head 7 shows it looking at token 8, "charge".
 */
#include <attn/attn_layer.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_TOKENS = 512 };

/* Prints, for every head, the key that the query `token` gives the most weight. */
static void print_row(const float *weights, int64_t heads, int64_t tokens, int64_t token)
{
    for (int64_t h = 0; h < heads; h++) {
        const float *row = weights + (h * tokens + token) * tokens;
        int64_t      best = 0;
        for (int64_t j = 1; j < tokens; j++)
            if (row[j] > row[best]) best = j;
        printf("head %lld: token %lld looks most at token %lld, weight %.3f\n", (long long)h, (long long)token, (long long)best, row[best]);
    }
}

static int look(const attn_layer_checkpoint *c, int64_t token)
{
    float     *x = malloc((size_t)(MOST_TOKENS * c->width) * sizeof *x);
    int64_t    tokens = x ? (int64_t)fread(x, (size_t)c->width * sizeof *x, MOST_TOKENS, stdin) : 0;
    float     *out = malloc((size_t)(tokens * c->out_width + 1) * sizeof *out);
    float     *weights = malloc((size_t)(c->heads * tokens * tokens + 1) * sizeof *weights);
    attn_error e = {0, "no memory"};
    int        failed = 1;
    if (x && out && weights && token >= 0 && token < tokens) {
        attn_desc o = attn_desc_new();
        o.causal = c->causal;
        o.weights = attn_out_dense(weights, ATTN_F32, c->heads, tokens, tokens);
        attn_layer_desc d = attn_layer_desc_from(c);
        d.batch = 1, d.queries = d.keys = tokens, d.options = &o;
        d.x = attn_layer_tokens(x, tokens, c->width);
        d.out = attn_layer_tokens_out(out, tokens, c->out_width);
        failed = attn_layer_run(&d, &e) != ATTN_OK;
        if (!failed) print_row(weights, c->heads, tokens, token);
    } else if (x && out && weights) {
        snprintf(e.message, sizeof e.message, "there are %lld tokens of %lld channels on stdin, so no token %lld", (long long)tokens,
                 (long long)c->width, (long long)token);
    }
    if (failed) fprintf(stderr, "%s\n", e.message);
    free(x), free(out), free(weights);
    return failed;
}

int main(int argc, char **argv)
{
    attn_error             e;
    attn_layer_checkpoint *c = NULL;
    if (argc != 4) return fprintf(stderr, "usage: layer MODEL.safetensors LAYER TOKEN < hidden states (raw f32)\n"), 2;
    if (attn_layer_load(argv[1], atoll(argv[2]), NULL, &c, &e) != ATTN_OK) return fprintf(stderr, "%s\n", e.message), 1;
    fprintf(stderr, "%s\n", c->description);
    int failed = look(c, atoll(argv[3]));
    attn_layer_free(c);
    return failed;
}
