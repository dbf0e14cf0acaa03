/* checksum.c: prints one checksum of results for every instruction set usable here; equal programs mean equal bits.
 * SPDX-License-Identifier: MIT
 */
#include <attn/attn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, HEADS = 4, GROUPS = 2 };

static uint32_t state;

static uint32_t next(void)
{
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

/* Every value is a small multiple of 1/64, so that it is exact in each dtype: 7 bits at most, for bf16. */
static void fill(void *to, int32_t dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double   value = ((double)(next() % 255) - 127.0) / 64.0;
        float    f = (float)value;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        if (dtype == ATTN_F64) ((double *)to)[i] = value;
        if (dtype == ATTN_F32) ((float *)to)[i] = f;
        if (dtype == ATTN_BF16) ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
        /* |value| is 0 or at least 1/64: normal in binary16 */
        if (dtype == ATTN_F16)
            ((uint16_t *)to)[i] = (uint16_t)(value == 0 ? 0 : (bits >> 16 & 0x8000) | (((bits & 0x7fffffff) - 0x38000000) >> 13));
    }
}

static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * 1099511628211u;
    return hash;
}

static void *need(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p) exit(3);
    return p;
}

/* One problem; the bits of `option` switch the options on. Returns the hash with the results taken in. */
static uint64_t run(uint64_t hash, const char *isa, const attn_pool *pool, int32_t dtype, const int64_t size[4], unsigned option)
{
    int64_t queries = size[0], keys = size[1], dim = size[2], value_dim = size[3];
    size_t  real = dtype == ATTN_F64 ? 8 : 4, bytes = attn_dtype_bytes(dtype);
    int64_t out_count = BATCH * HEADS * queries * value_dim, lse_count = BATCH * HEADS * queries;
    void   *q = need(BATCH * HEADS * queries * dim * bytes), *k = need(BATCH * GROUPS * keys * dim * bytes);
    void   *v = need(BATCH * GROUPS * keys * value_dim * bytes), *out = need(out_count * bytes), *lse = need(lse_count * real);
    void   *bias = need(queries * keys * bytes), *allow = need(keys), *sink = need(HEADS * real), *slope = need(HEADS * real);
    int64_t count[BATCH] = {keys, keys / 2};
    fill(q, dtype, BATCH * HEADS * queries * dim);
    fill(k, dtype, BATCH * GROUPS * keys * dim);
    fill(v, dtype, BATCH * GROUPS * keys * value_dim);
    fill(bias, dtype, queries * keys);
    fill(sink, dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, HEADS);
    fill(slope, dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, HEADS);
    for (int64_t j = 0; j < keys; j++) ((char *)allow)[j] = next() % 4 != 0;

    attn_desc d = attn_desc_new();
    d.batch = BATCH, d.heads = HEADS, d.kv_heads = GROUPS, d.queries = queries, d.keys = keys, d.dim = dim, d.value_dim = value_dim;
    d.q = attn_in_dense(q, dtype, HEADS, queries, dim);
    d.k = attn_in_dense(k, dtype, GROUPS, keys, dim);
    d.v = attn_in_dense(v, dtype, GROUPS, keys, value_dim);
    d.out = attn_out_dense(out, dtype, HEADS, queries, value_dim);
    d.lse = attn_out_dense(lse, dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, HEADS, queries, 1);
    d.lse.stride[3] = 0;
    d.isa = isa;
    d.executor = attn_pool_executor(pool);
    d.align = ATTN_ALIGN_BOTTOM_RIGHT;
    if (option & 1) d.causal = 1;
    if (option & 2) d.window = 1, d.window_left = 150, d.window_right = -1;
    if (option & 4) d.softcap = 3.0;
    if (option & 8) {
        const int64_t stride[4] = {0, 0, keys, 1};
        d.bias = attn_in_strided(bias, dtype, stride);
    }
    if (option & 16) {
        const int64_t stride[4] = {0, 0, 0, 1};
        d.allow = attn_in_strided(allow, ATTN_BOOL, stride);
    }
    if (option & 32) {
        const int64_t stride[4] = {0, 1, 0, 0};
        d.sink = attn_in_strided(sink, dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, stride);
        d.alibi = attn_in_strided(slope, dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, stride);
    }
    if (option & 64) d.key_count = count;
    attn_error error;
    if (attn_run(&d, &error) != ATTN_OK) {
        printf("%s\n", error.message);
        exit(1);
    }
    hash = mix(mix(hash, out, (size_t)out_count * bytes), lse, (size_t)lse_count * real);
    free(q), free(k), free(v), free(out), free(lse), free(bias), free(allow), free(sink), free(slope);
    return hash;
}

int main(void)
{
    static const int64_t  size[][4] = {{1, 1, 1, 1}, {5, 37, 8, 8}, {70, 70, 24, 32}, {33, 300, 70, 24}, {1, 2300, 16, 8}, {3, 2300, 5, 7}};
    static const int32_t  dtype[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    static const unsigned options[] = {0, 3, 4, 8, 16, 96, 127, 63};
    attn_pool            *pool = attn_pool_new(2, NULL);
    if (!pool) return 3;
    for (int32_t row = 0; attn_isa_name(row); row++) {
        if (!attn_isa_usable(row)) continue;
        uint64_t hash = 14695981039346656037u;
        state = 1;
        for (size_t t = 0; t < sizeof dtype / sizeof *dtype; t++)
            for (size_t s = 0; s < sizeof size / sizeof *size; s++)
                for (size_t o = 0; o < sizeof options / sizeof *options; o++)
                    hash = run(hash, attn_isa_name(row), o % 2 ? pool : NULL, dtype[t], size[s], options[o]);
        printf("%-8s %016llx\n", attn_isa_name(row), (unsigned long long)hash);
    }
    attn_pool_free(pool);
    return 0;
}
