/* cost.c: attn cost: what a size costs, dense and here, and how it divides among threads.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

enum { MOST_THREADS = 256 }; /* of the table of --plan */

typedef struct cost {
    int64_t        tokens, queries;
    int64_t        entries, dense_bytes; /* queries * tokens, per head; all heads' scores in the working type */
    int64_t        visible;              /* how many entries are computed, per head */
    attn_plan_info info;
} cost;

static int64_t given(cli_count count, int64_t otherwise)
{
    return count.given ? count.value : otherwise;
}

static int describe(const cli_options *o, int32_t threads, cost *c)
{
    const attn_executor executor = {NULL, NULL, threads, 0}; /* the plan asks only for the width */
    attn_desc           d = attn_desc_new();
    attn_error          e;
    const int32_t       dtype = o->dtype ? options_dtype(o->dtype) : ATTN_F32;
    const int64_t       rows = c->queries > c->tokens ? c->queries : c->tokens;
    d.batch = given(o->batch, 1);
    d.heads = given(o->heads, 1);
    d.kv_heads = given(o->kv_heads, d.heads);
    d.dim = given(o->dim, 64);
    d.value_dim = given(o->value_dim, d.dim);
    d.queries = c->queries, d.keys = c->tokens;
    int64_t elements = d.dim > d.value_dim ? d.dim : d.value_dim;
    if (__builtin_mul_overflow(elements, rows, &elements) ||
        __builtin_mul_overflow(elements, d.heads > d.kv_heads ? d.heads : d.kv_heads, &elements) ||
        __builtin_mul_overflow(elements, d.batch, &elements))
        return out_fail(CLI_FIT, "%lld tokens with these heads, channels and batch have more than 2^63 elements", (long long)rows);
    d.q = attn_in_dense(NULL, dtype, d.heads, d.queries, d.dim);
    d.k = attn_in_dense(NULL, dtype, d.kv_heads, d.keys, d.dim);
    d.v = attn_in_dense(NULL, dtype, d.kv_heads, d.keys, d.value_dim);
    d.out = attn_out_dense(NULL, dtype, d.heads, d.queries, d.value_dim);
    d.align = ATTN_ALIGN_BOTTOM_RIGHT;
    d.causal = o->causal;
    d.window = o->window.given, d.window_left = o->window.first, d.window_right = o->window.second;
    d.isa = o->isa;
    d.executor = &executor;
    c->info = attn_plan_info_new();
    if (attn_plan_describe(&d, &c->info, &e)) return out_library(&e);
    c->entries = c->queries * c->tokens; /* each is at most 2^31 */
    c->visible = (int64_t)(c->info.pairs / (double)d.heads / (double)d.batch);
    c->dense_bytes = dtype == ATTN_F64 ? 8 : 4;
    if (__builtin_mul_overflow(c->dense_bytes, c->entries, &c->dense_bytes) ||
        __builtin_mul_overflow(c->dense_bytes, d.heads, &c->dense_bytes) ||
        __builtin_mul_overflow(c->dense_bytes, d.batch, &c->dense_bytes))
        return out_fail(CLI_FIT, "a dense matrix of %lld tokens, %lld heads, batch %lld has more than 2^63 bytes", (long long)rows,
                        (long long)d.heads, (long long)d.batch);
    return CLI_OK;
}

static json_t *row_json(const cost *c)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "tokens", (json_int_t)c->tokens, "queries", (json_int_t)c->queries,
                     "dense_entries_per_head", (json_int_t)c->entries, "visible_pairs_per_head", (json_int_t)c->visible, "dense_bytes",
                     (json_int_t)c->dense_bytes, "work_bytes", (json_int_t)c->info.work_bytes, "flops", c->info.flop);
}

static void row_print(const cost *c, int first)
{
    if (first)
        printf("%13s %25s %25s %25s %15s %12s\n", "tokens", "dense scores per head", "of these computed", "bytes of dense scores",
               "bytes here", "flops");
    char text[5][32];
    out_thousands(text[0], c->tokens);
    out_thousands(text[1], c->entries);
    out_thousands(text[2], c->visible);
    out_thousands(text[3], c->dense_bytes);
    out_thousands(text[4], (int64_t)c->info.work_bytes);
    printf("%13s %25s %25s %25s %15s %12.4g\n", text[0], text[1], text[2], text[3], text[4], c->info.flop);
}

/* ---- --plan ------------------------------------------------------------------------------------------------------------------------ */

