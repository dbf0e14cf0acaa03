/* layer_backward.c: the layer's gradients: products by CBLAS around attn_backward().
 * SPDX-License-Identifier: MIT
 */
#include "layer.h"

#include <cblas.h>
#include <fenv.h>
#include <math.h>
#include <stdlib.h>

/* A checked call, ready to run.
 *
 *     work:  | the run's: q, k, v, y, operator | lse | dy | dq | dk | dv | attn_backward's work |
 */
struct backward_plan {
    struct layer_plan    run;
    attn_layer_gradients grad;
    attn_backward_desc   op;
    bool                 own_key, own_value; /* x_key, x_value were given */
    size_t               part[6], bytes;
};

/* A matrix in memory: rows x columns at any two strides of which one is 1. */
struct matrix {
    float  *data;
    int64_t rows, columns, row_stride, column_stride;
};

static struct matrix turned(struct matrix m)
{
    return (struct matrix){m.data, m.columns, m.rows, m.column_stride, m.row_stride};
}

/* c = a b, added to what c holds if `add`. */
static void multiply(struct matrix a, struct matrix b, struct matrix c, bool add)
{
    bool    a_turned = false, b_turned = false, c_turned = false;
    int64_t lda = attn_layer_leading(a.rows, a.columns, a.row_stride, a.column_stride, &a_turned);
    int64_t ldb = attn_layer_leading(b.rows, b.columns, b.row_stride, b.column_stride, &b_turned);
    int64_t ldc = attn_layer_leading(c.rows, c.columns, c.row_stride, c.column_stride, &c_turned);
    if (!c.rows || !c.columns) return;
    if (!a.columns) { /* BLAS does not say what it does then */
        for (int64_t i = 0; !add && i < c.rows; i++)
            for (int64_t j = 0; j < c.columns; j++) c.data[i * c.row_stride + j * c.column_stride] = 0;
        return;
    }
    /* a transposed matrix is one in the other order */
    cblas_sgemm(c_turned ? CblasColMajor : CblasRowMajor, a_turned == c_turned ? CblasNoTrans : CblasTrans,
                b_turned == c_turned ? CblasNoTrans : CblasTrans, (int)c.rows, (int)c.columns, (int)a.columns, 1.0f, a.data, (int)lda,
                b.data, (int)ldb, add ? 1.0f : 0.0f, c.data, (int)ldc);
}

static bool is_finite(struct matrix m)
{
    float wild = 0;
    for (int64_t i = 0; i < m.rows; i++)
        for (int64_t j = 0; j < m.columns; j++) wild = fmaf(m.data[i * m.row_stride + j * m.column_stride], 0, wild);
    return wild == 0;
}

static bool row_is_zero(struct matrix m, int64_t row)
{
    for (int64_t j = 0; j < m.columns; j++)
        if (m.data[row * m.row_stride + j * m.column_stride] != 0) return false;
    return true;
}

/* c += a^T b over the rows, which are tokens; a token whose row of a or b is all 0 takes no part, whatever the other one holds. */
static void add_tokens(struct matrix a, struct matrix b, struct matrix c)
{
    if (is_finite(a) && is_finite(b)) {
        multiply(turned(a), b, c, true);
        return;
    }
    for (int64_t t = 0; t < a.rows; t++)
        for (int64_t i = 0; i < c.rows && !row_is_zero(a, t) && !row_is_zero(b, t); i++)
            for (int64_t j = 0; j < c.columns; j++) {
                float *to = c.data + i * c.row_stride + j * c.column_stride;
                *to = fmaf(a.data[t * a.row_stride + i * a.column_stride], b.data[t * b.row_stride + j * b.column_stride], *to);
            }
}

/* One batch entry of hidden states, or of heads side by side; a weight. */
static struct matrix tokens_of(const attn_in *x, int64_t b, int64_t tokens, int64_t width)
{
    return (struct matrix){(float *)(uintptr_t)x->data + b * x->stride[0], tokens, width, x->stride[2], x->stride[3]};
}

static struct matrix weight_of(const void *data, const int64_t stride[4], int64_t outputs, int64_t inputs)
{
    return (struct matrix){(float *)(uintptr_t)data, outputs, inputs, stride[2], stride[3]};
}

/* dw and db of one projection from the gradient g of its results, (batch, tokens, outputs), and its inputs x. */
static void weight_gradients(const struct backward_plan *plan, const attn_in *g, const attn_in *x, int64_t tokens, int64_t outputs,
                             int64_t inputs, const attn_out *dw, const attn_out *db)
{
    const bool          add = plan->grad.accumulate;
    const struct matrix w = weight_of(dw->data, dw->stride, outputs, inputs);
    float              *bias = db->data;
    for (int64_t o = 0; bias && !add && o < outputs; o++) bias[o * db->stride[3]] = 0;
    for (int64_t o = 0; w.data && !add && o < outputs; o++)
        for (int64_t i = 0; i < inputs; i++) w.data[o * w.row_stride + i * w.column_stride] = 0;
    for (int64_t b = 0; b < plan->run.desc.batch; b++) {
        const struct matrix grad = tokens_of(g, b, tokens, outputs);
        if (w.data) add_tokens(grad, tokens_of(x, b, tokens, inputs), w);
        for (int64_t t = 0; bias && t < tokens; t++)
            for (int64_t o = 0; o < outputs; o++) bias[o * db->stride[3]] += grad.data[t * grad.row_stride + o * grad.column_stride];
    }
}

