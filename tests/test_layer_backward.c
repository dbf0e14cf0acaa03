/* test_layer_backward.c: attn_layer_backward() against differences of the layer's formula in double, and what its header promises.
 * SPDX-License-Identifier: MIT
 */
#include "support_layer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

enum { OF_X, OF_X_KEY, OF_X_VALUE, OF_W_Q, OF_W_K, OF_W_V, OF_W_O, OF_B_Q, OF_B_K, OF_B_V, OF_B_O, OF_BIAS, OF_SINK, OF_ALIBI, ALL };

static const char *const names[ALL] = {"dx",   "dx_key", "dx_value", "dw_q", "dw_k",  "dw_v",  "dw_o",
                                       "db_q", "db_k",   "db_v",     "db_o", "dbias", "dsink", "dalibi"};

static attn_in *operand(layer *l, int which)
{
    attn_layer_desc *d = &l->d;
    attn_in *const   all[ALL] = {&d->x,   &d->x_key, &d->x_value, &d->w_q, &d->w_k,          &d->w_v,          &d->w_o,
                                 &d->b_q, &d->b_k,   &d->b_v,     &d->b_o, &l->options.bias, &l->options.sink, &l->options.alibi};
    return all[which];
}

static attn_out *gradient(attn_layer_gradients *g, int which)
{
    attn_out *const all[ALL] = {&g->dx,   &g->dx_key, &g->dx_value, &g->dw_q, &g->dw_k,  &g->dw_v,  &g->dw_o,
                                &g->db_q, &g->db_k,   &g->db_v,     &g->db_o, &g->dbias, &g->dsink, &g->dalibi};
    return all[which];
}

/* Sizes along the four axes, 1 where there is none. */
static void shape_of(const layer *l, int which, int64_t shape[4])
{
    const attn_layer_desc *d = &l->d;
    const int64_t          b = d->batch, hk = d->heads * d->dim, gk = d->kv_heads * d->dim, gv = d->kv_heads * d->value_dim,
                  hv = d->heads * d->value_dim;
    const int64_t all[ALL][4] = {{b, 1, d->queries, d->width},
                                 {b, 1, d->keys, d->key_width},
                                 {b, 1, d->keys, d->value_width},
                                 {1, 1, hk, d->width},
                                 {1, 1, gk, d->key_width},
                                 {1, 1, gv, d->value_width},
                                 {1, 1, d->out_width, hv},
                                 {1, 1, 1, hk},
                                 {1, 1, 1, gk},
                                 {1, 1, 1, gv},
                                 {1, 1, 1, d->out_width},
                                 {1, d->heads, 1, d->keys},
                                 {1, d->heads, 1, 1},
                                 {b, d->heads, 1, 1}};
    memcpy(shape, all[which], sizeof all[0]);
}

/* The layer's out in double, times d_out, summed up. */
static double objective(const layer *l, const float *d_out)
{
    const attn_layer_desc *d = &l->d;
    const int64_t          B = d->batch, H = d->heads, G = d->kv_heads, N = d->queries, M = d->keys, V = d->value_dim;
    const attn_in         *xk = d->x_key.data ? &d->x_key : &d->x, *xv = d->x_value.data ? &d->x_value : xk;
    double                *q = layer_projected(&d->x, &d->w_q, &d->b_q, B, N, d->width, H * d->dim), sum = 0;
    double                *k = layer_projected(xk, &d->w_k, &d->b_k, B, M, d->key_width, G * d->dim);
    double                *v = layer_projected(xv, &d->w_v, &d->b_v, B, M, d->value_width, G * V);
    attn_desc              ref = l->options;
    reference              r;
    ref.batch = B, ref.heads = H, ref.kv_heads = G, ref.queries = N, ref.keys = M, ref.dim = d->dim, ref.value_dim = V;
    ref.q = layer_heads_of(q, H, N, d->dim), ref.k = layer_heads_of(k, G, M, d->dim), ref.v = layer_heads_of(v, G, M, V);
    reference_make(&r, &ref);
    for (int64_t n = 0; n < B; n++)
        for (int64_t t = 0; t < N; t++)
            for (int64_t o = 0; o < d->out_width; o++) {
                double out = d->b_o.data ? layer_at(&d->b_o, 0, 0, o) : 0;
                for (int64_t c = 0; c < H * V; c++) out += r.out[((n * H + c / V) * N + t) * V + c % V] * layer_at(&d->w_o, 0, o, c);
                sum += out * (double)d_out[(n * N + t) * d->out_width + o];
            }
    reference_free(&r);
    free(q), free(k), free(v);
    return sum;
}

