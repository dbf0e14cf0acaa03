/* plan.c: checked descriptor to plan: defaults, kernel row, block sizes, scratch map.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "internal.h"

static const struct attn_kernel *const kernels[] = {
#define ATTN_KERNEL_ROW(symbol) &symbol,
#define ATTN_CONVERT_ROW(symbol)
#include "kernels.inc"
#undef ATTN_KERNEL_ROW
#undef ATTN_CONVERT_ROW
};

static const struct attn_convert *const converts[] = {
#define ATTN_KERNEL_ROW(symbol)
#define ATTN_CONVERT_ROW(symbol) &symbol,
#include "kernels.inc"
#undef ATTN_KERNEL_ROW
#undef ATTN_CONVERT_ROW
};

enum { KERNELS = sizeof kernels / sizeof kernels[0], PACK_BYTES = 1 << 18 };

const struct attn_convert *attn_plan_convert(int32_t dtype)
{
    return dtype >= ATTN_F32 && dtype <= ATTN_BF16 ? converts[dtype - 1] : 0;
}

/* Instruction sets are what differs in the table, in its order. */
ATTN_API const char *attn_isa_name(int32_t index)
{
    for (int32_t i = 0, found = 0; index >= 0 && i < KERNELS; i++)
        if ((i == 0 || strcmp(kernels[i]->isa, kernels[i - 1]->isa) != 0) && found++ == index) return kernels[i]->isa;
    return 0;
}

ATTN_API int32_t attn_isa_usable(int32_t index)
{
    const char *name = attn_isa_name(index);
    return name && attn_cpu_usable(name);
}

/* The row for a block of m queries: of the first instruction set, from the one asked for on, that has any for the dtype, the one with the fewest rows that
 * has room for them, else the one with the most; backward: among those that have gradients. */
static const struct attn_kernel *choose(const char *isa, int32_t dtype, int64_t m, int backward)
{
    const int64_t             real_bytes = dtype == ATTN_F64 ? sizeof(double) : sizeof(float);
    const struct attn_kernel *best = 0;
    int                       found = 0;
    for (int i = 0; i < KERNELS; i++) {
        const struct attn_kernel *k = kernels[i];
        found = found || (isa ? strcmp(isa, k->isa) == 0 : attn_cpu_usable(k->isa));
        if (!found || k->real_bytes != real_bytes || (k->reads && k->reads != dtype)) continue;
        if (backward && !k->gradient) continue;
        if (best && best->isa != k->isa && strcmp(best->isa, k->isa) != 0) break; /* a lesser instruction set */
        if (!best || (k->rows >= m ? best->rows < m || k->rows < best->rows : k->rows > best->rows)) best = k;
    }
    return best; /* never NULL: check.c has looked at isa, and the scalar rows can always be used */
}

static void take_row(struct attn_plan *plan, int64_t m, int backward)
{
    plan->kernel = choose(plan->d.isa, plan->d.q.dtype, m, backward);
    plan->takes = plan->kernel->reads ? attn_width(plan->kernel->reads) : plan->kernel->real_bytes;
}

/* The only place that knows where scratch lies. Sizes are at most 2^40 channels of 48 doubles, so nothing here overflows. */
#define WIDE(n) (((size_t)(n) + 15) / 16 * 16) /* few.h rounds rows up to whole vectors */

static size_t next(size_t *end, size_t bytes)
{
    const size_t at = *end;
    *end += (bytes + 63) / 64 * 64 + ATTN_RED_ZONE;
    return at;
}

/* How many tiles of packed values a thread keeps for the blocks that follow: as many as a block sees, if there is room. */
static void keep_packs(struct attn_plan *plan, size_t bytes)
{
    const attn_desc *d = &plan->d;
    const int64_t    right = d->causal ? 0 : d->window ? d->window_right : -1;
    int64_t          far = d->keys - 1, room = bytes ? PACK_BYTES / (int64_t)bytes : 1;
    if (d->window && d->window_left >= 0 && d->window_left < far && right >= 0 && right < far) {
        const int64_t most = d->window_left + right + plan->kernel->rows - 1 + ATTN_TILE - 1;
        far = most < far ? most : far;
    }
    plan->pack_bytes = bytes;
    plan->pack_turn = far / ATTN_TILE + 1;
    plan->packs = room < 1 ? 1 : room < plan->pack_turn ? room : plan->pack_turn;
    if (!plan->kernel->packs) plan->packs = 0;
}