/* dx (+)= g w */
static void input_gradient(const struct backward_plan *plan, const attn_in *g, const attn_in *w, int64_t tokens, int64_t outputs,
                           int64_t inputs, const attn_out *dx, bool add)
{
    for (int64_t b = 0; dx->data && b < plan->run.desc.batch; b++)
        multiply(tokens_of(g, b, tokens, outputs), weight_of(w->data, w->stride, outputs, inputs),
                 (struct matrix){(float *)dx->data + b * dx->stride[0], tokens, inputs, dx->stride[2], dx->stride[3]}, add);
}

static int32_t run_backward(struct backward_plan *plan, char *work, attn_error *error)
{
    attn_layer_desc            *d = &plan->run.desc;
    const attn_layer_gradients *g = &plan->grad;
    const int64_t hk = d->heads * d->dim, hv = d->heads * d->value_dim, gk = d->kv_heads * d->dim, gv = d->kv_heads * d->value_dim;
    float        *y = (float *)(work + plan->run.part[3]), *dy = (float *)(work + plan->part[1]), *dq = (float *)(work + plan->part[2]),
          *dk = (float *)(work + plan->part[3]), *dv = (float *)(work + plan->part[4]);
    const attn_in y_in = attn_layer_tokens(y, d->queries, hv), dq_in = attn_layer_tokens(dq, d->queries, hk),
                  dk_in = attn_layer_tokens(dk, d->keys, gk), dv_in = attn_layer_tokens(dv, d->keys, gv);

    /* 1. the run again, with its lse */
    plan->run.op.lse.data = work + plan->part[0];
    int32_t status = attn_layer_heads(&plan->run, work, error);
    if (status) return status;

    /* 2. through the output projection */
    const attn_out dy_out = attn_layer_tokens_out(dy, d->queries, hv);
    input_gradient(plan, &g->d_out, &d->w_o, d->queries, d->out_width, hv, &dy_out, false);

    /* 3. through the operator, which may refuse something: nothing of the caller's has been written so far */
    plan->op.out.data = y, plan->op.lse.data = work + plan->part[0], plan->op.d_out.data = dy;
    plan->op.dq.data = dq, plan->op.dk.data = dk, plan->op.dv.data = dv;
    plan->op.work = work + plan->part[5], plan->op.work_bytes = plan->bytes - 63 - plan->part[5];
    status = attn_backward(&plan->run.op, &plan->op, error);
    if (status) return status;

    /* 4. the projections */
    weight_gradients(plan, &g->d_out, &y_in, d->queries, d->out_width, hv, &g->dw_o, &g->db_o);
    weight_gradients(plan, &dq_in, &d->x, d->queries, hk, d->width, &g->dw_q, &g->db_q);
    weight_gradients(plan, &dk_in, &d->x_key, d->keys, gk, d->key_width, &g->dw_k, &g->db_k);
    weight_gradients(plan, &dv_in, &d->x_value, d->keys, gv, d->value_width, &g->dw_v, &g->db_v);
    const attn_out *from_key = plan->own_key ? &g->dx_key : &g->dx, *from_value = plan->own_value ? &g->dx_value : from_key;
    input_gradient(plan, &dq_in, &d->w_q, d->queries, hk, d->width, &g->dx, g->accumulate);
    input_gradient(plan, &dk_in, &d->w_k, d->keys, gk, d->key_width, from_key, g->accumulate || !plan->own_key);
    input_gradient(plan, &dv_in, &d->w_v, d->keys, gv, d->value_width, from_value, g->accumulate || !plan->own_value);
    return ATTN_OK;
}

