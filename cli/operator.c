/* operator.c: the operator's options that come from lists and files: lengths, masks, bias, slopes, sinks.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <stdlib.h>

/* ---- per-batch lists -------------------------------------------------------------------------------------------------------------- */

static int put_list(const cli_list *list, const char *option, int64_t batch, int64_t *to, const int64_t **field)
{
    if (!list->count) return CLI_OK;
    if (list->count != 1 && list->count != batch) {
        out_fail(CLI_FIT, "%s has %lld values, the batch is %lld", option, (long long)list->count, (long long)batch);
        out_fix("give one value for all batch entries, or one for each");
        return CLI_FIT;
    }
    for (int64_t b = 0; b < batch; b++) to[b] = list->at[list->count == 1 ? 0 : b];
    *field = to;
    return CLI_OK;
}

static int put_lists(cli_call *c)
{
    const cli_options *o = c->options;
    attn_desc         *d = &c->desc;
    const int64_t      n = d->batch;
    if (!o->query_offset.count && !o->query_count.count && !o->key_count.count && !o->key_start.count) return CLI_OK;
    if (n >= INT32_MAX || !(c->lists = malloc((size_t)(4 * n + 1) * sizeof *c->lists)))
        return out_fail(CLI_OUTPUT, "no memory for the per-batch lists");
    int code = put_list(&o->query_offset, "--query-offset", n, c->lists, &d->query_offset);
    if (!code) code = put_list(&o->query_count, "--query-count", n, c->lists + n, &d->query_count);
    if (!code) code = put_list(&o->key_count, "--key-count", n, c->lists + 2 * n, &d->key_count);
    if (!code) code = put_list(&o->key_start, "--key-start", n, c->lists + 3 * n, &d->key_start);
    return code;
}

/* ---- broadcasting ----------------------------------------------------------------------------------------------------------------- */

/* A well-known shape that does not broadcast, and what to do with it. */
static void fix_shape(const attn_desc *d, const io_array *a)
{
    const int64_t *s = a->shape;
    if (a->rank == 2 && s[0] == d->batch && s[1] == d->keys)
        out_fix("a (batch, key) padding mask: reshape it to (batch, 1, 1, key)");
    else if (a->rank == 3 && s[0] == d->batch && s[2] == d->keys)
        out_fix("a (batch, query, key) mask: reshape it to (batch, 1, query, key)");
    else if (a->rank == 3 && s[0] == d->batch * d->heads)
        out_fix("a (batch * head, query, key) mask: reshape it to (batch, head, query, key)");
    else
        out_fix("axes are counted from the right: (key), (query, key), (head, query, key), (batch, head, query, key); each 1 or full");
}

/* The strides of an array that broadcasts to (batch, head, query, key), axes counted from the right. */
static int broadcast(const cli_call *c, const char *option, const char *path, const io_array *a, int64_t stride[4])
{
    const attn_desc *d = &c->desc;
    const int64_t    full[4] = {d->batch, d->heads, d->queries, d->keys};
    char             shape[160], want[160];
    int              fits = a->rank <= 4;
    for (int n = 0; n < 4; n++) {
        const int axis = n - (4 - a->rank);
        stride[n] = fits && axis >= 0 && a->shape[axis] != 1 ? a->stride[axis] : 0;
        fits = fits && (axis < 0 || a->shape[axis] == 1 || a->shape[axis] == full[n]);
    }
    if (fits) return CLI_OK;
    out_fail(CLI_FIT, "%s %s has shape %s, which does not broadcast to (batch, head, query, key) = %s", option, path,
             out_shape(shape, a->shape, a->rank), out_shape(want, full, 4));
    call_describe(c);
    fix_shape(d, a);
    return CLI_FIT;
}

static int ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

/* A .csv or a literal says no type: one that holds only 0 and 1 may be a boolean mask, since the option says that it is one. */
static int text_is_boolean(const char *path, const io_array *a)
{
    int64_t index[IO_MAX_RANK] = {0};
    if (!ends_in(path, ".csv") && !literal_is(path)) return 0;
    for (int64_t i = 0, n = convert_count(a); i < n; i++, convert_next(a, index)) {
        const double x = io_get(a, convert_at(a, index));
        if (x != 0 && x != 1) return 0;
    }
    return 1;
}

