/* compare.c: attn check: runs the operator and compares with somebody else's result.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <math.h>

/* ---- comparing -------------------------------------------------------------------------------------------------------------------- */

void compare_tolerance(int32_t dtype, double *absolute, double *relative)
{
    static const double table[][2] = {
        [ATTN_F32] = {2e-6, 1e-5}, [ATTN_F64] = {1e-13, 1e-12}, [ATTN_F16] = {1e-3, 2e-3}, [ATTN_BF16] = {8e-3, 1e-2}};
    *absolute = table[dtype][0];
    *relative = table[dtype][1];
}

static double element(const cli_view *v, const int64_t at[4])
{
    return io_get(&v->array, at[0] * v->stride[0] + at[1] * v->stride[1] + at[2] * v->stride[2] + at[3] * v->stride[3]);
}

/* The next place in C order over size; 0 after the last. Only the first `axes` axes move. */
static int next(const int64_t size[4], int64_t at[4], int axes)
{
    for (int a = axes - 1; a >= 0; a--) {
        if (++at[a] < size[a]) return 1;
        at[a] = 0;
    }
    return 0;
}

static double largest_finite(const cli_view *v)
{
    double  largest = 0;
    int64_t at[4] = {0};
    if (v->size[0] * v->size[1] * v->size[2] * v->size[3] == 0) return 0;
    do {
        const double x = fabs(element(v, at));
        if (isfinite(x) && x > largest) largest = x;
    } while (next(v->size, at, 4));
    return largest;
}

/* Adds the element at `at` to d: how far apart, and whether that is too far. */
static void compare_element(double got, double want, const int64_t at[4], double unit, cli_difference *d)
{
    double error = fabs(got - want);
    int    wrong;
    if (isfinite(got) && isfinite(want)) {
        wrong = !(error <= d->absolute * unit + d->relative * fabs(want));
    } else {
        wrong = !(got == want || (isnan(got) && isnan(want)));
        error = wrong ? NAN : 0;
        d->nan_only_got += isnan(got) && !isnan(want);
        d->nan_only_want += isnan(want) && !isnan(got);
        d->infinity_differs += wrong && !isnan(got) && !isnan(want);
    }
    d->wrong += wrong;
    if (!isnan(d->largest) && (isnan(error) || error > d->largest)) {
        d->largest = error, d->got = got, d->want = want;
        memcpy(d->at, at, sizeof d->at);
    }
}

void compare_arrays(const cli_view *got, const cli_view *want, cli_difference *d, void (*wrong_row)(void *to, const cli_difference *row),
                    void *to)
{
    const int64_t *size = got->size;
    const double   unit = largest_finite(want);
    int64_t        at[4] = {0};
    *d = (cli_difference){.absolute = d->absolute, .relative = d->relative, .rows = size[0] * size[1] * size[2]};
    for (int64_t row = 0; row < d->rows; row++, next(size, at, 3)) {
        cli_difference r = {.absolute = d->absolute, .relative = d->relative};
        memcpy(r.at, at, sizeof at);
        for (at[3] = 0; at[3] < size[3]; at[3]++) compare_element(element(got, at), element(want, at), at, unit, &r);
        at[3] = 0;
        d->wrong += r.wrong, d->rows_wrong += r.wrong > 0;
        d->nan_only_got += r.nan_only_got, d->nan_only_want += r.nan_only_want, d->infinity_differs += r.infinity_differs;
        if (!isnan(d->largest) && (isnan(r.largest) || r.largest > d->largest)) {
            d->largest = r.largest, d->got = r.got, d->want = r.want;
            memcpy(d->at, r.at, sizeof d->at);
        }
        if (r.wrong && wrong_row) wrong_row(to, &r);
    }
}

/* ---- what could explain a difference ---------------------------------------------------------------------------------------------- */

/* One other reading of the same call. change() edits the descriptor and returns 0 where it does not apply. */
typedef struct variant {
    const char *said;
    int (*change)(attn_desc *d);
} variant;

static int not_causal(attn_desc *d)
{
    return d->causal && !(d->causal = 0);
}

static int causal_top_left(attn_desc *d)
{
    return !d->causal && !d->query_offset && (d->causal = 1) && (d->align = ATTN_ALIGN_TOP_LEFT);
}

static int causal_bottom_right(attn_desc *d)
{
    return !d->causal && !d->query_offset && (d->causal = 1) && (d->align = ATTN_ALIGN_BOTTOM_RIGHT);
}

static int realigned(attn_desc *d, int32_t align)
{
    return (d->causal || d->window || d->alibi.data) && (d->query_offset || d->align != align) &&
           (d->query_offset = NULL, d->align = align);
}

static int top_left(attn_desc *d)
{
    return realigned(d, ATTN_ALIGN_TOP_LEFT);
}

static int bottom_right(attn_desc *d)
{
    return realigned(d, ATTN_ALIGN_BOTTOM_RIGHT);
}

static int no_mask(attn_desc *d)
{
    return d->allow.data && (d->allow = (attn_in){0}, 1);
}

static int no_bias(attn_desc *d)
{
    return d->bias.data && (d->bias = (attn_in){0}, 1);
}