/* By a step of 2^-9 to either side: the cubic term that is left is about 1e-5 of the derivative, beside the table's bound for f32. */
static double difference(const layer *l, const float *d_out, float *x)
{
    const float before = *x;
    *x = before + 0x1p-9f;
    const double up = *x, above = objective(l, d_out);
    *x = before - 0x1p-9f;
    const double down = *x, below = objective(l, d_out);
    *x = before;
    return (above - below) / (up - down);
}

/* A gradient of everything that the layer has, each in an array of its own; weights in the order of the weight. */
static void ask(layer *l, attn_layer_gradients *g, const float *d_out)
{
    *g = attn_layer_gradients_new();
    g->d_out = attn_layer_tokens(d_out, l->d.queries, l->d.out_width);
    for (int w = 0; w < ALL; w++) {
        const attn_in *of = operand(l, w);
        int64_t        s[4];
        if (!of->data) continue;
        shape_of(l, w, s);
        const int64_t count = s[0] * s[1] * s[2] * s[3];
        float        *to = layer_floats(l, count);
        attn_out     *t = gradient(g, w);
        for (int64_t i = 0; i < count; i++) to[i] = NAN;
        *t = (attn_out){to, {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}, 0, ATTN_F32, 0};
        if (w >= OF_W_Q && w <= OF_W_O && of->stride[2] == 1) t->stride[2] = 1, t->stride[3] = s[2];
        for (int a = 0; a < 4; a++) t->stride[a] = s[a] == 1 && !(w <= OF_W_O && a >= 2) && a != 3 ? 0 : t->stride[a];
        if (w >= OF_B_Q && w <= OF_B_O) t->stride[2] = 0;
        if (w == OF_SINK || w == OF_ALIBI) t->stride[2] = t->stride[3] = 0;
        if (w <= OF_X_VALUE) t->stride[1] = 0;
    }
}

static void check(layer *l, rng *r, int tries)
{
    const attn_layer_desc *d = &l->d;
    attn_layer_gradients   g;
    attn_error             e;
    const int64_t          count = d->batch * d->queries * d->out_width;
    float                 *d_out = layer_floats(l, count);
    for (int64_t i = 0; i < count; i++) d_out[i] = (float)rng_normal(r);
    ask(l, &g, d_out);
    if (attn_layer_backward(d, &g, &e)) fail_msg("%s", e.message);
    for (int w = 0; w < ALL; w++) {
        const attn_in *of = operand(l, w);
        attn_out      *t = gradient(&g, w);
        int64_t        s[4], p[4];
        double         largest = 1;
        if (!t->data) continue;
        shape_of(l, w, s);
        for (int64_t i = 0; i < s[0] * s[1] * s[2] * s[3]; i++) {
            const double x = ((const float *)t->data)[i];
            if (isnan(x)) fail_msg("%s has a place that was not written, or NaN", names[w]);
            largest = fmax(largest, fabs(x));
        }
        for (int try = 0; try < tries; try++) {
            int64_t at = 0, from = 0;
            for (int a = 0; a < 4; a++) {
                p[a] = rng_range(r, 0, s[a] - 1);
                at += p[a] * t->stride[a], from += p[a] * of->stride[a];
            }
            const double want = difference(l, d_out, (float *)(uintptr_t)of->data + from), got = ((const float *)t->data)[at];
            if (fabs(got - want) > gradient_tolerance(ATTN_F32, ATTN_F32, largest, want, 0) + 3e-5 * largest)
                fail_msg("%s[%d,%d,%d,%d]: %.9g, differences say %.9g", names[w], (int)p[0], (int)p[1], (int)p[2], (int)p[3], got, want);
        }
    }
}

