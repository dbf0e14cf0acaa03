/* inspect.c: the weights of a run, made again tile by tile from q, k and lse, and what they add up to.
 * SPDX-License-Identifier: MIT
 *
 * A task is a strip of chosen queries of one head, cut by shape only. What belongs to a row is done with its block. What belongs to a key or a cell goes
 * to the strip's part; a wave of parts is added to the whole of a head in order.
 *
 *   work    slots | parts of a wave | the whole of a head
 *   slot    scratch of plan.c | struct row_sums [rows] | total, away [wide] | key_total, key_most [ATTN_TILE] | rank_weight, rank_key [top][wide]
 *   part    received [keys] | sum, most of the cells: [map_span][map_columns] each; the whole has map_rows instead
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "internal.h"

enum { STRIP_BLOCKS = 4 };

struct row_sums {
    double total, away, first, window;
};

struct cells {
    double *received, *sum, *most;
};

struct run {
    const struct attn_inspection *s;
    char                         *work;
    int64_t                       first, count;
    _Atomic int64_t               next;
};

/* A block at work. */
struct look {
    const struct attn_inspection *s;
    struct attn_task              t;
    struct attn_survey            survey;
    struct row_sums              *sums;
    struct cells                  part;
    int64_t                       place, from, to; /* the tile's first key among the chosen; which of its keys are chosen */
    int64_t                       column, columns, column_end[ATTN_TILE]; /* its first cell column, how many, where they end */
    int64_t                       head, base;                             /* the head's place; the part's first cell row */
    int64_t                       window_low[ATTN_ROWS_MAX], window_high[ATTN_ROWS_MAX]; /* of window_mass, within what the row may see */
};

/* ---- the plan --------------------------------------------------------------------------------------------------------------------- */

static size_t padded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int has_parts(const attn_inspect_desc *w)
{
    return (w->received.dtype && w->key_count) || ((w->map_mean.dtype || w->map_max.dtype) && w->map_rows && w->map_columns);
}

static int has_rows(const attn_inspect_desc *w)
{
    return w->entropy.dtype || w->top_weight.dtype || w->top_key.dtype || w->first_mass.dtype || w->window_mass.dtype;
}

static size_t part_size(const attn_inspect_desc *w, int64_t map_rows)
{
    return padded(sizeof(double) * (size_t)((w->received.dtype ? w->key_count : 0) + 2 * map_rows * w->map_columns));
}

static struct cells cells_at(const attn_inspect_desc *w, char *at, int64_t map_rows)
{
    double *received = (double *)(void *)at, *sum = received + (w->received.dtype ? w->key_count : 0);
    return (struct cells){received, sum, sum + map_rows * w->map_columns};
}

/* Numbers per row in the survey's arrays: whole vectors, however few rows there are. */
static int64_t wide(const struct attn_plan *plan)
{
    return (plan->kernel->rows + 15) / 16 * 16;
}

int32_t attn_inspect_plan(struct attn_inspection *s, attn_error *error)
{
    int32_t status = attn_plan_make(&s->plan, error);
    if (status) return status;
    struct attn_plan        *plan = &s->plan;
    const attn_desc         *d = &plan->d;
    const attn_inspect_desc *w = &s->w;
    attn_plan_rows(plan, w->query_count);
    const int64_t rows = plan->kernel->rows, threads = d->executor ? d->executor->width : 1;
    s->strip_queries = STRIP_BLOCKS * rows;
    s->strips = w->query_count > s->strip_queries ? (w->query_count + s->strip_queries - 1) / s->strip_queries : 1;
    s->tasks =
        has_parts(w) || (w->query_count && (has_rows(w) || (w->values.dtype && w->key_count))) ? d->batch * w->head_count * s->strips : 0;
    s->wave = !has_parts(w) ? 0 : 2 * threads < s->tasks ? 2 * threads : s->tasks;
    plan->slots = threads < s->tasks ? threads : s->tasks;
    /* the cell rows that a strip may reach into */
    s->map_span = w->map_rows && w->query_count ? (s->strip_queries - 1) * w->map_rows / w->query_count + 2 : 0;
    if (s->map_span > w->map_rows) s->map_span = w->map_rows;
    s->rows_at = padded(plan->at.bytes);
    s->sums_at = s->rows_at + padded((size_t)rows * sizeof(struct row_sums));
    s->slot_bytes = s->sums_at + (size_t)(plan->kernel->real_bytes * ((2 + 2 * w->top) * wide(plan) + 2 * ATTN_TILE));
    s->part_bytes = part_size(w, s->map_span);
    size_t parts;
    if (__builtin_mul_overflow((size_t)plan->slots, s->slot_bytes, &s->work_bytes) ||
        __builtin_mul_overflow((size_t)s->wave, s->part_bytes, &parts) || __builtin_add_overflow(s->work_bytes, parts, &s->work_bytes) ||
        s->work_bytes > PTRDIFF_MAX / 2)
        return attn_fail(error, ATTN_E_MEMORY, "%lld threads of %zu bytes of scratch are more than memory can hold", (long long)plan->slots,
                         s->slot_bytes + 2 * s->part_bytes);
    s->work_bytes += (s->wave ? part_size(w, w->map_rows) : 0) + (s->tasks ? 64 : 0); /* 64: to align what the caller hands in */
    return ATTN_OK;
}

