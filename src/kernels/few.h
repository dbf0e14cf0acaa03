/* few.h: the block kernel for a few queries, down to one: lanes are keys while scores are made, channels while values are summed.
 * SPDX-License-Identifier: MIT
 *
 * Included after tile.h, by the same files and over the same vocabulary; the file defines FEW_NAME before. Same contract, same canonical order,
 * so the same bits; only the layouts are its own: q [row][dim], s and edit [row][ATTN_TILE], o [row][value_dim], where dim and value_dim are
 * rounded up to 16 (WIDE). Keys and values are read once for all rows of the block, which is what decoding waits for.
 */
enum { FEW_ROWS = 8 };

#define WIDE(n) (((n) + 15) / 16 * 16)

#define FEW_WIDTH(reads) ((reads) == ATTN_READ_AS_IS ? (int)sizeof(element) : 2)

/* The place of number `at` in an array of what the tile holds. */
FN FORCE const char *few_at(const void *from, int64_t at, int64_t reads)
{
    return (const char *)((uintptr_t)from + (uintptr_t)(at * FEW_WIDTH(reads)));
}

/* ---- memory ahead ------------------------------------------------------------------------------------------------------------------- */

/* Memory is what a few queries wait for, and must never be idle: for each line of keys or values that is read, one is fetched that will be read so much
 * later. Fetches are spread evenly among what is computed, as only so many can be on their way, and need no branch of their own. They go on past the
 * tile's end, to where the next tile or head is likely to lie; to fetch from an address that is none does no harm. Reading ahead instead wakes the
 * hardware's prefetcher, but a read that is late holds up what follows. */
enum few_way {
    FEW_NONE,
    FEW_FAR, /* into the second-level cache: rows that lie scattered, which may share few places of the first (1.15 to 1.4 times as fast) */
    FEW_NEAR /* into the first: a stream, in the order of addresses */
};

/* Bytes: lines are fetched so far ahead, which leaves room for what is read in a first-level cache of 32 KiB, and one of each page so far, as to translate
 * its address takes longer than to read it. */
enum { FEW_AHEAD = 12288, FEW_PAGES = 65536, FEW_PAGE = 4096 };

/* The next line; the following ones `step` bytes apart; the first one of the next column `turn` bytes after the last. */
struct few_ahead {
    uintptr_t    at, step, turn;
    enum few_way way;
};

/* What is fetched while n rows are read, for the first query only. */
FN struct few_ahead few_ahead(const void *rows, int64_t step, int64_t channels, int64_t n, int64_t reads, int64_t query)
{
    const uintptr_t at = (uintptr_t)rows, row = (uintptr_t)(step * FEW_WIDTH(reads));
    if (query > 0 || channels == 0) return (struct few_ahead){at, 0, 0, FEW_NONE};
    if (step == channels) return (struct few_ahead){at + FEW_AHEAD, 64, 0, FEW_NEAR};
    return (struct few_ahead){at + (uintptr_t)(1 + FEW_AHEAD / (channels * FEW_WIDTH(reads))) * row, row, 64 - (uintptr_t)n * row, FEW_FAR};
}

FN FORCE void few_fetch(uintptr_t at, const enum few_way way)
{
    if (way == FEW_NEAR) __builtin_prefetch((const void *)at, 0, 3);
    if (way == FEW_FAR) __builtin_prefetch((const void *)at, 0, 2);
}

/* x[i]: a vector of row i, while as many lines are fetched, `way` a literal. Returns the row after them. */
FN FORCE const char *few_take_rows(vec *x, const char *row, int64_t bytes, struct few_ahead *a, const enum few_way way)
{
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        x[i] = v_load_any((const real *)(const void *)row);
        row = (const char *)opaque((int64_t)(row + bytes)); /* one address, not sixteen on the stack */
        few_fetch(a->at, way);
        if (way != FEW_NONE) a->at += a->step;
    }
    return row;
}

FN FORCE const char *few_take(vec *x, const char *row, int64_t bytes, struct few_ahead *a, int fetches)
{
    if (fetches && a->way == FEW_NEAR) return few_take_rows(x, row, bytes, a, FEW_NEAR);
    if (fetches && a->way == FEW_FAR) return few_take_rows(x, row, bytes, a, FEW_FAR);
    return few_take_rows(x, row, bytes, a, FEW_NONE);
}

