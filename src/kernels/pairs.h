/* pairs.h: both products of tile.h for rows whose CPU multiplies bf16 in pairs; included there in place of its own.
 * SPDX-License-Identifier: MIT
 *
 * A unit is two elements that are multiplied together, 32 bits: two channels of a query or key, or two keys of a weight or value. Units lie in
 * vectors and arrays as reals do. Beyond what tile.h lists the file defines PAIRS as 1, element, an unsigned 16-bit number, and
 *   v_unit(const element *)   the two elements there, at any address, in every lane   v_half_unit: one and 0
 *   v_some(const element *, n)   2 LANES elements; only n of them are read, the others are 0
 *   v_dot(a, b, acc)   acc + both products of each unit, always in the same order and with the same roundings, whichever of a and b is which
 *   v_dot_seen(p, v, acc)   the same, where each element of p with its sign bit set is left out
 *   v_pair(even, odd)   units of two reals each, rounded to nearest even   v_store_row(element *, vec): reals as elements, side by side
 *   v_even v_odd v_join   the two elements of units as reals, and back: bits that elements do not have are cut off
 *   v_zip(a, b, &x, &y) then v_unzip(&x, &y)   x, y = units (a[0], b[0]), (a[1], b[1]), ...; between the two, lanes lie in an order of their own
 *   v_largest(most, a)   the larger size of each element, as bits; most is 0 at first   v_wild(most)   is any infinite or NaN?
 *   v_all(mask)
 * and v_scale takes any p and n.
 *
 * The canonical order of kernel.h, restated:
 *   - queries are elements too: times a power of two, which rounds nothing; what is left of the factor, from 1 to 2, goes to the score, so
 *     that it is rounded once
 *   - a score is one chain of v_dot over pairs of channels in order, from +0, times that rest
 *   - weights are rounded to elements; a channel of a tile is one chain of v_dot over pairs of keys in order, pairs starting at even keys; the
 *     sum of the weights is of the weights before rounding
 * An odd number of channels or keys is filled up with zeros, which change nothing.
 */

/* What the factor of queries is taken apart into: sign * 2^power * rest. */
struct split {
    real sign, power, rest;
};

FN struct split split_factor(double factor)
{
    int    exponent;
    double part = frexp(fabs(factor), &exponent);
    if (factor == 0) return (struct split){0, 0, 1};
    return (struct split){factor < 0 ? -1 : 1, (real)(exponent - 1), (real)(2 * part)};
}

FN FORCE vec scale_half(vec x, const struct split *f)
{
    const vec most = v_set((real)0x1.fep127), zero = v_set(0);
    vec       y = v_scale(times(x, v_set(f->sign)), v_set(f->power)), size = v_max(x, v_sub(zero, x));
    return f->power <= 0 ? y : v_pick(v_lt(size, v_set((real)INFINITY)), v_max(v_sub(zero, most), v_min(most, y)), y);
}

/* Units of a query; a finite number stays finite. */
FN FORCE vec scale_units(vec units, const struct split *f)
{
    return v_join(scale_half(v_even(units), f), scale_half(v_odd(units), f));
}

/* ---- scores ----------------------------------------------------------------------------------------------------------------------- */

/* The first element of row i: an address of two registers each, as in tile.h. */
static FORCE const element *pick_row(const element *k, const element *k4, int64_t step, int64_t step3, const int i)
{
    const element *at = i < 4 ? k : k4;
    return i % 4 == 3 ? at + step3 : at + i % 4 * step;
}

/* The weight of a score that lacks the factor twice / 2; h: what a hidden one has. */
FN FORCE vec weigh_score(const real *c, const real *h, vec acc, vec twice, vec ref, const struct edits *edits, const int v, const int i,
                         const enum edit_way way)
{
    vec x = times(acc, twice);
    if (way != EDIT_ADDS) return pick_seen(edits, way, v, i, exp2_any(c, v_sub(x, ref)), v_set(*h));
    const vec add = v_load(edits->add + i * ROWS + v * LANES);
    return v_pick(v_eq(add, v_set(-(real)INFINITY)), v_set(*h), exp2_any(c, v_sub(v_fma(add, v_set(2), x), ref)));
}

