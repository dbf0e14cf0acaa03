/* test_layer.c: the multi-head layer against projections and the operator in double, and what its header promises.
 * SPDX-License-Identifier: MIT
 */
#include "support_layer.h"

#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static const sizes plain = {2, 4, 2, 7, 7, 8, 8, 20, 20, 20, 12}, crossed = {2, 6, 3, 5, 9, 8, 6, 20, 17, 11, 12};

/* q, k, v, y, lse and weights are asked for too. */
static void ask_for_all(layer *l)
{
    attn_layer_desc *d = &l->d;
    const int64_t    b = d->batch, h = d->heads, g = d->kv_heads, n = d->queries, m = d->keys;
    l->lse = layer_floats(l, b * h * n);
    l->weights = layer_floats(l, b * h * n * m);
    d->q = attn_out_dense(layer_floats(l, b * h * n * d->dim), ATTN_F32, h, n, d->dim);
    d->k = attn_out_dense(layer_floats(l, b * g * m * d->dim), ATTN_F32, g, m, d->dim);
    d->v = attn_out_dense(layer_floats(l, b * g * m * d->value_dim), ATTN_F32, g, m, d->value_dim);
    d->y = attn_out_dense(layer_floats(l, b * h * n * d->value_dim), ATTN_F32, h, n, d->value_dim);

    l->options.lse = attn_out_dense(l->lse, ATTN_F32, h, n, 1);
    l->options.lse.stride[3] = 0;
    l->options.weights = attn_out_dense(l->weights, ATTN_F32, h, n, m);
}

static void run(const attn_layer_desc *d)
{
    attn_error e;
    if (attn_layer_run(d, &e)) fail_msg("%s", e.message);
    assert_int_equal(e.status, ATTN_OK);
    assert_string_equal(e.message, "");
}

static int64_t out_count(const layer *l)
{
    return l->d.batch * l->d.queries * l->d.out_width;
}

/* ---- the reference ------------------------------------------------------------------------------------------------------------------ */

static int close_enough(const char *what, double got, double want, double largest, double size, int64_t where)
{
    if (got == want || (isnan(got) && isnan(want)) || fabs(got - want) <= tolerance(ATTN_F32, ATTN_F32, largest, want, size)) return 1;
    fprintf(stderr, "%s[%lld] is %.9g, want %.9g\n", what, (long long)where, got, want);
    return 0;
}

/* Compares (batch, tokens, heads * dim) in double with a dense (batch, heads, tokens, dim) result. */
static void compare_heads(const char *what, const double *want, const attn_out *got, int64_t batch, int64_t heads, int64_t tokens,
                          int64_t dim)
{
    double largest = 0;
    for (int64_t i = 0; i < batch * heads * tokens * dim; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t n = 0, i = 0; n < batch; n++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t c = 0; c < dim; c++, i++) {
                    const float *p = got->data;
                    assert_true(close_enough(what, p[((n * heads + h) * tokens + t) * dim + c], want[i], largest, 0, i));
                }
}

static void compare_list(const char *what, const double *want, const float *got, int64_t count, double size)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = isfinite(want[i]) ? fmax(largest, fabs(want[i])) : largest;
    for (int64_t i = 0; i < count; i++) assert_true(close_enough(what, got[i], want[i], largest, size, i));
}

