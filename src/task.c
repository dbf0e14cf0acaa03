/* task.c: one block of queries: which rows it has, its queries in the kernel's layout, tiles of keys as the kernel wants them, results back.
 * SPDX-License-Identifier: MIT */
#include <float.h>
#include <math.h>
#include <string.h>

#include "internal.h"

/* ---- numbers ---------------------------------------------------------------------------------------------------------------------- */

/* What elements of the type are to attn_kernel.widen, .narrow and .also. */
static int64_t reads_of(int32_t dtype)
{
    return dtype == ATTN_F16 ? ATTN_READ_F16 : dtype == ATTN_BF16 ? ATTN_READ_BF16 : ATTN_READ_AS_IS;
}

/* Elements as the kernel takes them, side by side. */
static void load(const struct attn_plan *plan, const struct attn_convert *c, void *to, const void *from, int64_t stride, int64_t n)
{
    if (plan->kernel->reads) /* of 16 bits */
        for (int64_t i = 0; i < n; i++) ((uint16_t *)to)[i] = ((const uint16_t *)from)[i * stride];
    else if (plan->kernel->real_bytes == 4)
        c->load_f32(to, from, stride, n);
    else
        c->load_f64(to, from, stride, n);
}

/* Where attn_kernel.unload may leave n numbers per row in an output at once, `skip` elements along its last axis; NULL: attn_task_store() does it. */
char *attn_task_place(const struct attn_task *t, const attn_out *to, int64_t n, int64_t skip, int64_t *step)
{
    const int64_t width = attn_width(to->dtype);
    if (width != t->plan->kernel->real_bytes || to->stride[3] != 1 || n % 16 != 0 || t->block.m > t->queries) return 0;
    *step = to->stride[2];
    return (char *)attn_task_element(to->data, to->stride, to->dtype, t->batch, t->rows[0].to_head, t->rows[0].to_query) + skip * width;
}

/* Lines of rows from .. end - 1, `step` bytes apart, to an output, `skip` elements along its last axis. */
static void store_rows(const struct attn_task *t, const attn_out *to, const struct attn_convert *convert, int64_t n, int64_t skip,
                       int64_t from, int64_t end, const char *line, int64_t step)
{
    const int64_t width = attn_width(to->dtype), *stride = to->stride;
    char         *out = (char *)to->data + (t->batch * stride[0] + skip * stride[3]) * width;
    const int64_t reads = reads_of(to->dtype);
    for (const struct attn_row *row = t->rows + from; row < t->rows + end; row++, line += step) {
        char *place = out + (row->to_head * stride[1] + row->to_query * stride[2]) * width;
        if (reads && stride[3] == 1 && t->plan->kernel->narrow)
            t->plan->kernel->narrow(place, line, n, reads);
        else if (t->plan->kernel->real_bytes == 4)
            convert->store_f32(place, to->stride[3], (const float *)(const void *)line, n);
        else
            convert->store_f64(place, to->stride[3], (const double *)(const void *)line, n);
    }
}

/* A line of each row. The edit tile serves as the lines: when something is stored it is not in use. */
void attn_task_store(const struct attn_task *t, const attn_out *to, const struct attn_convert *convert, int64_t n, int64_t skip)
{
    store_rows(t, to, convert, n, skip, 0, t->block.m, t->slot + t->plan->at.edit, ATTN_TILE * t->plan->kernel->real_bytes);
}

/* Zeros for the rows behind the block's, see attn_task_begin(). */
void attn_task_blank(const struct attn_task *t, const attn_out *to, const struct attn_convert *convert, int64_t n, int64_t skip)
{
    static const double zeros[ATTN_TILE];
    store_rows(t, to, convert, n, skip, t->block.m, t->queries, (const char *)zeros, 0);
}

/* array[row] = x, in the kernel's arithmetic */
void attn_task_put(const struct attn_plan *plan, void *array, int64_t row, double x)
{
    if (plan->kernel->real_bytes == 4)
        ((float *)array)[row] = (float)x;
    else
        ((double *)array)[row] = x;
}