/* So many lines, a literal, that lie a->at bytes after `row`. */
FN FORCE void few_fetch_row(const void *row, const struct few_ahead *a, const int lines)
{
    const uintptr_t at = (uintptr_t)row + a->at;
    if (a->way == FEW_NEAR)
#pragma GCC unroll 8
        for (int i = 0; i < lines; i++) few_fetch(at + (uintptr_t)i * 64, FEW_NEAR);
    else if (a->way == FEW_FAR)
#pragma GCC unroll 8
        for (int i = 0; i < lines; i++) few_fetch(at + (uintptr_t)i * 64, FEW_FAR);
}

/* One line of each page of a stream; scattered rows have few lines in each. */
FN void few_fetch_pages(const void *rows, int64_t step, int64_t channels, int64_t n, int64_t reads)
{
    const uintptr_t at = (uintptr_t)rows + FEW_PAGES, bytes = step == channels ? (uintptr_t)(n * step * FEW_WIDTH(reads)) : 0;
    for (uintptr_t i = 0; i < bytes; i += FEW_PAGE) few_fetch(at + i, FEW_FAR);
}

/* ---- the two products ------------------------------------------------------------------------------------------------------------- */

#if PAIRS
#include "few_pairs.h"
#else
#define FEW_STEP(n) WIDE(n) /* of a query */
#define FEW_REST(b) 0
/* `some` numbers, and zeros up to a whole vector of bytes, so that nothing is read past a row's end */
FN FORCE vec few_bytes(const void *from, int64_t some, const int reads)
{
    real line[LANES] = {0};
    memcpy(line, from, (size_t)(some * FEW_WIDTH(reads)));
    return v_load_any(line);
}

/* LANES numbers as reals */
FN FORCE vec few_read(const void *from, const int reads)
{
#if REAL_BITS == 32
    if (reads == ATTN_READ_F16) return v_read_f16(from);
    if (reads == ATTN_READ_BF16) return v_read_bf16(from);
#else
    (void)reads;
#endif
    return v_load_any((const real *)from);
}

/* x[i]: a vector of key i; then channel i of all keys, as reals, is few_channel(x, i). */
FN FORCE void few_transpose(vec *x, const int reads)
{
#if REAL_BITS == 32
    if (reads == ATTN_READ_F16) {
        v_transpose_f16(x);
        return;
    }
#else
    (void)reads;
#endif
    v_transpose(x);
}

FN FORCE vec few_channel(const vec *x, const int i, const int reads)
{
#if REAL_BITS == 32
    const int run = i / F16_RUN;
    if (reads == ATTN_READ_F16)
        return run % 2 ? v_second_f16(x[run / 2 * F16_RUN + i % F16_RUN]) : v_first_f16(x[run / 2 * F16_RUN + i % F16_RUN]);
    if (reads == ATTN_READ_BF16) return i % 2 ? v_odd_bf16(x[i / 2]) : v_even_bf16(x[i / 2]);
#else
    (void)reads;
#endif
    return x[i];
}

/* G times LANES keys against R queries, G, R and reads literals. n keys are there; those past the last repeat it. A lane holds one number or two of
 * 16 bits while keys are transposed. */
