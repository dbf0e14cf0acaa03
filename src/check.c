/* check.c: every rule about a descriptor, in field order: condition, field, value, rule.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

int32_t attn_fail(attn_error *error, int32_t status, const char *format, ...)
{
    if (error && status == ATTN_OK) /* of every call: not through printf */
        error->status = ATTN_OK, error->message[0] = 0;
    else if (error) {
        va_list list;
        va_start(list, format);
        error->status = status;
        vsnprintf(error->message, sizeof error->message, format, list);
        va_end(list);
    }
    return status;
}

#define ARG(condition, ...)                                                                                                                \
    if (!(condition)) return attn_fail(e, ATTN_E_ARGUMENT, __VA_ARGS__)
#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        int32_t status_ = (call);                                                                                                          \
        if (status_) return status_;                                                                                                       \
    } while (0)

/* ---- reading a struct of any version ---------------------------------------------------------------------------------------------- */

/* First versions of the growing structs; a shorter one has never existed. */
enum {
    DESC_SIZE_1 = offsetof(attn_desc, dropout),
    MERGE_SIZE_1 = sizeof(attn_merge_desc),
    INFO_SIZE_1 = sizeof(attn_plan_info),
    INSPECT_SIZE_1 = sizeof(attn_inspect_desc),
    DROPOUT_SIZE_1 = sizeof(attn_dropout_block),
    BACKWARD_SIZE_1 = sizeof(attn_backward_desc),
    LARGEST_STRUCT = 65536
};

static int32_t check_struct(const void *from, size_t *size, size_t first, const char *what, attn_error *e)
{
    ARG(from, "%s is NULL", what);
    memcpy(size, from, sizeof *size);
    ARG(*size >= first, "%s.size is %zu, less than the first version's %zu; start from %s_new()", what, *size, first, what);
    ARG(*size <= LARGEST_STRUCT, "%s.size is %zu, which no version has; start from %s_new()", what, *size, what);
    return ATTN_OK;
}

