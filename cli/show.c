/* show.c: attn show: heat maps of attention weights in the terminal, as PNG, as SVG; show_page.c writes the page.
 * SPDX-License-Identifier: MIT
 */
#include "show.h"

#include <stdlib.h>

static const char *const sums = "row: the query; column: the key it reads from; every row that sees a key sums to one";
static const char *const warning = "Weights show where values were read, not why a model decided.";

/* ---- words ------------------------------------------------------------------------------------------------------------------------ */

static void add(char *to, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add(char *to, size_t room, const char *format, ...)
{
    const size_t used = strlen(to);
    va_list      arguments;
    va_start(arguments, format);
    vsnprintf(to + used, room - used, format, arguments);
    va_end(arguments);
}

/* What kind of attention it is, as far as the inputs say it. */
static void describe(cli_show *s)
{
    const cli_options *o = s->options;
    const show_layer  *l = &s->layer[0];
    snprintf(s->title, sizeof s->title, "attention weights: ");
    for (int64_t n = 0; n < s->layers && n < 4; n++) add(s->title, sizeof s->title, "%s%.60s", n ? " | " : "", s->layer[n].name);
    if (s->layers > 4) add(s->title, sizeof s->title, " | .. (%lld)", (long long)s->layers);
    const char *kind = o->kv_input ? "cross-attention: " : l->from && l->from == &l->layer.call ? "self-attention: " : "";
    add(s->said, sizeof s->said, "%s%lld queries over %lld keys", kind, (long long)l->queries, (long long)l->keys);
    if (!*kind && l->queries != l->keys) add(s->said, sizeof s->said, " (cross-attention, or queries over a cache)");
    add(s->said, sizeof s->said, ", %lld head%s", (long long)l->heads, l->heads == 1 ? "" : "s");
    if (l->kv_heads != l->heads)
        add(s->said, sizeof s->said, " in groups of %lld that share a key head", (long long)(l->heads / l->kv_heads));
    if (o->causal) add(s->said, sizeof s->said, ", causal");
    if (o->window.given) add(s->said, sizeof s->said, ", window %lld,%lld", (long long)o->window.first, (long long)o->window.second);
    if (l->batch > 1) add(s->said, sizeof s->said, ", batch entry %lld of %lld", (long long)o->entry.value, (long long)l->batch);
}

static void describe_cells(cli_show *s, int64_t rows, int64_t columns)
{
    const show_layer *l = &s->layer[0];
    *s->sampled = 0;
    if (rows == l->queries && columns == l->keys) return;
    snprintf(s->sampled, sizeof s->sampled, "down-sampled: a cell is the %s of about %lld x %lld weights",
             s->options->largest ? "largest" : "mean", (long long)(l->queries / rows), (long long)(l->keys / columns));
}

/* Labels of an axis of cells: tokens where each cell is one place, else numbers. */
static char **name_axis(char **token, int64_t places, int64_t cells)
{
    char **label = labels_numbers("%lld", cells, 0, places);
    for (int64_t i = 0; label && token && places == cells && i < cells; i++) {
        char *copy = strdup(token[i]);
        if (!copy) return labels_free(label, cells), NULL;
        free(label[i]);
        label[i] = copy;
    }
    return label;
}

char **show_query_tokens(const cli_show *s)
{
    const show_layer *l = &s->layer[0];
    return s->query_token ? s->query_token : l->queries == l->keys && !s->options->kv_input ? s->key_token : NULL;
}

/* ---- maps ------------------------------------------------------------------------------------------------------------------------- */

/* All that is drawn, at most `most` cells a side: heads from the top, layers side by side. close_maps() in any case. */
typedef struct drawing {
    cli_maps maps;
    float   *cell;
} drawing;

static void close_maps(drawing *d)
{
    labels_free(d->maps.row_label, d->maps.rows), labels_free(d->maps.column_label, d->maps.columns);
    labels_free(d->maps.panel_label, d->maps.panels);
    free(d->cell);
}

/* The end of a long name: files of layers differ there. */
static const char *ending(const char *name)
{
    enum { SHOWN = 24 };
    const size_t length = strlen(name);
    if (length > SHOWN) name += length - SHOWN;
    while ((*name & 0xC0) == 0x80) name++; /* not within a character */
    return name;
}

static int name_panels(const cli_show *s, char **label)
{
    for (int64_t n = 0; n < s->heads * s->layers; n++) {
        const show_layer *l = &s->layer[n % s->layers];
        const int64_t     h = s->head[n / s->layers];
        char              text[200] = "";
        if (s->layers > 1) add(text, sizeof text, "%s, ", ending(l->name));
        add(text, sizeof text, "head %lld", (long long)h);
        if (l->kv_heads != l->heads) add(text, sizeof text, " (key head %lld)", (long long)(h / (l->heads / l->kv_heads)));
        free(label[n]);
        if (!(label[n] = strdup(text))) return out_fail(CLI_OUTPUT, "no memory for the picture");
    }
    return CLI_OK;
}

static int open_maps(cli_show *s, drawing *d, int64_t most_rows, int64_t most_columns)
{
    const show_layer *l = &s->layer[0];
    const int64_t     rows = l->queries < most_rows ? l->queries : most_rows, columns = l->keys < most_columns ? l->keys : most_columns;
    const int64_t     panels = s->heads * s->layers, size = rows * columns;
    memset(d, 0, sizeof *d);
    describe_cells(s, rows, columns);
    d->maps = (cli_maps){.panels = panels,
                         .rows = rows,
                         .columns = columns,
                         .across = s->layers > 1 ? s->layers : 0,
                         .title = s->title,
                         .said = s->said,
                         .under = *s->sampled                     ? s->sampled
                                  : l->from && !l->desc.sink.data ? sums
                                                                  : "row: the query; column: the key it reads from",
                         .last = warning,
                         .log = s->options->log};
    d->maps.named = show_query_tokens(s) && rows == l->queries;
    d->cell = calloc((size_t)(panels * size) + 1, sizeof *d->cell);
    float *one = calloc((size_t)(s->heads * size) + 1, sizeof *one);
    d->maps.cell = d->cell;
    d->maps.row_label = name_axis(show_query_tokens(s), l->queries, rows), d->maps.column_label = name_axis(s->key_token, l->keys, columns);
    d->maps.panel_label = labels_numbers("%lld", panels, 0, panels);
    int code = one && d->cell && d->maps.row_label && d->maps.column_label && d->maps.panel_label
                   ? CLI_OK
                   : out_fail(CLI_OUTPUT, "no memory for the picture");
    if (!code) code = name_panels(s, d->maps.panel_label);
    for (int64_t n = 0; n < s->layers && !code; n++) {
        code = show_map(s, &s->layer[n], rows, columns, s->options->largest ? NULL : one, s->options->largest ? one : NULL);
        for (int64_t h = 0; h < s->heads && !code; h++)
            memcpy(d->cell + (h * s->layers + n) * size, one + h * size, (size_t)size * sizeof *one);
    }
    free(one);
    return code;
}

/* ---- where they go ---------------------------------------------------------------------------------------------------------------- */

static int draw_png(cli_show *s, const char *path, int64_t most)
{
    drawing   d;
    cli_image image = {0};
    int       code = open_maps(s, &d, most, most);
    if (!code) code = picture_draw(&image, &d.maps) ? png_write(path, &image) : out_fail(CLI_OUTPUT, "no memory for the picture");
    free(image.rgb);
    close_maps(&d);
    return code;
}

/* A shape for each cell: with as many as pixels can have, no viewer would be pleased. */
static int draw_svg(cli_show *s, const char *path, int64_t most)
{
    enum { SHAPES = 60000 };
    drawing d;
    while (most > 16 && most * most * s->heads * s->layers > SHAPES) most--;
    int code = open_maps(s, &d, most, most);
    if (!code) code = picture_svg(path, &d.maps);
    close_maps(&d);
    return code;
}

static int print_maps(cli_show *s)
{
    const int64_t wide = picture_columns() - 17;
    drawing       d;
    if (s->heads > 1)
        out_note("head %lld of %lld; --head N chooses, --png, --svg and --html have all", (long long)s->head[0], (long long)s->heads);
    s->heads = 1;
    const int code = open_maps(s, &d, wide < 60 ? wide : 60, wide);
    if (!code) printf("%s\n%s\n", s->title, s->said);
    if (!code && *s->sampled) printf("%s\n", s->sampled);
    for (int64_t p = 0; p < d.maps.panels && !code; p++) {
        printf("\n%s\n", d.maps.panel_label[p]);
        picture_terminal(&d.maps, p, picture_colours(s->options->colour));
    }
    if (!code) printf("%s\n", warning);
    close_maps(&d);
    return code;
}

static int print_json(cli_show *s)
{
    drawing   d;
    const int code = open_maps(s, &d, 128, 128);
    json_t   *result = out_json_open("show"), *list = json_array();
    for (int64_t p = 0; p < d.maps.panels && !code; p++) {
        const int64_t shape[2] = {d.maps.rows, d.maps.columns};
        io_array      a = {
                 .data = d.cell + p * shape[0] * shape[1], .shape = {shape[0], shape[1]}, .stride = {shape[1], 1}, .dtype = IO_F32, .rank = 2};
        json_array_append_new(list, json_pack("{s:s*, s:I, s:o}", "layer", s->layer[p % s->layers].name, "head",
                                              (json_int_t)s->head[p / s->layers], "cells", out_json_array(&a)));
    }
    json_object_set_new(result, "said", json_string(s->said));
    json_object_set_new(result, "queries", json_integer(s->layer[0].queries));
    json_object_set_new(result, "keys", json_integer(s->layer[0].keys));
    json_object_set_new(result, "sampled", *s->sampled ? json_string(s->sampled) : json_null());
    json_object_set_new(result, "maps", list);
    close_maps(&d);
    if (!code) return out_json(result);
    json_decref(result);
    return code;
}

/* Options that nothing here would use. */
static int check_options(const cli_options *o)
{
    const int file = o->png || o->svg || o->html;
    if ((o->region.given || o->limit.given) && !o->html) return out_fail(CLI_USAGE, "--region and --limit go with --html");
    if (o->colour && (file || o->json)) return out_fail(CLI_USAGE, "--colour is for the terminal");
    if (o->json && file) return out_fail(CLI_USAGE, "--json goes to stdout, without --png, --svg and --html");
    if (o->json && o->log) return out_fail(CLI_USAGE, "--log is for colours, of which --json has none");
    return CLI_OK;
}

int show_files(cli_show *s)
{
    const cli_options *o = s->options;
    const int64_t      most = s->heads * s->layers == 1 ? 300 : 150; /* cells a side */
    int                code = CLI_OK;
    describe(s);
    if (o->png) code = draw_png(s, o->png, most);
    if (!code && o->svg) code = draw_svg(s, o->svg, most);
    if (!code && o->html) code = show_page(s, o->html);
    return code;
}

int show_main(const cli_options *o)
{
    cli_show s;
    int      code = check_options(o);
    if (code) return code;
    code = show_open(&s, o);
    if (!code) code = show_files(&s);
    if (!code && o->json)
        code = print_json(&s);
    else if (!code && !o->png && !o->svg && !o->html)
        code = print_maps(&s);
    show_close(&s);
    return code;
}
