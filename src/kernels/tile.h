/* tile.h: the block kernel, written once over a small vector vocabulary.
 * SPDX-License-Identifier: MIT
 *
 * The file that includes this defines before:
 *   NAME ISA        the row's symbol and the text of `isa`
 *   TARGET          __attribute__((target(...))) or nothing
 *   real REAL_BITS  float, 32 or double, 64
 *   vec mask LANES  a vector of reals, a truth value per lane, reals in a vector
 *   NV              vectors of queries in a block: rows = NV * LANES; 1 to 4
 *   NB              keys (scores) or channels (values) per register block; NV * NB + NV + 1 registers must exist
 * and these static inline functions (TARGET, FORCE):
 *   v_set(real) v_load(const real *) v_load_any(const real *), the same at any address   v_store(real *, vec), at any address   v_add v_sub v_div v_fma(a, b, c) = a b + c
 *   v_max(a, b)     a > b ? a : b: NaN in a is lost, NaN in b stays (the reference must not become NaN, the weights must)   v_min(a, b)
 *   v_lt(a, b) v_eq(a, b) -> mask   v_pick(mask, yes, no)   v_any(mask)
 *   v_power(a)      a number whose exponent and sign are the low bits of a, or, where SCALES is defined, instructions for both steps of it:
 *   v_round(a)      to nearest even, |a| < 2^20 or NaN or infinite   v_scale(p, n)   p * 2^n, p about 1 or NaN, n whole, -1600 < n < 300
 *   v_fma_seen(p, v, acc)   acc in lanes where p has its sign bit set, else p v + acc
 *   v_seen(const unsigned char *) -> mask: which of LANES bytes are not 0; for few.h
 *   v_no_byte(a, i) -> mask: in which lanes byte i of the real, in memory's order, is 0
 *   v_read_f16(const void *) v_read_bf16(const void *)   LANES numbers of 16 bits at any address; these, where real is float and FEW_NAME is defined
 *   v_even_bf16(vec) v_odd_bf16(vec)   the number of 16 bits in the low or high half of each lane
 *   v_transpose(vec x[LANES])  lane j of x[i] becomes lane i of x[j]
 *   v_transpose_f16(vec x[LANES]) F16_RUN v_first_f16(vec) v_second_f16(vec)   the same for rows of 2 LANES numbers of 16 bits: with R for F16_RUN, x[i] then
 *                   has columns (i / R) 2 R + i % R and, second, that + R
 * Everything below is written with those alone, so all rows compute the same bits. There is no v_mul: a compiler might contract it
 * into an addition that follows; times() is an fma.
 */
#include <math.h>

#include "../kernel.h"

enum { ROWS = NV * LANES };

#include "bf16.h"
#include "f16.h"
#include "lanes.h"

#ifndef PAIRS
#define PAIRS 0 /* 1: products are of pairs of bf16, see pairs.h */
#define READS 0
typedef real element; /* of keys and values in memory */
#else
#define READS 4 /* ATTN_BF16 */
#endif

#define VECTORS(b) ((int)(((b)->m + LANES - 1) / LANES))

/* ---- the two products ------------------------------------------------------------------------------------------------------------- */

/* What the exponentials of a tile need and leave, per lane: the reference, the largest and the least score, and the sum of the weights. */
struct totals {
    real ref[ROWS] __attribute__((aligned(64)));
    real largest[ROWS] __attribute__((aligned(64)));
    real least[ROWS] __attribute__((aligned(64)));
    real sum[ROWS] __attribute__((aligned(64)));
    int  ranged; /* are some keys hidden by position? */
};

/* Keys from .. to - 1 of a tile, of which every lane sees those from clear to clear_end - 1. */
struct stretch {
    int64_t from, clear, clear_end, to;
};

/* What n vectors of queries, from v0 on, see of a tile: the first keys of each, ascending, then their ends, ascending, so that all vectors see the keys
 * in the middle. Where queries see more or less by position, one vector after the other comes in before and leaves behind: a diagonal costs half. Keys
 * are rounded to multiples of 8, what a vector does not see is hidden from it. Of the keys from clear to clear_end - 1 none is. */
struct stairs {
    int     v0, n;
    int64_t edge[2 * NV], clear[NV], clear_end[NV];
};

