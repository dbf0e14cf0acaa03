/* chunked.c: the strongest simple way without a library for attention: 128 query rows at a time, Q K^T by sgemm, a vectorised softmax,
 * and P V by sgemm. What a causal mask, a window or padding hides from a whole chunk is not computed.
 * SPDX-License-Identifier: MIT
 */
#include "bench.h"
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 128, LANES = 16 };

struct chunked {
    const struct problem *p;
    const attn_executor  *threads;
    float                *scores; /* one chunk's scores for each thread */
    size_t                bytes;
    int64_t               slot_floats, chunks, tasks, rows;
    int                   grouped; /* one query: the heads of a group are the rows of one product */
    int32_t               next, parts;
};

#if defined(__x86_64__) && defined(__gnu_linux__)
#define FOR_EACH_CPU __attribute__((target_clones("default", "arch=haswell", "avx512f")))
#else
#define FOR_EACH_CPU
#endif

/* exp(x - top) for x <= top, by 2^n times a polynomial for 2^f (error 1e-7), into x; the sum. Branch-free, for the vectoriser. */
static inline float exponential(float x)
{
    float t = x * 1.44269504f, n, f, e;
    t = t < -126.0f ? -126.0f : t;
    n = (t + 12582912.0f) - 12582912.0f; /* nearest integer, by the rounding of 1.5 * 2^23 */
    f = t - n;
    e = 1.3333558e-3f;
    e = e * f + 9.6181291e-3f;
    e = e * f + 5.5504109e-2f;
    e = e * f + 2.4022651e-1f;
    e = e * f + 6.9314718e-1f;
    e = e * f + 1.0f;
    union {
        int32_t bits;
        float   value;
    } power = {.bits = ((int32_t)n + 127) << 23};
    return x < -80.0f ? 0.0f : e * power.value;
}

FOR_EACH_CPU static void softmax(float *restrict s, int64_t count)
{
    float   top[LANES], sum[LANES] = {0}, peak, total = 0;
    int64_t j = 0;
    for (int l = 0; l < LANES; l++) top[l] = -INFINITY;
    for (; j + LANES <= count; j += LANES)
        for (int l = 0; l < LANES; l++) top[l] = s[j + l] > top[l] ? s[j + l] : top[l];
    for (; j < count; j++) top[0] = s[j] > top[0] ? s[j] : top[0];
    peak = top[0];
    for (int l = 1; l < LANES; l++) peak = top[l] > peak ? top[l] : peak;
    for (j = 0; j + LANES <= count; j += LANES)
        for (int l = 0; l < LANES; l++) {
            float e = exponential(s[j + l] - peak);
            s[j + l] = e, sum[l] += e;
        }
    for (; j < count; j++) total += s[j] = exponential(s[j] - peak);
    for (int l = 0; l < LANES; l++) total += sum[l];
    total = 1.0f / total;
    for (j = 0; j < count; j++) s[j] *= total;
}

/* Adds bias or allow to row i's scores of all keys. */
FOR_EACH_CPU static void edit(float *restrict s, int64_t count, const float *restrict bias, const uint8_t *restrict allow)
{
    if (bias)
        for (int64_t j = 0; j < count; j++) s[j] += bias[j];
    if (allow)
        for (int64_t j = 0; j < count; j++) s[j] = allow[j] ? s[j] : -1e30f;
}

/* Query i of entry b sees keys first .. end - 1; what allow hides is left in. */
static void seen(const struct row *row, int64_t b, int64_t i, int64_t *first, int64_t *end)
{
    int causal = row->mask == MASK_CAUSAL || row->mask == MASK_WINDOW || row->mask == MASK_PADDING_CAUSAL;
    *first = row->mask == MASK_WINDOW && i + 1 > row->window ? i + 1 - row->window : 0;
    *end = row_length(row, b);
    if (causal && i + 1 < *end) *end = i + 1;
}

