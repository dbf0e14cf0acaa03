/* scalar_f64.c: the plain C row, f64 arithmetic: a vector is one number. It is the row that every other one is compared with.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "vocabulary.h"

#define NAME attn_kernel_scalar_f64
#define ISA  "scalar"
#define TARGET
#define REAL_BITS 64
#define LANES     1
#define NV        4
#define NB        4
typedef double real;
typedef double vec;
typedef int    mask;

static FORCE vec v_set(real a)
{
    return a;
}
static FORCE vec v_load(const real *a)
{
    return *a;
}
static FORCE vec v_load_any(const real *a)
{
    return *a;
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
    return fma(a, b, c);
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
/* 1.5 * 2^52: adding it leaves whole numbers in the low bits */
static FORCE vec v_round(vec a)
{
    return a + 6755399441055744.0 - 6755399441055744.0;
}
static FORCE vec power(vec n)
{
    real     shifted = n + (6755399441055744.0 + 1023);
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits <<= 52;
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
static FORCE void v_transpose(vec *x)
{
    (void)x;
}

#include "tile.h"