/* Step k of them, of 2 n - 1: from edge k to the next, vectors from .. to - 1, counted from v0. */
static FORCE void step_vectors(int k, const int n, int *from, int *to)
{
    *from = k < n ? 0 : k - n + 1;
    *to = k < n ? k + 1 : n;
}

/* Keeps the compiler from computing x again, or earlier. */
static FORCE int64_t opaque(int64_t x)
{
    __asm__("" : "+r"(x));
    return x;
}

/* See kernel.h; a copy of the place, which stays in registers. */
static FORCE struct attn_ahead ahead_take(const struct attn_block *b)
{
    struct attn_ahead a;
    a.at = b->ahead->at, a.end = b->ahead->end, a.now = b->ahead->now;
    return a;
}

static FORCE void ahead_leave(const struct attn_block *b, const struct attn_ahead *a)
{
    b->ahead->at = a->at, b->ahead->end = a->end, b->ahead->now = a->now;
}

static FORCE void fetch_soon(struct attn_ahead *a)
{
    __builtin_prefetch((const void *)a->at, 0, 2);
    a->at += 64;
    if (a->at < a->end) return;
    a->at = a->now->from, a->end = a->at + a->now->bytes;
    a->now->from += a->now->step;
    if (--a->now->rows == 0) a->now = a->now->then;
}

/* What n keys or channels of nv vectors add up to in registers: nothing at first; o = o * factor + that. factor NULL: 1, so that units for additions do
 * it while the others multiply. */
FN FORCE void clear(vec (*acc)[NV], const int n, const int nv)
{
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) acc[i][v] = v_set(0);
}

FN FORCE void add_sums(vec (*acc)[NV], const real *factor, real *o, const int n, const int nv)
{
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            real     *at = o + i * ROWS + v * LANES;
            const vec there = v_load(at);
            v_store(at, factor ? v_fma(there, v_load(factor + v * LANES), acc[i][v]) : v_add(there, acc[i][v]));
        }
}

/* What edits the scores of a block of keys, from its first key and vector on: numbers to add, the tile's bytes, of which the first key's is number `byte`
 * of its real, or the positions that see them. */
struct edits {
    const real *add, *seen, *low, *high;
    int64_t     key;
    int         byte;
};
enum edit_way { EDIT_NOTHING, EDIT_ADDS, EDIT_HIDES, EDIT_RANGES };
enum { KEYS_PER_REAL = sizeof(real) }; /* of bytes */

/* nk keys from key j on, a multiple of nk; the compiler knows `byte` where it can. Ranges come alone. */
static FORCE struct edits edits_of(const struct attn_tile *t, int v0, int64_t j, const int nk, int ranged)
{
    struct edits e = {.key = j};
    if (t->edit) e.add = (const real *)t->edit + j * ROWS + v0 * LANES;
    if (t->seen) e.seen = (const real *)t->seen + j / KEYS_PER_REAL * ROWS + v0 * LANES;
    if (nk % KEYS_PER_REAL != 0) e.byte = (int)(j % KEYS_PER_REAL);
    if (ranged) e.low = (const real *)t->low + v0 * LANES, e.high = (const real *)t->high + v0 * LANES;
    return e;
}

/* From which lanes of vector v the block's key i is hidden. */
FN FORCE mask unseen(struct edits e, int v, int i)
{
    return v_no_byte(v_load(e.seen + (e.byte + i) / KEYS_PER_REAL * ROWS + v * LANES), (e.byte + i) % KEYS_PER_REAL);
}

/* yes, or no where bytes or positions hide the block's key i from vector v. */
FN FORCE vec pick_seen(const struct edits *e, const enum edit_way way, const int v, const int i, vec yes, vec no)
{
    if (way == EDIT_HIDES) return v_pick(unseen(*e, v, i), no, yes);
    if (way != EDIT_RANGES) return yes;
    const vec at = v_set((real)(e->key + i));
    return v_pick(v_lt(at, v_load(e->low + v * LANES)), no, v_pick(v_lt(at, v_load(e->high + v * LANES)), yes, no));
}

/* The weight of a hidden score, in memory as the coefficients of exponentials are. */
static const real hidden_weight = -(real)0.0;