static void chunk(struct chunked *c, float *s, int64_t task)
{
    const struct problem *p = c->p;
    const struct row     *row = &p->row;
    int64_t               group = row->heads / row->kv_heads, units = c->grouped ? row->kv_heads : row->heads;
    int64_t b = task / c->chunks / units, h = task / c->chunks % units * (c->grouped ? group : 1), from = task % c->chunks * CHUNK;
    int64_t rows = c->rows - from < CHUNK ? c->rows - from : CHUNK, first, end, unused;
    if (p->lengths && from + rows > row_length(row, b)) rows = row_length(row, b) - from;
    if (rows <= 0) return;
    seen(row, b, c->grouped ? 0 : from, &first, &unused);
    seen(row, b, c->grouped ? 0 : from + rows - 1, &unused, &end);

    int64_t      n = end - first, ldq = c->grouped ? p->q_stride[1] : p->q_stride[2], ldk = p->k_stride[2];
    const float *q = (const float *)p->q + b * p->q_stride[0] + h * p->q_stride[1] + from * ldq;
    const float *k = (const float *)p->k + b * p->k_stride[0] + h / group * p->k_stride[1] + first * ldk;
    const float *v = (const float *)p->v + b * p->k_stride[0] + h / group * p->k_stride[1] + first * ldk;
    float       *out = (float *)p->out + b * p->q_stride[0] + h * p->q_stride[1] + from * ldq;
    int          m = (int)rows, width = (int)n, dim = (int)row->dim;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, width, dim, 1.0f / sqrtf((float)dim), q, (int)ldq, k, (int)ldk, 0, s, width);
    for (int64_t i = 0; i < rows; i++) {
        int64_t mask = b * p->mask_stride[0] + h * p->mask_stride[1] + (from + i) * p->mask_stride[2], low, high;
        float  *line = s + i * n;
        edit(line, n, p->bias ? p->bias + mask : NULL, p->allow ? p->allow + mask : NULL);
        seen(row, b, c->grouped ? 0 : from + i, &low, &high);
        memset(line, 0, (size_t)(low - first) * sizeof *line), memset(line + high - first, 0, (size_t)(end - high) * sizeof *line);
        softmax(line + low - first, high - low);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, dim, width, 1, s, width, v, (int)ldk, 0, out, (int)ldq);
}

static void body(void *arg, int32_t index)
{
    struct chunked *c = arg;
    for (int64_t task; (task = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < c->tasks;)
        chunk(c, c->scores + index * c->slot_floats, task);
}

static int call(struct contender *contender)
{
    struct chunked *c = contender->state;
    c->next = 0;
    if (c->threads && c->parts > 1)
        c->threads->parallel_for(c->threads->context, c->parts, body, c);
    else
        body(c, 0);
    return 0;
}

static void close_chunked(struct contender *contender)
{
    struct chunked *c = contender->state;
    if (c) bench_free(c->scores, c->bytes);
    free(c);
}

const char *chunked_open(struct contender *contender, const attn_executor *threads)
{
    const struct row *row = &contender->problem->row;
    if (row->dtype != ATTN_F32) return "f32 only";
    struct chunked *c = calloc(1, sizeof *c);
    if (!c) exit(1);
    c->p = contender->problem, c->threads = threads;
    c->grouped = row->queries == 1 && row->mask == MASK_FULL;
    c->rows = c->grouped ? row->heads / row->kv_heads : row->queries;
    c->chunks = (c->rows + CHUNK - 1) / CHUNK;
    c->tasks = row->batch * (c->grouped ? row->kv_heads : row->heads) * c->chunks;
    c->slot_floats = (c->rows < CHUNK ? c->rows : CHUNK) * row->keys + 64;
    /* One task for each thread, or, where there is only one task, the threads inside the product. */
    c->parts = threads && c->tasks > 1 ? threads->width : 1;
    openblas_set_num_threads(c->parts > 1 || !threads ? 1 : threads->width);
    c->bytes = (size_t)(c->slot_floats * c->parts) * sizeof *c->scores;
    c->scores = bench_alloc(c->bytes);
    contender->state = c, contender->work_bytes = c->bytes, contender->call = call, contender->close = close_chunked;
    return NULL;
}

const char *chunked_name(void)
{
    static char name[48];
    snprintf(name, sizeof name, "chunked OpenBLAS %s", openblas_get_corename());
    return name;
}