static int32_t read_struct(const void *from, void *to, size_t first, size_t ours, const char *what, attn_error *e)
{
    size_t size = 0;
    TRY(check_struct(from, &size, first, what, e));
    if (size < ours)
        memset(to, 0, ours), memcpy(to, from, size);
    else
        memcpy(to, from, ours);
    for (size_t i = ours; i < size; i++)
        if (((const unsigned char *)from)[i])
            return attn_fail(e, ATTN_E_TOO_NEW,
                             "%s.size is %zu and byte %zu is set, which this library (%zu bytes, version %s) does not know", what, size, i,
                             ours, ATTN_VERSION);
    memcpy(to, &ours, sizeof ours);
    return ATTN_OK;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------------------------- */

enum {
    ANY_OF_F32 = 1 << ATTN_F32,
    ANY_OF_F64 = 1 << ATTN_F64,
    ANY_FLOAT = 1 << ATTN_F32 | 1 << ATTN_F64 | 1 << ATTN_F16 | 1 << ATTN_BF16,
    FREE = 1 << 30 /* not a type: the rule does not depend on q's */
};

/* One operand as seen here; inputs and outputs have the same fields. */
struct view {
    const char    *name;
    const void    *data;
    const int64_t *stride;
    size_t         bytes;
    int32_t        dtype, reserved, is_out, needed;
    int64_t        size[4]; /* 0 beyond the last axis: -1 */
    uint32_t       dtypes;
};

static const char *const axis_name[4] = {"stride[0]", "stride[1]", "stride[2]", "stride[3]"};

static int64_t magnitude(int64_t x)
{
    return x < 0 ? -x : x;
}

/* No two elements of an output in one place: sorted by size, each stride steps over the axes inside it. */
static int32_t check_overlap(const struct view *v, attn_error *e)
{
    int     axes[4], n = 0;
    int64_t reach = 0;
    for (int a = 0; a < 4; a++)
        if (v->size[a] > 1) {
            int at = n++;
            while (at > 0 && magnitude(v->stride[axes[at - 1]]) > magnitude(v->stride[a])) axes[at] = axes[at - 1], at--;
            axes[at] = a;
        }
    for (int i = 0; i < n; i++) {
        int64_t step = magnitude(v->stride[axes[i]]);
        ARG(step > reach, "%s.%s is %" PRId64 ", so that two elements of an output share a place; it must be more than %" PRId64, v->name,
            axis_name[axes[i]], v->stride[axes[i]], reach);
        reach += step * (v->size[axes[i]] - 1);
    }
    return ATTN_OK;
}

static const char *list_types(char *to, size_t room, int32_t dtypes)
{
    to[0] = 0;
    for (int32_t t = ATTN_F32, n = 0; t <= ATTN_I64; t++)
        if (dtypes >> t & 1) snprintf(to + strlen(to), room - strlen(to), "%s%s", n++ ? " or " : "", attn_dtype_name(t));
    return to;
}

static int32_t check_view(const struct view *v, int data, attn_error *e)
{
    int64_t low = 0, high = 0, elements = 1;
    ARG(v->reserved == 0, "%s.reserved is %d, and must be 0", v->name, v->reserved);
    for (int a = 0; a < 4; a++) elements = v->size[a] == 0 ? 0 : elements;
    if (!v->data && !v->needed) {
        ARG(!v->dtype || !elements || !data, "%s.data is NULL though %s.dtype is set; an absent operand has both 0", v->name, v->name);
        return ATTN_OK;
    }
    char types[64];
    ARG(v->dtype >= ATTN_F32 && v->dtype <= ATTN_I64 && (v->dtypes >> v->dtype & 1), "%s.dtype is %s (%d), and must be %s%s", v->name,
        attn_dtype_name(v->dtype), v->dtype, list_types(types, sizeof types, v->dtypes),
        v->dtypes & FREE || strcmp(v->name, "q") == 0 ? "" : ", to go with q");
    size_t width = attn_dtype_bytes(v->dtype);
    for (int a = 0; a < 4; a++) {
        ARG(v->size[a] >= 0 || v->stride[a] == 0, "%s.%s is %" PRId64 ", but %s has no such axis: it must be 0", v->name, axis_name[a],
            v->stride[a], v->name);
        int64_t span, last = v->size[a] > 1 && elements ? v->size[a] - 1 : 0;
        ARG(v->stride[a] != INT64_MIN && !__builtin_mul_overflow(v->stride[a], last, &span) &&
                !(span < 0 ? __builtin_add_overflow(low, span, &low) : __builtin_add_overflow(high, span, &high)),
            "%s.%s is %" PRId64 ", which reaches past 2^63 elements", v->name, axis_name[a], v->stride[a]);
    }
    int64_t span, bytes;
    ARG(!__builtin_sub_overflow(high, low, &span) && !__builtin_add_overflow(span, 1, &span) &&
            !__builtin_mul_overflow(span, (int64_t)width, &bytes),
        "%s spans more than 2^63 bytes", v->name);
    if (!elements) return ATTN_OK;
    ARG(!v->bytes || (size_t)bytes <= v->bytes, "%s spans %" PRId64 " bytes, more than %s.bytes = %zu", v->name, bytes, v->name, v->bytes);
    if (v->is_out) TRY(check_overlap(v, e));
    if (!data) return ATTN_OK;
    ARG(v->data, "%s.data is NULL", v->name);
    ARG((uintptr_t)v->data % width == 0, "%s.data is not aligned to its element size, %zu bytes", v->name, width);
    return ATTN_OK;
}

/* what is absent altogether is passed over at once */
#define VIEW(t, field, out, need, types, ...)                                                                                              \
    (!((need) || (t).data || (t).dtype || (t).reserved)                                                                                    \
         ? ATTN_OK                                                                                                                         \
         : check_view(&(struct view){field, (t).data, (t).stride, (t).bytes, (t).dtype, (t).reserved, out, need, __VA_ARGS__, types},      \
                      data, e))
#define AXES(...) {__VA_ARGS__}

/* An operand without elements may have any strides and no data, an axis of one element any stride, near 2^63 too. Nobody downstream needs to know:
 * it gets strides of 0 and an address. */
static void settle(const void **data, int64_t *stride, const int64_t *size, int needed)
{
    static const double nothing;
    for (int axis = 0; axis < 4; axis++)
        if (size[axis] == 1) stride[axis] = 0;
    if (size[0] && size[1] && size[2] && size[3]) return;
    memset(stride, 0, 4 * sizeof *stride);
    if (needed && !*data) *data = &nothing;
}

static void settle_all(attn_desc *d)
{
    const int64_t q[] = {d->batch, d->heads, d->queries, d->dim}, k[] = {d->batch, d->kv_heads, d->keys, d->dim};
    const int64_t v[] = {d->batch, d->kv_heads, d->keys, d->value_dim}, out[] = {d->batch, d->heads, d->queries, d->value_dim};
    const int64_t pairs[] = {d->batch, d->heads, d->queries, d->keys};
    const void   *nowhere = d->out.data;
    settle(&d->q.data, d->q.stride, q, 1);
    settle(&d->k.data, d->k.stride, k, 1);
    settle(&d->v.data, d->v.stride, v, 1);
    settle(&nowhere, d->out.stride, out, 0);
    if (d->allow.data) settle(&d->allow.data, d->allow.stride, pairs, 0);
    if (d->bias.data) settle(&d->bias.data, d->bias.stride, pairs, 0);
    nowhere = d->weights.data;
    if (nowhere) settle(&nowhere, d->weights.stride, pairs, 0);
}

/* The same for what flows back. */
static void settle_gradients(const attn_desc *d, attn_backward_desc *g)
{
    const int64_t q[] = {d->batch, d->heads, d->queries, d->dim}, k[] = {d->batch, d->kv_heads, d->keys, d->dim};
    const int64_t v[] = {d->batch, d->kv_heads, d->keys, d->value_dim}, out[] = {d->batch, d->heads, d->queries, d->value_dim};
    const int64_t rows[] = {d->batch, d->heads, d->queries, 1};
    const void   *nowhere = 0;
    settle(&g->out.data, g->out.stride, out, 1);
    settle(&g->d_out.data, g->d_out.stride, out, 1);
    settle(&g->lse.data, g->lse.stride, rows, 1);
    settle(&g->d_lse.data, g->d_lse.stride, rows, 0);
    settle(&nowhere, g->dq.stride, q, 0);
    settle(&nowhere, g->dk.stride, k, 0);
    settle(&nowhere, g->dv.stride, v, 0);
}

static int32_t check_tensors(const attn_desc *d, int data, int backward, attn_error *e)
{
    uint32_t own = 1u << (d->q.dtype & 31), or_f32 = own | ANY_OF_F32, real = d->q.dtype == ATTN_F64 ? ANY_OF_F64 : ANY_OF_F32;
    int64_t  b = d->batch, h = d->heads, g = d->kv_heads, n = d->queries, k = d->keys;
    TRY(VIEW(d->q, "q", 0, 1, ANY_FLOAT, AXES(b, h, n, d->dim)));
    TRY(VIEW(d->k, "k", 0, 1, own, AXES(b, g, k, d->dim)));
    TRY(VIEW(d->v, "v", 0, 1, own, AXES(b, g, k, d->value_dim)));
    if (!backward) TRY(VIEW(d->out, "out", 1, 1, or_f32, AXES(b, h, n, d->value_dim)));
    TRY(VIEW(d->allow, "allow", 0, 0, 1u << ATTN_BOOL, AXES(b, h, n, k)));
    TRY(VIEW(d->bias, "bias", 0, 0, or_f32, AXES(b, h, n, k)));
    TRY(VIEW(d->alibi, "alibi", 0, 0, real, AXES(b, h, -1, -1)));
    TRY(VIEW(d->sink, "sink", 0, 0, real, AXES(-1, h, -1, -1)));
    TRY(VIEW(d->lse, "lse", 1, 0, real, AXES(b, h, n, -1)));
    TRY(VIEW(d->weights, "weights", 1, 0, or_f32 | ANY_OF_F64, AXES(b, h, n, k)));
    return ATTN_OK;
}

/* ---- the descriptor --------------------------------------------------------------------------------------------------------------- */

static int32_t check_sizes(const attn_desc *d, attn_error *e)
{
    static const char *const name[] = {"batch", "heads", "kv_heads", "queries", "keys", "dim", "value_dim"};
    const int64_t            size[] = {d->batch, d->heads, d->kv_heads, d->queries, d->keys, d->dim, d->value_dim};
    for (int i = 0; i < 7; i++) {
        ARG(size[i] >= 0, "%s is %" PRId64 ", and must not be negative", name[i], size[i]);
        if (size[i] > (int64_t)1 << 40) return attn_fail(e, ATTN_E_UNSUPPORTED, "%s is %" PRId64 ", more than 2^40", name[i], size[i]);
    }
    ARG(d->heads == 0 || d->kv_heads > 0, "kv_heads is 0 though heads is %" PRId64, d->heads);
    ARG(d->heads == 0 || d->heads % d->kv_heads == 0, "kv_heads is %" PRId64 ", which does not divide heads = %" PRId64, d->kv_heads,
        d->heads);
    int64_t rows;
    ARG(!__builtin_mul_overflow(d->batch, d->heads, &rows) && !__builtin_mul_overflow(rows, d->queries, &rows),
        "batch = %" PRId64 " times heads = %" PRId64 " times queries = %" PRId64 " is past 2^63", d->batch, d->heads, d->queries);
    return ATTN_OK;
}

/* user: what needs to know where the queries stand, or NULL */
static int32_t check_placed(const attn_desc *d, int64_t b, const char *user, attn_error *e)
{
    int64_t queries = attn_query_count(d, b), keys = attn_key_count(d, b);
    ARG(!user || d->align || d->query_offset || queries == keys,
        "align is not said: %s needs it, as batch entry %" PRId64 " has %" PRId64 " queries and %" PRId64
        " keys; choose align top-left, align bottom-right, or query_offset",
        user, b, queries, keys);
    return ATTN_OK;
}

static int32_t check_batch(const attn_desc *d, int64_t b, attn_error *e)
{
    int64_t start = attn_key_start(d, b), limit = (int64_t)1 << 62;
    ARG(start >= 0 && start <= d->keys, "key_start[%" PRId64 "] is %" PRId64 ", outside 0 to keys = %" PRId64, b, start, d->keys);
    int64_t keys = attn_key_count(d, b), queries = attn_query_count(d, b), offset = d->query_offset ? d->query_offset[b] : 0;
    ARG(queries >= 0 && queries <= d->queries, "query_count[%" PRId64 "] is %" PRId64 ", outside 0 to queries = %" PRId64, b, queries,
        d->queries);
    ARG(keys >= 0 && keys <= d->keys - start,
        "key_count[%" PRId64 "] is %" PRId64 ", outside 0 to %" PRId64 " (keys = %" PRId64 " less key_start = %" PRId64 ")", b, keys,
        d->keys - start, d->keys, start);
    ARG(offset >= -limit && offset <= limit, "query_offset[%" PRId64 "] is %" PRId64 ", outside -2^62 to 2^62", b, offset);
    int bounded = d->window && (d->window_left >= 0 || d->window_right >= 0);
    return check_placed(d, b, d->causal ? "causal" : bounded ? "window" : d->alibi.data ? "alibi" : 0, e);
}

/* How many batch entries there are to look at: without arrays every entry is like the first. */
static int64_t different(const attn_desc *d)
{
    int same = !d->query_offset && !d->query_count && !d->key_count && !d->key_start;
    return same && d->batch > 1 ? 1 : d->batch;
}

static int32_t check_options(const attn_desc *d, attn_error *e)
{
    ARG(d->align >= 0 && d->align <= ATTN_ALIGN_BOTTOM_RIGHT, "align is %d, and must be 0 (not said), 1 (top-left) or 2 (bottom-right)",
        d->align);
    ARG(!(d->align && d->query_offset), "align is %d and query_offset is given; say where the queries stand once", d->align);
    ARG(d->causal == 0 || d->causal == 1, "causal is %d, and must be 0 or 1", d->causal);
    ARG(d->window == 0 || d->window == 1, "window is %d, and must be 0 or 1", d->window);
    ARG(d->scale_given == 0 || d->scale_given == 1, "scale_given is %d, and must be 0 or 1", d->scale_given);
    ARG(d->window_left >= -1, "window_left is %" PRId64 ", and must be -1 (no bound) or more", d->window_left);
    ARG(d->window_right >= -1, "window_right is %" PRId64 ", and must be -1 (no bound) or more", d->window_right);
    ARG(d->window || (!d->window_left && !d->window_right),
        "window is 0 though window_left is %" PRId64 " and window_right is %" PRId64 "; set window to 1 to mean them", d->window_left,
        d->window_right);
    for (int64_t b = 0; b < different(d); b++) TRY(check_batch(d, b, e));
    return ATTN_OK;
}

static int32_t check_isa(const char *isa, attn_error *e)
{
    char    names[96] = "";
    int32_t known = 0;
    for (int32_t i = 0; isa && attn_isa_name(i); i++) {
        known |= strcmp(isa, attn_isa_name(i)) == 0;
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "", attn_isa_name(i));
    }
    ARG(!isa || known, "isa is \"%.32s\"; this library has %s", isa, names);
    if (isa && !attn_cpu_usable(isa))
        return attn_fail(e, ATTN_E_UNSUPPORTED, "isa is \"%s\", which this CPU or its operating system cannot run", isa);
    return ATTN_OK;
}