static double get(const attn_in *t, int64_t offset)
{
    return t->dtype == ATTN_F64 ? ((const double *)t->data)[offset] : (double)((const float *)t->data)[offset];
}

/* ---- a block ---------------------------------------------------------------------------------------------------------------------- */

/* n elements of each row side by side in the edit tile, times a factor. */
static void copy_lines(const struct attn_task *t, const attn_in *q, const struct attn_convert *convert, int64_t n, double factor,
                       const void **lines)
{
    const struct attn_plan *plan = t->plan;
    const int64_t           step = ATTN_TILE * plan->kernel->real_bytes, reads = plan->kernel->reads ? 0 : reads_of(q->dtype);
    for (int64_t r = 0; r < t->block.m; r++) {
        void *line = t->slot + plan->at.edit + r * step;
        if (n % 16 != 0) memset(line, 0, (size_t)step);
        if (reads && q->stride[3] == 1 && n % 16 == 0 && plan->kernel->widen)
            plan->kernel->widen(line, lines[r], n, 1, n, reads);
        else
            load(plan, convert, line, lines[r], q->stride[3], n);
        lines[r] = line;
        for (int64_t c = 0; factor != 1 && c < n; c++) {
            double x = (double)((float *)line)[c], y = x * factor;
            ((float *)line)[c] = (float)(isfinite(x) ? fmax(-FLT_MAX, fmin(FLT_MAX, y)) : y);
        }
    }
}

/* The block's rows of a tensor into [dim][rows], times a factor, rounded once. The edit tile serves as a buffer here too. */
void attn_task_load(const struct attn_task *t, const attn_in *q, const struct attn_convert *convert, int64_t dim, void *to, double factor)
{
    const struct attn_plan *plan = t->plan;
    const int64_t           width = attn_width(q->dtype), head = q->stride[1] * width, query = q->stride[2] * width;
    const double            size = fabs(factor);
    const int               odd = !plan->kernel->reads && plan->kernel->real_bytes == 4 && size != 0 &&
                    (size > 0x1p60 || size < 0x1p-60); /* no float to multiply with: done here, in double */
    for (int64_t at = 0; at < dim; at += ATTN_TILE) {
        const int64_t some = dim - at < ATTN_TILE ? dim - at : ATTN_TILE;
        const char   *from = (const char *)q->data + (t->batch * q->stride[0] + at * q->stride[3]) * width;
        const void   *lines[ATTN_ROWS_MAX];
        for (int64_t r = 0; r < t->block.m; r++) lines[r] = from + t->rows[r].head * head + t->rows[r].query * query;
        if (width != plan->takes || q->stride[3] != 1 || (!plan->kernel->reads && some % 16 != 0) || odd)
            copy_lines(t, q, convert, some, odd ? factor : 1, lines);
        plan->kernel->load(&t->block, to, at, some, lines, odd ? 1 : factor);
    }
}

/* Which queries task number `index` has. */
void attn_task_locate(struct attn_task *t, int64_t index)
{
    const struct attn_place p = attn_plan_place(t->plan, index);
    struct attn_row        *row = t->rows;
    t->batch = p.batch, t->group_head = p.group_head;
    t->query = p.query, t->queries = p.queries;
    t->block.m = p.heads * p.queries;
    for (int64_t head = p.head; head < p.head + p.heads; head++)
        for (int64_t query = p.query; query < p.query + p.queries; query++)
            *row++ = (struct attn_row){.head = head, .query = query, .to_head = head, .to_query = query};
}

/* array[..] = x, for all rows of the kernel */
static void fill(const struct attn_plan *plan, void *array, double x)
{
    for (int64_t r = 0; r < plan->kernel->rows; r++) attn_task_put(plan, array, r, x);
}