static void map_scratch(struct attn_plan *plan)
{
    struct attn_scratch *at = &plan->at;
    const size_t         real = (size_t)plan->kernel->real_bytes, rows = (size_t)plan->kernel->rows * real;
    const size_t         dim = WIDE(plan->d.dim), value_dim = WIDE(plan->d.value_dim), takes = (size_t)plan->takes;
    size_t               end = 0;
    at->q = next(&end, dim * rows);
    at->s = next(&end, ATTN_TILE * rows);
    at->edit = next(&end, ATTN_TILE * rows);
    at->drop = next(&end, plan->d.dropout > 0 ? ATTN_TILE * rows : 0);
    for (int i = 0; i < 2; i++) {
        at->o[i] = next(&end, value_dim * rows);
        at->top[i] = next(&end, rows);
        at->sum[i] = next(&end, rows);
    }
    at->slope = next(&end, rows);
    at->near = next(&end, rows);
    at->low = next(&end, rows);
    at->high = next(&end, rows);
    at->shift = next(&end, rows);
    at->sink = next(&end, rows);
    at->lse = next(&end, (size_t)plan->kernel->rows * sizeof(double));
    at->k = next(&end, ATTN_TILE * dim * takes);
    at->v = next(&end, ATTN_TILE * value_dim * takes);
    keep_packs(plan, ATTN_TILE * value_dim * takes);
    at->packs = next(&end, (size_t)plan->packs * sizeof(struct attn_pack));
    at->pack = next(&end, (size_t)plan->packs * plan->pack_bytes);
    at->bytes = end;
}