/* Runs a layer that asks for all and compares everything with the formula in double. */
static void check(layer *l)
{
    const attn_layer_desc *d = &l->d;
    const int64_t          B = d->batch, H = d->heads, G = d->kv_heads, N = d->queries, M = d->keys, D = d->dim, V = d->value_dim;
    run(d);

    const attn_in *xk = d->x_key.data ? &d->x_key : &d->x, *xv = d->x_value.data ? &d->x_value : xk;
    double        *q = layer_projected(&d->x, &d->w_q, &d->b_q, B, N, d->width, H * D);
    double        *k = layer_projected(xk, &d->w_k, &d->b_k, B, M, d->key_width, G * D);
    double        *v = layer_projected(xv, &d->w_v, &d->b_v, B, M, d->value_width, G * V);
    compare_heads("q", q, &d->q, B, H, N, D);
    compare_heads("k", k, &d->k, B, G, M, D);
    compare_heads("v", v, &d->v, B, G, M, V);

    attn_desc ref = l->options;
    ref.batch = B, ref.heads = H, ref.kv_heads = G, ref.queries = N, ref.keys = M, ref.dim = D, ref.value_dim = V;
    ref.q = layer_heads_of(q, H, N, D), ref.k = layer_heads_of(k, G, M, D), ref.v = layer_heads_of(v, G, M, V);
    reference r;
    reference_make(&r, &ref);
    double size = 0; /* S of the tolerance rule */
    for (int64_t i = 0; i < B * H * N; i++) size = fmax(size, isfinite(r.size_seen[i]) ? r.size_seen[i] : 0);
    compare_list("weights", r.weights, l->weights, B * H * N * M, size);
    compare_list("lse", r.lse, l->lse, B * H * N, size);

    double *y = calloc((size_t)(B * N * H * V + 1), sizeof *y);
    assert_non_null(y);
    for (int64_t i = 0, n = 0; n < B; n++)
        for (int64_t t = 0; t < N; t++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t c = 0; c < V; c++) y[i++] = r.out[((n * H + h) * N + t) * V + c];
    compare_heads("y", y, &d->y, B, H, N, V);
    for (int64_t n = 0; n < B; n++)
        for (int64_t t = 0; t < N; t++)
            for (int64_t o = 0; o < d->out_width; o++) {
                double want = d->b_o.data ? layer_at(&d->b_o, 0, 0, o) : 0, largest = 1;
                for (int64_t c = 0; c < H * V; c++) want += y[(n * N + t) * H * V + c] * layer_at(&d->w_o, 0, o, c);
                const float *got = (const float *)d->out.data + n * d->out.stride[0] + t * d->out.stride[2] + o;
                assert_true(close_enough("out", *got, want, largest, size, (n * N + t) * d->out_width + o));
            }
    reference_free(&r);
    free(q), free(k), free(v), free(y);
}

/* ---- weights, biases, heads, sources ------------------------------------------------------------------------------------------------ */

static void every_weight_order_bias_group_and_source_is_the_formula(void **state)
{
    static const int64_t heads[][2] = {{1, 1}, {4, 4}, {6, 2}, {4, 1}};
    static const int     biases[] = {0, 15, 2, 13};
    int64_t              seen = 0;
    (void)state;
    for (int order = 0; order < ORDERS; order++)
        for (int source = 0; source < (order >= FUSED_LINEAR ? CROSS : SOURCES); source++)
            for (size_t h = 0; h < COUNT(heads); h++)
                for (size_t b = 0; b < COUNT(biases); b++) {
                    rng   r = rng_make("layer", seen++);
                    sizes s = source == SELF ? plain : crossed;
                    layer l;
                    s.heads = heads[h][0], s.kv_heads = heads[h][1];
                    layer_make(&l, &r, &s, order, source, biases[b]);
                    ask_for_all(&l);
                    check(&l);
                    layer_free(&l);
                }
    assert_int_equal(seen, (3 + 3 + 1 + 1) * 4 * 4);
}

/* ---- the operator's options --------------------------------------------------------------------------------------------------------- */

static const int64_t few[2] = {3, 5}, start[2] = {1, 2}, offsets[2] = {4, -1}, some[2] = {4, 1};

static void causal(layer *l, rng *r)
{
    (void)r;
    l->options.causal = 1, l->options.align = ATTN_ALIGN_BOTTOM_RIGHT;
}

static void window(layer *l, rng *r)
{
    (void)r;
    l->options.window = 1, l->options.window_left = 1, l->options.window_right = 2, l->options.query_offset = offsets;
}

static void lengths(layer *l, rng *r)
{
    (void)r;
    l->options.key_count = few, l->options.key_start = start, l->options.query_count = some;
}

static void allow(layer *l, rng *r)
{
    const int64_t  n = l->d.batch * l->d.heads * l->d.queries * l->d.keys;
    unsigned char *a = (unsigned char *)layer_floats(l, n);
    for (int64_t i = 0; i < n; i++) a[i] = rng_percent(r, 60) ? 1 : 0;
    memset(a, 0, (size_t)l->d.keys); /* the first query sees nothing */
    l->options.allow = attn_in_dense(a, ATTN_BOOL, l->d.heads, l->d.queries, l->d.keys);
}

static void bias(layer *l, rng *r)
{
    const int64_t stride[4] = {0, l->d.queries * l->d.keys, l->d.keys, 1};
    float        *b = layer_normal(l, r, l->d.heads * l->d.queries * l->d.keys, 1);
    b[0] = b[5] = -INFINITY;
    l->options.bias = attn_in_strided(b, ATTN_F32, stride);
}