/* Queries and what belongs to each row. */
void attn_task_ready(struct attn_task *t)
{
    const struct attn_plan *plan = t->plan;
    const attn_desc        *d = &plan->d;
    struct attn_block      *b = &t->block;
    *b = (struct attn_block){.m = b->m, .dim = d->dim, .value_dim = d->value_dim, .cap = d->softcap * ATTN_DOMAIN, .factor = plan->factor};
    b->q = t->slot + plan->at.q;
    b->s = t->slot + plan->at.s;
    b->near = t->slot + plan->at.near;
    b->shift = t->slot + plan->at.shift;
    b->ahead = &t->ahead;
    t->ahead = (struct attn_ahead){.now = &t->ahead.list[ATTN_SOON_NOTHING]};
    t->ahead.list[ATTN_SOON_NOTHING] = (struct attn_soon){(uintptr_t)b->q, 0, 1, INT64_MAX, 0};
    b->slope = d->alibi.data ? t->slot + plan->at.slope : 0;
    fill(plan, t->slot + plan->at.shift, 0);
    fill(plan, t->slot + plan->at.sink, -INFINITY);
    if (d->alibi.data) fill(plan, t->slot + plan->at.slope, 0), fill(plan, t->slot + plan->at.near, 0);
    attn_mask_rows(d, t->batch, t->rows, b->m);
    for (int64_t r = 0; r < b->m; r++) {
        const struct attn_row *row = &t->rows[r];
        if (d->alibi.data)
            attn_task_put(plan, t->slot + plan->at.slope, r,
                          get(&d->alibi, t->batch * d->alibi.stride[0] + row->head * d->alibi.stride[1]) * ATTN_DOMAIN);
        if (d->sink.data && row->query < attn_query_count(d, t->batch))
            attn_task_put(plan, t->slot + plan->at.sink, r, get(&d->sink, row->head * d->sink.stride[1]));
    }
    attn_task_load(t, &d->q, plan->in, d->dim, t->slot + plan->at.q, plan->factor);
}

/* So many rows of a tensor, n elements from element `at` of each: nothing where they do not lie side by side. */
static struct attn_soon soon(const attn_in *x, int64_t b, int64_t h, int64_t i, int64_t rows, int64_t at, int64_t n)
{
    const int64_t width = attn_width(x->dtype);
    if (!x->data || x->stride[3] != 1 || n <= 0 || rows <= 0) return (struct attn_soon){0};
    return (struct attn_soon){(uintptr_t)attn_task_element(x->data, x->stride, x->dtype, b, h, i) + (uintptr_t)(at * width),
                              (uintptr_t)(x->stride[2] * width), (uintptr_t)(n * width), x->stride[2] ? rows : 1, 0};
}

/* Rows that are behind the last query of a padded sequence are left out of the block: rows from block.m to queries - 1. (Weights of a stage may be asked
 * for all the same.) */
void attn_task_begin(struct attn_task *t, int64_t index)
{
    const attn_desc *d = &t->plan->d;
    attn_task_locate(t, index);
    const int64_t left = attn_query_count(d, t->batch) - t->query;
    if (t->block.m == t->queries && left < t->queries && !d->weights.data) t->block.m = left > 0 ? left : 0;
    attn_task_ready(t);
    attn_in out = {.data = d->out.data, .dtype = d->out.dtype};
    memcpy(out.stride, d->out.stride, sizeof out.stride);
    t->ahead.list[ATTN_SOON_RESULTS] = soon(&out, t->batch, t->rows[0].head, t->query, t->queries, 0, d->value_dim);
    if (index + 1 == t->plan->tasks || !t->block.m) return;
    const struct attn_place p = attn_plan_next(t->plan, index);
    t->ahead.list[ATTN_SOON_QUERIES] = soon(&d->q, p.batch, p.head, p.query, p.queries, 0, d->dim);
    int64_t   from, to, end, high;
    const int same = p.batch == t->batch && p.group_head == t->group_head; /* then most of its keys are here */
    if (same && !d->window) return;
    attn_mask_span(d, p.batch, p.query, p.queries, &from, &to);
    end = from + ATTN_TILE;
    if (same) attn_task_span(t, &end, &high);
    const int64_t start = attn_key_start(d, p.batch);
    to = end < to ? end : to;
    t->ahead.list[ATTN_SOON_NEXT_KEYS] = soon(&d->k, p.batch, p.group_head, start + from, to - from, 0, d->dim);
    if (t->plan->packs) from = from / ATTN_TILE * ATTN_TILE, to = same ? to / ATTN_TILE * ATTN_TILE : to; /* whole tiles are packed */
    t->ahead.list[ATTN_SOON_NEXT_VALUES] = soon(&d->v, p.batch, p.group_head, start + from, to - from, 0, d->value_dim);
}

