/* mask.c: which keys a block of queries sees: none, all, some; fills "some".
 * SPDX-License-Identifier: MIT */
#include <math.h>
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

/* By position a query sees the keys from `low` to `high` as far as they are among 0 .. keys - 1. Both rise by one from each query to the next, so
 * that what a block sees is one interval too. A position is at most 2^62 + 2^40 in size, a window bound any int64; beyond 2^61 no key is near. */
struct sight {
    int64_t low, high, keys;
};

static int64_t shifted(int64_t position, int64_t by)
{
    const int64_t far = INT64_C(1) << 61;
    int64_t       x;
    if (__builtin_add_overflow(position, by, &x)) x = by;
    return x < -far ? -far : x > far ? far : x;
}

static struct sight look(const attn_desc *d, int64_t batch, int64_t query)
{
    const int64_t p = query + attn_query_offset(d, batch);
    struct sight  s = {-(INT64_C(1) << 61), INT64_C(1) << 61, attn_key_count(d, batch)};
    if (d->window && d->window_left >= 0) s.low = shifted(p, -d->window_left);
    if (d->window && d->window_right >= 0) s.high = shifted(p, d->window_right) + 1;
    if (d->causal && shifted(p, 0) < s.high) s.high = shifted(p, 0) + 1;
    return s;
}

