/* attn.h: exact attention for C programs. This header is the manual.
 * SPDX-License-Identifier: MIT
 *
 * WHAT IT COMPUTES
 *
 * For every batch b, query head h and query i, over the keys j that query i may see:
 *
 *     x   = scale * sum_c q[b,h,i,c] k[b,g,j,c]              g = h / (heads / kv_heads)
 *     x   = softcap > 0 ? softcap * tanh(x / softcap) : x
 *     s   = x + bias[b,h,i,j] - alibi[b,h] * |p - j'|         p = i + offset[b], j' = j - key_start[b]
 *     lse = ln( sum_j exp(s_j)  + exp(sink[h]) )              the sink only when one is given
 *     out[b,h,i,:] = sum_j exp(s_j - lse) v[b,g,j,:]          with dropout: of the weights kept, over 1 - dropout
 *
 * Query i may see key j exactly when all of these hold (whatever subset is given, they compose by "and"):
 *
 *     0 <= j' < key_count[b]   and   i < query_count[b]
 *     causal:                  j' <= p
 *     window, left  L >= 0:    j' >= p - L        (L keys before the query's own; -1 = no bound)
 *     window, right R >= 0:    j' <= p + R        (with causal the smaller bound wins)
 *     allow:                   allow[b,h,i,j] is not 0
 *     bias:                    bias[b,h,i,j] is not -inf
 *
 * Not being seen is membership, not arithmetic: whatever q, k, v, bias hold at a place that is not seen, NaN and infinity
 * included, reaches no result. A query that sees nothing gives out = 0 and lse = -inf (with a sink: out = 0, lse = sink),
 * exactly. So does one whose every score is -inf. A query i >= query_count[b] gives out = 0, lse = -inf even with a sink.
 * NaN in what is seen reaches that query's row, and only that row; so does a score of +inf (the row becomes NaN).
 * A finite bias, however negative, does not hide.
 *
 * The formula is that of scaled dot-product attention (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1), computed tile by tile
 * with an online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135). ALiBi: Press et al.
 * 2021, arXiv 2108.12409. Softcap: Gemma 2, arXiv 2408.00118. Sinks: one learned logit per head in the softmax's sum.
 *
 * MEMORY AND SPEED
 *
 * No score matrix is ever held: beyond inputs and outputs a call needs attn_work_bytes() bytes, which grow with the number of threads,
 * dim and value_dim, and not with queries * keys:
 *
 *     bytes <= 64 + slots * (real * (rows * (D + 2 * V + 268) + 128 * (D + V)) + 2560) + parts * (real * rows * (V + 2) + 400)
 *
 * with slots = the number of threads used, real = 4 (8 for ATTN_F64 inputs), D and V = dim and value_dim rounded up to 16, rows = 48 for avx512 and
 * avx512bf16, 24 for avx2, 16 for neon, 4 for scalar (for ATTN_F64 half of that, scalar 4; 8 where query heads * queries of a key head are 8 or fewer,
 * as in decoding); with dropout each slot needs 128 * rows * real more; with ATTN_BF16 inputs and avx512bf16 at most 264 KiB more, where values stay
 * packed for the blocks that follow. parts = 0, unless there are few blocks of `rows` queries per thread (fewer than two, or fewer than four that would
 * leave threads idle) and more than 2048 keys: then the threads share the keys, and parts < 8 * executor->width, however many keys there are.
 *
 * What is fast: everything that is one interval of keys per query (causal, window, lengths) skips whole tiles and costs what it lets be seen,
 * plus half a block at each edge; dims that are multiples of 16; 16 queries or more per key head, query heads of a group counted together, or few
 * of them, as in decoding, where keys and values are read once per group as they lie, in f16 and bf16 too. An innermost stride of 1 lets k and v
 * be read in place in f32 and f64, and in bf16 by avx512bf16.
 * What is not: `allow` and `bias` cost a tenth to a quarter more than no mask (tiles in which they hide all are skipped); softcap and ALiBi pass over
 * every score once more; windows shorter than a few hundred keys pay for their edges; other innermost strides, f16, and bf16 without avx512bf16
 * are copied or widened tile by tile; f64 has half the lanes; dropout makes its random numbers without vectors; a call of a few queries and keys
 * takes a third of a microsecond or more whatever it computes.
 *
 * "avx512bf16" multiplies bf16 inputs in pairs, at up to twice the speed of f32 and without an f32 copy of k and v. Weights are then rounded to
 * bf16 before they are multiplied with v (lse and the weights that are written come from the unrounded ones), and elements of k, v and of q times
 * the nearest power of two below the scale that are smaller than the smallest normal number, 2^-126, count as 0. Ask for "avx512" to have bf16
 * widened to f32 instead. Inputs of other dtypes are computed as by "avx512", bit for bit, as there is nothing else to do with them.
 *
 * THE SAME BITS
 *
 * The bits of one query's result depend on its own q, on the keys it sees, on the options and on `isa`. They do not depend on the number of
 * threads, on the batch it sits in, on how the queries are split into calls (with their offsets said), on strides, on which optional outputs
 * are asked for, or on the caller's floating-point mode. (A NaN is a NaN, whatever its sign and payload.) So a prefill in chunks followed by
 * decoding gives what one long call gives. How: tiles of 128 and chunks of 2048 keys are counted from key_start, sums run in key order, partial
 * sums are joined in order.
 *
 * THREADS, FORK, SIGNALS
 *
 * There is no global state. Any thread may call any function at any time; one pool may be shared by calls that run at the same time. A call uses
 * the calling thread alone unless `executor` is set. After fork() a pool has no threads in the child: calls there still
 * give the same results on the calling thread alone, and attn_pool_free() frees its memory; make a new pool to have threads.
 *
 * Threads take blocks of queries one by one, those that see most keys first; where blocks are few, chunks of 2048 keys. attn_plan_describe() tells
 * how evenly that divides, for any number of threads. No call creates a thread: those of a pool wait for the next call with their eyes open
 * for about 50 microseconds, then sleep; so does the caller for the last of them. Where the pool has more threads than there are CPUs for it
 * (by the affinity of the thread that made it), nobody spins.
 * The library installs no signal handlers, prints nothing, and never exits or aborts.
 *
 * WHAT IS ABI
 *
 * From 0.1.0 on: the functions below, the numbers of codes and dtypes, attn_in, attn_out, attn_error and attn_executor, which
 * are frozen, and attn_desc, attn_merge_desc, attn_plan_info and attn_inspect_desc, which only grow at their ends (`size` tells how much the
 * caller knows; see attn_desc_new).
 * Supported and tested: Linux on x86-64 and aarch64, little endian, C99 and later, C++17 and later.
 *
 * EXAMPLE: one decoding step over a cache of `capacity` keys per head, of which the first `used` hold something. The query is the
 * last of the `used` positions, so bottom_right is what causal means here. k and v are (kv_heads, capacity, dim).
 *
 * @example decode
 * #include <attn/attn.h>
 * #include <stdio.h>
 * int decode(int64_t heads, int64_t kv_heads, int64_t dim, int64_t capacity, int64_t used,
 *            const float *q, const float *k, const float *v, float *out)
 * {
 *     attn_desc d = attn_desc_new();
 *     d.batch = 1, d.heads = heads, d.kv_heads = kv_heads, d.queries = 1, d.keys = capacity, d.dim = d.value_dim = dim;
 *     d.q   = attn_in_dense(q, ATTN_F32, heads, 1, dim);
 *     d.k   = attn_in_dense(k, ATTN_F32, kv_heads, capacity, dim);
 *     d.v   = attn_in_dense(v, ATTN_F32, kv_heads, capacity, dim);
 *     d.out = attn_out_dense(out, ATTN_F32, heads, 1, dim);
 *     d.key_count = &used;                       // the rest of the cache may hold anything, NaN included
 *     d.causal = 1, d.align = ATTN_ALIGN_BOTTOM_RIGHT;
 *     attn_error e;
 *     if (attn_run(&d, &e) != ATTN_OK) { fprintf(stderr, "%s\n", e.message); return 1; }
 *     return 0;
 * }
 * @end
 *
 * EXAMPLE: an encoder's padded batch. Tensors are (batch, tokens, heads, dim), as projections leave them; sentence b has
 * length[b] tokens. Padded rows come out as zeros.
 *
 * @example padded
 * #include <attn/attn.h>
 * #include <stdio.h>
 * int encode(int64_t batch, int64_t tokens, int64_t heads, int64_t dim, const int64_t *length,
 *            const float *q, const float *k, const float *v, float *out)
 * {
 *     attn_desc d = attn_desc_new();
 *     d.batch = batch, d.heads = d.kv_heads = heads, d.queries = d.keys = tokens, d.dim = d.value_dim = dim;
 *     const int64_t stride[4] = {tokens * heads * dim, dim, heads * dim, 1};  // steps of batch, head, position, channel
 *     d.q   = attn_in_strided(q, ATTN_F32, stride);
 *     d.k   = attn_in_strided(k, ATTN_F32, stride);
 *     d.v   = attn_in_strided(v, ATTN_F32, stride);
 *     d.out = attn_out_strided(out, ATTN_F32, stride);
 *     d.query_count = d.key_count = length;
 *     attn_error e;
 *     if (attn_run(&d, &e) != ATTN_OK) { fprintf(stderr, "%s\n", e.message); return 1; }
 *     return 0;
 * }
 * @end
 */
