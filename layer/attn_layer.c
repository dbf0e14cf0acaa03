/* attn_layer.c: the multi-head layer: projections by CBLAS, the operator over strided heads, the output projection.
 * SPDX-License-Identifier: MIT
 */
#include "layer.h"

#include <cblas.h>
#include <fenv.h>
#include <stdlib.h>

/* to[n] (tokens x outputs, rows `row` apart, entries `step` apart) = x[n] (tokens x inputs) W^T + bias, one product per batch entry: the bits of an
 * entry then do not depend on how many others there are. */
static void project(const attn_in *x, const attn_in *w, const attn_in *bias, int64_t batch, int64_t tokens, int64_t inputs, int64_t outputs,
                    float *to, int64_t step, int64_t row)
{
    bool    x_turned = false, w_turned = false;
    int64_t ldx = attn_layer_leading(tokens, inputs, x->stride[2], x->stride[3], &x_turned);
    int64_t ldw = attn_layer_leading(outputs, inputs, w->stride[2], w->stride[3], &w_turned);
    int64_t ldc = row > outputs ? row : outputs; /* the same but when tokens is 1 and row means nothing */
    if (!tokens || !outputs) return;
    for (int64_t n = 0; n < batch; n++) {
        float *c = to + n * step;
        if (bias->data)
            for (int64_t i = 0; i < tokens; i++)
                for (int64_t o = 0; o < outputs; o++) c[i * ldc + o] = ((const float *)bias->data)[o * bias->stride[3]];
        if (inputs)
            cblas_sgemm(CblasRowMajor, x_turned ? CblasTrans : CblasNoTrans, w_turned ? CblasNoTrans : CblasTrans, (int)tokens,
                        (int)outputs, (int)inputs, 1.0f, (const float *)x->data + n * x->stride[0], (int)ldx, w->data, (int)ldw,
                        bias->data ? 1.0f : 0.0f, c, (int)ldc);
        else if (!bias->data)
            for (int64_t i = 0; i < tokens; i++) memset(c + i * ldc, 0, (size_t)outputs * sizeof *c);
    }
}

/* What the caller wants to see of q, k, v or y: from is (batch, tokens, heads, dim). */
static void copy_heads(const float *from, const attn_out *to, int64_t batch, int64_t heads, int64_t tokens, int64_t dim)
{
    if (!to->data) return;
    for (int64_t n = 0; n < batch; n++)
        for (int64_t i = 0; i < tokens; i++)
            for (int64_t h = 0; h < heads; h++) {
                float *row = (float *)to->data + n * to->stride[0] + h * to->stride[1] + i * to->stride[2];
                for (int64_t c = 0; c < dim; c++) row[c * to->stride[3]] = *from++;
            }
}

/* shapes: x (B, n, width) -> q (B, n_q, H, D), k (B, n_k, G, D), v (B, n_k, G, Dv) -> y (B, n_q, H, Dv) */
int32_t attn_layer_heads(struct layer_plan *plan, char *work, attn_error *error)
{
    const attn_layer_desc *d = &plan->desc;
    attn_desc             *op = &plan->op;
    const int64_t          B = d->batch, hk = d->heads * d->dim, gk = d->kv_heads * d->dim, gv = d->kv_heads * d->value_dim;
    float                 *q = (float *)(work + plan->part[0]), *k = (float *)(work + plan->part[1]);
    float                 *v = (float *)(work + plan->part[2]), *y = (float *)(work + plan->part[3]);

    /* 1. projections, heads side by side */
    project(&d->x, &d->w_q, &d->b_q, B, d->queries, d->width, hk, q, d->queries * hk, hk);
    project(&d->x_key, &d->w_k, &d->b_k, B, d->keys, d->key_width, gk, k, d->keys * gk, gk);
    project(&d->x_value, &d->w_v, &d->b_v, B, d->keys, d->value_width, gv, v, d->keys * gv, gv);

    /* 2. the operator, which reads and writes heads through strides */
    op->q.data = q, op->k.data = k, op->v.data = v, op->out.data = y;
    op->work = work + plan->part[4], op->work_bytes = plan->bytes - 63 - plan->part[4];
    return attn_run(op, error);
}

static int32_t run_plan(struct layer_plan *plan, char *work, attn_error *error)
{
    const attn_layer_desc *d = &plan->desc;
    const int64_t          B = d->batch, hv = d->heads * d->value_dim;
    int32_t                status = attn_layer_heads(plan, work, error);
    if (status) return status;
    const float *q = (float *)(work + plan->part[0]), *k = (float *)(work + plan->part[1]);
    const float *v = (float *)(work + plan->part[2]), *y = (float *)(work + plan->part[3]);

    /* 3. the output projection: y -> out (B, n_q, out_width) */
    const attn_in heads = attn_layer_tokens(y, d->queries, hv);
    if (d->out.data) project(&heads, &d->w_o, &d->b_o, B, d->queries, hv, d->out_width, d->out.data, d->out.stride[0], d->out.stride[2]);

    copy_heads(q, &d->q, B, d->heads, d->queries, d->dim);
    copy_heads(k, &d->k, B, d->kv_heads, d->keys, d->dim);
    copy_heads(v, &d->v, B, d->kv_heads, d->keys, d->value_dim);
    copy_heads(y, &d->y, B, d->heads, d->queries, d->value_dim);
    return ATTN_OK;
}

int32_t attn_layer_run(const attn_layer_desc *desc, attn_error *error)
{
    struct layer_plan plan;
    fenv_t            mode;
    int32_t           status = attn_layer_plan(desc, true, &plan, error);
    if (status) return status;
    if (plan.desc.work && plan.desc.work_bytes < plan.bytes)
        return attn_layer_fail(error, ATTN_LAYER_E_WORK, "work_bytes is %zu; this call needs %zu", plan.desc.work_bytes, plan.bytes);
    void *own = plan.desc.work ? NULL : malloc(plan.bytes);
    if (!own && !plan.desc.work)
        return attn_layer_fail(error, ATTN_LAYER_E_MEMORY, "the layer's work of %zu bytes could not be allocated", plan.bytes);

    char *work = own ? own : plan.desc.work;
    work += (64 - (uintptr_t)work % 64) % 64;
    fegetenv(&mode);
    fesetenv(FE_DFL_ENV); /* CBLAS computes in whatever mode it finds */
    status = run_plan(&plan, work, error);
    fesetenv(&mode);
    free(own);
    return status ? status : attn_layer_ok(error);
}

int32_t attn_layer_check(const attn_layer_desc *desc, attn_error *error)
{
    struct layer_plan plan;
    int32_t           status = attn_layer_plan(desc, true, &plan, error);
    return status ? status : attn_layer_ok(error);
}

int32_t attn_layer_work_bytes(const attn_layer_desc *desc, size_t *bytes, attn_error *error)
{
    struct layer_plan plan;
    if (!bytes) return attn_layer_fail(error, ATTN_LAYER_E_ARGUMENT, "bytes is NULL");
    int32_t status = attn_layer_plan(desc, false, &plan, error);
    if (status) return status;
    *bytes = plan.bytes;
    return attn_layer_ok(error);
}

const char *attn_layer_status_name(int32_t status)
{
    static const char *const names[] = {"argument", "unsupported", "too new", "memory", "work", "file", "layout", "heads"};
    return status >= ATTN_LAYER_E_ARGUMENT && status <= ATTN_LAYER_E_HEADS ? names[status - ATTN_LAYER_E_ARGUMENT]
                                                                           : attn_status_name(status);
}