int operator_allow(cli_call *c, const char *option, const char *path)
{
    int64_t   stride[4];
    const int code = broadcast(c, option, path, &c->allow, stride);
    c->desc.allow = attn_in_strided(c->allow.data, ATTN_BOOL, stride);
    return code;
}

static int put_mask(cli_call *c, const char *option, const char *path, int hide)
{
    io_array *a = &c->allow;
    int64_t   lost;
    int       code = literal_read(path, a);
    if (code) return code;
    if (a->dtype != IO_BOOL && !text_is_boolean(path, a)) {
        out_fail(CLI_FIT, "%s %s holds %s; a boolean mask is needed", option, path, io_dtype_name(a->dtype));
        if (a->dtype > IO_BOOL)
            out_fix("convert it: mask.astype(bool) in NumPy, mask.bool() in PyTorch; true then means %s", hide ? "hidden" : "may be seen");
        else if (ends_in(path, ".csv"))
            out_fix("a .csv mask holds only 0 and 1; numbers that are added to the scores are --bias %s", path);
        else
            out_fix("a float mask is added to the scores: --bias %s", path);
        return CLI_FIT;
    }
    if (a->dtype != IO_BOOL || hide) {
        if (!convert_array(a, IO_BOOL, &lost)) return out_fail(CLI_OUTPUT, "no memory for the mask");
        uint8_t *at = a->data;
        for (int64_t i = 0, n = convert_count(a); i < n; i++) at[i] ^= (uint8_t)hide;
    }
    return operator_allow(c, option, path);
}

int operator_invert(cli_call *c)
{
    io_array *a = &c->allow;
    int64_t   lost;
    if (!convert_array(a, IO_BOOL, &lost)) return 0;
    for (int64_t i = 0, n = convert_count(a); i < n; i++) ((uint8_t *)a->data)[i] ^= 1;
    operator_allow(c, "the mask", "turned round"); /* fits, as it did before */
    return 1;
}

static int put_bias(cli_call *c, const char *path)
{
    io_array     *a = &c->bias;
    const int32_t dtype = c->desc.q.dtype, to = dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    int64_t       lost, stride[4];
    int           code = literal_read(path, a);
    if (code) return code;
    if (a->dtype > IO_BF16) {
        out_fail(CLI_FIT, "--bias %s holds %s; a float array is needed", path, io_dtype_name(a->dtype));
        if (a->dtype == IO_BOOL)
            out_fix("a boolean mask is named for what true means: --allow %s (may be seen) or --hide %s (hidden)", path, path);
        else
            out_fix("convert it to float; if it is a mask, to bool, and use --allow or --hide");
        return CLI_FIT;
    }
    if (a->dtype != dtype && a->dtype != ATTN_F32) {
        out_note("--bias %s: %s becomes %s", path, io_dtype_name(a->dtype), io_dtype_name(to));
        if (!convert_array(a, to, &lost)) return out_fail(CLI_OUTPUT, "no memory for the bias");
        if (lost) { /* -1e300 adds a number, -inf hides: rounding may not turn one into the other */
            out_fail(CLI_FIT, "--bias %s: finite values that would be infinite in %s: %lld", path, io_dtype_name(to), (long long)lost);
            out_fix("store -inf where a key is to be hidden, or run with --dtype f64");
            return CLI_FIT;
        }
    }
    code = broadcast(c, "--bias", path, a, stride);
    c->desc.bias = attn_in_strided(a->data, a->dtype, stride);
    return code;
}

/* ---- numbers per head ------------------------------------------------------------------------------------------------------------- */

/* "0.5,0.25" into a new array; 0 when text is not numbers with commas between them (then it is a file), -1 when there is no memory. */
static int numbers(const char *text, io_array *a)
{
    int64_t count = 1;
    for (const char *c = text; *c; c++) count += *c == ',';
    if (!convert_new(a, ATTN_F64, 1, &count)) return -1;
    double *to = a->data;
    for (char *end;; text = end + 1) {
        *to++ = strtod(text, &end);
        if (end == text || (*end && *end != ',')) break;
        if (!*end) return 1;
    }
    io_free(a);
    return 0;
}

