/* mask_convert.c: attn mask convert: masks between the forms that systems take, each by its name.
 * SPDX-License-Identifier: MIT
 */
#include "mask.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum meaning { KEEP, DROP, ADD, MINIMUM, COUNT, COUNT_LESS_ONE };
enum axes { BROADCAST, FOUR, MHA, PADDING, LENGTHS }; /* up to (b, h, q, k); exactly those; (q, k) or (b * h, q, k); (b, k); (b) */

typedef struct form {
    enum meaning meaning;
    enum axes    axes;
    int32_t      dtype; /* as it is written */
    const char  *is;
} form;

/* In the order of mask_forms[]. */
static const form forms[] = {
    {KEEP, BROADCAST, IO_BOOL, "attn --allow: true = may be seen"},
    {DROP, BROADCAST, IO_BOOL, "attn --hide: true = hidden"},
    {ADD, BROADCAST, IO_F32, "attn --bias: 0, or -inf = hidden"},
    {COUNT, LENGTHS, IO_I64, "attn --key-count: keys in use per batch entry, padding on the right"},
    {KEEP, FOUR, IO_BOOL, "ONNX Attention, attn_mask (bool): true = may be seen"},
    {COUNT, LENGTHS, IO_I64, "ONNX Attention 24, nonpad_kv_seqlen: keys in use"},
    {KEEP, BROADCAST, IO_BOOL, "PyTorch scaled_dot_product_attention, attn_mask (bool): true = may be seen"},
    {DROP, MHA, IO_BOOL, "PyTorch nn.MultiheadAttention, attn_mask (bool): true = hidden; (query, key) or (batch * head, query, key)"},
    {DROP, PADDING, IO_BOOL, "PyTorch nn.MultiheadAttention, key_padding_mask (bool): true = padding; (batch, key)"},
    {KEEP, PADDING, IO_I64, "Hugging Face, attention_mask: 1 = token, 0 = padding; (batch, key)"},
    {MINIMUM, FOUR, IO_F32, "Hugging Face, 4-axis mask: 0, or the type's lowest number for -inf"},
    {KEEP, PADDING, IO_I32, "ONNX Runtime MultiHeadAttention, key_padding_mask: 1 = token, 0 = padding; (batch, key)"},
    {ADD, FOUR, IO_F32, "ONNX Runtime MultiHeadAttention and GroupQueryAttention, attention_bias: 0, or -inf = hidden"},
    {COUNT_LESS_ONE, LENGTHS, IO_I32, "ONNX Runtime GroupQueryAttention, seqlens_k: keys in use minus one"},
};

const char *const mask_forms[] = {"keep",        "drop", "add",   "lengths",     "onnx",     "onnx-lengths", "sdpa", "mha",
                                  "mha-padding", "hf",   "hf-4d", "ort-padding", "ort-bias", "ort-gqa",      NULL};

_Static_assert(sizeof forms / sizeof *forms == sizeof mask_forms / sizeof *mask_forms - 1, "each form has a name");

void mask_forms_print(FILE *to)
{
    fprintf(to, "\nForms of attn mask convert:\n");
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) fprintf(to, "  %-22s %s\n", mask_forms[i], forms[i].is);
}

/* ---- reading ---------------------------------------------------------------------------------------------------------------------- */

/* What x says in this form: 1 = may be seen, 0 = hidden, -1 = neither. */
static int reads_as(enum meaning meaning, double x)
{
    switch (meaning) {
    case KEEP:
        return x == 1 ? 1 : x == 0 ? 0 : -1;
    case DROP:
        return x == 1 ? 0 : x == 0 ? 1 : -1;
    case ADD:
        return x == 0 ? 1 : x == -INFINITY ? 0 : -1;
    default:
        return x == 0 ? 1 : x <= -1e4 ? 0 : -1; /* -inf too */
    }
}

static int not_of_form(const char *path, int from, double x)
{
    out_fail(CLI_FIT, "%s holds %g, which %s does not have (%s)", path, x, mask_forms[from], forms[from].is);
    if (forms[from].meaning == ADD && x <= -1e4)
        out_fix("a finite number for -inf is --from hf-4d");
    else if (forms[from].meaning == ADD)
        out_fix("numbers that are added to the scores are more than a mask; only 0 and -inf can be converted");
    else
        out_fix("say the form that the file has: --from FORM");
    return CLI_FIT;
}