static void alibi_and_sink(layer *l, rng *r)
{
    float *slopes = layer_floats(l, l->d.heads);
    assert_int_equal(attn_alibi_slopes(l->d.heads, slopes, NULL), ATTN_OK);
    const int64_t stride[4] = {0, 1, 0, 0};
    l->options.alibi = attn_in_strided(slopes, ATTN_F32, stride), l->options.align = ATTN_ALIGN_TOP_LEFT;
    l->options.sink = attn_in_strided(layer_normal(l, r, l->d.heads, 1), ATTN_F32, stride);
}

static void scale_and_softcap(layer *l, rng *r)
{
    (void)r;
    l->options.scale_given = 1, l->options.scale = -0.75, l->options.softcap = 1.5;
}

static void scaled_stage(layer *l, rng *r)
{
    (void)r;
    l->options.weights_stage = ATTN_STAGE_SCALED;
}

static void every_option_of_the_operator_reaches_it(void **state)
{
    static void (*const options[])(layer *, rng *) = {causal, window,         lengths,           allow,
                                                      bias,   alibi_and_sink, scale_and_softcap, scaled_stage};
    (void)state;
    for (int source = 0; source < SOURCES; source++)
        for (size_t first = 0; first < COUNT(options); first++)
            for (size_t second = first; second < COUNT(options); second++) {
                rng   r = rng_make("layer options", (int64_t)((size_t)source * 100 + first * 10 + second));
                layer l;
                layer_make(&l, &r, source == SELF ? &plain : &crossed, LINEAR, source, 15);
                ask_for_all(&l);
                options[first](&l, &r);
                if (second != first) options[second](&l, &r);
                if (l.options.query_offset) l.options.align = 0; /* said twice otherwise */
                check(&l);
                layer_free(&l);
            }
}

/* A layer with the option must differ from one without, or the test above could not fail. */
static void options_change_the_result(void **state)
{
    static void (*const options[])(layer *, rng *) = {causal, window, lengths, allow, bias, alibi_and_sink, scale_and_softcap};
    (void)state;
    for (size_t i = 0; i < COUNT(options); i++) {
        rng   r = rng_make("layer options matter", (int64_t)i);
        layer l;
        layer_make(&l, &r, &crossed, LINEAR, CROSS, 15);
        float *without = layer_floats(&l, out_count(&l));
        run(&l.d);
        memcpy(without, l.d.out.data, (size_t)out_count(&l) * sizeof(float));
        options[i](&l, &r);
        run(&l.d);
        assert_memory_not_equal(without, l.d.out.data, (size_t)out_count(&l) * sizeof(float));
        layer_free(&l);
    }
}

/* ---- the same bits ------------------------------------------------------------------------------------------------------------------ */

static void optional_results_threads_work_and_mode_change_no_bit(void **state)
{
    rng        r = rng_make("layer bits", 0);
    layer      l;
    attn_pool *pool = attn_pool_new(3, NULL);
    (void)state;
    assert_non_null(pool);
    layer_make(&l, &r, &plain, FUSED_CONV1D, SELF, 15);
    causal(&l, &r);
    const size_t bytes = (size_t)out_count(&l) * sizeof(float);
    float       *first = layer_floats(&l, out_count(&l));
    run(&l.d);
    memcpy(first, l.d.out.data, bytes);

    l.options.executor = attn_pool_executor(pool);
    run(&l.d);
    assert_memory_equal(first, l.d.out.data, bytes);

    assert_int_equal(fesetround(FE_UPWARD), 0);
    run(&l.d);
    assert_int_equal(fegetround(), FE_UPWARD); /* the caller's mode is back */
    fesetround(FE_TONEAREST);
    assert_memory_equal(first, l.d.out.data, bytes);

    ask_for_all(&l);
    run(&l.d);
    assert_memory_equal(first, l.d.out.data, bytes);

    l.d.out = (attn_out){0}, l.d.w_o = l.d.b_o = (attn_in){0}, l.d.out_width = 0; /* y alone: what the output projection would have read */
    float       *y = layer_floats(&l, out_count(&l) + l.d.batch * l.d.heads * l.d.queries * l.d.value_dim);
    const size_t whole = (size_t)(l.d.batch * l.d.heads * l.d.queries * l.d.value_dim) * sizeof(float);
    memcpy(y, l.d.y.data, whole);
    memset(l.d.y.data, 0xff, whole);
    run(&l.d);
    assert_memory_equal(y, l.d.y.data, whole);
    attn_pool_free(pool);
    layer_free(&l);
}