/* Scores in registers to weights, see products.h; scores and references are doubled here, as exp2_any() wants them. */
FN FORCE void weigh_block(vec (*acc)[NV], struct edits edits, real rest, real *s, int v0, const int nk, const int nv, struct totals *totals,
                          const enum edit_way way)
{
    const vec   twice = v_set(2 * rest);
    const real *c = exp2_c[0], *h = &hidden_weight;
    __asm__(""
            : "+r"(c),
              "+r"(h)); /* constants are loaded here and not before the loop, where they would push accumulators out of registers */
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) {
        const int lane = (v0 + v) * LANES;
        vec       ref = v_load(totals->ref + lane), sum = v_load(totals->sum + lane);
        ref = v_add(ref, ref);
#pragma GCC unroll 16
        for (int i = 0; i < nk; i += 2) {
            vec even = weigh_score(c, h, acc[i][v], twice, ref, &edits, v, i, way), odd = v_set(0);
            sum = v_add(sum, even);
            if (i + 1 < nk) {
                odd = weigh_score(c, h, acc[i + 1][v], twice, ref, &edits, v, i + 1, way);
                sum = v_add(sum, odd);
            }
            v_store(s + i / 2 * ROWS + v * LANES, v_pair(even, odd));
        }
        v_store(totals->sum + lane, sum);
    }
}

/* nk keys against nv vectors of queries; see products.h. */
FN FORCE void score_block(const real *q, const element *k, int64_t step, int64_t dim, real rest, real *s, int v0, const int nk,
                          const int nv, struct totals *totals, struct edits edits, struct attn_ahead *ahead)
{
    vec acc[NB][NV];
    clear(acc, nk, nv);
    const element *k4 = (const element *)((uintptr_t)k + 8 * (uintptr_t)step); /* may be no address at all */
    const int64_t  step3 = opaque((int64_t)(3 * (uint64_t)step));
    for (int64_t c = 0; c < dim; c += 2, q += ROWS, k += 2, k4 += 2) {
        vec x[NV];
        fetch_soon(ahead);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) x[v] = v_load(q + v * LANES);
        if (c + 1 == dim) {
#pragma GCC unroll 16
            for (int i = 0; i < nk; i++) {
                vec y = v_half_unit(pick_row(k, k4, step, step3, i));
#pragma GCC unroll 4
                for (int v = 0; v < nv; v++) acc[i][v] = v_dot(x[v], y, acc[i][v]);
            }
            break;
        }
#pragma GCC unroll 16
        for (int i = 0; i < nk; i++) {
            vec y = v_unit(pick_row(k, k4, step, step3, i));
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) acc[i][v] = v_dot(x[v], y, acc[i][v]);
        }
    }
    if (!totals) {
#pragma GCC unroll 16
        for (int i = 0; i < nk; i++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) v_store(s + i * ROWS + v * LANES, times(acc[i][v], v_set(rest)));
        return;
    }
    if (edits.add)
        weigh_block(acc, edits, rest, s, v0, nk, nv, totals, EDIT_ADDS);
    else if (edits.seen)
        weigh_block(acc, edits, rest, s, v0, nk, nv, totals, EDIT_HIDES);
    else if (edits.low)
        weigh_block(acc, edits, rest, s, v0, nk, nv, totals, EDIT_RANGES);
    else
        weigh_block(acc, edits, rest, s, v0, nk, nv, totals, EDIT_NOTHING);
}

/* Whether vector v may keep its reference: no score is so much larger that its weight, and so the sum, is 2^16; and twice the reference is a number.
 * Where many weights make such a sum the tile is done again the other way, which gives the same bits. */
