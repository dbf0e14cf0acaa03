/* demo.c: attn demo: a trained layer at work, checked against another system's values.
 * SPDX-License-Identifier: MIT
 */
#include "demo.h"

#include <math.h>
#include <stdlib.h>

typedef struct demo {
    const cli_options *options;
    demo_model         model;
    json_t            *json, *checks; /* NULL: text */
    int                failed;
    float             *weights, *output, *again, *x, *between; /* results; reordered x; q, v, y of a masked run */
} demo;

/* One claim that was put to the test. */
static void claim(demo *m, int good, const char *what, double largest)
{
    m->failed += !good;
    if (!m->json)
        printf("  %-5s %s%s%.2g\n", good ? "ok" : "WRONG", what, *what && what[strlen(what) - 1] != ' ' ? ": " : "", largest);
    else
        json_array_append_new(m->checks,
                              json_pack("{s:s, s:o, s:b}", "check", what, "largest_difference", out_json_real(largest), "ok", good));
}

static void heading(const demo *m, const char *words)
{
    if (!m->json) printf("\n%s\n", words);
}

/* ---- the layer -------------------------------------------------------------------------------------------------------------------- */

/* options may be NULL; weights, q, v, y too. */
static int run_layer(const demo *m, const float *x, const attn_desc *options, float *output, float *weights, float *v, float *y)
{
    const attn_layer_checkpoint *l = m->model.checkpoint;
    const int64_t                n = m->model.n, dim = l->value_dim;
    attn_layer_desc              d = attn_layer_desc_from(l);
    attn_desc                    o = options ? *options : attn_desc_new();
    attn_error                   e;
    d.batch = 1, d.queries = d.keys = n, d.options = &o;
    d.x = attn_layer_tokens(x, n, l->width);
    d.out = attn_layer_tokens_out(output, n, l->out_width);
    if (weights) o.weights = attn_out_dense(weights, ATTN_F32, l->heads, n, n);
    if (v) d.v = attn_out_dense(v, ATTN_F32, l->kv_heads, n, dim);
    if (y) d.y = attn_out_dense(y, ATTN_F32, l->heads, n, dim);
    return attn_layer_run(&d, &e) ? out_library(&e) : CLI_OK;
}

static cli_view view(const float *data, int64_t heads, int64_t rows, int64_t columns)
{
    cli_view v = {"", {.data = (void *)data, .dtype = IO_F32}, {1, heads, rows, columns}, {0, rows * columns, columns, 1}};
    return v;
}

static void compare(demo *m, const char *what, cli_view got, cli_view want)
{
    cli_difference d;
    compare_tolerance(ATTN_F32, &d.absolute, &d.relative);
    compare_arrays(&got, &want, &d, NULL, NULL);
    claim(m, !d.wrong, what, d.largest);
}

static int show_layer(demo *m)
{
    const demo_model            *model = &m->model;
    const attn_layer_checkpoint *l = model->checkpoint;
    const int64_t                n = model->n;
    char                         what[160];
    const int                    code = run_layer(m, model->hidden.data, NULL, m->output, m->weights, NULL, NULL);
    if (code) return code;
    heading(m, "A trained layer");
    if (!m->json) printf("  %s\n  %s\n  \"%s\"\n", model->source, l->description, model->sentence);
    snprintf(what, sizeof what, "weights against %s, largest difference", *model->computed_by ? model->computed_by : "the stored ones");
    compare(m, what, view(m->weights, l->heads, n, n), view(model->want_weights.data, l->heads, n, n));
    snprintf(what, sizeof what, "output against %s, largest difference", *model->computed_by ? model->computed_by : "the stored one");
    compare(m, what, view(m->output, 1, n, l->out_width), view(model->want_output.data, 1, n, l->out_width));
    return CLI_OK;
}

/* ---- one head --------------------------------------------------------------------------------------------------------------------- */

/* The `count` keys with the most weight, heaviest first. */
static void heaviest(const float *row, int64_t n, int count, int64_t *key)
{
    for (int k = 0; k < count; k++) {
        key[k] = -1;
        for (int64_t j = 0; j < n; j++) {
            int taken = 0;
            for (int p = 0; p < k; p++) taken |= key[p] == j;
            if (!taken && (key[k] < 0 || row[j] > row[key[k]])) key[k] = j;
        }
    }
}