static void a_batch_entry_has_the_bits_that_it_has_alone(void **state)
{
    rng   r = rng_make("layer batch", 0);
    layer l;
    sizes s = plain;
    (void)state;
    s.batch = 3;
    layer_make(&l, &r, &s, LINEAR, SELF, 15);
    run(&l.d);
    attn_layer_desc one = l.d;
    const int64_t   count = s.queries * s.out_width;
    one.batch = 1;
    for (int64_t b = 0; b < s.batch; b++) {
        one.x.data = (const float *)l.d.x.data + b * l.d.x.stride[0];
        one.out.data = layer_floats(&l, count);
        run(&one);
        assert_memory_equal(one.out.data, (const float *)l.d.out.data + b * count, (size_t)count * sizeof(float));
    }
    layer_free(&l);
}

static void what_nobody_sees_reaches_nobody(void **state)
{
    static const int64_t keys[2] = {4, 6}, queries[2] = {4, 6};
    rng                  r = rng_make("layer padding", 0);
    layer                l;
    (void)state;
    layer_make(&l, &r, &plain, LINEAR, SELF, 15);
    l.options.key_count = keys, l.options.query_count = queries;
    const int64_t w = l.d.out_width;
    float        *clean = layer_floats(&l, out_count(&l)), *x = l.memory[0];
    run(&l.d);
    memcpy(clean, l.d.out.data, (size_t)out_count(&l) * sizeof(float));
    for (int64_t b = 0; b < 2; b++)
        for (int64_t i = keys[b]; i < l.d.queries; i++)
            for (int64_t c = 0; c < l.d.width; c++) x[(b * l.d.queries + i) * l.d.width + c] = c % 2 ? NAN : INFINITY;
    run(&l.d);
    assert_memory_equal(clean, l.d.out.data, (size_t)out_count(&l) * sizeof(float));
    for (int64_t b = 0; b < 2; b++)
        for (int64_t i = queries[b]; i < l.d.queries; i++) /* padded rows are exactly the output projection's bias */
            assert_memory_equal((const float *)l.d.out.data + (b * l.d.queries + i) * w, l.d.b_o.data, (size_t)w * sizeof(float));
    layer_free(&l);
}

static void reordered_tokens_give_reordered_results(void **state)
{
    static const int64_t order[7] = {3, 0, 6, 2, 5, 1, 4};
    rng                  r = rng_make("layer equivariance", 0);
    layer                l;
    (void)state;
    layer_make(&l, &r, &plain, LINEAR, SELF, 15);
    run(&l.d);
    const int64_t   n = l.d.queries, w = l.d.width, o = l.d.out_width;
    float          *x = layer_floats(&l, l.d.batch * n * w), *out = layer_floats(&l, out_count(&l));
    attn_layer_desc turned = l.d;
    for (int64_t b = 0; b < l.d.batch; b++)
        for (int64_t i = 0; i < n; i++)
            memcpy(x + (b * n + i) * w, (const float *)l.d.x.data + (b * n + order[i]) * w, (size_t)w * sizeof *x);
    turned.x = attn_layer_tokens(x, n, w);
    turned.out = attn_layer_tokens_out(out, n, o);
    run(&turned);
    for (int64_t b = 0; b < l.d.batch; b++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < o; c++)
                assert_true(
                    close_enough("reordered", out[(b * n + i) * o + c], ((float *)l.d.out.data)[(b * n + order[i]) * o + c], 1, 1, i));
    layer_free(&l);
}

/* ---- views -------------------------------------------------------------------------------------------------------------------------- */

