/* scalar.h: the vocabulary of the plain C rows, in which a vector is one number. The file that includes this defines REAL_BITS.
 * SPDX-License-Identifier: MIT */
#if REAL_BITS == 32
typedef float real;
#define FMA      fmaf
#define BITS     uint32_t
#define MANTISSA 23
#define BIAS     127
#define WHOLE    12582912.0f /* 1.5 * 2^23 */
#else
typedef double real;
#define FMA      fma
#define BITS     uint64_t
#define MANTISSA 52
#define BIAS     1023
#define WHOLE    6755399441055744.0 /* 1.5 * 2^52 */
#endif
typedef real vec;
typedef int  mask;

static FORCE vec v_set(real a)
{
    return a;
}
static FORCE vec v_load(const real *a)
{
    return *a;
}
static FORCE vec v_load_any(const void *a)
{
    vec x;
    memcpy(&x, a, sizeof x);
    return x;
}
static FORCE void v_store(real *to, vec a)
{
    *to = a;
}
static FORCE vec v_add(vec a, vec b)
{
    return a + b;
}
static FORCE vec v_sub(vec a, vec b)
{
    return a - b;
}
static FORCE vec v_div(vec a, vec b)
{
    return a / b;
}
static FORCE vec v_fma(vec a, vec b, vec c)
{
    return FMA(a, b, c);
}
static FORCE vec v_max(vec a, vec b)
{
    return a > b ? a : b;
}
static FORCE vec v_min(vec a, vec b)
{
    return a < b ? a : b;
}
static FORCE mask v_lt(vec a, vec b)
{
    return a < b;
}
static FORCE mask v_eq(vec a, vec b)
{
    return a == b;
}
static FORCE vec v_pick(mask m, vec yes, vec no)
{
    return m ? yes : no;
}
static FORCE int v_any(mask m)
{
    return m;
}
/* adding WHOLE leaves whole numbers in the low bits */
static FORCE vec v_round(vec a)
{
    return a + WHOLE - WHOLE;
}
static FORCE vec power(vec n)
{
    real shifted = n + (WHOLE + BIAS);
    BITS bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits <<= MANTISSA;
    memcpy(&shifted, &bits, sizeof bits);
    return shifted;
}
/* in two steps, as 2^n may be below the smallest normal number */
static FORCE vec v_scale(vec p, vec n)
{
    vec half = v_round(n * (real)0.5);
    return v_fma(v_fma(p, power(half), 0), power(n - half), 0);
}
static FORCE vec v_fma_seen(vec p, vec v, vec acc)
{
    return signbit(p) ? acc : v_fma(p, v, acc);
}
static FORCE mask v_seen(const unsigned char *a)
{
    return *a != 0;
}
static FORCE mask v_no_byte(vec a, int i)
{
    unsigned char bytes[sizeof a];
    memcpy(bytes, &a, sizeof a);
    return bytes[i] == 0;
}
static FORCE void v_transpose(vec *x)
{
    (void)x;
}