static void show_head(demo *m, int64_t head)
{
    enum { KEYS = 3 };
    const demo_model *model = &m->model;
    const int64_t     n = model->n;
    const int         count = n < KEYS ? (int)n : KEYS;
    const float      *map = m->weights + head * n * n;
    char              words[80];
    json_t           *list = m->json ? json_array() : NULL;
    snprintf(words, sizeof words, "Head %lld: the three keys with the most weight", (long long)head);
    heading(m, words);
    for (int64_t i = 0; i < n; i++) {
        int64_t key[KEYS];
        json_t *keys = list ? json_array() : NULL;
        heaviest(map + i * n, n, count, key);
        if (!list) printf("  %2lld %-10s reads", (long long)i, model->token[i]);
        for (int k = 0; k < count; k++) {
            const double weight = map[i * n + key[k]];
            if (!list)
                printf(k + 1 < count ? "  %.3f %-10s" : "  %.3f %s", weight, model->token[key[k]]);
            else
                json_array_append_new(
                    keys, json_pack("{s:I, s:s, s:f}", "key", (json_int_t)key[k], "token", model->token[key[k]], "weight", weight));
        }
        if (!list)
            printf("\n");
        else
            json_array_append_new(list, json_pack("{s:I, s:s, s:o}", "query", (json_int_t)i, "token", model->token[i], "keys", keys));
    }
    if (m->json) {
        json_object_set_new(m->json, "head", json_integer(head));
        json_object_set_new(m->json, "top_keys", list);
        return;
    }
    snprintf(words, sizeof words, "Head %lld: row = query, column = key", (long long)head);
    heading(m, words);
    const cli_maps one = {
        .cell = map, .panels = 1, .rows = n, .columns = n, .row_label = model->token, .column_label = model->token, .named = 1};
    picture_terminal(&one, 0, picture_colours(0));
    printf("  Weights show where values were read, not why a model decided.\n");
}

static int save_picture(demo *m)
{
    const demo_model *model = &m->model;
    const char       *path = m->options->png ? m->options->png : "attn-demo.png";
    cli_image         image = {0};
    char              title[160], said[160];
    snprintf(title, sizeof title, "%.*s, layer %lld, %lld heads", (int)strcspn(model->source, ","), model->source, (long long)model->layer,
             (long long)model->checkpoint->heads);
    snprintf(said, sizeof said, "\"%.140s\"", model->sentence);
    char **heads = labels_numbers("head %lld", model->checkpoint->heads, 0, model->checkpoint->heads);
    if (!heads) return out_fail(CLI_OUTPUT, "no memory for the picture");
    const cli_maps maps = {.cell = m->weights,
                           .panels = model->checkpoint->heads,
                           .rows = model->n,
                           .columns = model->n,
                           .row_label = model->token,
                           .column_label = model->token,
                           .panel_label = heads,
                           .title = title,
                           .said = said,
                           .under = "row: the query token; column: the key token it reads from; every row sums to one",
                           .last = "Weights show where values were read, not why a model decided."};
    const int      drawn = picture_draw(&image, &maps);
    labels_free(heads, maps.panels);
    if (!drawn) return out_fail(CLI_OUTPUT, "no memory for the picture");
    const int code = png_write(path, &image);
    free(image.rgb);
    if (code) return code;
    if (m->json)
        json_object_set_new(m->json, "picture", json_string(path));
    else
        printf("  All %lld heads are drawn in %s\n", (long long)model->checkpoint->heads, path);
    return CLI_OK;
}

/* ---- properties ------------------------------------------------------------------------------------------------------------------- */

static int show_reordered(demo *m)
{
    const attn_layer_checkpoint *l = m->model.checkpoint;
    const int64_t                n = m->model.n;
    const float                 *x = m->model.hidden.data;
    for (int64_t i = 0; i < n; i++) memcpy(m->x + i * l->width, x + (n - 1 - i) * l->width, (size_t)l->width * sizeof *x);
    const int code = run_layer(m, m->x, NULL, m->again, NULL, NULL, NULL);
    if (code) return code;
    cli_view back = view(m->again + (n - 1) * l->out_width, 1, n, l->out_width);
    back.stride[AXIS_S] = -l->out_width;
    heading(m, "Without positions and masks: tokens reordered in, the same results reordered out");
    compare(m, "tokens from last to first, largest difference", back, view(m->output, 1, n, l->out_width));
    return CLI_OK;
}

static int show_causal(demo *m)
{
    const int64_t n = m->model.n, heads = m->model.checkpoint->heads;
    attn_desc     o = attn_desc_new();
    double        later = 0, off_one = 0, absolute, relative;
    o.causal = 1;
    float    *weights = m->again + n * m->model.checkpoint->out_width; /* room behind the output */
    const int code = run_layer(m, m->model.hidden.data, &o, m->again, weights, NULL, NULL);
    if (code) return code;
    for (int64_t row = 0; row < heads * n; row++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) {
            sum += weights[row * n + j];
            if (j > row % n) later = fmax(later, fabsf(weights[row * n + j]));
        }
        off_one = fmax(off_one, fabs(sum - 1));
    }
    heading(m, "Masks: hidden before the softmax, what remains adds up to one");
    compare_tolerance(ATTN_F32, &absolute, &relative);
    claim(m, later == 0, "causal, largest weight of a later key", later);
    claim(m, off_one <= absolute + relative, "causal, largest distance of a row's sum from 1", off_one);
    return CLI_OK;
}

