/* inspect.h: what a tile of weights adds up to, written once over the vector vocabulary.
 * SPDX-License-Identifier: MIT
 *
 * Included by tile.h, for both layouts: lanes are keys of one row, as `unload` leaves them; for the ranks, LANES lines are turned over.
 */

/* One line: scores to weights, and what they add up to, lane by lane. */
FN FORCE void survey_line(const struct attn_survey *s, int64_t r, vec *total, vec *away, vec *most)
{
    const vec top = v_set(((const real *)s->top)[r]), inverse = v_set(((const real *)s->sum)[r]);
    real     *line = (real *)s->lines + r * ATTN_TILE;
    for (int64_t j = s->keys; j % LANES; j++) line[j] = -(real)INFINITY; /* up to a whole vector */
    for (int64_t j = 0; j < s->keys; j += LANES) {
        vec x = v_load(line + j), p = weight_of(x, top, inverse, ATTN_UPTO_WEIGHT);
        *total = v_add(*total, p);
        *away = v_fma(p, v_min(v_set((real)LARGEST), v_sub(top, x)), *away); /* never infinite: 0 times it is 0 */
        *most = v_max(p, *most);
        v_store(line + j, p);
    }
}

/* A key into the ranks of LANES rows, from the last one upward while it is larger: behind its equals, which are lower keys. Where that ends is asked
 * once in 8 ranks: a branch for each would cost more than it saves. */
FN FORCE void rank_key(const struct attn_survey *s, int64_t at, vec weight, int64_t key)
{
    const int64_t wide = s->wide, last = at + (s->ranks - 1) * wide;
    real         *weights = (real *)s->rank_weight + last, *keys = (real *)s->rank_key + last, id;
#if REAL_BITS == 32
    const uint32_t number = (uint32_t)key; /* keys are whole numbers; as reals they are only carried */
#else
    const uint64_t number = (uint64_t)key;
#endif
    memcpy(&id, &number, sizeof id);
    mask up = v_lt(v_load(weights), weight);
    vec  w = v_pick(up, weight, v_load(weights)), k = v_pick(up, v_set(id), v_load(keys));
    for (int64_t left = s->ranks - 1; left > 0 && v_any(up); left -= 8) {
        const int64_t n = left < 8 ? left : 8;
        for (int64_t i = 0; i < n; i++, weights -= wide, keys -= wide) {
            const vec before = v_load(weights - wide), before_key = v_load(keys - wide);
            up = v_lt(before, w);
            v_store(weights, v_pick(up, before, w));
            v_store(keys, v_pick(up, before_key, k));
            w = v_pick(up, w, before);
            k = v_pick(up, k, before_key);
        }
    }
    v_store(weights, w);
    v_store(keys, k);
}

/* Lines at .. at + LANES - 1, of which n are rows. */
FN void rank_lines(const struct attn_survey *s, int64_t at, int64_t n)
{
    const real *last = (const real *)s->rank_weight + at + (s->ranks - 1) * s->wide;
    for (int64_t j = 0; j < s->keys; j += LANES) {
        const vec bound = v_load(last);
        vec       x[LANES];
        int       found[LANES + 1], count = 0;
        for (int i = 0; i < LANES; i++) x[i] = i < n ? v_load((const real *)s->lines + (at + i) * ATTN_TILE + j) : v_set(0);
        v_transpose(x);
        for (int i = 0; i < LANES; i++) { /* no branch: nobody can foretell it */
            found[count] = i;
            count += v_any(v_lt(bound, x[i])) != 0;
        }
        for (int i = 0; i < count; i++) rank_key(s, at, x[found[i]], s->first + j + found[i]);
    }
}

FN void survey(const struct attn_survey *s)
{
    const vec zero = v_set(0);
    for (int64_t at = 0; at < s->m; at += LANES) { /* LANES rows together, so that their lanes are added up by turning them over */
        vec total[LANES], away[LANES], most[LANES];
        for (int i = 0; i < LANES; i++) {
            total[i] = away[i] = most[i] = zero;
            if (at + i < s->m) survey_line(s, at + i, &total[i], &away[i], &most[i]);
        }
        v_transpose(total);
        v_transpose(away);
        v_transpose(most);
        for (int i = 1; i < LANES; i++) {
            total[0] = v_add(total[0], total[i]);
            away[0] = v_add(away[0], away[i]);
            most[0] = v_max(most[i], most[0]);
        }
        v_store((real *)s->total + at, total[0]);
        v_store((real *)s->away + at, away[0]);
        if (s->ranks && v_any(v_lt(v_load((const real *)s->rank_weight + at + (s->ranks - 1) * s->wide), most[0])))
            rank_lines(s, at, s->m - at);
    }
}

FN void survey_keys(const struct attn_survey *s, int64_t from, int64_t to)
{
    for (int64_t j = 0; j < s->keys; j += LANES) {
        vec total = v_set(0), most = total;
        for (int64_t r = from; r < to; r++) {
            const vec p = v_load((const real *)s->lines + r * ATTN_TILE + j);
            total = v_add(total, p);
            most = v_max(p, most);
        }
        v_store((real *)s->key_total + j, total);
        v_store((real *)s->key_most + j, most);
    }
}