#ifndef ATTN_ATTN_H
#define ATTN_ATTN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0
#define ATTN_VERSION       "0.1.0"

#ifndef ATTN_API
#define ATTN_API __attribute__((visibility("default")))
#endif

/* ---- codes ------------------------------------------------------------------------------------------------------------------------ */

/* What a function returns. The numbers are pinned; layer and other libraries have their own hundreds. */
enum {
    ATTN_OK = 0,
    ATTN_E_ARGUMENT = 1,    /* a field is out of its rule; the message names the field, its value and the rule */
    ATTN_E_UNSUPPORTED = 2, /* legal, but not on this CPU or not in this version */
    ATTN_E_TOO_NEW = 3,     /* the caller's descriptor uses fields that this library does not know */
    ATTN_E_MEMORY = 4,      /* an allocation failed; never when `work` is given */
    ATTN_E_WORK = 5,        /* work_bytes is less than attn_work_bytes() says */
    ATTN_E_THREAD = 6       /* a thread could not be started */
};

/* Element types. 0 is no type. */
enum {
    ATTN_F32 = 1,
    ATTN_F64 = 2,
    ATTN_F16 = 3,  /* IEEE binary16 */
    ATTN_BF16 = 4, /* the upper half of an f32 */
    ATTN_BOOL = 5, /* one byte; 0 is false, every other value is true */
    ATTN_I64 = 6   /* keys found by attn_inspect(); nowhere else */
};