static int show_first_key(demo *m)
{
    const attn_layer_checkpoint *l = m->model.checkpoint;
    const int64_t                n = m->model.n, dim = l->value_dim;
    attn_desc                    o = attn_desc_new();
    float                       *v = m->between, *y = v + l->kv_heads * n * dim;
    uint8_t                     *first = calloc((size_t)n, 1);
    if (!first) return out_fail(CLI_OUTPUT, "no memory for a mask");
    first[0] = 1;
    o.allow = (attn_in){first, {0, 0, 0, 1}, 0, ATTN_BOOL, 0};
    const int code = run_layer(m, m->model.hidden.data, &o, m->again, NULL, v, y);
    free(first);
    if (code) return code;
    double largest = 0;
    for (int64_t h = 0; h < l->heads; h++)
        for (int64_t i = 0; i < n * dim; i++)
            largest = fmax(largest, fabsf(y[h * n * dim + i] - v[h / (l->heads / l->kv_heads) * n * dim + i % dim]));
    claim(m, largest == 0, "only the first key permitted: every row is that key's value, largest difference", largest);
    return CLI_OK;
}

static int show_growth(demo *m)
{
    static const int64_t tokens[] = {100, 200}, entries[] = {10000, 40000};
    json_t              *list = m->json ? json_array() : NULL;
    heading(m, "Twice the tokens, four times the scores, the same memory");
    for (int i = 0; i < 2; i++) {
        attn_desc  d = attn_desc_new();
        attn_error e;
        size_t     bytes;
        char       text[3][32];
        d.batch = d.heads = d.kv_heads = 1, d.queries = d.keys = tokens[i], d.dim = d.value_dim = 32;
        d.q = d.k = d.v = attn_in_dense(NULL, ATTN_F32, 1, tokens[i], 32);
        d.out = attn_out_dense(NULL, ATTN_F32, 1, tokens[i], 32);
        if (attn_work_bytes(&d, &bytes, &e)) return json_decref(list), out_library(&e);
        const int good = d.queries * d.keys == entries[i];
        m->failed += !good;
        out_thousands(text[0], d.queries * d.keys), out_thousands(text[1], 4 * d.queries * d.keys), out_thousands(text[2], (int64_t)bytes);
        if (!list)
            printf("  %lld tokens: %s scores per head, %s bytes if they were kept; kept here: %s bytes for any length\n",
                   (long long)tokens[i], text[0], text[1], text[2]);
        else
            json_array_append_new(list, json_pack("{s:I, s:I, s:I}", "tokens", (json_int_t)tokens[i], "dense_entries_per_head",
                                                  (json_int_t)(d.queries * d.keys), "work_bytes", (json_int_t)bytes));
    }
    if (list) json_object_set_new(m->json, "growth", list);
    return CLI_OK;
}

/* ---- all ------------------------------------------------------------------------------------------------------------------------- */

static int make_room(demo *m)
{
    const attn_layer_checkpoint *l = m->model.checkpoint;
    const size_t                 n = (size_t)m->model.n, maps = (size_t)l->heads * n * n, out = n * (size_t)l->out_width;
    m->weights = calloc(maps, sizeof(float));
    m->output = calloc(out, sizeof(float));
    m->again = calloc(out + maps, sizeof(float));
    m->x = calloc(n * (size_t)l->width, sizeof(float));
    m->between = calloc(n * (size_t)((l->kv_heads + l->heads) * l->value_dim), sizeof(float));
    return m->weights && m->output && m->again && m->x && m->between ? CLI_OK : out_fail(CLI_OUTPUT, "no memory for the results");
}

static int show(demo *m)
{
    int code = worked_run(m->json, &m->failed);
    if (!code) code = demo_open(&m->model, m->options->data);
    if (code) return code;
    const int64_t heads = m->model.checkpoint->heads, head = m->options->head.given ? m->options->head.value : m->model.head;
    if (head < 0 || head >= heads)
        return out_fail(CLI_USAGE, "--head %lld: the layer has heads 0 to %lld", (long long)head, (long long)heads - 1);
    code = make_room(m);
    if (!code) code = show_layer(m);
    if (!code) show_head(m, head);
    if (!code) code = save_picture(m);
    if (!code) code = show_reordered(m);
    if (!code) code = show_causal(m);
    if (!code) code = show_first_key(m);
    return code ? code : show_growth(m);
}

int demo_main(const cli_options *o)
{
    demo m = {.options = o};
    if (o->json) m.json = out_json_open("demo"), m.checks = json_array();
    int code = show(&m);
    if (m.json && !code) {
        json_object_set_new(m.json, "checks", m.checks);
        json_object_set_new(m.json, "ok", json_boolean(!m.failed));
        json_object_set_new(m.json, "note", json_string("weights show where values were read, not why a model decided"));
        code = out_json(m.json);
    } else if (m.json) {
        json_decref(m.checks), json_decref(m.json);
    } else if (!code)
        printf("\n%s\n", m.failed ? "NOT everything came out as it should." : "Everything came out as it should.");
    free(m.weights), free(m.output), free(m.again), free(m.x), free(m.between);
    demo_close(&m.model);
    return code ? code : m.failed ? CLI_CHECK : CLI_OK;
}
