/* call.c: from files and options to one call of the operator: layouts, shapes, results.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <sched.h>
#include <stdlib.h>

static const char letters[] = "bhsd"; /* in the order of AXIS_B .. AXIS_D */

int32_t call_threads(void)
{
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < 1 ? 1 : count > 1024 ? 1024 : count;
}

const char *call_isa(const cli_call *c)
{
    if (c->desc.isa) return c->desc.isa;
    int32_t i = 0;
    while (attn_isa_name(i) && !attn_isa_usable(i)) i++;
    return attn_isa_name(i) ? attn_isa_name(i) : "none";
}

/* ---- layout ----------------------------------------------------------------------------------------------------------------------- */

/* The sizes and strides of an array whose axes are named by layout; `split` heads (0: none) lie in its channels. 0 when they do not divide. */
static int view_axes(cli_view *v, const char *layout, int64_t split)
{
    for (int a = 0; a < 4; a++) v->size[a] = 1, v->stride[a] = 0;
    for (int n = 0; layout[n]; n++) {
        const int a = (int)(strchr(letters, layout[n]) - letters);
        v->size[a] = v->array.shape[n];
        v->stride[a] = v->array.stride[n];
    }
    if (!split) return 1;
    if (v->size[AXIS_D] % split) return 0;
    v->size[AXIS_H] = split;
    v->size[AXIS_D] /= split;
    v->stride[AXIS_H] = v->size[AXIS_D] * v->stride[AXIS_D];
    return 1;
}

int call_view(const cli_call *c, cli_view *v, int64_t heads)
{
    const int split = c->split && heads;
    if (v->array.rank != (int)strlen(c->layout))
        return out_fail(CLI_FIT, "%s has rank %d, the layout %s has %zu axes", v->path, v->array.rank, c->layout, strlen(c->layout));
    if (!view_axes(v, c->layout, split ? heads : 0))
        return out_fail(CLI_FIT, "%s has %lld channels, which %lld heads do not divide", v->path, (long long)v->size[AXIS_D],
                        (long long)heads);
    return CLI_OK;
}

static int choose_layout(cli_call *c)
{
    const cli_options       *o = c->options;
    static const char *const usual[] = {"sd", "hsd", "bhsd"};
    const int                rank = c->q.array.rank;
    char                     shape[160];
    out_shape(shape, c->q.array.shape, rank);
    if (rank < 2 || rank > 4) {
        out_fail(CLI_FIT, "%s has shape %s, rank %d; ranks 2 to 4 are handled", c->q.path, shape, rank);
        out_fix("reshape to (position, channel), (head, position, channel) or (batch, head, position, channel)");
        return CLI_FIT;
    }
    const char *layout = o->layout ? o->layout : usual[rank - 2];
    int         seen[4] = {0}, known = 1;
    for (const char *l = layout; *l; l++) known = known && strchr(letters, *l) && !seen[strchr(letters, *l) - letters]++;
    if (!known || !seen[AXIS_S] || !seen[AXIS_D])
        return out_fail(CLI_USAGE, "--layout %s: takes s and d, and b and h where the files have them, each once", layout);
    if ((int)strlen(layout) != rank) {
        out_fail(CLI_FIT, "--layout %s names %zu axes, %s has shape %s", layout, strlen(layout), c->q.path, shape);
        out_fix("name each axis of the file once, or leave --layout out for %s", usual[rank - 2]);
        return CLI_FIT;
    }
    if (seen[AXIS_H] && o->heads.given) {
        out_fail(CLI_USAGE, "--heads is for layouts without h, whose channels hold several heads; the layout is %s", layout);
        if (rank == 3) out_fix("--layout bsd --heads %lld for (batch, position, head * D + d)", (long long)o->heads.value);
        return CLI_USAGE;
    }
    if (seen[AXIS_B] && !seen[AXIS_H] && !o->heads.given)
        return out_fail(CLI_USAGE, "--layout %s needs --heads N: the heads lie inside the channels (N may be 1)", layout);
    c->split = o->heads.given;
    strcpy(c->layout, layout);
    return CLI_OK;
}

/* ---- shapes ----------------------------------------------------------------------------------------------------------------------- */

void call_describe(const cli_call *c)
{
    const cli_view *const each[] = {&c->q, &c->k, &c->v};
    for (int n = 0; n < 3; n++) {
        char shape[160];
        if (!each[n]->array.data) continue;
        out_shape(shape, each[n]->array.shape, each[n]->array.rank);
        const int64_t *s = each[n]->size;
        if (each[n]->size[AXIS_S] < 0)
            out_read("%c %s %s %s", "QKV"[n], each[n] -> path, io_dtype_name(each[n]->array.dtype), shape);
        else
            out_read("%c %s %s %s, layout %s: batch %lld, heads %lld, positions %lld, channels %lld", "QKV"[n], each[n] -> path,
                     io_dtype_name(each[n]->array.dtype), shape, c -> layout, (long long)s[0], (long long)s[1], (long long)s[2],
                     (long long)s[3]);
    }
}

