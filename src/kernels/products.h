/* products.h: both products of tile.h, scores and sums of values, for rows that multiply reals; pairs.h takes its place for pairs of bf16.
 * SPDX-License-Identifier: MIT
 *
 * Included by tile.h, over the same vocabulary.
 */

/* Row n, which may be past the last one: unsigned, as the address may then be no address at all. */
static FORCE const real *row_at(const real *k, int64_t step, uint64_t n)
{
    return (const real *)((uintptr_t)k + n * (uint64_t)step * sizeof(real));
}

/* The first number of row i: an address of two registers each, so that all rows of a block need no more than five. */
static FORCE real pick_row(const real *k, const real *k4, const real *k8, int64_t step, int64_t step3, const int i)
{
    const real *at = i < 4 ? k : i < 8 ? k4 : k8;
    return i % 4 == 3 ? at[step3] : at[i % 4 * step];
}

/* clang fetches the number of the next key or channel (by the address `next`) while it still needs the last one (y), which is one register more than the
 * 16 of AVX2, and so it moves accumulators to the stack and back: 23.2 ms in place of 11.0 for 2 heads x 1024 x 1024 x 128. */
#if defined(__clang__) && defined(__x86_64__) && NV * NB + NV + 1 == 16
#define IN_TURN(next, y, sum) __asm__ volatile("" : "+r"(next), "+x"(y) : "x"(sum))
#else
#define IN_TURN(next, y, sum) (void)0
#endif

/* A block of NB keys reads a line of memory in so many channels, a block of NB channels in so many keys: then another is fetched. Where instructions are
 * few beside the products, scores fetch at each channel: the last block of a head wants all keys and values of the next. */
enum { PER_LINE = 64 / (int)sizeof(real) >= NB ? 64 / (int)sizeof(real) / NB : 1, PER_SCORE = NV * NB + NV + 1 > 16 ? 1 : PER_LINE };

/* The same, as a number that the compiler does not know where 16 registers leave none to unroll with. */
#define AT_ONCE(n) (NV * NB + NV + 1 > 16 ? (n) : opaque(n))

FN FORCE void score_channel(vec (*acc)[NV], const real *q, const real *k, const real *k4, const real *k8, int64_t step, int64_t step3,
                            const int nk, const int nv)
{
    vec x[NV];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) x[v] = v_load(q + v * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < nk; i++) {
        vec y = v_set(pick_row(k, k4, k8, step, step3, i));
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) acc[i][v] = v_fma(x[v], y, acc[i][v]);
        IN_TURN(step, y, acc[i][nv - 1]);
    }
}

/* Scores in registers to weights against the reference of totals. What hides a score hides NaN and infinity too: where that is added to -inf, NaN in
 * the sum sends the tile the other way, and where a byte hides it, so does an infinite one. */
FN FORCE void weigh_block(vec (*acc)[NV], struct edits edits, real *s, int v0, const int nk, const int nv, struct totals *totals,
                          const enum edit_way way)
{
    const vec   hide = v_set(-(real)INFINITY);
    const real *c = exp2_c[0], *h = &hidden_weight;
    __asm__(""
            : "+r"(c),
              "+r"(h)); /* the coefficients are loaded here and not before the loop, where they would push accumulators out of registers */
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) {
        const int lane = (v0 + v) * LANES;
        vec       ref = v_load(totals->ref + lane), sum = v_load(totals->sum + lane);
        vec       most = v_load(totals->largest + lane), least = v_load(totals->least + lane);
#pragma GCC unroll 16
        for (int i = 0; i < nk; i++) {
            const int at = i * ROWS + v * LANES;
            vec       x = way == EDIT_ADDS ? v_add(acc[i][v], v_load(edits.add + at)) : acc[i][v], t = v_sub(x, ref);
#ifdef SCALES
            vec p = exp2_any(c, v_add(t, t));
#else
            vec p = exp2_by(c, t, v_set(0));
            most = v_max(pick_seen(&edits, way, v, i, x, hide), most);
#endif
            if (way == EDIT_ADDS)
                p = v_pick(v_eq(x, hide), v_set(*h), p);
            else
                least = v_min(x, least);
            p = pick_seen(&edits, way, v, i, p, v_set(*h));
            sum = v_add(sum, p);
            v_store(s + at, p);
        }
        v_store(totals->largest + lane, most);
        v_store(totals->least + lane, least);
        v_store(totals->sum + lane, sum);
    }
}