static int64_t blocks(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* A block holds queries of one head; few queries leave room for other heads of the group, which read the same keys: as many in each block, so that no
 * task is much shorter than the others. */
static void cut(struct attn_plan *plan, int backward)
{
    const attn_desc *d = &plan->d;
    const int64_t    rows = plan->kernel->rows, group = plan->group;
    plan->tasks = plan->slots = plan->wave = plan->bundle = plan->later_sees = 0;
    plan->block_queries = plan->block_heads = plan->query_blocks = plan->head_blocks = 0;
    if (d->batch == 0 || d->heads == 0 || d->queries == 0) return;
    plan->later_sees = !backward && (d->causal || (d->window && d->window_right >= 0));
    /* blocks as even as vectors allow, so that 64 queries are 32 and 32: 16 alone make chains of products that wait for themselves */
    const int64_t even = blocks(blocks(d->queries, blocks(d->queries, rows)), 16) * 16,
                  most = even < rows && !plan->later_sees ? even : rows;
    plan->block_queries = d->queries < most ? d->queries : most;
    plan->head_blocks = backward ? group : blocks(group, rows / plan->block_queries);
    plan->block_heads = blocks(group, plan->head_blocks);
    plan->query_blocks = blocks(d->queries, plan->block_queries);
    plan->tasks = d->batch * d->kv_heads * plan->head_blocks * plan->query_blocks;
    const int64_t threads = d->executor ? d->executor->width : 1, chunks = blocks(d->keys, ATTN_CHUNK);
    /* few tasks for many threads: chunks of keys are walked apart and folded after; the order of folding, and so the bits, stay. A few more tasks
     * than that are left whole only if the last of them keep most threads busy. */
    const int64_t idle = threads - 1 - (plan->tasks - 1) % threads;
    if (threads > 1 && chunks > 1 && !backward && (plan->tasks < 2 * threads || (plan->tasks < 4 * threads && idle > plan->tasks / 10)))
        plan->wave = plan->tasks * chunks < 4 * threads ? plan->tasks * chunks : 4 * threads;
    const int64_t pieces = plan->wave ? plan->wave : plan->tasks;
    plan->slots = threads < pieces ? threads : pieces;
    /* heads take turns, enough of them that the short tasks of the last ones fill the gaps between all threads; one thread stays with its head */
    /* (a backward pass has an order of its own, and tasks in that of their numbers) */
    plan->bundle = threads > 1 && !backward ? blocks(4 * threads, plan->query_blocks) : 1;
}

/* Task number `index`. Those that see most come first: bundles of key heads (and parts of their groups) one after another, the incomplete one first;
 * in a bundle the blocks of queries from those that see most to those that see least; for each of them the heads of the bundle. The order is
 * counted from its end. */
struct attn_place attn_plan_place(const struct attn_plan *plan, int64_t index)
{
    const attn_desc *d = &plan->d;
    const int64_t    columns = d->batch * d->kv_heads * plan->head_blocks;
    int64_t          back = plan->tasks - 1 - index, done = back / (plan->query_blocks * plan->bundle) * plan->bundle;
    int64_t          size = columns - done < plan->bundle ? columns - done : plan->bundle;
    back -= done * plan->query_blocks;
    int64_t column = columns - 1 - done - back % size, block = back / size;
    if (!plan->later_sees) block = plan->query_blocks - 1 - block;
    struct attn_place p = {.head = column % plan->head_blocks * plan->block_heads, .query = block * plan->block_queries};
    p.heads = plan->group - p.head < plan->block_heads ? plan->group - p.head : plan->block_heads;
    p.queries = d->queries - p.query < plan->block_queries ? d->queries - p.query : plan->block_queries;
    column /= plan->head_blocks;
    p.batch = column / d->kv_heads;
    p.group_head = column % d->kv_heads;
    p.head += p.group_head * plan->group;
    return p;
}

struct attn_place attn_plan_next(const struct attn_plan *plan, int64_t index)
{
    struct attn_place p;
    do p = attn_plan_place(plan, ++index);
    while (index + 1 < plan->tasks && p.query >= attn_query_count(&plan->d, p.batch));
    return p;
}

void attn_plan_rows(struct attn_plan *plan, int64_t m)
{
    take_row(plan, m, 0);
    map_scratch(plan);
}

void attn_plan_fill(struct attn_plan *plan, int backward)
{
    attn_desc *d = &plan->d;
    int64_t    together;
    plan->group = d->heads ? d->heads / d->kv_heads : 0;
    if (__builtin_mul_overflow(plan->group, d->queries, &together)) together = INT64_MAX;
    take_row(plan, together, backward);
    plan->in = attn_plan_convert(d->q.dtype);
    plan->out = attn_plan_convert(d->out.dtype);
    plan->bias = attn_plan_convert(d->bias.dtype);
    plan->weights = attn_plan_convert(d->weights.dtype);
    plan->lse = attn_plan_convert(d->lse.dtype);
    if (!d->scale_given) d->scale = d->dim ? 1 / sqrt((double)d->dim) : 1;
    plan->factor = d->scale * ATTN_DOMAIN;
    cut(plan, backward);
    map_scratch(plan);
}

int32_t attn_plan_make(struct attn_plan *plan, attn_error *error)
{
    attn_plan_fill(plan, 0);
    plan->part_bytes = plan->at.o[1] - plan->at.o[0];
    size_t parts = plan->wave ? (size_t)(plan->tasks + plan->wave) : 0; /* fewer than 8 per thread */
    if (__builtin_mul_overflow((size_t)plan->slots, plan->at.bytes, &plan->work_bytes) ||
        __builtin_mul_overflow(parts, plan->part_bytes, &parts) || __builtin_add_overflow(plan->work_bytes, parts, &plan->work_bytes) ||
        plan->work_bytes > PTRDIFF_MAX / 2)
        return attn_fail(error, ATTN_E_MEMORY, "%lld threads of %zu bytes of scratch are more than memory can hold", (long long)plan->slots,
                         plan->at.bytes);
    plan->work_bytes += (size_t)plan->wave * 2 * sizeof(int64_t); /* struct unit */
    plan->work_bytes += plan->slots ? 64 : 0;                     /* to align what the caller hands in */
    return ATTN_OK;
}