FN FORCE int stays(const struct totals *totals, int v)
{
    const vec ref = v_load(totals->ref + v * LANES), zero = v_set(0), most = v_set((real)65000);
    const vec size = v_pick(v_eq(ref, v_set(-(real)INFINITY)), zero, v_max(ref, v_sub(zero, ref)));
    return v_all(v_lt(v_load(totals->sum + v * LANES), most)) && v_all(v_lt(size, v_set((real)1e38)));
}

/* Keys from .. to - 1 of the tile, nv vectors from vector v0 on; with totals, a pair of keys takes the place of one. */
FN FORCE void score_any(const struct attn_block *b, const struct attn_tile *t, int v0, const int nv, int64_t from, int64_t to,
                        struct totals *totals)
{
    const element    *k = t->k;
    const real       *q = (const real *)b->q + v0 * LANES, rest = split_factor(b->factor).rest;
    real             *s = (real *)b->s + v0 * LANES;
    const int64_t     slow = totals ? 2 : 1;
    const int         ranged = totals && totals->ranged;
    struct attn_ahead ahead = ahead_take(b);
    int64_t           j = from;
    for (; j + NB <= to; j += NB)
        score_block(q, k + j * t->k_step, t->k_step, b->dim, rest, s + j / slow * ROWS, v0, NB, nv, totals, edits_of(t, v0, j, NB, ranged),
                    &ahead);
    for (; j + 2 <= to; j += 2)
        score_block(q, k + j * t->k_step, t->k_step, b->dim, rest, s + j / slow * ROWS, v0, 2, nv, totals, edits_of(t, v0, j, 2, ranged),
                    &ahead);
    if (j < to)
        score_block(q, k + j * t->k_step, t->k_step, b->dim, rest, s + j / slow * ROWS, v0, 1, nv, totals, edits_of(t, v0, j, 1, ranged),
                    &ahead);
    ahead_leave(b, &ahead);
}

/* ---- weights times values ----------------------------------------------------------------------------------------------------------- */

#define UNITS_WIDE(n) (((n) + LANES - 1) / LANES * LANES) /* channels of a pair of packed keys */

/* `some` channels of two keys, up to 2 LANES, as units. */
FN FORCE vec take_pair(const element *v, const element *next, int64_t some, real *to, vec most)
{
    vec even = v_some(v, some), odd = next ? v_some(next, some) : v_set(0), x, y;
    v_zip(even, odd, &x, &y);
    v_unzip(&x, &y);
    v_store(to, x);
    if (some > LANES) v_store(to + LANES, y);
    return v_largest(v_largest(most, even), odd);
}

/* The tile's values into t->pack, [pair of keys][channels]. Returns 1 if any is infinite or NaN: only then may a hidden one do harm. */
FN int take_values(const struct attn_block *b, const struct attn_tile *t)
{
    const element *v = t->v;
    const int64_t  dim = b->value_dim;
    real          *to = t->pack->at;
    vec            most = v_set(0);
    if (t->pack->keys >= t->keys) return (int)t->pack->wild;
    for (int64_t j = 0; j < t->keys; j += 2, to += UNITS_WIDE(dim)) {
        const element *even = v + j * t->v_step, *odd = j + 1 < t->keys ? even + t->v_step : 0;
        int64_t        c = 0;
        for (; odd && c + 2 * LANES <= dim; c += 2 * LANES) most = take_pair(even + c, odd + c, 2 * LANES, to + c, most);
        for (; c < dim; c += 2 * LANES) most = take_pair(even + c, odd ? odd + c : 0, dim - c, to + c, most);
    }
    t->pack->keys = t->keys;
    t->pack->wild = v_wild(most);
    return (int)t->pack->wild;
}

/* A weight that is shifted below the smallest normal number would be rounded to 0, and 0 times an infinite value is NaN. Where a row is shifted at all,
 * its sums are so large that the smallest normal number will do. */