/* nk keys against nv vectors of queries; nk and nv are literals where this is called, so that acc stays in registers. With totals, scores become
 * weights while they are there. */
FN FORCE void score_block(const real *q, const real *k, int64_t step, int64_t dim, real *s, int v0, const int nk, const int nv,
                          struct totals *totals, struct edits edits, struct attn_ahead *ahead)
{
    vec acc[NB][NV];
    clear(acc, nk, nv);
    const real   *k4 = row_at(k, step, 4), *k8 = row_at(k, step, 8);
    const int64_t step3 = opaque((int64_t)(3 * (uint64_t)step));
    int64_t       left = dim;
    for (; left >= PER_SCORE; left -= PER_SCORE) {
        fetch_soon(ahead);
        for (int64_t i = 0; i < AT_ONCE(PER_SCORE); i++, q += ROWS, k++, k4++, k8++) {
            q = (const real *)opaque((int64_t)q); /* one channel after the other */
            score_channel(acc, q, k, k4, k8, step, step3, nk, nv);
        }
    }
    for (; left > 0; left--, q += ROWS, k++, k4++, k8++) score_channel(acc, q, k, k4, k8, step, step3, nk, nv);
    if (!totals) {
#pragma GCC unroll 16
        for (int i = 0; i < nk; i++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) v_store(s + i * ROWS + v * LANES, acc[i][v]);
        return;
    }
    if (edits.add)
        weigh_block(acc, edits, s, v0, nk, nv, totals, EDIT_ADDS);
    else if (edits.seen)
        weigh_block(acc, edits, s, v0, nk, nv, totals, EDIT_HIDES);
    else if (edits.low)
        weigh_block(acc, edits, s, v0, nk, nv, totals, EDIT_RANGES);
    else
        weigh_block(acc, edits, s, v0, nk, nv, totals, EDIT_NOTHING);
}

/* Keys from .. to - 1 of the tile, nv vectors from vector v0 on. */
FN FORCE void score_any(const struct attn_block *b, const struct attn_tile *t, int v0, const int nv, int64_t from, int64_t to,
                        struct totals *totals)
{
    const real       *k = t->k, *q = (const real *)b->q + v0 * LANES;
    real             *s = (real *)b->s + v0 * LANES;
    const int         ranged = totals && totals->ranged;
    int64_t           j = from;
    struct attn_ahead ahead = ahead_take(b);
    for (; j + NB <= to; j += NB)
        score_block(q, k + j * t->k_step, t->k_step, b->dim, s + j * ROWS, v0, NB, nv, totals, edits_of(t, v0, j, NB, ranged), &ahead);
    for (; j < to; j++)
        score_block(q, k + j * t->k_step, t->k_step, b->dim, s + j * ROWS, v0, 1, nv, totals, edits_of(t, v0, j, 1, ranged), &ahead);
    ahead_leave(b, &ahead);
}

FN FORCE void sum_key(vec (*acc)[NV], const real *p, const real **x, const int nd, const int v0, const int nv, const int hidden)
{
    vec w[NV];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) w[v] = v_load(p + (v0 + v) * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < nd; i++) {
        vec y = v_set((*x)[i]);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) acc[i][v0 + v] = hidden ? v_fma_seen(w[v], y, acc[i][v0 + v]) : v_fma(w[v], y, acc[i][v0 + v]);
        if (!hidden) IN_TURN(*x, y, acc[i][v0 + nv - 1]);
    }
}

