/* seen.c: which keys a query may see, place by place, and which rule hides the others: attn.h in words.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <math.h>

int64_t seen_key_start(const attn_desc *d, int64_t b)
{
    return d->key_start ? d->key_start[b] : 0;
}

int64_t seen_key_count(const attn_desc *d, int64_t b)
{
    return d->key_count ? d->key_count[b] : d->keys - seen_key_start(d, b);
}

int64_t seen_query_count(const attn_desc *d, int64_t b)
{
    return d->query_count ? d->query_count[b] : d->queries;
}

int64_t seen_offset(const attn_desc *d, int64_t b)
{
    if (d->query_offset) return d->query_offset[b];
    return d->align == ATTN_ALIGN_BOTTOM_RIGHT ? seen_key_count(d, b) - seen_query_count(d, b) : 0;
}

/* The last key, counted from key_start, that a bound of `right` keys after position p lets be seen; positions may be as large as 2^62. */
static int64_t bound(int64_t p, int64_t right)
{
    int64_t sum;
    return __builtin_add_overflow(p, right, &sum) ? INT64_MAX - 1 : sum;
}

void seen_range(const attn_desc *d, int64_t b, int64_t i, int64_t *first, int64_t *end)
{
    const int64_t start = seen_key_start(d, b), p = i + seen_offset(d, b);
    int64_t       low = 0, high = i < seen_query_count(d, b) ? seen_key_count(d, b) : 0;
    if (d->causal && p + 1 < high) high = p + 1;
    if (d->window && d->window_left >= 0 && p - d->window_left > low) low = p - d->window_left;
    if (d->window && d->window_right >= 0 && bound(p, d->window_right) + 1 < high) high = bound(p, d->window_right) + 1;
    if (high < 0) high = 0;
    if (low > high) low = high;
    *first = start + low, *end = start + high;
}

double seen_bias(const attn_desc *d, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t *s = d->bias.stride;
    const io_array a = {.data = (void *)d->bias.data, .dtype = d->bias.dtype};
    return a.data ? io_get(&a, b * s[0] + h * s[1] + i * s[2] + j * s[3]) : 0;
}

unsigned seen_reasons(const attn_desc *d, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t at = j - seen_key_start(d, b), p = i + seen_offset(d, b), *s = d->allow.stride;
    unsigned      why = 0;
    if (i >= seen_query_count(d, b)) why |= 1 << SEEN_QUERY_COUNT;
    if (at < 0) why |= 1 << SEEN_KEY_START;
    if (at >= seen_key_count(d, b)) why |= 1 << SEEN_KEY_COUNT;
    if (d->causal && at > p) why |= 1 << SEEN_CAUSAL;
    if (d->window && d->window_left >= 0 && at < p - d->window_left) why |= 1 << SEEN_WINDOW_LEFT;
    if (d->window && d->window_right >= 0 && at > bound(p, d->window_right)) why |= 1 << SEEN_WINDOW_RIGHT;
    if (d->allow.data && !((const uint8_t *)d->allow.data)[b * s[0] + h * s[1] + i * s[2] + j * s[3]]) why |= 1 << SEEN_MASK;
    if (seen_bias(d, b, h, i, j) == -INFINITY) why |= 1 << SEEN_BIAS;
    return why;
}

int seen_reason(const attn_desc *d, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const unsigned why = seen_reasons(d, b, h, i, j);
    return why ? __builtin_ctz(why) : SEEN;
}

const char *seen_word(int reason)
{
    static const char *const word[] = {"",       "query count",  "key start",    "key count", "causal",
                                       "window", "window right", "allow / hide", "bias -inf"};
    return reason >= 0 && reason < SEEN_REASONS ? word[reason] : "unknown";
}