FN FORCE void few_dots(const real *q, int64_t q_step, const void *k, int64_t step, int64_t n, int64_t dim, real rest, real *s,
                       struct few_ahead *ahead, const int G, const int R, const int reads)
{
    (void)rest;
    const int     per = (int)sizeof(real) / FEW_WIDTH(reads);
    const int64_t bytes = step * FEW_WIDTH(reads);
    vec           acc[2][4];
#pragma GCC unroll 2
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) acc[g][r] = v_set(0);
    for (int64_t c = 0; c < dim; c += LANES * per) {
        const int64_t some = dim - c < LANES * per ? dim - c : LANES * per;
        const char   *row = few_at(k, c, reads);
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) {
            if (some == LANES * per && n >= G * LANES) {
                vec x[LANES];
                row = few_take(x, row, bytes, ahead, sizeof(vec) == 64 || c * FEW_WIDTH(reads) % 64 == 0);
                few_transpose(x, reads);
#pragma GCC unroll 32
                for (int i = 0; i < LANES * per; i++) {
                    vec y = few_channel(x, i, reads);
#pragma GCC unroll 4
                    for (int r = 0; r < R; r++) acc[g][r] = v_fma(v_set(q[r * q_step + c + i]), y, acc[g][r]);
                }
                continue;
            }
            vec x[LANES]; /* not the same, as here the compiler would keep it in memory */
            for (int i = 0; i < LANES; i++) {
                const int64_t row = g * LANES + i < n ? g * LANES + i : n - 1;
                x[i] = row == g * LANES + i || i == 0 ? few_bytes(few_at(k, row * step + c, reads), some, reads) : x[i - 1];
            }
            few_transpose(x, reads);
            for (int i = 0; i < some; i++) {
                vec y = few_channel(x, i, reads);
                for (int r = 0; r < R; r++) acc[g][r] = v_fma(v_set(q[r * q_step + c + i]), y, acc[g][r]);
            }
        }
        if ((c * FEW_WIDTH(reads) + (int)sizeof(vec)) % 64 == 0) ahead->at += ahead->turn;
    }
#pragma GCC unroll 2
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) v_store(s + r * ATTN_TILE + g * LANES, acc[g][r]);
}

/* acc over the keys of weight * value for R queries and W vectors of channels; hidden: a weight of -0 leaves its query out. */
FN FORCE void few_sum(const real *p, const void *x, int64_t step, int64_t keys, real *o, int64_t o_step, const real *factor,
                      const struct few_ahead *ahead, const int R, const int W, const int hidden, const int reads)
{
    vec acc[4][8];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int w = 0; w < W; w++) acc[r][w] = v_set(0);
    for (int64_t j = 0; j < keys; j++) {
        vec weight[4];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) weight[r] = v_set(p[r * ATTN_TILE + j]);
        few_fetch_row(few_at(x, j * step, reads), ahead, (W * LANES * FEW_WIDTH(reads) + 63) / 64);
#pragma GCC unroll 8
        for (int w = 0; w < W; w++) {
            vec y = few_read(few_at(x, j * step + w * LANES, reads), reads);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) acc[r][w] = hidden ? v_fma_seen(weight[r], y, acc[r][w]) : v_fma(weight[r], y, acc[r][w]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int w = 0; w < W; w++) {
            real *at = o + r * o_step + w * LANES;
            v_store(at, v_fma(v_load(at), v_set(factor[r]), acc[r][w]));
        }
}

FN FORCE void few_value_rows(const struct attn_block *b, const struct attn_tile *t, int64_t from, int64_t to, const real *factor, int64_t r,
                             const int R, const int hidden, const int reads)
{
    const int64_t    keys = to - from, dim = b->value_dim;
    const real      *p = (const real *)b->s + r * ATTN_TILE + from;
    const char      *x = few_at(t->v, from * t->v_step, reads);
    real            *o = (real *)b->part.o + r * WIDE(dim);
    int64_t          c = 0, at_once;
    struct few_ahead next = few_ahead(0, t->v_step, dim, keys, reads, r);
    for (; c + LANES <= dim; c += at_once * LANES) {
        at_once = R <= 2 && c + 8 * LANES <= dim ? 8 : c + 4 * LANES <= dim ? 4 : 1;
        if (at_once == 8)
            few_sum(p, few_at(x, c, reads), t->v_step, keys, o + c, WIDE(dim), factor + r, &next, R, R <= 2 ? 8 : 1, hidden, reads);
        else if (at_once == 4)
            few_sum(p, few_at(x, c, reads), t->v_step, keys, o + c, WIDE(dim), factor + r, &next, R, 4, hidden, reads);
        else
            few_sum(p, few_at(x, c, reads), t->v_step, keys, o + c, WIDE(dim), factor + r, &next, R, 1, hidden, reads);
    }
    if (c == dim) return;
    real pad[ATTN_TILE * LANES] __attribute__((aligned(64))); /* the last channels, so that nothing is read past a row's end */
    for (int64_t j = 0; j < keys; j++) {
        v_store(pad + j * LANES, few_bytes(few_at(x, j * t->v_step + c, reads), dim - c, reads));
        v_store(pad + j * LANES, few_read(pad + j * LANES, reads));
    }
    next.way = FEW_NONE;
    few_sum(p, pad, LANES, keys, o + c, WIDE(dim), factor + r, &next, R, 1, hidden, ATTN_READ_AS_IS);
}