/* Where query 0 of a batch entry stands among its keys (attn_desc.align). */
enum {
    ATTN_ALIGN_TOP_LEFT = 1,    /* offset = 0: query 0 stands on the first key */
    ATTN_ALIGN_BOTTOM_RIGHT = 2 /* offset = key_count - query_count: the last query stands on the last key */
};

/* What attn_desc.weights receives (attn_desc.weights_stage), s being the score after each step of the formula. */
enum {
    ATTN_STAGE_WEIGHT = 0, /* exp(s - lse); 0 where not seen */
    ATTN_STAGE_SCALED = 1, /* scale * q.k for every query and key, seen or not */
    ATTN_STAGE_CAPPED = 2, /* the same after softcap, seen or not */
    ATTN_STAGE_BIASED = 3  /* after bias and ALiBi; -inf where not seen */
};

/* Every failing call fills the caller's attn_error (which may be NULL) with the code and one English sentence. On success
 * status is ATTN_OK and message is empty. */
typedef struct attn_error {
    int32_t status;
    char    message[252];
} attn_error;

/* ---- tensors ---------------------------------------------------------------------------------------------------------------------- */

/* A view of the caller's memory. `data` is element [0,0,0,0]; strides are in elements, one per axis, of any sign for inputs. Stride 0
 * repeats an input along that axis (that is how a mask, bias or key is broadcast). Strides of axes that an operand does not have must be 0.
 * Only the element type's own alignment is needed. Nothing outside the described elements is read or written.
 * `bytes`, when not 0, is the size of the memory that the view may span, lowest element to highest; a view that spans more is refused.
 * `data` NULL: the operand is absent. Two elements of an output may not share a place: sorted by size, each stride
 * must step over the axes inside it (axes of size 1 do not count); that outputs do not overlap inputs is the caller's duty. */
typedef struct attn_in {
    const void *data;
    int64_t     stride[4];
    size_t      bytes;
    int32_t     dtype, reserved; /* reserved must be 0, here and below */
} attn_in;

typedef struct attn_out {
    void   *data;
    int64_t stride[4];
    size_t  bytes;
    int32_t dtype, reserved;
} attn_out;

/* ---- threads ---------------------------------------------------------------------------------------------------------------------- */

/* How a call runs on several threads. `parallel_for` must call body(arg, i) once for every i in 0 .. count-1, on any threads, in any order,
 * at the same time or one after another, and return when all have returned. A call may do this several times, never with count > width. An embedder
 * fills this with its own scheduler; attn_pool_executor() is the library's own. It must outlive the call. */
typedef struct attn_executor {
    void (*parallel_for)(void *context, int32_t count, void (*body)(void *arg, int32_t index), void *arg);
    void   *context;
    int32_t width, reserved; /* width >= 1: at most so many threads are of use */
} attn_executor;

typedef struct attn_pool attn_pool;

/* Starts threads - 1 threads that sleep until a call needs them; the caller of a call is the last one. threads is 1 to 1024.
 * Returns NULL with ATTN_E_ARGUMENT, ATTN_E_MEMORY or ATTN_E_THREAD in *error; nothing is left behind then. The caller owns the pool. */
ATTN_API attn_pool *attn_pool_new(int32_t threads, attn_error *error);

/* Ends the threads and frees the pool; NULL is allowed. No call may be using it. */
ATTN_API void attn_pool_free(attn_pool *pool);

/* The pool as an executor, for attn_desc.executor; it belongs to the pool. NULL gives NULL (the calling thread alone). */
ATTN_API const attn_executor *attn_pool_executor(const attn_pool *pool);

/* ---- the operator ----------------------------------------------------------------------------------------------------------------- */

/* One call. Start from attn_desc_new(); for every field but the sizes 0 means "default" or "absent". */
typedef struct attn_desc {
    size_t size; /* set by attn_desc_new() */

    /* Sizes mean themselves, 0 included. heads is a multiple of kv_heads; query head h reads key head h / (heads / kv_heads).
     * No queries, heads or batch: nothing is written. No keys: every query sees nothing. dim 0: every x is 0. value_dim 0: lse is written. */
    int64_t batch, heads, kv_heads;
    int64_t queries, keys, dim, value_dim;

    /* Axes (batch, head, query or key, channel). One dtype for q, k and v: f32, f64, f16 or bf16. Products and sums are f64 for f64 inputs and
     * f32 for all others; bf16 is multiplied as it is, with weights rounded to bf16, where isa is avx512bf16. */
    attn_in  q, k, v;
    attn_out out; /* the inputs' dtype or f32; rounded once, to nearest even */

    /* Where the queries stand: `align` or query_offset, not both. Causal, window and alibi need one of them unless in
     * every batch entry query_count equals key_count; nothing is guessed. */
    int32_t align;
    int32_t causal;      /* 0 or 1 */
    int32_t window;      /* 1: window_left and window_right are meant; 0: they must be 0 */
    int32_t scale_given; /* 1: scale is meant, 0 included; 0: scale must be 0 and 1/sqrt(dim) is used */
    int64_t window_left, window_right;

    /* Arrays of `batch` entries, or NULL: query_offset[b] any position from -2^62 to 2^62 (NULL: by align);
     * query_count (NULL: queries), key_count (NULL: keys - key_start), key_start (NULL: 0). */
    const int64_t *query_offset, *query_count, *key_count, *key_start;

    attn_in allow;   /* ATTN_BOOL, axes (batch, head, query, key); true = may be seen */
    attn_in bias;    /* the inputs' dtype or f32, same axes; added to the score after scale and softcap; -inf hides */
    attn_in alibi;   /* f32 (f64 with f64 inputs), axes (batch, head): slopes, subtracted times the distance; not scaled */
    attn_in sink;    /* f32 (f64 with f64 inputs), axis head: stride[1] steps, the others are 0; -inf = none */
    double  scale;   /* finite, may be 0 or negative */
    double  softcap; /* finite, >= 0; 0 = off */

    attn_out lse;     /* optional; f32 (f64 with f64 inputs); axes (batch, head, query) */
    attn_out weights; /* optional; f32, f64 or the inputs' dtype; axes (batch, head, query, key); every element is written */
    int32_t  weights_stage, reserved;

    const char          *isa;        /* NULL: the best for this CPU and dtype; or a name from attn_isa_name() */
    const attn_executor *executor;   /* NULL: the calling thread only */
    void                *work;       /* NULL: allocated for the call and freed; else at least attn_work_bytes() bytes, any alignment, */
    size_t               work_bytes; /* not used by another call at the same time; nothing is allocated then */

    /* For training: the rate at which weights are dropped before they meet their values, 0 (off) to 1; see attn_dropout_mask(). The others are
     * multiplied by 1 / (1 - dropout). lse and weights are those before. */
    double   dropout;
    uint64_t dropout_seed, dropout_offset;
} attn_desc;

