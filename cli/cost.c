/* cost.c: attn cost: what a size costs, dense and here.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

typedef struct cost {
    int64_t tokens, entries, visible; /* per head: n * n, and how many of them are computed */
    int64_t dense_bytes;              /* all heads' scores in the working type */
    size_t  work_bytes;
    double  flops;
} cost;

/* Stands for an executor of that width: attn_work_bytes() asks only for the width. */
static void in_turn(void *context, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    (void)context;
    for (int32_t i = 0; i < count; i++) body(arg, i);
}

/* Pairs of query i and key j with i - left <= j <= i + right, bounds cut to 0 .. n - 1. */
static int64_t visible_pairs(const cli_options *o, int64_t n)
{
    int64_t left = o->window.given && o->window.first >= 0 ? o->window.first : n,
            right = o->window.given && o->window.second >= 0 ? o->window.second : n;
    if (o->causal) right = 0;
    left = left < n - 1 ? left : n - 1;
    right = right < n - 1 ? right : n - 1;
    /* Query i lacks the keys before i - left and after i + right: triangles of side n - 1 - left and n - 1 - right. */
    const int64_t before = n - 1 - left, after = n - 1 - right;
    return n * n - before * (before + 1) / 2 - after * (after + 1) / 2;
}

static int measure(const cli_options *o, const attn_executor *executor, int64_t tokens, cost *c)
{
    attn_desc     d = attn_desc_new();
    attn_error    e;
    const int32_t dtype = o->dtype ? options_dtype(o->dtype) : ATTN_F32;
    d.batch = o->batch.given ? o->batch.value : 1;
    d.heads = o->heads.given ? o->heads.value : 1;
    d.kv_heads = o->kv_heads.given ? o->kv_heads.value : d.heads;
    d.dim = o->dim.given ? o->dim.value : 64;
    d.value_dim = o->value_dim.given ? o->value_dim.value : d.dim;
    d.queries = d.keys = tokens;
    int64_t elements = d.dim > d.value_dim ? d.dim : d.value_dim;
    if (__builtin_mul_overflow(elements, tokens, &elements) ||
        __builtin_mul_overflow(elements, d.heads > d.kv_heads ? d.heads : d.kv_heads, &elements) ||
        __builtin_mul_overflow(elements, d.batch, &elements))
        return out_fail(CLI_FIT, "%lld tokens with these heads, channels and batch have more than 2^63 elements", (long long)tokens);
    d.q = attn_in_dense(NULL, dtype, d.heads, tokens, d.dim);
    d.k = attn_in_dense(NULL, dtype, d.kv_heads, tokens, d.dim);
    d.v = attn_in_dense(NULL, dtype, d.kv_heads, tokens, d.value_dim);
    d.out = attn_out_dense(NULL, dtype, d.heads, tokens, d.value_dim);
    d.causal = o->causal;
    d.window = o->window.given, d.window_left = o->window.first, d.window_right = o->window.second;
    d.isa = o->isa;
    d.executor = executor;
    if (attn_work_bytes(&d, &c->work_bytes, &e)) return out_library(&e);
    c->tokens = tokens;
    c->entries = tokens * tokens; /* --tokens is at most 2^31 */
    c->visible = visible_pairs(o, tokens);
    c->dense_bytes = dtype == ATTN_F64 ? 8 : 4;
    if (__builtin_mul_overflow(c->dense_bytes, c->entries, &c->dense_bytes) ||
        __builtin_mul_overflow(c->dense_bytes, d.heads, &c->dense_bytes) ||
        __builtin_mul_overflow(c->dense_bytes, d.batch, &c->dense_bytes))
        return out_fail(CLI_FIT, "a dense matrix of %lld tokens, %lld heads, batch %lld has more than 2^63 bytes", (long long)tokens,
                        (long long)d.heads, (long long)d.batch);
    c->flops = 2.0 * ((double)d.dim + (double)d.value_dim) * (double)c->visible * (double)d.heads * (double)d.batch;
    return CLI_OK;
}

static void print_row(const cost *c, int first)
{
    if (first)
        printf("%13s %25s %25s %25s %15s %12s\n", "tokens", "dense scores per head", "of these computed", "bytes of dense scores",
               "bytes here", "flops");
    char text[5][32];
    out_thousands(text[0], c->tokens);
    out_thousands(text[1], c->entries);
    out_thousands(text[2], c->visible);
    out_thousands(text[3], c->dense_bytes);
    out_thousands(text[4], (int64_t)c->work_bytes);
    printf("%13s %25s %25s %25s %15s %12.4g\n", text[0], text[1], text[2], text[3], text[4], c->flops);
}

int cost_main(const cli_options *o)
{
    const attn_executor executor = {in_turn, NULL, o->threads.given ? (int32_t)o->threads.value : call_threads(), 0};
    if (!o->tokens.count) return out_fail(CLI_USAGE, "--tokens N,.. is missing: the sequence lengths");
    json_t *rows = json_array();
    int     code = CLI_OK;
    for (int64_t i = 0; i < o->tokens.count && !code; i++) {
        cost c;
        code = measure(o, &executor, o->tokens.at[i], &c);
        if (!code && !o->json) print_row(&c, i == 0);
        if (!code)
            json_array_append_new(rows,
                                  json_pack("{s:I, s:I, s:I, s:I, s:I, s:f}", "tokens", (json_int_t)c.tokens, "dense_entries_per_head",
                                            (json_int_t)c.entries, "visible_pairs_per_head", (json_int_t)c.visible, "dense_bytes",
                                            (json_int_t)c.dense_bytes, "work_bytes", (json_int_t)c.work_bytes, "flops", c.flops));
    }
    if (code || !o->json) {
        json_decref(rows);
        return code;
    }
    json_t *result = out_json_open("cost");
    json_object_set_new(result, "threads", json_integer(executor.width));
    json_object_set_new(result, "rows", rows);
    return out_json(result);
}