static int read_lengths(const cli_options *o, const char *path, int from, const io_array *a, io_array *keep)
{
    if (a->rank != 1 && (a->rank != 2 || a->shape[1] != 1))
        return out_fail(CLI_FIT, "%s has rank %d; %s has one axis, the batch", path, a->rank, mask_forms[from]);
    if (!o->keys.given)
        return out_fail(CLI_USAGE, "--from %s needs --keys N: lengths do not say how many keys there are", mask_forms[from]);
    const int64_t keys = o->keys.value, shape[4] = {a->shape[0], 1, 1, keys};
    if (!convert_new(keep, IO_BOOL, 4, shape)) return out_fail(CLI_OUTPUT, "no memory for the mask");
    for (int64_t b = 0; b < a->shape[0]; b++) {
        const double count = io_get(a, b * a->stride[0]) + (forms[from].meaning == COUNT_LESS_ONE);
        if (!(count >= 0 && count <= (double)keys) || count != floor(count))
            return out_fail(CLI_FIT, "%s: batch entry %lld has %g keys in use; 0 to %lld are possible", path, (long long)b, count,
                            (long long)keys);
        memset((uint8_t *)keep->data + b * keys, 1, (size_t)count);
    }
    return CLI_OK;
}

/* The axes (batch, head, query, key) of a file of that form, or fewer from the left. */
static int name_axes(const cli_options *o, const char *path, int from, io_array *a)
{
    const enum axes axes = forms[from].axes;
    char            shape[160];
    out_shape(shape, a->shape, a->rank);
    if (axes == PADDING && a->rank == 2) {
        const int64_t batch = a->shape[0], keys = a->shape[1];
        a->rank = 4;
        a->shape[0] = batch, a->shape[1] = a->shape[2] = 1, a->shape[3] = keys;
        a->stride[0] = keys, a->stride[1] = a->stride[2] = 0, a->stride[3] = 1;
    } else if (axes == MHA && a->rank == 3) {
        const int64_t both = a->shape[0], queries = a->shape[1], keys = a->shape[2];
        const int64_t heads = o->heads.given ? o->heads.value : o->batch.given && both % o->batch.value == 0 ? both / o->batch.value : 0;
        if (heads == 0 || both % heads) {
            out_fail(CLI_FIT, "%s has shape %s: batch and head are one axis, and how many heads it has is not said or does not divide it",
                     path, shape);
            out_fix("--heads N or --batch N");
            return CLI_FIT;
        }
        a->rank = 4;
        a->shape[0] = both / heads, a->shape[1] = heads, a->shape[2] = queries, a->shape[3] = keys;
        a->stride[0] = heads * queries * keys, a->stride[1] = queries * keys, a->stride[2] = keys, a->stride[3] = 1;
    } else if (axes == PADDING || (axes == MHA && a->rank != 2) || a->rank > 4 || a->rank < 1) {
        return out_fail(CLI_FIT, "%s has shape %s, which is none that %s has (%s)", path, shape, mask_forms[from], forms[from].is);
    }
    return CLI_OK;
}

/* The file as bytes, 1 = may be seen. */
static int read_mask(const cli_options *o, const char *path, int from, io_array *keep)
{
    io_array a;
    int64_t  index[IO_MAX_RANK] = {0};
    int      code = literal_read(path, &a);
    if (code) return code;
    if (forms[from].axes == LENGTHS) {
        code = read_lengths(o, path, from, &a, keep);
        io_free(&a);
        return code;
    }
    if (!convert_new(keep, IO_BOOL, a.rank, a.shape)) code = out_fail(CLI_OUTPUT, "no memory for the mask");
    for (int64_t i = 0, n = convert_count(&a); i < n && !code; i++, convert_next(&a, index)) {
        const double x = io_get(&a, convert_at(&a, index));
        const int    is = reads_as(forms[from].meaning, x);
        if (is < 0) code = not_of_form(path, from, x);
        ((uint8_t *)keep->data)[i] = is == 1;
    }
    io_free(&a);
    return code ? code : name_axes(o, path, from, keep);
}

/* ---- writing ---------------------------------------------------------------------------------------------------------------------- */