/* A descriptor with every field 0 but `size`, which tells the library what the caller was compiled with. Shorter than the first version's
 * is refused; shorter than the library's is read as if the rest were 0; longer is accepted if the rest is 0, else ATTN_E_TOO_NEW. */
static inline attn_desc attn_desc_new(void)
{
    attn_desc d;
    memset(&d, 0, sizeof d);
    d.size = sizeof d;
    return d;
}

/* Checks a descriptor and runs it. Returns ATTN_OK or a code; an error is found before anything is written. Threads, memory and
 * ownership as said above: inputs are only read, nothing is kept after the call. `error` may be NULL. */
ATTN_API int32_t attn_run(const attn_desc *desc, attn_error *error);

/* Only the check that attn_run() makes, data pointers and isa included; work is not looked at. */
ATTN_API int32_t attn_check(const attn_desc *desc, attn_error *error);

/* The bytes that attn_run() with this descriptor needs as `work`, into *bytes. They depend on sizes, dtypes, isa and executor->width. Data
 * pointers, `work` and executor->parallel_for may still be NULL. */
ATTN_API int32_t attn_work_bytes(const attn_desc *desc, size_t *bytes, attn_error *error);

/* ---- dropout ---------------------------------------------------------------------------------------------------------------------- */

/* Which weights a run or its gradients with dropout keep: any block of them. A weight's fate is the word of a counter-based generator, Philox 4x32-10
 * (Salmon et al. 2011), and depends on seed, offset and its own batch, head, query and key numbers, and on nothing else: threads, isa, strides,
 * sizes. Keys are counted as in the tensor k. Two runs with one seed and offset drop the same; a training step takes a new offset or seed. In
 * detail:
 *
 *     philox(c0 c1 c2 c3; key) is the generator's block; 64-bit numbers stand for two words, low word first
 *     A = philox(batch, head; seed)    B = philox(A0A1 xor offset, A2A3 xor query; seed)    C = philox(key / 4, 0; B0B1)
 *     the weight is kept if word key % 4 of C is at least dropout * 2^32, rounded to nearest
 *
 * @example dropout
 * #include <attn/attn.h>
 * // keep (queries, keys) of head h of batch entry b, as a run with this desc sees it
 * int kept(const attn_desc *d, int64_t b, int64_t h, unsigned char *keep)
 * {
 *     attn_dropout_block m = attn_dropout_block_new();
 *     m.dropout = d->dropout, m.seed = d->dropout_seed, m.offset = d->dropout_offset;
 *     m.batch = b, m.head = h, m.batch_count = m.head_count = 1, m.query_count = d->queries, m.key_count = d->keys;
 *     m.keep = attn_out_dense(keep, ATTN_BOOL, 1, d->queries, d->keys);
 *     return attn_dropout_mask(&m, NULL);
 * }
 * @end
 */
typedef struct attn_dropout_block {
    size_t   size;    /* set by attn_dropout_block_new() */
    double   dropout; /* 0 to 1 */
    uint64_t seed, offset;
    int64_t  batch, head, query, key; /* the block's first ones, from 0 */
    int64_t  batch_count, head_count, query_count, key_count;
    attn_out keep; /* ATTN_BOOL; axes (batch, head, query, key); 1 = kept */
} attn_dropout_block;

static inline attn_dropout_block attn_dropout_block_new(void)
{
    attn_dropout_block b;
    memset(&b, 0, sizeof b);
    b.size = sizeof b;
    return b;
}

ATTN_API int32_t attn_dropout_mask(const attn_dropout_block *block, attn_error *error);

/* ---- what a call costs ------------------------------------------------------------------------------------------------------------ */

/* What attn_run() would do with a descriptor, known from sizes, options, lists and executor->width alone. Work is counted in flop:
 * 2 * (dim + value_dim) for each query and key that see each other by position (lengths, causal, window); exponentials are not counted, and what
 * allow and bias hide is. Numbers are doubles because they may pass 2^63; below 2^53 they are exact. */