/* ---- reading and writing ---------------------------------------------------------------------------------------------------------- */

static double get(const struct look *l, const void *array, int64_t at)
{
    return l->s->plan.kernel->real_bytes == 4 ? (double)((const float *)array)[at] : ((const double *)array)[at];
}

static void *line(const struct look *l, int64_t r)
{
    return (char *)l->survey.lines + r * ATTN_TILE * l->s->plan.kernel->real_bytes;
}

/* n numbers along the last axis that the output has */
static void put(const attn_out *to, int64_t b, int64_t h, int64_t i, int64_t stride, const double *x, int64_t n)
{
    if (!to->dtype || !n) return;
    attn_plan_convert(to->dtype)->store_f64((char *)attn_task_element(to->data, to->stride, to->dtype, b, h, i), stride, x, n);
}

/* Of n things in `cells` cells: which cell thing i is in, and where a cell begins. */
static int64_t cell_of(int64_t i, int64_t cells, int64_t n)
{
    return ((i + 1) * cells - 1) / n;
}

static int64_t cell_begin(int64_t cell, int64_t cells, int64_t n)
{
    return cell * n / cells;
}

/* ---- a block ---------------------------------------------------------------------------------------------------------------------- */

/* What weights are taken against: of the run's lse, or of a walk over all keys. */
static void find_references(struct look *l)
{
    const struct attn_plan *plan = &l->s->plan;
    const attn_in          *from = &l->s->w.lse;
    char                   *slot = l->t.slot;
    double                 *lse = (double *)(void *)(slot + plan->at.lse);
    if (from->data) {
        for (int64_t r = 0; r < l->t.block.m; r++) {
            const struct attn_row *row = &l->t.rows[r];
            const char            *at = attn_task_element(from->data, from->stride, from->dtype, l->t.batch, row->head, row->query);
            attn_plan_convert(from->dtype)->load_f64(&lse[r], at, 1, 1);
            if (lse[r] == INFINITY) lse[r] = (double)NAN; /* a score of +inf: the row's weights are NaN */
            const double exact = lse[r] * ATTN_DOMAIN, top = plan->kernel->real_bytes == 4 ? (double)(float)exact : exact;
            attn_task_put(plan, l->t.block.part.top, r, top);
            attn_task_put(plan, l->t.block.part.sum, r, exp2(2 * (top - exact))); /* what rounding the reference took away */
        }
    } else {
        attn_exec_finish(&l->t);
    }
    for (int64_t r = 0; r < l->t.block.m; r++) /* sees nothing: no score may be taken from -inf; any that is there is a wrong lse */
        if (lse[r] == -INFINITY) attn_task_put(plan, l->t.block.part.top, r, 0), attn_task_put(plan, l->t.block.part.sum, r, INFINITY);
}

