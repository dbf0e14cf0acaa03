/* lanes.h: what both layouts, tile.h and few.h, do to one vector, whatever its lanes are.
 * SPDX-License-Identifier: MIT
 *
 * Over the vocabulary that tile.h lists; included there.
 */
/* p * 2^n may be below the smallest normal number, and is rounded once. Without SCALES p is made LOW times as large, by its coefficients, and
 * 2^n / LOW is a normal number, whose exponent is the low bits of n + WHOLE. WHOLE is even, so that halves are rounded to even numbers. */
#ifdef SCALES
#define LOW 1
#elif REAL_BITS == 32
#define LOW   0x1p-61f
#define WHOLE (12582912.0f + 127 + 61) /* 1.5 * 2^23 + ... */
#else
#define LOW   0x1p-511
#define WHOLE (6755399441055744.0 + 1023 + 511) /* 1.5 * 2^52 + ... */
#endif

/* In every lane, in memory: an operand of an fma may lie there, and registers are few. */
#define EVERY(x) {[0 ... LANES - 1] = (x) * LOW}

#if REAL_BITS == 32
/* scripts/fit_polynomials.py; 2^r to 1.03e-7, tanh(u)/u to 1.5e-8 */
static const real exp2_c[][LANES] __attribute__((aligned(64))) = {EVERY(0x1.5bba14p-10f), EVERY(0x1.3cea88p-7f), EVERY(0x1.c6b75p-5f),
                                                                  EVERY(0x1.ebf9bep-3f),  EVERY(0x1.62e42ap-1f), EVERY(1.0f)};
static const real tanh_c[] = {-0.00626911968f, 0.02111095935f, -0.05387394875f, 0.1333291531f, -0.3333333135f, 1.0f};
#define EXP2_FLOOR -160.0f
#define TANH_TOP   20.0f
#define LARGEST    3.4028234663852886e38
#else
/* scripts/fit_polynomials.py; 2^r and tanh(u)/u to 2e-17 before rounding */
static const real exp2_c[][LANES] __attribute__((aligned(64))) = {
    EVERY(4.45496059818651856e-10),  EVERY(7.07258594926922339e-9),  EVERY(1.01780624458457737e-7), EVERY(1.32154425879216893e-6),
    EVERY(0.0000152527338298361192), EVERY(0.000154035304417360499), EVERY(0.00133335581464169356), EVERY(0.00961812910760688825),
    EVERY(0.055504108664821597),     EVERY(0.240226506959100972),    EVERY(0.693147180559945286),   EVERY(1.0)};
static const real tanh_c[] = {6.93404642098895359e-6,
                              -0.0000320866140379359938,
                              0.000093324322338474478,
                              -0.000237952013839249938,
                              0.000589768099468826793,
                              -0.00145579588557346348,
                              0.00359212425000869249,
                              -0.00886323529280328912,
                              0.0218694885273681069,
                              -0.0539682539680853071,
                              0.133333333333332055,
                              -0.333333333333333315,
                              1.0};
#define EXP2_FLOOR -1500.0
#define TANH_TOP   80.0
#define LARGEST    1.7976931348623157e308
#endif

#define FN       static TARGET
#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)
#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

/* ---- exponential and hyperbolic tangent ------------------------------------------------------------------------------------------------------ */

FN FORCE vec times(vec a, vec b)
{
    return v_fma(a, b, v_set(0));
}

FN FORCE vec poly(const real *c, int n, vec x)
{
    vec y = v_set(c[0]);
    for (int i = 1; i < n; i++) y = v_fma(y, x, v_set(c[i]));
    return y;
}

/* 2^x * LOW for x from -1/2 to 1/2, c being exp2_c */
FN FORCE vec exp2_part(const real *c, vec x)
{
    vec y = v_load(c);
    for (int i = 1; i < COUNT(exp2_c); i++) y = v_fma(y, x, v_load(c + i * LANES));
    return y;
}

