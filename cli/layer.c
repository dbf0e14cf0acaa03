/* layer.c: attn layer: one multi-head layer of a checkpoint on hidden states from a file.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <stdlib.h>

/* Hidden states as contiguous f32 (batch, tokens, width), batch 1 for a matrix. */
static int read_tokens(const char *path, io_array *a)
{
    io_error e;
    int64_t  lost;
    char     shape[160];
    if (io_read(path, a, &e)) return out_io(&e);
    if (a->rank < 2 || a->rank > 3) {
        out_fail(CLI_FIT, "%s has shape %s; hidden states have axes (tokens, width) or (batch, tokens, width)", path,
                 out_shape(shape, a->shape, a->rank));
        return CLI_FIT;
    }
    const int matrix = a->rank == 2, wide = a->stride[a->rank - 1] == 1 && a->stride[a->rank - 2] == a->shape[a->rank - 1];
    const int whole = wide && (matrix || a->stride[0] == a->shape[1] * a->shape[2]);
    if (a->dtype == IO_F32 && whole) return CLI_OK;
    if (a->dtype != IO_F32) out_note("%s: %s becomes f32, the layer's type", path, io_dtype_name(a->dtype));
    return convert_array(a, IO_F32, &lost) ? CLI_OK : out_fail(CLI_OUTPUT, "no memory to convert %s", path);
}

static int64_t tokens_of(const io_array *a)
{
    return a->shape[a->rank - 2];
}

static int64_t width_of(const io_array *a)
{
    return a->shape[a->rank - 1];
}

static int load(const cli_options *o, attn_layer_checkpoint **checkpoint)
{
    attn_layer_load_options how = attn_layer_load_options_new();
    attn_error              e;
    how.heads = o->heads.value, how.kv_heads = o->kv_heads.value, how.prefix = o->prefix;
    if (attn_layer_load(o->operand[0], o->prefix ? -1 : o->layer.value, &how, checkpoint, &e)) {
        const int code = out_library(&e);
        if (e.status == ATTN_LAYER_E_HEADS)
            out_fix("say --heads N");
        else if (o->heads.given || o->kv_heads.given)
            out_fix("leave --heads and --kv-heads out where the file says them");
        else if (e.status == ATTN_LAYER_E_LAYOUT)
            out_fix("say another --layer N, or --prefix P for a file with several kinds of attention");
        return code;
    }
    out_note("%s", (*checkpoint)->description);
    if ((*checkpoint)->causal && !o->causal)
        out_note("models of this kind hide later positions, and nothing does so unasked: add --causal");
    return CLI_OK;
}

/* Both inputs against the layer's widths and each other. */
static int check_inputs(const cli_options *o, const attn_layer_checkpoint *l, const io_array *x, const io_array *y)
{
    const char   *path[] = {o->input, o->kv_input};
    const int64_t want[] = {l->width, l->key_width}, got[] = {width_of(x), width_of(y)};
    for (int n = 0; n < 2; n++) {
        if (!path[n] || got[n] == want[n]) continue;
        out_fail(CLI_FIT, "%s is %lld wide, the layer takes %lld", path[n], (long long)got[n], (long long)want[n]);
        out_read("%s", l->description);
        return CLI_FIT;
    }
    const int64_t batch_x = x->rank == 3 ? x->shape[0] : 1, batch_y = y->rank == 3 ? y->shape[0] : 1;
    if (batch_x != batch_y)
        return out_fail(CLI_FIT, "%s holds %lld batch entries, %s %lld; they must be equal", path[0], (long long)batch_x, path[1],
                        (long long)batch_y);
    return CLI_OK;
}

