/* backward.h: gradients of a block of queries against a tile of keys.
 * SPDX-License-Identifier: MIT
 *
 * Over the vocabulary that tile.h lists; included there, as it computes scores and weighted sums with the functions of the forward pass:
 *
 *     s  = keys . q,  dp = values . d_out    lanes = queries: score_keys()
 *     dq += ds . keys                        lanes = queries: value_channels()
 *     dk += ds^T . q,  dv += p^T . d_out     lanes = channels: key_block(), below
 *
 * so that keys and values are read as they lie, and only q and d_out are ever transposed.
 *
 * A hidden place has weight -0 and ds 0. Products with those zeros change no sum as long as what they are multiplied with is finite; where it may not
 * be, the sums are taken number by number, leaving out what is hidden (careful_...).
 */
#define KEYS_AT_ONCE 6
#define VECTORS_AT_ONCE                                                                                                                    \
    ((NV * NB >= 24) ? 4 : 2) /* channels: KEYS_AT_ONCE * VECTORS_AT_ONCE accumulators, a vector of channels each, and 1 */

/* ---- weights and the gradient of scores ----------------------------------------------------------------------------------------------- */

/* A rectangle of the tile: vectors of queries v0 .. v0 + nv - 1, keys from .. to - 1; ranged: low and high hide some of it. */
struct piece {
    int     v0, nv, ranged;
    int64_t from, to;
};

enum { PIECES = 2 * NV + 1 };

/* Cuts what the block sees of the tile into pieces: the keys that all queries see, then what each vector sees before and behind them. */
FN int cut_pieces(const struct attn_block *b, const struct attn_tile *t, struct piece *list)
{
    int64_t clear = 0, end = t->keys;
    int     n = 0, nv = VECTORS(b);
    if (!t->low) {
        list[0] = (struct piece){0, nv, 0, 0, t->keys};
        return 1;
    }
    for (int64_t r = 0; r < b->m; r++) {
        const int64_t low = (int64_t)((const real *)t->low)[r], high = (int64_t)((const real *)t->high)[r];
        clear = low > clear ? low : clear;
        end = high < end ? high : end;
    }
    end -= clear < end ? (end - clear) % NB : 0;
    if (clear >= end) clear = end = t->keys;
    for (int v = 0; v < nv; v++) {
        struct stretch s;
        if (!range(b, t, v, &s)) continue;
        if (s.from < clear && s.from < s.to) list[n++] = (struct piece){v, 1, 1, s.from, s.to < clear ? s.to : clear};
        if (end < s.to) list[n++] = (struct piece){v, 1, 1, end, s.to};
    }
    if (clear < end) list[n++] = (struct piece){0, nv, 0, clear, end};
    return n;
}

/* What hides places and edits scores, for one vector of queries. */
struct lanes {
    vec slope, near, low, high, lse, delta;
};

/* 1 where a place is hidden, by membership: a seen score of -inf is not. */
FN FORCE vec hidden_places(const struct editing *e, const struct lanes *l, vec key, vec add)
{
    const vec one = v_set(1);
    vec       hidden = v_set(0);
    if (e->adds) hidden = v_pick(v_eq(add, v_set(-(real)INFINITY)), one, hidden);
    if (e->low) hidden = v_pick(v_lt(key, l->low), one, v_pick(v_lt(key, l->high), hidden, one));
    return hidden;
}