static int32_t check_dropout(double rate, attn_error *e)
{
    ARG(rate >= 0 && rate <= 1, "dropout is %g, and must be from 0 (off) to 1", rate);
    return ATTN_OK;
}

static int32_t check_desc(attn_desc *d, int data, int backward, attn_error *e)
{
    TRY(check_sizes(d, e));
    TRY(check_tensors(d, data, backward, e));
    TRY(check_options(d, e));
    ARG(isfinite(d->scale), "scale is %g, and must be finite", d->scale);
    ARG(d->scale_given || d->scale == 0, "scale is %g though scale_given is 0; set scale_given to 1 to mean it", d->scale);
    ARG(isfinite(d->softcap) && d->softcap >= 0, "softcap is %g, and must be finite and 0 (off) or more", d->softcap);
    ARG(d->weights_stage >= 0 && d->weights_stage <= ATTN_STAGE_BIASED, "weights_stage is %d, and must be an ATTN_STAGE_ constant, 0 to 3",
        d->weights_stage);
    ARG(d->weights.data || !d->weights_stage || !data, "weights_stage is %d though weights.data is NULL", d->weights_stage);
    TRY(check_dropout(d->dropout, e));
    ARG(d->reserved == 0, "attn_desc.reserved is %d, and must be 0", d->reserved);
    TRY(check_isa(d->isa, e));
    if (d->executor) {
        ARG(d->executor->parallel_for || !data, "executor->parallel_for is NULL");
        ARG(d->executor->width >= 1 && d->executor->width <= 65536, "executor->width is %d, and must be from 1 to 65536",
            d->executor->width);
        ARG(d->executor->reserved == 0, "executor->reserved is %d, and must be 0", d->executor->reserved);
    }
    ARG(d->work || d->work_bytes == 0 || !data, "work is NULL though work_bytes is %zu", d->work_bytes);
    settle_all(d);
    return ATTN_OK;
}