typedef struct attn_plan_info {
    size_t      size;                       /* set by attn_plan_info_new() */
    const char *kernel, *isa;               /* static strings: the row of the kernel table, its instruction set */
    int64_t     threads;                    /* in use: executor->width, or fewer where there are not so many pieces */
    int64_t     block_heads, block_queries; /* a task is so many query heads of a key head x so many queries, at the edges fewer */
    int64_t     tasks;
    int64_t     units,
        waves; /* where threads share keys: tasks are cut into so many units of at most 2048 keys, walked in so many waves; else 0 */
    double pairs, flop;   /* of all heads and batch entries */
    double longest_flop;  /* of the longest piece that a thread takes at once: a task or a unit */
    double critical_flop; /* what the busiest thread does, waiting and folding included */
    double speedup;       /* flop / critical_flop: the prediction. 1 where there is nothing to do */
    double moved_bytes;   /* q, k, v and out, each once, of k and v what any query sees: what memory must deliver at the least */
    double walked_bytes;  /* the same, but k and v once for each task that walks them: what caches deliver besides */
    size_t work_bytes;    /* as attn_work_bytes() says */
} attn_plan_info;

static inline attn_plan_info attn_plan_info_new(void)
{
    attn_plan_info i;
    memset(&i, 0, sizeof i);
    i.size = sizeof i;
    return i;
}

/* Fills *info, as far as info->size says that the caller knows it. Pointers may be NULL as for attn_work_bytes();
 * nothing is run and no thread is used. The prediction plays the run through: threads of equal speed take pieces in the order of the run, each
 * as soon as it is free; memory is no limit, starting costs nothing, a folded number counts as 8 flop. That takes about 0.1 microseconds per
 * piece; more than 2^20 pieces are not played, and then longest_flop, units and critical_flop are upper bounds, speedup a lower one.
 * ATTN_E_MEMORY: no room for a clock per thread.
 *
 * @example plan
 * #include <attn/attn.h>
 * #include <stdio.h>
 * int main(void)                                     // does one decoding step of 8 key heads keep 16 threads busy?
 * {
 *     attn_desc d = attn_desc_new();
 *     attn_plan_info info = attn_plan_info_new();
 *     attn_executor sixteen = {NULL, NULL, 16, 0};   // only its width is looked at
 *     d.batch = 1, d.heads = 32, d.kv_heads = 8, d.queries = 1, d.keys = 4096, d.dim = d.value_dim = 128;
 *     d.q = attn_in_dense(NULL, ATTN_F32, 32, 1, 128), d.k = d.v = attn_in_dense(NULL, ATTN_F32, 8, 4096, 128);
 *     d.out = attn_out_dense(NULL, ATTN_F32, 32, 1, 128);
 *     d.executor = &sixteen;
 *     attn_error e;
 *     if (attn_plan_describe(&d, &info, &e) != ATTN_OK) { fprintf(stderr, "%s\n", e.message); return 1; }
 *     printf("%.1f times as fast as one thread, %.1f flop per byte\n", info.speedup, info.flop / info.moved_bytes);
 *     return 0;
 * }
 * @end
 */
ATTN_API int32_t attn_plan_describe(const attn_desc *desc, attn_plan_info *info, attn_error *error);

/* ---- gradients ------------------------------------------------------------------------------------------------------------------- */

