/* test_inspect.c: attn_inspect sees the weights of the reference: values, rows, ranks, keys, cells; exactly where they are exact, in any choice of places.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

enum { VALUES, ENTROPY, TOP_WEIGHT, TOP_KEY, FIRST, WINDOW, RECEIVED, MEAN, MAX, OUTPUTS };

static const char *const name[OUTPUTS] = {"values",      "entropy",  "top_weight", "top_key", "first_mass",
                                          "window_mass", "received", "map_mean",   "map_max"};

/* A problem, what is looked at, and the outputs that it is written to. */
struct look {
    problem           p;
    attn_desc         d; /* of attn_inspect: without v and out */
    attn_inspect_desc w;
    view              lse, out[OUTPUTS];
    guarded           work;
    int64_t           heads, queries, keys; /* chosen */
};

static attn_out *output(attn_inspect_desc *w, int i)
{
    attn_out *const field[OUTPUTS] = {&w->values,      &w->entropy,  &w->top_weight, &w->top_key, &w->first_mass,
                                      &w->window_mass, &w->received, &w->map_mean,   &w->map_max};
    return field[i];
}

static void shape_of(const struct look *l, int i, int64_t shape[4], int missing[4])
{
    const int64_t axes[OUTPUTS][2] = {{l->queries, l->keys},
                                      {l->queries, -1},
                                      {l->queries, l->w.top},
                                      {l->queries, l->w.top},
                                      {l->queries, -1},
                                      {l->queries, -1},
                                      {l->keys, -1},
                                      {l->w.map_rows, l->w.map_columns},
                                      {l->w.map_rows, l->w.map_columns}};
    shape[0] = l->d.batch, shape[1] = l->heads, shape[2] = axes[i][0], shape[3] = axes[i][1] < 0 ? 1 : axes[i][1];
    missing[0] = missing[1] = missing[2] = 0, missing[3] = axes[i][1] < 0;
}

static void add_output(struct look *l, rng *r, int i, int32_t dtype, int style)
{
    int64_t shape[4];
    int     missing[4];
    shape_of(l, i, shape, missing);
    view_make(&l->out[i], r, dtype, shape, missing, style, 1);
    *output(&l->w, i) = view_out(&l->out[i]);
}

static int64_t *some_list(rng *r, int64_t from, int64_t *count)
{
    int64_t *list = malloc((size_t)(2 * from + 1) * sizeof *list);
    *count = rng_percent(r, 3) ? 0 : rng_range(r, 1, 2 * from);
    for (int64_t i = 0; i < *count; i++) list[i] = rng_range(r, 0, from - 1);
    return list;
}

static void choose_places(struct look *l, rng *r)
{
    const attn_desc *d = &l->d;
    l->heads = d->heads, l->queries = d->queries;
    if (d->heads && rng_percent(r, 40)) l->w.heads = some_list(r, d->heads, &l->w.head_count), l->heads = l->w.head_count;
    if (d->queries && rng_percent(r, 40)) l->w.queries = some_list(r, d->queries, &l->w.query_count), l->queries = l->w.query_count;
    if (rng_percent(r, 40)) l->w.key_first = rng_range(r, 0, d->keys);
    if (rng_percent(r, 40)) l->w.key_count = rng_range(r, 0, d->keys - l->w.key_first);
    l->keys = l->w.key_count ? l->w.key_count : d->keys - l->w.key_first;
}

static void look_make(struct look *l, rng *r)
{
    memset(l, 0, sizeof *l);
    problem_random(&l->p, r, WITH_ALL);
    int style = rng_percent(r, 50) ? VIEW_STRANGE : VIEW_PLAIN, with = (int)rng_range(r, 1, (1 << OUTPUTS) - 1);
    l->d = l->p.d;
    l->w = attn_inspect_desc_new();
    choose_places(l, r);
    if (with >> TOP_WEIGHT & 3) l->w.top = (int32_t)(rng_percent(r, 50) ? rng_range(r, 1, 64) : rng_range(r, 1, 5));
    if (with >> VALUES & 1) l->w.values_stage = (int32_t)rng_range(r, 0, 3);
    if (with >> WINDOW & 1) {
        l->w.mass_left = rng_percent(r, 20) ? -1 : rng_percent(r, 5) ? INT64_MAX : rng_range(r, 0, l->d.keys);
        l->w.mass_right = rng_percent(r, 20) ? -1 : rng_percent(r, 5) ? INT64_MAX : rng_range(r, 0, rng_percent(r, 50) ? 3 : l->d.keys);
    }
    if (with >> MEAN) {
        l->w.map_rows = l->queries ? rng_range(r, 1, l->queries) : 0;
        l->w.map_columns = l->keys ? rng_range(r, 1, l->keys) : 0;
    }
    for (int i = 0; i < OUTPUTS; i++)
        if (with >> i & 1) add_output(l, r, i, i == TOP_KEY ? ATTN_I64 : rng_percent(r, 50) ? ATTN_F32 : ATTN_F64, style);
    if (rng_percent(r, 70)) {
        view_make(&l->lse, r, l->d.q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, (const int64_t[]){l->d.batch, l->d.heads, l->d.queries, 1},
                  (const int[]){0, 0, 0, 1}, style, 1);
        l->p.d.lse = view_out(&l->lse);
        l->w.lse = view_in(&l->lse);
    }
    l->d.v = (attn_in){0}, l->d.out = l->d.lse = l->d.weights = (attn_out){0}; /* are not looked at: some are there, some not */
    if (rng_percent(r, 50)) l->d.weights_stage = 3, l->d.work_bytes = 5;
}