/* acc += weight * value over the keys from .. to - 1 for nv vectors from v0 on; hidden: lanes with weight -0 are left out. */
FN FORCE void sum_values(vec (*acc)[NV], const real *p, const real *x, int64_t step, int64_t from, int64_t to, const int nd, const int v0,
                         const int nv, const int hidden, struct attn_ahead *ahead);

/* Sums over the stairs: a step's vectors are literals, as everything that indexes registers. */
FN FORCE void sum_stairs(vec (*acc)[NV], const real *p, const real *x, int64_t step, const struct stairs *s, const int nd, const int nv,
                         const int hidden, struct attn_ahead *ahead)
{
#pragma GCC unroll 8
    for (int k = 0; k < 2 * nv - 1; k++) {
        int v, end;
        step_vectors(k, nv, &v, &end);
        sum_values(acc, p, x, step, s->edge[k], s->edge[k + 1], nd, v, end - v, hidden, ahead);
    }
}

#if PAIRS
#include "pairs.h"
#else
#include "products.h"
#endif

/* The same with the number of vectors as a variable. Each number has a function of its own: a compiler that sees them all in one gives up on registers. */
typedef void score_fn(const struct attn_block *b, const struct attn_tile *t, int v0, int64_t from, int64_t to, struct totals *totals);
typedef void value_fn(const struct attn_block *b, const struct attn_tile *t, const real *factor, const struct stairs *s, int hides);

#define BY_VECTORS(n)                                                                                                                      \
    FN NOINLINE void score_##n(const struct attn_block *b, const struct attn_tile *t, int v0, int64_t from, int64_t to,                    \
                               struct totals *totals)                                                                                      \
    {                                                                                                                                      \
        if (totals)                                                                                                                        \
            score_any(b, t, v0, n, from, to, totals);                                                                                      \
        else                                                                                                                               \
            score_any(b, t, v0, n, from, to, 0);                                                                                           \
    }                                                                                                                                      \
    FN NOINLINE void value_##n(const struct attn_block *b, const struct attn_tile *t, const real *factor, const struct stairs *s,          \
                               int hides)                                                                                                  \
    {                                                                                                                                      \
        value_any(b, t, factor, s, n, hides);                                                                                              \
    }
BY_VECTORS(1)
BY_VECTORS(2)
BY_VECTORS(3)
#if NV > 3
BY_VECTORS(4)
static score_fn *const score_by[] = {score_1, score_2, score_3, score_4};
static value_fn *const value_by[] = {value_1, value_2, value_3, value_4};
#else
static score_fn *const score_by[] = {score_1, score_2, score_3};
static value_fn *const value_by[] = {value_1, value_2, value_3};
#endif

FN void score_keys(const struct attn_block *b, const struct attn_tile *t, int v0, int nv, int64_t from, int64_t to, struct totals *totals)
{
    score_by[nv - 1](b, t, v0, from, to, totals);
}

/* hides: weights may be -0 */
FN void value_stairs(const struct attn_block *b, const struct attn_tile *t, const real *factor, const struct stairs *s, int hides)
{
    value_by[s->n - 1](b, t, factor, s, hides);
}

/* Stairs of nv vectors from v0 on that all see the keys from .. to - 1. */
static FORCE void even_stairs(struct stairs *s, int v0, int nv, int64_t from, int64_t to)
{
    s->v0 = v0, s->n = nv;
    for (int i = 0; i < nv; i++) s->edge[i] = from, s->edge[nv + i] = to, s->clear[i] = from, s->clear_end[i] = to;
}

/* ---- between the products --------------------------------------------------------------------------------------------------------- */

/* What an edited tile adds to the scores of key j. */
FN FORCE vec edit_at(const struct attn_tile *t, int v, int64_t j)
{
    const struct edits e = edits_of(t, v, j, 1, 0);
    return e.add ? v_load(e.add) : v_pick(unseen(e, 0, 0), v_set(-(real)INFINITY), v_set(0));
}

