/* mask_form.c: finds the options that say what a mask says: causal, a window, lengths.
 * SPDX-License-Identifier: MIT
 */
#include "mask.h"

#include <math.h>
#include <stdlib.h>

typedef struct extent {
    int64_t first, end; /* of the keys that a query sees; both 0 when there is none */
} extent;

/* The extents of all rows into row[], what can be counted into *f; f->fits only if no row has a hole. */
static void scan(mask_form *f, const attn_in *in, int64_t at, int64_t queries, int64_t keys, int inverse, extent *row)
{
    const io_array a = {.data = (void *)in->data, .dtype = in->dtype};
    f->fits = 1;
    f->before = f->after = keys;
    for (int64_t i = 0; i < queries; i++) {
        int64_t seen = 0;
        row[i] = (extent){0, 0};
        for (int64_t j = 0; j < keys; j++) {
            const double x = io_get(&a, at + i * in->stride[2] + j * in->stride[3]);
            if ((in->dtype == ATTN_BOOL ? x == 0 : x == -INFINITY) != inverse) continue;
            if (!seen++) row[i].first = j;
            row[i].end = j + 1;
            f->diagonal += i == j;
        }
        f->seen += seen;
        f->empty_rows += !seen;
        f->fits = f->fits && seen == row[i].end - row[i].first;
        if (seen && row[i].first < f->before) f->before = row[i].first;
        if (seen && keys - row[i].end < f->after) f->after = keys - row[i].end;
    }
    if (!f->seen) f->before = f->after = 0, f->fits = 0;
}

static int64_t clip(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Is every row the band between key_start and key_end? Its bounds are read off the first row that shows them. */
static int is_band(mask_form *f, const extent *row, int64_t queries)
{
    f->has_left = f->has_right = 0;
    for (int64_t i = 0; i < queries; i++) {
        if (row[i].first == row[i].end) continue;
        if (!f->has_left && row[i].first > f->key_start) f->has_left = 1, f->left = row[i].first - i;
        if (!f->has_right && row[i].end < f->key_end) f->has_right = 1, f->right = row[i].end - 1 - i;
    }
    for (int64_t i = 0; i < queries; i++) {
        const int64_t first = f->has_left ? clip(i + f->left, f->key_start, f->key_end) : f->key_start;
        int64_t       end = f->has_right ? clip(i + f->right + 1, f->key_start, f->key_end) : f->key_end;
        if (end < first) end = first;
        if (first == end ? row[i].first != row[i].end : row[i].first != first || row[i].end != end) return 0;
    }
    return 1;
}

/* The same keys in every row: padding, and no diagonal. */
static int is_padding(mask_form *f, const extent *row, int64_t queries, int64_t keys)
{
    for (int64_t i = 0; i < queries; i++)
        if (row[i].first != row[0].first || row[i].end != row[0].end) return 0;
    f->key_start = f->before, f->key_end = keys - f->after;
    return 1;
}

int mask_form_find(mask_form *f, const attn_in *in, int64_t at, int64_t queries, int64_t keys, int inverse)
{
    memset(f, 0, sizeof *f);
    extent *row = malloc(((size_t)queries + 1) * sizeof *row);
    if (!row) return 0;
    scan(f, in, at, queries, keys, inverse, row);
    int found = f->fits && is_padding(f, row, queries, keys);
    for (int n = 0; n < 4 && f->fits && !found; n++) { /* all keys in use if that explains it, then padding on either side, on both */
        f->key_start = n & 2 ? f->before : 0;
        f->key_end = n & 1 ? keys - f->after : keys;
        found = is_band(f, row, queries);
    }
    f->fits = f->fits && found;
    free(row);
    return 1;
}

int mask_form_offset(const mask_form *f, int64_t *offset)
{
    if (!f->fits || (!f->has_right && !f->has_left)) return 0;
    *offset = (f->has_right ? f->right : f->left) - f->key_start;
    return 1;
}

/* The part about bounds: causal, where it stands, the window. 0 when no options say it. */
static int bounds(char text[200], const mask_form *f, int64_t queries)
{
    const int64_t count = f->key_end - f->key_start, right = f->right - f->key_start, left = f->left - f->key_start;
    const int     square = queries == count;
    int64_t       offset = f->has_right ? right : left;
    char          stands[80] = "";
    *text = 0;
    if (!f->has_left && !f->has_right) return 1;
    if (square && f->has_left && left <= 0 && (!f->has_right || right >= 0)) { /* a window around the query's own key */
        snprintf(text, 200, "--window %lld,%lld", (long long)-left, f->has_right ? (long long)right : -1LL);
        return 1;
    }
    if (square && !f->has_left && right > 0) {
        snprintf(text, 200, "--window -1,%lld", (long long)right);
        return 1;
    }
    if (offset == 0 && !square)
        strcpy(stands, " --align top-left");
    else if (offset == count - queries && !square)
        strcpy(stands, " --align bottom-right");
    else if (offset != 0)
        snprintf(stands, sizeof stands, " --query-offset %lld", (long long)offset);
    if (f->has_right && f->has_left)
        snprintf(text, 200, "--causal --window %lld,-1%s", (long long)(right - left), stands);
    else
        snprintf(text, 200, "%s%s", f->has_right ? "--causal" : "--window 0,-1", stands);
    return f->has_left && f->has_right ? right >= left : 1;
}

/* " --key-count 5,7" unless every entry has the default. */
static void add_list(char text[512], const mask_form *f, int64_t batch, int64_t keys, int count)
{
    int needed = 0;
    for (int64_t b = 0; b < batch; b++) needed |= count ? f[b].key_end < keys : f[b].key_start > 0;
    for (int64_t b = 0; b < batch && needed; b++) {
        const size_t    used = strlen(text);
        const long long value = count ? f[b].key_end - f[b].key_start : f[b].key_start;
        if (b)
            snprintf(text + used, 512 - used, ",%lld", value);
        else
            snprintf(text + used, 512 - used, "%s%s %lld", used ? " " : "", count ? "--key-count" : "--key-start", value);
    }
}

int mask_form_options(char text[512], const mask_form *f, int64_t batch, int64_t queries, int64_t keys)
{
    char first[200], other[200];
    *text = 0;
    for (int64_t b = 0; b < batch; b++) {
        if (!f[b].fits || !bounds(b ? other : first, &f[b], queries)) return 0;
        if (b && strcmp(first, other)) return 0;
    }
    if (batch > 16) return 0; /* lists too long to read */
    snprintf(text, 512, "%s", batch ? first : "");
    add_list(text, f, batch, keys, 0);
    add_list(text, f, batch, keys, 1);
    return *text != 0;
}