static void look_free(struct look *l)
{
    for (int i = 0; i < OUTPUTS; i++) view_free(&l->out[i]);
    free((void *)(uintptr_t)l->w.heads), free((void *)(uintptr_t)l->w.queries);
    view_free(&l->lse), guarded_free(&l->work), problem_free(&l->p);
}

/* ---- what is wanted ---------------------------------------------------------------------------------------------------------------- */

/* Weights of one chosen row, and whether and how they may be off. */
struct row {
    const double        *weight, *stage;
    const unsigned char *seen;
    int64_t              position, start, count;
    double               size;
    int                  exact; /* sees nothing */
};

static struct row row_of(const struct look *l, const reference *weights, const reference *stage, int64_t b, int64_t h, int64_t i)
{
    const attn_desc *d = &l->p.d;
    const int64_t    head = l->w.heads ? l->w.heads[h] : h, query = l->w.queries ? l->w.queries[i] : i;
    const int64_t    at = (b * d->heads + head) * d->queries + query;
    struct row row = {.weight = weights->weights + at * d->keys, .seen = weights->seen + at * d->keys, .size = weights->size_seen[at]};
    if (stage) row.stage = stage->weights + at * d->keys;
    row.exact = weights->row[at] & ROW_EMPTY;
    row.start = d->key_start ? d->key_start[b] : 0;
    row.count = d->key_count ? d->key_count[b] : d->keys - row.start;
    int64_t queries = d->query_count ? d->query_count[b] : d->queries;
    row.position = query + (d->query_offset ? d->query_offset[b] : d->align == ATTN_ALIGN_BOTTOM_RIGHT ? row.count - queries : 0);
    return row;
}

static int64_t bad_of(const struct look *l, int i, const int64_t at[4], double want, double largest, double size, int exact)
{
    double got = view_get(&l->out[i], at[0], at[1], at[2], at[3]);
    double allowed = exact ? 0 : tolerance(l->out[i].dtype, l->d.q.dtype, largest, want, size);
    if (isnan(want) ? isnan(got) : isinf(want) ? got == want : fabs(got - want) <= allowed) return 0;
    fprintf(stderr, "  %s[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]: want %.17g got %.17g, apart %.3g, allowed %.3g\n", name[i],
            at[0], at[1], at[2], at[3], want, got, fabs(got - want), allowed);
    return 1;
}

static int in_window(const struct look *l, const struct row *row, int64_t j)
{
    __extension__ typedef __int128 wide;
    wide                           p = row->position, key = (wide)j - row->start;
    return (l->w.mass_left < 0 || key >= p - l->w.mass_left) && (l->w.mass_right < 0 || key <= p + l->w.mass_right);
}

/* Ranks: weights as large as the reference's, and keys that have them; hidden keys and weights of 0 have no rank. */
static int64_t ranks_bad(const struct look *l, const struct row *row, int64_t b, int64_t h, int64_t i)
{
    int64_t bad = 0, keys = l->d.keys;
    double *left = malloc((size_t)(keys + 1) * sizeof *left), largest = 1;
    int     nan = 0;
    for (int64_t j = 0; j < keys; j++) left[j] = row->weight[j], nan |= isnan(left[j]);
    for (int32_t rank = 0; rank < l->w.top; rank++) {
        const int64_t at[4] = {b, h, i, rank};
        int64_t       best = -1;
        for (int64_t j = 0; j < keys && !nan; j++)
            if (left[j] > (best < 0 ? 0 : left[best])) best = j;
        double want = nan ? (double)NAN : best < 0 ? 0 : left[best], allowed = tolerance(ATTN_F32, l->d.q.dtype, largest, want, row->size);
        if (l->d.q.dtype == ATTN_F64) allowed = tolerance(ATTN_F64, ATTN_F64, largest, want, row->size);
        if (l->out[TOP_WEIGHT].memory.bytes) bad += bad_of(l, TOP_WEIGHT, at, want, largest, row->size, row->exact);
        if (l->out[TOP_KEY].memory.bytes) {
            int64_t key;
            memcpy(&key,
                   (const char *)l->w.top_key.data + 8 * (b * l->w.top_key.stride[0] + h * l->w.top_key.stride[1] +
                                                          i * l->w.top_key.stride[2] + rank * l->w.top_key.stride[3]),
                   sizeof key);
            int good = key == -1 ? nan || want <= allowed
                                 : key >= 0 && key < keys && row->seen[key] && fabs(row->weight[key] - want) <= 2 * allowed;
            if (!good) fprintf(stderr, "  top_key[%" PRId64 ",%" PRId64 ",%" PRId64 ",%d]: %" PRId64 "\n", b, h, i, rank, key), bad++;
        }
        if (best >= 0) left[best] = -1;
    }
    free(left);
    return bad;
}