/* One vector of queries of a piece: raw products in s and ds become weights and gradients. */
FN FORCE void piece_vector(const struct attn_gradient_block *g, const struct attn_tile *t, const struct piece *p, const int v)
{
    const struct attn_block *b = &g->b;
    struct editing           e = editing_make(b, t, ATTN_UPTO_BIASED);
    const int                capped = e.capped, hiding = e.adds || (e.low && p->ranged);
    const vec                zero = v_set(0), one = v_set(1), raise = v_set((real)t->raise), hide = v_set(-(real)INFINITY);
    const struct lanes       l = {e.slope ? v_load(e.slope + v * LANES) : zero, e.slope ? v_load(e.near + v * LANES) : zero,
                            e.low ? v_load(e.low + v * LANES) : zero,     e.low ? v_load(e.high + v * LANES) : zero,
                            v_load((const real *)g->lse + v * LANES),     v_load((const real *)g->delta + v * LANES)};
    vec sum = zero, away = zero;
    e.capped = 0;
    if (!p->ranged) e.low = 0;
    for (int64_t j = p->from; j < p->to; j++) {
        const int64_t at = j * ROWS + v * LANES;
        const vec     key = v_set((real)j), add = e.adds ? edit_at(t, v, j) : zero;
        vec           x = v_load((const real *)b->s + at), dp = v_load((const real *)g->ds + at);
        if (capped) {
            x = softcap(x, e.cap, e.inverse);
            vec u = times(x, e.inverse);
            v_store((real *)g->bend + at, v_fma(v_sub(zero, u), u, one));
        }
        x = edit_score(&e, x, key, add, l.slope, l.near, l.low, l.high);
        vec w = exp2_plain(v_sub(x, l.lse)), hidden = hiding ? hidden_places(&e, &l, key, add) : zero;
        if (t->drop) dp = v_pick(v_eq(v_load((const real *)t->drop + at), hide), zero, times(dp, raise));
        vec ds = times(w, v_sub(dp, l.delta));
        if (t->drop) w = v_pick(v_eq(v_load((const real *)t->drop + at), hide), zero, times(w, raise));
        if (hiding) {
            w = v_pick(v_eq(hidden, zero), w, v_set(-(real)0.0));
            ds = v_pick(v_eq(hidden, zero), ds, zero);
        }
        v_store((real *)b->s + at, w);
        v_store((real *)g->ds + at, ds);
        if (g->sum) sum = v_add(sum, ds);
        if (g->away) {
            vec apart = v_sub(l.near, key);
            away = v_fma(v_max(apart, v_sub(zero, apart)), ds, away);
        }
    }
    if (g->sum) v_store((real *)g->sum + v * LANES, v_add(v_load((const real *)g->sum + v * LANES), sum));
    if (g->away) v_store((real *)g->away + v * LANES, v_add(v_load((const real *)g->away + v * LANES), away));
}

FN void gradient_scores(const struct attn_gradient_block *g, const struct attn_tile *t)
{
    struct piece      list[PIECES];
    const int         n = cut_pieces(&g->b, t, list), nv = VECTORS(&g->b);
    struct attn_block back = g->b; /* the same products with d_out for q and values for keys */
    struct attn_tile  values = *t;
    back.q = g->d_out, back.s = g->ds, back.dim = back.value_dim;
    values.k = t->v, values.k_step = t->v_step;
    for (int64_t j = 0; t->low && j < t->keys; j++)
        for (int v = 0; v < nv; v++) {
            v_store((real *)g->b.s + j * ROWS + v * LANES, v_set(-(real)0.0));
            v_store((real *)g->ds + j * ROWS + v * LANES, v_set(0));
        }
    for (int i = 0; i < n; i++) {
        score_keys(&g->b, t, list[i].v0, list[i].nv, list[i].from, list[i].to, 0);
        score_keys(&back, &values, list[i].v0, list[i].nv, list[i].from, list[i].to, 0);
        for (int v = list[i].v0; v < list[i].v0 + list[i].nv; v++) piece_vector(g, t, &list[i], v);
    }
}

FN void gradient_bend(const struct attn_gradient_block *g, int64_t keys)
{
    for (int64_t j = 0; j < keys; j++)
        for (int v = 0; v < VECTORS(&g->b); v++) {
            real *at = (real *)g->ds + j * ROWS + v * LANES;
            vec   ds = v_load(at); /* where it is 0 nothing was written to bend, maybe */
            v_store(at, v_pick(v_eq(ds, v_set(0)), ds, times(ds, v_load((const real *)g->bend + j * ROWS + v * LANES))));
        }
}

/* ---- sums over keys -------------------------------------------------------------------------------------------------------------------- */

FN int all_finite(const void *x, int64_t step, int64_t rows, int64_t n)
{
    const vec zero = v_set(0);
    vec       wild = zero;
    real      lanes[LANES] __attribute__((aligned(64))), rest = 0;
    for (int64_t i = 0; i < rows; i++) {
        const real *row = (const real *)x + i * step;
        int64_t     c = 0;
        for (; c + LANES <= n; c += LANES) wild = v_fma(v_load_any(row + c), zero, wild);
        for (; c < n; c++) rest = isfinite(row[c]) ? rest : 1;
    }
    v_store(lanes, wild);
    for (int i = 0; i < LANES; i++) rest = lanes[i] == 0 ? rest : 1;
    return rest == 0;
}

/* A product and a sum, each place on its own: v_fma of numbers. */
FN FORCE real fma_one(real a, real b, real c)
{
    real lanes[LANES] __attribute__((aligned(64)));
    v_store(lanes, v_fma(v_set(a), v_set(b), v_set(c)));
    return lanes[0];
}

/* A NaN may have the sign too. */
FN FORCE int is_hidden(real weight)
{
    return weight == 0 && signbit(weight);
}