static void plan_head_print(const cost *c)
{
    const attn_plan_info *i = &c->info;
    char                  text[2][32];
    out_thousands(text[0], c->tokens);
    out_thousands(text[1], c->queries);
    printf("%s tokens, queries: %s; kernel: %s; largest block, heads x queries: %lld x %lld\n", text[0], text[1], i->kernel,
           (long long)i->block_heads, (long long)i->block_queries);
    printf("%.4g flop; %.4g bytes moved, %.1f flop per byte; %.4g bytes walked, %.1f flop per byte\n", i->flop, i->moved_bytes,
           i->moved_bytes > 0 ? i->flop / i->moved_bytes : 0, i->walked_bytes, i->walked_bytes > 0 ? i->flop / i->walked_bytes : 0);
    printf("%7s %10s %10s %7s %12s %15s %10s %10s\n", "threads", "tasks", "units", "waves", "longest", "bytes here", "speed-up",
           "efficiency");
}

static void plan_print(const attn_plan_info *i, int32_t threads)
{
    char text[3][32];
    out_thousands(text[0], i->tasks);
    out_thousands(text[1], i->units);
    out_thousands(text[2], (int64_t)i->work_bytes);
    printf("%7d %10s %10s %7lld %12.4g %15s %10.2f %10.3f\n", threads, text[0], text[1], (long long)i->waves, i->longest_flop, text[2],
           i->speedup, i->speedup / threads);
}

static json_t *plan_json(const attn_plan_info *i, int32_t threads)
{
    return json_pack("{s:i, s:I, s:I, s:I, s:f, s:f, s:I, s:f, s:f}", "threads", threads, "tasks", (json_int_t)i->tasks, "units",
                     (json_int_t)i->units, "waves", (json_int_t)i->waves, "longest_flop", i->longest_flop, "critical_flop",
                     i->critical_flop, "work_bytes", (json_int_t)i->work_bytes, "speedup", i->speedup, "efficiency", i->speedup / threads);
}

/* One size for --threads, or for 1, 2, 4 .. 256 threads. */
static int plan(const cli_options *o, cost *c, json_t *row)
{
    const int32_t first = (int32_t)given(o->threads, 1), last = (int32_t)given(o->threads, MOST_THREADS);
    json_t       *list = json_array();
    json_object_set_new(row, "kernel", json_string(c->info.kernel));
    json_object_set_new(row, "block_heads", json_integer((json_int_t)c->info.block_heads));
    json_object_set_new(row, "block_queries", json_integer((json_int_t)c->info.block_queries));
    json_object_set_new(row, "moved_bytes", json_real(c->info.moved_bytes));
    json_object_set_new(row, "walked_bytes", json_real(c->info.walked_bytes));
    json_object_set_new(row, "plan", list);
    if (!o->json) plan_head_print(c);
    for (int32_t threads = first; threads <= last; threads *= 2) {
        int code = describe(o, threads, c);
        if (code) return code;
        if (!o->json) plan_print(&c->info, threads);
        json_array_append_new(list, plan_json(&c->info, threads));
    }
    return CLI_OK;
}

int cost_main(const cli_options *o)
{
    const int32_t threads = (int32_t)given(o->threads, call_threads());
    if (!o->tokens.count) return out_fail(CLI_USAGE, "--tokens N,.. is missing: the sequence lengths");
    for (int64_t i = 0; i < o->tokens.count; i++)
        if (o->queries.value > o->tokens.at[i])
            return out_fail(CLI_USAGE, "--queries %lld: of %lld tokens there are not so many last ones", (long long)o->queries.value,
                            (long long)o->tokens.at[i]);
    json_t *rows = json_array();
    int     code = CLI_OK;
    for (int64_t i = 0; i < o->tokens.count && !code; i++) {
        cost c = {.tokens = o->tokens.at[i], .queries = given(o->queries, o->tokens.at[i])};
        code = describe(o, threads, &c);
        if (code) break;
        json_t *row = row_json(&c);
        if (o->plan)
            code = plan(o, &c, row);
        else if (!o->json)
            row_print(&c, i == 0);
        json_array_append_new(rows, row);
    }
    if (code || !o->json) {
        json_decref(rows);
        return code;
    }
    json_t *result = out_json_open("cost");
    json_object_set_new(result, "threads", json_integer(threads));
    json_object_set_new(result, "rows", rows);
    return out_json(result);
}