/* Vector v of the score tile in memory, keys from .. to - 1. */
FN void edit_scores(const struct attn_block *b, const struct attn_tile *t, int32_t upto, int v, int64_t from, int64_t to)
{
    const struct editing e = editing_make(b, t, upto);
    const vec zero = v_set(0), slope = e.slope ? v_load(e.slope + v * LANES) : zero, near = e.slope ? v_load(e.near + v * LANES) : zero;
    const vec low = e.low ? v_load(e.low + v * LANES) : zero, high = e.low ? v_load(e.high + v * LANES) : zero;
    for (int64_t j = from; j < to; j++) {
        real *at = (real *)b->s + j * ROWS + v * LANES;
        vec   add = e.adds ? edit_at(t, v, j) : zero;
        v_store(at, edit_score(&e, v_load(at), v_set((real)j), add, slope, near, low, high));
    }
}

/* The reference of a lane that has none: the maximum of the first aligned 8 keys of which it sees any. Also the largest score of keys from .. to - 1. */
FN FORCE void find_reference(const real *s, int64_t from, int64_t to, vec *ref, vec *largest)
{
    const vec hide = v_set(-(real)INFINITY);
    *largest = hide;
    for (int64_t j = from; j < to; j += 8) {
        vec most = hide;
        for (int64_t i = j; i < to && i < j + 8; i++) most = v_max(v_load(s + i * ROWS), most);
        *ref = v_pick(v_eq(*ref, hide), most, *ref);
        *largest = v_max(most, *largest);
    }
}

/* Weights of keys from .. to - 1 of vector v against ref, in the place of scores; returns sum and them, in order. */
FN FORCE vec weigh_keys(const struct attn_block *b, int v, int64_t from, int64_t to, vec ref, vec shift, vec sum)
{
    const vec hide = v_set(-(real)INFINITY);
    for (int64_t j = from; j < to; j++) {
        real *at = (real *)b->s + j * ROWS + v * LANES;
        vec   x = v_load(at), p = v_pick(v_eq(x, hide), v_set(-(real)0.0), exp2_twice(v_sub(x, ref), shift));
        sum = v_add(sum, p);
        v_store(at, p);
    }
    return sum;
}

/* Scores to weights, in place: vector v, keys from a multiple of 8 on. Sets the reference, adds the sum, returns in factor[] what older sums are
 * multiplied by. */
FN void weigh(const struct attn_block *b, int v, int64_t from, int64_t to, real *factor)
{
    real *top = (real *)b->part.top + v * LANES, *sum = (real *)b->part.sum + v * LANES;
    vec   ref = v_load(top), shift = v_load((const real *)b->shift + v * LANES), largest;
    find_reference((real *)b->s + v * LANES, from, to, &ref, &largest);
    mask up = v_lt(v_set(8), v_sub(largest, ref));
    vec  newer = v_pick(up, largest, ref);
    /* a row that saw nothing before has sums of 0: its factor is of no matter, and 1 keeps NaN away */
    vec f = v_pick(up, exp2_plain(v_sub(ref, largest)), v_set(1));
    vec total = weigh_keys(b, v, from, to, newer, shift, v_set(0));
    v_store(factor + v * LANES, f);
    v_store(top, newer);
    v_store(sum, v_fma(v_load(sum), f, total));
}

/* The keys that the lanes of vector v may see by position, from a multiple of 8; clear are those that all of them see. 0 if there are none. */
FN int range(const struct attn_block *b, const struct attn_tile *t, int v, struct stretch *s)
{
    const real *low = t->low, *high = t->high;
    *s = (struct stretch){t->keys, 0, t->keys, 0};
    for (int64_t r = v * LANES; r < (v + 1) * LANES && r < b->m; r++) {
        const int64_t first = (int64_t)low[r], last = low[r] < high[r] ? (int64_t)high[r] : first;
        if (first < last && first < s->from) s->from = first;
        if (first < last && last > s->to) s->to = last;
        if (first > s->clear) s->clear = first;
        if (last < s->clear_end) s->clear_end = last;
    }
    s->from = s->from / 8 * 8;
    if (s->clear >= s->clear_end) s->clear = s->clear_end = s->to; /* no key is clear */
    return s->from < s->to;
}