static int32_t lay_out(struct backward_plan *plan, attn_error *error)
{
    const attn_layer_desc *d = &plan->run.desc;
    const int64_t          q[4] = {d->queries * d->heads * d->dim, d->dim, d->heads * d->dim, 1};
    const int64_t          k[4] = {d->keys * d->kv_heads * d->dim, d->dim, d->kv_heads * d->dim, 1};
    const int64_t          v[4] = {d->keys * d->kv_heads * d->value_dim, d->value_dim, d->kv_heads * d->value_dim, 1};
    const int64_t          y[4] = {d->queries * d->heads * d->value_dim, d->value_dim, d->heads * d->value_dim, 1};
    const int64_t          lse[4] = {d->heads * d->queries, d->queries, 1, 0};
    const int64_t numbers[5] = {d->heads * d->queries, y[0], q[0], k[0], v[0]}; /* fewer than 2^62 each: below 2^31 tokens and channels */
    attn_desc     op = plan->run.op;
    size_t        work;
    op.lse = plan->run.op.lse = attn_out_strided(NULL, ATTN_F32, lse);
    plan->op = attn_backward_desc_new();
    plan->op.out = attn_in_strided(NULL, ATTN_F32, y), plan->op.d_out = plan->op.out;
    plan->op.lse = attn_in_strided(NULL, ATTN_F32, lse);
    plan->op.dq = attn_out_strided(NULL, ATTN_F32, q);
    plan->op.dk = attn_out_strided(NULL, ATTN_F32, k);
    plan->op.dv = attn_out_strided(NULL, ATTN_F32, v);
    plan->op.dbias = plan->grad.dbias, plan->op.dsink = plan->grad.dsink, plan->op.dalibi = plan->grad.dalibi;
    int32_t status = attn_backward_work_bytes(&op, &plan->op, &work, error);
    if (status) return status;
    plan->bytes = plan->run.bytes;
    for (int i = 0; i < 6; i++) {
        size_t bytes = work;
        if (i < 5 && (__builtin_mul_overflow((size_t)numbers[i], (size_t)d->batch * sizeof(float), &bytes) || bytes > PTRDIFF_MAX / 8))
            return attn_layer_fail(error, ATTN_LAYER_E_ARGUMENT, "batch is %lld; the gradients would not fit into the address space",
                                   (long long)d->batch);
        plan->part[i] = (plan->bytes - 63 + 63) / 64 * 64;
        plan->bytes = plan->part[i] + 63 + bytes;
    }
    return ATTN_OK;
}

static int32_t make_plan(const attn_layer_desc *desc, const attn_layer_gradients *grad, bool data, struct backward_plan *plan,
                         attn_error *error)
{
    static float    nowhere;
    attn_layer_desc d;
    attn_desc       options;
    const attn_out  none = {0};
    if (!desc || !grad) return attn_layer_fail(error, ATTN_LAYER_E_ARGUMENT, "%s is NULL", desc ? "grad" : "desc");
    int32_t status = attn_layer_read("desc", desc, LAYER_FIRST_DESC, sizeof d, &d, error);
    if (!status) status = attn_layer_read("grad", grad, LAYER_FIRST_GRADIENTS, sizeof plan->grad, &plan->grad, error);
    if (!status && d.options) {
        status = attn_layer_read("options", d.options, LAYER_FIRST_OPTIONS, sizeof options, &options, error);
        options.lse = options.weights = none, options.weights_stage = 0;
        d.options = &options;
    }
    if (status) return status;
    const attn_layer_desc given = d;
    plan->own_key = d.x_key.data != NULL, plan->own_value = d.x_value.data != NULL;
    d.q = d.k = d.v = d.y = none, d.work = NULL, d.work_bytes = 0;
    d.out = attn_layer_tokens_out(d.out_width ? &nowhere : NULL, d.queries, d.out_width); /* only looked at */
    if (!d.out_width) d.y = attn_out_strided(&nowhere, ATTN_F32, (int64_t[4]){0});
    status = attn_layer_plan(&d, data, &plan->run, error);
    if (!status && data) status = attn_layer_check_gradients(&given, &plan->run.desc, &plan->grad, error);
    if (!status) status = lay_out(plan, error);
    plan->run.desc.options = NULL; /* it was a local one */
    return status;
}

int32_t attn_layer_backward(const attn_layer_desc *desc, const attn_layer_gradients *grad, attn_error *error)
{
    struct backward_plan plan;
    fenv_t               mode;
    int32_t              status = make_plan(desc, grad, true, &plan, error);
    if (status) return status;
    if (plan.grad.work && plan.grad.work_bytes < plan.bytes)
        return attn_layer_fail(error, ATTN_LAYER_E_WORK, "work_bytes is %zu; this call needs %zu", plan.grad.work_bytes, plan.bytes);
    void *own = plan.grad.work ? NULL : malloc(plan.bytes);
    if (!own && !plan.grad.work)
        return attn_layer_fail(error, ATTN_LAYER_E_MEMORY, "the work of %zu bytes of the layer's gradients could not be allocated",
                               plan.bytes);
    char *work = own ? own : plan.grad.work;
    work += (64 - (uintptr_t)work % 64) % 64;
    fegetenv(&mode);
    fesetenv(FE_DFL_ENV);
    status = run_backward(&plan, work, error);
    fesetenv(&mode);
    free(own);
    return status ? status : attn_layer_ok(error);
}

int32_t attn_layer_backward_work_bytes(const attn_layer_desc *desc, const attn_layer_gradients *grad, size_t *bytes, attn_error *error)
{
    struct backward_plan plan;
    if (!bytes) return attn_layer_fail(error, ATTN_LAYER_E_ARGUMENT, "bytes is NULL");
    int32_t status = make_plan(desc, grad, false, &plan, error);
    if (status) return status;
    *bytes = plan.bytes;
    return attn_layer_ok(error);
}
