/* show_source.c: where the weights that attn show draws come from: files, tensors, layers of a checkpoint.
 * SPDX-License-Identifier: MIT
 */
#include "show.h"

#include <math.h>
#include <stdlib.h>

/* ---- opening ---------------------------------------------------------------------------------------------------------------------- */

static const char *base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void move(attn_in *in, int64_t b)
{
    if (in->data) in->data = (const char *)in->data + b * in->stride[0] * (int64_t)io_dtype_bytes(in->dtype);
}

/* The call for one of its batch entries alone. */
static attn_desc entry_of(attn_desc d, int64_t b)
{
    attn_in *const        each[] = {&d.q, &d.k, &d.v, &d.allow, &d.bias, &d.alibi};
    const int64_t **const list[] = {&d.query_offset, &d.query_count, &d.key_count, &d.key_start};
    for (int n = 0; n < 6; n++) move(each[n], b);
    for (int n = 0; n < 4; n++)
        if (*list[n]) *list[n] += b;
    d.out.data = (char *)d.out.data + b * d.out.stride[0] * (int64_t)io_dtype_bytes(d.out.dtype);
    d.lse = d.weights = (attn_out){0};
    d.batch = 1;
    return d;
}

/* Takes one entry of the call; its weights are made when they are asked for. */
static int take_entry(show_layer *l)
{
    const attn_desc *whole = &l->from->desc;
    attn_error       e;
    const int        code = out_index("entry", l->from->options->entry.value, whole->batch);
    l->batch = whole->batch;
    if (code) return code;
    if (attn_check(whole, &e)) return call_refused(l->from, &e);
    l->desc = entry_of(*whole, l->from->options->entry.value);
    l->heads = l->desc.heads, l->kv_heads = l->desc.kv_heads, l->queries = l->desc.queries, l->keys = l->desc.keys;
    return CLI_OK;
}

static int open_stored(show_layer *l, const cli_options *o, const char *path)
{
    io_error  e;
    char      shape[160];
    io_array *a = &l->stored;
    if (io_read(path, a, &e)) return out_io(&e);
    snprintf(l->name, sizeof l->name, "%.90s", base(path));
    if (a->rank < 2 || a->rank > 4 || a->dtype > IO_BF16) {
        out_fail(CLI_FIT, "%s is %s %s; weights are floats with the axes (batch, head, query, key), or fewer from the left", path,
                 io_dtype_name(a->dtype), out_shape(shape, a->shape, a->rank));
        return CLI_FIT;
    }
    for (int missing = 4 - a->rank, n = 3; n >= 0; n--) {
        a->shape[n] = n < missing ? 1 : a->shape[n - missing];
        a->stride[n] = n < missing ? 0 : a->stride[n - missing];
    }
    a->rank = 4;
    l->heads = l->kv_heads = a->shape[1], l->queries = a->shape[2], l->keys = a->shape[3];
    l->batch = a->shape[0];
    return out_index("entry", o->entry.value, l->batch);
}

static int open_tensors(show_layer *l, const cli_options *o)
{
    const int code = call_open(&l->tensors, o);
    l->from = &l->tensors;
    snprintf(l->name, sizeof l->name, "%.45s, %.45s", base(o->operand[0]), base(o->operand[1]));
    return code ? code : take_entry(l);
}

static int open_layer(show_layer *l, const cli_options *o)
{
    int code = layer_open(&l->layer, o);
    l->from = &l->layer.call;
    if (!code) code = call_threads_open(&l->layer.call);
    if (!code) code = layer_project(&l->layer);
    if (!code && o->prefix)
        snprintf(l->name, sizeof l->name, "%.90s", o->prefix);
    else
        snprintf(l->name, sizeof l->name, "layer %lld", (long long)o->layer.value);
    return code ? code : take_entry(l);
}

static const char *const forms =
    "takes Q K V, or a checkpoint's FILE with --layer N,.. and --input X,.., or --weights W and more files like it";