static int64_t row_bad(const struct look *l, const struct row *row, int64_t b, int64_t h, int64_t i)
{
    const int64_t at[4] = {b, h, i, 0};
    int64_t       bad = 0;
    double        entropy = 0, window = 0, first = row->count ? row->weight[row->start] : 0;
    for (int64_t j = 0; j < l->d.keys; j++) {
        if (row->weight[j] != 0) entropy -= row->weight[j] * log(row->weight[j]);
        if (in_window(l, row, j)) window += row->weight[j];
    }
    if (l->out[FIRST].memory.bytes) bad += bad_of(l, FIRST, at, first, 1, row->size, row->exact);
    if (l->out[WINDOW].memory.bytes) bad += bad_of(l, WINDOW, at, window, 1, row->size, row->exact);
    /* a weight that is off by a share e puts the entropy off by about e (1 + entropy): it counts as at least 1 */
    if (l->out[ENTROPY].memory.bytes) bad += bad_of(l, ENTROPY, at, entropy, fmax(1, entropy), row->size, row->exact);
    if (l->w.top) bad += ranks_bad(l, row, b, h, i);
    for (int64_t j = 0; j < l->keys && l->out[VALUES].memory.bytes; j++) {
        const int64_t key = l->w.key_first + j, place[4] = {b, h, i, j};
        const int     every = l->w.values_stage == ATTN_STAGE_SCALED || l->w.values_stage == ATTN_STAGE_CAPPED;
        double        size = row->size, largest = l->w.values_stage ? fmax(1, row->size) : 1;
        if (every && !isnan(row->stage[key])) size = largest = fmax(largest, fabs(row->stage[key]) + 1e3); /* S over everything */
        bad += bad_of(l, VALUES, place, row->stage[key], largest, size, !every && (!row->seen[key] || (row->exact && !l->w.values_stage)));
    }
    return bad;
}

/* Sums over rows: received and the cells of the map. */
static int64_t sums_bad(const struct look *l, const reference *weights, int64_t b, int64_t h)
{
    const int64_t  rows = l->w.map_rows, columns = l->w.map_columns;
    double        *received = calloc((size_t)l->d.keys + 1, sizeof *received), *sum = calloc((size_t)(rows * columns + 1), sizeof *sum);
    double        *most = calloc((size_t)(rows * columns + 1), sizeof *most), *pairs = calloc((size_t)(rows * columns + 1), sizeof *pairs);
    unsigned char *seen = calloc((size_t)(l->d.keys + rows * columns + 1), 1), *cell_seen = seen + l->d.keys;
    double         size = 0, largest = 0; /* of all keys: the chosen ones are a part of that */
    int64_t        bad = 0;
    for (int64_t i = 0; i < l->queries; i++) {
        struct row row = row_of(l, weights, NULL, b, h, i);
        if (row.size > size) size = row.size;
        for (int64_t key = 0, j, cell; key < l->d.keys; key++) {
            const double x = row.weight[key];
            received[key] += x;
            seen[key] |= row.seen[key] && !row.exact;
            j = key - l->w.key_first;
            if (!rows || j < 0 || j >= l->keys) continue;
            int64_t cell_row = 0, column = 0;
            while (i >= (cell_row + 1) * l->queries / rows) cell_row++;
            while (j >= (column + 1) * l->keys / columns) column++;
            cell = cell_row * columns + column;
            sum[cell] += x, pairs[cell]++;
            cell_seen[cell] |= row.seen[key] && !row.exact;
            if (x > most[cell]) most[cell] = x;
        }
    }
    for (int64_t key = 0; key < l->d.keys; key++) largest = received[key] > largest ? received[key] : largest;
    for (int64_t j = 0; j < l->keys && l->out[RECEIVED].memory.bytes; j++)
        bad += bad_of(l, RECEIVED, (const int64_t[]){b, h, j, 0}, received[l->w.key_first + j], largest, size, !seen[l->w.key_first + j]);
    for (int64_t c = 0; c < rows * columns; c++) {
        const int64_t at[4] = {b, h, c / columns, c % columns};
        if (l->out[MEAN].memory.bytes) bad += bad_of(l, MEAN, at, sum[c] / pairs[c], 1, size, !cell_seen[c]);
        if (l->out[MAX].memory.bytes) bad += bad_of(l, MAX, at, isnan(sum[c]) ? sum[c] : most[c], 1, size, !cell_seen[c]);
    }
    free(received), free(sum), free(most), free(pairs), free(seen);
    return bad;
}

/* ---- running ----------------------------------------------------------------------------------------------------------------------- */

static void make_work(struct look *l)
{
    size_t bytes = 0;
    assert_int_equal(attn_inspect_work_bytes(&l->d, &l->w, &bytes, NULL), ATTN_OK);
    guarded_free(&l->work);
    guarded_make(&l->work, bytes, bytes % 2 ? GUARD_BELOW : GUARD_ABOVE, 0xFF);
    l->w.work = l->work.bytes, l->w.work_bytes = bytes;
}