/* The gradients of some number L that depends on a run's out and, maybe, lse:
 *
 *     dp[j]    = r[j] * (d_out[i,:] . v[j,:])                 p[j] = exp(s[j] - lse[i]),  all sums over what query i sees
 *     ds[j]    = p[j] * (dp[j] - d_out[i,:] . out[i,:] + d_lse[i])
 *     dx[j]    = softcap > 0 ? ds[j] * (1 - (c[j] / softcap)^2) : ds[j]                   c[j]: x after the cap
 *     dq[i,:]  = scale * sum_j dx[j] k[j,:]
 *     dk[j,:]  = scale * sum_{h of the group, i} dx[j] q[h,i,:]        dv[j,:] = sum_{h of the group, i} r[j] p[j] d_out[h,i,:]
 *     dbias    = ds         dalibi = - sum_{i,j} |p - j'| ds           dsink = sum_{b,i} exp(sink - lse[i]) (d_lse[i] - d_out[i,:] . out[i,:])
 *
 * with r = 1; with dropout 1 / (1 - dropout) for a weight that is kept and 0 for one that is not.
 *
 * Start from attn_backward_desc_new(); what is not given is not computed. An axis of dbias, dalibi or dsink that has stride 0 is summed over and
 * holds one number, also where it is empty and the sum 0: the strides with which the bias itself is broadcast give the gradient in the bias's
 * own shape.
 *
 * dq of a query that sees nothing, dk and dv of a key that nobody sees, and dbias where nothing is seen are exactly 0, whatever stands there.
 * NaN spreads as in the run: from a query to the gradients of the keys that it sees. Sums are made in the run's arithmetic and rounded once, at
 * the end.
 *
 * Memory: attn_backward_work_bytes() bytes, which grow with queries and keys and not with their product:
 *
 *     bytes <= 1024 + slots * (G * S + real * rows * 256 + 192) + real * (N * (D + 4) + M * (D + V) + C) + P
 *
 * with slots, real, D, V as above; rows = 48 for avx512, 24 for avx2, 16 for neon, 4 for scalar (for ATTN_F64 half of that, scalar 4); G = 192 /
 * rows, but at most 8; S = real * (rows * (2 * D + 3 * V + 396) + 128 * (D + V)) + 2816, and real * rows * 128 more with dropout; N = batch *
 * heads * queries, queries rounded up to rows; M = batch * kv_heads * keys; C = batch * heads * keys where dbias is summed over the queries and
 * not over the keys, else 0; P = real * the elements of dbias where it is summed over batch or heads alone and is of a narrower dtype than real,
 * else 0.
 *
 * The same bits for any number of threads, and for any batch around a batch entry: queries and keys are cut into strips by their numbers alone, each
 * of `strips` rounds pairs every strip of queries with another strip of keys, and no sum is ever shared by two threads. So one batch entry and
 * one head keep strips = max(1, min(64, group * queries / (G * rows), keys / 256)) threads busy (keys / 512 from 4096 keys on).
 * That is one where group * queries is small: unlike a run, the gradients of one query over a long cache share no keys between threads, only
 * batch entries and key heads.
 *
 * @example gradients
 * #include <attn/attn.h>
 * #include <stdio.h>
 * #include <stdlib.h>
 * // out and lse of a causal run, then dq, dk, dv from d_out; all tensors (batch, heads, n, dim)
 * int train(int64_t batch, int64_t heads, int64_t n, int64_t dim, const float *q, const float *k, const float *v, float *out,
 *           const float *d_out, float *dq, float *dk, float *dv)
 * {
 *     float    *lse = (float *)malloc((size_t)(batch * heads * n) * sizeof *lse);
 *     attn_desc d = attn_desc_new();
 *     d.batch = batch, d.heads = d.kv_heads = heads, d.queries = d.keys = n, d.dim = d.value_dim = dim, d.causal = 1;
 *     d.q   = attn_in_dense(q, ATTN_F32, heads, n, dim);
 *     d.k   = attn_in_dense(k, ATTN_F32, heads, n, dim);
 *     d.v   = attn_in_dense(v, ATTN_F32, heads, n, dim);
 *     d.out = attn_out_dense(out, ATTN_F32, heads, n, dim);
 *     d.lse = attn_out_dense(lse, ATTN_F32, heads, n, 1), d.lse.stride[3] = 0;
 *     attn_backward_desc g = attn_backward_desc_new();
 *     g.out = attn_in_dense(out, ATTN_F32, heads, n, dim);
 *     g.lse = attn_in_dense(lse, ATTN_F32, heads, n, 1), g.lse.stride[3] = 0;
 *     g.d_out = attn_in_dense(d_out, ATTN_F32, heads, n, dim);
 *     g.dq  = attn_out_dense(dq, ATTN_F32, heads, n, dim);
 *     g.dk  = attn_out_dense(dk, ATTN_F32, heads, n, dim);
 *     g.dv  = attn_out_dense(dv, ATTN_F32, heads, n, dim);
 *     attn_error e;
 *     int bad = !lse || attn_run(&d, &e) != ATTN_OK || attn_backward(&d, &g, &e) != ATTN_OK;
 *     if (bad) fprintf(stderr, "%s\n", lse ? e.message : "no memory");
 *     free(lse);
 *     return bad;
 * }
 * @end
 */
typedef struct attn_backward_desc {
    size_t size; /* set by attn_backward_desc_new() */

    /* What the run left, and what flows back. out and d_out: the inputs' dtype or f32, axes (batch, head, query, channel); an f32 out of 16-bit inputs
     * keeps more of d_out . out. lse and d_lse: f32 (f64 with f64 inputs), axes (batch, head, query); d_lse optional. */
    attn_in out, lse, d_out, d_lse;

    /* Each optional; the inputs' dtype or f32; the axes of q, k, v and bias. */
    attn_out dq, dk, dv, dbias;
    attn_out dsink, dalibi; /* f32 (f64 with f64 inputs); the axes of sink and alibi */

    int32_t accumulate, reserved; /* 1: gradients are added to what stands there, and the sum is rounded once */
    void   *work;                 /* as in attn_desc, at least attn_backward_work_bytes() */
    size_t  work_bytes;
} attn_backward_desc;

static inline attn_backward_desc attn_backward_desc_new(void)
{
    attn_backward_desc d;
    memset(&d, 0, sizeof d);
    d.size = sizeof d;
    return d;
}

/* Checks and computes. `desc` is that of the run; its out, lse, weights and work are not looked at. An error is found before anything is written. */
ATTN_API int32_t attn_backward(const attn_desc *desc, const attn_backward_desc *grad, attn_error *error);

/* The bytes that attn_backward() with these descriptors needs as grad->work, into *bytes; data pointers may still be NULL where a dtype is set. */
ATTN_API int32_t attn_backward_work_bytes(const attn_desc *desc, const attn_backward_desc *grad, size_t *bytes, attn_error *error);

/* ---- partial results -------------------------------------------------------------------------------------------------------------- */

/* Joins results over disjoint sets of keys, as a split cache or several machines leave them:
 *     lse = ln sum_r exp(lse_r),   out = sum_r exp(lse_r - lse) out_r
 * A part whose lse is -inf takes no part, whatever its out holds; a NaN lse makes that row NaN; if all are -inf: out = 0, lse = -inf.
 * Give a sink to one part only. Computed in f64 in the order of the parts, rounded once.
 *
 * A sliding window beside which the first n keys stay visible ("attention sinks" of streaming models) is such a join: one causal call over those
 * keys alone (key_count = n), one over the rest with the window (key_start = n). Positions count from key_start, so query_offset is n less
 * in the second. */
