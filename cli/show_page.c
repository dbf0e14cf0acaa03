/* show_page.c: attn show --html: one page that holds its data and needs nothing else.
 * SPDX-License-Identifier: MIT
 */
#include "explain.h"
#include "page_html.h"
#include "show.h"

#include <math.h>
#include <stdlib.h>

/* ---- data as text ------------------------------------------------------------------------------------------------------------------- */

/* Bytes as base64, which JSON can hold and the page reads as they are; NULL when no memory. */
static json_t *base64(const void *data, size_t count)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t    *from = data;
    char             *text = malloc(count / 3 * 4 + 5), *to = text;
    if (!text) return NULL;
    for (size_t i = 0; i < count; i += 3) {
        const int      here = count - i < 3 ? (int)(count - i) : 3;
        const unsigned three = (unsigned)from[i] << 16 | (here > 1 ? (unsigned)from[i + 1] << 8 : 0) | (here > 2 ? from[i + 2] : 0);
        for (int n = 0; n < 4; n++) *to++ = n <= here ? digit[three >> (18 - 6 * n) & 63] : '=';
    }
    json_t *result = json_stringn(text, (size_t)(to - text));
    free(text);
    return result;
}

/* A name out of a path, which need not be UTF-8. */
static json_t *words(const char *text)
{
    json_t *result = json_string(text);
    if (result) return result;
    char *plain = strdup(text);
    for (char *c = plain; c && *c; c++)
        if (*c & 0x80) *c = '?';
    result = plain ? json_string(plain) : NULL;
    free(plain);
    return result;
}

static json_t *list(char **token, int64_t count)
{
    json_t *result = json_array();
    for (int64_t i = 0; token && i < count; i++) json_array_append_new(result, words(token[i]));
    if (token) return result;
    json_decref(result);
    return json_null();
}

/* ---- the region that is stored exactly ------------------------------------------------------------------------------------------------ */

typedef struct region {
    int64_t row, rows, column, columns;
    int     explained; /* with all numbers of its rows */
} region;

/* Bytes of a place in the file, as base64: the weight alone; and dot, score, share, hidden, and three numbers for options. */
enum { PLACE_BYTES = 6, EXPLAINED_BYTES = 6 + 3 * 6 + 3, OPTION_BYTES = 6 };

/* Explaining a row takes double precision over all its keys; beyond so many products a page would take minutes. */
static const double most_products = 1e9;

static region choose_region(const cli_show *s)
{
    const cli_options *o = s->options;
    const show_layer  *l = &s->layer[0];
    const attn_desc   *d = &l->desc;
    const int64_t      maps = s->heads * s->layers, options = (d->softcap > 0) + (d->bias.data != NULL) + (d->alibi.data != NULL);
    const int64_t      bytes = maps * (l->from ? EXPLAINED_BYTES + OPTION_BYTES * options : PLACE_BYTES);
    const int64_t      places = (o->limit.given ? o->limit.value : 8) * 1048576 / bytes;
    region             r = {.row = o->region.first < l->queries ? o->region.first : l->queries - 1,
                            .column = o->region.second < l->keys ? o->region.second : l->keys - 1};
    int64_t            side = (int64_t)sqrt((double)places);
    if (side < 1) side = 1;
    const int64_t below = l->queries - r.row, right = l->keys - r.column;
    r.columns = side < right ? side : right;
    r.rows = places / r.columns < below ? places / r.columns : below;
    if (r.rows < 1) r.rows = 1;
    if (places / r.rows > r.columns) r.columns = places / r.rows < right ? places / r.rows : right; /* what few rows leave free */
    r.explained = l->from && (double)maps * (double)r.rows * (double)l->keys * (double)(2 * d->dim + 3 * d->value_dim) <= most_products;
    return r;
}

/* The numbers of the region's rows, [head][row][column]; NULL where an option is not used. */
typedef struct numbers {
    float    *dot, *score, *capped, *bias, *alibi, *share, *size; /* size: [key head][column] */
    uint16_t *hidden;                                             /* bits of SEEN_* */
    json_t   *facts;
    double    scale;
} numbers;

static void free_numbers(numbers *n)
{
    free(n->dot), free(n->score), free(n->capped), free(n->bias), free(n->alibi), free(n->share), free(n->size), free(n->hidden);
    json_decref(n->facts);
}

