/* problem.c: the inputs of a row: numbers that depend on their place alone, so that C and Python, and every run, see the same.
 * SPDX-License-Identifier: MIT
 */
#define _GNU_SOURCE
#include "bench.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCK = 4194301 }; /* a prime: tensors repeat the same block of numbers, each from another place, and rows never line up */

static size_t whole_pages(size_t bytes)
{
    const size_t page = (size_t)2 << 20;
    return (bytes + page) / page * page;
}

void *bench_alloc(size_t bytes)
{
    void *data = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        fprintf(stderr, "bench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    madvise(data, whole_pages(bytes), MADV_HUGEPAGE);
    return data;
}

void bench_free(void *data, size_t bytes)
{
    if (data) munmap(data, whole_pages(bytes));
}

/* ---- numbers ---------------------------------------------------------------------------------------------------------------------- */

static uint32_t mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* About normal, of variance 1: the sum of four uniform numbers. */
static const float *numbers(void)
{
    static float *block;
    if (block) return block;
    block = bench_alloc(BLOCK * sizeof *block);
    for (uint32_t i = 0; i < BLOCK; i++) {
        uint32_t x = mix(2 * i + 1), y = mix(2 * i + 2);
        float    sum = (float)(x & 0xffff) + (float)(x >> 16) + (float)(y & 0xffff) + (float)(y >> 16);
        block[i] = (sum * (1.0f / 65536.0f) - 2.0f) * 1.7320508f;
    }
    return block;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* For |value| of at most a few, which is all there is here; those below 2^-14 are rounded to multiples of 2^-24. */
static uint16_t to_f16(float value)
{
    uint32_t bits, sign;
    memcpy(&bits, &value, sizeof bits);
    sign = (bits >> 16) & 0x8000;
    bits &= 0x7fffffff;
    if (bits < 0x38800000) return (uint16_t)(sign | (uint32_t)lrintf(fabsf(value) * 16777216.0f));
    bits -= 0x38000000;
    return (uint16_t)(sign | ((bits + 0xfff + ((bits >> 13) & 1)) >> 13));
}

static double from_f16(uint16_t bits)
{
    int    exponent = (bits >> 10) & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -value : value;
}

double problem_get(const void *data, int32_t dtype, int64_t at)
{
    if (dtype == ATTN_F32) return ((const float *)data)[at];
    uint16_t bits = ((const uint16_t *)data)[at];
    if (dtype == ATTN_F16) return from_f16(bits);
    uint32_t wide = (uint32_t)bits << 16;
    float    value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* count numbers from place `from` of the block on. */
static void fill(void *to, int32_t dtype, int64_t count, int64_t from)
{
    const float *block = numbers();
    for (int64_t done = 0, n; done < count; done += n) {
        int64_t at = (from + done) % BLOCK;
        n = count - done < BLOCK - at ? count - done : BLOCK - at;
        if (dtype == ATTN_F32)
            memcpy((float *)to + done, block + at, (size_t)n * sizeof(float));
        else if (dtype == ATTN_F16)
            for (int64_t i = 0; i < n; i++) ((uint16_t *)to)[done + i] = to_f16(block[at + i]);
        else
            for (int64_t i = 0; i < n; i++) ((uint16_t *)to)[done + i] = to_bf16(block[at + i]);
    }
}

/* ---- problems --------------------------------------------------------------------------------------------------------------------- */

static void set_strides(int64_t stride[4], int layout, int64_t heads, int64_t rows, int64_t dim)
{
    stride[0] = heads * rows * dim, stride[3] = 1;
    stride[1] = layout == LAYOUT_BHND ? rows * dim : dim;
    stride[2] = layout == LAYOUT_BHND ? dim : heads * dim;
}

static void make_mask(struct problem *p)
{
    const struct row *row = &p->row;
    int64_t           matrix = row->queries * row->keys;
    p->mask_count = matrix * (row->per_head ? row->batch * row->heads : 1);
    p->mask_stride[0] = row->per_head ? row->heads * matrix : 0, p->mask_stride[1] = row->per_head ? matrix : 0;
    p->mask_stride[2] = row->keys, p->mask_stride[3] = 1;
    if (row->mask == MASK_BIAS) {
        p->bias = bench_alloc((size_t)p->mask_count * sizeof *p->bias);
        fill(p->bias, ATTN_F32, p->mask_count, 4000);
        return;
    }
    p->allow = bench_alloc((size_t)p->mask_count);
    for (int64_t i = 0; i < p->mask_count; i++) p->allow[i] = i % matrix % (row->keys + 1) == 0 || mix((uint32_t)i) % 8 != 0;
}

struct problem *bench_problem_new(const struct row *row)
{
    struct problem *p = calloc(1, sizeof *p);
    size_t          bytes = attn_dtype_bytes(row->dtype);
    if (!p) exit(1);
    p->row = *row;
    p->q_count = row->batch * row->heads * row->queries * row->dim, p->k_count = row->batch * row->kv_heads * row->keys * row->dim;
    p->q = bench_alloc((size_t)p->q_count * bytes), p->out = bench_alloc((size_t)p->q_count * bytes);
    p->k = bench_alloc((size_t)p->k_count * bytes), p->v = bench_alloc((size_t)p->k_count * bytes);
    fill(p->q, row->dtype, p->q_count, 1000), fill(p->k, row->dtype, p->k_count, 2000), fill(p->v, row->dtype, p->k_count, 3000);
    set_strides(p->q_stride, row->layout, row->heads, row->queries, row->dim);
    set_strides(p->k_stride, row->layout, row->kv_heads, row->keys, row->dim);
    if (row->mask == MASK_ALLOW || row->mask == MASK_BIAS) make_mask(p);
    if (row->mask == MASK_PADDING || row->mask == MASK_PADDING_CAUSAL) {
        p->lengths = calloc((size_t)row->batch, sizeof *p->lengths);
        if (!p->lengths) exit(1);
        for (int64_t b = 0; b < row->batch; b++) p->lengths[b] = row_length(row, b);
    }
    return p;
}

void bench_problem_free(struct problem *p)
{
    if (!p) return;
    size_t bytes = attn_dtype_bytes(p->row.dtype);
    bench_free(p->q, (size_t)p->q_count * bytes), bench_free(p->out, (size_t)p->q_count * bytes);
    bench_free(p->k, (size_t)p->k_count * bytes), bench_free(p->v, (size_t)p->k_count * bytes);
    bench_free(p->allow, (size_t)p->mask_count), bench_free(p->bias, (size_t)p->mask_count * sizeof *p->bias);
    free(p->lengths), free(p);
}

float *problem_widen(const struct problem *p, const void *data, const int64_t stride[4], int64_t heads, int64_t rows)
{
    int64_t dim = p->row.dim;
    float  *to = bench_alloc((size_t)(p->row.batch * heads * rows * dim) * sizeof *to), *next = to;
    for (int64_t b = 0; b < p->row.batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++)
                for (int64_t c = 0; c < dim; c++)
                    *next++ = (float)problem_get(data, p->row.dtype, b * stride[0] + h * stride[1] + i * stride[2] + c * stride[3]);
    return to;
}