FN FORCE vec keep_weight(vec p, vec shift)
{
    const vec zero = v_set(0), least = v_pick(v_lt(zero, shift), v_set((real)0x1p-126), zero);
    return v_pick(v_lt(zero, p), v_max(least, p), p);
}

/* Vector v of the weights of the keys from .. to - 1, from an even key: a pair takes the place of one. */
FN void take_weights(const struct attn_block *b, int v, int64_t from, int64_t to)
{
    const vec shift = v_load((const real *)b->shift + v * LANES);
    real     *s = (real *)b->s + v * LANES;
    for (int64_t j = from; j < to; j += 2) {
        vec even = keep_weight(v_load(s + j * ROWS), shift), odd = v_set(-(real)0.0);
        if (j + 1 < to) odd = keep_weight(v_load(s + (j + 1) * ROWS), shift);
        v_store(s + j / 2 * ROWS, v_pair(even, odd));
    }
}

/* from is even, or the end of all keys. */
FN FORCE void sum_values(vec (*acc)[NV], const real *p, const real *x, int64_t step, int64_t from, int64_t to, const int nd, const int v0,
                         const int nv, const int hidden, struct attn_ahead *ahead)
{
    for (int64_t j = (from + 1) / 2; j < (to + 1) / 2; j++) {
        vec w[NV];
        fetch_soon(ahead);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) w[v] = v_load(p + j * ROWS + (v0 + v) * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < nd; i++) {
            vec y = v_unit((const element *)(x + j * step + i));
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) acc[i][v0 + v] = hidden ? v_dot_seen(w[v], y, acc[i][v0 + v]) : v_dot(w[v], y, acc[i][v0 + v]);
        }
    }
}

/* nd channels: o = o * factor + sum over the pairs of weight * value. */
FN FORCE void value_block(const real *p, const real *x, int64_t step, const struct stairs *s, int hides, const real *factor, real *o,
                          const int nd, const int nv, struct attn_ahead *ahead)
{
    vec acc[NB][NV];
    clear(acc, nd, nv);
    if (hides)
        sum_stairs(acc, p, x, step, s, nd, nv, 1, ahead);
    else
        sum_stairs(acc, p, x, step, s, nd, nv, 0, ahead);
    add_sums(acc, factor, o, nd, nv);
}

FN FORCE void value_any(const struct attn_block *b, const struct attn_tile *t, const real *factor, const struct stairs *s, const int nv,
                        int hides)
{
    const real       *x = t->pack->at, *p = (const real *)b->s + s->v0 * LANES;
    real             *o = (real *)b->part.o + s->v0 * LANES;
    const int64_t     step = UNITS_WIDE(b->value_dim);
    int64_t           c = 0;
    struct attn_ahead ahead = ahead_take(b);
    for (; c + NB <= b->value_dim; c += NB) value_block(p, x + c, step, s, hides, factor, o + c * ROWS, NB, nv, &ahead);
    for (; c < b->value_dim; c++) value_block(p, x + c, step, s, hides, factor, o + c * ROWS, 1, nv, &ahead);
    ahead_leave(b, &ahead);
}

/* ---- the contract ----------------------------------------------------------------------------------------------------------------- */

FN void load(const struct attn_block *b, void *q, int64_t at, int64_t n, const void *const *lines, double factor)
{
    const int64_t      m = b->m;
    const struct split f = split_factor(factor);
    for (int64_t v = 0; v < VECTORS(b); v++)
        for (int64_t c = 0; c < n; c += 2 * LANES) {
            vec x[LANES];
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++) x[r] = v_some((const element *)lines[v * LANES + r < m ? v * LANES + r : m - 1] + c, n - c);
            v_transpose(x);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                if (c + 2 * i >= n) break;
                v_store((real *)q + ((at + c) / 2 + i) * ROWS + v * LANES, scale_units(x[i], &f));
            }
        }
}