static void take_row(numbers *n, const cli_row *row, const region *r, int64_t at)
{
    for (int64_t j = 0; j < r->columns; j++) {
        const row_key *k = &row->key[r->column + j];
        n->dot[at + j] = (float)k->dot, n->score[at + j] = (float)k->score, n->share[at + j] = (float)k->share;
        n->hidden[at + j] = (uint16_t)k->hidden;
        if (n->capped) n->capped[at + j] = (float)k->capped;
        if (n->bias) n->bias[at + j] = (float)k->bias;
        if (n->alibi) n->alibi[at + j] = (float)k->alibi;
        n->size[row->kv_head * r->columns + j] = (float)k->value_size;
    }
    n->scale = row->scale;
}

static int explain_rows(const cli_show *s, const show_layer *l, const region *r, numbers *n)
{
    const attn_desc *d = &l->desc;
    const size_t     count = (size_t)(s->heads * r->rows * r->columns);
    memset(n, 0, sizeof *n);
    n->facts = json_array();
    n->dot = calloc(count, sizeof *n->dot), n->score = calloc(count, sizeof *n->score), n->share = calloc(count, sizeof *n->share);
    n->hidden = calloc(count, sizeof *n->hidden), n->size = calloc((size_t)(l->kv_heads * r->columns), sizeof *n->size);
    if (d->softcap > 0) n->capped = calloc(count, sizeof *n->capped);
    if (d->bias.data) n->bias = calloc(count, sizeof *n->bias);
    if (d->alibi.data) n->alibi = calloc(count, sizeof *n->alibi);
    if (!n->dot || !n->score || !n->share || !n->hidden || !n->size || (d->softcap > 0 && !n->capped) || (d->bias.data && !n->bias) ||
        (d->alibi.data && !n->alibi))
        return out_fail(CLI_OUTPUT, "no memory for the page");
    for (int64_t h = 0; h < s->heads; h++) {
        json_t *rows = json_array();
        json_array_append_new(n->facts, rows);
        for (int64_t i = 0; i < r->rows; i++) {
            cli_row   row;
            const int code = row_open(&row, d, 0, s->head[h], r->row + i);
            if (!code) {
                take_row(n, &row, r, (h * r->rows + i) * r->columns);
                json_array_append_new(rows, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "max", out_json_real(row.max), "sum",
                                                      out_json_real(row.sum), "lse", out_json_real(row.lse), "entropy",
                                                      out_json_real(row.entropy), "effective", out_json_real(row.effective), "sink",
                                                      out_json_real(row.sink_weight)));
            }
            row_close(&row);
            if (code) return code;
        }
    }
    return CLI_OK;
}

static void set_floats(json_t *to, const char *name, const float *x, int64_t count)
{
    if (x) json_object_set_new(to, name, base64(x, (size_t)count * sizeof *x));
}

static int put_region(const cli_show *s, const show_layer *l, const region *r, json_t *layer)
{
    const int64_t count = s->heads * r->rows * r->columns;
    json_t *to = json_pack("{s:I, s:I, s:I, s:I}", "row", (json_int_t)r->row, "rows", (json_int_t)r->rows, "column", (json_int_t)r->column,
                           "columns", (json_int_t)r->columns);
    float  *weight = calloc((size_t)count, sizeof *weight);
    numbers n = {0};
    json_object_set_new(layer, "region", to);
    int code = weight ? show_values(s, l, r->row, r->rows, r->column, r->columns, weight) : out_fail(CLI_OUTPUT, "no memory for the page");
    if (!code) set_floats(to, "weight", weight, count);
    if (!code && r->explained) code = explain_rows(s, l, r, &n);
    if (!code && r->explained) {
        set_floats(to, "dot", n.dot, count), set_floats(to, "score", n.score, count), set_floats(to, "share", n.share, count);
        set_floats(to, "capped", n.capped, count), set_floats(to, "bias", n.bias, count), set_floats(to, "alibi", n.alibi, count);
        set_floats(to, "size", n.size, l->kv_heads * r->columns);
        json_object_set_new(to, "hidden", base64(n.hidden, (size_t)count * sizeof *n.hidden));
        json_object_set(to, "facts", n.facts);
        json_object_set_new(layer, "scale", json_real(n.scale));
    }
    free(weight);
    free_numbers(&n);
    return code;
}

/* ---- the map of everything ------------------------------------------------------------------------------------------------------------ */

