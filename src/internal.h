/* internal.h: the plan, and what the files of the core call in each other.
 * SPDX-License-Identifier: MIT */
#ifndef ATTN_INTERNAL_H
#define ATTN_INTERNAL_H

#include <attn/attn.h>

#include "kernel.h"

/* Bytes of an element; 0 of what is no type. */
static inline int64_t attn_width(int32_t dtype)
{
    static const uint8_t bytes[] = {0, 4, 8, 2, 2, 1, 8};
    return dtype > 0 && dtype <= ATTN_I64 ? bytes[dtype] : 0;
}

/* Where a thread's scratch lies: offsets in bytes from the start of its slot. One map, made in plan.c and nowhere else:
 *
 *   q | s | edit | drop | o, top, sum | o, top, sum of a later chunk | slope near low high shift sink | lse | k | v | packs | pack ...
 *
 * each part starts on 64 bytes and is followed by at least 64 bytes that nobody may touch (poisoned under ASAN). */
struct attn_scratch {
    size_t q, s, edit, drop, o[2], top[2], sum[2], slope, near, low, high, shift, sink, lse, k, v, packs, pack, bytes;
};

enum { ATTN_SCRATCH_PARTS = 21, ATTN_RED_ZONE = 64 };

/* What one run does; read only once made. */
struct attn_plan {
    attn_desc                  d; /* checked, defaults filled in: scale, query_count and so on stay pointers */
    const struct attn_kernel  *kernel;
    int64_t                    takes; /* bytes of an element of keys and values as the kernel takes them */
    const struct attn_convert *in, *bias, *out, *weights, *lse;
    double                     factor;      /* scale in the kernel's domain */
    int64_t                    group;       /* query heads of a key head */
    int64_t                    block_heads; /* a task: so many heads of a group x so many queries, at most kernel->rows together */
    int64_t                    block_queries;
    int64_t                    head_blocks, query_blocks, tasks;
    int64_t                    bundle;     /* so many key heads' tasks take turns, the longest first, see attn_plan_place */
    int64_t                    later_sees; /* 1: later queries see more keys than earlier ones; 0: not more */
    int64_t                    slots;      /* threads in use */
    int64_t                    packs;      /* tiles of values that a thread keeps packed; 0: the kernel takes them as they are */
    int64_t                    pack_turn;  /* a block sees at most so many tiles */
    size_t                     pack_bytes;
    int64_t                    wave;       /* how many chunks are walked at a time, when threads share the keys of few tasks; else 0 */
    size_t                     part_bytes; /* laid out like o, top, sum in a slot */
    struct attn_scratch        at;
    size_t                     work_bytes; /* slots, parts, units of a wave, and what aligning needs */
};

/* A row of a block: which query it is, where its results go (axes 1 and 2 of an output), and which keys, counted from key_start, it may see by
 * position: low <= j' < high. */
struct attn_row {
    int64_t head, query, to_head, to_query, position, low, high;
};

/* What a task computes: so many query heads x queries, of one key head. */
struct attn_place {
    int64_t batch, group_head, head, heads, query, queries;
};

/* What mask.c says of a tile. */
enum {
    ATTN_SEES_NONE,
    ATTN_SEES_ALL,
    ATTN_SEES_RANGE = 2,
    ATTN_SEES_EDIT = 4,
    ATTN_SEES_BYTES = 8
}; /* RANGE: low and high hide some; EDIT: an edit tile; BYTES: in its place, what attn_kernel.see makes; RANGE may be set with either */

/* check.c: copies the caller's descriptor (any version) to *to and checks it. data: pointers to data are looked at too. */
int32_t attn_check_desc(const attn_desc *from, attn_desc *to, int data, attn_error *error);
int32_t attn_check_info(const attn_plan_info *info, attn_error *error);
int32_t attn_check_dropout(const attn_dropout_block *from, attn_dropout_block *to, attn_error *error);
int32_t attn_check_merge(const attn_merge_desc *from, attn_merge_desc *to, attn_error *error);
int32_t attn_check_inspect(const attn_desc *desc, const attn_inspect_desc *what, attn_desc *to, attn_inspect_desc *what_to, int data,
                           attn_error *error);
int32_t attn_check_backward(const attn_desc *desc, const attn_backward_desc *from, attn_desc *d, attn_backward_desc *g, int data,
                            attn_error *error);