/* 2^(2 t - shift), c being exp2_c; t is at most 30. Exactly 1 for t = 0 and shift = 0; 0 far below; NaN for NaN and +inf. */
FN FORCE vec exp2_by(const real *c, vec t, vec shift)
{
    vec v = v_max(v_set(EXP2_FLOOR), v_add(t, t));
#ifdef SCALES
    vec n = v_round(v);
    return v_scale(exp2_part(c, v_sub(v, n)), v_sub(n, shift));
#else
    vec n = v_add(v, v_set(WHOLE));
    return times(exp2_part(c, v_sub(v, v_sub(n, v_set(WHOLE)))), v_power(v_sub(n, shift)));
#endif
}

#ifdef SCALES
/* 2^v for any v: infinite far above, 0 far below, NaN for NaN. */
FN FORCE vec exp2_any(const real *c, vec v)
{
    vec n = v_round(v);
    return v_scale(exp2_part(c, v_sub(v, n)), n);
}
#endif

FN FORCE vec exp2_twice(vec t, vec shift)
{
    return exp2_by(exp2_c[0], t, shift);
}

FN FORCE vec exp2_plain(vec t)
{
    return exp2_twice(t, v_set(0));
}

/* cap * tanh(s / cap); s and cap in the domain, so s / cap is a natural number. Small quotients keep their relative
 * precision through tanh(u)/u; large ones go through 1 - 2 / (e^(2u) + 1). */
FN FORCE vec softcap(vec s, vec cap, vec inverse)
{
    vec u = times(s, inverse);
    vec size = v_max(u, v_sub(v_set(0), u));
    vec small = times(s, poly(tanh_c, COUNT(tanh_c), times(u, u)));
    vec turns = times(v_pick(v_lt(v_set((real)TANH_TOP), size), v_set((real)TANH_TOP), size), v_set((real)(2 * ATTN_DOMAIN)));
    vec large = v_sub(v_set(1), v_div(v_set(2), v_add(exp2_plain(turns), v_set(1))));
    large = times(cap, large);
    large = v_pick(v_lt(u, v_set(0)), v_sub(v_set(0), large), large);
    return v_pick(v_lt(size, v_set((real)0.6)), small, large);
}

/* Is any lane something else than 0, be it NaN? */
FN FORCE int not_zero(vec x)
{
    const vec zero = v_set(0), one = v_set(1);
    return v_any(v_eq(v_pick(v_eq(x, zero), zero, one), one));
}

/* ---- scores ----------------------------------------------------------------------------------------------------------------------- */

/* x * factor, the factor in two parts, so that the product is rounded once. A finite number stays finite, as it times a key of 0 is 0. */
FN FORCE vec scale_query(vec x, double factor)
{
    const vec a = v_set((real)factor), b = v_set((real)(factor - (double)(real)factor)), most = v_set((real)LARGEST),
              least = v_set(-(real)LARGEST);
    vec finite = v_max(least, v_min(most, x)), y = v_fma(x, a, times(finite, b)); /* of an infinite x, a alone makes the sign */
    return fabs(factor) <= 1 ? y : v_pick(v_eq(x, finite), v_max(least, v_min(most, y)), y);
}

/* What is done to scores between the products, as far as ATTN_UPTO_ says; absent things are NULL. */
struct editing {
    const real *edit, *slope, *near, *low, *high;
    vec         cap, inverse;
    int         adds, capped; /* adds: there is `edit`, or the tile has `seen` */
};

FN FORCE struct editing editing_make(const struct attn_block *b, const struct attn_tile *t, int32_t upto)
{
    const int      biased = upto != ATTN_UPTO_CAPPED;
    const double   cap = fmin(b->cap, LARGEST); /* neither it nor its inverse may be infinite: 0 * inf */
    struct editing e = {
        biased ? t->edit : 0, biased ? b->slope : 0, b->near, biased ? t->low : 0, t->high, v_set((real)cap), v_set(0), 0, b->cap > 0};
    e.adds = biased && (t->edit || t->seen);
    if (e.capped) e.inverse = v_set((real)fmin(1 / cap, LARGEST));
    return e;
}

/* s + add; what add hides is hidden whatever s is. */
FN FORCE vec add_seen(vec s, vec add)
{
    const vec hide = v_set(-(real)INFINITY);
    return v_pick(v_eq(add, hide), hide, v_add(s, add));
}

