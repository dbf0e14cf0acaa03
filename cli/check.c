/* check.c: attn check: somebody else's results beside the library's, and what explains the difference.
 * SPDX-License-Identifier: MIT
 */
#include "causes.h"

#include <math.h>
#include <stdlib.h>

enum { SHOWN = 5, WRONG_KEPT = 32, TOLD = 3, BLOCK = 64 };

enum { OUT, LSE, WEIGHTS, PARTS };

/* One of the results that are compared. */
typedef struct part {
    cli_view       want; /* path NULL: not given */
    cli_difference d;
    cli_difference row[SHOWN];        /* the first wrong rows */
    int64_t        count, empty_here; /* of those; rows that see no key */
    struct check  *check;
} part;

typedef struct check {
    cli_call     call;
    part         part[PARTS];
    int64_t      kept[WRONG_KEPT][3]; /* wrong rows, spread over all of them: every `step`th */
    int64_t      seen, step;
    int          kept_count;
    const cause *found[TOLD];
    int          found_count, tried, sampled;
} check;

static const char *const names[] = {"out", "lse", "weights"};

/* ---- inputs ------------------------------------------------------------------------------------------------------------------------- */

/* lse and weights: the axes batch and head are there if Q's files have them. */
static int score_view(const cli_call *c, cli_view *v, int keys)
{
    const attn_desc *d = &c->desc;
    const int64_t    size[4] = {d->batch, d->heads, d->queries, keys ? d->keys : 1};
    const int        has[4] = {strchr(c->layout, 'b') != NULL, c->split || strchr(c->layout, 'h'), 1, keys};
    char             got[160], want[160];
    int64_t          shape[4];
    int              rank = 0, fits = 1;
    for (int a = 0; a < 4; a++) {
        v->size[a] = size[a], v->stride[a] = 0;
        if (!has[a]) continue;
        if (rank < v->array.rank) v->stride[a] = v->array.stride[rank];
        fits = fits && rank < v->array.rank && v->array.shape[rank] == size[a];
        shape[rank++] = size[a];
    }
    if (fits && rank == v->array.rank) return CLI_OK;
    out_fail(CLI_FIT, "%s has shape %s, %s is needed", v->path, out_shape(got, v->array.shape, v->array.rank),
             out_shape(want, shape, rank));
    call_describe(c);
    if (keys && d->heads > 1 && v->array.rank == rank - 1)
        out_fix("an average over the heads, as nn.MultiheadAttention gives? Ask there for average_attn_weights=False");
    return CLI_FIT;
}

static int read_part(check *k, int n, const char *path)
{
    cli_view       *v = &k->part[n].want;
    const cli_call *c = &k->call;
    char            shape[2][160];
    k->part[n].check = k;
    if (!path) return CLI_OK;
    v->path = path;
    const int code = literal_read(path, &v->array);
    if (code) return code;
    if (n != OUT) return score_view(c, v, n == WEIGHTS);
    const int same = v->array.rank == c->out.rank && memcmp(v->array.shape, c->out.shape, (size_t)c->out.rank * sizeof *c->out.shape) == 0;
    if (same) return call_view(c, v, c->desc.heads);
    out_fail(CLI_FIT, "--against %s has shape %s, the result has %s", path, out_shape(shape[0], v->array.shape, v->array.rank),
             out_shape(shape[1], c->out.shape, c->out.rank));
    call_describe(c);
    out_fix("both sides need one layout; --layout names it");
    return CLI_FIT;
}