static void store(io_array *a, int64_t at, enum meaning meaning, int seen)
{
    const double x[] = {[KEEP] = seen, [DROP] = !seen, [ADD] = seen ? 0 : -INFINITY, [MINIMUM] = seen ? 0 : -FLT_MAX};
    if (a->dtype == IO_I64)
        ((int64_t *)a->data)[at] = (int64_t)x[meaning];
    else if (a->dtype == IO_I32)
        ((int32_t *)a->data)[at] = (int32_t)x[meaning];
    else
        convert_store(a->data, at, a->dtype, x[meaning]);
}

/* Masks with a query axis. */
static int write_places(const cli_mask *m, int to, io_array *a)
{
    const attn_desc *d = &m->call.desc;
    const enum axes  axes = forms[to].axes;
    const int        one = m->batches == 1 && m->heads == 1, all = axes == MHA && !one;
    const int64_t    batches = all ? d->batch : m->batches, heads = all ? d->heads : m->heads;
    const int64_t    shape[4] = {axes == MHA ? batches * heads : batches, heads, d->queries, d->keys};
    const int        rank = axes == FOUR || (axes == BROADCAST && !one) ? 4 : one ? 2 : 3;
    int64_t          three[3] = {shape[0], d->queries, d->keys}, at = 0;
    if (!convert_new(a, forms[to].dtype, rank, rank == 3 ? three : shape + 4 - rank)) return out_fail(CLI_OUTPUT, "no memory for the mask");
    for (int64_t b = 0; b < batches; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < d->queries; i++)
                for (int64_t j = 0; j < d->keys; j++) store(a, at++, forms[to].meaning, seen_reason(d, b, h, i, j) == SEEN);
    return CLI_OK;
}

/* The keys that batch entry b uses, which must be the same for all its queries, into row[]. */
static int common_row(const cli_mask *m, int to, int64_t b, uint8_t *row)
{
    const attn_desc *d = &m->call.desc;
    const int64_t    queries = d->query_count ? d->query_count[b] : d->queries;
    memset(row, 0, (size_t)d->keys);
    for (int64_t h = 0; h < m->heads; h++)
        for (int64_t i = 0; i < queries; i++)
            for (int64_t j = 0; j < d->keys; j++) {
                const int seen = seen_reason(d, b, h, i, j) == SEEN;
                if (h == 0 && i == 0) row[j] = (uint8_t)seen;
                if (seen == row[j]) continue;
                out_fail(CLI_FIT,
                         "%s has one row of keys per batch entry, but in entry %lld query 0 of head 0 %s key %lld and query %lld of head "
                         "%lld %s",
                         mask_forms[to], (long long)b, row[j] ? "sees" : "does not see", (long long)j, (long long)i, (long long)h,
                         seen ? "does" : "does not");
                out_fix("a form with a query axis: keep, drop, add, onnx, sdpa, mha, hf-4d, ort-bias");
                return CLI_FIT;
            }
    return CLI_OK;
}

static int length_of(int to, int64_t b, const uint8_t *row, int64_t keys, int64_t *count)
{
    int64_t start = 0;
    while (start < keys && !row[start]) start++;
    *count = 0;
    while (start + *count < keys && row[start + *count]) ++*count;
    int64_t more = 0;
    for (int64_t j = start + *count; j < keys; j++) more += row[j];
    if (more || (start && *count)) {
        out_fail(CLI_FIT, "%s can only say padding on the right; in batch entry %lld %s", mask_forms[to], (long long)b,
                 more ? "the keys in use have holes" : "the keys in use begin later than key 0");
        out_fix(more ? "a form with a key axis: keep, hf, mha-padding, ort-padding"
                     : "attn says padding on the left by --key-start; else a form with a key axis: keep, hf, mha-padding, ort-padding");
        return CLI_FIT;
    }
    if (forms[to].meaning == COUNT_LESS_ONE && *count == 0)
        return out_fail(CLI_FIT, "%s is a length minus one; batch entry %lld has no key in use", mask_forms[to], (long long)b);
    return CLI_OK;
}

