/* mask.c: which keys a block of queries sees: none, all, some; fills "some".
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "internal.h"

int64_t attn_key_start(const attn_desc *d, int64_t batch)
{
    return d->key_start ? d->key_start[batch] : 0;
}

int64_t attn_key_count(const attn_desc *d, int64_t batch)
{
    return d->key_count ? d->key_count[batch] : d->keys - attn_key_start(d, batch);
}

int64_t attn_query_count(const attn_desc *d, int64_t batch)
{
    return d->query_count ? d->query_count[batch] : d->queries;
}

int64_t attn_query_offset(const attn_desc *d, int64_t batch)
{
    if (d->query_offset) return d->query_offset[batch];
    return d->align == ATTN_ALIGN_BOTTOM_RIGHT ? attn_key_count(d, batch) - attn_query_count(d, batch) : 0;
}

/* Position, and the keys that lengths, causal and window leave: always one interval. A position is at most 2^62 + 2^40 in size, a window bound any int64. */
void attn_mask_row(const attn_desc *d, int64_t batch, struct attn_row *row)
{
    int64_t p = row->query + attn_query_offset(d, batch), low = 0, high = attn_key_count(d, batch);
    if (d->causal && p < high) high = p + 1;
    if (d->window && d->window_left >= 0 && p > d->window_left) low = p - d->window_left;
    if (d->window && d->window_right >= 0 && p < high && d->window_right < high - 1 - p) high = p + d->window_right + 1;
    if (row->query >= attn_query_count(d, batch) || high < low) high = low = 0;
    row->position = p;
    row->low = low;
    row->high = high;
}

/* A tile's worth of one row of the boolean mask and the lengths, as bytes; 1 if every key of the tile is seen. */
static int seen_keys(const attn_desc *d, int64_t batch, const struct attn_row *row, int64_t first, int64_t keys, unsigned char *seen)
{
    int64_t from = row->low > first ? row->low - first : 0, to = row->high < first + keys ? row->high - first : keys, n = 0;
    if (to <= from) from = to = 0;
    memset(seen, 0, (size_t)keys);
    if (!d->allow.data) {
        memset(seen + from, 1, (size_t)(to - from));
        return to - from == keys;
    }
    const unsigned char *allow = d->allow.data;
    const int64_t       *step = d->allow.stride;
    allow += batch * step[0] + row->head * step[1] + row->query * step[2] + (attn_key_start(d, batch) + first) * step[3];
    for (int64_t j = from; j < to; j++) {
        seen[j] = allow[j * step[3]] != 0;
        n += seen[j];
    }
    return n == keys;
}

/* The keys first .. first + keys - 1, counted from key_start, against the block's m rows. Fills edit where it says EDIT or SOME; line is
 * scratch for ATTN_TILE reals. A tile may reach before key 0 or past the last key only where weights are written; such keys are hidden. */
int32_t attn_mask_tile(const struct attn_plan *plan, int64_t batch, const struct attn_row *rows, int64_t m, int64_t first, int64_t keys,
                       void *edit, void *line)
{
    const attn_desc *d = &plan->d;
    int64_t          whole = 0, none = 0, seen_total = 0;
    for (int64_t r = 0; r < m; r++) {
        whole += rows[r].low <= first && rows[r].high >= first + keys;
        none += rows[r].low >= first + keys || rows[r].high <= first || rows[r].low >= rows[r].high;
    }
    if (none == m) return ATTN_SEES_NONE;
    if (whole == m && !d->allow.data && !d->bias.data) return ATTN_SEES_ALL;

    unsigned char seen[ATTN_TILE];
    int64_t       all_rows = 0;
    for (int64_t r = 0; r < plan->kernel->rows; r++) {
        const struct attn_row *row = &rows[r < m ? r : 0];
        int                    all = 0;
        if (r < m)
            all = seen_keys(d, batch, row, first, keys, seen);
        else
            memset(seen, 0, (size_t)keys);
        if (d->bias.data && r < m) {
            /* only what this row may see by position is read: beyond the sequence's keys there is no bias */
            const int64_t *step = d->bias.stride;
            int64_t        from = row->low > first ? row->low - first : 0, to = row->high < first + keys ? row->high - first : keys;
            const char    *at = (const char *)d->bias.data + (batch * step[0] + row->head * step[1] + row->query * step[2] +
                                                           (attn_key_start(d, batch) + first + from) * step[3]) *
                                                              (int64_t)attn_dtype_bytes(d->bias.dtype);
            memset(line, 0, (size_t)(keys * plan->kernel->real_bytes));
            if (to > from && plan->kernel->real_bytes == 4) plan->bias->load_f32((float *)line + from, at, step[3], to - from);
            if (to > from && plan->kernel->real_bytes == 8) plan->bias->load_f64((double *)line + from, at, step[3], to - from);
        }
        int64_t n = plan->kernel->edit(edit, r, keys, all ? 0 : seen, d->bias.data && r < m ? line : 0);
        seen_total += n;
        all_rows += r < m && n == keys;
    }
    if (seen_total == 0) return ATTN_SEES_NONE;
    if (all_rows < m) return ATTN_SEES_SOME;
    return d->bias.data ? ATTN_SEES_EDIT : ATTN_SEES_ALL;
}