/* Slopes or sinks, axes (batch, head) counted from the right; as f32, or f64 with f64 inputs. */
static int put_heads(cli_call *c, const char *option, const char *text, int64_t batch, io_array *a, attn_in *in)
{
    const attn_desc *d = &c->desc;
    const int32_t    real = d->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    io_error         e;
    int64_t          lost;
    char             shape[160];
    const int        got = numbers(text, a);
    if (got < 0) return out_fail(CLI_OUTPUT, "no memory for %s", option);
    if (!got && io_read(text, a, &e)) {
        const int code = out_io(&e);
        out_fix("%s takes numbers with commas between them or a file", option);
        return code;
    }
    const int64_t full[2] = {batch, d->heads};
    int           fits = a->rank <= 2;
    for (int n = 0; n < a->rank && fits; n++) fits = a->shape[n] == 1 || a->shape[n] == full[n + 2 - a->rank];
    if (!fits || a->dtype > IO_BF16) {
        out_fail(CLI_FIT, "%s %s is %s %s; one float per head is needed, shape (%lld)%s", option, text, io_dtype_name(a->dtype),
                 out_shape(shape, a->shape, a->rank), (long long)d->heads, batch > 1 ? " or (batch, heads)" : "");
        call_describe(c);
        out_fix("give %lld numbers with commas between them, or one for all heads", (long long)d->heads);
        return CLI_FIT;
    }
    if (!convert_array(a, real, &lost)) return out_fail(CLI_OUTPUT, "no memory for %s", option);
    if (lost)
        return out_fail(CLI_FIT, "%s %s: finite values that would be infinite in %s: %lld", option, text, io_dtype_name(real),
                        (long long)lost);
    *in = (attn_in){a->data, {0}, 0, real, 0};
    for (int n = 0; n < a->rank; n++) in->stride[n + 2 - a->rank] = a->shape[n] == 1 ? 0 : a->stride[n];
    return CLI_OK;
}

static int put_usual_slopes(cli_call *c)
{
    const int64_t heads = c->desc.heads;
    attn_error    e;
    int64_t       lost;
    if (!convert_new(&c->alibi, ATTN_F32, 1, &heads)) return out_fail(CLI_OUTPUT, "no memory for --alibi");
    if (attn_alibi_slopes(heads, c->alibi.data, &e)) return out_library(&e);
    if (c->desc.q.dtype == ATTN_F64 && !convert_array(&c->alibi, ATTN_F64, &lost)) return out_fail(CLI_OUTPUT, "no memory for --alibi");
    c->desc.alibi = (attn_in){c->alibi.data, {0, 1, 0, 0}, 0, c->alibi.dtype, 0};
    return CLI_OK;
}

/* ---- all of them ------------------------------------------------------------------------------------------------------------------ */

int operator_apply(cli_call *c)
{
    const cli_options *o = c->options;
    attn_desc         *d = &c->desc;
    d->causal = o->causal;
    d->align = o->align;
    d->window = o->window.given;
    d->window_left = o->window.first, d->window_right = o->window.second;
    d->scale_given = o->scale.given;
    d->scale = o->scale.value;
    d->softcap = o->softcap.value;
    if (o->softcap.value < 0) return out_fail(CLI_USAGE, "--softcap %g: takes a number that is not negative; 0 = off", o->softcap.value);
    d->dropout = o->dropout.value;
    d->dropout_seed = (uint64_t)o->dropout_seed.value;
    if (!(d->dropout >= 0 && d->dropout <= 1)) return out_fail(CLI_USAGE, "--dropout %g: takes a rate from 0 (off) to 1", d->dropout);
    if (o->dropout_seed.given && !o->dropout.given) return out_fail(CLI_USAGE, "--dropout-seed without --dropout: nothing is dropped");
    if (o->allow && o->hide) {
        out_fail(CLI_USAGE, "--allow and --hide are one mask said twice");
        out_fix("join them into one: allow AND NOT hide");
        return CLI_USAGE;
    }
    int code = put_lists(c);
    if (!code && o->allow) code = put_mask(c, "--allow", o->allow, 0);
    if (!code && o->hide) code = put_mask(c, "--hide", o->hide, 1);
    if (!code && o->bias) code = put_bias(c, o->bias);
    if (!code && o->alibi && strcmp(o->alibi, "default") == 0)
        code = put_usual_slopes(c);
    else if (!code && o->alibi)
        code = put_heads(c, "--alibi", o->alibi, d->batch, &c->alibi, &d->alibi);
    if (!code && o->sink) code = put_heads(c, "--sink", o->sink, 1, &c->sink, &d->sink);
    return code;
}