FN FORCE void few_take_weights(const struct attn_block *b, int64_t r, int64_t from, int64_t to)
{
    (void)b, (void)r, (void)from, (void)to;
}

FN void few_load(const struct attn_block *b, void *q, int64_t at, int64_t n, const void *const *lines, double factor)
{
    for (int64_t r = 0; r < b->m; r++)
        for (int64_t c = 0; c < n; c += LANES)
            v_store((real *)q + r * WIDE(b->dim) + at + c, scale_query(v_load_any((const real *)lines[r] + c), factor));
}
#endif

/* Units of LANES keys. One chain of products waits for itself, but of longer vectors two would take 32 keys in units, which are then read so far out of
 * order that memory is slower (0.85), though arithmetic alone would be faster (1.1). */
FN FORCE void few_score_rows(const struct attn_block *b, const struct attn_tile *t, int64_t from, int64_t to, int64_t r, const int R,
                             const int reads)
{
    const int     G = R <= 2 && sizeof(vec) < 64 ? 2 : 1;
    const real   *q = (const real *)b->q + r * FEW_STEP(b->dim), rest = FEW_REST(b);
    const int64_t step = FEW_STEP(b->dim), unit = G * LANES;
    real         *s = (real *)b->s + r * ATTN_TILE;
    for (int64_t j = from, n; j < to; j += n) {
        const void *k = few_at(t->k, j * t->k_step, reads);
        n = to - j < unit ? LANES : unit;
        struct few_ahead next = few_ahead(k, t->k_step, b->dim, n, reads, r);
        if (r == 0) {
            few_fetch_pages(k, t->k_step, b->dim, n, reads);
            if (t->v) few_fetch_pages(few_at(t->v, j * t->v_step, t->v_reads), t->v_step, b->value_dim, n, t->v_reads);
        }
        if (n == unit)
            few_dots(q, step, k, t->k_step, to - j, b->dim, rest, s + j, &next, G, R, reads);
        else
            few_dots(q, step, k, t->k_step, to - j, b->dim, rest, s + j, &next, 1, R, reads);
    }
}

/* One function per number of rows, as in tile.h, and per type of what is read. */
typedef void few_score_fn(const struct attn_block *b, const struct attn_tile *t, int64_t from, int64_t to, int64_t r);
typedef void few_value_fn(const struct attn_block *b, const struct attn_tile *t, int64_t from, int64_t to, const real *factor, int64_t r,
                          int hidden);

#define FEW_BY_ROWS(name, n, reads)                                                                                                        \
    FN NOINLINE void few_score_##name##_##n(const struct attn_block *b, const struct attn_tile *t, int64_t from, int64_t to, int64_t r)    \
    {                                                                                                                                      \
        few_score_rows(b, t, from, to, r, n, reads);                                                                                       \
    }                                                                                                                                      \
    FN NOINLINE void few_value_##name##_##n(const struct attn_block *b, const struct attn_tile *t, int64_t from, int64_t to,               \
                                            const real *factor, int64_t r, int hidden)                                                     \
    {                                                                                                                                      \
        if (hidden)                                                                                                                        \
            few_value_rows(b, t, from, to, factor, r, n, 1, reads);                                                                        \
        else                                                                                                                               \
            few_value_rows(b, t, from, to, factor, r, n, 0, reads);                                                                        \
    }
#define FEW_BY_TYPE(name, reads)                                                                                                           \
    FEW_BY_ROWS(name, 1, reads)                                                                                                            \
    FEW_BY_ROWS(name, 2, reads)                                                                                                            \
    FEW_BY_ROWS(name, 3, reads)                                                                                                            \
    FEW_BY_ROWS(name, 4, reads)
#define FEW_TABLE(kind, name) {few_##kind##_##name##_1, few_##kind##_##name##_2, few_##kind##_##name##_3, few_##kind##_##name##_4}