typedef struct shape_rule {
    const char *what, *who, *other;
    int64_t     got, want;
} shape_rule;

/* The first rule that the three shapes break, or NULL. */
static const shape_rule *broken(const cli_view *q, const cli_view *k, const cli_view *v, shape_rule rules[6])
{
    const shape_rule all[] = {
        {"batch", "K", "Q", k->size[AXIS_B], q->size[AXIS_B]},    {"batch", "V", "Q", v->size[AXIS_B], q->size[AXIS_B]},
        {"heads", "V", "K", v->size[AXIS_H], k->size[AXIS_H]},    {"positions", "V", "K", v->size[AXIS_S], k->size[AXIS_S]},
        {"channels", "K", "Q", k->size[AXIS_D], q->size[AXIS_D]},
    };
    memcpy(rules, all, sizeof all);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (rules[i].got != rules[i].want) return &rules[i];
    const int64_t hq = q->size[AXIS_H], hk = k->size[AXIS_H];
    rules[5] = (shape_rule){"heads", "Q", "K", hq, hk};
    return hq && (hk == 0 || hq % hk) ? &rules[5] : NULL;
}

/* A layout in which the shapes do fit, or NULL. */
static const char *other_layout(const cli_call *c)
{
    static const char *const likely[] = {"bhsd", "bshd", "hsd", "shd", "sbhd"};
    for (size_t i = 0; i < sizeof likely / sizeof *likely; i++) {
        cli_view   q = c->q, k = c->k, v = c->v;
        shape_rule rules[6];
        if (c->split || (int)strlen(likely[i]) != q.array.rank || strcmp(likely[i], c->layout) == 0) continue;
        view_axes(&q, likely[i], 0), view_axes(&k, likely[i], 0), view_axes(&v, likely[i], 0);
        if (!broken(&q, &k, &v, rules)) return likely[i];
    }
    return NULL;
}

static int check_shapes(cli_call *c)
{
    shape_rule        rules[6];
    const shape_rule *r = broken(&c->q, &c->k, &c->v, rules);
    if (!r) return CLI_OK;
    if (r == &rules[5])
        out_fail(CLI_FIT, "Q has %lld heads, K has %lld; heads must be a multiple of K's", (long long)r->got, (long long)r->want);
    else
        out_fail(CLI_FIT, "%s: %s has %lld, %s has %lld; they must be equal", r->what, r->who, (long long)r->got, r->other,
                 (long long)r->want);
    call_describe(c);
    const char *other = other_layout(c);
    if (other)
        out_fix("--layout %s would fit", other);
    else if (c->k.size[AXIS_S] == c->q.size[AXIS_D] && c->k.size[AXIS_D] == c->v.size[AXIS_S])
        out_fix("K looks transposed (channel before position): transpose its last two axes");
    else
        out_fix("name the axes of the files with --layout, such as bshd, shd, or bsd with --heads N");
    return CLI_FIT;
}

/* ---- inputs ----------------------------------------------------------------------------------------------------------------------- */

static int read_view(cli_view *v, const char *path)
{
    v->path = path;
    v->size[AXIS_S] = -1; /* not known yet */
    return literal_read(path, &v->array);
}

static int is_float(int32_t dtype)
{
    return dtype >= IO_F32 && dtype <= IO_BF16;
}

static int settle_dtype(cli_call *c)
{
    cli_view *const each[] = {&c->q, &c->k, &c->v};
    const int32_t   to = options_dtype(c->options->dtype);
    for (int n = 0; n < 3; n++) {
        io_array *a = &each[n]->array;
        if (to && a->dtype != to) {
            int64_t overflowed;
            if (!convert_array(a, to, &overflowed)) return out_fail(CLI_OUTPUT, "no memory to convert %s", each[n]->path);
            if (overflowed)
                out_note("%s: finite values that became infinite in %s: %lld", each[n]->path, io_dtype_name(to), (long long)overflowed);
        }
        if (!is_float(a->dtype) || a->dtype != c->q.array.dtype) {
            if (!is_float(a->dtype))
                out_fail(CLI_FIT, "%s holds %s; f32, f64, f16 and bf16 are handled", each[n]->path, io_dtype_name(a->dtype));
            else
                out_fail(CLI_FIT, "%s holds %s, %s holds %s; Q, K and V need one dtype", c->q.path, io_dtype_name(c->q.array.dtype),
                         each[n]->path, io_dtype_name(a->dtype));
            call_describe(c);
            out_fix("--dtype f32 converts all three before the run");
            return CLI_FIT;
        }
    }
    return CLI_OK;
}