static int count_layers(const cli_options *o, int64_t *layers)
{
    const int checkpoint = !o->weights && o->operands == 1;
    if (!checkpoint && (o->layers.count || o->prefix || o->input || o->kv_input || o->kv_heads.given))
        return out_fail(CLI_USAGE, "--layer, --prefix, --input, --kv-input and --kv-heads go with the FILE of a checkpoint");
    if (o->weights && (o->heads.given || o->threads.given || o->isa || o->layout || o->dtype || o->causal || o->align || o->allow ||
                       o->hide || o->bias || o->alibi || o->sink || o->window.given || o->scale.given || o->softcap.given ||
                       o->key_count.count || o->key_start.count || o->query_count.count || o->query_offset.count))
        return out_fail(CLI_USAGE, "--weights are shown as they are; options of the computation go with Q K V or a checkpoint");
    if (!o->weights && o->operands != 1 && o->operands != 3) return out_fail(CLI_USAGE, "%s; %d operands given", forms, o->operands);
    if (checkpoint && !o->input) return out_fail(CLI_USAGE, "--input X is missing: the hidden states before the layer");
    if (checkpoint && (o->layers.count > 0) == (o->prefix != NULL))
        return out_fail(CLI_USAGE, "say which layer: --layer N,.. or --prefix P%s", o->prefix ? ", not both" : "");
    if (checkpoint && (o->layout || o->dtype)) return out_fail(CLI_USAGE, "--layout and --dtype are for Q K V, not for a checkpoint");
    *layers = o->weights ? 1 + o->operands : checkpoint && o->layers.count ? o->layers.count : 1;
    int64_t inputs = 1;
    for (const char *c = checkpoint ? o->input : ""; *c; c++) inputs += *c == ',';
    if (inputs == 1 || inputs == *layers) return CLI_OK;
    return out_fail(CLI_USAGE, "--input names %lld files for %lld layers; one for each is needed, or one for all", (long long)inputs,
                    (long long)*layers);
}

/* The n-th of names with commas between them, or the only one; the caller frees it. */
static char *name_at(const char *list, int64_t n)
{
    for (; n > 0 && strchr(list, ','); n--) list = strchr(list, ',') + 1;
    return strndup(list, strcspn(list, ","));
}

static int open_one(show_layer *l, const cli_options *o, int64_t n)
{
    cli_options one = *o; /* a checkpoint is opened for one layer */
    if (o->weights) return open_stored(l, o, n ? o->operand[n - 1] : o->weights);
    if (o->operands == 3) return open_tensors(l, o);
    char *input = name_at(o->input, n);
    if (!input) return out_fail(CLI_OUTPUT, "no memory");
    one.input = input;
    one.layer = (cli_count){o->layers.count ? o->layers.at[n] : 0, o->layers.count > 0};
    const int code = open_layer(l, &one);
    l->layer.call.options = o; /* `one` goes */
    free(input);
    return code;
}

static int choose_heads(cli_show *s)
{
    const cli_options *o = s->options;
    const int64_t      there = s->layer[0].heads;
    if (o->head.given && out_index("head", o->head.value, there)) return CLI_USAGE;
    s->heads = o->head.given ? 1 : there;
    s->head = calloc((size_t)s->heads + 1, sizeof *s->head);
    if (!s->head) return out_fail(CLI_OUTPUT, "no memory");
    for (int64_t n = 0; n < s->heads; n++) s->head[n] = o->head.given ? o->head.value : n;
    return CLI_OK;
}

static int check_alike(const cli_show *s)
{
    const show_layer *a = &s->layer[0];
    for (int64_t n = 1; n < s->layers; n++) {
        const show_layer *b = &s->layer[n];
        if (a->heads == b->heads && a->queries == b->queries && a->keys == b->keys) continue;
        return out_fail(CLI_FIT, "%s has %lld heads, %lld queries, %lld keys, %s has %lld, %lld, %lld; side by side they must be equal",
                        a->name, (long long)a->heads, (long long)a->queries, (long long)a->keys, b->name, (long long)b->heads,
                        (long long)b->queries, (long long)b->keys);
    }
    if (!a->heads || !a->queries || !a->keys)
        return out_fail(CLI_FIT, "%s has %lld heads, %lld queries, %lld keys: nothing to show", a->name, (long long)a->heads,
                        (long long)a->queries, (long long)a->keys);
    return CLI_OK;
}

int show_open(cli_show *s, const cli_options *o)
{
    memset(s, 0, sizeof *s);
    s->options = o;
    int code = count_layers(o, &s->layers);
    if (code) return code;
    s->layer = calloc((size_t)s->layers, sizeof *s->layer);
    if (!s->layer) return out_fail(CLI_OUTPUT, "no memory");
    for (int64_t n = 0; n < s->layers && !code; n++) code = open_one(&s->layer[n], o, n);
    if (!code) code = check_alike(s);
    if (!code) code = choose_heads(s);
    if (!code) code = labels_read("--tokens", o->token_file, s->layer[0].keys, &s->key_token, &s->key_tokens);
    if (!code) code = labels_read("--query-tokens", o->query_token_file, s->layer[0].queries, &s->query_token, &s->query_tokens);
    return code;
}

int show_open_memory(cli_show *s, const cli_options *o, const cli_call *call, const io_array *weights, const char *name)
{
    *s = (cli_show){.options = o, .layers = 1, .layer = calloc(1, sizeof *s->layer)};
    show_layer *l = s->layer;
    int         code;
    if (!l) return out_fail(CLI_OUTPUT, "no memory");
    snprintf(l->name, sizeof l->name, "%.90s", name);
    if (call) {
        l->from = call;
        code = take_entry(l);
    } else {
        l->stored = *weights;
        l->batch = weights->shape[0], l->heads = l->kv_heads = weights->shape[1], l->queries = weights->shape[2],
        l->keys = weights->shape[3];
        code = out_index("entry", o->entry.value, l->batch);
    }
    if (!code) code = check_alike(s);
    return code ? code : choose_heads(s);
}