/* The stairs of a tile; 0 if nobody sees any of it. */
FN int cut_stairs(const struct attn_block *b, const struct attn_tile *t, struct stairs *s)
{
    struct stretch at[NV];
    int            first = NV, end = 0;
    if (!t->low) {
        even_stairs(s, 0, VECTORS(b), 0, t->keys);
        return 1;
    }
    for (int v = 0; v < VECTORS(b); v++)
        if (range(b, t, v, &at[v])) {
            if (v < first) first = v;
            end = v + 1;
        }
    const int n = end - first;
    if (n <= 0) return 0;
    s->v0 = first, s->n = n;
    for (int i = n - 1; i >= 0; i--) { /* all come in before the first one leaves */
        const struct stretch *x = &at[first + i];
        s->edge[i] = i + 1 < n && s->edge[i + 1] < x->from ? s->edge[i + 1] : x->from;
        s->clear[i] = (x->clear + 7) / 8 * 8, s->clear_end[i] = x->clear_end;
    }
    for (int i = 0; i < n; i++) {
        const int64_t up = (at[first + i].to + 7) / 8 * 8, to = up < t->keys ? up : t->keys;
        s->edge[n + i] = s->edge[n + i - 1] > to ? s->edge[n + i - 1] : to;
    }
    return 1;
}

/* ---- the contract ----------------------------------------------------------------------------------------------------------------- */

#if !PAIRS
FN void load(const struct attn_block *b, void *q, int64_t at, int64_t n, const void *const *lines, double factor)
{
    const int64_t m = b->m;
    for (int64_t v = 0; v < VECTORS(b); v++)
        for (int64_t c = 0; c < n; c += LANES) {
            vec x[LANES];
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++) x[r] = v_load_any((const real *)lines[v * LANES + r < m ? v * LANES + r : m - 1] + c);
            v_transpose(x);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                if (c + i >= n) break;
                v_store((real *)q + (at + c + i) * ROWS + v * LANES, scale_query(x[i], factor));
            }
        }
}

#endif

FN void unload(const struct attn_block *b, void *lines, int64_t step, const void *from, int64_t total, int64_t at, int64_t n)
{
    (void)total;
    for (int64_t v = 0; v * LANES < b->m; v++)
        for (int64_t i = 0; i < n; i += LANES) {
            vec x[LANES];
#pragma GCC unroll 16
            for (int j = 0; j < LANES; j++) x[j] = v_load((const real *)from + (at + (i + j < n ? i + j : n - 1)) * ROWS + v * LANES);
            v_transpose(x);
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++)
                if (v * LANES + r < b->m) v_store((real *)lines + (v * LANES + r) * step + i, x[r]);
        }
}

FN void begin(const struct attn_block *b, const struct attn_part *part)
{
    for (int v = 0; v < VECTORS(b) * LANES; v += LANES) {
        v_store((real *)part->top + v, v_set(-(real)INFINITY));
        v_store((real *)part->sum + v, v_set(0));
        for (int64_t c = 0; c < b->value_dim; c++) v_store((real *)part->o + c * ROWS + v, v_set(0));
    }
}

/* Vector v of m rows of bytes: a real takes those of some keys side by side across the transposition. */
FN FORCE void turn_bytes(real *to, int64_t m, int64_t keys, int64_t v, const unsigned char *const *rows)
{
    for (int64_t j = 0; j < keys; j += LANES * KEYS_PER_REAL) {
        vec x[LANES];
#pragma GCC unroll 16
        for (int r = 0; r < LANES; r++)
            x[r] = v_load_any((const real *)(const void *)(rows[v * LANES + r < m ? v * LANES + r : m - 1] + j));
        v_transpose(x);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) v_store(to + (j / KEYS_PER_REAL + i) * ROWS + v * LANES, x[i]);
    }
}

FN void see_tile(void *seen, int64_t m, int64_t keys, const unsigned char *const *rows)
{
    for (int64_t v = 0; v * LANES < m; v++) turn_bytes(seen, m, keys, v, rows);
}

