/* row.c: reads the table of shapes, expands its lists into rows, and says what is counted of a row.
 * SPDX-License-Identifier: MIT
 */
#include "bench.h"
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void table_wrong(const char *path, int line, const char *what)
{
    fprintf(stderr, "bench: %s:%d: %s\n", path, line, what);
    exit(2);
}

static int read_mask(const char *text, struct row *row)
{
    static const struct {
        const char *text;
        int         mask, per_head;
    } known[] = {{"full", MASK_FULL, 0},       {"causal", MASK_CAUSAL, 0},
                 {"padding", MASK_PADDING, 0}, {"padding+causal", MASK_PADDING_CAUSAL, 0},
                 {"allow:qk", MASK_ALLOW, 0},  {"allow:bhqk", MASK_ALLOW, 1},
                 {"bias:qk", MASK_BIAS, 0},    {"bias:bhqk", MASK_BIAS, 1}};
    row->window = row->per_head = 0;
    if (sscanf(text, "window:%" SCNd64, &row->window) == 1) return row->mask = MASK_WINDOW, row->window >= 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(text, known[i].text)) return row->mask = known[i].mask, row->per_head = known[i].per_head, 1;
    return 0;
}

static int read_dtype(const char *text)
{
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
        if (!strcmp(text, attn_dtype_name(dtype))) return dtype;
    return 0;
}

static const char *mask_text(const struct row *row, char *text, size_t bytes)
{
    static const char *const names[] = {"full", "causal", "window", "padding", "padding+causal", "allow", "bias"};
    if (row->mask == MASK_WINDOW)
        snprintf(text, bytes, "window%" PRId64, row->window);
    else
        snprintf(text, bytes, "%s%s", names[row->mask], row->mask < MASK_ALLOW ? "" : row->per_head ? "-bhqk" : "-qk");
    return text;
}

void row_rename(struct row *row)
{
    char mask[32];
    snprintf(row->name, sizeof row->name, "%s-%" PRId64 "x%" PRId64 ":%" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 "-%s%s-%s-t%d",
             row->group, row->batch, row->heads, row->kv_heads, row->queries, row->keys, row->dim, mask_text(row, mask, sizeof mask),
             row->layout ? "-bnhd" : "", attn_dtype_name(row->dtype), (int)row->threads);
}

struct lists {
    char masks[128], layouts[32], dtypes[32], threads[32];
};

/* Calls of strtok_r nest, one list inside another, over copies. */
static void expand(const char *path, int line, const struct row *base, const struct lists *lists, struct row **rows, int *count)
{
    struct lists masks = *lists;
    char        *m, *l, *d, *t;
    for (char *mask = strtok_r(masks.masks, ",", &m); mask; mask = strtok_r(NULL, ",", &m)) {
        struct row   row = *base;
        struct lists layouts = *lists;
        if (!read_mask(mask, &row)) table_wrong(path, line, "unknown mask");
        for (char *layout = strtok_r(layouts.layouts, ",", &l); layout; layout = strtok_r(NULL, ",", &l)) {
            struct lists dtypes = *lists;
            row.layout = !strcmp(layout, "bnhd");
            if (!row.layout && strcmp(layout, "bhnd") != 0) table_wrong(path, line, "unknown layout");
            for (char *dtype = strtok_r(dtypes.dtypes, ",", &d); dtype; dtype = strtok_r(NULL, ",", &d)) {
                struct lists threads = *lists;
                if (!(row.dtype = read_dtype(dtype))) table_wrong(path, line, "unknown dtype");
                for (char *number = strtok_r(threads.threads, ",", &t); number; number = strtok_r(NULL, ",", &t)) {
                    if ((row.threads = atoi(number)) < 1) table_wrong(path, line, "threads must be at least 1");
                    row_rename(&row);
                    if (!(*rows = realloc(*rows, (size_t)(*count + 1) * sizeof **rows))) table_wrong(path, line, "out of memory");
                    (*rows)[(*count)++] = row;
                }
            }
        }
    }
}

int bench_rows(const char *path, struct row **rows)
{
    FILE *file = fopen(path, "r");
    char  text[512];
    int   count = 0;
    *rows = NULL;
    if (!file) table_wrong(path, 0, "cannot be read");
    for (int line = 1; fgets(text, sizeof text, file); line++) {
        struct row   row = {0};
        struct lists lists;
        if (text[strspn(text, " \t\n")] == 0 || text[0] == '#') continue;
        int got = sscanf(text, "%15s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %127s %31s %31s %31s",
                         row.group, &row.batch, &row.heads, &row.kv_heads, &row.queries, &row.keys, &row.dim, lists.masks, lists.layouts,
                         lists.dtypes, lists.threads);
        if (got != 11) table_wrong(path, line, "a line has 11 columns");
        row.f32_too = strstr(lists.dtypes, "f32") != NULL;
        expand(path, line, &row, &lists, rows, &count);
    }
    fclose(file);
    return count;
}

int bench_matches(const char *name, const char *pattern)
{
    return strpbrk(pattern, "*?[") ? fnmatch(pattern, name, 0) == 0 : strstr(name, pattern) != NULL;
}

/* ---- what is counted -------------------------------------------------------------------------------------------------------------- */

static int pads(const struct row *row)
{
    return row->mask == MASK_PADDING || row->mask == MASK_PADDING_CAUSAL;
}

static int is_causal(const struct row *row)
{
    return row->mask == MASK_CAUSAL || row->mask == MASK_WINDOW || row->mask == MASK_PADDING_CAUSAL;
}

/* From half of the full length up to all of it, the lengths spread evenly over the batch in a scattered order. */
int64_t row_length(const struct row *row, int64_t b)
{
    return pads(row) ? row->keys - row->keys / 2 * (b * 7 % row->batch) / row->batch : row->keys;
}

int row_sees(const struct row *row, int64_t b, int64_t i, int64_t j)
{
    int64_t length = row_length(row, b);
    return j < length && (!pads(row) || i < length) && (!is_causal(row) || j <= i) && (row->mask != MASK_WINDOW || j > i - row->window);
}

double row_pairs(const struct row *row)
{
    double pairs = 0;
    for (int64_t b = 0; b < row->batch; b++) {
        int64_t length = row_length(row, b), queries = pads(row) ? length : row->queries;
        for (int64_t i = 0; i < queries; i++) {
            int64_t end = is_causal(row) ? i + 1 : length;
            pairs += (double)(row->mask == MASK_WINDOW && end > row->window ? row->window : end);
        }
    }
    return pairs * (double)row->heads;
}

double bench_flop(const struct row *row)
{
    return 4.0 * (double)row->dim * row_pairs(row);
}

double bench_kv_bytes(const struct row *row)
{
    return 2.0 * (double)(row->batch * row->kv_heads * row->keys * row->dim) * (double)attn_dtype_bytes(row->dtype);
}

int bench_is_cold(const struct row *row)
{
    return row->queries < 32 && row->keys >= 256;
}