static void strided_inputs_and_results_are_the_same_layer(void **state)
{
    rng   r = rng_make("layer strides", 0);
    layer l;
    (void)state;
    layer_make(&l, &r, &plain, LINEAR, SELF, 15);
    run(&l.d);
    const int64_t b = l.d.batch, n = l.d.queries, w = l.d.width, o = l.d.out_width;
    const float  *want = l.d.out.data;
    float        *x = layer_floats(&l, b * w * (n + 2)), *out = layer_floats(&l, b * n * (o + 3));
    for (int64_t i = 0; i < b; i++) /* channels apart, tokens side by side, the batch backwards */
        for (int64_t t = 0; t < n; t++)
            for (int64_t c = 0; c < w; c++) x[((b - 1 - i) * w + c) * (n + 2) + t] = ((const float *)l.d.x.data)[(i * n + t) * w + c];
    for (int64_t i = 0; i < b * n * (o + 3); i++) out[i] = 77;
    l.d.x = (attn_in){x + (b - 1) * w * (n + 2), {-w * (n + 2), 0, 1, n + 2}, (size_t)(b * w * (n + 2) - 2) * sizeof *x, ATTN_F32, 0};
    l.d.out = (attn_out){out, {o + 3, 0, b * (o + 3), 1}, 0, ATTN_F32, 0}; /* (token, batch, channel), gaps between */
    float *bias = layer_floats(&l, 2 * o);
    for (int64_t c = 0; c < o; c++) bias[2 * c] = ((const float *)l.d.b_o.data)[c];
    l.d.b_o = (attn_in){bias, {0, 0, 0, 2}, 0, ATTN_F32, 0};
    run(&l.d);
    for (int64_t i = 0; i < b; i++)
        for (int64_t t = 0; t < n; t++)
            for (int64_t c = 0; c < o + 3; c++) {
                double wants = c < o ? want[(i * n + t) * o + c] : 77;
                assert_true(close_enough("strided", out[(t * b + i) * (o + 3) + c], wants, c < o, 0, c));
            }
    layer_free(&l);
}

static void a_repeated_batch_is_one_text_many_times(void **state)
{
    rng   r = rng_make("layer repeat", 0);
    layer l;
    (void)state;
    layer_make(&l, &r, &plain, CONV1D, SELF, 15);
    l.d.x.stride[0] = 0;
    run(&l.d);
    const int64_t half = out_count(&l) / 2;
    assert_memory_equal(l.d.out.data, (float *)l.d.out.data + half, (size_t)half * sizeof(float));
    layer_free(&l);
}

/* ---- sizes of zero ------------------------------------------------------------------------------------------------------------------ */

static void empty_axes_are_computed(void **state)
{
    static const struct {
        sizes s;
        int   source;
    } cases[] = {
        {{0, 4, 2, 7, 7, 8, 8, 20, 20, 20, 12}, SELF},  {{2, 4, 2, 0, 0, 8, 8, 20, 20, 20, 12}, SELF},
        {{2, 4, 2, 5, 0, 8, 8, 20, 17, 17, 12}, CROSS}, {{2, 0, 0, 7, 7, 8, 8, 20, 20, 20, 12}, SELF},
        {{2, 4, 2, 7, 7, 0, 8, 20, 20, 20, 12}, SELF},  {{2, 4, 2, 7, 7, 8, 0, 20, 20, 20, 12}, SELF},
        {{2, 4, 2, 7, 7, 8, 8, 0, 0, 0, 12}, SELF},     {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, SELF},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int biases = 0; biases < 16; biases += 15) {
            rng   r = rng_make("layer empty", (int64_t)i);
            layer l;
            layer_make(&l, &r, &cases[i].s, LINEAR, cases[i].source, biases);
            for (int64_t c = 0; c < out_count(&l); c++) ((float *)l.d.out.data)[c] = NAN;
            ask_for_all(&l);
            check(&l);
            layer_free(&l);
        }
}

/* ---- work --------------------------------------------------------------------------------------------------------------------------- */

static void work_is_enough_exactly_and_one_byte_less_is_refused(void **state)
{
    (void)state;
    for (int shift = 0; shift < 64; shift += 21) {
        rng        r = rng_make("layer work", shift);
        layer      l;
        size_t     bytes = 0;
        guarded    g;
        attn_error e;
        layer_make(&l, &r, &crossed, LINEAR, CROSS_VALUES, 15);
        ask_for_all(&l);

        attn_layer_desc sizes_only = l.d; /* no pointer is needed to ask */
        sizes_only.x = sizes_only.x_key = sizes_only.x_value = sizes_only.w_q = sizes_only.w_k = sizes_only.w_v = sizes_only.w_o =
            (attn_in){0};
        sizes_only.out = (attn_out){0};
        assert_int_equal(attn_layer_work_bytes(&sizes_only, &bytes, &e), ATTN_OK);

        guarded_make(&g, bytes + (size_t)shift, shift % 2 ? GUARD_BELOW : GUARD_ABOVE, 0xa5);
        l.d.work = g.bytes + shift, l.d.work_bytes = bytes;
        check(&l);
        assert_null(guarded_broken(&g));
        for (int i = 0; i < shift; i++) assert_int_equal(g.bytes[i], 0xa5);

        float untouched = ((float *)l.d.out.data)[0] = 55;
        l.d.work_bytes = bytes - 1;
        assert_int_equal(attn_layer_run(&l.d, &e), ATTN_LAYER_E_WORK);
        assert_non_null(strstr(e.message, "work_bytes is"));
        assert_float_equal(((float *)l.d.out.data)[0], untouched, 0);
        guarded_free(&g);
        layer_free(&l);
    }
}

