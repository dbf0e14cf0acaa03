/* mask_lint.c: attn mask lint: what is probably wrong with a mask, or could be said shorter, each with what to do.
 * SPDX-License-Identifier: MIT
 */
#include "mask.h"

#include <math.h>
#include <stdlib.h>

typedef struct lint {
    const cli_mask *m;
    json_t         *list; /* of findings */
    int             wrong;
} lint;

enum { WRONG = 1, NOTE = 0 };

/* One finding: its name (pinned, for programs), what was seen, what to do. */
static void find(lint *l, const char *id, int wrong, const char *fix, const char *format, ...) __attribute__((format(printf, 5, 6)));
static void find(lint *l, const char *id, int wrong, const char *fix, const char *format, ...)
{
    char    said[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    l->wrong += wrong;
    json_array_append_new(l->list, json_pack("{s:s, s:s, s:s, s:s}", "id", id, "kind", wrong ? "wrong" : "note", "said", said, "fix", fix));
}

static int64_t at_plane(const attn_in *in, int64_t b, int64_t h)
{
    return b * in->stride[0] + h * in->stride[1];
}

static const char *as_option(const cli_options *o, int bias)
{
    return bias ? "--bias" : o->allow ? "--allow" : "--hide";
}

/* ---- rows ------------------------------------------------------------------------------------------------------------------------- */

static int row_is_empty(const attn_desc *d, int64_t b, int64_t h, int64_t i)
{
    int64_t first, end;
    seen_range(d, b, i, &first, &end);
    if (!d->allow.data && !d->bias.data) return first == end;
    for (int64_t j = first; j < end; j++)
        if (seen_reason(d, b, h, i, j) == SEEN) return 0;
    return 1;
}

static void empty_rows(lint *l)
{
    const attn_desc *d = &l->m->call.desc;
    int64_t          empty = 0, rows = 0, at[3] = {0};
    for (int64_t b = 0; b < l->m->batches; b++)
        for (int64_t h = 0; h < l->m->heads; h++)
            for (int64_t i = 0; i < (d->query_count ? d->query_count[b] : d->queries); i++, rows++) {
                if (!row_is_empty(d, b, h, i)) continue;
                if (!empty++) at[0] = b, at[1] = h, at[2] = i;
            }
    if (!empty) return;
    int hides[SEEN_REASONS] = {0}, known = 0;
    for (int64_t j = 0; j < d->keys && j < 100000; j++) hides[seen_reason(d, at[0], at[1], at[2], j)] = 1;
    char why[160] = "";
    for (int n = 1; n < SEEN_REASONS; n++)
        if (hides[n]) snprintf(why + strlen(why), sizeof why - strlen(why), "%s%s", known++ ? " and " : "", seen_word(n));
    find(l, "empty-rows", WRONG,
         "such rows give zeros here, and NaN or the mean of the values elsewhere; if they are padding, say --query-count, else let each "
         "query see at least its own key",
         "%lld of %lld rows see no key; the first is batch entry %lld, head %lld, query %lld, where %s %s everything", (long long)empty,
         (long long)rows, (long long)at[0], (long long)at[1], (long long)at[2], known ? why : "a length of 0",
         known > 1 ? "hide" : "hides");
}

/* ---- where the diagonal stands ------------------------------------------------------------------------------------------------------ */

static void causal_side(lint *l)
{
    const attn_desc *d = &l->m->call.desc;
    if (!d->causal) return;
    for (int64_t b = 0; b < l->m->batches; b++) {
        const int64_t start = d->key_start ? d->key_start[b] : 0, n = d->query_count ? d->query_count[b] : d->queries,
                      keys = d->key_count ? d->key_count[b] : d->keys - start, offset = seen_offset(d, b);
        if (n == 0 || keys == 0) continue;
        if (offset < 0) {
            find(l, "causal-side", WRONG, "queries that begin where the keys do need --align top-left",
                 "causal with %lld queries over %lld keys puts query 0 at position %lld, before the first key: its first %lld rows see "
                 "nothing",
                 (long long)n, (long long)keys, (long long)offset, (long long)(-offset < n ? -offset : n));
            return;
        }
        if (offset + n < keys) {
            find(l, "causal-side", WRONG,
                 "queries that are the last of the keys' positions (a cache, a later chunk) need --align bottom-right or --query-offset N",
                 "causal with %lld queries over %lld keys puts the last query at position %lld: no query sees the last %lld keys",
                 (long long)n, (long long)keys, (long long)(offset + n - 1), (long long)(keys - offset - n));
            return;
        }
        if (offset >= keys) {
            find(l, "causal-side", WRONG, "say where query 0 stands among the keys: --align bottom-right or a smaller --query-offset",
                 "causal hides nothing: query 0 stands at position %lld, behind all %lld keys", (long long)offset, (long long)keys);
            return;
        }
    }
}

/* A mask of the file that is a diagonal, against the lengths and against what the options say. */
static void mask_side(lint *l, const char *option, const mask_form *f)
{
    const attn_desc *d = &l->m->call.desc;
    const int64_t    n = d->queries, keys = f->key_end - f->key_start;
    int64_t          offset;
    if (!f->has_right || !mask_form_offset(f, &offset)) return;
    if (d->causal && offset != seen_offset(d, 0)) {
        find(l, "causal-side", WRONG, "keep one of them: the option, or the mask",
             "%s is a diagonal that puts query 0 at position %lld, the options' --causal puts it at %lld; both hide", option,
             (long long)offset, (long long)seen_offset(d, 0));
        return;
    }
    if (offset == 0 && n < keys && !d->causal)
        find(l, "causal-side", WRONG,
             "queries that are the last of the keys' positions need the diagonal in the lower right corner: --causal --align bottom-right",
             "%s hangs its diagonal on the first key, for %lld queries over %lld keys: no query sees the last %lld keys", option,
             (long long)n, (long long)keys, (long long)(keys - n));
    if (offset < 0 && n > keys && !d->causal)
        find(l, "causal-side", WRONG,
             "queries that begin where the keys do need the diagonal in the upper left corner: --causal --align top-left",
             "%s hangs its diagonal on the last key, for %lld queries over %lld keys: the first %lld queries see nothing", option,
             (long long)n, (long long)keys, (long long)-offset);
}

/* ---- the boolean mask --------------------------------------------------------------------------------------------------------------- */

/* Packed sequences and windows hide most places and are meant: turned round, no query would see its own key. */
static int sees_itself(const attn_desc *d, const attn_in *in, int64_t plane)
{
    if (d->queries != d->keys) return 0;
    for (int64_t i = 0; i < d->queries; i++)
        if (!((const uint8_t *)in->data)[plane + i * (in->stride[2] + in->stride[3])]) return 0;
    return 1;
}

static int polarity(lint *l, const char *option, const attn_in *in, const mask_form *f, int64_t b, int64_t h)
{
    const attn_desc *d = &l->m->call.desc;
    const int64_t    places = d->queries * d->keys;
    mask_form        inverse;
    int64_t          offset;
    char             fix[160];
    const char      *other = strcmp(option, "--hide") == 0 ? "--allow" : "--hide";
    snprintf(fix, sizeof fix, "if true means %s in this file, name it with %s", *other == '-' && other[2] == 'h' ? "hidden" : "may be seen",
             other);
    if (!places) return CLI_OK;
    if (!mask_form_find(&inverse, in, at_plane(in, b, h), d->queries, d->keys, 1)) return out_fail(CLI_OUTPUT, "no memory");
    const double share = 100 * (1 - (double)f->seen / (double)places);
    const int    turned = inverse.has_right && !inverse.has_left && mask_form_offset(&inverse, &offset) &&
                       (offset == 0 || offset == inverse.key_end - inverse.key_start - d->queries);
    if (turned && !(f->fits && f->has_right))
        find(l, "polarity", WRONG, fix, "%s hides %.0f %%, and turned round it is exactly causal: is the polarity inverted?", option,
             share);
    else if (share > 50 && !(f->fits && f->has_right) && !sees_itself(d, in, at_plane(in, b, h)))
        find(l, "polarity", WRONG, fix, "%s: %.0f %% hidden: is the polarity inverted?", option, share);
    return CLI_OK;
}

/* Keys at an end that no query sees, against the end where the lengths have their padding. */
static void padding_side(lint *l, const char *option, const mask_form *f, int64_t b)
{
    const attn_desc *d = &l->m->call.desc;
    const int64_t    start = d->key_start ? d->key_start[b] : 0, count = d->key_count ? d->key_count[b] : d->keys - start;
    const int64_t    behind = d->keys - start - count;
    if (start == 0 && behind > 0 && f->before > 0 && f->after == 0)
        find(l, "padding-side", WRONG, "padding on the left is said by --key-start; or turn the mask's padding to the right",
             "%s hides the first %lld keys of batch entry %lld, its lengths say that the last %lld are padding: together they hide both",
             option, (long long)f->before, (long long)b, (long long)behind);
    if (start > 0 && behind == 0 && f->after > 0 && f->before == 0)
        find(l, "padding-side", WRONG, "padding on the right is said by --key-count alone; or turn the mask's padding to the left",
             "%s hides the last %lld keys of batch entry %lld, its lengths say that the first %lld are padding: together they hide both",
             option, (long long)f->after, (long long)b, (long long)start);
}

/* All planes of a mask or of a bias of -inf: whether options say the same. */
static int could_be_option(lint *l, const char *option, const attn_in *in)
{
    const attn_desc *d = &l->m->call.desc;
    const int64_t    batch = in->stride[0] ? d->batch : 1, heads = in->stride[1] ? d->heads : 1;
    mask_form       *f = calloc((size_t)batch + 1, sizeof *f), other;
    char             text[512], fix[640];
    int64_t          hidden = 0;
    int              same = f != NULL;
    for (int64_t b = 0; b < batch && same; b++) {
        same = mask_form_find(&f[b], in, at_plane(in, b, 0), d->queries, d->keys, 0);
        hidden += d->queries * d->keys - f[b].seen;
        for (int64_t h = 1; h < heads && same; h++)
            same = mask_form_find(&other, in, at_plane(in, b, h), d->queries, d->keys, 0) && memcmp(&other, &f[b], sizeof other) == 0;
    }
    if (same && !hidden && d->queries > 0 && d->keys > 0)
        find(l, "could-be-option", NOTE, "leave it out", "%s hides nothing", option);
    else if (same && mask_form_options(text, f, batch, d->queries, d->keys)) {
        snprintf(fix, sizeof fix, "say %s instead: no file to read, and what a whole block does not see is skipped", text);
        find(l, "could-be-option", NOTE, fix, "%s says no more than options do", option);
    }
    free(f);
    return f ? CLI_OK : out_fail(CLI_OUTPUT, "no memory");
}

static int mask_findings(lint *l)
{
    const attn_desc *d = &l->m->call.desc;
    const attn_in   *in = &d->allow;
    const char      *option = as_option(l->m->call.options, 0);
    int              code = CLI_OK;
    for (int64_t b = 0; b < (in->stride[0] ? d->batch : 1) && !code; b++)
        for (int64_t h = 0; h < (in->stride[1] ? d->heads : 1) && !code; h++) {
            const int before = (int)json_array_size(l->list);
            mask_form f;
            if (!mask_form_find(&f, in, at_plane(in, b, h), d->queries, d->keys, 0)) return out_fail(CLI_OUTPUT, "no memory");
            code = polarity(l, option, in, &f, b, h);
            padding_side(l, option, &f, b);
            if (f.fits) mask_side(l, option, &f);
            if ((int)json_array_size(l->list) > before) return code; /* one plane's faults are most likely all planes' */
        }
    return code ? code : could_be_option(l, option, in);
}

/* ---- the bias ------------------------------------------------------------------------------------------------------------------------ */

typedef struct bias_values {
    int64_t all, zeros, ones, hidden, minima, nan, plus;
    double  lowest;      /* of the finite ones */
    int64_t only_minima; /* rows that hold nothing but such minima and -inf */
} bias_values;

/* Numbers of this size are not scores but stand for -inf: -1e4, -65504, -1e9, the lowest bf16 and f32. */
static const double stands_for_infinity = -1e4;

static bias_values count_values(const attn_desc *d)
{
    bias_values    v = {0};
    const attn_in *in = &d->bias;
    const int64_t  size[3] = {in->stride[0] ? d->batch : 1, in->stride[1] ? d->heads : 1, in->stride[2] ? d->queries : 1};
    const int64_t  columns = in->stride[3] ? d->keys : 1;
    for (int64_t row = 0; row < size[0] * size[1] * size[2]; row++) {
        const int64_t b = row / size[2] / size[1], h = row / size[2] % size[1], i = row % size[2];
        int64_t       minima = 0, hidden = 0;
        for (int64_t j = 0; j < columns; j++) {
            const double x = seen_bias(d, b, h, i, j);
            v.zeros += x == 0, v.ones += x == 1, v.nan += isnan(x), v.plus += x == INFINITY;
            hidden += x == -INFINITY;
            minima += x <= stands_for_infinity && x != -INFINITY;
            if (isfinite(x) && x < v.lowest) v.lowest = x;
        }
        v.all += columns, v.hidden += hidden, v.minima += minima;
        v.only_minima += minima && minima + hidden == columns;
    }
    return v;
}

static int bias_findings(lint *l)
{
    const attn_desc  *d = &l->m->call.desc;
    const bias_values v = count_values(d);
    const char       *path = l->m->call.options->bias;
    char              fix[512];
    if (v.zeros && v.ones && v.zeros + v.ones == v.all) {
        snprintf(fix, sizeof fix,
                 "a mask of 0 and 1 is boolean: attn mask convert %.150s --from keep --to keep -o keep.npy, then --allow (1 = may be seen)",
                 path);
        find(l, "float-01", WRONG, fix, "--bias holds only 0 and 1: it adds 1 to the scores of %lld places and hides none",
             (long long)v.ones);
    }
    if (v.minima) {
        if (v.zeros + v.minima + v.hidden == v.all)
            snprintf(fix, sizeof fix,
                     "store -inf: attn mask convert %.150s --from hf-4d --to add -o add.npy; or a boolean mask, and --allow", path);
        else
            snprintf(fix, sizeof fix, "store -inf in these places; or keep the other numbers, and hide by a boolean mask, --allow");
        char rows[100] = "";
        if (v.only_minima)
            snprintf(rows, sizeof rows, ", so that %lld rows which hold nothing else see every key", (long long)v.only_minima);
        find(l, "finite-minimum", WRONG, fix, "--bias uses %.7g for -inf in %lld of %lld places: finite numbers do not hide%s", v.lowest,
             (long long)v.minima, (long long)v.all, rows);
    }
    if (v.nan + v.plus)
        find(l, "not-a-number", WRONG, "NaN and +inf reach the rows that see them; store finite numbers or -inf",
             "--bias holds NaN in %lld and +inf in %lld of %lld places", (long long)v.nan, (long long)v.plus, (long long)v.all);
    if (!v.hidden || v.zeros + v.hidden != v.all) return CLI_OK;
    mask_form f;
    if (!mask_form_find(&f, &d->bias, 0, d->queries, d->keys, 0)) return out_fail(CLI_OUTPUT, "no memory");
    if (f.fits) mask_side(l, "--bias", &f);
    padding_side(l, "--bias", &f, 0);
    return could_be_option(l, "--bias", &d->bias);
}

/* ---- all ------------------------------------------------------------------------------------------------------------------------------ */

static int report(lint *l)
{
    size_t  n;
    json_t *one;
    if (l->m->call.options->json) {
        json_t *result = out_json_open("mask");
        json_object_set_new(result, "action", json_string("lint"));
        json_object_set_new(result, "wrong", json_integer(l->wrong));
        json_object_set(result, "findings", l->list);
        return out_json(result);
    }
    json_array_foreach(l->list, n, one)
        printf("%s: %s: %s\n  fix: %s\n", json_string_value(json_object_get(one, "kind")), json_string_value(json_object_get(one, "id")),
               json_string_value(json_object_get(one, "said")), json_string_value(json_object_get(one, "fix")));
    if (!json_array_size(l->list)) printf("nothing found\n");
    return CLI_OK;
}

int mask_lint(const cli_mask *m)
{
    const attn_desc *d = &m->call.desc;
    lint             l = {.m = m, .list = json_array()};
    int              code = CLI_OK;
    empty_rows(&l);
    causal_side(&l);
    if (d->allow.data) code = mask_findings(&l);
    if (!code && d->bias.data) code = bias_findings(&l);
    if (!code) code = report(&l);
    json_decref(l.list);
    return code ? code : l.wrong ? CLI_CHECK : CLI_OK;
}