/* Entries of a gradient of the bias, the slopes or the sinks along an axis: one, summed over, where its stride is 0. */
int64_t attn_check_kept(const attn_out *t, int axis, int64_t size);
int32_t attn_fail(attn_error *error, int32_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* plan.c; plan->d is there already, checked */
void    attn_plan_fill(struct attn_plan *plan, int backward); /* all but part_bytes and work_bytes */
int32_t attn_plan_make(struct attn_plan *plan, attn_error *error);
void    attn_plan_rows(struct attn_plan *plan, int64_t m); /* the kernel row, and scratch, for blocks of m queries instead */
const struct attn_convert *attn_plan_convert(int32_t dtype);
struct attn_place          attn_plan_place(const struct attn_plan *plan, int64_t index);
struct attn_place          attn_plan_next(const struct attn_plan *plan, int64_t index); /* the next one that has queries, or the last */

/* task.c */
/* A task in flight: the block, its rows and where its slot's scratch lies. */
struct attn_task {
    const struct attn_plan *plan;
    char                   *slot;
    int64_t                 batch, group_head; /* the key head */
    int64_t                 query, queries;    /* its rows' queries are among query .. query + queries - 1 */
    struct attn_block       block;
    struct attn_ahead       ahead;
    struct attn_row         rows[ATTN_ROWS_MAX];
};

static inline const char *attn_task_element(const void *data, const int64_t stride[4], int32_t dtype, int64_t b, int64_t h, int64_t i)
{
    return (const char *)data + (b * stride[0] + h * stride[1] + i * stride[2]) * attn_width(dtype);
}

void attn_task_put(const struct attn_plan *plan, void *array, int64_t row, double x); /* array[row] = x, in the kernel's arithmetic */
void attn_task_locate(struct attn_task *t, int64_t index);                            /* batch, heads and queries only */
void attn_task_begin(struct attn_task *t, int64_t index);
void attn_task_ready(struct attn_task *t); /* the same where what attn_task_locate() says is there */
void attn_task_load(const struct attn_task *t, const attn_in *x, const struct attn_convert *convert, int64_t dim, void *to, double factor);
int32_t attn_task_look(struct attn_task *t, struct attn_tile *tile, int64_t first, int64_t n, int masked);
int32_t attn_task_tile(struct attn_task *t, struct attn_tile *tile, int64_t first, int64_t n, int masked);
void    attn_task_keys(struct attn_task *t, struct attn_tile *tile, int64_t first);
void    attn_task_open(const struct attn_plan *plan, char *slot);
void    attn_task_values(struct attn_task *t, struct attn_tile *tile, int64_t first);
void  attn_task_ahead(struct attn_task *t, const struct attn_tile *tile, int64_t first, int64_t to); /* keys up to `to` follow the tile's */
int   attn_task_span(const struct attn_task *t, int64_t *low, int64_t *high);
char *attn_task_place(const struct attn_task *t, const attn_out *to, int64_t n, int64_t skip, int64_t *step);
void  attn_task_store(const struct attn_task *t, const attn_out *to, const struct attn_convert *convert, int64_t n, int64_t skip);
void  attn_task_blank(const struct attn_task *t, const attn_out *to, const struct attn_convert *convert, int64_t n, int64_t skip);

/* describe.c: tells what the plan costs; 0 when there is no memory. */
int attn_describe_plan(const struct attn_plan *plan, attn_plan_info *info);

/* exec.c: runs a plan with work_bytes bytes at work. */
void attn_exec(const struct attn_plan *plan, void *work);
void attn_exec_guard(const struct attn_plan *plan, char *slot, int on);
void attn_exec_finish(struct attn_task *t); /* walks all keys and finishes: part and the slot's lse are results */
/* Keys from .. from + count - 1 (of the tensor) of the block's rows at a stage, by part.top, part.sum and the slot's lse. */
void attn_exec_weights(struct attn_task *t, const attn_out *to, const struct attn_convert *convert, int32_t stage, int64_t from,
                       int64_t count);

/* dropout.c */
void attn_dropout_tile(const struct attn_task *t, struct attn_tile *tile, int64_t first); /* drop and raise, if anything is dropped */
void attn_dropout_fill(const attn_dropout_block *block);

/* backward_plan.c */
/* How the gradient of the bias is summed up. */
enum {
    ATTN_BIAS_NONE,
    ATTN_BIAS_PLACES, /* place by place, into the output or an array of its shape */
    ATTN_BIAS_ROWS,   /* summed over keys: a number per query, the rest at the end */
    ATTN_BIAS_COLUMNS /* summed over queries: a number per key and head, the rest at the end */
};

/* One backward pass. Tasks are those of a forward pass, a kernel's rows of queries of one head each; `head_tasks` of them share a key head.
 * Work, each part on 64 bytes; a slot is what a thread has, a group what a task has in it:
 *
 *   slots of: ( groups of: | a task's scratch | ds | rows of q | rows of d_out | ) bend | lines |
 *   lse | delta | sum | away | dq [task][dim][rows] | dk dv [batch][key head][key][..] | columns [batch][head][key] | places of the bias */
struct attn_backward_plan {
    struct attn_plan           run;
    attn_backward_desc         g;
    const struct attn_convert *out, *d_out, *dq, *dk, *dv, *dbias;
    int64_t                    head_tasks, groups; /* groups: tasks that a tile of keys meets together */
    int64_t                    strips;             /* the tasks of a key head, and its keys, are cut into so many strips each */
    int64_t  slots, bias, one_batch, one_head;     /* one_...: pairs of strips of two batch entries (key heads) may not run together */
    attn_out places;                               /* of ATTN_BIAS_PLACES; data NULL: in the work */
    size_t   ds, q_rows, d_out_rows, group_bytes, bend, lines, slot_bytes;
    size_t   lse, delta, sum, away, dq_sums, dk_sums, dv_sums, columns, place_sums, work_bytes;
    int64_t  dim, value_dim; /* rounded up to 16 */
};

int32_t attn_backward_plan_make(struct attn_backward_plan *plan,
                                attn_error                *error); /* plan->run.d and plan->g are there already, checked */

/* backward.c: runs it with work_bytes bytes at work. */
void attn_backward_exec(const struct attn_backward_plan *plan, void *work);

/* backward_store.c */
double attn_backward_get(const attn_in *t, int64_t b, int64_t h, int64_t i);
void   attn_backward_add_places(const struct attn_backward_plan *plan, char *work, const struct attn_task *t, const struct attn_tile *tile,
                                int64_t first, char *lines, const void *ds);
void   attn_backward_clear(const struct attn_backward_plan *plan, char *work, const struct attn_task *t);
void   attn_backward_store(const struct attn_backward_plan *plan, char *work, struct attn_task *t, int64_t index, char *lines);
void   attn_backward_store_key(const struct attn_backward_plan *plan, const char *work, int64_t b, int64_t g, int64_t j);
void   attn_backward_store_sums(const struct attn_backward_plan *plan, const char *work);

/* mask.c */
void    attn_mask_rows(const struct attn_desc *d, int64_t batch, struct attn_row *rows, int64_t m);
int     attn_mask_span(const attn_desc *d, int64_t batch, int64_t first, int64_t n, int64_t *low, int64_t *high);
double  attn_mask_pairs(const attn_desc *d, int64_t batch, int64_t first, int64_t n, int64_t from, int64_t to);
double  attn_mask_walk(const attn_desc *d, int64_t batch, int64_t n);
int     attn_mask_sees(const attn_desc *d, int64_t batch, const struct attn_row *row, int64_t key); /* key counted from key_start */
int32_t attn_mask_tile(const struct attn_plan *plan, char *slot, int64_t batch, const struct attn_row *rows, int64_t m, int64_t first,
                       int64_t keys);

/* Per-batch numbers with their defaults. */
int64_t attn_key_start(const attn_desc *d, int64_t batch);
int64_t attn_key_count(const attn_desc *d, int64_t batch);
int64_t attn_query_count(const attn_desc *d, int64_t batch);
int64_t attn_query_offset(const attn_desc *d, int64_t batch);

/* merge.c */
void attn_merge_run(const attn_merge_desc *d);

/* inspect.c */
struct attn_inspection {
    struct attn_plan  plan;
    attn_inspect_desc w; /* checked, counts filled in */
    int64_t           strip_queries, strips, tasks, wave, map_span;
    size_t            slot_bytes, rows_at, sums_at, part_bytes, work_bytes;
};
int32_t attn_inspect_plan(struct attn_inspection *s, attn_error *error); /* s->plan.d and s->w are there already, checked */
void    attn_inspect_run(const struct attn_inspection *s, void *work);

/* cpu.c */
int32_t  attn_cpu_usable(const char *isa);
uint64_t attn_cpu_enter(void); /* to the default floating-point environment; returns the caller's, for attn_cpu_leave() */
void     attn_cpu_leave(uint64_t caller);

#endif