static int read_inputs(cli_call *c)
{
    cli_view *const each[] = {&c->q, &c->k, &c->v};
    int             code = CLI_OK;
    for (int n = 0; n < 3 && !code; n++) code = read_view(each[n], c->options->operand[n]);
    if (!code) code = settle_dtype(c);
    if (!code) code = choose_layout(c);
    for (int n = 1; n < 3 && !code; n++) {
        if (each[n]->array.rank == c->q.array.rank) continue;
        code = out_fail(CLI_FIT, "%s has rank %d, %s has rank %d; Q, K and V need one layout", each[n]->path, each[n]->array.rank,
                        c->q.path, c->q.array.rank);
        call_describe(c);
        out_fix("reshape all three alike; axes of size 1 cost nothing");
    }
    if (!code) code = call_view(c, &c->q, c->options->heads.value);
    if (code) return code;
    /* How many heads K and V hold follows from Q's channels per head. */
    int64_t kv_heads = 0;
    if (c->split) {
        const int64_t dim = c->q.size[AXIS_D];
        const int     axis = (int)(strchr(c->layout, 'd') - c->layout);
        const int64_t wide = c->k.array.shape[axis];
        if (dim == 0 || wide == 0 || wide % dim) {
            code = out_fail(CLI_FIT, "%s has %lld channels, no multiple of the %lld channels per head of Q", c->k.path, (long long)wide,
                            (long long)dim);
            call_describe(c);
            out_fix("--heads is the number of heads of Q; K and V must have the same channels per head");
            return code;
        }
        kv_heads = wide / dim;
    }
    if (!code) code = call_view(c, &c->k, kv_heads);
    if (!code) code = call_view(c, &c->v, kv_heads);
    return code ? code : check_shapes(c);
}

/* ---- results ---------------------------------------------------------------------------------------------------------------------- */

int call_path(const char *option, const char *path, int rank)
{
    if (!path || rank <= 2 || strcmp(strrchr(path, '.'), ".csv")) return CLI_OK; /* options.c has seen to the ending */
    return out_fail(CLI_FIT, "%s %s: the result has rank %d, .csv holds at most 2 axes; write .npy", option, path, rank);
}

static int new_result(io_array *a, int32_t dtype, int rank, const int64_t *shape, const char *what)
{
    char text[160];
    if (convert_new(a, dtype, rank, shape)) return CLI_OK;
    return out_fail(CLI_OUTPUT, "no memory for %s, %s %s", what, io_dtype_name(dtype), out_shape(text, shape, rank));
}

/* lse and weights: axes batch, head, query (, key), without those that Q's layout lacks. */
int call_scores(cli_call *c, io_array *a, int32_t dtype, const char *option, const char *path, attn_out *out, int keys)
{
    const attn_desc *d = &c->desc;
    const int        has_b = strchr(c->layout, 'b') != NULL, has_h = c->split || strchr(c->layout, 'h') != NULL;
    int64_t          shape[4];
    int              rank = 0;
    if (has_b) shape[rank++] = d->batch;
    if (has_h) shape[rank++] = d->heads;
    shape[rank++] = d->queries;
    if (keys) shape[rank++] = d->keys;
    int code = call_path(option, path, rank);
    if (!code) code = new_result(a, dtype, rank, shape, option);
    const int64_t row = keys ? d->keys : 1;
    *out = (attn_out){a->data, {d->heads * d->queries * row, d->queries * row, row, keys}, 0, dtype, 0};
    return code;
}

static int new_results(cli_call *c)
{
    const cli_options *o = c->options;
    attn_desc         *d = &c->desc;
    const int32_t      dtype = c->q.array.dtype, out_dtype = o->out_dtype ? options_dtype(o->out_dtype) : dtype;
    const int32_t      real = dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    if (o->stage && !o->weights) return out_fail(CLI_USAGE, "--stage says what --weights holds; give --weights F");
    int64_t shape[4] = {0};
    for (int n = 0; c->layout[n]; n++) shape[n] = c->layout[n] == 'd' ? d->value_dim * (c->split ? d->heads : 1) : c->q.array.shape[n];
    int code = call_path("--output", o->output, c->q.array.rank);
    if (!code) code = new_result(&c->out, out_dtype, c->q.array.rank, shape, "the result");
    if (code) return code;
    cli_view out = {"the result", c->out, {0}, {0}};
    view_axes(&out, c->layout, c->split ? d->heads : 0);
    d->out = attn_out_strided(c->out.data, out_dtype, out.stride);
    code = call_scores(c, &c->lse, real, "--lse", o->lse, &d->lse, 0);
    if (!code && o->weights) code = call_scores(c, &c->weights, real, "--weights", o->weights, &d->weights, 1);
    d->weights_stage = o->stage ? o->stage - 1 : ATTN_STAGE_WEIGHT;
    return code;
}

