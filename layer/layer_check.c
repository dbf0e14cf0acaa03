/* layer_check.c: every rule about a layer's descriptor, and its plan: sizes, views, options, scratch map.
 * SPDX-License-Identifier: MIT
 */
#include "layer.h"

#include <stdarg.h>
#include <stdio.h>

#define WIDEST   INT32_MAX       /* what a CBLAS integer holds */
#define FARTHEST (INT64_MAX / 8) /* bytes from the first element to the last, in elements of 4 bytes and either direction */

int32_t attn_layer_fail(attn_error *error, int32_t status, const char *format, ...)
{
    if (error) {
        va_list list;
        error->status = status;
        va_start(list, format);
        vsnprintf(error->message, sizeof error->message, format, list);
        va_end(list);
    }
    return status;
}

int32_t attn_layer_ok(attn_error *error)
{
    if (error) error->status = ATTN_OK, error->message[0] = 0;
    return ATTN_OK;
}

#define refuse(...) attn_layer_fail(error, ATTN_LAYER_E_ARGUMENT, __VA_ARGS__)

/* ---- reading what the caller was compiled with ------------------------------------------------------------------------------------ */

int32_t attn_layer_read(const char *name, const void *given, size_t first, size_t known, void *copy, attn_error *error)
{
    size_t size;
    memcpy(&size, given, sizeof size);
    if (size < first) return refuse("%s.size is %zu, less than %zu: it was not made by its _new() function", name, size, first);
    for (size_t at = known; at < size; at++)
        if (((const unsigned char *)given)[at])
            return attn_layer_fail(error, ATTN_LAYER_E_TOO_NEW,
                                   "%s has a field at byte %zu that this version, which knows %zu bytes, does not know", name, at, known);
    memset(copy, 0, known);
    memcpy(copy, given, size < known ? size : known);
    memcpy(copy, &known, sizeof known);
    return ATTN_OK;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------------ */

static int32_t check_sizes(const attn_layer_desc *d, attn_error *error)
{
    const struct {
        const char *name;
        int64_t     value, most;
    } sizes[] = {
        {"batch", d->batch, INT64_MAX},          {"heads", d->heads, WIDEST},         {"kv_heads", d->kv_heads, WIDEST},
        {"queries", d->queries, WIDEST},         {"keys", d->keys, WIDEST},           {"dim", d->dim, WIDEST},
        {"value_dim", d->value_dim, WIDEST},     {"width", d->width, WIDEST},         {"key_width", d->key_width, WIDEST},
        {"value_width", d->value_width, WIDEST}, {"out_width", d->out_width, WIDEST},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 0 || sizes[i].value > sizes[i].most)
            return refuse("%s is %lld; it must be from 0 to %lld", sizes[i].name, (long long)sizes[i].value, (long long)sizes[i].most);

    if (d->heads * d->dim > WIDEST || d->heads * d->value_dim > WIDEST)
        return refuse("heads is %lld: heads * dim and heads * value_dim must be below 2^31, which CBLAS counts to", (long long)d->heads);
    if (d->kv_heads ? d->heads % d->kv_heads : d->heads)
        return refuse("kv_heads is %lld, which does not divide heads = %lld", (long long)d->kv_heads, (long long)d->heads);
    if (d->kv_heads > d->heads) return refuse("kv_heads is %lld, more than heads = %lld", (long long)d->kv_heads, (long long)d->heads);
    return ATTN_OK;
}

/* The sizes that must agree when x_key or x_value is absent; the absent ones become what stands in for them. */
static int32_t resolve_sources(attn_layer_desc *d, attn_error *error)
{
    if (!d->x_key.data) {
        if (d->keys != d->queries)
            return refuse("keys is %lld, queries is %lld; without x_key they are the same tokens", (long long)d->keys,
                          (long long)d->queries);
        if (d->key_width != d->width)
            return refuse("key_width is %lld, width is %lld; without x_key they are the same channels", (long long)d->key_width,
                          (long long)d->width);
        d->x_key = d->x;
    }
    if (!d->x_value.data) {
        if (d->value_width != d->key_width)
            return refuse("value_width is %lld, key_width is %lld; without x_value they are the same channels", (long long)d->value_width,
                          (long long)d->key_width);
        d->x_value = d->x_key;
    }
    return ATTN_OK;
}

/* ---- views ------------------------------------------------------------------------------------------------------------------------ */

/* A view and its rule: its size on the four axes, -1 where it has no such axis. `matrix`: CBLAS reads its last two axes. */
struct rule {
    const char    *name;
    const attn_in *view;
    int64_t        size[4];
    bool           needed, matrix;
    int            output; /* its rows may be columns in memory: ANY_ORDER; may not: ROWS */
};

enum { INPUT, ANY_ORDER, ROWS };

int64_t attn_layer_leading(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, bool *transposed)
{
    for (int turn = 0; turn < 2; turn++) {
        if ((columns <= 1 || column_stride == 1) && (rows <= 1 || (row_stride >= columns && row_stride > 0))) {
            int64_t length = rows > 1 ? row_stride : columns;
            *transposed = turn;
            return length > WIDEST ? 0 : length > 1 ? length : 1;
        }
        int64_t swap = rows;
        rows = columns, columns = swap;
        swap = row_stride;
        row_stride = column_stride, column_stride = swap;
    }
    return 0;
}

/* attn.h's rule for outputs: sorted by size, each stride steps over the axes inside it. */
static bool overlaps_itself(const struct rule *r)
{
    int64_t inside = 1;
    bool    used[4] = {false};
    for (;;) {
        int next = -1;
        for (int i = 0; i < 4; i++)
            if (!used[i] && r->size[i] > 1 && (next < 0 || r->view->stride[i] < r->view->stride[next])) next = i;
        if (next < 0) return false;
        if (r->view->stride[next] < inside) return true;
        inside += r->view->stride[next] * (r->size[next] - 1);
        used[next] = true;
    }
}

static int32_t check_span(const struct rule *r, attn_error *error)
{
    const attn_in *v = r->view;
    int64_t        low = 0, high = 0, reach;
    for (int i = 0; i < 4; i++) {
        if (r->size[i] < 0 && v->stride[i])
            return refuse("%s.stride[%d] is %lld; %s has no such axis, so it must be 0", r->name, i, (long long)v->stride[i], r->name);
        if (r->size[i] <= 1) continue;
        if (__builtin_mul_overflow(v->stride[i], r->size[i] - 1, &reach) || reach > FARTHEST || reach < -FARTHEST)
            return refuse("%s.stride[%d] is %lld; with %lld steps it leaves the address space", r->name, i, (long long)v->stride[i],
                          (long long)r->size[i] - 1);
        if (reach < 0)
            low += reach;
        else
            high += reach;
        if (high > FARTHEST || low < -FARTHEST) return refuse("%s has strides that leave the address space", r->name);
    }
    size_t spans = (size_t)(high - low + 1) * sizeof(float);
    if (v->bytes && spans > v->bytes) return refuse("%s spans %zu bytes, more than %s.bytes = %zu", r->name, spans, r->name, v->bytes);
    return ATTN_OK;
}

static int32_t check_view(const struct rule *r, attn_error *error)
{
    const attn_in *v = r->view;
    bool           empty = false, transposed;
    for (int i = 0; i < 4; i++) empty |= r->size[i] == 0;
    if (!v->data) {
        if (r->needed && !empty) return refuse("%s.data is NULL; %s is needed", r->name, r->name);
        return ATTN_OK;
    }
    if (v->reserved) return refuse("%s.reserved is %d; it must be 0", r->name, (int)v->reserved);
    if (v->dtype != ATTN_F32)
        return attn_layer_fail(error, ATTN_LAYER_E_UNSUPPORTED, "%s.dtype is %s (%d); this version of the layer takes f32 only", r->name,
                               attn_dtype_name(v->dtype), (int)v->dtype);
    if ((uintptr_t)v->data % _Alignof(float)) return refuse("%s.data is not aligned to %zu bytes", r->name, _Alignof(float));
    if (empty) return ATTN_OK;
    int32_t status = check_span(r, error);
    if (status) return status;
    int64_t leading = 1;
    if (r->matrix) leading = attn_layer_leading(r->size[2], r->size[3], v->stride[2], v->stride[3], &transposed);
    if (!leading || (r->matrix && r->output == ROWS && transposed))
        return refuse(
            "%s has strides %lld and %lld over %lld x %lld elements; %s must be 1 and the other at least a row's length, below 2^31",
            r->name, (long long)v->stride[2], (long long)v->stride[3], (long long)r->size[2], (long long)r->size[3],
            r->output == ROWS ? "the second" : "one");
    if (r->output && overlaps_itself(r)) return refuse("%s has strides by which two of its elements share a place", r->name);
    return ATTN_OK;
}

/* attn_out is attn_in but for const. */
static attn_in as_in(const attn_out *out)
{
    attn_in in = {out->data, {out->stride[0], out->stride[1], out->stride[2], out->stride[3]}, out->bytes, out->dtype, out->reserved};
    return in;
}

static int32_t check_rules(const struct rule *rules, size_t count, attn_error *error)
{
    for (size_t i = 0; i < count; i++) {
        int32_t status = check_view(&rules[i], error);
        if (status) return status;
    }
    return ATTN_OK;
}

static int32_t check_views(const attn_layer_desc *d, attn_error *error)
{
    const int64_t b = d->batch, h = d->heads, g = d->kv_heads, nq = d->queries, nk = d->keys;
    const attn_in out = as_in(&d->out), q = as_in(&d->q), k = as_in(&d->k), v = as_in(&d->v), y = as_in(&d->y);

    const struct rule rules[] = {
        {"x", &d->x, {b, -1, nq, d->width}, true, true, INPUT},
        {"x_key", &d->x_key, {b, -1, nk, d->key_width}, true, true, INPUT},
        {"x_value", &d->x_value, {b, -1, nk, d->value_width}, true, true, INPUT},
        {"w_q", &d->w_q, {-1, -1, h * d->dim, d->width}, true, true, INPUT},
        {"w_k", &d->w_k, {-1, -1, g * d->dim, d->key_width}, true, true, INPUT},
        {"w_v", &d->w_v, {-1, -1, g * d->value_dim, d->value_width}, true, true, INPUT},
        {"w_o", &d->w_o, {-1, -1, d->out_width, h * d->value_dim}, true, true, INPUT},
        {"b_q", &d->b_q, {-1, -1, -1, h * d->dim}, false, false, INPUT},
        {"b_k", &d->b_k, {-1, -1, -1, g * d->dim}, false, false, INPUT},
        {"b_v", &d->b_v, {-1, -1, -1, g * d->value_dim}, false, false, INPUT},
        {"b_o", &d->b_o, {-1, -1, -1, d->out_width}, false, false, INPUT},
        {"out", &out, {b, -1, nq, d->out_width}, true, true, ROWS},
        {"q", &q, {b, h, nq, d->dim}, false, false, ANY_ORDER},
        {"k", &k, {b, g, nk, d->dim}, false, false, ANY_ORDER},
        {"v", &v, {b, g, nk, d->value_dim}, false, false, ANY_ORDER},
        {"y", &y, {b, h, nq, d->value_dim}, false, false, ANY_ORDER},
    };
    int32_t status = check_rules(rules, sizeof rules / sizeof *rules, error);
    if (status || d->out_width) return status;
    if (d->out.data || d->w_o.data || d->b_o.data)
        return refuse("out_width is 0, but %s is given", d->out.data ? "out" : d->w_o.data ? "w_o" : "b_o");
    const attn_desc *o = d->options;
    if (!q.data && !k.data && !v.data && !y.data && !(o && (o->lse.data || o->weights.data)))
        return refuse("out_width is 0 and none of q, k, v, y, options->lse, options->weights is asked for: the call would give nothing");
    return ATTN_OK;
}

/* What flows back: `given`, the caller's descriptor, tells which operands there are. */
int32_t attn_layer_check_gradients(const attn_layer_desc *given, const attn_layer_desc *d, const attn_layer_gradients *grad,
                                   attn_error *error)
{
    const int64_t b = d->batch, h = d->heads * d->dim, g = d->kv_heads * d->dim, gv = d->kv_heads * d->value_dim,
                  hv = d->heads * d->value_dim;
    const struct {
        const char     *name;
        const attn_out *view;
        const attn_in  *of;
        int64_t         size[4];
    } outputs[] = {
        {"dx", &grad->dx, &given->x, {b, -1, d->queries, d->width}},
        {"dx_key", &grad->dx_key, &given->x_key, {b, -1, d->keys, d->key_width}},
        {"dx_value", &grad->dx_value, &given->x_value, {b, -1, d->keys, d->value_width}},
        {"dw_q", &grad->dw_q, &given->w_q, {-1, -1, h, d->width}},
        {"dw_k", &grad->dw_k, &given->w_k, {-1, -1, g, d->key_width}},
        {"dw_v", &grad->dw_v, &given->w_v, {-1, -1, gv, d->value_width}},
        {"dw_o", &grad->dw_o, &given->w_o, {-1, -1, d->out_width, hv}},
        {"db_q", &grad->db_q, &given->b_q, {-1, -1, -1, h}},
        {"db_k", &grad->db_k, &given->b_k, {-1, -1, -1, g}},
        {"db_v", &grad->db_v, &given->b_v, {-1, -1, -1, gv}},
        {"db_o", &grad->db_o, &given->b_o, {-1, -1, -1, d->out_width}},
    };
    const struct rule d_out = {"d_out", &grad->d_out, {b, -1, d->queries, d->out_width}, true, true, INPUT};
    int32_t           status = check_rules(&d_out, 1, error);
    for (size_t i = 0; !status && i < sizeof outputs / sizeof *outputs; i++) {
        const attn_in *s = outputs[i].of, in = as_in(outputs[i].view);
        struct rule    r = {outputs[i].name, &in, {0}, false, outputs[i].size[2] >= 0, ANY_ORDER};
        memcpy(r.size, outputs[i].size, sizeof r.size);
        if (in.data && !s->data) return refuse("%s is asked for though there is no %s", r.name, r.name + 1);
        status = check_rules(&r, 1, error);
    }
    if (status) return status;
    if (!d->out_width) return refuse("out_width is 0: there is no out that anything could flow back from");
    if (grad->accumulate != 0 && grad->accumulate != 1) return refuse("accumulate is %d, and must be 0 or 1", (int)grad->accumulate);
    if (grad->reserved) return refuse("reserved is %d; it must be 0", (int)grad->reserved);
    return ATTN_OK;
}

/* ---- options and plan ------------------------------------------------------------------------------------------------------------- */

/* The operator's descriptor: the caller's options with the fields that the layer owns filled. */
static int32_t fill_operator(const attn_layer_desc *d, attn_desc *op, attn_error *error)
{
    *op = attn_desc_new();
    if (d->options) {
        int32_t status = attn_layer_read("options", d->options, LAYER_FIRST_OPTIONS, sizeof *op, op, error);
        if (status) return status;
    }
    const attn_desc none = attn_desc_new();
    const struct {
        const char *name;
        bool        set;
    } owned[] = {
        {"a size", memcmp(&op->batch, &none.batch, 7 * sizeof op->batch) != 0},
        {"q", memcmp(&op->q, &none.q, sizeof op->q) != 0},
        {"k", memcmp(&op->k, &none.k, sizeof op->k) != 0},
        {"v", memcmp(&op->v, &none.v, sizeof op->v) != 0},
        {"out", memcmp(&op->out, &none.out, sizeof op->out) != 0},
        {"work or work_bytes", op->work || op->work_bytes},
    };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        if (owned[i].set) return refuse("options sets %s, which belongs to the layer; it must be 0 there", owned[i].name);

    const int64_t h = d->heads, g = d->kv_heads, dk = d->dim, dv = d->value_dim;
    op->batch = d->batch, op->heads = h, op->kv_heads = g, op->queries = d->queries, op->keys = d->keys, op->dim = dk, op->value_dim = dv;
    op->q = attn_in_strided(NULL, ATTN_F32, (int64_t[4]){d->queries * h * dk, dk, h * dk, 1});
    op->k = attn_in_strided(NULL, ATTN_F32, (int64_t[4]){d->keys * g * dk, dk, g * dk, 1});
    op->v = attn_in_strided(NULL, ATTN_F32, (int64_t[4]){d->keys * g * dv, dv, g * dv, 1});
    op->out = attn_out_strided(NULL, ATTN_F32, (int64_t[4]){d->queries * h * dv, dv, h * dv, 1});
    return ATTN_OK;
}

/* What the operator says about the options. Its own operands stand in the work, which is not there yet: any place will do. */
static int32_t check_operator(const attn_desc *op, attn_error *error)
{
    static float somewhere;
    attn_desc    trial = *op;
    trial.q.data = trial.k.data = trial.v.data = trial.out.data = &somewhere;
    return attn_check(&trial, error);
}

static int32_t lay_out_work(struct layer_plan *plan, attn_error *error)
{
    const attn_layer_desc *d = &plan->desc;
    size_t                 op_bytes;
    const int64_t          channels[4] = {d->heads * d->dim, d->kv_heads * d->dim, d->kv_heads * d->value_dim, d->heads * d->value_dim};
    int32_t                status = attn_work_bytes(&plan->op, &op_bytes, error);
    if (status) return status;
    plan->bytes = 63; /* so that the first part can be moved up to a multiple of 64 */
    for (int i = 0; i < 5; i++) {
        int64_t bytes = (int64_t)op_bytes, tokens = i == 1 || i == 2 ? d->keys : d->queries;
        if (i < 4 && (__builtin_mul_overflow(tokens * channels[i], d->batch, &bytes) || bytes > FARTHEST / 8))
            return refuse("batch is %lld; the projected q, k, v and y would not fit into the address space", (long long)d->batch);
        if (i < 4) bytes = (bytes * (int64_t)sizeof(float) + 63) / 64 * 64;
        plan->part[i] = plan->bytes - 63;
        plan->bytes += (size_t)bytes;
    }
    return ATTN_OK;
}

int32_t attn_layer_plan(const attn_layer_desc *desc, bool data, struct layer_plan *plan, attn_error *error)
{
    attn_layer_desc *d = &plan->desc;
    if (!desc) return refuse("desc is NULL");
    int32_t status = attn_layer_read("desc", desc, LAYER_FIRST_DESC, sizeof *d, d, error);
    if (!status) status = check_sizes(d, error);
    if (!status && data) status = resolve_sources(d, error);
    if (!status && data) status = check_views(d, error);
    if (!status) status = fill_operator(d, &plan->op, error);
    if (!status && data) status = check_operator(&plan->op, error);
    if (!status) status = lay_out_work(plan, error);
    return status;
}