/* In a row of NaN every key that is seen has a weight of NaN, one with a score of -inf, which looks hidden, too. */
static void spread_nan(const struct look *l, int64_t first, int64_t n)
{
    const struct attn_plan *plan = &l->s->plan;
    const double           *lse = (const double *)(const void *)(l->t.slot + plan->at.lse);
    for (int64_t r = 0; r < l->t.block.m; r++)
        for (int64_t j = 0; isnan(lse[r]) && j < n; j++)
            attn_task_put(plan, line(l, r), j,
                          attn_mask_sees(&plan->d, l->t.batch, &l->t.rows[r], first + j) ? (double)NAN : -(double)INFINITY);
}

static double window_sum(const struct look *l, int64_t r, int64_t first, int64_t n)
{
    const struct attn_row *row = &l->t.rows[r];
    int64_t from = l->window_low[r] - first, to = l->window_high[r] - first, low = row->low - first, high = row->high - first;
    double  sum = 0;
    from = from < 0 ? 0 : from, to = to > n ? n : to, low = low < 0 ? 0 : low, high = high > n ? n : high;
    if (from < to && from <= low && to >= high) return get(l, l->survey.total, r);
    for (int64_t j = from; j < to; j++) sum += get(l, line(l, r), j);
    return sum;
}

static void add_rows(struct look *l, int64_t first, int64_t n)
{
    for (int64_t r = 0; r < l->t.block.m; r++) {
        struct row_sums *sums = &l->sums[r];
        sums->total += get(l, l->survey.total, r);
        sums->away += get(l, l->survey.away, r);
        if (first == 0) sums->first = get(l, line(l, r), 0);
        if (l->s->w.window_mass.dtype) sums->window += window_sum(l, r, first, n);
    }
}

