/* mask.c: attn mask: who sees whom, for any options and files: opening, and drawing.
 * SPDX-License-Identifier: MIT
 */
#include "mask.h"

#include <stdlib.h>

/* ---- sizes ------------------------------------------------------------------------------------------------------------------------ */

static int settle(const char *name, const cli_count *said, int64_t known, int64_t otherwise, int64_t *to)
{
    if (said->given && known > 1 && known != said->value)
        return out_fail(CLI_FIT, "--%s %lld: files and lists have %lld", name, (long long)said->value, (long long)known);
    *to = said->given ? said->value : known >= 0 ? known : otherwise;
    return CLI_OK;
}

/* The sizes (batch, head, query, key) of the options' files; -1 where none says. */
static int sizes_of_files(const cli_options *o, const io_array *given, int64_t size[4])
{
    const char *const path[] = {o->allow, o->hide, o->bias};
    for (int n = 0; n < 4; n++) size[n] = -1;
    for (int f = given ? -1 : 0; f < 3; f++) {
        io_array        a = {0};
        const io_array *from = f < 0 ? given : &a;
        if (f >= 0 && !path[f]) continue;
        const int code = f < 0 ? CLI_OK : literal_read(path[f], &a);
        if (code) return code;
        for (int n = 0; n < from->rank && from->rank <= 4; n++) {
            const int axis = n + 4 - from->rank;
            if (size[axis] < 0 || (size[axis] == 1 && from->shape[n] != 1)) size[axis] = from->shape[n];
        }
        io_free(&a);
    }
    return CLI_OK;
}

static int64_t longest_list(const cli_options *o)
{
    const cli_list *const lists[] = {&o->query_offset, &o->query_count, &o->key_count, &o->key_start};
    int64_t               longest = -1;
    for (int n = 0; n < 4; n++)
        if (lists[n]->count > 1 && lists[n]->count > longest) longest = lists[n]->count;
    return longest;
}

int mask_open(cli_mask *m, const cli_options *o, io_array *given)
{
    cli_call  *c = &m->call;
    attn_desc *d = &c->desc;
    int64_t    size[4];
    size_t     bytes;
    attn_error e;
    memset(m, 0, sizeof *m);
    c->options = o;
    *d = attn_desc_new();
    int           code = sizes_of_files(o, given, size);
    const int64_t entries = longest_list(o);
    if (!code) code = settle("batch", &o->batch, size[0] > entries ? size[0] : entries, 1, &d->batch);
    if (!code) code = settle("heads", &o->heads, size[1], 1, &d->heads);
    if (!code) code = settle("queries", &o->queries, size[2], -1, &d->queries);
    if (!code) code = settle("keys", &o->keys, size[3], d->queries, &d->keys);
    if (code) return code;
    if (d->queries < 0) {
        out_fail(CLI_USAGE, "how many queries and keys there are is not said");
        out_fix("--queries N and --keys M, or a file by --allow, --hide or --bias");
        return CLI_USAGE;
    }
    d->kv_heads = d->heads, d->dim = d->value_dim = 1;
    d->q = d->k = d->v = (attn_in){NULL, {0}, 0, ATTN_F32, 0};
    d->out = (attn_out){NULL, {d->heads * d->queries, d->queries, 1, 0}, 0, ATTN_F32, 0};
    if (given) c->allow = *given, memset(given, 0, sizeof *given);
    if (given) code = operator_allow(c, o->operand[0], o->operand[1]);
    if (!code) code = operator_apply(c);
    if (!code && attn_work_bytes(d, &bytes, &e)) code = call_refused(c, &e); /* which also checks all that matters here */
    const int lists = d->query_offset || d->query_count || d->key_count || d->key_start;
    m->batches = lists || d->allow.stride[0] || d->bias.stride[0] ? d->batch : d->batch < 1 ? 0 : 1;
    m->heads = d->allow.stride[1] || d->bias.stride[1] ? d->heads : d->heads < 1 ? 0 : 1;
    /* Every row is looked at. */
    if (!code && (double)m->batches * (double)m->heads * (double)d->queries > MASK_ROWS)
        code = out_fail(CLI_UNSUPPORTED,
                        "%.0f rows, of %lld batch entries, %lld heads and %lld queries, are more than the %d that are handled",
                        (double)m->batches * (double)m->heads * (double)d->queries, (long long)m->batches, (long long)m->heads,
                        (long long)d->queries, MASK_ROWS);
    return code;
}