/* ---- refusals ----------------------------------------------------------------------------------------------------------------------- */

#define CHANGE(name, what)                                                                                                                 \
    static void name(layer *l)                                                                                                             \
    {                                                                                                                                      \
        what;                                                                                                                              \
    }
CHANGE(negative_batch, l->d.batch = -1)
CHANGE(huge_batch, l->d.batch = INT64_MAX / 2; l->d.x.stride[0] = 0)
CHANGE(huge_width, l->d.width = (int64_t)1 << 31)
CHANGE(huge_heads, l->d.heads = l->d.kv_heads = (int64_t)1 << 30)
CHANGE(odd_groups, l->d.kv_heads = 3)
CHANGE(no_groups, l->d.kv_heads = 0)
CHANGE(more_keys, l->d.keys = 8)
CHANGE(other_key_width, l->d.key_width = 5)
CHANGE(other_value_width, l->d.value_width = 5)
CHANGE(no_x, l->d.x.data = NULL)
CHANGE(no_weight, l->d.w_v.data = NULL)
CHANGE(no_out, l->d.out.data = NULL)
CHANGE(no_output_weight, l->d.w_o.data = NULL)
CHANGE(half_weight, l->d.w_q.dtype = ATTN_F16)
CHANGE(double_x, l->d.x.dtype = ATTN_F64)
CHANGE(typeless_out, l->d.out.dtype = 0)
CHANGE(reserved, l->d.b_k.reserved = 1)
CHANGE(unaligned, l->d.x.data = (const char *)l->d.x.data + 1)
CHANGE(strange_axis, l->d.w_k.stride[0] = 4)
CHANGE(head_axis, l->d.x.stride[1] = 4)
CHANGE(stepped_x, l->d.x.stride[3] = 2)
CHANGE(repeated_token, l->d.x.stride[2] = 0)
CHANGE(backward_token, l->d.x.stride[2] = -20)
CHANGE(narrow_weight, l->d.w_q.stride[2] = 19)
CHANGE(turned_out, l->d.out.stride[2] = 1; l->d.out.stride[3] = 7)
CHANGE(shared_out, l->d.out.stride[0] = 12)
CHANGE(shared_y, ask_for_all(l); l->d.y.stride[1] = 0)
CHANGE(far_batch, l->d.x.stride[0] = INT64_MAX / 2)
CHANGE(short_x, l->d.x.bytes = 2 * 7 * 20 * sizeof(float) - 1)
CHANGE(short_out, l->d.out.bytes = 2 * 7 * 12 * sizeof(float) - 1)
CHANGE(out_without_width, l->d.out_width = 0)
CHANGE(nothing_asked, l->d.out_width = 0; l->d.out = (attn_out){0}; l->d.w_o = l->d.b_o = (attn_in){0})
CHANGE(sized_options, l->options.heads = 4)
CHANGE(options_with_q, l->options.q.dtype = ATTN_F32)
CHANGE(options_with_out, l->options.out.dtype = ATTN_F32)
CHANGE(options_with_work, l->options.work_bytes = 1)
CHANGE(bad_option, l->options.softcap = -1)
CHANGE(bad_isa, l->options.isa = "abacus")
CHANGE(unsaid_align, l->options.causal = 1; l->options.key_count = few)
CHANGE(unaligned_bias, l->options.bias = attn_in_dense((char *)l->memory[0] + 1, ATTN_F32, 0, 0, 1))
CHANGE(old_desc, l->d.size = 100)
CHANGE(old_options, l->options.size = 8)

