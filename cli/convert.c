/* convert.c: arrays in memory: new ones, other dtypes, walking over elements.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <math.h>
#include <stdlib.h>

int64_t convert_count(const io_array *a)
{
    int64_t count = 1;
    for (int i = 0; i < a->rank; i++) count *= a->shape[i]; /* the reader has checked that the product fits */
    return count;
}

int64_t convert_at(const io_array *a, const int64_t *index)
{
    int64_t at = 0;
    for (int i = 0; i < a->rank; i++) at += index[i] * a->stride[i];
    return at;
}

int convert_next(const io_array *a, int64_t *index)
{
    for (int i = a->rank - 1; i >= 0; i--) {
        if (++index[i] < a->shape[i]) return 1;
        index[i] = 0;
    }
    return 0;
}

/* The bits of x in a binary format of 16 bits with `fraction` stored fraction bits. One rounding, to nearest even: through f32 there would be two. */
static uint16_t narrow(double x, int fraction, int bias)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0, infinite = (uint16_t)((2 * bias + 1) << fraction);
    if (isnan(x)) return (uint16_t)(sign | infinite | 1 << (fraction - 1));
    if (isinf(x)) return sign | infinite;
    if (x == 0) return sign;
    int exponent;
    frexp(x, &exponent);                          /* |x| = 0.5..1 * 2^exponent */
    if (exponent < 2 - bias) exponent = 2 - bias; /* subnormal: the same step as the smallest normal numbers */
    const double step = ldexp(1, exponent - 1 - fraction);
    const double units =
        nearbyint(fabs(x) / step); /* exact but for this rounding; may reach the next exponent, which the sum below carries */
    const double bits = units + ldexp(exponent - 2 + bias, fraction);
    return sign | (bits >= infinite ? infinite : (uint16_t)bits);
}

void convert_store(void *data, int64_t at, int32_t dtype, double x)
{
    switch (dtype) {
    case ATTN_F32:
        ((float *)data)[at] = (float)x;
        break;
    case ATTN_F64:
        ((double *)data)[at] = x;
        break;
    case ATTN_F16:
        ((uint16_t *)data)[at] = narrow(x, 10, 15);
        break;
    case ATTN_BF16:
        ((uint16_t *)data)[at] = narrow(x, 7, 127);
        break;
    case ATTN_BOOL:
        ((uint8_t *)data)[at] = x != 0;
        break;
    default:
        break;
    }
}

double convert_rounded(double x, int32_t dtype)
{
    uint64_t       room;
    const io_array a = {.data = &room, .dtype = dtype};
    convert_store(&room, 0, dtype, x);
    return io_get(&a, 0);
}

int convert_new(io_array *a, int32_t dtype, int rank, const int64_t *shape)
{
    memset(a, 0, sizeof *a);
    a->dtype = dtype;
    a->rank = rank;
    int64_t count = 1;
    for (int i = rank - 1; i >= 0; i--) {
        a->shape[i] = shape[i];
        a->stride[i] = count;
        if (__builtin_mul_overflow(count, shape[i], &count)) return 0;
    }
    const size_t element = io_dtype_bytes(dtype);
    if ((uint64_t)count > PTRDIFF_MAX / element) return 0;
    a->data = a->owner = calloc((size_t)count ? (size_t)count : 1, element); /* never NULL: the library reads that as absent */
    return a->data != NULL;
}

int convert_array(io_array *a, int32_t dtype, int64_t *overflowed)
{
    io_array to;
    *overflowed = 0;
    if (!convert_new(&to, dtype, a->rank, a->shape)) return 0;
    int64_t index[IO_MAX_RANK] = {0};
    for (int64_t i = 0, n = convert_count(a); i < n; i++, convert_next(a, index)) {
        const double x = io_get(a, convert_at(a, index));
        convert_store(to.data, i, dtype, x);
        *overflowed += isfinite(x) && isinf(io_get(&to, i));
    }
    io_free(a);
    *a = to;
    return 1;
}
