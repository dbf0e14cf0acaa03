/* whole.h: blocks whose keys are one tile, which is all that short sequences have: sums of values with channels as lanes, so that they need not be
 * kept, transposed and read again.
 * SPDX-License-Identifier: MIT
 *
 * Included by tile.h, over the same vocabulary. Weights are read one by one as they lie, [key][rows]; a sum is the same chain of fma as in products.h.
 */

/* Rows and vectors of channels of a register block: 6 x 4 accumulators + 4 + 1 of 32 registers, 6 x 2 + 2 + 1 of 16 */
enum { WHOLE_ROWS = 6, WHOLE_WIDE = NV * NB + NV + 1 > 16 ? 4 : 2 };

/* Results of R rows and W vectors of channels, and their sum added to `all`: it is NaN or infinite if one of them is. */
FN FORCE void whole_block(const real *p, const real *x, int64_t step, int64_t keys, const real *factor, real *out, int64_t out_step,
                          real *all, struct attn_ahead *ahead, const int R, const int W)
{
    const vec zero = v_set(0);
    vec       acc[WHOLE_ROWS][WHOLE_WIDE];
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) acc[r][w] = zero;
    for (int64_t j = 0; j < keys; j++, p += ROWS, x += step) {
        vec y[WHOLE_WIDE];
        if (j % 2) fetch_soon(ahead);
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) y[w] = v_load_any(x + w * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            vec weight = v_set(p[r]);
#pragma GCC unroll 4
            for (int w = 0; w < W; w++) acc[r][w] = v_fma(weight, y[w], acc[r][w]);
        }
    }
    vec sum = v_load(all); /* here, as no register was free */
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        vec row = acc[r][0];
#pragma GCC unroll 4
        for (int w = 1; w < W; w++) row = v_add(row, acc[r][w]);
        sum = v_add(sum, row);
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) v_store(out + r * out_step + w * LANES, v_add(times(acc[r][w], v_set(factor[r])), zero));
    }
    v_store(all, sum);
}

FN FORCE void whole_rows(const struct attn_block *b, const struct attn_tile *t, int64_t r, const real *factor, real *out, int64_t step,
                         real *all, const int R)
{
    const real       *p = (const real *)b->s + r, *x = t->v;
    struct attn_ahead ahead = ahead_take(b);
    int64_t           c = 0;
    for (; c + WHOLE_WIDE * LANES <= b->value_dim; c += WHOLE_WIDE * LANES)
        whole_block(p, x + c, t->v_step, t->keys, factor + r, out + r * step + c, step, all, &ahead, R, WHOLE_WIDE);
    for (; WHOLE_WIDE > 2 && c + 2 * LANES <= b->value_dim; c += 2 * LANES)
        whole_block(p, x + c, t->v_step, t->keys, factor + r, out + r * step + c, step, all, &ahead, R, 2);
    for (; c < b->value_dim; c += LANES) whole_block(p, x + c, t->v_step, t->keys, factor + r, out + r * step + c, step, all, &ahead, R, 1);
    ahead_leave(b, &ahead);
}

#define WHOLE_BY_ROWS(n)                                                                                                                   \
    FN NOINLINE void whole_##n(const struct attn_block *b, const struct attn_tile *t, int64_t r, const real *factor, real *out,            \
                               int64_t step, real *all)                                                                                    \
    {                                                                                                                                      \
        whole_rows(b, t, r, factor, out, step, all, n);                                                                                    \
    }
WHOLE_BY_ROWS(1)
WHOLE_BY_ROWS(2)
WHOLE_BY_ROWS(4)
WHOLE_BY_ROWS(6)

FN int32_t whole(const struct attn_block *b, const struct attn_tile *t, void *out, int64_t step)
{
    struct totals totals;
    real          factor[ROWS] __attribute__((aligned(64))), all[LANES] __attribute__((aligned(64)));
    const vec     zero = v_set(0), one = v_set(1);
    struct stairs s;
    int           hides;
    even_stairs(&s, 0, VECTORS(b), 0, t->keys);
    for (int v = 0; v < VECTORS(b); v++) v_store((real *)b->part.top + v * LANES, v_set(-(real)INFINITY));
    if (!weigh_fused(b, t, &s, &totals, &hides)) return 0;
    v_store(all, zero);
    for (int v = 0; v < VECTORS(b); v++) {
        const vec sum = v_load(totals.sum + v * LANES);
        v_store(factor + v * LANES, v_pick(v_eq(sum, zero), zero, v_div(one, sum)));
    }
    int64_t r = 0;
    for (; r + 6 <= b->m; r += 6) whole_6(b, t, r, factor, out, step, all);
    if (b->m - r >= 4) whole_4(b, t, r, factor, out, step, all), r += 4;
    if (b->m - r >= 2) whole_2(b, t, r, factor, out, step, all), r += 2;
    if (b->m - r >= 1) whole_1(b, t, r, factor, out, step, all);
    /* where a sum is infinite or NaN, a hidden value may have made it so, or numbers too large: the long way tells */
    const vec sum = v_load(all);
    return !not_zero(v_sub(sum, sum));
}