FEW_BY_TYPE(real, ATTN_READ_AS_IS)
#if REAL_BITS == 32 && !PAIRS
FEW_BY_TYPE(f16, ATTN_READ_F16)
FEW_BY_TYPE(bf16, ATTN_READ_BF16)
#define FEW_ALSO (1 << ATTN_READ_F16 | 1 << ATTN_READ_BF16)
static few_score_fn *const few_score_by[][4] = {FEW_TABLE(score, real), FEW_TABLE(score, f16), FEW_TABLE(score, bf16)};
static few_value_fn *const few_value_by[][4] = {FEW_TABLE(value, real), FEW_TABLE(value, f16), FEW_TABLE(value, bf16)};
#else
#define FEW_ALSO 0
static few_score_fn *const few_score_by[][4] = {FEW_TABLE(score, real)};
static few_value_fn *const few_value_by[][4] = {FEW_TABLE(value, real)};
#endif

FN void few_score(const struct attn_block *b, const struct attn_tile *t, int64_t from, int64_t to)
{
    for (int64_t r = 0, n; r < b->m; r += n) {
        n = b->m - r < 4 ? b->m - r : 4;
        few_score_by[t->k_reads][n - 1](b, t, from, to, r);
    }
}

/* Two rows at once have registers for whole values, which are then read in the order of addresses; four read or convert them once. */
FN void few_values(const struct attn_block *b, const struct attn_tile *t, int64_t from, int64_t to, const real *factor, int hidden)
{
    const int64_t most = t->v_step == b->value_dim && t->v_reads == ATTN_READ_AS_IS && b->value_dim >= 8 * LANES ? 2 : 4;
    for (int64_t r = 0, n; r < b->m; r += n) {
        n = b->m - r < most ? b->m - r : most;
        few_value_by[t->v_reads][n - 1](b, t, from, to, factor, r, hidden);
    }
}

/* ---- between the products --------------------------------------------------------------------------------------------------------- */

FN FORCE vec few_count(int64_t first) /* first, first + 1, ... */
{
    real n[LANES];
    for (int i = 0; i < LANES; i++) n[i] = (real)(first + i);
    return v_load_any(n);
}

/* Row r, keys from .. to - 1, from a multiple of LANES; what lies past `to` in the last vector may be anything. */
FN void few_edit(const struct attn_block *b, const struct attn_tile *t, int32_t upto, int64_t r, int64_t from, int64_t to)
{
    const struct editing e = editing_make(b, t, upto);
    for (int64_t j = from; j < to; j += LANES) {
        real *at = (real *)b->s + r * ATTN_TILE + j;
        vec   add = e.edit ? v_load(e.edit + r * ATTN_TILE + j) : v_set(0), zero = v_set(0);
        v_store(at, edit_score(&e, v_load(at), few_count(j), add, e.slope ? v_set(e.slope[r]) : zero, e.slope ? v_set(e.near[r]) : zero,
                               e.low ? v_set(e.low[r]) : zero, e.low ? v_set(e.high[r]) : zero));
    }
}

/* Row r: its reference, and weights in the place of scores. Returns 1 if a key is hidden. */
FN int few_weigh(const struct attn_block *b, int64_t r, int64_t from, int64_t to, real *factor)
{
    const real hide = -(real)INFINITY;
    real      *s = (real *)b->s + r * ATTN_TILE, *top = (real *)b->part.top + r, lanes[LANES] __attribute__((aligned(64)));
    real       ref = *top, largest = hide;
    int        hidden = 0;
    for (int64_t j = to; j % LANES; j++) s[j] = hide; /* up to a whole vector */
    for (int64_t j = from; ref == hide && j < to; j += 8)
        for (int64_t i = j; i < to && i < j + 8; i++) ref = s[i] > ref ? s[i] : ref;
    vec most = v_set(hide), none = v_set(0), one = v_set(1);
    for (int64_t j = from; j < to; j += LANES) {
        vec x = v_load(s + j);
        most = v_max(x, most);
        none = v_pick(v_eq(x, v_set(hide)), one, none);
    }
    v_store(lanes, most);
    for (int i = 0; i < LANES; i++) largest = lanes[i] > largest ? lanes[i] : largest;
    vec newer = v_set(ref), f = one, shift = v_set(((const real *)b->shift)[r]);
    if (largest - ref > 8) {
        newer = v_set(largest);
        f = exp2_plain(v_sub(v_set(ref), newer));
        ref = largest;
    }
    for (int64_t j = from; j < to; j += LANES) {
        vec x = v_load(s + j);
        v_store(s + j, v_pick(v_eq(x, v_set(hide)), v_set(-(real)0.0), exp2_twice(v_sub(x, newer), shift)));
    }
    v_store(lanes, f);
    factor[r] = lanes[0];
    *top = ref;
    v_store(lanes, none);
    for (int i = 0; i < LANES; i++) hidden |= lanes[i] != 0;
    return hidden;
}