/* ---- drawing ---------------------------------------------------------------------------------------------------------------------- */

/* One letter per rule that hides, in the order of SEEN_*. */
static const char letter[] = "#qslcwwmb";

static int draw_places(const attn_desc *d, int64_t b, int64_t h)
{
    int64_t count[SEEN_REASONS] = {0};
    printf("batch entry %lld, head %lld: %lld queries (rows) over %lld keys\n", (long long)b, (long long)h, (long long)d->queries,
           (long long)d->keys);
    printf("%9s", "");
    for (int64_t j = 0; j < d->keys; j++) printf("%lld", (long long)(j % 10));
    printf("\n");
    for (int64_t i = 0; i < d->queries; i++) {
        int64_t seen = 0;
        printf("%8lld ", (long long)i);
        for (int64_t j = 0; j < d->keys; j++) {
            const int why = seen_reason(d, b, h, i, j);
            count[why]++;
            seen += why == SEEN;
            putchar(letter[why]);
        }
        printf("  %lld\n", (long long)seen);
    }
    printf("%9s# seen: %lld of %lld places; at the right, how many keys a query sees\n", "", (long long)count[SEEN],
           (long long)(d->queries * d->keys));
    for (int why = 1; why < SEEN_REASONS; why++)
        if (count[why]) printf("%9s%c hidden by %s: %lld\n", "", letter[why], seen_word(why), (long long)count[why]);
    return CLI_OK;
}

/* The part of each cell of rows x columns that is seen. Cell c of n places has those from floor(c n / cells) on. Places are taken by the row, so
 * that only files cost time for each place. */
static void count_cells(const attn_desc *d, int64_t b, int64_t h, int64_t rows, int64_t columns, float *cell)
{
    const int files = d->allow.data || d->bias.data;
    for (int64_t row = 0; row < rows; row++) {
        float        *to = cell + row * columns;
        const int64_t top = row * d->queries / rows, bottom = (row + 1) * d->queries / rows;
        for (int64_t i = top; i < bottom; i++) {
            int64_t first, end;
            seen_range(d, b, i, &first, &end);
            for (int64_t column = 0; column < columns; column++) {
                const int64_t from = column * d->keys / columns, till = (column + 1) * d->keys / columns;
                const int64_t low = first > from ? first : from, high = end < till ? end : till;
                if (low < high && !files) to[column] += (float)(high - low);
                for (int64_t j = low; j < high && files; j++) to[column] += seen_reason(d, b, h, i, j) == SEEN;
            }
        }
        for (int64_t column = 0; column < columns; column++)
            to[column] /= (float)((bottom - top) * ((column + 1) * d->keys / columns - column * d->keys / columns));
    }
}

static int draw_cells(const cli_mask *m, int64_t b, int64_t h)
{
    const cli_options *o = m->call.options;
    const attn_desc   *d = &m->call.desc;
    const int          file = o->png || o->svg;
    const int64_t      most = file ? 300 : (picture_columns() - 17) / 2 < 60 ? (picture_columns() - 17) / 2 : 60;
    const int64_t      rows = d->queries < most ? d->queries : most, columns = d->keys < most ? d->keys : most;
    char               title[160], said[160];
    snprintf(title, sizeof title, "who sees whom: batch entry %lld, head %lld", (long long)b, (long long)h);
    snprintf(said, sizeof said, "%lld queries, %lld keys%s", (long long)d->queries, (long long)d->keys,
             rows < d->queries || columns < d->keys ? "; down-sampled: a cell is the part of its places that is seen" : "");
    float    *cell = calloc((size_t)(rows * columns) + 1, sizeof *cell);
    char    **row = labels_numbers("%lld", rows, 0, d->queries), **column = labels_numbers("%lld", columns, 0, d->keys);
    char     *panel = "dark: seen";
    cli_maps  maps = {.cell = cell,
                      .panels = 1,
                      .rows = rows,
                      .columns = columns,
                      .row_label = row,
                      .column_label = column,
                      .panel_label = &panel,
                      .title = title,
                      .said = said,
                      .under = "row: the query; column: the key",
                      .last = "",
                      .top = 1};
    cli_image image = {0};
    int       code = cell && row && column ? CLI_OK : out_fail(CLI_OUTPUT, "no memory for the picture");
    if (!code) count_cells(d, b, h, rows, columns, cell);
    if (!code && !file) printf("%s; %s\n", title, said), picture_terminal(&maps, 0, picture_colours(0));
    if (!code && o->png) code = picture_draw(&image, &maps) ? png_write(o->png, &image) : out_fail(CLI_OUTPUT, "no memory for the picture");
    if (!code && o->svg) code = picture_svg(o->svg, &maps);
    free(image.rgb);
    free(cell);
    labels_free(row, rows), labels_free(column, columns);
    return code;
}