static int unscaled(attn_desc *d)
{
    return (!d->scale_given || d->scale != 1) && (d->scale = d->scale_given = 1);
}

static int usual_scale(attn_desc *d)
{
    return d->scale_given && (d->scale = 0, d->scale_given = 0, 1);
}

static int no_cap(attn_desc *d)
{
    return d->softcap > 0 && (d->softcap = 0, 1);
}

static int narrower(attn_desc *d)
{
    return d->window && d->window_left > 0 && d->window_left--;
}

static int wider(attn_desc *d)
{
    return d->window && d->window_left >= 0 && (d->window_left++, 1);
}

static int no_window(attn_desc *d)
{
    return d->window && (d->window = 0, d->window_left = d->window_right = 0, 1);
}

static int no_sink(attn_desc *d)
{
    return d->sink.data && (d->sink = (attn_in){0}, 1);
}

static int no_alibi(attn_desc *d)
{
    return d->alibi.data && (d->alibi = (attn_in){0}, 1);
}

static int all_keys(attn_desc *d)
{
    return (d->key_count || d->key_start) && (d->key_count = d->key_start = NULL, 1);
}

static const variant variants[] = {
    {"--align bottom-right", bottom_right},
    {"--align top-left", top_left},
    {"--causal --align top-left", causal_top_left},
    {"--causal --align bottom-right", causal_bottom_right},
    {"no --causal", not_causal},
    {"no mask", no_mask},
    {"no --bias", no_bias},
    {"--scale 1 (the other side does not scale)", unscaled},
    {"no --scale", usual_scale},
    {"no --softcap", no_cap},
    {"one key less on the left of --window (the other side counts the query's own key)", narrower},
    {"one key more on the left of --window", wider},
    {"no --window", no_window},
    {"no --sink", no_sink},
    {"no --alibi", no_alibi},
    {"no --key-count and --key-start", all_keys},
};

static int agrees(cli_call *c, const attn_desc *other, const cli_view *want, const cli_difference *bound)
{
    cli_view       got = {"", c->out, {0}, {0}};
    cli_difference d = {.absolute = bound->absolute, .relative = bound->relative};
    if (attn_run(other, NULL) != ATTN_OK) return 0;
    call_view(c, &got, c->desc.heads);
    compare_arrays(&got, want, &d, NULL, NULL);
    return d.wrong == 0;
}

/* Runs the call in other ways until one agrees with want; what was said differently, or NULL. Overwrites the call's result. */
static const char *explain(cli_call *c, const cli_view *want, const cli_difference *bound)
{
    out_note("the results differ; looking for options with which they agree");
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        attn_desc other = c->desc;
        other.lse = (attn_out){0};
        if (variants[i].change(&other) && agrees(c, &other, want, bound)) return variants[i].said;
    }
    if (!c->desc.allow.data || !operator_invert(c)) return NULL;
    attn_desc other = c->desc;
    other.lse = (attn_out){0};
    return agrees(c, &other, want, bound) ? c->options->hide ? "--allow instead of --hide" : "--hide instead of --allow" : NULL;
}

/* ---- the report ------------------------------------------------------------------------------------------------------------------- */

enum { SHOWN = 5 };

typedef struct wrong_rows {
    cli_difference  row[SHOWN];
    int64_t         count, empty_here; /* rows that see no key */
    const cli_call *call;
} wrong_rows;

static void keep_row(void *to, const cli_difference *row)
{
    wrong_rows      *w = to;
    const attn_desc *d = &w->call->desc;
    const int64_t    at = row->at[0] * d->lse.stride[0] + row->at[1] * d->lse.stride[1] + row->at[2] * d->lse.stride[2];
    if (w->count < SHOWN) w->row[w->count] = *row;
    w->count++;
    w->empty_here += io_get(&w->call->lse, at) == -INFINITY;
}

/* Places are said in the axes of the operator; c is the channel of one head. */
static void print_place(const cli_difference *d)
{
    printf("b %lld h %lld i %lld c %lld: got %.9g, want %.9g, error %.3g\n", (long long)d->at[0], (long long)d->at[1], (long long)d->at[2],
           (long long)d->at[3], d->got, d->want, d->largest);
}

/* What the pattern of wrong rows suggests, one sentence or NULL. */
static const char *pattern(const cli_difference *d, const wrong_rows *w)
{
    if (!d->wrong) return NULL;
    if (w->empty_here == w->count)
        return "all wrong rows see no key: here they are zeros; other systems give NaN or the mean of the values";
    if (d->nan_only_want && !d->nan_only_got)
        return "the other result has NaN where this one has numbers: rows without a key, or values hidden by adding -inf";
    if (d->nan_only_got) return "NaN or infinity among the keys that a row may see reaches that row here";
    if (d->rows_wrong == d->rows)
        return "every row is wrong: scale, layout, or the grouping of heads (query head h uses key head h / group here)";
    return "only some rows are wrong: a mask, lengths, or where the queries stand";
}

