/* kernel.h: the contract between the tiling loop and the block kernels. Includes nothing of ours.
 * SPDX-License-Identifier: MIT
 *
 * A kernel row computes one block of queries against one tile of keys. It knows no tensors, masks, heads, threads or dtypes: plain
 * arrays of its own arithmetic, `real` below, float or double. Lanes are queries: an array [n][rows] holds, for each of n things, one
 * number per query, and `rows` is the row's constant, a multiple of its vector length.
 *
 *     q  [dim][rows]        queries, times scale * log2(e) / 2, rounded once
 *     s  [tile keys][rows]  scores, then weights
 *     o  [value_dim][rows]  sum of weight * value
 *     top, sum [rows]       the reference that scores are taken against, and the sum of the weights
 *
 * That is how tile.h does it. few.h, for up to 8 queries, has layouts of its own, in the same places; nobody else looks inside.
 *
 * The domain. Scores are kept times log2(e) / 2, so that exp(x - y) is 2^(2 (s - t)): no multiplication per score, and, as the factor is
 * less than 1, no overflow that the score itself does not have (log2(e) alone would turn a bias of -3e38 into -inf).
 *
 * The canonical order of one query, which every row and every way through a row keeps, so that the bits are the same:
 *   1. a score is one chain of fma over the channels in order, from +0
 *   2. tiles of ATTN_TILE keys, chunks of ATTN_CHUNK keys, both counted from the sequence's first key
 *   3. the reference, per chunk: the maximum of the first aligned 8 keys of which the query sees any; before a tile's
 *      exponentials it becomes the tile's maximum where that is more than 8 greater (a weight of 2^16); where it stays, the factor is exactly 1
 *   4. a tile's sum and each channel: chains over the seen keys in order, from +0, then added to what was there: fma(there, factor, tile)
 *   5. chunks are folded left to right; a chunk in which the query sees nothing changes nothing
 *   6. out = o * (1 / sum) + 0: the + 0 takes away the sign of an underflowed zero, which would tell how many tiles were passed over
 *   7. a hidden key has score -inf and weight -0; its sign switches the lane off, so that NaN in its value stays where it is
 * No product is ever left for the compiler to contract into an addition: sums of products are fma by name.
 */
#ifndef ATTN_KERNEL_H
#define ATTN_KERNEL_H

#include <stdint.h>

enum { ATTN_TILE = 128, ATTN_CHUNK = 2048, ATTN_ROWS_MAX = 48, ATTN_BLOCKS = 8 };

#define ATTN_DOMAIN  0.72134752044448170368 /* log2(e) / 2 */
#define ATTN_NATURAL 1.38629436111989061883 /* its inverse, 2 ln 2 */

/* How far attn_kernel.scores goes; numbered like the ATTN_STAGE_ constants. */
enum { ATTN_UPTO_WEIGHT = 0, ATTN_UPTO_SCALED = 1, ATTN_UPTO_CAPPED = 2, ATTN_UPTO_BIASED = 3 };

/* What a tile's keys and values are in memory: what the row takes anyway, or numbers of 16 bits that it turns into reals as it reads them. */
enum { ATTN_READ_AS_IS = 0, ATTN_READ_F16 = 1, ATTN_READ_BF16 = 2 };

/* Partial result of a block over some keys. */
struct attn_part {
    void *o, *top, *sum;
};

/* Rows of memory that are wanted soon: so many, `bytes` long, `step` bytes apart. */
struct attn_soon {
    uintptr_t         from, step, bytes;
    int64_t           rows;
    struct attn_soon *then; /* what is wanted after them */
};

/* What is fetched into the second-level cache, a line at a time, while something else is computed, so that memory is never idle. One list after the other, of
 * which the last never ends. A fetch of an address that is none does no harm. */
enum {
    ATTN_SOON_VALUES,
    ATTN_SOON_ALLOW,
    ATTN_SOON_BIAS,
    ATTN_SOON_KEYS,
    ATTN_SOON_RESULTS,
    ATTN_SOON_QUERIES, /* of the next block, and keys and values that it sees first */
    ATTN_SOON_NEXT_KEYS,
    ATTN_SOON_NEXT_VALUES,
    ATTN_SOON_NOTHING,
    ATTN_SOON_LISTS
};
struct attn_ahead {
    uintptr_t         at, end; /* the next line, the end of its row */
    struct attn_soon *now;
    struct attn_soon  list[ATTN_SOON_LISTS];
};

/* A block of queries; m <= rows of them are real, the other lanes may hold anything finite, and see what row m - 1 does. */
struct attn_block {
    int64_t            m, dim, value_dim;
    const void        *q;
    void              *s;
    struct attn_part   part;         /* of the current chunk */
    const void        *slope, *near; /* [rows]; slope NULL: no ALiBi; near: query position - first key of the tile */
    const void        *shift;        /* [rows]; weights are scaled by 2^-shift, see attn_kernel.finish */
    double             cap;          /* 0 = off; in the domain */
    int64_t            shifted;      /* 1 if any shift is not 0 */
    double             factor;       /* what attn_kernel.load was given: a row may multiply the scores by a part of it instead */
    struct attn_ahead *ahead;
};