int32_t attn_check_info(const attn_plan_info *info, attn_error *e)
{
    size_t size;
    return check_struct(info, &size, INFO_SIZE_1, "attn_plan_info", e);
}

int32_t attn_check_desc(const attn_desc *from, attn_desc *d, int data, attn_error *e)
{
    attn_fail(e, ATTN_OK, "%s", "");
    TRY(read_struct(from, d, DESC_SIZE_1, sizeof *d, "attn_desc", e));
    return check_desc(d, data, 0, e);
}

/* ---- looking at weights ----------------------------------------------------------------------------------------------------------- */

static int32_t check_list(const char *name, const int64_t *list, int64_t count, int64_t limit, int data, attn_error *e)
{
    ARG(count >= 0, "%s_count is %" PRId64 ", and must not be negative", name, count);
    if (count > (int64_t)1 << 40) return attn_fail(e, ATTN_E_UNSUPPORTED, "%s_count is %" PRId64 ", more than 2^40", name, count);
    ARG(list || !count || !data, "%s_count is %" PRId64 " though the list is NULL, which means all", name, count);
    for (int64_t i = 0; list && i < count; i++)
        ARG(list[i] >= 0 && list[i] < limit, "entry %" PRId64 " of the list of %s_count is %" PRId64 ", outside 0 to %" PRId64, i, name,
            list[i], limit - 1);
    return ATTN_OK;
}