/* Masks without a query axis, and lengths. */
static int write_rows(const cli_mask *m, int to, io_array *a)
{
    const attn_desc *d = &m->call.desc;
    const int        lengths = forms[to].axes == LENGTHS;
    const int64_t    shape[2] = {d->batch, d->keys};
    uint8_t         *row = malloc((size_t)d->keys + 1);
    int code = row && convert_new(a, forms[to].dtype, lengths ? 1 : 2, shape) ? CLI_OK : out_fail(CLI_OUTPUT, "no memory for the mask");
    for (int64_t b = 0; b < d->batch && !code; b++) {
        int64_t count;
        code = common_row(m, to, b, row);
        for (int64_t j = 0; j < d->keys && !code && !lengths; j++) store(a, b * d->keys + j, forms[to].meaning, row[j]);
        if (code || !lengths) continue;
        code = length_of(to, b, row, d->keys, &count);
        count -= forms[to].meaning == COUNT_LESS_ONE;
        if (a->dtype == IO_I64)
            ((int64_t *)a->data)[b] = count;
        else
            ((int32_t *)a->data)[b] = (int32_t)count;
    }
    free(row);
    return code;
}

/* ---- all -------------------------------------------------------------------------------------------------------------------------- */

static int check_options(const cli_options *o)
{
    const char *path = o->operands > 1 ? o->operand[1] : NULL;
    if (o->operands > 2) return out_fail(CLI_USAGE, "convert takes one file, %d given", o->operands - 1);
    if (!o->to) return out_fail(CLI_USAGE, "--to FORM is missing; attn help mask lists the forms");
    if (path && !o->from) return out_fail(CLI_USAGE, "--from FORM is missing: what %s means; attn help mask lists the forms", path);
    if (!path && o->from) return out_fail(CLI_USAGE, "--from %s says the form of a file, and none is given", mask_forms[o->from - 1]);
    if (path && (o->allow || o->hide)) {
        out_fail(CLI_USAGE, "%s and %s are two masks", path, o->allow ? "--allow" : "--hide");
        out_fix("join them into one first");
        return CLI_USAGE;
    }
    if (o->png || o->svg || o->entry.given || o->head.given)
        return out_fail(CLI_USAGE, "--png, --svg, --entry and --head belong to attn mask show");
    return CLI_OK;
}

/* A bias may stand in for a mask only where it is one. */
static int check_bias(const cli_mask *m)
{
    const attn_desc *d = &m->call.desc;
    const int64_t   *s = d->bias.stride;
    for (int64_t b = 0; d->bias.data && b < (s[0] ? d->batch : 1); b++)
        for (int64_t h = 0; h < (s[1] ? d->heads : 1); h++)
            for (int64_t i = 0; i < (s[2] ? d->queries : 1); i++)
                for (int64_t j = 0; j < (s[3] ? d->keys : 1); j++) {
                    const double x = seen_bias(d, b, h, i, j);
                    if (x == 0 || x == -INFINITY) continue;
                    out_fail(CLI_FIT, "--bias %s holds %g; only 0 and -inf can be converted", m->call.options->bias, x);
                    out_fix("numbers that are added to the scores are more than a mask");
                    return CLI_FIT;
                }
    return CLI_OK;
}

int mask_convert(const cli_options *o)
{
    const int to = o->to - 1;
    cli_mask  m = {0};
    io_array  given = {0}, result = {0};
    char      shape[160];
    int       code = check_options(o);
    if (!code && o->from) code = read_mask(o, o->operand[1], o->from - 1, &given);
    if (!code) code = mask_open(&m, o, o->from ? &given : NULL);
    if (!code) code = check_bias(&m);
    if (!code) code = forms[to].axes == PADDING || forms[to].axes == LENGTHS ? write_rows(&m, to, &result) : write_places(&m, to, &result);
    if (!code) code = call_path("--output", o->output, result.rank);
    if (!code) {
        if (o->from) out_note("from %s: %s", mask_forms[o->from - 1], forms[o->from - 1].is);
        out_note("to %s: %s; %s %s", mask_forms[to], forms[to].is, io_dtype_name(result.dtype),
                 out_shape(shape, result.shape, result.rank));
        if (forms[to].meaning == COUNT_LESS_ONE) out_note("that operator is causal besides, with the last query on the last key in use");
        code = run_write(1, &o->output, (const io_array *const[]){&result});
    }
    if (!code && o->json) {
        json_t *json = out_json_open("mask");
        json_object_set_new(json, "action", json_string("convert"));
        json_object_set_new(json, "form", json_string(mask_forms[to]));
        json_object_set_new(json, "out", run_json_result(o->output, &result));
        code = out_json(json);
    } else if (!code && !o->output)
        run_print(&result);
    io_free(&given), io_free(&result);
    call_close(&m.call);
    return code;
}