static const struct {
    void (*change)(layer *l);
    int32_t     status;
    const char *sentence; /* all of these, | between */
} refusals[] = {
    {negative_batch, ATTN_LAYER_E_ARGUMENT, "batch is -1|0 to"},
    {huge_batch, ATTN_LAYER_E_ARGUMENT, "address space"},
    {huge_width, ATTN_LAYER_E_ARGUMENT, "width is 2147483648"},
    {huge_heads, ATTN_LAYER_E_ARGUMENT, "heads is 1073741824|2^31"},
    {odd_groups, ATTN_LAYER_E_ARGUMENT, "kv_heads is 3, which does not divide heads = 4"},
    {no_groups, ATTN_LAYER_E_ARGUMENT, "kv_heads is 0"},
    {more_keys, ATTN_LAYER_E_ARGUMENT, "keys is 8, queries is 7|x_key"},
    {other_key_width, ATTN_LAYER_E_ARGUMENT, "key_width is 5, width is 20|x_key"},
    {other_value_width, ATTN_LAYER_E_ARGUMENT, "value_width is 5|x_value"},
    {no_x, ATTN_LAYER_E_ARGUMENT, "x.data is NULL"},
    {no_weight, ATTN_LAYER_E_ARGUMENT, "w_v.data is NULL"},
    {no_out, ATTN_LAYER_E_ARGUMENT, "out.data is NULL"},
    {no_output_weight, ATTN_LAYER_E_ARGUMENT, "w_o.data is NULL"},
    {half_weight, ATTN_LAYER_E_UNSUPPORTED, "w_q.dtype is f16|f32"},
    {double_x, ATTN_LAYER_E_UNSUPPORTED, "x.dtype is f64|f32"},
    {typeless_out, ATTN_LAYER_E_UNSUPPORTED, "out.dtype is|(0)"},
    {reserved, ATTN_LAYER_E_ARGUMENT, "b_k.reserved is 1"},
    {unaligned, ATTN_LAYER_E_ARGUMENT, "x.data is not aligned"},
    {strange_axis, ATTN_LAYER_E_ARGUMENT, "w_k.stride[0] is 4"},
    {head_axis, ATTN_LAYER_E_ARGUMENT, "x.stride[1] is 4"},
    {stepped_x, ATTN_LAYER_E_ARGUMENT, "x has strides 20 and 2 over 7 x 20"},
    {repeated_token, ATTN_LAYER_E_ARGUMENT, "x has strides 0 and 1"},
    {backward_token, ATTN_LAYER_E_ARGUMENT, "x has strides -20 and 1"},
    {narrow_weight, ATTN_LAYER_E_ARGUMENT, "w_q has strides 19 and 1 over 32 x 20"},
    {turned_out, ATTN_LAYER_E_ARGUMENT, "out has strides 1 and 7|the second"},
    {shared_out, ATTN_LAYER_E_ARGUMENT, "out has strides|share"},
    {shared_y, ATTN_LAYER_E_ARGUMENT, "y has strides|share"},
    {far_batch, ATTN_LAYER_E_ARGUMENT, "x.stride[0] is|address space"},
    {short_x, ATTN_LAYER_E_ARGUMENT, "x spans 1120 bytes, more than x.bytes = 1119"},
    {short_out, ATTN_LAYER_E_ARGUMENT, "out spans 672 bytes"},
    {out_without_width, ATTN_LAYER_E_ARGUMENT, "out_width is 0, but out is given"},
    {nothing_asked, ATTN_LAYER_E_ARGUMENT, "nothing"},
    {sized_options, ATTN_LAYER_E_ARGUMENT, "options sets a size"},
    {options_with_q, ATTN_LAYER_E_ARGUMENT, "options sets q"},
    {options_with_out, ATTN_LAYER_E_ARGUMENT, "options sets out"},
    {options_with_work, ATTN_LAYER_E_ARGUMENT, "options sets work"},
    {bad_option, ATTN_E_ARGUMENT, "softcap is -1"}, /* the operator's own sentence */
    {bad_isa, ATTN_E_ARGUMENT, "abacus"},
    {unsaid_align, ATTN_E_ARGUMENT, "align"},
    {unaligned_bias, ATTN_E_ARGUMENT, "bias"},
    {old_desc, ATTN_LAYER_E_ARGUMENT, "desc.size is 100"},
    {old_options, ATTN_LAYER_E_ARGUMENT, "options.size is 8"},
};

static void says(const char *message, const char *sentence)
{
    char parts[200];
    snprintf(parts, sizeof parts, "%s", sentence);
    for (char *part = strtok(parts, "|"); part; part = strtok(NULL, "|"))
        if (!strstr(message, part)) fail_msg("\"%s\" does not say \"%s\"", message, part);
}