void show_close(cli_show *s)
{
    for (int64_t n = 0; s->layer && n < s->layers; n++) {
        show_layer *l = &s->layer[n];
        if (l->from == &l->tensors) call_close(&l->tensors);
        if (l->from == &l->layer.call) layer_close(&l->layer);
        io_free(&l->stored);
    }
    free(s->layer), free(s->head);
    labels_free(s->key_token, s->key_tokens), labels_free(s->query_token, s->query_tokens);
}

/* ---- weights ---------------------------------------------------------------------------------------------------------------------- */

/* The heads shown of a computed layer, through attn_inspect(). */
static int inspect(const cli_show *s, const show_layer *l, attn_inspect_desc *w)
{
    attn_error e;
    w->heads = s->head, w->head_count = s->heads;
    return attn_inspect(&l->desc, w, &e) ? call_refused(l->from, &e) : CLI_OK;
}

static int64_t at_row(const show_layer *l, int64_t entry, int64_t head, int64_t i)
{
    return entry * l->stored.stride[0] + head * l->stored.stride[1] + i * l->stored.stride[2];
}

static int compute_values(const cli_show *s, const show_layer *l, int stage, int64_t row, int64_t rows, int64_t column, int64_t columns,
                          float *to)
{
    attn_inspect_desc w = attn_inspect_desc_new();
    int64_t          *query = calloc((size_t)rows + 1, sizeof *query);
    if (!query) return out_fail(CLI_OUTPUT, "no memory for the weights");
    for (int64_t i = 0; i < rows; i++) query[i] = row + i;
    w.queries = query, w.query_count = rows, w.key_first = column, w.key_count = columns;
    w.values = attn_out_dense(to, ATTN_F32, s->heads, rows, columns), w.values_stage = stage;
    const int code = inspect(s, l, &w);
    free(query);
    return code;
}

int show_values(const cli_show *s, const show_layer *l, int stage, int64_t row, int64_t rows, int64_t column, int64_t columns, float *to)
{
    if (l->from) return compute_values(s, l, stage, row, rows, column, columns, to);
    for (int64_t n = 0; n < s->heads; n++)
        for (int64_t i = row; i < row + rows; i++) {
            const int64_t at = at_row(l, s->options->entry.value, s->head[n], i);
            for (int64_t j = column; j < column + columns; j++) *to++ = (float)io_get(&l->stored, at + j * l->stored.stride[3]);
        }
    return CLI_OK;
}

/* Adds one query's weights to its row of cells. */
static void add_row(const show_layer *l, int64_t at, int64_t columns, double *sum, float *largest)
{
    for (int64_t c = 0; c < columns; c++)
        for (int64_t j = c * l->keys / columns; j < (c + 1) * l->keys / columns; j++) {
            const double x = io_get(&l->stored, at + j * l->stored.stride[3]);
            sum[c] += x;
            if (largest && !(largest[c] >= x)) largest[c] = (float)x; /* NaN too */
        }
}

static int add_up(const cli_show *s, const show_layer *l, int64_t rows, int64_t columns, float *mean, float *largest)
{
    double *sum = calloc((size_t)columns + 1, sizeof *sum);
    if (!sum) return out_fail(CLI_OUTPUT, "no memory for the map");
    for (int64_t n = 0; n < s->heads; n++)
        for (int64_t r = 0; r < rows; r++) {
            const int64_t first = r * l->queries / rows, last = (r + 1) * l->queries / rows;
            float *const  top = largest ? largest + (n * rows + r) * columns : NULL;
            memset(sum, 0, (size_t)columns * sizeof *sum);
            for (int64_t i = first; i < last; i++) add_row(l, at_row(l, s->options->entry.value, s->head[n], i), columns, sum, top);
            for (int64_t c = 0; c < columns && mean; c++)
                mean[(n * rows + r) * columns + c] =
                    (float)(sum[c] / (double)((last - first) * ((c + 1) * l->keys / columns - c * l->keys / columns)));
        }
    free(sum);
    return CLI_OK;
}

int show_map(const cli_show *s, const show_layer *l, int64_t rows, int64_t columns, float *mean, float *largest)
{
    if (!l->from) return add_up(s, l, rows, columns, mean, largest);
    attn_inspect_desc w = attn_inspect_desc_new();
    w.map_rows = rows, w.map_columns = columns;
    if (mean) w.map_mean = attn_out_dense(mean, ATTN_F32, s->heads, rows, columns);
    if (largest) w.map_max = attn_out_dense(largest, ATTN_F32, s->heads, rows, columns);
    return inspect(s, l, &w);
}