static void every_weight_order_source_and_option(void **state)
{
    static const sizes   one = {2, 4, 2, 5, 7, 3, 4, 9, 8, 7, 6};
    static const int64_t few[2] = {3, 5}, start[2] = {1, 0};
    (void)state;
    for (int order = 0; order < ORDERS; order++)
        for (int source = 0; source < SOURCES; source++) {
            if (order >= FUSED_LINEAR && source != SELF) continue;
            rng   r = rng_make("layer gradients", order * 8 + source);
            layer l;
            layer_make(&l, &r, &one, order, source, source == SELF ? 15 : 5);
            attn_desc *o = &l.options;
            o->align = ATTN_ALIGN_BOTTOM_RIGHT, o->causal = order & 1, o->softcap = order == 2 ? 1.5 : 0;
            if (source == CROSS) o->key_start = start, o->query_count = few;
            o->bias = (attn_in){layer_normal(&l, &r, l.d.heads * l.d.keys, 1), {0, l.d.keys, 0, 1}, 0, ATTN_F32, 0};
            o->sink = (attn_in){layer_normal(&l, &r, l.d.heads, 1), {0, 1, 0, 0}, 0, ATTN_F32, 0};
            o->alibi = (attn_in){layer_normal(&l, &r, l.d.batch * l.d.heads, 0.1), {l.d.heads, 1, 0, 0}, 0, ATTN_F32, 0};
            check(&l, &r, 5);
            layer_free(&l);
        }
}

/* Three views into one matrix, in work that the caller gives, added to what is there. */
static void fused_and_added(void **state)
{
    static const sizes one = {2, 4, 2, 5, 5, 3, 3, 9, 9, 9, 6};
    (void)state;
    rng   r = rng_make("fused", 0);
    layer l;
    layer_make(&l, &r, &one, FUSED_LINEAR, SELF, 0);
    const int64_t hk = 12, gk = 6, width = 9, rows = hk + 2 * gk;
    float        *d_out = layer_normal(&l, &r, 2 * 5 * 6, 1), *fused = layer_floats(&l, rows * width);
    for (int64_t i = 0; i < rows * width; i++) fused[i] = 1;
    attn_layer_gradients apart, g;
    attn_error           e;
    ask(&l, &apart, d_out);
    assert_int_equal(attn_layer_backward(&l.d, &apart, &e), ATTN_OK);
    g = attn_layer_gradients_new();
    g.d_out = apart.d_out;
    g.accumulate = 1;
    g.dw_q = attn_layer_linear_out(fused, width);
    g.dw_k = attn_layer_linear_out(fused + hk * width, width);
    g.dw_v = attn_layer_linear_out(fused + (hk + gk) * width, width);
    assert_int_equal(attn_layer_backward_work_bytes(&l.d, &g, &g.work_bytes, &e), ATTN_OK);
    guarded work;
    guarded_make(&work, g.work_bytes, GUARD_ABOVE, 0xFF);
    g.work = work.bytes;
    if (attn_layer_backward(&l.d, &g, &e)) fail_msg("%s", e.message);
    assert_null(guarded_broken(&work));
    const float *parts[] = {apart.dw_q.data, apart.dw_k.data, apart.dw_v.data};
    for (int64_t i = 0; i < rows * width; i++) {
        const int64_t row = i / width, part = row < hk ? 0 : row < hk + gk ? 1 : 2;
        const double  want = 1 + (double)parts[part][i - (part == 0 ? 0 : part == 1 ? hk : hk + gk) * width];
        assert_true(fabs((double)fused[i] - want) <= gradient_tolerance(ATTN_F32, ATTN_F32, 1 + fabs(want), want, 0));
    }
    g.work_bytes--;
    assert_int_equal(attn_layer_backward(&l.d, &g, &e), ATTN_LAYER_E_WORK);
    guarded_free(&work);
    layer_free(&l);
}