FN FORCE void sum_values(vec (*acc)[NV], const real *p, const real *x, int64_t step, int64_t from, int64_t to, const int nd, const int v0,
                         const int nv, const int hidden, struct attn_ahead *ahead)
{
    int64_t left = to - from;
    p += from * ROWS, x += from * step;
    for (; left >= PER_LINE; left -= PER_LINE) {
        fetch_soon(ahead);
        for (int64_t i = 0; i < AT_ONCE(PER_LINE); i++, p += ROWS, x += step) {
            p = (const real *)opaque((int64_t)p);
            sum_key(acc, p, &x, nd, v0, nv, hidden);
        }
    }
    for (; left > 0; left--, p += ROWS, x += step) sum_key(acc, p, &x, nd, v0, nv, hidden);
}

/* Is any of the sums infinite or NaN? */
FN FORCE int wild(vec (*acc)[NV], const int n, const int nv)
{
    const vec zero = v_set(0);
    vec       x[NV], any = zero;
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) x[v] = zero;
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) x[v] = v_fma(acc[i][v], zero, x[v]);
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) any = v_add(any, x[v]);
    return not_zero(any);
}

/* nd channels: o = o * factor + sum over the keys of weight * value. hides: there may be weights of -0. They do no harm, as 0 times a value is 0, unless
 * the value is infinite or NaN: then so is the sum, and it is taken again without them. */
FN FORCE void value_block(const real *p, const real *x, int64_t step, const struct stairs *s, int hides, const real *factor, real *o,
                          const int nd, const int nv, struct attn_ahead *ahead)
{
    vec acc[NB][NV];
    clear(acc, nd, nv);
    sum_stairs(acc, p, x, step, s, nd, nv, 0, ahead);
    if (hides && wild(acc, nd, nv)) {
        clear(acc, nd, nv);
        sum_stairs(acc, p, x, step, s, nd, nv, 1, ahead);
    }
    add_sums(acc, factor, o, nd, nv);
}

FN FORCE void value_any(const struct attn_block *b, const struct attn_tile *t, const real *factor, const struct stairs *s, const int nv,
                        int hides)
{
    const real       *x = t->v, *p = (const real *)b->s + s->v0 * LANES;
    real             *o = (real *)b->part.o + s->v0 * LANES;
    int64_t           c = 0;
    struct attn_ahead ahead = ahead_take(b);
    for (; c + NB <= b->value_dim; c += NB) value_block(p, x + c, t->v_step, s, hides, factor, o + c * ROWS, NB, nv, &ahead);
    for (; c < b->value_dim; c++) value_block(p, x + c, t->v_step, s, hides, factor, o + c * ROWS, 1, nv, &ahead);
    ahead_leave(b, &ahead);
}

/* Values and weights are used as they are; a hidden value may be NaN. */
FN FORCE int take_values(const struct attn_block *b, const struct attn_tile *t)
{
    (void)b, (void)t;
    return 1;
}

FN FORCE void take_weights(const struct attn_block *b, int v, int64_t from, int64_t to)
{
    (void)b, (void)v, (void)from, (void)to;
}

/* Whether vector v may keep its reference: no score is so much larger, none is -inf. Where SCALES is, the sum tells: of a score that is so much larger the
 * weight is more than that. (If it is the sum of many, the tile is done again the other way, which gives the same bits.) Elsewhere v_power makes anything. */
FN FORCE int stays(const struct totals *totals, int v)
{
    if (v_any(v_eq(v_load(totals->least + v * LANES), v_set(-(real)INFINITY)))) return 0;
#ifdef SCALES
    const vec zero = v_set(0), one = v_set(1);
    return !v_any(v_eq(v_pick(v_lt(v_load(totals->sum + v * LANES), v_set((real)65000)), zero, one), one));
#else
    const vec sum = v_load(totals->sum + v * LANES);
    if (not_zero(v_sub(sum, sum))) return 0;
    return !v_any(v_lt(v_set(8), v_sub(v_load(totals->largest + v * LANES), v_load(totals->ref + v * LANES))));
#endif
}
