/* scalar.c: the plain C row, f32 arithmetic: a vector is one number. It is the row that every other one is compared with.
 * SPDX-License-Identifier: MIT */
#include <math.h>

#include "vocabulary.h"

#define NAME attn_kernel_scalar
#define ISA  "scalar"
#define TARGET
#define REAL_BITS 32
#define LANES     1
#define NV        4
#define NB        4
typedef float real;
typedef float vec;
typedef int   mask;

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
    return fmaf(a, b, c);
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
/* 1.5 * 2^23: adding it leaves whole numbers in the low bits */
static FORCE vec v_round(vec a)
{
    return a + 12582912.0f - 12582912.0f;
}
static FORCE vec power(vec n)
{
    real     shifted = n + (12582912.0f + 127);
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits <<= 23;
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