/* Keys j .. j + n - 1 of the tensor as the kernel wants them: in place where the layout allows, else copied. */
static const void *rows_of(const struct attn_task *t, const attn_in *x, int64_t dim, int64_t j, int64_t n, size_t scratch, int64_t *step,
                           int64_t *reads)
{
    const struct attn_plan *plan = t->plan;
    const int64_t           width = attn_width(x->dtype);
    *reads = reads_of(x->dtype);
    *step = dim;
    const char *from = attn_task_element(x->data, x->stride, x->dtype, t->batch, t->group_head, j);
    if ((x->stride[3] == 1 || dim == 1) && (width == plan->takes || plan->kernel->also >> *reads & 1)) {
        if (width == plan->takes) *reads = ATTN_READ_AS_IS;
        *step = x->stride[2];
        return from;
    }
    char *to = t->slot + scratch;
    if (*reads != ATTN_READ_AS_IS && x->stride[3] == 1 && dim % 16 == 0 && plan->kernel->widen) {
        plan->kernel->widen(to, from, x->stride[2], n, dim, *reads);
        *reads = ATTN_READ_AS_IS;
        return to;
    }
    *reads = ATTN_READ_AS_IS;
    for (int64_t i = 0; i < n; i++) load(plan, plan->in, to + i * dim * plan->takes, from + i * x->stride[2] * width, x->stride[3], dim);
    return to;
}

/* What the block sees of the keys first .. first + n - 1, counted from key_start; as mask.c says it. */
int32_t attn_task_look(struct attn_task *t, struct attn_tile *tile, int64_t first, int64_t n, int masked)
{
    const struct attn_plan *plan = t->plan;
    const attn_desc        *d = &plan->d;
    int32_t                 sees = masked ? attn_mask_tile(plan, t->slot, t->batch, t->rows, t->block.m, first, n) : ATTN_SEES_ALL;
    *tile = (struct attn_tile){.keys = n};
    if (sees & ATTN_SEES_RANGE) tile->low = t->slot + plan->at.low, tile->high = t->slot + plan->at.high;
    if (sees & ATTN_SEES_EDIT) tile->edit = t->slot + plan->at.edit;
    if (sees & ATTN_SEES_BYTES) tile->seen = t->slot + plan->at.edit;
    if (d->alibi.data && sees != ATTN_SEES_NONE)
        for (int64_t r = 0; r < t->block.m; r++) attn_task_put(plan, t->slot + plan->at.near, r, (double)(t->rows[r].position - first));
    return sees;
}

/* The same, and the keys where it sees any. */
int32_t attn_task_tile(struct attn_task *t, struct attn_tile *tile, int64_t first, int64_t n, int masked)
{
    const int32_t sees = attn_task_look(t, tile, first, n, masked);
    if (sees != ATTN_SEES_NONE) attn_task_keys(t, tile, first);
    return sees;
}

/* The tile's keys. */
void attn_task_keys(struct attn_task *t, struct attn_tile *tile, int64_t first)
{
    const attn_desc *d = &t->plan->d;
    tile->k = rows_of(t, &d->k, d->dim, attn_key_start(d, t->batch) + first, tile->keys, t->plan->at.k, &tile->k_step, &tile->k_reads);
}

/* Where the values of the tile that starts at key `first` are packed, or will be; *from is the first of them. A block's tiles take turns; those that are
 * too many share the last place. */
