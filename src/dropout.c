/* dropout.c: which weights are dropped: a counter-based generator, so that a place's fate depends on nothing but its own numbers.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "internal.h"

/* Philox 4x32-10 (Salmon, Moraes, Dror, Shaw 2011, Parallel random numbers: as easy as 1, 2, 3). */
static void philox(uint32_t x[4], uint64_t key)
{
    uint32_t a = (uint32_t)key, b = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++, a += 0x9E3779B9u, b += 0xBB67AE85u) {
        const uint64_t p = (uint64_t)0xD2511F53u * x[0], q = (uint64_t)0xCD9E8D57u * x[2];
        const uint32_t y[4] = {(uint32_t)(q >> 32) ^ x[1] ^ a, (uint32_t)q, (uint32_t)(p >> 32) ^ x[3] ^ b, (uint32_t)p};
        memcpy(x, y, sizeof y);
    }
}

static void pair(uint32_t *x, uint64_t n)
{
    x[0] = (uint32_t)n;
    x[1] = (uint32_t)(n >> 32);
}

/* The key of a row's own stream: two blocks deep, as batch, head, query and offset have more bits than one counter. */
static uint64_t row_key(const attn_dropout_block *d, int64_t b, int64_t h, int64_t i)
{
    uint32_t x[4];
    pair(x, (uint64_t)b);
    pair(x + 2, (uint64_t)h);
    philox(x, d->seed);
    pair(x + 2, (uint64_t)i ^ ((uint64_t)x[3] << 32 | x[2]));
    pair(x, d->offset ^ ((uint64_t)x[1] << 32 | x[0]));
    philox(x, d->seed);
    return (uint64_t)x[1] << 32 | x[0];
}

/* keep[c] = 1 if the weight of key first + c, of the tensor, is kept. Each counter gives four keys. */
static void row_keep(const attn_dropout_block *d, int64_t b, int64_t h, int64_t i, int64_t first, int64_t n, unsigned char *keep)
{
    const uint64_t least = (uint64_t)llrint(d->dropout * 0x1p32), key = row_key(d, b, h, i);
    for (int64_t at = first / 4 * 4; at < first + n; at += 4) {
        uint32_t x[4] = {0, 0, 0, 0};
        pair(x, (uint64_t)at / 4);
        philox(x, key);
        for (int64_t c = 0; c < 4; c++)
            if (at + c >= first && at + c < first + n) keep[at + c - first] = x[c] >= least;
    }
}

static void fill_tile(const struct attn_task *t, struct attn_tile *tile, int64_t first)
{
    const struct attn_plan  *plan = t->plan;
    const attn_dropout_block d = {.dropout = plan->d.dropout, .seed = plan->d.dropout_seed, .offset = plan->d.dropout_offset};
    unsigned char            keep[ATTN_ROWS_MAX][ATTN_TILE] = {{0}};
    const unsigned char     *rows[ATTN_ROWS_MAX];
    for (int64_t r = 0; r < t->block.m; r++) {
        rows[r] = keep[r];
        row_keep(&d, t->batch, t->rows[r].head, t->rows[r].query, attn_key_start(&plan->d, t->batch) + first, tile->keys, keep[r]);
    }
    plan->kernel->edit(t->slot + plan->at.drop, t->block.m, tile->keys, rows, 0);
    tile->drop = t->slot + plan->at.drop;
    tile->raise = plan->d.dropout < 1 ? 1 / (1 - plan->d.dropout) : 0;
}

void attn_dropout_tile(const struct attn_task *t, struct attn_tile *tile, int64_t first)
{
    if (t->plan->d.dropout != 0) fill_tile(t, tile, first);
}

void attn_dropout_fill(const attn_dropout_block *block)
{
    if (!block->head_count || !block->query_count || !block->key_count) return; /* however many there are of the others */
    for (int64_t b = 0; b < block->batch_count; b++)
        for (int64_t h = 0; h < block->head_count; h++)
            for (int64_t i = 0; i < block->query_count; i++)
                for (int64_t j = 0; j < block->key_count; j += ATTN_TILE) {
                    unsigned char  keep[ATTN_TILE];
                    const int64_t  n = block->key_count - j < ATTN_TILE ? block->key_count - j : ATTN_TILE;
                    unsigned char *to = (unsigned char *)block->keep.data + b * block->keep.stride[0] + h * block->keep.stride[1] +
                                        i * block->keep.stride[2] + j * block->keep.stride[3];
                    row_keep(block, block->batch + b, block->head + h, block->query + i, block->key + j, n, keep);
                    for (int64_t c = 0; c < n; c++) to[c * block->keep.stride[3]] = keep[c];
                }
}