static int64_t refused(const attn_error *e)
{
    fprintf(stderr, "  refused with %d: %s\n", e->status, e->message);
    return 1;
}

/* The run that leaves the lse, and the look. */
static int64_t look_run(struct look *l, const char *isa, int own_work)
{
    attn_error e;
    int64_t    bad = 0;
    l->p.d.isa = l->d.isa = isa;
    for (int i = 0; i < OUTPUTS; i++)
        if (l->out[i].memory.bytes) view_refill(&l->out[i]);
    if (l->lse.memory.bytes && attn_run(&l->p.d, &e)) return refused(&e);
    l->w.work = NULL, l->w.work_bytes = 0;
    if (own_work) make_work(l);
    report_faults(&l->d);
    int32_t code = attn_inspect(&l->d, &l->w, &e);
    report_faults(NULL);
    if (code) return refused(&e);
    for (int i = 0; i < OUTPUTS; i++) {
        const char *side = l->out[i].memory.bytes ? view_broken(&l->out[i]) : NULL;
        if (side) fprintf(stderr, "  written %s the elements of %s\n", side, name[i]), bad++;
    }
    const char *side = own_work ? guarded_broken(&l->work) : NULL;
    if (side) fprintf(stderr, "  written %s the workspace\n", side), bad++;
    return bad;
}

static int64_t look_check(struct look *l, const reference *weights, const reference *stage)
{
    int64_t bad = 0;
    for (int64_t b = 0; b < l->d.batch; b++)
        for (int64_t h = 0; h < l->heads; h++) {
            for (int64_t i = 0; i < l->queries; i++) {
                struct row row = row_of(l, weights, stage, b, h, i);
                bad += row_bad(l, &row, b, h, i);
            }
            bad += sums_bad(l, weights, b, h);
        }
    return bad;
}

static void random_looks(void **state)
{
    (void)state;
    for (int64_t at = 0; at < test_count(600); at++) {
        if (!test_case_wanted(at)) continue;
        rng         r = rng_make("inspect", at);
        struct look l;
        reference   weights, stage;
        int64_t     bad = 0;
        look_make(&l, &r);
        attn_desc d = l.p.d;
        double    nothing = 0;
        d.weights = (attn_out){.data = &nothing, .dtype = ATTN_F64}; /* the reference writes nothing there, it only holds them */
        d.weights_stage = ATTN_STAGE_WEIGHT;
        reference_make(&weights, &d);
        d.weights_stage = l.w.values_stage;
        reference_make(&stage, &d);
        for (int i = 0; attn_isa_name(i); i++)
            if (attn_isa_usable(i)) {
                int64_t here = look_run(&l, attn_isa_name(i), rng_percent(&r, 50));
                bad += here ? here : look_check(&l, &weights, &stage);
                if (bad) fprintf(stderr, "on %s\n", attn_isa_name(i));
                if (bad) break;
            }
        if (bad) {
            fprintf(stderr, "inspect: ATTN_SEED=%" PRIu64 " ATTN_CASE=%" PRId64 "\n", test_seed(), at);
            describe(&l.d, stderr);
        }
        assert_int_equal(bad, 0);
        reference_free(&weights), reference_free(&stage), look_free(&l);
    }
}

/* ---- exact --------------------------------------------------------------------------------------------------------------------------- */

/* A dense problem with an lse, and everything asked for in f64, so that what is written is what was computed. */
static void full_make(struct look *l, rng *r, int32_t dtype, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys, int32_t top)
{
    memset(l, 0, sizeof *l);
    problem_dense(&l->p, r, dtype, 1, heads, kv_heads, queries, keys, 24, 3);
    l->p.d.align = ATTN_ALIGN_BOTTOM_RIGHT;
    l->d = l->p.d;
    l->w = attn_inspect_desc_new();
    l->heads = heads, l->queries = queries, l->keys = keys;
    l->w.top = top, l->w.mass_left = 5, l->w.map_rows = queries < 7 ? queries : 7, l->w.map_columns = keys < 11 ? keys : 11;
    for (int i = 0; i < OUTPUTS; i++) add_output(l, r, i, i == TOP_KEY ? ATTN_I64 : ATTN_F64, VIEW_PLAIN);
    l->lse = l->p.lse, l->p.lse.memory = (guarded){0};
    l->w.lse = view_in(&l->lse);
}

static unsigned char *all_bytes(const struct look *l, size_t *size)
{
    *size = 0;
    for (int i = 0; i < OUTPUTS; i++) *size += l->out[i].memory.size;
    unsigned char *copy = malloc(*size), *at = copy;
    for (int i = 0; i < OUTPUTS; i++) memcpy(at, l->out[i].memory.bytes, l->out[i].memory.size), at += l->out[i].memory.size;
    return copy;
}