static int64_t held(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Positions of m rows, and the keys that lengths, causal and window leave: those of query 0, as many keys later as its number says. */
void attn_mask_rows(const attn_desc *d, int64_t batch, struct attn_row *rows, int64_t m)
{
    const struct sight s = look(d, batch, 0);
    const int64_t      offset = attn_query_offset(d, batch), queries = attn_query_count(d, batch);
    for (struct attn_row *row = rows; row < rows + m; row++) {
        row->position = row->query + offset;
        row->low = held(s.low + row->query, 0, s.keys);
        row->high = held(s.high + row->query, 0, s.keys);
        if (row->query >= queries || row->high <= row->low) row->low = row->high = 0;
    }
}

/* The keys that any of n queries from `first` on sees by position: from *low, to *high; 0 if there are none. */
int attn_mask_span(const attn_desc *d, int64_t batch, int64_t first, int64_t n, int64_t *low, int64_t *high)
{
    const int64_t end = first + n < attn_query_count(d, batch) ? first + n : attn_query_count(d, batch);
    *low = *high = 0;
    if (first >= end) return 0;
    const struct sight top = look(d, batch, first), bottom = look(d, batch, end - 1);
    *low = held(top.low, 0, top.keys);
    *high = held(bottom.high, 0, top.keys);
    if (*low >= *high) *low = *high = 0;
    return *low < *high;
}

/* The sum of held(first + i * step, low, high) for i in 0 .. n - 1: first low, then rising, then high. */
static double ramp(int64_t first, int64_t step, int64_t n, int64_t low, int64_t high)
{
    const int64_t rise = first < low ? held((low - first + step - 1) / step, 0, n) : 0;
    const int64_t end = first < high ? held((high - first + step - 1) / step, 0, n) : 0;
    double        sum = (double)rise * (double)low + (double)(n - end) * (double)high;
    if (rise < end) sum += (double)(end - rise) * ((double)(first + rise * step) + (double)(first + (end - 1) * step)) / 2;
    return sum;
}

/* How many pairs of n queries from `first` on and keys `from` .. `to` - 1 see each other by position. */
double attn_mask_pairs(const attn_desc *d, int64_t batch, int64_t first, int64_t n, int64_t from, int64_t to)
{
    const struct sight s = look(d, batch, first);
    const int64_t      rows = held(attn_query_count(d, batch) - first, 0, n);
    from = held(from, 0, s.keys), to = held(to, from, s.keys);
    return ramp(s.high, 1, rows, from, to) - ramp(s.low, 1, rows, from, to);
}

/* The sum of the spans of all blocks of n queries. */
double attn_mask_walk(const attn_desc *d, int64_t batch, int64_t n)
{
    const struct sight s = look(d, batch, 0);
    const int64_t      blocks = attn_query_count(d, batch) / n;
    int64_t            low, high;
    attn_mask_span(d, batch, blocks * n, n, &low, &high); /* of the last, shorter one */
    return ramp(s.high + n - 1, n, blocks, 0, s.keys) - ramp(s.low, n, blocks, 0, s.keys) + (double)(high - low);
}

/* One pair, slowly: for what a row's NaN must reach. */
int attn_mask_sees(const attn_desc *d, int64_t batch, const struct attn_row *row, int64_t key)
{
    const int64_t j = attn_key_start(d, batch) + key, *a = d->allow.stride, *b = d->bias.stride;
    if (key < row->low || key >= row->high) return 0;
    if (d->allow.data && !((const unsigned char *)d->allow.data)[batch * a[0] + row->head * a[1] + row->query * a[2] + j * a[3]]) return 0;
    if (!d->bias.data) return 1;
    const char *at =
        (const char *)d->bias.data + (batch * b[0] + row->head * b[1] + row->query * b[2] + j * b[3]) * attn_width(d->bias.dtype);
    const struct attn_convert *convert = attn_plan_convert(d->bias.dtype);
    double                     x;
    float                      f;
    if (!convert->load_f32)
        convert->load_f64(&x, at, 1, 1);
    else
        convert->load_f32(&f, at, 1, 1), x = (double)f;
    return x != -INFINITY;
}

/* Rows of the mask or bias, from the tile's first key on, as arrays of `real` bytes each. */
struct lines {
    const attn_in *t;
    const char    *start; /* of head and query 0 */
    int64_t        width, keys, real;
    int            there; /* they lie side by side, a whole tile of them */
};

static struct lines lines_of(const struct attn_plan *plan, const attn_in *t, int64_t batch, int64_t first, int64_t keys, int64_t real)
{
    const int64_t width = attn_width(t->dtype), key = attn_key_start(&plan->d, batch) + first;
    return (struct lines){t,     (const char *)t->data + (batch * t->stride[0] + key * t->stride[3]) * width,
                          width, keys,
                          real,  width == real && t->stride[3] == 1 && keys == ATTN_TILE};
}

static const void *copied(const struct attn_plan *plan, const struct lines *l, const char *from, char *to)
{
    const int64_t step = l->t->stride[3];
    memset(to, 0, (size_t)(ATTN_TILE * l->real));
    if (l->real == 1)
        for (int64_t j = 0; j < l->keys; j++) to[j] = from[j * step];
    else if (l->real == 4)
        plan->bias->load_f32((float *)(void *)to, from, step, l->keys);
    else
        plan->bias->load_f64((double *)(void *)to, from, step, l->keys);
    return to;
}

/* The row's entries where they lie, or copied (and padded) to `to`. */
static inline const void *line_at(const struct attn_plan *plan, const struct lines *l, const struct attn_row *row, char *to)
{
    const char *from = l->start + (row->head * l->t->stride[1] + row->query * l->t->stride[2]) * l->width;
    return l->there ? from : copied(plan, l, from, to);
}

/* Rows of the mask or bias that are the same throughout are left out of the work; most others are known by their first entries. */
static int all_seen(const unsigned char *const *allow, int64_t m, int64_t keys)
{
    for (int64_t r = 0; r < m; r++)
        if (memchr(allow[r], 0, (size_t)keys)) return 0;
    return 1;
}

static int none_seen(const unsigned char *const *allow, int64_t m, int64_t keys)
{
    for (int64_t r = 0; r < m; r++)
        if (allow[r][0] || memcmp(allow[r], allow[r] + 1, (size_t)keys - 1) != 0) return 0;
    return 1;
}

static int none_added(const void *const *add, int64_t m, int64_t keys, int64_t real)
{
    for (int64_t r = 0; r < m; r++) {
        const char *line = add[r];
        if ((real == 4 ? (double)*(const float *)add[r] : *(const double *)add[r]) != -INFINITY) return 0;
        if (memcmp(line, line + real, (size_t)((keys - 1) * real)) != 0) return 0;
    }
    return 1;
}

/* low and high of the tile, per row, as the kernel's reals; its lanes behind the last row repeat it */
static void put_range(const struct attn_plan *plan, const struct attn_row *rows, int64_t m, int64_t first, int64_t keys, void *low,
                      void *high)
{
    for (int64_t r = 0; r < plan->kernel->rows; r++) {
        const struct attn_row *row = &rows[r < m ? r : m - 1];
        int64_t                from = row->low - first, to = row->high - first;
        from = from < 0 ? 0 : from > keys ? keys : from;
        to = to < 0 ? 0 : to > keys ? keys : to;
        if (plan->kernel->real_bytes == 4)
            ((float *)low)[r] = (float)from, ((float *)high)[r] = (float)to;
        else
            ((double *)low)[r] = (double)from, ((double *)high)[r] = (double)to;
    }
}

/* The keys first .. first + keys - 1, counted from key_start, against the block's m rows. Fills low and high of the slot where it says RANGE and
 * edit where it says EDIT. A tile may reach before key_start or past the last key only where weights are
 * written; such keys are hidden by their range. */
int32_t attn_mask_tile(const struct attn_plan *plan, char *slot, int64_t batch, const struct attn_row *rows, int64_t m, int64_t first,
                       int64_t keys)
{
    const attn_desc *d = &plan->d;
    int64_t          whole = 0, none = 0;
    while (whole < m && rows[whole].low <= first && rows[whole].high >= first + keys) whole++;
    while (none < m && (rows[none].low >= first + keys || rows[none].high <= first || rows[none].low >= rows[none].high)) none++;
    if (none == m) return ATTN_SEES_NONE;
    int32_t sees = whole == m ? ATTN_SEES_ALL : ATTN_SEES_RANGE;
    if (sees == ATTN_SEES_RANGE) put_range(plan, rows, m, first, keys, slot + plan->at.low, slot + plan->at.high);
    if (!d->allow.data && !d->bias.data) return sees;

    unsigned char        seen[ATTN_ROWS_MAX][ATTN_TILE];
    const unsigned char *allow[ATTN_ROWS_MAX];
    const void          *add[ATTN_ROWS_MAX];
    const int64_t        real = plan->kernel->real_bytes;
    if (d->allow.data) {
        const struct lines l = lines_of(plan, &d->allow, batch, first, keys, 1);
        for (int64_t r = 0; r < m; r++) allow[r] = line_at(plan, &l, &rows[r], (char *)seen[r]);
    }
    if (d->bias.data) { /* the score tile is not in use yet: copies may lie there */
        const struct lines l = lines_of(plan, &d->bias, batch, first, keys, real);
        for (int64_t r = 0; r < m; r++) add[r] = line_at(plan, &l, &rows[r], slot + plan->at.s + r * ATTN_TILE * real);
    }
    const int mixed = d->allow.data && !all_seen(allow, m, keys);
    if (mixed && none_seen(allow, m, keys)) return ATTN_SEES_NONE;
    if (d->bias.data && none_added(add, m, keys, real)) return ATTN_SEES_NONE;
    if (!mixed && !d->bias.data) return sees;
    if (!d->bias.data && plan->kernel->see) {
        plan->kernel->see(slot + plan->at.edit, m, keys, allow);
        return sees | ATTN_SEES_BYTES;
    }
    plan->kernel->edit(slot + plan->at.edit, m, keys, mixed ? allow : 0, d->bias.data ? add : 0);
    return sees | ATTN_SEES_EDIT;
}