/* ---- the call --------------------------------------------------------------------------------------------------------------------- */

static void say_assumed(const cli_call *c)
{
    const attn_desc *d = &c->desc;
    char             kv[48] = "";
    if (d->kv_heads != d->heads) snprintf(kv, sizeof kv, " over %lld key heads", (long long)d->kv_heads);
    out_note("layout %s%s: batch %lld, heads %lld%s, queries %lld, keys %lld, channels %lld, value channels %lld, %s", c->layout,
             c->options->layout ? "" : " (assumed; --layout says otherwise)", (long long)d->batch, (long long)d->heads, kv,
             (long long)d->queries, (long long)d->keys, (long long)d->dim, (long long)d->value_dim, attn_dtype_name(d->q.dtype));
}

int call_isa_choose(cli_call *c)
{
    const char *isa = c->options->isa;
    if (!isa) return CLI_OK;
    for (int32_t i = 0; attn_isa_name(i); i++)
        if (strcmp(attn_isa_name(i), isa) == 0) return c->desc.isa = isa, CLI_OK;
    out_fail(CLI_UNSUPPORTED, "--isa %s is no instruction set of this library", isa);
    out_fix("attn info lists them");
    return CLI_UNSUPPORTED;
}

int call_threads_open(cli_call *c)
{
    attn_error e;
    c->threads = c->options->threads.given ? (int32_t)c->options->threads.value : call_threads();
    if (c->threads == 1) return CLI_OK;
    c->pool = attn_pool_new(c->threads, &e);
    if (!c->pool) return out_library(&e);
    c->desc.executor = attn_pool_executor(c->pool);
    return CLI_OK;
}

int call_open(cli_call *c, const cli_options *o)
{
    memset(c, 0, sizeof *c);
    c->options = o;
    c->desc = attn_desc_new();
    int code = read_inputs(c);
    if (code) return code;
    attn_desc *d = &c->desc;
    d->batch = c->q.size[AXIS_B], d->heads = c->q.size[AXIS_H], d->kv_heads = c->k.size[AXIS_H];
    d->queries = c->q.size[AXIS_S], d->keys = c->k.size[AXIS_S], d->dim = c->q.size[AXIS_D], d->value_dim = c->v.size[AXIS_D];
    d->q = attn_in_strided(c->q.array.data, c->q.array.dtype, c->q.stride);
    d->k = attn_in_strided(c->k.array.data, c->k.array.dtype, c->k.stride);
    d->v = attn_in_strided(c->v.array.data, c->v.array.dtype, c->v.stride);
    say_assumed(c);
    code = call_isa_choose(c);
    if (!code) code = operator_apply(c);
    if (!code) code = new_results(c);
    return code ? code : call_threads_open(c);
}

/* What most likely helps when the library has refused. */
static void likely_fix(const cli_call *c)
{
    const attn_desc *d = &c->desc;
    const int        positions = d->causal || d->window || d->alibi.data;
    if (d->align && d->query_offset)
        out_fix("give --align or --query-offset, not both");
    else if (positions && !d->align && !d->query_offset)
        out_fix("say --align top-left (query 0 on key 0), --align bottom-right (last query on last key) or --query-offset N");
    else if (c->options->out_dtype)
        out_fix("the result has the dtype of the inputs or f32; leave --out-dtype out");
    else if (d->isa && d->isa == c->options->isa)
        out_fix("attn info lists the instruction sets that this CPU can run");
    else if (c->q.path)
        out_fix("compare the shapes above with the options; attn help run explains each");
    else
        out_fix("attn help masks says what each option means");
}

int call_refused(const cli_call *c, const attn_error *e)
{
    const int code = out_library(e);
    if (code == CLI_FIT || code == CLI_UNSUPPORTED) {
        call_describe(c);
        likely_fix(c);
    }
    return code;
}

int call_run(cli_call *c)
{
    attn_error e;
    return attn_run(&c->desc, &e) == ATTN_OK ? CLI_OK : call_refused(c, &e);
}

void call_close(cli_call *c)
{
    io_array *const all[] = {&c->q.array, &c->k.array, &c->v.array, &c->allow, &c->bias,
                             &c->alibi,   &c->sink,    &c->out,     &c->lse,   &c->weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) io_free(all[i]);
    free(c->lists);
    attn_pool_free(c->pool);
}