/* NaN in a token that nobody sees and that asks nothing reaches no gradient. */
static void what_nobody_sees_reaches_no_gradient(void **state)
{
    static const sizes   one = {2, 2, 1, 6, 6, 4, 4, 8, 8, 8, 8};
    static const int64_t some[2] = {6, 4};
    (void)state;
    rng   r = rng_make("unseen", 0);
    layer l;
    layer_make(&l, &r, &one, LINEAR, SELF, 15);
    l.options.key_count = l.options.query_count = some;
    float               *d_out = layer_normal(&l, &r, 2 * 6 * 8, 1);
    attn_layer_gradients clean, spoilt;
    attn_error           e;
    ask(&l, &clean, d_out);
    assert_int_equal(attn_layer_backward(&l.d, &clean, &e), ATTN_OK);
    for (int64_t t = 4; t < 6; t++)
        for (int64_t c = 0; c < 8; c++) ((float *)(uintptr_t)l.d.x.data)[(6 + t) * 8 + c] = c % 2 ? NAN : INFINITY;
    ask(&l, &spoilt, d_out);
    assert_int_equal(attn_layer_backward(&l.d, &spoilt, &e), ATTN_OK);
    for (int w = 0; w <= OF_B_O; w++) {
        int64_t s[4];
        if (!gradient(&clean, w)->data) continue;
        shape_of(&l, w, s);
        const float *a = gradient(&clean, w)->data, *b = gradient(&spoilt, w)->data;
        for (int64_t i = 0; i < s[0] * s[1] * s[2] * s[3]; i++) {
            assert_true(fabs((double)(a[i] - b[i])) <= gradient_tolerance(ATTN_F32, ATTN_F32, 10, a[i], 0));
            if (w == OF_X && i >= (6 + 4) * 8) assert_true(b[i] == 0);
        }
    }
    layer_free(&l);
}

static void refusals(void **state)
{
    static const sizes one = {2, 2, 1, 6, 6, 4, 4, 8, 8, 8, 8};
    static const struct {
        const char *says;
        int         which;
    } cases[] = {{"grad is NULL", 0},
                 {"d_out.data is NULL", 1},
                 {"dx_key is asked for though there is no x_key", 2},
                 {"accumulate is 3", 3},
                 {"dw_q has strides", 4},
                 {"db_q is asked for though there is no b_q", 5},
                 {"grad.size is 1", 6},
                 {"dbias", 7}};
    (void)state;
    for (size_t at = 0; at < COUNT(cases); at++) {
        rng                  r = rng_make("refused", 0);
        layer                l;
        attn_layer_gradients g;
        attn_error           e = {0};
        layer_make(&l, &r, &one, LINEAR, SELF, 0);
        ask(&l, &g, layer_normal(&l, &r, 2 * 6 * 8, 1));
        switch (cases[at].which) {
        case 1:
            g.d_out.data = NULL;
            break;
        case 2:
            g.dx_key = g.dx;
            break;
        case 3:
            g.accumulate = 3;
            break;
        case 4:
            g.dw_q.stride[3] = 2;
            break;
        case 5:
            g.db_q = attn_layer_bias_out(g.dx.data);
            break;
        case 6:
            g.size = 1;
            break;
        case 7:
            g.dbias = (attn_out){g.dx.data, {0, 0, 0, 1}, 0, ATTN_F32, 0};
            break;
        default:
            break;
        }
        int32_t status = attn_layer_backward(&l.d, cases[at].which ? &g : NULL, &e);
        if (status == ATTN_OK || !strstr(e.message, cases[at].says)) fail_msg("%s: %d, \"%s\"", cases[at].says, status, e.message);
        assert_true(isnan(((const float *)g.dw_o.data)[0]));
        layer_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_order_source_and_option),
        cmocka_unit_test(fused_and_added),
        cmocka_unit_test(what_nobody_sees_reaches_no_gradient),
        cmocka_unit_test(refusals),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("layer_backward", tests, NULL, NULL);
}