typedef struct attn_merge_desc {
    size_t         size; /* set by attn_merge_desc_new() */
    int64_t        batch, heads, queries, value_dim;
    int64_t        parts;    /* >= 1 */
    const attn_in *part_out; /* [parts]; axes (batch, head, query, channel); f32, f64, f16 or bf16 */
    const attn_in *part_lse; /* [parts]; axes (batch, head, query); f32 or f64 */
    attn_out       out;      /* any of the float dtypes; may be exactly one of part_out's views (same data, strides and dtype) */
    attn_out       lse;      /* optional; f32 or f64; may be exactly one of part_lse's views */
} attn_merge_desc;

static inline attn_merge_desc attn_merge_desc_new(void)
{
    attn_merge_desc d;
    memset(&d, 0, sizeof d);
    d.size = sizeof d;
    return d;
}

/* Runs on the calling thread, allocates nothing, O(parts) per element. */
ATTN_API int32_t attn_merge(const attn_merge_desc *desc, attn_error *error);

/* ---- looking at weights ----------------------------------------------------------------------------------------------------------- */

/* What one wants to see of the weights P[b,h,i,j] = exp(s - lse) of a run, without holding them all: they are made again, tile by tile, from q, k
 * and lse, with the masks and options of the run. The run knows nothing of it: its bits stay the same. Start from attn_inspect_desc_new(); an
 * output whose dtype is 0 is not asked for, and only what is asked for is computed: given rows cost as much as they see keys.
 *
 * "Chosen" below: heads[0 .. head_count - 1] and queries[0 .. query_count - 1], in that order (repeats are allowed), or all of them where the
 * list is NULL; the keys are key_first .. key_first + key_count - 1, counted as in `allow`, from the tensor's first (key_count 0: all from
 * key_first on). Every output has the axes (batch, chosen head, ...) and every element of it is written.
 *
 *     values        (.., chosen query, key - key_first)   what values_stage says (ATTN_STAGE_*), as attn_desc.weights
 *     entropy       (.., chosen query)                    - sum_j P ln P, in nats; a sink has no part in it
 *     top_weight    (.., chosen query, rank)              the `top` largest weights, largest first
 *     top_key       (.., chosen query, rank)              and their keys, ATTN_I64; of equal weights the lower key is first
 *     first_mass    (.., chosen query)                    the weight of the sequence's first key, j' = 0
 *     window_mass   (.., chosen query)                    the sum of the weights with p - mass_left <= j' <= p + mass_right; -1: no bound
 *     received      (.., key - key_first)                 the sum of the weights over the chosen queries
 *     map_mean      (.., cell row, cell column)           the mean of the weights of a cell over all its pairs, a hidden one counting as 0
 *     map_max       (.., cell row, cell column)           the largest weight of a cell
 *
 * The map has map_rows * map_columns cells. Of n chosen queries, cell row r has those from floor(r n / map_rows) to floor((r + 1) n / map_rows)
 * - 1, counted along the list; of the chosen keys cell columns have theirs by the same rule. There are never more cells than queries or keys, so
 * none is empty. entropy, top, first_mass and window_mass are of whole rows, whatever keys are chosen.
 *
 * A query that sees nothing: weights and masses 0, entropy 0. Ranks beyond the keys with a weight above 0 have weight 0 and key -1. A row of NaN
 * gives NaN (keys -1), and so does a cell or key that it reaches.
 *
 * MEMORY: with slots = the number of threads used, `rows`, real and D as for attn_run(), W = `rows` rounded up to 16, C = the chosen keys, M = the
 * map's cells; the second line only for received (C) and maps (M):
 *
 *     bytes <= 64 + slots * (real * (rows * (D + 268) + 128 * D + 2 * W * (top + 1) + 256) + 40 * rows + 2432)
 *                 + (2 * slots + 1) * (8 * C + 16 * M + 64)
 *
 * SPEED: all summaries together cost about as much as the run itself, of which they need only the scores; many ranks (`top`) cost more, 64 of them on
 * short sequences a multiple.
 *
 * THE SAME BITS: values and what is said of one row keep the promise of attn_run(). received and the map do not depend on the number of threads
 * either: strips of queries are summed in order.
 *
 * EXAMPLE: where the last of `tokens` positions looks: its entropy, and the 5 keys with the largest weights. q and k are (heads, tokens, dim).
 *
 * @example inspect
 * #include <attn/attn.h>
 * #include <stdio.h>
 * int look(int64_t heads, int64_t tokens, int64_t dim, const float *q, const float *k, int64_t head)
 * {
 *     attn_desc d = attn_desc_new();                  // as for the run; v and out are not needed here
 *     d.batch = 1, d.heads = d.kv_heads = heads, d.queries = d.keys = tokens, d.dim = dim, d.causal = 1;
 *     d.q = attn_in_dense(q, ATTN_F32, heads, tokens, dim);
 *     d.k = attn_in_dense(k, ATTN_F32, heads, tokens, dim);
 *     double  entropy, weight[5];
 *     int64_t key[5], query = tokens - 1;
 *     attn_inspect_desc w = attn_inspect_desc_new();  // without the lse of a run it is computed first
 *     w.heads = &head, w.head_count = 1, w.queries = &query, w.query_count = 1, w.top = 5;
 *     w.entropy    = attn_out_dense(&entropy, ATTN_F64, 1, 1, 1);
 *     w.entropy.stride[3] = 0;                        // it has no such axis
 *     w.top_weight = attn_out_dense(weight, ATTN_F64, 1, 1, 5);
 *     w.top_key    = attn_out_dense(key, ATTN_I64, 1, 1, 5);
 *     attn_error e;
 *     if (attn_inspect(&d, &w, &e) != ATTN_OK) { fprintf(stderr, "%s\n", e.message); return 1; }
 *     printf("entropy %.3f nats\n", entropy);
 *     for (int i = 0; i < 5 && key[i] >= 0; i++) printf("key %lld: %.3f\n", (long long)key[i], weight[i]);
 *     return 0;
 * }
 * @end
 */