/* A tile of values as a row that reads elements packs them. Consecutive blocks see much the same keys, so several are kept. */
struct attn_pack {
    void       *at;   /* room for a tile, channels rounded up to 16 */
    const void *from; /* the first value of what is in it, */
    int64_t     keys; /* so many keys from there on */
    int64_t     wild; /* is any of them infinite or NaN? */
};

/* A tile of keys, of reals or of what attn_kernel.reads or .also says. k and v have an innermost stride of 1; steps are in elements. */
struct attn_tile {
    const void *k, *v;
    int64_t     k_reads, v_reads; /* ATTN_READ_ */
    int64_t     k_step, v_step, keys;
    const void *low, *high; /* [rows] whole reals: key j is hidden from the queries with j < low or j >= high; NULL: from none */
    const void *edit;       /* [keys][rows], added after the cap, -inf hides; NULL: nothing to add */
    const void *seen;       /* in place of edit: what attn_kernel.see makes; NULL: nothing is hidden by bytes */
    const void *drop;       /* laid out like edit: -inf where a weight is dropped before it meets its value; NULL: nowhere */
    double      raise;      /* what the other weights are multiplied by then */

    struct attn_pack *pack; /* for rows that read elements: if it holds fewer keys than the tile, the row packs them all */
};

/* What a tile of weights adds up to. Lines are as attn_kernel.unload leaves them; arrays start on 64 bytes; wide: rows rounded up to 16. */
struct attn_survey {
    int64_t     m, keys, first; /* first: the tile's first key, as ranks count them */
    void       *lines;          /* [rows][ATTN_TILE]: scores, then weights */
    const void *top, *sum;      /* [rows], as for attn_kernel.weights; top is not infinite */
    void       *total, *away;   /* [wide]: sums of weight, of weight * (top - score) */
    int64_t     ranks, wide;    /* ranks 0: none are kept */
    /* [ranks][wide]: the largest weights so far, largest first, 0 in unused ranks; their keys as uint32_t or uint64_t */
    void *rank_weight, *rank_key;
    void *key_total, *key_most; /* [ATTN_TILE] */
};

/* The backward pass of one block of queries against one tile of keys, given what the forward pass left. Arrays as above, lanes are queries. */
struct attn_gradient_block {
    struct attn_block b;           /* q, s (weights; -0 where hidden), and what edits scores */
    const void       *d_out;       /* [value_dim][rows] */
    const void       *lse, *delta; /* [rows]: lse in the domain; d_out . out - d_lse */
    void             *ds;          /* [tile keys][rows]: gradient of the scores after the cap, 0 where hidden */
    void             *bend;        /* [tile keys][rows]: with a cap, its derivative */
    void             *dq;          /* [dim][rows]: sum of ds * key */
    void             *sum, *away;  /* [rows] or NULL: sum of ds over the keys; of ds * |position - key| */
    int64_t           finite;      /* q and d_out hold neither NaN nor infinity */
};

/* What sums over queries read: the blocks before they are left behind, and their queries and d_out as rows in memory. A row of theirs, as one of
 * `to`, may be read (written) up to the next multiple of 16 numbers. */
struct attn_gradient_rows {
    const struct attn_gradient_block *block;
    const struct attn_tile           *tile;
    const void                       *q, *d_out;
    int64_t                           q_step, d_out_step;
};

struct attn_gradient {
    /* b.s and ds, bend, sum and away */
    void (*scores)(const struct attn_gradient_block *g, const struct attn_tile *t);

    /* ds *= bend */
    void (*bend)(const struct attn_gradient_block *g, int64_t keys);

    /* dq += ds * keys of the tile */
    void (*query)(const struct attn_gradient_block *g, const struct attn_tile *t);

    /* dk[key][..] += sum over the queries of n blocks of ds * q; dv the same of weights * d_out. Either may be NULL. */
    void (*keys)(const struct attn_gradient_rows *rows, int64_t n, void *dk, int64_t dk_step, void *dv, int64_t dv_step);

    /* columns[key] += sum of ds over the queries */
    void (*columns)(const struct attn_gradient_block *g, int64_t keys, void *columns);

    /* 1 if n numbers in each of so many rows are neither NaN nor infinite */
    int (*finite)(const void *x, int64_t step, int64_t rows, int64_t n);

    /* sum of a[i] * b[i] where a[i] is not 0 */
    double (*dot)(const void *a, const void *b, int64_t n);
};