/* In the order of value_channels(), so that what is hidden changes no bit. */
FN void careful_query(const struct attn_gradient_block *g, const struct attn_tile *t, const struct piece *p)
{
    for (int64_t c = 0; c < g->b.dim; c++)
        for (int64_t r = p->v0 * LANES; r < (p->v0 + p->nv) * LANES && r < g->b.m; r++) {
            real sum = 0;
            for (int64_t j = p->from; j < p->to; j++)
                if (!is_hidden(((const real *)g->b.s)[j * ROWS + r]))
                    sum = fma_one(((const real *)g->ds)[j * ROWS + r], ((const real *)t->k)[j * t->k_step + c], sum);
            ((real *)g->dq)[c * ROWS + r] += sum;
        }
}

FN void value_channels(const struct attn_block *b, const struct attn_tile *t, int v0, int nv, int64_t from, int64_t to, int hides)
{
    struct stairs s;
    even_stairs(&s, v0, nv, from, to);
    value_stairs(b, t, 0, &s, hides);
}

FN void gradient_query(const struct attn_gradient_block *g, const struct attn_tile *t)
{
    struct piece      list[PIECES];
    struct attn_block b = g->b; /* o = o + sum over the keys of weight * value, with ds for weights and keys for values */
    struct attn_tile  keys = *t;
    const int         careful = (t->low || t->edit || t->seen) && !all_finite(t->k, t->k_step, t->keys, b.dim);
    b.s = g->ds, b.part.o = g->dq, b.value_dim = b.dim;
    keys.v = t->k, keys.v_step = t->k_step;
    for (int i = 0, n = cut_pieces(&b, t, list); i < n; i++)
        if (careful)
            careful_query(g, t, &list[i]);
        else
            value_channels(&b, &keys, list[i].v0, list[i].nv, list[i].from, list[i].to, 0);
}

/* ---- sums over queries ----------------------------------------------------------------------------------------------------------------- */

/* One block's share of a register block: x[channel] of its rows, times w[key][row]. */
struct share {
    const real *w, *x;
    int64_t     step, from, to; /* rows that see any of the keys */
};

/* Rows of the block that see any of the keys from .. from + n - 1 by position. */
FN FORCE void share_rows(struct share *s, const struct attn_block *b, const struct attn_tile *t, int64_t from, int64_t n)
{
    const real *low = t->low, *high = t->high;
    s->from = 0;
    s->to = b->m;
    if (!low) return;
    while (s->from < s->to && !(low[s->from] < (real)(from + n) && high[s->from] > (real)from)) s->from++;
    while (s->from < s->to && !(low[s->to - 1] < (real)(from + n) && high[s->to - 1] > (real)from)) s->to--;
}