static struct attn_pack *pack_of(const struct attn_task *t, int64_t first, const void **from)
{
    const struct attn_plan *plan = t->plan;
    const attn_in          *v = &plan->d.v;
    const int64_t           turn = first / ATTN_TILE % plan->pack_turn;
    *from = attn_task_element(v->data, v->stride, v->dtype, t->batch, t->group_head, attn_key_start(&plan->d, t->batch) + first);
    return (struct attn_pack *)(void *)(t->slot + plan->at.packs) + (turn < plan->packs ? turn : plan->packs - 1);
}

static int holds(const struct attn_pack *pack, const void *from, int64_t keys)
{
    return pack->from == from && pack->keys >= keys;
}

static int is_packed(const struct attn_task *t, int64_t first, int64_t keys)
{
    const void *from;
    if (keys <= 0 || !t->plan->packs) return 0;
    const struct attn_pack *pack = pack_of(t, first, &from);
    return holds(pack, from, keys);
}

/* For a thread that begins: nothing is packed. */
void attn_task_open(const struct attn_plan *plan, char *slot)
{
    struct attn_pack *packs = (struct attn_pack *)(void *)(slot + plan->at.packs);
    for (int64_t i = 0; i < plan->packs; i++) packs[i] = (struct attn_pack){.at = slot + plan->at.pack + (size_t)i * plan->pack_bytes};
}

/* The values of the tile's keys. */
void attn_task_values(struct attn_task *t, struct attn_tile *tile, int64_t first)
{
    const attn_desc *d = &t->plan->d;
    if (t->plan->packs) {
        const void *from;
        tile->pack = pack_of(t, first, &from);
        if (holds(tile->pack, from, tile->keys)) return;
        tile->pack->from = from, tile->pack->keys = 0;
    }
    tile->v =
        rows_of(t, &d->v, d->value_dim, attn_key_start(d, t->batch) + first, tile->keys, t->plan->at.v, &tile->v_step, &tile->v_reads);
}

void attn_task_ahead(struct attn_task *t, const struct attn_tile *tile, int64_t first, int64_t to)
{
    const attn_desc *d = &t->plan->d;
    const int64_t    i = attn_key_start(d, t->batch) + first, next = i + ATTN_TILE, left = to - first - ATTN_TILE,
                  more = left < ATTN_TILE ? left : ATTN_TILE;
    struct attn_soon *list = t->ahead.list;
    t->ahead.at = t->ahead.end = 0;
    list[ATTN_SOON_VALUES] = soon(&d->v, t->batch, t->group_head, i, tile->keys, 0, d->value_dim);
    if ((uintptr_t)tile->v != list[ATTN_SOON_VALUES].from || tile->pack) /* copied, or packed soon: the next tile's are */
        list[ATTN_SOON_VALUES] =
            soon(&d->v, t->batch, t->group_head, next, is_packed(t, first + ATTN_TILE, more) ? 0 : more, 0, d->value_dim);
    list[ATTN_SOON_ALLOW] = soon(&d->allow, t->batch, t->rows[0].head, t->query, t->queries, next, more);
    list[ATTN_SOON_BIAS] = soon(&d->bias, t->batch, t->rows[0].head, t->query, t->queries, next, more);
    list[ATTN_SOON_KEYS] = soon(&d->k, t->batch, t->group_head, next, more, 0, d->dim);
    t->ahead.now = &list[ATTN_SOON_NOTHING];
    for (int i = ATTN_SOON_NOTHING - 1; i >= 0; i--) {
        list[i].then = t->ahead.now;
        if (list[i].rows > 0) t->ahead.now = &list[i];
    }
}

/* The keys that any row sees by position: from *low, to *high, and what lies between, which rows of a list may not see; 0 if there are none. */
int attn_task_span(const struct attn_task *t, int64_t *low, int64_t *high)
{
    return attn_mask_span(&t->plan->d, t->batch, t->query, t->queries, low, high);
}