/* R rows together, as each sum is a chain that waits for itself: one alone is short enough for the CPU to go on to its values meanwhile. */
FN FORCE void few_total_rows(const struct attn_block *b, int64_t r, int64_t from, int64_t to, const real *factor, const int R)
{
    const real *s = (const real *)b->s + r * ATTN_TILE;
    real        total[4] = {0}, lanes[LANES] __attribute__((aligned(64)));
#pragma GCC unroll 8
    for (int64_t j = from; j < to; j++)
#pragma GCC unroll 4
        for (int i = 0; i < R; i++) total[i] += s[i * ATTN_TILE + j];
    for (int64_t i = 0; i < R && r + i < b->m; i++) {
        real *sum = (real *)b->part.sum + r + i;
        v_store(lanes, v_fma(v_set(*sum), v_set(factor[r + i]), v_set(total[i])));
        *sum = lanes[0];
    }
}

FN void few_totals(const struct attn_block *b, int64_t from, int64_t to, const real *factor)
{
    if (b->m == 1) few_total_rows(b, 0, from, to, factor, 1);
    for (int64_t r = 0; b->m > 1 && r < b->m; r += 4) few_total_rows(b, r, from, to, factor, 4); /* what does not exist is not stored */
}

/* ---- the contract ----------------------------------------------------------------------------------------------------------------- */

FN void few_unload(const struct attn_block *b, void *lines, int64_t step, const void *from, int64_t total, int64_t at, int64_t n)
{
    for (int64_t r = 0; r < b->m; r++)
        memcpy((real *)lines + r * step, (const real *)from + r * WIDE(total) + at, (size_t)n * sizeof(real));
}

FN void few_begin(const struct attn_block *b, const struct attn_part *part)
{
    for (int r = 0; r < FEW_ROWS; r++) ((real *)part->top)[r] = -(real)INFINITY, ((real *)part->sum)[r] = 0;
    memset(part->o, 0, (size_t)(b->m * WIDE(b->value_dim)) * sizeof(real));
}

FN void few_edit_tile(void *edit, int64_t m, int64_t keys, const unsigned char *const *seen, const void *const *add)
{
    const vec hide = v_set(-(real)INFINITY), domain = v_set((real)ATTN_DOMAIN);
    for (int64_t r = 0; r < m; r++) {
        real *to = (real *)edit + r * ATTN_TILE;
        for (int64_t j = 0; j < keys; j += LANES) {
            vec x = add ? times(v_load_any((const real *)add[r] + j), domain) : v_set(0);
            v_store(to + j, seen ? v_pick(v_seen(seen[r] + j), x, hide) : x);
        }
    }
}

FN void few_scores(const struct attn_block *b, const struct attn_tile *t, int32_t upto)
{
    few_score(b, t, 0, t->keys);
    for (int64_t r = 0; upto != ATTN_UPTO_SCALED && r < b->m; r++) few_edit(b, t, upto, r, 0, t->keys);
}

FN void few_drop(const struct attn_block *b, const struct attn_tile *t, int64_t r, int64_t from, int64_t to)
{
    for (int64_t at = r * ATTN_TILE + from; at < r * ATTN_TILE + to; at += LANES)
        v_store((real *)b->s + at, dropped(v_load((const real *)b->s + at), v_load((const real *)t->drop + at), v_set((real)t->raise)));
}

