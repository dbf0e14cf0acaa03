/* plain.c: f32 and f64 in memory, to and from either arithmetic.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "../kernel.h"

static void load_f32_f32(float *to, const void *from, int64_t stride, int64_t n)
{
    const float *x = from;
    for (int64_t i = 0; i < n; i++) to[i] = x[i * stride];
}

static void load_f32_f64(double *to, const void *from, int64_t stride, int64_t n)
{
    const float *x = from;
    for (int64_t i = 0; i < n; i++) to[i] = (double)x[i * stride];
}

static void load_f64_f64(double *to, const void *from, int64_t stride, int64_t n)
{
    const double *x = from;
    for (int64_t i = 0; i < n; i++) to[i] = x[i * stride];
}

static void store_f32_f32(void *to, int64_t stride, const float *from, int64_t n)
{
    float *x = to;
    if (stride == 1)
        memcpy(x, from, (size_t)n * sizeof *x);
    else
        for (int64_t i = 0; i < n; i++) x[i * stride] = from[i];
}

static void store_f32_f64(void *to, int64_t stride, const double *from, int64_t n)
{
    float *x = to;
    for (int64_t i = 0; i < n; i++) x[i * stride] = (float)from[i];
}

static void store_f64_f32(void *to, int64_t stride, const float *from, int64_t n)
{
    double *x = to;
    for (int64_t i = 0; i < n; i++) x[i * stride] = (double)from[i];
}

static void store_f64_f64(void *to, int64_t stride, const double *from, int64_t n)
{
    double *x = to;
    for (int64_t i = 0; i < n; i++) x[i * stride] = from[i];
}

const struct attn_convert attn_convert_f32 = {load_f32_f32, load_f32_f64, store_f32_f32, store_f32_f64};
const struct attn_convert attn_convert_f64 = {0, load_f64_f64, store_f64_f32, store_f64_f64};
