/* few_pairs.h: both products of few.h for rows whose CPU multiplies bf16 in pairs, over the vocabulary of pairs.h; included there in place of its own.
 * SPDX-License-Identifier: MIT
 *
 * q is [row][pairs of channels], rounded up to whole vectors; weights become elements, side by side. Keys and values are read as they lie.
 */
#define UNITS(n) (((n) + 2 * LANES - 1) / (2 * LANES) * LANES) /* of a query */

#define FEW_STEP(n) UNITS(n)
#define FEW_REST(b) split_factor((b)->factor).rest

/* G times LANES keys against R queries, G and R literals. */
FN FORCE void few_dots(const real *q, int64_t q_step, const void *keys, int64_t step, int64_t n, int64_t dim, real rest, real *s,
                       struct few_ahead *ahead, const int G, const int R, const int reads)
{
    const element *k = keys;
    vec            acc[2][4];
    (void)reads;
#pragma GCC unroll 2
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) acc[g][r] = v_set(0);
    for (int64_t c = 0; c < dim; c += 2 * LANES, q += LANES) {
        const char *row = few_at(k, c, reads);
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) {
            vec x[LANES];
            if (dim - c >= 2 * LANES && n >= G * LANES)
                row = few_take(x, row, step * FEW_WIDTH(reads), ahead, 1);
            else
                for (int i = 0; i < LANES; i++) x[i] = v_some(k + (g * LANES + i < n ? g * LANES + i : n - 1) * step + c, dim - c);
            v_transpose(x);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) acc[g][r] = v_dot(v_unit((const element *)(q + r * q_step + i)), x[i], acc[g][r]);
        }
        ahead->at += ahead->turn;
    }
#pragma GCC unroll 2
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) v_store(s + r * ATTN_TILE + g * LANES, times(acc[g][r], v_set(rest)));
}

/* W times 2 LANES channels for R queries, over `keys` keys from an even one on; hidden: a weight of -0 leaves its query out. */
FN FORCE void few_sum(const element *p, const element *x, int64_t step, int64_t keys, int64_t some, real *o, int64_t o_step,
                      const real *factor, const struct few_ahead *ahead, const int R, const int W, const int hidden)
{
    vec acc[FEW_ROWS][8];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int w = 0; w < 2 * W; w++) acc[r][w] = v_set(0);
    for (int64_t j = 0; j < keys; j += 2) {
        vec y[8];
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) {
            few_fetch_row(x + j * step + 2 * w * LANES, ahead, 1);
            few_fetch_row(x + (j + 1) * step + 2 * w * LANES, ahead, 1);
            vec even = v_some(x + j * step + 2 * w * LANES, some - 2 * w * LANES), odd = v_set(0);
            if (j + 1 < keys) odd = v_some(x + (j + 1) * step + 2 * w * LANES, some - 2 * w * LANES);
            v_zip(even, odd, &y[2 * w], &y[2 * w + 1]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            vec weight = v_unit(p + r * 2 * ATTN_TILE + j);
#pragma GCC unroll 8
            for (int w = 0; w < 2 * W; w++) acc[r][w] = hidden ? v_dot_seen(weight, y[w], acc[r][w]) : v_dot(weight, y[w], acc[r][w]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int w = 0; w < 2 * W; w += 2) {
            real *at = o + r * o_step + w * LANES;
            v_unzip(&acc[r][w], &acc[r][w + 1]);
            v_store(at, v_fma(v_load(at), v_set(factor[r]), acc[r][w]));
            if (some > (w + 1) * LANES) v_store(at + LANES, v_fma(v_load(at + LANES), v_set(factor[r]), acc[r][w + 1]));
        }
}

FN FORCE void few_value_rows(const struct attn_block *b, const struct attn_tile *t, int64_t from, int64_t to, const real *factor, int64_t r,
                             const int R, const int hidden, const int reads)
{
    const int              most = R <= 2 ? 4 : R <= 4 ? 2 : 1;
    const int64_t          keys = to - from, dim = b->value_dim;
    const element         *p = (const element *)((const real *)b->s + r * ATTN_TILE) + from, *x = (const element *)t->v + from * t->v_step;
    real                  *o = (real *)b->part.o + r * WIDE(dim);
    int64_t                c = 0;
    const struct few_ahead next = few_ahead(0, t->v_step, dim, keys, reads, r);
    for (; c + 2 * most * LANES <= dim; c += 2 * most * LANES)
        few_sum(p, x + c, t->v_step, keys, 2 * most * LANES, o + c, WIDE(dim), factor + r, &next, R, most, hidden);
    for (; c < dim; c += 2 * LANES) few_sum(p, x + c, t->v_step, keys, dim - c, o + c, WIDE(dim), factor + r, &next, R, 1, hidden);
}

/* Row r of the weights of the keys from .. to - 1, to up to a whole vector. */
FN void few_take_weights(const struct attn_block *b, int64_t r, int64_t from, int64_t to)
{
    const real *s = (const real *)b->s + r * ATTN_TILE, *shift = (const real *)b->shift + r;
    for (int64_t j = from; j < to; j += LANES)
        v_store_row((element *)b->s + r * 2 * ATTN_TILE + j, keep_weight(v_load(s + j), v_set(*shift)));
}

FN void few_load(const struct attn_block *b, void *q, int64_t at, int64_t n, const void *const *lines, double factor)
{
    const struct split f = split_factor(factor);
    for (int64_t r = 0; r < b->m; r++)
        for (int64_t c = 0; c < n; c += 2 * LANES)
            v_store((real *)q + r * UNITS(b->dim) + (at + c) / 2, scale_units(v_some((const element *)lines[r] + c, n - c), &f));
}