static int32_t check_cells(const char *name, int64_t cells, int asked, const char *of, int64_t n, attn_error *e)
{
    ARG(asked || !cells, "%s is %" PRId64 " though neither map_mean nor map_max is asked for", name, cells);
    ARG(!asked || (cells >= (n > 0) && cells <= 65536), "%s is %" PRId64 ", and must be from 1 to 65536", name, cells);
    ARG(cells <= n, "%s is %" PRId64 ", more than the %" PRId64 " %s that there are to show", name, cells, n, of);
    return ATTN_OK;
}

static int32_t check_views(const attn_desc *d, const attn_inspect_desc *w, int64_t n, int64_t k, int data, attn_error *e)
{
    const uint32_t either = ANY_OF_F32 | ANY_OF_F64 | FREE, real = d->q.dtype == ATTN_F64 ? ANY_OF_F64 : ANY_OF_F32;
    int64_t        b = d->batch, h = w->head_count;
    TRY(VIEW(w->lse, "lse", 0, 0, real, AXES(b, d->heads, d->queries, -1)));
    TRY(VIEW(w->values, "values", 1, 0, either, AXES(b, h, n, k)));
    TRY(VIEW(w->entropy, "entropy", 1, 0, either, AXES(b, h, n, -1)));
    TRY(VIEW(w->top_weight, "top_weight", 1, 0, either, AXES(b, h, n, w->top)));
    TRY(VIEW(w->top_key, "top_key", 1, 0, 1u << ATTN_I64 | FREE, AXES(b, h, n, w->top)));
    TRY(VIEW(w->first_mass, "first_mass", 1, 0, either, AXES(b, h, n, -1)));
    TRY(VIEW(w->window_mass, "window_mass", 1, 0, either, AXES(b, h, n, -1)));
    TRY(VIEW(w->received, "received", 1, 0, either, AXES(b, h, k, -1)));
    TRY(VIEW(w->map_mean, "map_mean", 1, 0, either, AXES(b, h, w->map_rows, w->map_columns)));
    TRY(VIEW(w->map_max, "map_max", 1, 0, either, AXES(b, h, w->map_rows, w->map_columns)));
    return ATTN_OK;
}