static void refusals_say_field_value_and_rule_and_write_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refusals); i++) {
        rng        r = rng_make("layer refusals", (int64_t)i);
        layer      l;
        attn_error e = {0};
        layer_make(&l, &r, &plain, LINEAR, SELF, 15);
        float *out = l.d.out.data;
        out[0] = 1234;
        run(&l.d); /* legal before the change */
        out[0] = 1234;
        refusals[i].change(&l);
        int32_t status = attn_layer_run(&l.d, &e);
        if (status != refusals[i].status) fail_msg("refusal %zu gave %d, not %d: %s", i, (int)status, (int)refusals[i].status, e.message);
        assert_int_equal(e.status, status);
        says(e.message, refusals[i].sentence);
        assert_int_equal(attn_layer_check(&l.d, NULL), status);
        assert_float_equal(out[0], 1234, 0);
        layer_free(&l);
    }
    attn_error e;
    size_t     bytes;
    assert_int_equal(attn_layer_run(NULL, &e), ATTN_LAYER_E_ARGUMENT);
    says(e.message, "desc is NULL");
    assert_int_equal(attn_layer_work_bytes(NULL, &bytes, &e), ATTN_LAYER_E_ARGUMENT);
    const attn_layer_desc empty = attn_layer_desc_new();
    assert_int_equal(attn_layer_work_bytes(&empty, NULL, &e), ATTN_LAYER_E_ARGUMENT);
    says(e.message, "bytes is NULL");
}

static void newer_callers_are_served_or_told(void **state)
{
    struct {
        attn_layer_desc d;
        int64_t         future;
    } newer;
    struct {
        attn_desc d;
        int64_t   future;
    } options;
    rng        r = rng_make("layer newer", 0);
    layer      l;
    attn_error e;
    (void)state;
    layer_make(&l, &r, &plain, LINEAR, SELF, 0);
    newer.d = l.d, newer.d.size = sizeof newer, newer.future = 0;
    options.d = l.options, options.d.size = sizeof options, options.future = 0;
    newer.d.options = &options.d;
    run(&newer.d);
    newer.future = 1;
    assert_int_equal(attn_layer_run(&newer.d, &e), ATTN_LAYER_E_TOO_NEW);
    says(e.message, "desc has a field at byte");
    newer.future = 0, options.future = (int64_t)1 << 40;
    assert_int_equal(attn_layer_run(&newer.d, &e), ATTN_LAYER_E_TOO_NEW);
    says(e.message, "options has a field at byte");
    layer_free(&l);
}

static void codes_have_names(void **state)
{
    (void)state;
    assert_string_equal(attn_layer_status_name(ATTN_LAYER_E_ARGUMENT), "argument");
    assert_string_equal(attn_layer_status_name(ATTN_LAYER_E_HEADS), "heads");
    assert_string_equal(attn_layer_status_name(ATTN_E_WORK), attn_status_name(ATTN_E_WORK));
    assert_string_equal(attn_layer_status_name(109), "unknown");
    assert_string_equal(attn_layer_layout_name(ATTN_LAYER_LAYOUT_GPT2), "GPT-2 (Conv1D)");
    assert_string_equal(attn_layer_layout_name(0), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_order_bias_group_and_source_is_the_formula),
        cmocka_unit_test(every_option_of_the_operator_reaches_it),
        cmocka_unit_test(options_change_the_result),
        cmocka_unit_test(optional_results_threads_work_and_mode_change_no_bit),
        cmocka_unit_test(a_batch_entry_has_the_bits_that_it_has_alone),
        cmocka_unit_test(what_nobody_sees_reaches_nobody),
        cmocka_unit_test(reordered_tokens_give_reordered_results),
        cmocka_unit_test(strided_inputs_and_results_are_the_same_layer),
        cmocka_unit_test(a_repeated_batch_is_one_text_many_times),
        cmocka_unit_test(empty_axes_are_computed),
        cmocka_unit_test(work_is_enough_exactly_and_one_byte_less_is_refused),
        cmocka_unit_test(refusals_say_field_value_and_rule_and_write_nothing),
        cmocka_unit_test(newer_callers_are_served_or_told),
        cmocka_unit_test(codes_have_names),
    };
    return cmocka_run_group_tests_name("layer", tests, NULL, NULL);
}