FN void edit_tile(void *edit, int64_t m, int64_t keys, const unsigned char *const *seen, const void *const *add)
{
    const vec              hide = v_set(-(real)INFINITY), domain = v_set((real)ATTN_DOMAIN), zero = v_set(0);
    real                   bytes[ATTN_TILE / KEYS_PER_REAL * ROWS] __attribute__((aligned(64)));
    const struct attn_tile t = {.seen = bytes};
    for (int64_t v = 0; v * LANES < m; v++) {
        if (seen) turn_bytes(bytes, m, keys, v, seen);
        for (int64_t j = 0; j < keys; j += LANES) {
            vec x[LANES];
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++)
                x[r] = add ? v_load_any((const real *)add[v * LANES + r < m ? v * LANES + r : m - 1] + j) : zero;
            v_transpose(x);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                vec y = times(x[i], domain);
                v_store((real *)edit + (j + i) * ROWS + v * LANES,
                        seen ? v_pick(unseen(edits_of(&t, (int)v, j + i, 1, 0), 0, 0), hide, y) : y);
            }
        }
    }
}

/* With hiding by position, all keys are computed all the same: a caller of this half wants to see every one. */
FN void scores(const struct attn_block *b, const struct attn_tile *t, int32_t upto)
{
    score_keys(b, t, 0, VECTORS(b), 0, t->keys, 0);
    if (upto == ATTN_UPTO_SCALED) return;
    for (int v = 0; v < VECTORS(b); v++) edit_scores(b, t, upto, v, 0, t->keys);
}

/* The same through memory, of keys that may be hidden from some queries; first: they make the references that are missing, and start at a multiple of 8. */
FN void weigh_ends(const struct attn_block *b, const struct attn_tile *t, int v, int nv, int64_t from, int64_t to, struct totals *totals,
                   int first)
{
    score_keys(b, t, v, nv, from, to, 0);
    for (const int end = v + nv; v < end; v++) {
        real *at = totals->ref + v * LANES, *most = totals->largest + v * LANES, *sum = totals->sum + v * LANES;
        vec   ref = v_load(at), largest;
        if (t->low || t->edit || t->seen) edit_scores(b, t, ATTN_UPTO_BIASED, v, from, to);
        find_reference((const real *)b->s + v * LANES, from, to, &ref, &largest);
        if (first)
            v_store(at, ref);
        else
            ref = v_load(at); /* where it is missing still, weights of what is seen are infinite */
        v_store(most, v_max(largest, v_load(most)));
        v_store(sum, weigh_keys(b, v, from, to, ref, v_set(0), v_load(sum)));
        take_weights(b, v, from, to);
    }
}

FN void weigh_rest(const struct attn_block *b, const struct attn_tile *t, int v, int nv, int64_t from, int64_t to, struct totals *totals,
                   int ranged)
{
    totals->ranged = ranged;
    if (from < to) score_keys(b, t, v, nv, from, to, totals);
}

/* Scores and weights of a tile that nothing but its edit tile and positions edit: exponentials as soon as a score is there, against the reference so far.
 * Returns 0, having changed nothing but s, if a score is so much larger that the reference must follow, or is -inf by itself; hides: one of the rest may
 * be, or hidden. */
FN FORCE int weigh_fused(const struct attn_block *b, const struct attn_tile *t, const struct stairs *s, struct totals *totals, int *hides)
{
    const real *top = b->part.top;
    const vec   hide = v_set(-(real)INFINITY), none = v_set((real)INFINITY);
    int64_t     known[NV]; /* from this key on the reference is */
    int         stay = 1;
    *hides = t->low || t->edit || t->seen;
    for (int i = 0; i < s->n; i++) {
        const int at = (s->v0 + i) * LANES;
        vec       ref = v_load(top + at);
        v_store(totals->ref + at, ref);
        v_store(totals->largest + at, hide);
        v_store(totals->least + at, none);
        v_store(totals->sum + at, v_set(0));
        known[i] = 0;
        if (v_any(v_eq(ref, hide))) known[i] = s->clear[i] + 8, *hides = 1;
    }
    for (int k = 0; k < 2 * s->n - 1; k++) {
        const int64_t from = s->edge[k], to = s->edge[k + 1];
        int64_t       first = from, a = from, z = to;
        int           v, end;
        step_vectors(k, s->n, &v, &end);
        for (int i = v; i < end; i++) {
            if (known[i] > first) first = known[i];
            if (s->clear[i] > a) a = s->clear[i];
            if (s->clear_end[i] < z) z = s->clear_end[i];
        }
        const int nv = end - v;
        v += s->v0;
        const int twice = t->edit || t->seen; /* where positions hide too: in registers, one thing edits */
        if (twice && a > first) first = a;
        first = first < to ? first : to, a = a > first ? a < to ? a : to : first;
        z = z > a ? z < to ? a + (z - a) / NB * NB : to : a;
        if (from < first) weigh_ends(b, t, v, nv, from, first, totals, 1);
        weigh_rest(b, t, v, nv, first, a, totals, 1);
        weigh_rest(b, t, v, nv, a, z, totals, 0);
        if (twice && z < to)
            weigh_ends(b, t, v, nv, z, to, totals, 0);
        else
            weigh_rest(b, t, v, nv, z, to, totals, 1);
    }
    for (int i = 0; i < s->n; i++) stay &= stays(totals, s->v0 + i);
    return stay;
}