FN void few_step(const struct attn_block *b, const struct attn_tile *t)
{
    int64_t from = t->low ? t->keys : 0, to = t->low ? 0 : t->keys;
    real    factor[FEW_ROWS];
    int     hidden = 0, edited = t->edit || b->slope || b->cap > 0 || t->low;
    for (int64_t r = 0; t->low && r < b->m; r++) {
        const real low = ((const real *)t->low)[r], high = ((const real *)t->high)[r];
        if (low >= high) continue;
        if ((int64_t)low < from) from = (int64_t)low;
        if ((int64_t)high > to) to = (int64_t)high;
    }
    from = from / 16 * 16; /* a whole number of vectors and of the 8 keys that a reference is taken from */
    few_score(b, t, from, to);
    for (int64_t r = 0; r < b->m; r++) {
        if (edited) few_edit(b, t, ATTN_UPTO_BIASED, r, from, to);
        hidden |= few_weigh(b, r, from, to, factor);
    }
    few_totals(b, from, to, factor);
    for (int64_t r = 0; r < b->m; r++) {
        if (t->drop) few_drop(b, t, r, from, to);
        few_take_weights(b, r, from, to);
    }
    few_values(b, t, from, to, factor, hidden);
}

FN void few_fold(const struct attn_block *b, const struct attn_part *into)
{
    for (int64_t r = 0; r < b->m; r++) {
        real *top = (real *)into->top + r, *sum = (real *)into->sum + r, lanes[LANES] __attribute__((aligned(64)));
        real  here = ((const real *)b->part.top)[r], most = *top > here ? *top : here;
        vec   one = v_set(1), f = *top == most ? one : exp2_plain(v_set(*top - most)),
            g = here == most ? one : exp2_plain(v_set(here - most));
        v_store(lanes, v_fma(g, v_set(((const real *)b->part.sum)[r]), times(f, v_set(*sum))));
        *top = most;
        *sum = lanes[0];
        for (int64_t c = 0; c < b->value_dim; c += LANES) {
            real *o = (real *)into->o + r * WIDE(b->value_dim) + c;
            v_store(o, v_fma(g, v_load((const real *)b->part.o + r * WIDE(b->value_dim) + c), times(f, v_load(o))));
        }
    }
}

FN int32_t few_finish(const struct attn_block *b, const void *sinks, void *shifts, double *lse)
{
    int32_t found = 0;
    real    lanes[LANES] __attribute__((aligned(64)));
    for (int64_t r = 0; r < b->m; r++) {
        const real *o = (const real *)b->part.o + r * WIDE(b->value_dim);
        real        wild = 0;
        for (int64_t c = 0; c < b->value_dim; c++) wild = isfinite(o[c]) ? wild : 1;
        found |= give_shift(wild, ((const real *)b->part.sum)[r], (real *)shifts + r);
    }
    if (found) return 1;
    for (int64_t r = 0; r < b->m; r++) {
        real          *top = (real *)b->part.top + r, *sum = (real *)b->part.sum + r, *o = (real *)b->part.o + r * WIDE(b->value_dim);
        const real     sink = ((const real *)sinks)[r];
        struct ending  e = ending_make(v_set(*top), v_set(*sum), v_set(sink), v_set(((const real *)shifts)[r]));
        struct natural n[LANES];
        ending_lanes(&e, n);
        if (lse) lse[r] = natural_lse(&n[0], sink);
        *top = n[0].top;
        v_store(lanes, v_div(v_set(1), e.all));
        *sum = lanes[0];
        for (int64_t c = 0; c < b->value_dim; c += LANES) v_store(o + c, v_add(times(v_load(o + c), e.factor), v_set(0)));
    }
    return 0;
}

FN void few_weights(const struct attn_block *b, int64_t keys, int32_t upto)
{
    for (int64_t r = 0; r < b->m; r++)
        for (int64_t j = 0; j < keys; j += LANES) {
            real *at = (real *)b->s + r * ATTN_TILE + j;
            v_store(at, weight_of(v_load(at), v_set(((const real *)b->part.top)[r]), v_set(((const real *)b->part.sum)[r]), upto));
        }
}

const struct attn_kernel FEW_NAME = {
    .name = TEXT(FEW_NAME),
    .isa = ISA,
    .real_bytes = sizeof(real),
    .rows = FEW_ROWS,
    .reads = READS,
    .also = FEW_ALSO,
    .load = few_load,
    .unload = few_unload,
    .begin = few_begin,
    .edit = few_edit_tile,
    .scores = few_scores,
    .step = few_step,
    .fold = few_fold,
    .finish = few_finish,
    .weights = few_weights,
    .survey = survey,
    .survey_keys = survey_keys,
    .narrow = NARROW,
};
