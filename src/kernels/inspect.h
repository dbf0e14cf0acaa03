/* inspect.h: what a tile of weights adds up to, written once over the vector vocabulary.
 * SPDX-License-Identifier: MIT
 *
 * Included by tile.h, for both layouts: lanes are keys of one row, as `unload` leaves them.
 */

/* One line: scores to weights, what they add up to, lane by lane, and into the totals of the keys. */
FN FORCE void survey_line(const struct attn_survey *s, int64_t r, vec *total, vec *away, vec *most)
{
    const vec top = v_set(((const real *)s->top)[r]), inverse = v_set(((const real *)s->sum)[r]);
    real     *line = (real *)s->lines + r * ATTN_TILE, *key_total = s->key_total, *key_most = s->key_most;
    for (int64_t j = s->keys; j % LANES; j++) line[j] = -(real)INFINITY; /* up to a whole vector */
    for (int64_t j = 0; j < s->keys; j += LANES) {
        vec x = v_load(line + j), p = weight_of(x, top, inverse, ATTN_UPTO_WEIGHT);
        *total = v_add(*total, p);
        *away = v_fma(p, v_min(v_set((real)LARGEST), v_sub(top, x)), *away); /* never infinite: 0 times it is 0 */
        *most = v_max(p, *most);
        v_store(line + j, p);
        v_store(key_total + j, v_add(v_load(key_total + j), p));
        v_store(key_most + j, v_max(p, v_load(key_most + j)));
    }
}

FN void survey(const struct attn_survey *s, int64_t from, int64_t to)
{
    const vec zero = v_set(0);
    for (int64_t j = 0; j < s->keys; j += LANES) v_store((real *)s->key_total + j, zero), v_store((real *)s->key_most + j, zero);
    for (int64_t at = from; at < to; at += LANES) { /* LANES rows together, so that their lanes are added up by turning them over */
        vec  total[LANES], away[LANES], most[LANES];
        real lanes[3][LANES] __attribute__((aligned(64)));
        for (int i = 0; i < LANES; i++) {
            total[i] = away[i] = most[i] = zero;
            if (at + i < to) survey_line(s, at + i, &total[i], &away[i], &most[i]);
        }
        v_transpose(total);
        v_transpose(away);
        v_transpose(most);
        for (int i = 1; i < LANES; i++) {
            total[0] = v_add(total[0], total[i]);
            away[0] = v_add(away[0], away[i]);
            most[0] = v_max(most[i], most[0]);
        }
        v_store(lanes[0], total[0]);
        v_store(lanes[1], away[0]);
        v_store(lanes[2], most[0]);
        for (int i = 0; i < LANES && at + i < to; i++) {
            ((real *)s->total)[at + i] = lanes[0][i];
            ((real *)s->away)[at + i] = lanes[1][i];
            ((real *)s->most)[at + i] = lanes[2][i];
        }
    }
}

FN int64_t above(const void *from_line, int64_t from, int64_t keys, double least, double *weight)
{
    const real *line = from_line, bound = (real)least; /* a weight that was in such a line: the same number */
    for (int64_t j = from / LANES * LANES; j < keys; j += LANES) {
        if (!v_any(v_lt(v_set(bound), v_load(line + j)))) continue;
        for (int64_t i = from > j ? from : j; i < j + LANES; i++)
            if (line[i] > bound) {
                *weight = (double)line[i];
                return i;
            }
    }
    return keys;
}