static int put_map(const cli_show *s, const show_layer *l, json_t *layer)
{
    const int64_t rows = l->queries < PAGE_CELLS ? l->queries : PAGE_CELLS, columns = l->keys < PAGE_CELLS ? l->keys : PAGE_CELLS;
    const int64_t count = s->heads * rows * columns;
    float        *mean = calloc((size_t)count, sizeof *mean), *largest = calloc((size_t)count, sizeof *largest);
    int           code = mean && largest ? show_map(s, l, rows, columns, mean, largest) : out_fail(CLI_OUTPUT, "no memory for the page");
    if (!code) {
        json_t *map = json_pack("{s:I, s:I}", "rows", (json_int_t)rows, "columns", (json_int_t)columns);
        set_floats(map, "mean", mean, count), set_floats(map, "max", largest, count);
        json_object_set_new(layer, "map", map);
    }
    free(mean), free(largest);
    return code;
}

/* ---- the page ------------------------------------------------------------------------------------------------------------------------- */

static json_t *axis(char **token, int64_t count)
{
    return json_pack("{s:I, s:o}", "count", (json_int_t)count, "tokens", list(token, count));
}

static json_t *ramp(void)
{
    uint8_t rgb[3 * 256];
    for (int i = 0; i < 256; i++) picture_colour(i / 255.0, rgb + 3 * i);
    return base64(rgb, sizeof rgb);
}

static int gather(const cli_show *s, json_t *data)
{
    const region r = choose_region(s);
    const int    whole = r.rows == s->layer[0].queries && r.columns == s->layer[0].keys;
    json_t      *layers = json_array(), *heads = json_array(), *reasons = json_array();
    char         sampled[320] = "";
    int          code = CLI_OK;
    for (int64_t n = 0; n < s->layers && !code; n++) {
        const show_layer *l = &s->layer[n];
        json_t           *layer =
            json_pack("{s:o, s:I, s:I}", "name", words(l->name), "heads", (json_int_t)l->heads, "kv_heads", (json_int_t)l->kv_heads);
        json_array_append_new(layers, layer);
        code = put_region(s, l, &r, layer);
        if (!code && !whole) code = put_map(s, l, layer);
    }
    for (int64_t n = 0; n < s->heads; n++) json_array_append_new(heads, json_integer(s->head[n]));
    for (int n = 0; n < SEEN_REASONS; n++) json_array_append_new(reasons, json_string(row_reason(n)));
    if (!whole)
        snprintf(sampled, sizeof sampled,
                 "The map is down-sampled: a cell stands for many places. The %lld x %lld places from query %lld, key %lld on are stored "
                 "exactly "
                 "(the frame); the button shows them. --region and --limit choose others.",
                 (long long)r.rows, (long long)r.columns, (long long)r.row, (long long)r.column);
    json_object_set_new(data, "layers", layers), json_object_set_new(data, "heads", heads), json_object_set_new(data, "reasons", reasons);
    json_object_set_new(data, "sampled", *sampled ? json_string(sampled) : json_null());
    json_object_set_new(data, "title", words(s->title)), json_object_set_new(data, "said", json_string(s->said));
    json_object_set_new(data, "queries", axis(show_query_tokens(s), s->layer[0].queries));
    json_object_set_new(data, "keys", axis(s->key_token, s->layer[0].keys));
    json_object_set_new(data, "ramp", ramp());
    json_object_set_new(data, "log", json_boolean(s->options->log));
    json_object_set_new(
        data, "note",
        json_string("Weights show where values were read, not why a model decided. Colours go from light to dark evenly, so that "
                    "their order survives grey print and colour blindness."));
    return code;
}

/* JSON inside a script element may not hold "<": "</script>" would end it. It only stands in strings, where it has another spelling. */
static int put_escaped(const char *text, size_t length, void *to)
{
    for (size_t i = 0; i < length; i++)
        if ((text[i] == '<' ? fputs("\\u003c", to) : fputc(text[i], to)) == EOF) return -1;
    return 0;
}

int show_page(const cli_show *s, const char *path)
{
    static const char mark[] = "DATA</script>";
    const char       *at = strstr(page_html, mark);
    json_t           *data = out_json_open("show");
    io_output         output;
    io_error          error;
    int               code = gather(s, data);
    if (!code && io_output_open(&output, path, &error)) code = out_io(&error);
    if (!code) {
        fwrite(page_html, 1, (size_t)(at - page_html), output.file);
        const int failed = json_dump_callback(data, put_escaped, output.file, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
        fputs(at + sizeof mark - sizeof "</script>", output.file);
        if (failed) {
            io_output_discard(&output);
            code = out_fail(CLI_OUTPUT, "%s cannot be written", path);
        } else if (io_output_commit(&output, &error))
            code = out_io(&error);
    }
    json_decref(data);
    return code;
}