static int report_json(const cli_difference *d, const wrong_rows *w, const char *hint, const char *variant)
{
    json_t *result = out_json_open("check"), *rows = json_array();
    json_object_set_new(result, "agree", json_boolean(!d->wrong));
    json_object_set_new(result, "tolerance", json_pack("{s:f, s:f}", "absolute", d->absolute, "relative", d->relative));
    json_object_set_new(result, "largest_error", out_json_real(d->largest));
    json_object_set_new(result, "at", out_json_shape(d->at, 4));
    json_object_set_new(result, "got", out_json_real(d->got));
    json_object_set_new(result, "want", out_json_real(d->want));
    json_object_set_new(result, "wrong_elements", json_integer(d->wrong));
    json_object_set_new(result, "wrong_rows", json_integer(d->rows_wrong));
    json_object_set_new(result, "rows", json_integer(d->rows));
    json_object_set_new(result, "nan_only_here", json_integer(d->nan_only_got));
    json_object_set_new(result, "nan_only_there", json_integer(d->nan_only_want));
    json_object_set_new(result, "infinity_differs", json_integer(d->infinity_differs));
    for (int64_t n = 0; n < w->count && n < SHOWN; n++)
        json_array_append_new(rows,
                              json_pack("{s:o, s:o, s:o, s:o}", "at", out_json_shape(w->row[n].at, 4), "got", out_json_real(w->row[n].got),
                                        "want", out_json_real(w->row[n].want), "error", out_json_real(w->row[n].largest)));
    json_object_set_new(result, "first_wrong_rows", rows);
    json_object_set_new(result, "hint", hint ? json_string(hint) : json_null());
    json_object_set_new(result, "agrees_with", variant ? json_string(variant) : json_null());
    return out_json(result);
}

static void report(const cli_difference *d, const wrong_rows *w, const char *hint, const char *variant)
{
    printf("%s: ", d->wrong ? "DIFFERENT" : "agree");
    printf("largest error %.3g, accepted %.3g * largest |want| + %.3g * |want|\n", d->largest, d->absolute, d->relative);
    if (d->largest != 0) printf("largest at    "), print_place(d);
    printf("rows wrong    %lld of %lld (%lld elements)\n", (long long)d->rows_wrong, (long long)d->rows, (long long)d->wrong);
    if (d->nan_only_got || d->nan_only_want || d->infinity_differs)
        printf("not finite    NaN only here %lld, NaN only there %lld, infinity differs %lld\n", (long long)d->nan_only_got,
               (long long)d->nan_only_want, (long long)d->infinity_differs);
    for (int64_t n = 0; n < w->count && n < SHOWN; n++) printf("%s", n ? "              " : "first rows    "), print_place(&w->row[n]);
    if (hint) printf("hint          %s\n", hint);
    if (variant) printf("agrees with   %s\n", variant);
}

static int read_against(cli_call *c, cli_view *want)
{
    io_error e;
    char     shape[2][160];
    want->path = c->options->against;
    if (io_read(want->path, &want->array, &e)) return out_io(&e);
    const int same =
        want->array.rank == c->out.rank && memcmp(want->array.shape, c->out.shape, (size_t)c->out.rank * sizeof *c->out.shape) == 0;
    if (same) return call_view(c, want, c->desc.heads);
    out_fail(CLI_FIT, "--against %s has shape %s, the result has %s", want->path, out_shape(shape[0], want->array.shape, want->array.rank),
             out_shape(shape[1], c->out.shape, c->out.rank));
    call_describe(c);
    out_fix("both sides need one layout; --layout names it");
    return CLI_FIT;
}

/* What was asked for, or the loosest of what the inputs, the result and the other side can promise. */
static void choose_tolerance(const cli_call *c, const cli_view *want, cli_difference *d)
{
    const int32_t dtype[] = {c->desc.q.dtype, c->out.dtype, want->array.dtype};
    for (int n = 0; n < 3; n++) {
        double absolute, relative;
        if (dtype[n] > IO_BF16) continue; /* whole numbers are exact */
        compare_tolerance(dtype[n], &absolute, &relative);
        d->absolute = fmax(d->absolute, absolute), d->relative = fmax(d->relative, relative);
    }
    if (c->options->tolerance.given) d->absolute = c->options->tolerance.first, d->relative = c->options->tolerance.second;
}

int compare_main(const cli_options *o)
{
    if (!o->against) return out_fail(CLI_USAGE, "--against OUT is missing: the result to compare with");
    cli_call       c;
    cli_view       want = {0};
    wrong_rows     w = {.call = &c};
    cli_difference d = {0};
    int            code = call_open(&c, o);
    if (!code) code = read_against(&c, &want);
    if (!code) code = call_run(&c);
    if (!code) {
        cli_view got = {"", c.out, {0}, {0}};
        call_view(&c, &got, c.desc.heads);
        choose_tolerance(&c, &want, &d);
        compare_arrays(&got, &want, &d, keep_row, &w);
        const char *hint = pattern(&d, &w), *variant = d.wrong ? explain(&c, &want, &d) : NULL;
        if (o->json)
            code = report_json(&d, &w, hint, variant);
        else
            report(&d, &w, hint, variant);
        if (!code && d.wrong) code = CLI_CHECK;
    }
    io_free(&want.array);
    call_close(&c);
    return code;
}