/* Weights of vector v, their sum taken, before they meet their values. */
FN void drop_weights(const struct attn_block *b, const struct attn_tile *t, int v, int64_t from, int64_t to)
{
    for (int64_t at = from * ROWS + v * LANES; at < to * ROWS; at += ROWS)
        v_store((real *)b->s + at, dropped(v_load((const real *)b->s + at), v_load((const real *)t->drop + at), v_set((real)t->raise)));
}

/* The same for every tile, and the reference follows. */
FN void weigh_all(const struct attn_block *b, const struct attn_tile *t, const struct stairs *s, real *factor)
{
    const int edited = t->edit || t->seen || t->low || b->slope || b->cap > 0;
    for (int k = 0; k < 2 * s->n - 1; k++) {
        int v, end;
        step_vectors(k, s->n, &v, &end);
        if (s->edge[k] < s->edge[k + 1]) score_keys(b, t, s->v0 + v, end - v, s->edge[k], s->edge[k + 1], 0);
    }
    for (int i = 0; i < s->n; i++) {
        const int     v = s->v0 + i;
        const int64_t from = s->edge[i], to = s->edge[s->n + i];
        if (edited) edit_scores(b, t, ATTN_UPTO_BIASED, v, from, to);
        weigh(b, v, from, to, factor);
        if (t->drop) drop_weights(b, t, v, from, to);
        take_weights(b, v, from, to);
    }
}

FN void step(const struct attn_block *b, const struct attn_tile *t)
{
    const int     plain = !b->slope && !(b->cap > 0) && !b->shifted && !t->drop;
    real          factor[ROWS] __attribute__((aligned(64)));
    struct stairs s;
    struct totals totals;
    if (!cut_stairs(b, t, &s)) return;
    const int wild = take_values(b, t);
    int       hides = 1;
    const int fused = plain && !(PAIRS && wild) && weigh_fused(b, t, &s, &totals, &hides);
    if (!fused) hides = 1, weigh_all(b, t, &s, factor);
    for (int at = s.v0 * LANES; fused && at < (s.v0 + s.n) * LANES; at += LANES) {
        real *sum = (real *)b->part.sum + at;
        v_store((real *)b->part.top + at, v_load(totals.ref + at));
        v_store(sum, v_add(v_load(sum), v_load(totals.sum + at)));
    }
    value_stairs(b, t, fused ? 0 : factor + s.v0 * LANES, &s, wild && hides);
}

FN void fold(const struct attn_block *b, const struct attn_part *into)
{
    const vec one = v_set(1);
    for (int v = 0; v < VECTORS(b); v++) {
        real *top = (real *)into->top + v * LANES, *sum = (real *)into->sum + v * LANES;
        vec   there = v_load(top), here = v_load((real *)b->part.top + v * LANES), most = v_max(there, here);
        vec   f = v_pick(v_eq(there, most), one, exp2_plain(v_sub(there, most)));
        vec   g = v_pick(v_eq(here, most), one, exp2_plain(v_sub(here, most)));
        v_store(top, most);
        v_store(sum, v_fma(g, v_load((real *)b->part.sum + v * LANES), times(f, v_load(sum))));
        for (int64_t c = 0; c < b->value_dim; c++) {
            real *o = (real *)into->o + c * ROWS + v * LANES;
            v_store(o, v_fma(g, v_load((real *)b->part.o + c * ROWS + v * LANES), times(f, v_load(o))));
        }
    }
}

