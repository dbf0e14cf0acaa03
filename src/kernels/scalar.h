/* scalar.h: the vocabulary of the plain C rows, in which a vector is one number. The file that includes this defines REAL_BITS.
 * SPDX-License-Identifier: MIT */
#if REAL_BITS == 32
typedef float real;
#define FMA      fmaf
#define BITS     uint32_t
#define MANTISSA 23
#else
typedef double real;
#define FMA      fma
#define BITS     uint64_t
#define MANTISSA 52
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
static FORCE vec v_power(vec a)
{
    BITS bits;
    memcpy(&bits, &a, sizeof bits);
    bits <<= MANTISSA;
    memcpy(&a, &bits, sizeof bits);
    return a;
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