/* Keys per query, for programs; a row's places are one stretch unless a file makes holes. */
static int print_rows(const attn_desc *d, int64_t b, int64_t h)
{
    json_t *result = out_json_open("mask"), *rows = json_array();
    for (int64_t i = 0; i < d->queries; i++) {
        int64_t first, end, seen = 0, low = -1, high = -1;
        seen_range(d, b, i, &first, &end);
        if (!d->allow.data && !d->bias.data && first < end) low = first, high = end - 1, seen = end - first;
        for (int64_t j = first; j < end && (d->allow.data || d->bias.data); j++)
            if (seen_reason(d, b, h, i, j) == SEEN) low = low < 0 ? j : low, high = j, seen++;
        json_array_append_new(rows, json_pack("[I, I, I]", (json_int_t)seen, (json_int_t)low, (json_int_t)high));
    }
    json_object_set_new(result, "action", json_string("show"));
    json_object_set_new(result, "entry", json_integer(b));
    json_object_set_new(result, "head", json_integer(h));
    json_object_set_new(result, "queries", json_integer(d->queries));
    json_object_set_new(result, "keys", json_integer(d->keys));
    json_object_set_new(result, "seen_first_last", rows);
    return out_json(result);
}

static int mask_show(const cli_mask *m)
{
    const cli_options *o = m->call.options;
    const attn_desc   *d = &m->call.desc;
    const int64_t      b = o->entry.value, h = o->head.value;
    if (out_index("entry", b, d->batch) || out_index("head", h, d->heads)) return CLI_USAGE;
    if ((m->batches > 1 && !o->entry.given) || (m->heads > 1 && !o->head.given))
        out_note("%lld batch entries and %lld heads may differ; --entry and --head choose which is drawn", (long long)m->batches,
                 (long long)m->heads);
    if (o->json) return print_rows(d, b, h);
    const int64_t wide = picture_columns() - 14; /* beside the numbers of a row */
    if (o->png || o->svg || d->keys > (wide < 100 ? wide : 100) || d->queries > 200) return draw_cells(m, b, h);
    return draw_places(d, b, h);
}

int mask_main(const cli_options *o)
{
    const char *word = o->operands ? o->operand[0] : "";
    const int   show = strcmp(word, "show") == 0, lint = strcmp(word, "lint") == 0;
    if (strcmp(word, "convert") == 0) return mask_convert(o);
    if (!show && !lint) {
        out_fail(CLI_USAGE, *word ? "%s is no action" : "%san action is missing", word);
        out_fix("one of show, lint, convert");
        return CLI_USAGE;
    }
    if (o->operands > 1) {
        out_fail(CLI_USAGE, "%s takes no file without an option that says what it means, %s given", word, o->operand[1]);
        out_fix("--allow %s (true = may be seen), --hide %s (true = hidden) or --bias %s (added to the scores)", o->operand[1],
                o->operand[1], o->operand[1]);
        return CLI_USAGE;
    }
    if (o->from || o->to || o->output) return out_fail(CLI_USAGE, "--from, --to and --output belong to attn mask convert");
    if (lint && (o->png || o->svg || o->entry.given || o->head.given))
        return out_fail(CLI_USAGE, "--png, --svg, --entry and --head belong to attn mask show");
    if (o->json && (o->png || o->svg)) return out_fail(CLI_USAGE, "--json goes to stdout, without --png and --svg");
    cli_mask m;
    int      code = mask_open(&m, o, NULL);
    if (!code) code = show ? mask_show(&m) : mask_lint(&m);
    call_close(&m.call);
    return code;
}