/* What is chosen: lists and ranges, with their defaults filled in. */
static int32_t check_chosen(const attn_desc *d, attn_inspect_desc *w, int data, attn_error *e)
{
    TRY(check_list("head", w->heads, w->head_count, d->heads, data, e));
    TRY(check_list("query", w->queries, w->query_count, d->queries, data, e));
    if (!w->heads && !w->head_count) w->head_count = d->heads;
    if (!w->queries && !w->query_count) w->query_count = d->queries;
    int64_t rows;
    ARG(!__builtin_mul_overflow(d->batch, w->head_count, &rows) && !__builtin_mul_overflow(rows, w->query_count, &rows),
        "batch = %" PRId64 " times head_count = %" PRId64 " times query_count = %" PRId64 " is past 2^63", d->batch, w->head_count,
        w->query_count);
    ARG(w->key_first >= 0 && w->key_first <= d->keys, "key_first is %" PRId64 ", outside 0 to keys = %" PRId64, w->key_first, d->keys);
    ARG(w->key_count >= 0 && w->key_count <= d->keys - w->key_first,
        "key_count is %" PRId64 ", outside 0 (all) to %" PRId64 " (keys = %" PRId64 " less key_first = %" PRId64 ")", w->key_count,
        d->keys - w->key_first, d->keys, w->key_first);
    if (!w->key_count) w->key_count = d->keys - w->key_first;
    return ATTN_OK;
}

