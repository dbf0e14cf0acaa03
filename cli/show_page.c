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

/* The numbers of the region's rows, [head][row][column], but SIZE: [key head][column]. NULL where there are none. */
enum { DOT, SCORE, SHARE, SIZE, CAPPED, BIAS, ALIBI, NUMBERS };

static const char *const number_name[] = {"dot", "score", "share", "size", "capped", "bias", "alibi"};

typedef struct numbers {
    float    *of[NUMBERS];
    uint16_t *hidden; /* bits of SEEN_* */
    json_t   *facts;  /* of each row */
    double    scale;
} numbers;

static void free_numbers(numbers *n)
{
    for (int k = 0; k < NUMBERS; k++) free(n->of[k]);
    free(n->hidden);
    json_decref(n->facts);
}

static int new_numbers(numbers *n, const show_layer *l, const region *r, int64_t count)
{
    const attn_desc *d = &l->desc;
    const int64_t    wanted[NUMBERS] = {[DOT] = count,
                                        [SCORE] = count,
                                        [SHARE] = r->explained ? count : 0,
                                        [SIZE] = r->explained ? l->kv_heads * r->columns : 0,
                                        [CAPPED] = d->softcap > 0 ? count : 0,
                                        [BIAS] = d->bias.data ? count : 0,
                                        [ALIBI] = d->alibi.data && r->explained ? count : 0};
    int              good = (n->hidden = calloc((size_t)count, sizeof *n->hidden)) != NULL;
    for (int k = 0; k < NUMBERS; k++) good = (!wanted[k] || (n->of[k] = calloc((size_t)wanted[k], sizeof **n->of))) && good;
    return good ? CLI_OK : out_fail(CLI_OUTPUT, "no memory for the page");
}

static void take_row(numbers *n, const cli_row *row, const region *r, int64_t at, int sizes)
{
    for (int64_t j = 0; j < r->columns; j++) {
        const row_key *k = &row->key[r->column + j];
        const double   x[NUMBERS] = {k->dot, k->score, k->share, 0, k->capped, k->bias, k->alibi};
        for (int m = 0; m < NUMBERS; m++)
            if (n->of[m] && m != SIZE) n->of[m][at + j] = (float)x[m];
        if (sizes) n->of[SIZE][row->kv_head * r->columns + j] = (float)k->value_size;
        n->hidden[at + j] = (uint16_t)k->hidden;
    }
}

/* Every number of every row, in double precision, stored as f32; max too, so that the largest score less max is 0. Rows are shared out to the threads. */
enum { MAX, SUM, LSE, ENTROPY, EFFECTIVE, SINK, FACTS };

typedef struct explaining {
    const cli_show   *s;
    const show_layer *l;
    const region     *r;
    numbers          *n;
    double (*fact)[FACTS]; /* of each row */
    int    *code;          /* of each thread */
    int32_t width;
} explaining;

static void explain_some(void *arg, int32_t index)
{
    const explaining *x = arg;
    const show_layer *l = x->l;
    const int64_t     rows = x->r->rows, group = l->heads / l->kv_heads;
    for (int64_t at = index; at < x->s->heads * rows && !x->code[index]; at += x->width) {
        const int64_t n = at / rows, head = x->s->head[n];
        const int     first = at % rows == 0 && (n == 0 || x->s->head[n - 1] / group != head / group); /* of its key head */
        cli_row       row;
        x->code[index] = row_open(&row, &l->desc, 0, head, x->r->row + at % rows);
        if (!x->code[index]) {
            const double fact[FACTS] = {(float)row.max, row.sum, row.lse, row.entropy, row.effective, row.sink_weight};
            take_row(x->n, &row, x->r, at * x->r->columns, first);
            memcpy(x->fact[at], fact, sizeof fact);
        }
        row_close(&row);
    }
}

static json_t *list_facts(const explaining *x)
{
    static const char *const name[] = {"max", "sum", "lse", "entropy", "effective", "sink"};
    json_t                  *heads = json_array();
    for (int64_t h = 0; h < x->s->heads; h++) {
        json_t *rows = json_array();
        json_array_append_new(heads, rows);
        for (int64_t i = 0; i < x->r->rows; i++) {
            json_t *row = json_object();
            for (int n = 0; n < FACTS; n++) json_object_set_new(row, name[n], out_json_real(x->fact[h * x->r->rows + i][n]));
            json_array_append_new(rows, row);
        }
    }
    return heads;
}