/* Ranks, masses and largest cells are numbers out of values, to the bit; and of equal weights the lower key is first. */
static void out_of_values(void **state)
{
    (void)state;
    for (int64_t at = 0; at < test_count(60); at++) {
        if (!test_case_wanted(at)) continue;
        rng         r = rng_make("out of values", at);
        struct look l;
        int64_t     queries = rng_range(&r, 1, 60), keys = rng_range(&r, 1, 300);
        int32_t     top = (int32_t)rng_range(&r, 1, 64);
        full_make(&l, &r, rng_percent(&r, 50) ? ATTN_F32 : ATTN_F64, 2, 1, queries, keys, top);
        if (rng_percent(&r, 50)) /* few different keys: many equal weights */
            for (int64_t j = 0; j < keys; j++)
                for (int64_t c = 0; c < 24; c++) view_set(&l.p.k, 0, 0, j, c, view_get(&l.p.k, 0, 0, j % 5, c));
        l.d.causal = l.p.d.causal = rng_percent(&r, 50);
        for (int n = 0; attn_isa_name(n); n++) {
            if (!attn_isa_usable(n)) continue;
            assert_int_equal(look_run(&l, attn_isa_name(n), 1), 0);
            for (int64_t h = 0; h < 2; h++) {
                double most[7][11] = {{0}};
                for (int64_t i = 0; i < queries; i++) {
                    double *left = malloc((size_t)keys * sizeof *left);
                    for (int64_t j = 0; j < keys; j++) {
                        double *cell = &most[((i + 1) * l.w.map_rows - 1) / queries][((j + 1) * l.w.map_columns - 1) / keys];
                        left[j] = view_get(&l.out[VALUES], 0, h, i, j);
                        if (left[j] > *cell) *cell = left[j];
                    }
                    assert_true(view_get(&l.out[FIRST], 0, h, i, 0) == left[0]);
                    for (int64_t rank = 0; rank < top; rank++) {
                        int64_t best = -1, key;
                        for (int64_t j = 0; j < keys; j++)
                            if (left[j] > (best < 0 ? 0 : left[best])) best = j;
                        memcpy(&key, l.out[TOP_KEY].memory.bytes + 8 * ((h * queries + i) * top + rank), sizeof key);
                        assert_int_equal(key, best);
                        assert_true(view_get(&l.out[TOP_WEIGHT], 0, h, i, rank) == (best < 0 ? 0 : left[best]));
                        if (best >= 0) left[best] = 0;
                    }
                    free(left);
                }
                for (int64_t c = 0; c < l.w.map_rows * l.w.map_columns; c++)
                    assert_true(view_get(&l.out[MAX], 0, h, c / l.w.map_columns, c % l.w.map_columns) ==
                                most[c / l.w.map_columns][c % l.w.map_columns]);
            }
        }
        look_free(&l);
    }
}