int32_t attn_check_inspect(const attn_desc *from, const attn_inspect_desc *what, attn_desc *d, attn_inspect_desc *w, int data,
                           attn_error *e)
{
    attn_fail(e, ATTN_OK, "%s", "");
    TRY(read_struct(from, d, DESC_SIZE_1, sizeof *d, "attn_desc", e));
    TRY(read_struct(what, w, INSPECT_SIZE_1, sizeof *w, "attn_inspect_desc", e));
    d->v = (attn_in){.dtype = d->q.dtype};
    d->out = (attn_out){.dtype = d->q.dtype};
    d->lse = d->weights = (attn_out){0};
    d->value_dim = d->weights_stage = 0;
    d->work = 0, d->work_bytes = 0;
    TRY(check_desc(d, data, 0, e));
    TRY(check_chosen(d, w, data, e));
    const int ranks = w->top_weight.dtype || w->top_key.dtype, map = w->map_mean.dtype || w->map_max.dtype;
    ARG(w->values_stage >= 0 && w->values_stage <= ATTN_STAGE_BIASED, "values_stage is %d, and must be an ATTN_STAGE_ constant, 0 to 3",
        w->values_stage);
    ARG(w->values.dtype || !w->values_stage, "values_stage is %d though values is not asked for", w->values_stage);
    ARG(ranks || !w->top, "top is %d though neither top_weight nor top_key is asked for", w->top);
    ARG(!ranks || (w->top >= 1 && w->top <= 64), "top is %d, and must be from 1 to 64", w->top);
    if (ranks && d->keys > UINT32_MAX)
        return attn_fail(e, ATTN_E_UNSUPPORTED, "keys is %" PRId64 ", and top is for at most 2^32 keys", d->keys);
    ARG(w->mass_left >= -1, "mass_left is %" PRId64 ", and must be -1 (no bound) or more", w->mass_left);
    ARG(w->mass_right >= -1, "mass_right is %" PRId64 ", and must be -1 (no bound) or more", w->mass_right);
    ARG(w->window_mass.dtype || (!w->mass_left && !w->mass_right),
        "mass_left is %" PRId64 " and mass_right is %" PRId64 " though window_mass is not asked for", w->mass_left, w->mass_right);
    const char *user = w->window_mass.dtype && (w->mass_left >= 0 || w->mass_right >= 0) ? "window_mass" : 0;
    for (int64_t b = 0; b < different(d); b++) TRY(check_placed(d, b, user, e));
    TRY(check_cells("map_rows", w->map_rows, map, "queries", w->query_count, e));
    TRY(check_cells("map_columns", w->map_columns, map, "keys", w->key_count, e));
    TRY(check_views(d, w, w->query_count, w->key_count, data, e));
    ARG(w->work || w->work_bytes == 0 || !data, "work is NULL though work_bytes is %zu", w->work_bytes);
    return ATTN_OK;
}

/* ---- gradients -------------------------------------------------------------------------------------------------------------------- */

int64_t attn_check_kept(const attn_out *t, int axis, int64_t size)
{
    return t->stride[axis] == 0 ? 1 : size;
}

int32_t attn_check_backward(const attn_desc *desc, const attn_backward_desc *from, attn_desc *d, attn_backward_desc *g, int data,
                            attn_error *e)
{
    attn_fail(e, ATTN_OK, "%s", "");
    TRY(read_struct(desc, d, DESC_SIZE_1, sizeof *d, "attn_desc", e));
    TRY(read_struct(from, g, BACKWARD_SIZE_1, sizeof *g, "attn_backward_desc", e));
    d->out = d->lse = d->weights = (attn_out){0}; /* what a run writes and works with is of no matter here */
    d->weights_stage = 0, d->work = 0, d->work_bytes = 0;
    TRY(check_desc(d, data, 1, e));
    const uint32_t own = 1u << d->q.dtype, or_f32 = own | ANY_OF_F32, real = d->q.dtype == ATTN_F64 ? ANY_OF_F64 : ANY_OF_F32;
    const int64_t  b = d->batch, h = d->heads, n = d->queries, k = d->keys;
    TRY(VIEW(g->out, "out", 0, 1, or_f32, AXES(b, h, n, d->value_dim)));
    TRY(VIEW(g->lse, "lse", 0, 1, real, AXES(b, h, n, -1)));
    TRY(VIEW(g->d_out, "d_out", 0, 1, or_f32, AXES(b, h, n, d->value_dim)));
    TRY(VIEW(g->d_lse, "d_lse", 0, 0, real, AXES(b, h, n, -1)));
    TRY(VIEW(g->dq, "dq", 1, 0, or_f32, AXES(b, h, n, d->dim)));
    TRY(VIEW(g->dk, "dk", 1, 0, or_f32, AXES(b, d->kv_heads, k, d->dim)));
    TRY(VIEW(g->dv, "dv", 1, 0, or_f32, AXES(b, d->kv_heads, k, d->value_dim)));
    TRY(VIEW(g->dbias, "dbias", 1, 0, or_f32,
             AXES(attn_check_kept(&g->dbias, 0, b), attn_check_kept(&g->dbias, 1, h), attn_check_kept(&g->dbias, 2, n),
                  attn_check_kept(&g->dbias, 3, k))));
    TRY(VIEW(g->dsink, "dsink", 1, 0, real, AXES(-1, attn_check_kept(&g->dsink, 1, h), -1, -1)));
    TRY(VIEW(g->dalibi, "dalibi", 1, 0, real, AXES(attn_check_kept(&g->dalibi, 0, b), attn_check_kept(&g->dalibi, 1, h), -1, -1)));
    ARG(d->bias.dtype || !g->dbias.dtype, "dbias is asked for though there is no bias");
    ARG(d->sink.dtype || !g->dsink.dtype, "dsink is asked for though there is no sink");
    ARG(d->alibi.dtype || !g->dalibi.dtype, "dalibi is asked for though there is no alibi");
    ARG(g->accumulate == 0 || g->accumulate == 1, "accumulate is %d, and must be 0 or 1", g->accumulate);
    ARG(g->reserved == 0, "attn_backward_desc.reserved is %d, and must be 0", g->reserved);
    ARG(g->work || g->work_bytes == 0 || !data, "work is NULL though work_bytes is %zu", g->work_bytes);
    settle_gradients(d, g);
    return ATTN_OK;
}