struct attn_kernel {
    const char *name, *isa;
    int64_t     real_bytes, rows;
    int32_t     reads; /* the dtype of keys, values and lines of queries, which it then takes as they are; 0: real */
    int32_t     also;  /* 1 << ATTN_READ_: types of keys and values that it takes besides */
    int32_t     packs; /* 1: step packs values, see attn_pack */

    /* Channels at .. at + n - 1 of q: lines[r][c - at] * factor, rounded once; a finite number stays finite. Lines of reals hold n rounded up to 16. */
    void (*load)(const struct attn_block *b, void *q, int64_t at, int64_t n, const void *const *lines, double factor);

    /* lines[r * step + i] = thing at + i of row r, n <= ATTN_TILE of them, out of o (total = value_dim) or s (total = ATTN_TILE); lines, which may lie
     * anywhere, hold n rounded up to 16 */
    void (*unload)(const struct attn_block *b, void *lines, int64_t step, const void *from, int64_t total, int64_t at, int64_t n);

    /* part.o = part.sum = 0, part.top = -inf */
    void (*begin)(const struct attn_block *b, const struct attn_part *part);

    /* The edit tile of m queries, room for ATTN_TILE keys, from rows of as many entries: edit[j][r] = seen[r][j] ? add[r][j] * log2(e) / 2 : -inf.
     * One of the two may be NULL: seen, all; add, 0. */
    void (*edit)(void *edit, int64_t m, int64_t keys, const unsigned char *const *seen, const void *const *add);

    /* The bytes alone of such rows, 0 hides: a quarter (with doubles an eighth) of an edit tile. NULL: the row wants an edit tile. */
    void (*see)(void *seen, int64_t m, int64_t keys, const unsigned char *const *rows);

    /* b->s = scores of the tile, as far as ATTN_UPTO_ says */
    void (*scores)(const struct attn_block *b, const struct attn_tile *t, int32_t upto);

    /* Scores, weights, sums: takes the tile into b->part. */
    void (*step)(const struct attn_block *b, const struct attn_tile *t);

    /* Folds b->part into `into`. */
    void (*fold)(const struct attn_block *b, const struct attn_part *into);

    /* Turns b->part into results: o = output, lse (doubles, natural; NULL: not wanted), top and sum so that weight = 2^(2 (s - top)) * sum. sink[rows] natural, -inf = none.
     * Returns 1, having changed nothing but `shift`, if a row's o overflowed though its sum did not: values near the largest number, and
     * the block must be done again with the new shift (row by row, so that other rows keep their bits). */
    int32_t (*finish)(const struct attn_block *b, const void *sink, void *shift, double *lse);

    /* b->s of attn_kernel.scores to what is asked for: weights by the top and sum of finish, or natural scores. */
    void (*weights)(const struct attn_block *b, int64_t keys, int32_t upto);

    /* Weights of the lines, their sums, and the ranks. NaN is in every sum that it belongs to and has no rank. */
    void (*survey)(const struct attn_survey *s);

    /* Over the surveyed rows from .. to - 1: each key's sum (with NaN) and largest weight (passing over NaN). */
    void (*survey_keys)(const struct attn_survey *s, int64_t from, int64_t to);

    const struct attn_gradient *gradient; /* NULL: the row is for the forward pass only */

    /* Rows of n numbers of 16 bits side by side (ATTN_READ_), n a multiple of 16, as reals one row after the other. */
    void (*widen)(void *to, const void *from, int64_t step, int64_t rows, int64_t n, int64_t reads);

    /* The other way: n reals as numbers of 16 bits. Either may be NULL: attn_convert does the same. */
    void (*narrow)(void *to, const void *from, int64_t n, int64_t reads);

    /* All of a block that sees every key of its only tile, which nothing edits, without a shift or sink, up to its results: out[r * step + c], anywhere;
     * value_dim is a multiple of 16. Returns 0 where it cannot tell: then begin, step, finish and unload must do it. NULL: they always do. */
    int32_t (*whole)(const struct attn_block *b, const struct attn_tile *t, void *out, int64_t step);
};

/* Conversions between an element type in memory, any stride, and contiguous float or double. NULL: not offered. */
struct attn_convert {
    void (*load_f32)(float *to, const void *from, int64_t stride, int64_t n);
    void (*load_f64)(double *to, const void *from, int64_t stride, int64_t n);
    void (*store_f32)(void *to, int64_t stride, const float *from, int64_t n);
    void (*store_f64)(void *to, int64_t stride, const double *from, int64_t n);
};

#define ATTN_KERNEL_ROW(symbol)  extern const struct attn_kernel symbol;
#define ATTN_CONVERT_ROW(symbol) extern const struct attn_convert symbol;
#include "kernels.inc"
#undef ATTN_KERNEL_ROW
#undef ATTN_CONVERT_ROW

#endif