static int print_result(const cli_call *c, const attn_layer_checkpoint *l, double seconds)
{
    const cli_options *o = c->options;
    char               shape[160];
    out_note("%s %s%s%s; %.3f ms, %s, %d thread%s", io_dtype_name(c->out.dtype), out_shape(shape, c->out.shape, c->out.rank),
             o->output ? " in " : "", o->output ? o->output : "", 1e3 * seconds, call_isa(c), c->threads, c->threads == 1 ? "" : "s");
    if (!o->json) {
        if (!o->output) run_print(&c->out);
        return CLI_OK;
    }
    json_t *result = out_json_open("layer");
    json_object_set_new(result, "layer", json_string(l->description));
    json_object_set_new(result, "sizes",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "heads", (json_int_t)l->heads, "kv_heads", (json_int_t)l->kv_heads,
                                  "dim", (json_int_t)l->dim, "value_dim", (json_int_t)l->value_dim, "width", (json_int_t)l->width,
                                  "out_width", (json_int_t)l->out_width));
    json_object_set_new(result, "isa", json_string(call_isa(c)));
    json_object_set_new(result, "threads", json_integer(c->threads));
    json_object_set_new(result, "seconds", json_real(seconds));
    json_object_set_new(result, "out", run_json_result(o->output, &c->out));
    if (o->weights) json_object_set_new(result, "weights", run_json_result(o->weights, &c->weights));
    return out_json(result);
}

/* The operator's options, with the sizes that the layer will give the operator. */
static int settle(cli_layer *l)
{
    cli_call                    *c = &l->call;
    const attn_layer_checkpoint *from = l->checkpoint;
    const io_array              *x = &l->x, *y = c->options->kv_input ? &l->cross : &l->x;
    attn_desc                   *d = &c->desc;
    d->batch = x->rank == 3 ? x->shape[0] : 1, d->heads = from->heads, d->kv_heads = from->kv_heads;
    d->queries = tokens_of(x), d->keys = tokens_of(y), d->dim = from->dim, d->value_dim = from->value_dim;
    d->q.dtype = ATTN_F32;
    strcpy(c->layout, x->rank == 3 ? "bsd" : "sd");
    c->split = 1;
    const int code = operator_apply(c);
    return code ? code : call_isa_choose(c);
}

int layer_open(cli_layer *l, const cli_options *o)
{
    memset(l, 0, sizeof *l);
    l->call.options = o, l->call.desc = attn_desc_new();
    if (!o->input) return out_fail(CLI_USAGE, "--input X is missing: the hidden states");
    if (o->layer.given == (o->prefix != NULL))
        return out_fail(CLI_USAGE, "say which layer: --layer N or --prefix P%s", o->prefix ? ", not both" : "");
    int code = load(o, &l->checkpoint);
    if (!code) code = read_tokens(o->input, &l->x);
    if (!code && o->kv_input) code = read_tokens(o->kv_input, &l->cross);
    if (!code) code = check_inputs(o, l->checkpoint, &l->x, o->kv_input ? &l->cross : &l->x);
    return code ? code : settle(l);
}

void layer_close(cli_layer *l)
{
    io_free(&l->x), io_free(&l->cross);
    call_close(&l->call);
    attn_layer_free(l->checkpoint);
}

/* The layer's call, all but its outputs; options is a copy of the operator's, whose sizes are the layer's to say. */
static attn_layer_desc describe(const cli_layer *l, attn_desc *options)
{
    attn_layer_desc d = attn_layer_desc_from(l->checkpoint);
    *options = l->call.desc;
    d.batch = options->batch, d.queries = options->queries, d.keys = options->keys, d.options = options;
    d.x = attn_layer_tokens(l->x.data, d.queries, d.width);
    if (l->call.options->kv_input) d.x_key = attn_layer_tokens(l->cross.data, d.keys, d.key_width);
    options->batch = options->heads = options->kv_heads = options->queries = options->keys = options->dim = options->value_dim = 0;
    options->q.dtype = 0;
    return d;
}

static int new_view(cli_view *v, const char *name, int64_t batch, int64_t heads, int64_t rows, int64_t columns)
{
    const int64_t size[4] = {batch, heads, rows, columns};
    v->path = name;
    if (!convert_new(&v->array, IO_F32, 4, size)) return out_fail(CLI_OUTPUT, "no memory for the projections");
    memcpy(v->size, size, sizeof size);
    memcpy(v->stride, v->array.stride, sizeof v->stride);
    return CLI_OK;
}

