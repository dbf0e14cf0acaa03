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
    for (int64_t at = 0; at < test_count(1500); at++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_looks),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return isa_report() + cmocka_run_group_tests(tests, NULL, NULL);
}