FN int32_t give_shifts(const struct attn_block *b, int v, vec wild, real *shift)
{
    real    lanes[LANES] __attribute__((aligned(64)));
    int32_t found = 0;
    if (!not_zero(wild)) return 0;
    v_store(lanes, wild);
    for (int r = v * LANES; r < (v + 1) * LANES && r < b->m; r++)
        found |= give_shift(lanes[r - v * LANES], ((const real *)b->part.sum)[r], &shift[r]);
    return found;
}

FN int32_t finish(const struct attn_block *b, const void *sinks, void *shifts, double *lse)
{
    int32_t found = 0;
    for (int v = 0; v < VECTORS(b); v++) {
        real          *top = (real *)b->part.top + v * LANES, *sum = (real *)b->part.sum + v * LANES;
        const real    *sink = (const real *)sinks + v * LANES;
        struct ending  e = ending_make(v_load(top), v_load(sum), v_load(sink), v_load((const real *)shifts + v * LANES));
        const vec      zero = v_set(0);
        vec            wild = zero;
        struct natural n[LANES];
        for (int64_t c = 0; c < b->value_dim; c++) {
            real *o = (real *)b->part.o + c * ROWS + v * LANES;
            wild = v_fma(v_load(o), zero, wild);
            v_store(o, v_add(times(v_load(o), e.factor), zero));
        }
        found |= give_shifts(b, v, wild, (real *)shifts);
        if (lse) ending_lanes(&e, n);
        for (int r = 0; lse && r < LANES && v * LANES + r < b->m; r++) lse[v * LANES + r] = natural_lse(&n[r], sink[r]);
        v_store(top, e.top);
        v_store(sum, v_div(v_set(1), e.all));
    }
    return found;
}

FN void weights(const struct attn_block *b, int64_t keys, int32_t upto)
{
    for (int v = 0; v < VECTORS(b); v++)
        for (int64_t j = 0; j < keys; j++) {
            real *at = (real *)b->s + j * ROWS + v * LANES;
            v_store(at, weight_of(v_load(at), v_load((real *)b->part.top + v * LANES), v_load((real *)b->part.sum + v * LANES), upto));
        }
}

#if PAIRS
#define WHOLE_BLOCK 0
#else
#define WHOLE_BLOCK whole
#include "whole.h"
#endif

#if REAL_BITS == 32 && !PAIRS && defined(FEW_NAME)
#define WIDEN widen
FN void widen(void *to, const void *from, int64_t step, int64_t rows, int64_t n, int64_t reads)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < n; c += LANES) {
            const char *at = (const char *)from + (i * step + c) * 2;
            v_store((real *)to + i * n + c, reads == ATTN_READ_F16 ? v_read_f16(at) : v_read_bf16(at));
        }
}
#else
#define WIDEN 0
#endif

#if REAL_BITS == 32
#define NARROW narrow
/* As f16.c and bf16.c do, in vectors of this row's. */
FN void narrow(void *to, const void *from, int64_t n, int64_t reads)
{
    uint16_t    *x = to;
    const float *f = from;
    if (reads == ATTN_READ_F16)
        for (int64_t i = 0; i < n; i++) x[i] = narrow_f16(f[i]);
    else
        for (int64_t i = 0; i < n; i++) x[i] = narrow_bf16(f[i]);
}
#else
#define NARROW 0
#endif

#if PAIRS
#define GRADIENT 0 /* f32 rows have them */
#else
#define GRADIENT &gradient
#include "backward.h"
#endif
#include "inspect.h"

const struct attn_kernel NAME = {
    .name = TEXT(NAME),
    .isa = ISA,
    .real_bytes = sizeof(real),
    .rows = ROWS,
    .reads = READS,
    .packs = PAIRS,
    .load = load,
    .unload = unload,
    .begin = begin,
    .edit = edit_tile,
    .see = see_tile,
    .scores = scores,
    .step = step,
    .fold = fold,
    .finish = finish,
    .weights = weights,
    .survey = survey,
    .survey_keys = survey_keys,
    .gradient = GRADIENT,
    .widen = WIDEN,
    .narrow = NARROW,
    .whole = WHOLE_BLOCK,
};

#ifdef FEW_NAME
#include "few.h"
#endif