/* Without an lse, values are those that the run itself writes. */
static void bits_of_the_run(void **state)
{
    (void)state;
    rng r = rng_make("bits of the run", 0);
    for (int32_t dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
        for (int n = 0; attn_isa_name(n); n++) {
            struct look l;
            if (!attn_isa_usable(n)) continue;
            full_make(&l, &r, dtype, 4, 2, 77, 300, 3);
            problem_add_sink(&l.p, &r);
            l.d.sink = l.p.d.sink;
            l.d.causal = l.p.d.causal = 1;
            l.p.d.weights = attn_out_dense(malloc(4 * 77 * 300 * sizeof(double)), ATTN_F64, 4, 77, 300);
            l.w.lse = (attn_in){0};
            assert_int_equal(look_run(&l, attn_isa_name(n), 1), 0); /* which runs l.p too */
            assert_memory_equal(l.p.d.weights.data, l.out[VALUES].memory.bytes, 4 * 77 * 300 * sizeof(double));
            free(l.p.d.weights.data);
            look_free(&l);
        }
}

/* The same bits for any executor, and for rows alone or among others. */
static void same_bits(void **state)
{
    (void)state;
    rng                  r = rng_make("same bits", 0);
    attn_pool           *pool = attn_pool_new(4, NULL);
    const attn_executor *executors[] = {NULL, &executor_forward, &executor_backward, attn_pool_executor(pool)};
    const int64_t        chosen[] = {700, 3, 412, 3};
    for (int n = 0; attn_isa_name(n); n++) {
        struct look l, few;
        size_t      size;
        if (!attn_isa_usable(n)) continue;
        full_make(&l, &r, n % 2 ? ATTN_F64 : ATTN_BF16, 3, 1, 701, 450, 9);
        l.d.window = l.p.d.window = 1, l.d.window_left = l.p.d.window_left = 200;
        unsigned char *want = NULL;
        for (int e = 0; e < COUNT(executors); e++) {
            l.d.executor = executors[e];
            assert_int_equal(look_run(&l, attn_isa_name(n), e % 2), 0);
            unsigned char *got = all_bytes(&l, &size);
            if (want) assert_memory_equal(want, got, size);
            free(want);
            want = got;
        }
        free(want);
        few = l;
        few.queries = COUNT(chosen), few.w.queries = chosen, few.w.query_count = COUNT(chosen), few.w.map_rows = 2;
        few.work = (guarded){0};
        for (int i = 0; i < OUTPUTS; i++) few.out[i] = (view){0}, add_output(&few, &r, i, i == TOP_KEY ? ATTN_I64 : ATTN_F64, VIEW_PLAIN);
        assert_int_equal(look_run(&few, attn_isa_name(n), 1), 0);
        for (int i = VALUES; i <= WINDOW; i++) {
            const size_t row = (size_t)few.out[i].shape[3] * 8;
            for (int64_t h = 0; h < 3; h++)
                for (int64_t c = 0; c < COUNT(chosen); c++)
                    assert_memory_equal(few.out[i].memory.bytes + row * (size_t)(h * COUNT(chosen) + c),
                                        l.out[i].memory.bytes + row * (size_t)(h * 701 + chosen[c]), row);
        }
        for (int i = 0; i < OUTPUTS; i++) view_free(&few.out[i]);
        guarded_free(&few.work);
        look_free(&l);
    }
    attn_pool_free(pool);
}

/* Nothing seen by a query: zeros and -1, even among NaN; all that is written without any key or query. */
static void nothing_seen(void **state)
{
    (void)state;
    rng         r = rng_make("nothing seen", 0);
    struct look l;
    int64_t     count[1] = {0}, key;
    full_make(&l, &r, ATTN_F32, 2, 2, 50, 40, 4);
    l.d.key_count = l.p.d.key_count = count;
    memset(l.p.k.memory.bytes, 0xFF, l.p.k.memory.size); /* NaN */
    problem_add_sink(&l.p, &r);
    l.d.sink = l.p.d.sink;
    assert_int_equal(look_run(&l, NULL, 1), 0);
    for (int i = 0; i < OUTPUTS; i++)
        for (size_t at = 0; at < l.out[i].memory.size; at += 8) {
            memcpy(&key, l.out[i].memory.bytes + at, sizeof key);
            assert_int_equal(key, i == TOP_KEY ? -1 : 0); /* 0 has no bit set */
        }
    look_free(&l);
    full_make(&l, &r, ATTN_F64, 2, 2, 0, 40, 4); /* no queries: keys receive 0 */
    assert_int_equal(look_run(&l, NULL, 1), 0);
    for (int64_t j = 0; j < 80; j++) assert_true(view_get(&l.out[RECEIVED], 0, j / 40, j % 40, 0) == 0);
    look_free(&l);
    full_make(&l, &r, ATTN_F64, 2, 2, 5, 0, 4); /* no keys */
    assert_int_equal(look_run(&l, NULL, 1), 0);
    for (int64_t i = 0; i < 10; i++) assert_true(view_get(&l.out[ENTROPY], 0, i / 5, i % 5, 0) == 0);
    look_free(&l);
}

/* ---- long ------------------------------------------------------------------------------------------------------------------------------ */

/* 100,000 keys: workspace as the header says, sampled rows as the formula says, and sums that must come out. */
static void long_sequence(void **state)
{
    (void)state;
    enum { N = 100000, D = 16, ROWS = 3 };
    rng           r = rng_make("long", 0);
    const int64_t chosen[ROWS] = {0, 61234, N - 1};
    float        *q = malloc(N * D * sizeof *q), *k = malloc(N * D * sizeof *k);
    double        entropy[ROWS], *received = malloc(N * sizeof *received), sum = 0, mean[30 * 40], most[30 * 40];
    int64_t       key[ROWS];
    for (int64_t i = 0; i < N * D; i++) q[i] = (float)rng_normal(&r), k[i] = (float)rng_normal(&r);
    attn_desc d = attn_desc_new();
    d.batch = d.heads = d.kv_heads = 1, d.queries = d.keys = N, d.dim = D, d.causal = 1;
    d.q = attn_in_dense(q, ATTN_F32, 1, N, D), d.k = attn_in_dense(k, ATTN_F32, 1, N, D);
    attn_inspect_desc w = attn_inspect_desc_new();
    w.queries = chosen, w.query_count = ROWS, w.top = 1;
    w.entropy = attn_out_dense(entropy, ATTN_F64, 1, ROWS, 1), w.entropy.stride[3] = 0;
    w.top_key = attn_out_dense(key, ATTN_I64, 1, ROWS, 1);
    attn_error e;
    assert_int_equal(attn_inspect(&d, &w, &e), ATTN_OK);
    for (int row = 0; row < ROWS; row++) {
        double top = -INFINITY, total = 0, want = 0, size = 0, *s = malloc(N * sizeof *s);
        for (int64_t j = 0; j <= chosen[row]; j++) {
            double part = 0;
            s[j] = 0;
            for (int c = 0; c < D; c++) {
                double x = (double)q[chosen[row] * D + c] * k[j * D + c] / sqrt(D);
                s[j] += x, part += fabs(x);
            }
            size = fmax(size, part);
            if (s[j] > top) top = s[j];
        }
        for (int64_t j = 0; j <= chosen[row]; j++) total += exp(s[j] - top);
        for (int64_t j = 0; j <= chosen[row]; j++) want -= exp(s[j] - top) / total * (s[j] - top - log(total));
        assert_true(fabs(entropy[row] - want) <= tolerance(ATTN_F64, ATTN_F32, fmax(1, want), want, size));
        assert_true(fabs(s[key[row]] - top) <= tolerance(ATTN_F64, ATTN_F32, 1, top, size));
        free(s);
    }
    w = attn_inspect_desc_new();
    d.window = 1, d.window_left = 99, d.window_right = -1;
    w.received = attn_out_dense(received, ATTN_F64, 1, N, 1), w.received.stride[2] = 1, w.received.stride[3] = 0;
    w.map_mean = attn_out_dense(mean, ATTN_F64, 1, 30, 40), w.map_max = attn_out_dense(most, ATTN_F64, 1, 30, 40);
    w.map_rows = 30, w.map_columns = 40;
    size_t bytes;
    assert_int_equal(attn_inspect_work_bytes(&d, &w, &bytes, NULL), ATTN_OK);
    assert_true(bytes <= 64 + 4 * (48 * (D + 268) + 128 * D + 2 * 48 + 256) + 40 * 48 + 2368 + 3 * (8 * N + 16 * 30 * 40 + 64));
    assert_int_equal(attn_inspect(&d, &w, &e), ATTN_OK);
    for (int64_t j = 0; j < N; j++) sum += received[j];
    assert_true(fabs(sum - N) <= tolerance(ATTN_F64, ATTN_F32, N, N, 0));
    for (int c = 0; c < 30 * 40; c++) {
        const int64_t row = c / 40, column = c % 40, first = (row * N) / 30, end = (row + 1) * N / 30;
        const int     near = column * N / 40 < end && (column + 1) * N / 40 > first - 99; /* keys that some query of the row sees */
        assert_true(near ? most[c] > 0 && most[c] >= mean[c] : most[c] == 0 && mean[c] == 0);
    }
    free(q), free(k), free(received);
}

/* ---- the contract -------------------------------------------------------------------------------------------------------------------- */

/* The workspace is exact: nothing beside it is touched (random_looks), and one byte less is refused; the header's bound holds. */
static void workspace(void **state)
{
    (void)state;
    for (int64_t at = 0; at < test_count(300); at++) {
        rng         r = rng_make("workspace", at);
        struct look l;
        attn_error  e;
        size_t      bytes;
        look_make(&l, &r);
        for (int n = 0; attn_isa_name(n); n++) {
            if (!attn_isa_usable(n)) continue;
            l.d.isa = l.p.d.isa = attn_isa_name(n);
            assert_int_equal(attn_inspect_work_bytes(&l.d, &l.w, &bytes, NULL), ATTN_OK);
            const int     wide = l.d.q.dtype == ATTN_F64;
            const int64_t real = wide ? 8 : 4, most = !strncmp(l.d.isa, "avx512", 6) ? 48 : !strcmp(l.d.isa, "avx2") ? 24 : 16;
            const int64_t rows = !strcmp(l.d.isa, "scalar") ? 4 : most / (wide ? 2 : 1) > 8 ? most / (wide ? 2 : 1) : 8;
            const int64_t slots = l.d.executor ? l.d.executor->width : 1, D = (l.d.dim + 15) / 16 * 16, W = (rows + 15) / 16 * 16;
            const int64_t parts = (l.w.received.dtype ? 8 * l.keys : 0) + 16 * l.w.map_rows * l.w.map_columns + 64;
            const int64_t bound = 64 + slots * (real * (rows * (D + 268) + 128 * D + 2 * W * (l.w.top + 1) + 256) + 40 * rows + 2368) +
                                  (l.w.received.dtype || l.w.map_rows ? (2 * slots + 1) * parts : 0);
            assert_true((int64_t)bytes <= bound);
            if (!bytes) continue;
            l.w.work = malloc(bytes), l.w.work_bytes = bytes - 1;
            assert_int_equal(attn_inspect(&l.d, &l.w, &e), ATTN_E_WORK);
            char want[252];
            snprintf(want, sizeof want, "work_bytes is %zu, less than the %zu that attn_inspect_work_bytes() says", bytes - 1, bytes);
            assert_string_equal(e.message, want);
            for (int i = 0; i < OUTPUTS; i++) assert_false(l.out[i].memory.bytes && view_touched(&l.out[i]));
            free(l.w.work);
            l.w.work = NULL, l.w.work_bytes = 0;
        }
        look_free(&l);
    }
}

/* One change that makes a good call wrong, and what is said then. */
#define WRONG(status, sentence, ...)                                                                                                       \
    do {                                                                                                                                   \
        attn_desc         d = l.d;                                                                                                         \
        attn_inspect_desc w = l.w;                                                                                                         \
        attn_error        e;                                                                                                               \
        (void)d;                                                                                                                           \
        __VA_ARGS__;                                                                                                                       \
        assert_int_equal(attn_inspect(&d, &w, &e), status);                                                                                \
        assert_string_equal(e.message, sentence);                                                                                          \
        for (int i = 0; i < OUTPUTS; i++) assert_false(view_touched(&l.out[i]));                                                           \
    } while (0)
#define ARGUMENT(sentence, ...) WRONG(ATTN_E_ARGUMENT, sentence, __VA_ARGS__)

static void refusals(void **state)
{
    (void)state;
    rng           r = rng_make("refusals", 0);
    struct look   l;
    const int64_t list[3] = {0, 1, 5};
    full_make(&l, &r, ATTN_F32, 4, 2, 5, 6, 3);
    ARGUMENT("attn_inspect_desc.size is 8, less than the first version's 672; start from attn_inspect_desc_new()", w.size = 8);
    ARGUMENT("heads is -1, and must not be negative", d.heads = -1);
    ARGUMENT("head_count is 2 though the list is NULL, which means all", w.head_count = 2);
    ARGUMENT("query_count is -2, and must not be negative", w.query_count = -2);
    ARGUMENT("entry 2 of the list of head_count is 5, outside 0 to 3", w.heads = list, w.head_count = 3);
    ARGUMENT("entry 2 of the list of query_count is 5, outside 0 to 4", w.queries = list, w.query_count = 3);
    ARGUMENT("key_first is 7, outside 0 to keys = 6", w.key_first = 7);
    ARGUMENT("key_count is 5, outside 0 (all) to 4 (keys = 6 less key_first = 2)", w.key_first = 2, w.key_count = 5);
    ARGUMENT("values_stage is 4, and must be an ATTN_STAGE_ constant, 0 to 3", w.values_stage = 4);
    ARGUMENT("values_stage is 1 though values is not asked for", w.values = (attn_out){0}, w.values_stage = 1);
    ARGUMENT("top is 65, and must be from 1 to 64", w.top = 65);
    ARGUMENT("top is 0, and must be from 1 to 64", w.top = 0);
    ARGUMENT("top is 3 though neither top_weight nor top_key is asked for", w.top_weight = w.top_key = (attn_out){0});
    ARGUMENT("mass_left is -2, and must be -1 (no bound) or more", w.mass_left = -2);
    ARGUMENT("mass_right is -2, and must be -1 (no bound) or more", w.mass_right = -2);
    ARGUMENT("mass_left is 5 and mass_right is 0 though window_mass is not asked for", w.window_mass = (attn_out){0});
    ARGUMENT("align is not said: window_mass needs it, as batch entry 0 has 5 queries and 6 keys; choose align top-left, align "
             "bottom-right, or query_offset",
             d.align = 0);
    ARGUMENT("map_rows is 6, more than the 5 queries that there are to show", w.map_rows = 6);
    ARGUMENT("map_columns is 7, more than the 6 keys that there are to show", w.map_columns = 7);
    ARGUMENT("map_rows is 0, and must be from 1 to 65536", w.map_rows = 0);
    ARGUMENT("map_columns is 65537, and must be from 1 to 65536", w.map_columns = 65537);
    ARGUMENT("map_rows is 5 though neither map_mean nor map_max is asked for", w.map_mean = w.map_max = (attn_out){0});
    ARGUMENT("lse.dtype is f64 (2), and must be f32, to go with q", w.lse.dtype = ATTN_F64);
    ARGUMENT("entropy.dtype is f16 (3), and must be f32 or f64", w.entropy.dtype = ATTN_F16);
    ARGUMENT("top_key.dtype is f64 (2), and must be i64", w.top_key.dtype = ATTN_F64);
    ARGUMENT("received.data is NULL though received.dtype is set; an absent operand has both 0", w.received.data = NULL);
    ARGUMENT("entropy.stride[3] is 1, but entropy has no such axis: it must be 0", w.entropy.stride[3] = 1);
    ARGUMENT("map_max.stride[2] is 0, so that two elements of an output share a place; it must be more than 0", w.map_max.stride[2] = 0);
    ARGUMENT("first_mass spans 160 bytes, more than first_mass.bytes = 8", w.first_mass.bytes = 8);
    ARGUMENT("work is NULL though work_bytes is 9", w.work_bytes = 9);
    WRONG(ATTN_E_UNSUPPORTED, "keys is 4294967296, and top is for at most 2^32 keys", d.keys = (int64_t)1 << 32, d.k.stride[2] = 0);
    attn_error e;
    assert_int_equal(attn_inspect(&l.d, NULL, &e), ATTN_E_ARGUMENT);
    assert_string_equal(e.message, "attn_inspect_desc is NULL");
    assert_int_equal(attn_inspect_work_bytes(&l.d, &l.w, NULL, &e), ATTN_E_ARGUMENT);
    assert_string_equal(e.message, "bytes is NULL");
    struct { /* a caller of a later version */
        attn_inspect_desc w;
        int64_t           more;
    } newer = {l.w, 0};
    newer.w.size = sizeof newer;
    assert_int_equal(attn_inspect(&l.d, &newer.w, &e), ATTN_OK);
    newer.more = 1;
    assert_int_equal(attn_inspect(&l.d, &newer.w, &e), ATTN_E_TOO_NEW);
    look_free(&l);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_looks), cmocka_unit_test(out_of_values), cmocka_unit_test(bits_of_the_run), cmocka_unit_test(same_bits),
        cmocka_unit_test(nothing_seen), cmocka_unit_test(long_sequence), cmocka_unit_test(workspace),       cmocka_unit_test(refusals),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return isa_report() + cmocka_run_group_tests(tests, NULL, NULL);
}