static int explain_rows(const cli_show *s, const show_layer *l, const region *r, numbers *n)
{
    const attn_executor *executor = l->desc.executor;
    explaining           x = {s, l, r, n, calloc((size_t)(s->heads * r->rows), sizeof *x.fact), NULL, executor ? executor->width : 1};
    x.code = calloc((size_t)x.width, sizeof *x.code);
    int code = x.fact && x.code ? CLI_OK : out_fail(CLI_OUTPUT, "no memory for the page");
    if (!code && executor)
        executor->parallel_for(executor->context, x.width, explain_some, &x);
    else if (!code)
        explain_some(&x, 0);
    for (int32_t t = 0; t < x.width && !code; t++) code = x.code[t];
    if (!code) n->facts = list_facts(&x);
    free(x.fact), free(x.code);
    return code;
}

/* What a row has without its other keys: scores, as the kernels compute them, and who is hidden. */
static int survey_rows(const cli_show *s, const show_layer *l, const region *r, numbers *n)
{
    const attn_desc *d = &l->desc;
    int              code = show_values(s, l, ATTN_STAGE_SCALED, r->row, r->rows, r->column, r->columns, n->of[DOT]);
    if (!code) code = show_values(s, l, ATTN_STAGE_BIASED, r->row, r->rows, r->column, r->columns, n->of[SCORE]);
    if (!code && n->of[CAPPED]) code = show_values(s, l, ATTN_STAGE_CAPPED, r->row, r->rows, r->column, r->columns, n->of[CAPPED]);
    for (int64_t h = 0, at = 0; h < s->heads && !code; h++)
        for (int64_t i = r->row; i < r->row + r->rows; i++)
            for (int64_t j = r->column; j < r->column + r->columns; j++, at++) {
                n->of[DOT][at] = n->scale == 0 ? NAN : (float)(n->of[DOT][at] / n->scale);
                n->hidden[at] = (uint16_t)seen_reasons(d, 0, s->head[h], i, j);
                if (n->of[BIAS]) n->of[BIAS][at] = (float)seen_bias(d, 0, s->head[h], i, j);
            }
    return code;
}

static void set_floats(json_t *to, const char *name, const float *x, int64_t count)
{
    if (x) json_object_set_new(to, name, base64(x, (size_t)count * sizeof *x));
}

static int put_numbers(const cli_show *s, const show_layer *l, const region *r, json_t *layer, json_t *to)
{
    const attn_desc *d = &l->desc;
    const int64_t    count = s->heads * r->rows * r->columns;
    numbers          n = {.scale = d->scale_given ? d->scale : d->dim ? 1 / sqrt((double)d->dim) : 1};
    int              code = new_numbers(&n, l, r, count);
    if (!code) code = r->explained ? explain_rows(s, l, r, &n) : survey_rows(s, l, r, &n);
    for (int k = 0; k < NUMBERS && !code; k++) set_floats(to, number_name[k], n.of[k], k == SIZE ? l->kv_heads * r->columns : count);
    if (!code) json_object_set_new(to, "hidden", base64(n.hidden, (size_t)count * sizeof *n.hidden));
    if (!code && n.facts) json_object_set(to, "facts", n.facts);
    json_object_set_new(layer, "scale", json_real(n.scale));
    free_numbers(&n);
    return code;
}

static int put_region(const cli_show *s, const show_layer *l, const region *r, json_t *layer)
{
    const int64_t count = s->heads * r->rows * r->columns;
    json_t *to = json_pack("{s:I, s:I, s:I, s:I}", "row", (json_int_t)r->row, "rows", (json_int_t)r->rows, "column", (json_int_t)r->column,
                           "columns", (json_int_t)r->columns);
    float  *weight = calloc((size_t)count, sizeof *weight);
    json_object_set_new(layer, "region", to);
    int code = weight ? show_values(s, l, ATTN_STAGE_WEIGHT, r->row, r->rows, r->column, r->columns, weight)
                      : out_fail(CLI_OUTPUT, "no memory for the page");
    if (!code) set_floats(to, "weight", weight, count);
    if (!code && l->from) code = put_numbers(s, l, r, layer, to);
    free(weight);
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