static void widen(const struct look *l, const void *from, int64_t n, double *to)
{
    if (l->s->plan.kernel->real_bytes == 4)
        for (int64_t i = 0; i < n; i++) to[i] = (double)((const float *)from)[i];
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

/* Which of a tile's keys are chosen, and where their cell columns end. */
static void find_columns(struct look *l, int64_t first, int64_t n)
{
    const attn_inspect_desc *w = &l->s->w;
    const int64_t            at = attn_key_start(&l->s->plan.d, l->t.batch) + first - w->key_first;
    l->place = at;
    l->from = at < 0 ? -at : 0;
    l->to = w->key_count - at < n ? w->key_count - at : n;
    l->columns = 0;
    if (!w->map_columns || l->from >= l->to) return;
    l->column = cell_of(at + l->from, w->map_columns, w->key_count);
    for (int64_t end = 0; end < l->to;) {
        end = cell_begin(l->column + l->columns + 1, w->map_columns, w->key_count) - at;
        l->column_end[l->columns++] = end < l->to ? end : l->to;
    }
}

/* What the keys of a tile got from rows of one cell row. */
static void add_keys(struct look *l, int64_t cell_row)
{
    const attn_inspect_desc *w = &l->s->w;
    const int64_t            cells = (cell_row - l->base) * w->map_columns + l->column;
    double                   total[ATTN_TILE], most[ATTN_TILE];
    if (l->from >= l->to) return;
    widen(l, l->survey.key_total, l->to, total);
    for (int64_t j = l->from; w->received.dtype && j < l->to; j++) l->part.received[l->place + j] += total[j];
    if (l->columns) widen(l, l->survey.key_most, l->to, most);
    for (int64_t c = 0, j = l->from; c < l->columns; c++) {
        double sum = 0, largest = l->part.most[cells + c];
        for (; j < l->column_end[c]; j++) {
            sum += total[j];
            largest = most[j] > largest ? most[j] : largest;
        }
        l->part.sum[cells + c] += sum;
        l->part.most[cells + c] = largest;
    }
}

/* All tiles that somebody sees, and of these what is asked for. */
static void walk(struct look *l)
{
    const attn_inspect_desc  *w = &l->s->w;
    const struct attn_plan   *plan = &l->s->plan;
    const struct attn_kernel *kernel = plan->kernel;
    const int64_t             chosen = w->key_first - attn_key_start(&plan->d, l->t.batch);
    int64_t                   low, high;
    if (!attn_task_span(&l->t, &low, &high)) return;
    if (!has_rows(w)) {
        low = low < chosen ? chosen : low;
        high = high > chosen + w->key_count ? chosen + w->key_count : high;
    }
    for (int64_t first = low / ATTN_TILE * ATTN_TILE; first < high; first += ATTN_TILE) {
        struct attn_tile tile;
        const int64_t    n = high - first < ATTN_TILE ? high - first : ATTN_TILE;
        if (attn_task_tile(&l->t, &tile, first, n, 1) == ATTN_SEES_NONE) continue;
        kernel->scores(&l->t.block, &tile, ATTN_UPTO_WEIGHT);
        kernel->unload(&l->t.block, l->survey.lines, ATTN_TILE, l->t.block.s, ATTN_TILE, 0, n);
        spread_nan(l, first, n);
        l->survey.keys = n, l->survey.first = first;
        kernel->survey(&l->survey);
        if (has_parts(w)) find_columns(l, first, n);
        for (int64_t r = 0, end; has_parts(w) && r < l->t.block.m; r = end) {
            int64_t cell_row = w->map_rows ? cell_of(l->t.rows[r].to_query, w->map_rows, w->query_count) : 0;
            end = w->map_rows ? cell_begin(cell_row + 1, w->map_rows, w->query_count) - l->t.rows[0].to_query : l->t.block.m;
            if (end > l->t.block.m) end = l->t.block.m;
            kernel->survey_keys(&l->survey, r, end);
            add_keys(l, cell_row);
        }
        if (has_rows(w)) add_rows(l, first, n);
    }
}

static void write_ranks(const struct look *l, int64_t r, int nan)
{
    const attn_inspect_desc *w = &l->s->w;
    const int64_t            b = l->t.batch, i = l->t.rows[r].to_query, start = attn_key_start(&l->s->plan.d, b);
    for (int64_t n = 0; n < w->top; n++) {
        const int64_t at = n * l->survey.wide + r;
        double        weight = nan ? (double)NAN : get(l, l->survey.rank_weight, at);
        int64_t       key = -1;
        if (weight > 0 && l->s->plan.kernel->real_bytes == 4) key = start + (int64_t)((const uint32_t *)l->survey.rank_key)[at];
        if (weight > 0 && l->s->plan.kernel->real_bytes == 8) key = start + (int64_t)((const uint64_t *)l->survey.rank_key)[at];
        if (w->top_weight.dtype) {
            attn_out to = w->top_weight;
            to.data = (char *)to.data + n * to.stride[3] * attn_width(to.dtype);
            put(&to, b, l->head, i, 1, &weight, 1);
        }
        if (w->top_key.dtype)
            ((int64_t *)(void *)attn_task_element(w->top_key.data, w->top_key.stride, ATTN_I64, b, l->head, i))[n * w->top_key.stride[3]] =
                key;
    }
}

static void write_rows(const struct look *l)
{
    const attn_inspect_desc *w = &l->s->w;
    for (int64_t r = 0; r < l->t.block.m; r++) {
        const struct row_sums *sums = &l->sums[r];
        const int64_t          b = l->t.batch, h = l->head, i = l->t.rows[r].to_query;
        /* -ln P = 2 ln 2 (top - score) - ln sum; rounding may leave a little less than 0 */
        double entropy = sums->total == 0 ? 0 : sums->away * ATTN_NATURAL - log(get(l, l->survey.sum, r)) * sums->total;
        if (entropy < 0) entropy = 0;
        put(&w->entropy, b, h, i, 1, &entropy, 1);
        put(&w->first_mass, b, h, i, 1, &sums->first, 1);
        put(&w->window_mass, b, h, i, 1, &sums->window, 1);
        write_ranks(l, r, isnan(sums->total));
    }
}

/* Where window_mass looks. Positions are at most 2^62 + 2^40 in size, the bounds any int64. */
static void find_windows(struct look *l)
{
    const attn_inspect_desc *w = &l->s->w;
    for (int64_t r = 0; r < l->t.block.m; r++) {
        const struct attn_row *row = &l->t.rows[r];
        int64_t                low, high;
        if (w->mass_left < 0 || __builtin_sub_overflow(row->position, w->mass_left, &low)) low = INT64_MIN;
        if (w->mass_right < 0 || __builtin_add_overflow(row->position, w->mass_right, &high)) high = INT64_MAX;
        l->window_low[r] = low < row->low ? row->low : low;
        l->window_high[r] = high < row->high ? high + 1 : row->high;
    }
}

/* m chosen queries of one head, from place `at` of the list on. */
static void run_block(struct look *l, int64_t at, int64_t m)
{
    const attn_inspect_desc *w = &l->s->w;
    const struct attn_plan  *plan = &l->s->plan;
    const int64_t            head = w->heads ? w->heads[l->head] : l->head;
    l->t.group_head = head / plan->group;
    l->t.block.m = m;
    int64_t first = INT64_MAX, last = 0;
    for (int64_t r = 0; r < m; r++) {
        const int64_t query = w->queries ? w->queries[at + r] : at + r;
        l->t.rows[r] = (struct attn_row){.head = head, .query = query, .to_head = l->head, .to_query = at + r};
        first = query < first ? query : first, last = query > last ? query : last;
    }
    l->t.query = first, l->t.queries = last + 1 - first;
    attn_task_ready(&l->t);
    l->t.block.part.top = l->t.slot + plan->at.top[0], l->t.block.part.sum = l->t.slot + plan->at.sum[0];
    const int summary = has_rows(w) || has_parts(w);
    if (summary || (w->values.dtype && w->values_stage == ATTN_STAGE_WEIGHT)) find_references(l);
    if (w->values.dtype && w->key_count)
        attn_exec_weights(&l->t, &w->values, attn_plan_convert(w->values.dtype), w->values_stage, w->key_first, w->key_count);
    if (!summary) return;
    l->survey.top = l->t.block.part.top, l->survey.sum = l->t.block.part.sum;
    l->survey.m = m;
    memset(l->sums, 0, (size_t)m * sizeof *l->sums);
    memset(l->survey.rank_weight, 0, (size_t)(w->top * l->survey.wide * plan->kernel->real_bytes));
    find_windows(l);
    walk(l);
    write_rows(l);
}

/* ---- strips ----------------------------------------------------------------------------------------------------------------------- */

struct strip {
    int64_t batch, head, from, to, base; /* places in the list of queries; the first cell row that they reach into */
    int     first, last;                 /* of its head */
};

static struct strip strip_of(const struct attn_inspection *s, int64_t task)
{
    const attn_inspect_desc *w = &s->w;
    const int64_t            n = w->query_count, strip = task % s->strips, head = task / s->strips;
    struct strip             x = {.batch = head / w->head_count, .head = head % w->head_count, .from = strip * s->strip_queries};
    x.to = n - x.from < s->strip_queries ? n : x.from + s->strip_queries;
    x.base = w->map_rows && n ? cell_of(x.from, w->map_rows, n) : 0;
    x.first = strip == 0, x.last = strip == s->strips - 1;
    return x;
}

static char *part_at(const struct attn_inspection *s, char *work, int64_t at)
{
    return work + (size_t)s->plan.slots * s->slot_bytes + (size_t)at * s->part_bytes;
}

static void run_strip(const struct attn_inspection *s, char *slot, int64_t task, char *part)
{
    const struct attn_plan *plan = &s->plan;
    const struct strip      x = strip_of(s, task);
    struct look             l = {.s = s, .head = x.head, .base = x.base};
    const int64_t           real = plan->kernel->real_bytes, step = real * wide(plan);
    char                   *sums = slot + s->sums_at;
    l.t.plan = plan, l.t.slot = slot, l.t.batch = x.batch;
    l.sums = (struct row_sums *)(void *)(slot + s->rows_at);
    l.survey =
        (struct attn_survey){.lines = slot + plan->at.edit, .ranks = s->w.top, .wide = wide(plan), .total = sums, .away = sums + step};
    l.survey.key_total = sums + 2 * step, l.survey.key_most = sums + 2 * step + ATTN_TILE * real;
    l.survey.rank_weight = sums + 2 * step + 2 * ATTN_TILE * real;
    l.survey.rank_key = (char *)l.survey.rank_weight + s->w.top * step;
    if (part) {
        l.part = cells_at(&s->w, part, s->map_span);
        memset(part, 0, s->part_bytes);
    }
    for (int64_t at = x.from; at < x.to; at += plan->kernel->rows)
        run_block(&l, at, x.to - at < plan->kernel->rows ? x.to - at : plan->kernel->rows);
}

static void share(void *arg, int32_t index)
{
    struct run                   *run = arg;
    const struct attn_inspection *s = run->s;
    char                         *slot = run->work + (size_t)index * s->slot_bytes;
    const uint64_t                env = attn_cpu_enter();
    attn_exec_guard(&s->plan, slot, 1);
    for (int64_t i; (i = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < run->count;)
        run_strip(s, slot, run->first + i, s->wave ? part_at(s, run->work, i) : 0);
    attn_exec_guard(&s->plan, slot, 0);
    attn_cpu_leave(env);
}

static void run_tasks(const struct attn_inspection *s, char *work, int64_t first, int64_t count)
{
    struct run run = {s, work, first, count, 0};
    if (s->plan.slots == 1)
        share(&run, 0);
    else
        s->plan.d.executor->parallel_for(s->plan.d.executor->context, (int32_t)s->plan.slots, share, &run);
}

/* The whole of a head to the outputs. */
static void write_whole(const attn_inspect_desc *w, const struct cells *whole, int64_t b, int64_t h)
{
    put(&w->received, b, h, 0, w->received.stride[2], whole->received, w->key_count);
    for (int64_t row = 0; row < w->map_rows; row++) {
        const double queries = (double)(cell_begin(row + 1, w->map_rows, w->query_count) - cell_begin(row, w->map_rows, w->query_count));
        double      *sum = whole->sum + row * w->map_columns, *most = whole->most + row * w->map_columns;
        for (int64_t c = 0, begin = 0, end; c < w->map_columns; c++, begin = end) {
            end = cell_begin(c + 1, w->map_columns, w->key_count);
            if (isnan(sum[c])) most[c] = sum[c]; /* the largest passes over NaN */
            sum[c] /= queries * (double)(end - begin);
        }
        put(&w->map_mean, b, h, row, w->map_mean.stride[3], sum, w->map_columns);
        put(&w->map_max, b, h, row, w->map_max.stride[3], most, w->map_columns);
    }
}

/* Adds the parts of a wave to the whole of their heads, in order. */
static void fold_wave(const struct attn_inspection *s, char *work, int64_t first, int64_t count)
{
    const attn_inspect_desc *w = &s->w;
    char                    *place = part_at(s, work, s->wave);
    const struct cells       whole = cells_at(w, place, w->map_rows);
    const uint64_t           env = attn_cpu_enter();
    for (int64_t i = 0; i < count; i++) {
        const struct strip x = strip_of(s, first + i);
        const struct cells part = cells_at(w, part_at(s, work, i), s->map_span);
        const int64_t      rows = w->map_rows - x.base < s->map_span ? w->map_rows - x.base : s->map_span;
        if (x.first) memset(place, 0, part_size(w, w->map_rows));
        for (int64_t j = 0; w->received.dtype && j < w->key_count; j++) whole.received[j] += part.received[j];
        for (int64_t c = 0; c < rows * w->map_columns; c++) {
            double *most = &whole.most[x.base * w->map_columns + c];
            whole.sum[x.base * w->map_columns + c] += part.sum[c];
            *most = part.most[c] > *most ? part.most[c] : *most;
        }
        if (x.last) write_whole(w, &whole, x.batch, x.head);
    }
    attn_cpu_leave(env);
}

void attn_inspect_run(const struct attn_inspection *s, void *work)
{
    char *aligned = (char *)(((uintptr_t)work + 63) & ~(uintptr_t)63);
    if (!s->wave) {
        run_tasks(s, aligned, 0, s->tasks);
        return;
    }
    for (int64_t first = 0; first < s->tasks; first += s->wave) {
        int64_t count = s->tasks - first < s->wave ? s->tasks - first : s->wave;
        run_tasks(s, aligned, first, count);
        fold_wave(s, aligned, first, count);
    }
}