typedef struct attn_inspect_desc {
    size_t size; /* set by attn_inspect_desc_new() */

    /* What a run with the same q, k and options gave: f32 (f64 with f64 inputs), axes (batch, head, query) of the run. Absent: it is computed
     * first, which costs about as much again; then values have the very bits of attn_desc.weights. */
    attn_in lse;

    const int64_t *heads, *queries;         /* NULL: all, and then the count must be 0 */
    int64_t        head_count, query_count; /* how many the lists have */
    int64_t        key_first, key_count;

    attn_out values;            /* every output: f32 or f64 (top_key: ATTN_I64) */
    int32_t  values_stage, top; /* top: 1 to 64 with top_weight or top_key, else 0 */
    attn_out entropy, top_weight, top_key, first_mass, window_mass;
    int64_t  mass_left, mass_right; /* of window_mass; causal, window and the masks of the run apply anyway */
    attn_out received, map_mean, map_max;
    int64_t  map_rows, map_columns; /* 1 to 65536 with map_mean or map_max, else 0 */

    void  *work; /* as attn_desc.work, of attn_inspect_work_bytes() */
    size_t work_bytes;
} attn_inspect_desc;

static inline attn_inspect_desc attn_inspect_desc_new(void)
{
    attn_inspect_desc d;
    memset(&d, 0, sizeof d);
    d.size = sizeof d;
    return d;
}

/* Looks at the weights of the run that `desc` describes. Its v, value_dim, out, lse, weights, weights_stage, work and work_bytes are not looked at; isa and
 * executor are used. Returns as attn_run() does; an error is found before anything is written. */
ATTN_API int32_t attn_inspect(const attn_desc *desc, const attn_inspect_desc *what, attn_error *error);

/* The bytes that attn_inspect() needs as `work`. Data pointers and `work` may still be NULL; the dtype of an output says that it is asked for. */
ATTN_API int32_t attn_inspect_work_bytes(const attn_desc *desc, const attn_inspect_desc *what, size_t *bytes, attn_error *error);

/* ---- small helpers ---------------------------------------------------------------------------------------------------------------- */

/* The usual ALiBi slopes for `heads` heads into slopes[heads]: 2^(-8 (h+1) / n) for a power of two n; else those of the next lower power m, then
 * entries 0, 2, 4, ... of those of 2 m. */
ATTN_API int32_t attn_alibi_slopes(int64_t heads, float *slopes, attn_error *error);

/* Instruction sets compiled into this library, best first: "avx512bf16", "avx512", "avx2", "neon", "scalar". NULL past the last index; usable says whether this
 * CPU and OS can run it (0 past the end). */
ATTN_API const char *attn_isa_name(int32_t index);
ATTN_API int32_t     attn_isa_usable(int32_t index);

/* The version of the library that runs, as 10000 major + 100 minor + patch, and as text. */
ATTN_API uint32_t    attn_version(void);
ATTN_API const char *attn_version_text(void);

/* "ok", "argument", ... and "f32", "f64", ...: static strings; "unknown" for a number that is none. */
ATTN_API const char *attn_status_name(int32_t status);
ATTN_API const char *attn_dtype_name(int32_t dtype);

/* Bytes of one element; 0 for a number that is no dtype. */
ATTN_API size_t attn_dtype_bytes(int32_t dtype);

/* Views with given strides (elements; batch, head, position, channel). */
static inline attn_in attn_in_strided(const void *data, int32_t dtype, const int64_t stride[4])
{
    attn_in t = {data, {stride[0], stride[1], stride[2], stride[3]}, 0, dtype, 0};
    return t;
}

static inline attn_out attn_out_strided(void *data, int32_t dtype, const int64_t stride[4])
{
    attn_out t = {data, {stride[0], stride[1], stride[2], stride[3]}, 0, dtype, 0};
    return t;
}

/* Views of contiguous (batch, heads, rows, columns) memory; for lse use columns = 1 and set stride[3] to 0. */
static inline attn_in attn_in_dense(const void *data, int32_t dtype, int64_t heads, int64_t rows, int64_t columns)
{
    attn_in t = {data, {heads * rows * columns, rows * columns, columns, 1}, 0, dtype, 0};
    return t;
}

static inline attn_out attn_out_dense(void *data, int32_t dtype, int64_t heads, int64_t rows, int64_t columns)
{
    attn_out t = {data, {heads * rows * columns, rows * columns, columns, 1}, 0, dtype, 0};
    return t;
}

#ifdef __cplusplus
}
#endif
#endif