int layer_project(cli_layer *l)
{
    cli_call     *c = &l->call;
    attn_desc    *o = &c->desc, options;
    attn_error    e;
    const int64_t size[4] = {o->batch, o->heads, o->queries, o->value_dim};
    int           code = new_view(&c->q, "q", o->batch, o->heads, o->queries, o->dim);
    if (!code) code = new_view(&c->k, "k", o->batch, o->kv_heads, o->keys, o->dim);
    if (!code) code = new_view(&c->v, "v", o->batch, o->kv_heads, o->keys, o->value_dim);
    int64_t *const none = calloc((size_t)o->batch + 1, sizeof *none);
    if (!code && (!none || !convert_new(&c->out, IO_F32, 4, size))) code = out_fail(CLI_OUTPUT, "no memory for the projections");
    if (!code) {
        attn_layer_desc d = describe(l, &options);
        options = attn_desc_new(); /* projections only: no query is in use, so that nothing else matters */
        options.query_count = none, options.executor = o->executor;
        d.w_o = d.b_o = (attn_in){0}, d.out_width = 0;
        d.q = attn_out_strided(c->q.array.data, ATTN_F32, c->q.stride);
        d.k = attn_out_strided(c->k.array.data, ATTN_F32, c->k.stride);
        d.v = attn_out_strided(c->v.array.data, ATTN_F32, c->v.stride);
        if (attn_layer_run(&d, &e)) code = call_refused(c, &e);
    }
    free(none);
    o->q = attn_in_strided(c->q.array.data, ATTN_F32, c->q.stride);
    o->k = attn_in_strided(c->k.array.data, ATTN_F32, c->k.stride);
    o->v = attn_in_strided(c->v.array.data, ATTN_F32, c->v.stride);
    o->out = attn_out_strided(c->out.data, ATTN_F32, c->out.stride);
    return code;
}

/* ---- attn layer ------------------------------------------------------------------------------------------------------------------- */

static int prepare(cli_layer *l)
{
    cli_call          *c = &l->call;
    const cli_options *o = c->options;
    attn_desc         *d = &c->desc;
    int64_t            shape[3];
    memcpy(shape, l->x.shape, sizeof shape);
    shape[l->x.rank - 1] = l->checkpoint->out_width;
    if (o->stage && !o->weights) return out_fail(CLI_USAGE, "--stage says what --weights holds; give --weights F");
    int code = call_path("--output", o->output, l->x.rank);
    if (!code && !convert_new(&c->out, IO_F32, l->x.rank, shape)) code = out_fail(CLI_OUTPUT, "no memory for the result");
    if (!code && o->weights) code = call_scores(c, &c->weights, ATTN_F32, "--weights", o->weights, &d->weights, 1);
    d->weights_stage = o->stage ? o->stage - 1 : ATTN_STAGE_WEIGHT;
    return code ? code : call_threads_open(c);
}

static int run_layer(cli_layer *l)
{
    attn_desc       options;
    attn_error      e;
    attn_layer_desc d = describe(l, &options);
    d.out = attn_layer_tokens_out(l->call.out.data, d.queries, d.out_width);
    return attn_layer_run(&d, &e) ? call_refused(&l->call, &e) : CLI_OK;
}

int layer_main(const cli_options *o)
{
    cli_layer l;
    int       code = layer_open(&l, o);
    if (!code) code = prepare(&l);
    double seconds = run_seconds();
    if (!code) code = run_layer(&l);
    seconds = run_seconds() - seconds;
    if (!code) code = run_write(2, (const char *const[]){o->weights, o->output}, (const io_array *const[]){&l.call.weights, &l.call.out});
    if (!code) code = print_result(&l.call, l.checkpoint, seconds);
    layer_close(&l);
    return code;
}