/* What was asked for, or the loosest of what the inputs, the result and the other side can promise. */
static void choose_tolerance(check *k, int n)
{
    const cli_call *c = &k->call;
    part           *p = &k->part[n];
    const int32_t   here = n == OUT ? c->out.dtype : c->lse.dtype;
    const int32_t   dtype[] = {n == LSE ? here : c->desc.q.dtype, here, p->want.array.dtype};
    for (int i = 0; i < 3; i++) {
        double absolute, relative;
        if (dtype[i] > IO_BF16) continue; /* whole numbers are exact */
        compare_tolerance(dtype[i], &absolute, &relative);
        p->d.absolute = fmax(p->d.absolute, absolute), p->d.relative = fmax(p->d.relative, relative);
    }
    if (c->options->tolerance.given) p->d.absolute = c->options->tolerance.first, p->d.relative = c->options->tolerance.second;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------------------------ */

static void keep_row(void *to, const cli_difference *row)
{
    part            *p = to;
    check           *k = p->check;
    const attn_desc *d = &k->call.desc;
    const int64_t    at = row->at[0] * d->lse.stride[0] + row->at[1] * d->lse.stride[1] + row->at[2] * d->lse.stride[2];
    if (p->count < SHOWN) p->row[p->count] = *row;
    p->count++;
    p->empty_here += io_get(&k->call.lse, at) == -INFINITY;
    if (k->seen++ % k->step) return;
    if (k->kept_count == WRONG_KEPT) { /* every second makes room for those to come */
        for (int n = 0; n < WRONG_KEPT / 2; n++) memcpy(k->kept[n], k->kept[2 * n], sizeof k->kept[n]);
        k->kept_count = WRONG_KEPT / 2, k->step *= 2;
    }
    memcpy(k->kept[k->kept_count++], row->at, sizeof k->kept[0]);
}

/* Weights in blocks of queries, so that there are never many of them here. */
static int compare_weights(check *k)
{
    const attn_desc *d = &k->call.desc;
    part            *p = &k->part[WEIGHTS];
    const double     unit = compare_largest(&p->want);
    const int32_t    real = k->call.lse.dtype;
    const int64_t    shape[2] = {BLOCK, d->keys + d->value_dim};
    io_array         room;
    int              code = CLI_OK;
    if (!convert_new(&room, real, 2, shape)) return out_fail(CLI_OUTPUT, "no memory for a block of weights");
    char *const out = (char *)room.data + (size_t)(BLOCK * d->keys) * io_dtype_bytes(real);
    for (int64_t row = 0; row < d->batch * d->heads && !code; row++)
        for (int64_t i = 0; i < d->queries && !code; i += BLOCK) {
            const int64_t at[3] = {row / d->heads, row % d->heads, i}, left = d->queries - i, count = left < BLOCK ? left : BLOCK;
            int64_t       place[4];
            attn_desc     slice;
            attn_error    e;
            row_slice(&slice, d, at[0], at[1], i, count, place);
            slice.weights = attn_out_dense(room.data, real, 1, count, d->keys), slice.weights_stage = ATTN_STAGE_WEIGHT;
            slice.out = attn_out_dense(out, real, 1, count, d->value_dim), slice.lse = (attn_out){0};
            if (attn_run(&slice, &e)) code = out_library(&e);
            const cli_view got = {"", room, {1, 1, count, d->keys}, {0, 0, d->keys, 1}};
            cli_view       want = p->want;
            for (int a = 0; a < 3; a++)
                want.array.data = (char *)want.array.data + at[a] * want.stride[a] * (int64_t)io_dtype_bytes(want.array.dtype);
            if (!code) compare_block(&got, &want, unit, at, &p->d, keep_row, p);
        }
    io_free(&room);
    return code;
}

static int compare(check *k)
{
    cli_call *c = &k->call;
    cli_view  got = {"", c->out, {0}, {0}}, lse = {"", c->lse, {0}, {0}};
    for (int n = 0; n < PARTS; n++)
        if (k->part[n].want.path) choose_tolerance(k, n);
    if (k->part[OUT].want.path) {
        call_view(c, &got, c->desc.heads);
        compare_arrays(&got, &k->part[OUT].want, &k->part[OUT].d, keep_row, &k->part[OUT]);
    }
    if (k->part[LSE].want.path) {
        score_view(c, &lse, 0);
        compare_arrays(&lse, &k->part[LSE].want, &k->part[LSE].d, keep_row, &k->part[LSE]);
    }
    return k->part[WEIGHTS].want.path ? compare_weights(k) : CLI_OK;
}

/* ---- why ------------------------------------------------------------------------------------------------------------------------------ */

/* Wrong rows, then rows spread over all of them. */
static sample choose_rows(const check *k)
{
    const attn_desc *d = &k->call.desc;
    const int64_t    all = d->batch * d->heads * d->queries;
    const int        even = (int)(all < SAMPLE - WRONG_KEPT ? all : SAMPLE - WRONG_KEPT);
    sample           s = {.count = k->kept_count};
    memcpy(s.at, k->kept, sizeof k->kept);
    for (int n = 0; n < even; n++, s.count++) {
        const int64_t row = (int64_t)((double)all * n / even);
        s.at[s.count][0] = row / (d->heads * d->queries);
        s.at[s.count][1] = row / d->queries % d->heads;
        s.at[s.count][2] = row % d->queries;
    }
    return s;
}

static int find_causes(check *k)
{
    const attn_desc *d = &k->call.desc;
    const sample     rows = choose_rows(k);
    bound            b = {0};
    int64_t         *counts = calloc((size_t)d->batch + 1, sizeof *counts);
    double *const    absolute[] = {&b.out, &b.lse, &b.weights};
    int              code = counts ? CLI_OK : out_fail(CLI_OUTPUT, "no memory to look for causes");
    for (int n = 0; n < PARTS && !code; n++) {
        if (!k->part[n].want.path) continue;
        *absolute[n] = k->part[n].d.absolute * compare_largest(&k->part[n].want);
        b.relative = fmax(b.relative, k->part[n].d.relative);
    }
    out_note("the results differ; trying the known ways to go wrong");
    for (const cause *c = causes; c->name && !code && k->found_count < TOLD; c++) {
        attempt t = {*d, k->part[OUT].want, k->part[LSE].want, k->part[WEIGHTS].want, c->twist, 0, counts};
        if (c->twist & (TWIST_F16 | TWIST_BF16) && k->found_count) break; /* the size of errors proves little: only if nothing else fits */
        if (c->change && !c->change(&t)) continue;
        t.desc.out = attn_out_dense(k->call.out.data, k->call.out.dtype, t.desc.heads, t.desc.queries, t.desc.value_dim);
        t.desc.lse = t.desc.weights = (attn_out){0}, t.desc.weights_stage = 0;
        if (attn_check(&t.desc, NULL) != ATTN_OK) continue;
        const int fits = attempt_fits(&t, &rows, &b);
        k->tried++;
        if (fits < 0) code = CLI_OUTPUT;
        if (fits > 0) k->found[k->found_count++] = c;
    }
    k->sampled = rows.count;
    free(counts);
    return code;
}

/* What the pattern of wrong rows suggests, one sentence or NULL. */
static const char *pattern(const part *p)
{
    const cli_difference *d = &p->d;
    if (!d->wrong) return NULL;
    if (p->empty_here == p->count)
        return "all wrong rows see no key: here they are zeros; other systems give NaN or the mean of the values";
    if (d->nan_only_want && !d->nan_only_got)
        return "the other result has NaN where this one has numbers: rows without a key, or values hidden by adding -inf";
    if (d->nan_only_got) return "NaN or infinity among the keys that a row may see reaches that row here";
    if (d->rows_wrong == d->rows)
        return "every row is wrong: scale, layout, or the grouping of heads (query head h uses key head h / group here)";
    return "only some rows are wrong: a mask, lengths, or where the queries stand";
}

/* ---- the report ----------------------------------------------------------------------------------------------------------------------- */

static void put_part(json_t *o, const part *p)
{
    const cli_difference *d = &p->d;
    json_t               *rows = json_array();
    json_object_set_new(o, "agree", json_boolean(!d->wrong));
    json_object_set_new(o, "tolerance", json_pack("{s:f, s:f}", "absolute", d->absolute, "relative", d->relative));
    json_object_set_new(o, "largest_error", out_json_real(d->largest));
    json_object_set_new(o, "at", out_json_shape(d->at, 4));
    json_object_set_new(o, "got", out_json_real(d->got));
    json_object_set_new(o, "want", out_json_real(d->want));
    json_object_set_new(o, "wrong_elements", json_integer(d->wrong));
    json_object_set_new(o, "wrong_rows", json_integer(d->rows_wrong));
    json_object_set_new(o, "rows", json_integer(d->rows));
    json_object_set_new(o, "nan_only_here", json_integer(d->nan_only_got));
    json_object_set_new(o, "nan_only_there", json_integer(d->nan_only_want));
    json_object_set_new(o, "infinity_differs", json_integer(d->infinity_differs));
    for (int64_t n = 0; n < p->count && n < SHOWN; n++)
        json_array_append_new(rows,
                              json_pack("{s:o, s:o, s:o, s:o}", "at", out_json_shape(p->row[n].at, 4), "got", out_json_real(p->row[n].got),
                                        "want", out_json_real(p->row[n].want), "error", out_json_real(p->row[n].largest)));
    json_object_set_new(o, "first_wrong_rows", rows);
    json_object_set_new(o, "hint", pattern(p) ? json_string(pattern(p)) : json_null());
}

static json_t *as_json(const check *k)
{
    json_t *result = out_json_open("check"), *found = json_array();
    for (int n = 0; n < PARTS; n++) {
        if (!k->part[n].want.path) continue;
        json_t *o = json_object();
        put_part(o, &k->part[n]);
        json_object_set_new(result, names[n], o);
    }
    for (int n = 0; n < k->found_count; n++)
        json_array_append_new(found, json_pack("{s:s, s:s}", "cause", k->found[n]->name, "said", k->found[n]->said));
    json_object_set_new(result, "causes", found);
    json_object_set_new(result, "causes_tried", json_integer(k->tried));
    json_object_set_new(result, "rows_sampled", json_integer(k->sampled));
    return result;
}

/* Places are said in the axes of the operator; c is the channel of one head, or the key. */
static void print_place(const cli_difference *d, int n)
{
    printf("b %lld h %lld i %lld", (long long)d->at[0], (long long)d->at[1], (long long)d->at[2]);
    if (n != LSE) printf(" %c %lld", n == OUT ? 'c' : 'j', (long long)d->at[3]);
    printf(": got %.9g, want %.9g, error %.3g\n", d->got, d->want, d->largest);
}

static void print_part(const part *p, int n)
{
    const cli_difference *d = &p->d;
    printf("%s%s%s: ", n == OUT ? "" : names[n], n == OUT ? "" : " ", d->wrong ? "DIFFERENT" : "agree");
    printf("largest error %.3g, accepted %.3g * largest |want| + %.3g * |want|\n", d->largest, d->absolute, d->relative);
    if (d->largest != 0) printf("largest at    "), print_place(d, n);
    printf("rows wrong    %lld of %lld (%lld elements)\n", (long long)d->rows_wrong, (long long)d->rows, (long long)d->wrong);
    if (d->nan_only_got || d->nan_only_want || d->infinity_differs)
        printf("not finite    NaN only here %lld, NaN only there %lld, infinity differs %lld\n", (long long)d->nan_only_got,
               (long long)d->nan_only_want, (long long)d->infinity_differs);
    for (int64_t row = 0; row < p->count && row < SHOWN; row++)
        printf("%s", row ? "              " : "first rows    "), print_place(&p->row[row], n);
    if (pattern(p)) printf("hint          %s\n", pattern(p));
}

static void report(const check *k)
{
    for (int n = 0; n < PARTS; n++)
        if (k->part[n].want.path) print_part(&k->part[n], n);
    for (int n = 0; n < k->found_count; n++)
        printf("%s  %s: %s\n", n ? "or this     " : "cause       ", k->found[n]->name, k->found[n]->said);
    if (k->found_count && !(k->found[0]->twist & (TWIST_F16 | TWIST_BF16)))
        printf("              it gives the same on every row that was tried\n");
    else if (!k->found_count && k->tried)
        printf("cause         no known cause: %d were tried on %d rows\n", k->tried, k->sampled);
}

/* The call's own results, how far the others are from them, and why; 1 into *wrong where they differ. */
static int check_run(check *k, int *wrong)
{
    int code = call_run(&k->call);
    *wrong = 0;
    if (!code) code = compare(k);
    for (int n = 0; n < PARTS && !code; n++) *wrong |= k->part[n].d.wrong != 0;
    if (!code && *wrong) code = find_causes(k);
    return code;
}

json_t *check_call(const cli_call *call, const cli_view want[3])
{
    check   k = {.call = *call, .step = 1};
    int     wrong;
    json_t *result = NULL;
    for (int n = 0; n < PARTS; n++) k.part[n].want = want[n], k.part[n].check = &k;
    if (!check_run(&k, &wrong)) result = as_json(&k);
    return result;
}

int check_main(const cli_options *o)
{
    const char *const path[] = {o->against, o->against_lse, o->against_weights};
    check             k = {.step = 1};
    if (!path[OUT] && !path[LSE] && !path[WEIGHTS])
        return out_fail(CLI_USAGE, "--against OUT is missing: the result to compare with (or --against-lse F, --against-weights F)");
    int code = call_open(&k.call, o), wrong = 0;
    for (int n = 0; n < PARTS && !code; n++) code = read_part(&k, n, path[n]);
    if (!code) code = check_run(&k, &wrong);
    if (!code && o->json)
        code = out_json(as_json(&k));
    else if (!code)
        report(&k);
    for (int n = 0; n < PARTS; n++) io_free(&k.part[n].want.array);
    call_close(&k.call);
    return !code && wrong ? CLI_CHECK : code;
}