/* One vector of scores: cap, edit, ALiBi, hiding. What e does not have is not looked at. */
FN FORCE vec edit_score(const struct editing *e, vec s, vec key, vec add, vec slope, vec near, vec low, vec high)
{
    const vec hide = v_set(-(real)INFINITY), zero = v_set(0);
    if (e->capped) s = softcap(s, e->cap, e->inverse);
    if (e->adds) s = add_seen(s, add);
    if (e->slope) {
        vec away = v_sub(near, key);
        vec less = v_fma(v_sub(zero, slope), v_max(away, v_sub(zero, away)), s);
        s = e->adds ? v_pick(v_eq(s, hide), hide, less) : less;
    }
    if (e->low) s = v_pick(v_lt(key, low), hide, v_pick(v_lt(key, high), s, hide));
    return s;
}

FN FORCE vec weight_of(vec s, vec top, vec inverse, int32_t upto)
{
    if (upto != ATTN_UPTO_WEIGHT) return times(s, v_set((real)ATTN_NATURAL));
    return v_pick(v_eq(s, v_set(-(real)INFINITY)), v_set(0), times(exp2_plain(v_sub(s, top)), inverse));
}

/* A weight before it meets its value; hidden ones stay as they are. */
FN FORCE vec dropped(vec w, vec drop, vec raise)
{
    const vec zero = v_set(0), all = v_pick(v_eq(drop, v_set(-(real)INFINITY)), zero, times(w, raise));
    return v_pick(v_eq(w, zero), w, all);
}

/* ---- the end of a row ------------------------------------------------------------------------------------------------------------- */

/* A row gets a shift of 24, which leaves room for 2^24 values of the largest size, if its o left the range though its sum did not. wild: the sum over
 * its channels of 0 * o, NaN for an infinite o or NaN. Returns 1 if it has got it now. */
FN int32_t give_shift(real wild, real sum, real *shift)
{
    if (wild == 0 || *shift != 0 || sum == 0 || !isfinite(sum)) return 0;
    *shift = 24;
    return 1;
}

/* A vector of rows at its end: the sum is z f + g, f for the keys and g for the sink, both against top. */
struct ending {
    vec top, z, f, g, all, factor; /* factor: what o is multiplied by; 0 where nothing was seen, or only scores of -inf: there o is 0 */
};

FN FORCE struct ending ending_make(vec top, vec sum, vec sink, vec shift)
{
    const vec     none = v_set(-(real)INFINITY), one = v_set(1);
    vec           back = v_pick(v_eq(shift, v_set(0)), one, v_set((real)(1 << 24))), extra = times(sink, v_set((real)ATTN_DOMAIN));
    struct ending e;
    e.top = v_max(top, extra);
    e.z = times(sum, back);
    e.f = v_pick(v_eq(top, e.top), one, exp2_plain(v_sub(top, e.top)));
    e.g = v_pick(v_eq(extra, none), v_set(0), exp2_plain(v_sub(extra, e.top)));
    e.all = v_add(times(e.z, e.f), e.g);
    e.factor = v_pick(v_eq(e.z, v_set(0)), v_set(0), times(v_div(e.f, e.all), back));
    return e;
}

/* The same as numbers, for the logarithm, which is taken in double: near a sum of 1 a float has nothing left to take it of. */
struct natural {
    real top, z, f, g;
};

FN FORCE void ending_lanes(const struct ending *e, struct natural *n)
{
    real lanes[4][LANES] __attribute__((aligned(64)));
    v_store(lanes[0], e->top);
    v_store(lanes[1], e->z);
    v_store(lanes[2], e->f);
    v_store(lanes[3], e->g);
    for (int r = 0; r < LANES; r++) n[r] = (struct natural){lanes[0][r], lanes[1][r], lanes[2][r], lanes[3][r]};
}

/* Rounding must not make a finite maximum infinite. */
FN double natural_lse(const struct natural *n, real sink)
{
    double x = (double)n->top * ATTN_NATURAL;
    if (n->z == 0) return (double)sink;
    if (isfinite(n->top)) x = fmax(-LARGEST, fmin(LARGEST, x));
    x += log(fma((double)n->z, (double)n->f, (double)n->g)); /* by name: a compiler may contract it or not */
    return isfinite(n->top) && isfinite(x) ? fmax(-LARGEST, fmin(LARGEST, x)) : x;
}