/* to[key][channel] += sum over the rows of n blocks of w[key][row] * x[row][channel]: nk keys, nw vectors of channels. */
FN FORCE void key_block(const struct share *shares, int64_t n, int64_t channel, real *to, int64_t step, const int nk, const int nw)
{
    vec acc[KEYS_AT_ONCE][VECTORS_AT_ONCE];
#pragma GCC unroll 8
    for (int i = 0; i < nk; i++)
#pragma GCC unroll 4
        for (int c = 0; c < nw; c++) acc[i][c] = v_set(0);
    for (int64_t block = 0; block < n; block++) {
        const struct share *s = &shares[block];
        const real         *w = s->w + s->from, *x = s->x + s->from * s->step + channel;
        for (int64_t r = s->from; r < s->to; r++, w++, x += s->step) {
            vec y[VECTORS_AT_ONCE];
#pragma GCC unroll 4
            for (int c = 0; c < nw; c++) y[c] = v_load_any(x + c * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < nk; i++) {
                vec a = v_set(w[i * ROWS]);
#pragma GCC unroll 4
                for (int c = 0; c < nw; c++) acc[i][c] = v_fma(a, y[c], acc[i][c]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < nk; i++)
#pragma GCC unroll 4
        for (int c = 0; c < nw; c++) {
            real *at = to + i * step + channel + c * LANES;
            v_store(at, v_add(v_load(at), acc[i][c]));
        }
}

#define KEY_BLOCK(nk, nw)                                                                                                                  \
    FN NOINLINE void key_##nk##_##nw(const struct share *shares, int64_t n, int64_t channel, real *to, int64_t step)                       \
    {                                                                                                                                      \
        key_block(shares, n, channel, to, step, nk, nw);                                                                                   \
    }
typedef void key_fn(const struct share *shares, int64_t n, int64_t channel, real *to, int64_t step);

#define KEY_BLOCKS(nw)                                                                                                                     \
    KEY_BLOCK(1, nw)                                                                                                                       \
    KEY_BLOCK(2, nw)                                                                                                                       \
    KEY_BLOCK(4, nw)                                                                                                                       \
    KEY_BLOCK(6, nw)
KEY_BLOCKS(1)
KEY_BLOCKS(2)
#if NV * NB >= 24
KEY_BLOCKS(4)
#define KEYS_BY(nk) {key_##nk##_1, key_##nk##_2, key_##nk##_4}
#else
#define KEYS_BY(nk) {key_##nk##_1, key_##nk##_2}
#endif
static key_fn *const key_by[4][VECTORS_AT_ONCE == 4 ? 3 : 2] = {KEYS_BY(1), KEYS_BY(2), KEYS_BY(4), KEYS_BY(6)};

/* The same, leaving out what is hidden. */
FN void careful_keys(const struct attn_gradient_rows *rows, int64_t n, const struct share *shares, int64_t key, int64_t keys, real *to,
                     int64_t step, int64_t width)
{
    for (int64_t i = 0; i < keys; i++)
        for (int64_t c = 0; c < width; c++) {
            real sum = 0;
            for (int64_t block = 0; block < n; block++)
                for (int64_t r = shares[block].from; r < shares[block].to; r++)
                    if (!is_hidden(((const real *)rows[block].block->b.s)[(key + i) * ROWS + r]))
                        sum = fma_one(shares[block].w[i * ROWS + r], shares[block].x[r * shares[block].step + c], sum);
            to[i * step + c] += sum;
        }
}

/* dk or dv of the tile's keys; shares have x and step. */
FN void sum_keys(const struct attn_gradient_rows *rows, int64_t n, struct share *shares, int value, real *to, int64_t step, int64_t width)
{
    const int64_t keys = rows->tile->keys;
    int           careful = 0;
    for (int64_t block = 0; block < n; block++) {
        const struct attn_tile *t = rows[block].tile;
        careful |= (t->low || t->edit || t->seen) && !rows[block].block->finite;
    }
    for (int64_t j = 0; j < keys;) {
        const int64_t left = keys - j;
        const int     size = left >= 6 ? 3 : left >= 4 ? 2 : left >= 2 ? 1 : 0, nk = size ? 2 * size : 1;
        for (int64_t block = 0; block < n; block++) {
            const struct attn_gradient_block *g = rows[block].block;
            shares[block].w = (const real *)(value ? g->b.s : g->ds) + j * ROWS;
            share_rows(&shares[block], &g->b, rows[block].tile, j, nk);
        }
        if (careful)
            careful_keys(rows, n, shares, j, nk, to + j * step, step, width);
        else
            for (int64_t c = 0; c < width;) {
                const int64_t vectors = (width - c + LANES - 1) / LANES;
                const int     which = vectors >= 4 && VECTORS_AT_ONCE == 4 ? 2 : vectors >= 2 ? 1 : 0;
                key_by[size][which](shares, n, c, to + j * step, step);
                c += LANES << which;
            }
        j += nk;
    }
}

FN void gradient_keys(const struct attn_gradient_rows *rows, int64_t n, void *dk, int64_t dk_step, void *dv, int64_t dv_step)
{
    struct share shares[ATTN_BLOCKS];
    for (int64_t block = 0; block < n; block++) shares[block] = (struct share){0, rows[block].d_out, rows[block].d_out_step, 0, 0};
    if (dv) sum_keys(rows, n, shares, 1, dv, dv_step, rows->block->b.value_dim);
    for (int64_t block = 0; block < n; block++) shares[block] = (struct share){0, rows[block].q, rows[block].q_step, 0, 0};
    if (dk) sum_keys(rows, n, shares, 0, dk, dk_step, rows->block->b.dim);
}

FN void gradient_columns(const struct attn_gradient_block *g, int64_t keys, void *columns)
{
    real lanes[ROWS] __attribute__((aligned(64)));
    for (int64_t j = 0; j < keys; j++) {
        real sum = 0;
        for (int v = 0; v < VECTORS(&g->b); v++) v_store(lanes + v * LANES, v_load((const real *)g->ds + j * ROWS + v * LANES));
        for (int64_t r = 0; r < g->b.m; r++) sum += lanes[r];
        ((real *)columns)[j] += sum;
    }
}

/* Vectors of products first, their lanes at the end, in double. */
FN double dot(const void *a, const void *b, int64_t n)
{
    vec     acc = v_set(0);
    double  sum = 0;
    real    lanes[LANES] __attribute__((aligned(64)));
    int64_t c = 0;
    for (; c + LANES <= n; c += LANES) {
        const vec x = v_load_any((const real *)a + c), zero = v_set(0);
        acc = v_fma(x, v_pick(v_eq(x, zero), zero, v_load_any((const real *)b + c)), acc);
    }
    v_store(lanes, acc);
    for (int i = 0; i < LANES; i++) sum += (double)lanes[i];
    for (; c < n; c++)
        if (((const real *)a)[c] != 0) sum += (double)fma_one(((const real *)a)[c], ((const real *)b)[c], 0);
    return sum;
}

static const struct attn_gradient gradient = {
    gradient_scores, gradient_bend, gradient_query, gradient_keys, gradient_columns, all_finite, dot};