int32_t attn_check_dropout(const attn_dropout_block *from, attn_dropout_block *d, attn_error *e)
{
    const int data = 1;
    attn_fail(e, ATTN_OK, "%s", "");
    TRY(read_struct(from, d, DROPOUT_SIZE_1, sizeof *d, "attn_dropout_block", e));
    const int64_t     first[] = {d->batch, d->head, d->query, d->key};
    const int64_t     count[] = {d->batch_count, d->head_count, d->query_count, d->key_count};
    const char *const name[] = {"batch", "head", "query", "key"};
    TRY(check_dropout(d->dropout, e));
    for (int i = 0; i < 4; i++) {
        ARG(first[i] >= 0 && first[i] <= (int64_t)1 << 40, "%s is %" PRId64 ", and must be from 0 to 2^40", name[i], first[i]);
        ARG(count[i] >= 0 && count[i] <= (int64_t)1 << 40, "%s_count is %" PRId64 ", and must be from 0 to 2^40", name[i], count[i]);
    }
    TRY(VIEW(d->keep, "keep", 1, 1, 1u << ATTN_BOOL, AXES(count[0], count[1], count[2], count[3])));
    return ATTN_OK;
}

int32_t attn_check_merge(const attn_merge_desc *from, attn_merge_desc *d, attn_error *e)
{
    const int data = 1;
    char      name[2][40];
    attn_fail(e, ATTN_OK, "%s", "");
    TRY(read_struct(from, d, MERGE_SIZE_1, sizeof *d, "attn_merge_desc", e));
    const int64_t     size[] = {d->batch, d->heads, d->queries, d->value_dim};
    const char *const called[] = {"batch", "heads", "queries", "value_dim"};
    for (int i = 0; i < 4; i++) ARG(size[i] >= 0, "%s is %" PRId64 ", and must not be negative", called[i], size[i]);
    ARG(d->parts >= 1, "parts is %" PRId64 ", and must be 1 or more", d->parts);
    ARG(d->part_out, "part_out is NULL");
    ARG(d->part_lse, "part_lse is NULL");
    for (int64_t r = 0; r < d->parts; r++) {
        snprintf(name[0], sizeof name[0], "part_out[%" PRId64 "]", r);
        snprintf(name[1], sizeof name[1], "part_lse[%" PRId64 "]", r);
        TRY(VIEW(d->part_out[r], name[0], 0, 1, ANY_FLOAT, AXES(d->batch, d->heads, d->queries, d->value_dim)));
        TRY(VIEW(d->part_lse[r], name[1], 0, 1, ANY_OF_F32 | ANY_OF_F64, AXES(d->batch, d->heads, d->queries, -1)));
    }
    TRY(VIEW(d->out, "out", 1, 1, ANY_FLOAT, AXES(d->batch, d->heads, d->queries, d->value_dim)));
    TRY(VIEW(d->lse, "lse", 1, 0, ANY_OF_F32 | ANY_OF_F64, AXES(d->batch, d->heads, d->queries, -1)));
    return ATTN_OK;
}
