/* test_kernels.c: every block kernel of kernels.inc against plain C bit for bit and against the formula in double.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "kernel.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const struct attn_kernel *const kernels[] = {
#define ATTN_KERNEL_ROW(symbol) &symbol,
#define ATTN_CONVERT_ROW(symbol)
#include "kernels.inc"
#undef ATTN_KERNEL_ROW
#undef ATTN_CONVERT_ROW
};

static int usable(const struct attn_kernel *k)
{
    for (int i = 0; attn_isa_name(i); i++)
        if (!strcmp(attn_isa_name(i), k->isa)) return attn_isa_usable(i);
    return 0;
}

static int32_t dtype_of(const struct attn_kernel *k)
{
    return k->real_bytes == 8 ? ATTN_F64 : ATTN_F32;
}

/* What queries, keys and values are in memory. */
static int32_t reads_of(const struct attn_kernel *k)
{
    return k->reads ? k->reads : dtype_of(k);
}

/* The row that promises k's bits and is last in the table: plain C, or, where products are of pairs, the row for few queries. */
static const struct attn_kernel *plain_of(const struct attn_kernel *k)
{
    int row = COUNT(kernels) - 1;
    while (kernels[row]->real_bytes != k->real_bytes || kernels[row]->reads != k->reads) row--;
    return kernels[row];
}

/* ---- one block, as numbers ------------------------------------------------------------------------------------------------------------ */

enum { PLAIN, EQUAL, HUGE, MINUS_INFINITE, TINY_VALUES, LARGE_VALUES, HIDDEN_NAN, KINDS };

struct block_case {
    int32_t dtype, reads;                                     /* of the arithmetic; of q, k and v */
    int kind, side, edited, bytes, ranged, with_slope, plain; /* bytes: of the edits only what hides, by attn_kernel.see where a row has it;
                                                                     plain: none of these, one tile, and what attn_kernel.whole needs besides */
    int64_t m, keys, dim, value_dim, k_gap, v_gap;
    double *q, *k, *v, *add, cap,
        factor;          /* [m][dim], times the factor in the kernels' domain, [keys][dim], [keys][value_dim], [m][keys] natural */
    unsigned char *seen; /* [m][keys] */
    double         slope[ATTN_ROWS_MAX], sink[ATTN_ROWS_MAX], position[ATTN_ROWS_MAX];
    int64_t        low[ATTN_ROWS_MAX], high[ATTN_ROWS_MAX]; /* keys seen by position, where ranged */
};

struct block_result {
    double *out, *lse, *weights, *sizes; /* [m][value_dim], [m], [m][keys], [m]: S of the tolerance */
};

static double *numbers(int64_t count)
{
    return calloc((size_t)count + 1, sizeof(double));
}

/* Every number as the kernel's arithmetic holds it. */
static double rounded(int32_t dtype, double x)
{
    unsigned char bytes[8];
    element_set(bytes, dtype, 0, x);
    return element_get(bytes, dtype, 0);
}

static void fill(double *to, int64_t count, int32_t dtype, rng *r, double spread)
{
    for (int64_t i = 0; i < count; i++) to[i] = rounded(dtype, spread * rng_normal(r));
}

static int sees(const struct block_case *c, int64_t i, int64_t j)
{
    return (!c->ranged || (j >= c->low[i] && j < c->high[i])) && (!c->edited || c->seen[i * c->keys + j]);
}

static void case_hide(struct block_case *c, rng *r)
{
    int64_t cut = rng_range(r, 0, c->keys), form = rng_range(r, 0, 4);
    c->seen = malloc((size_t)(c->m * c->keys) + 1);
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->keys; j++) {
            unsigned char *s = &c->seen[i * c->keys + j];
            *s = (unsigned char)(form == 0   ? 1
                                 : form == 1 ? rng_percent(r, 60)
                                 : form == 2 ? j <= cut + i
                                 : form == 3 ? j >= cut
                                             : i % 3 != 1);
        }
}

/* A key that nobody sees holds NaN or infinity. */
static void case_poison(struct block_case *c)
{
    for (int64_t j = 0; j < c->keys; j++) {
        int shown = 0;
        for (int64_t i = 0; i < c->m; i++) shown |= sees(c, i, j);
        for (int64_t at = 0; !shown && at < c->dim; at++) c->k[j * c->dim + at] = NAN;
        for (int64_t at = 0; !shown && at < c->value_dim; at++) c->v[j * c->value_dim + at] = j % 2 ? NAN : INFINITY;
    }
}

static void case_make(struct block_case *c, rng *r, const struct attn_kernel *kernel)
{
    static const double  factors[] = {1, 0.09, -3, 1.999};
    const int32_t        dtype = dtype_of(kernel), reads = reads_of(kernel);
    const int64_t        most_rows = kernel->rows;
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 31, 32, 33, 47, 48, 49, 127, 128, 129, 200, 255, 256, 257};
    static const int64_t widths[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 16, 17, 33, 64, 65, 100, 127, 128, 129, 200, 257};
    memset(c, 0, sizeof *c);
    c->dtype = dtype, c->reads = reads, c->factor = kernel->reads ? factors[rng_range(r, 0, COUNT(factors) - 1)] : 1;
    c->kind = (int)rng_range(r, 0, KINDS - 1), c->side = (int)rng_range(r, GUARD_BELOW, GUARD_ABOVE);
    c->keys = rng_percent(r, 3) ? rng_range(r, 2046, 2050) : rng_pick(r, sizes, COUNT(sizes));
    c->m = rng_percent(r, 50) ? rng_range(r, 1, most_rows) : most_rows - rng_range(r, 0, 1);
    c->dim = rng_pick(r, widths, COUNT(widths)), c->value_dim = rng_pick(r, widths, COUNT(widths));
    c->plain = rng_percent(r, 20);
    if (c->plain) c->keys = (c->keys - 1) % ATTN_TILE + 1, c->value_dim = 16 * rng_range(r, 1, 9);
    c->k_gap = rng_percent(r, 30) ? rng_range(r, 1, 3) : 0, c->v_gap = rng_percent(r, 30) ? rng_range(r, 1, 3) : 0;
    c->q = numbers(c->m * c->dim), c->k = numbers(c->keys * c->dim), c->v = numbers(c->keys * c->value_dim);
    if (c->kind != EQUAL) fill(c->q, c->m * c->dim, reads, r, (c->kind == HUGE ? 1e4 : 0.5) / fabs(c->factor));
    fill(c->k, c->keys * c->dim, reads, r, 1);
    /* below the smallest normal number, where the row does not take that for 0 */
    fill(c->v, c->keys * c->value_dim, reads, r, c->kind != TINY_VALUES ? 1 : kernel->reads ? 1e-35 : dtype == ATTN_F32 ? 1e-39 : 1e-310);
    for (int64_t j = 0; c->value_dim && j < c->keys; j++) /* the first channel does not cancel; see fill_values() */
        c->v[j * c->value_dim] = rounded(reads, c->v[j * c->value_dim] + (c->kind == TINY_VALUES ? 0 : 1));
    for (int64_t i = 0; c->kind == LARGE_VALUES && i < c->keys * c->value_dim; i++) c->v[i] = rounded(reads, 0.9 * element_max(reads));
    for (int64_t j = 0; c->kind == MINUS_INFINITE && c->dim && j < c->keys; j++)
        if (rng_percent(r, 50)) c->k[j * c->dim] = -INFINITY;
    for (int64_t i = 0; c->kind == MINUS_INFINITE && i < c->m && c->dim; i++)
        c->q[i * c->dim] = rounded(reads, (fabs(c->q[i * c->dim]) + 0.5) * (c->factor < 0 ? -1 : 1)); /* no +inf, no NaN */
    c->edited = !c->plain && rng_percent(r, 50);
    c->ranged = !c->plain && rng_percent(r, 50);
    if (c->edited) {
        case_hide(c, r);
        c->add = numbers(c->m * c->keys);
        c->bytes = rng_percent(r, 50);
        if (!c->bytes) fill(c->add, c->m * c->keys, dtype, r, 1);
    }
    int64_t width = rng_range(r, 0, c->keys), slant = rng_range(r, -3, 3);
    for (int64_t i = 0, from = rng_range(r, -9, c->keys); i < ATTN_ROWS_MAX; i++) {
        c->low[i] = from + slant * i, c->high[i] = c->low[i] + width;
        if (rng_percent(r, 3)) c->high[i] = c->low[i];
    }
    if (c->edited && c->ranged &&
        rng_percent(r, 40)) /* the first key that a row sees, which makes its reference, is near the last that it may see */
        for (int64_t i = 0; i < c->m; i++) {
            const int64_t last = c->high[i] < c->keys ? c->high[i] : c->keys;
            for (int64_t j = 0; j < last - i % 9; j++) c->seen[i * c->keys + j] = 0;
        }
    if (c->kind == HIDDEN_NAN) case_poison(c);
    if (!c->plain && rng_percent(r, 25)) c->cap = (rng_percent(r, 50) ? 1 : 20) * (0.5 + rng_unit(r));
    c->with_slope = !c->plain && rng_percent(r, 25);
    for (int64_t i = 0; i < ATTN_ROWS_MAX; i++) {
        c->slope[i] = rounded(dtype, 0.1 * rng_normal(r));
        c->position[i] = (double)rng_range(r, -20, c->keys + 20);
        c->sink[i] = c->plain || rng_percent(r, 50) ? -INFINITY : rounded(dtype, rng_normal(r));
    }
}

static void case_free(struct block_case *c)
{
    free(c->q), free(c->k), free(c->v), free(c->add), free(c->seen);
}

static struct block_result result_make(const struct block_case *c)
{
    struct block_result r = {numbers(c->m * c->value_dim), numbers(c->m), numbers(c->m * c->keys), numbers(c->m)};
    return r;
}

static void result_free(struct block_result *r)
{
    free(r->out), free(r->lse), free(r->weights), free(r->sizes);
}

/* The formula of attn.h for one block, in double. */
static void reference_block(const struct block_case *c, struct block_result *r)
{
    for (int64_t i = 0; i < c->m; i++) {
        double *s = r->weights + i * c->keys, top = c->sink[i], sum;
        for (int64_t j = 0; j < c->keys; j++) {
            double x = 0, size = 0, away = fabs(c->position[i] - (double)j);
            for (int64_t at = 0; at < c->dim; at++)
                x += c->q[i * c->dim + at] * c->k[j * c->dim + at], size += fabs(c->q[i * c->dim + at] * c->k[j * c->dim + at]);
            x *= c->factor * ATTN_NATURAL, size *= fabs(c->factor) * ATTN_NATURAL;
            if (c->cap > 0) x = c->cap * tanh(x / c->cap);
            if (c->add) x += c->add[i * c->keys + j], size += fabs(c->add[i * c->keys + j]);
            if (c->with_slope) x -= c->slope[i] * away, size += fabs(c->slope[i] * away);
            s[j] = sees(c, i, j) ? x : -INFINITY;
            if (s[j] > top) top = s[j];
            if (s[j] != -INFINITY && isfinite(size) && size > r->sizes[i]) r->sizes[i] = size;
        }
        sum = c->sink[i] == -INFINITY ? 0 : exp(c->sink[i] - top);
        for (int64_t j = 0; j < c->keys; j++) sum += s[j] = s[j] == -INFINITY ? 0 : exp(s[j] - top);
        for (int64_t j = 0; j < c->keys; j++) {
            if (s[j] == 0) continue;
            s[j] /= sum;
            for (int64_t at = 0; at < c->value_dim; at++) r->out[i * c->value_dim + at] += s[j] * c->v[j * c->value_dim + at];
        }
        r->lse[i] = top == -INFINITY ? top : top + log(sum);
    }
}

/* Where a row keeps things: [thing][row], or [row][thing] with rows of `wide` things in those for few queries. */
static int64_t place(const struct attn_kernel *k, int64_t row, int64_t thing, int64_t wide)
{
    return strstr(k->name, "_few") ? row * wide + thing : thing * k->rows + row;
}

static int64_t wide_of(int64_t n)
{
    return (n + 15) / 16 * 16;
}

/* ---- the same through a kernel --------------------------------------------------------------------------------------------------------- */

enum { Q, S, O0, TOP0, SUM0, O1, TOP1, SUM1, SLOPE, NEAR, SHIFT, SINK, LOW, HIGH, EDIT, K, V, PACK, LSE, ARRAYS };

struct bench {
    const struct attn_kernel *kernel;
    const struct block_case  *c;
    guarded                   a[ARRAYS];
    struct attn_block         block;
    struct attn_ahead         ahead;
    struct attn_part          part[2];
    struct attn_pack          pack;
};

static void put(struct bench *t, int array, int64_t at, double x)
{
    element_set(t->a[array].bytes, array == K || array == V ? t->c->reads : t->c->dtype, at, x);
}

static double get(const struct bench *t, int array, int64_t at)
{
    return element_get(t->a[array].bytes, t->c->dtype, at);
}

/* The queries into the row's layout, by its own function. */
static void queries_load(struct bench *t)
{
    const struct block_case *c = t->c;
    guarded                  lines;
    int64_t                  line = ATTN_TILE * (int64_t)element_bytes(c->reads);
    const void              *rows[ATTN_ROWS_MAX];
    for (int64_t first = 0; first < c->dim; first += ATTN_TILE) {
        int64_t n = c->dim - first < ATTN_TILE ? c->dim - first : ATTN_TILE;
        guarded_make(&lines, (size_t)(c->m * line), c->side, 0);
        for (int64_t i = 0; i < c->m; i++) {
            rows[i] = lines.bytes + i * line;
            for (int64_t at = 0; at < n; at++) element_set(lines.bytes + i * line, c->reads, at, c->q[i * c->dim + first + at]);
        }
        t->kernel->load(&t->block, t->a[Q].bytes, first, n, rows, c->factor);
        guarded_free(&lines);
    }
}

static void bench_make(struct bench *t, const struct attn_kernel *kernel, const struct block_case *c)
{
    int64_t       rows = kernel->rows, few = strstr(kernel->name, "_few") != NULL, tile = c->keys < ATTN_TILE && !few ? c->keys : ATTN_TILE;
    int64_t       dim = few ? wide_of(c->dim) : c->dim, value_dim = few ? wide_of(c->value_dim) : c->value_dim;
    const int64_t size[ARRAYS] = {[Q] = dim * rows,
                                  [S] = tile * rows,
                                  [O0] = value_dim * rows,
                                  [O1] = value_dim * rows,
                                  [TOP0] = rows,
                                  [SUM0] = rows,
                                  [TOP1] = rows,
                                  [SUM1] = rows,
                                  [SLOPE] = rows,
                                  [NEAR] = rows,
                                  [SHIFT] = rows,
                                  [SINK] = rows,
                                  [LOW] = rows,
                                  [HIGH] = rows,
                                  [EDIT] = ATTN_TILE * rows,
                                  [K] = c->keys ? (c->keys - 1) * (c->dim + c->k_gap) + c->dim : 0,
                                  [V] = c->keys ? (c->keys - 1) * (c->value_dim + c->v_gap) + c->value_dim : 0,
                                  [PACK] = kernel->reads ? ATTN_TILE * wide_of(c->value_dim) : 0,
                                  [LSE] = c->m};
    memset(t, 0, sizeof *t);
    t->kernel = kernel, t->c = c;
    for (int i = 0; i < ARRAYS; i++) {
        int elements = i == K || i == V || i == PACK;
        guarded_make(&t->a[i], (size_t)size[i] * (i == LSE ? 8 : element_bytes(elements ? c->reads : c->dtype)), c->side, 0xFF);
    }
    for (int64_t j = 0; j < c->keys; j++) {
        for (int64_t at = 0; at < c->dim; at++) put(t, K, j * (c->dim + c->k_gap) + at, c->k[j * c->dim + at]);
        for (int64_t at = 0; at < c->value_dim; at++) put(t, V, j * (c->value_dim + c->v_gap) + at, c->v[j * c->value_dim + at]);
    }
    for (int64_t i = 0; i < rows; i++) {
        put(t, SLOPE, i, i < c->m ? c->slope[i] * ATTN_DOMAIN : 0);
        put(t, SINK, i, i < c->m ? c->sink[i] : -INFINITY);
        put(t, SHIFT, i, 0);
    }
    t->part[0] = (struct attn_part){t->a[O0].bytes, t->a[TOP0].bytes, t->a[SUM0].bytes};
    t->part[1] = (struct attn_part){t->a[O1].bytes, t->a[TOP1].bytes, t->a[SUM1].bytes};
    t->block = (struct attn_block){.m = c->m,
                                   .dim = c->dim,
                                   .value_dim = c->value_dim,
                                   .q = t->a[Q].bytes,
                                   .s = t->a[S].bytes,
                                   .part = t->part[0],
                                   .slope = c->with_slope ? t->a[SLOPE].bytes : NULL,
                                   .near = t->a[NEAR].bytes,
                                   .shift = t->a[SHIFT].bytes,
                                   .cap = c->cap * ATTN_DOMAIN,
                                   .factor = c->factor,
                                   .ahead = &t->ahead};
    /* what is fetched is of no matter to the results */
    t->ahead = (struct attn_ahead){.now = &t->ahead.list[ATTN_SOON_QUERIES]};
    t->ahead.list[ATTN_SOON_QUERIES] = (struct attn_soon){(uintptr_t)t, 64, 100, 7, &t->ahead.list[ATTN_SOON_NOTHING]};
    t->ahead.list[ATTN_SOON_NOTHING] = (struct attn_soon){(uintptr_t)t, 0, 1, INT64_MAX, NULL};
    queries_load(t);
}

static int64_t bench_broken(struct bench *t)
{
    static const char *const names[ARRAYS] = {"q",     "s",    "o",   "top",  "sum",  "o 1", "top 1", "sum 1", "slope", "near",
                                              "shift", "sink", "low", "high", "edit", "k",   "v",     "pack",  "lse"};
    int64_t                  bad = 0;
    for (int i = 0; i < ARRAYS; i++) {
        const char *side = guarded_broken(&t->a[i]);
        if (side) fprintf(stderr, "  %s wrote %s of %s\n", t->kernel->name, side, names[i]);
        bad += side != NULL;
        guarded_free(&t->a[i]);
    }
    return bad;
}

/* The tile's edit entries, or bytes, by way of the row's own function, from lines of ATTN_TILE entries. */
static void edit_make(struct bench *t, struct attn_tile *tile, int64_t first)
{
    const int64_t            keys = tile->keys;
    const struct block_case *c = t->c;
    unsigned char            seen[ATTN_ROWS_MAX][ATTN_TILE];
    const unsigned char     *seen_rows[ATTN_ROWS_MAX];
    const void              *add_rows[ATTN_ROWS_MAX];
    guarded                  lines;
    int64_t                  line = ATTN_TILE * t->kernel->real_bytes;
    guarded_make(&lines, (size_t)(c->m * line), c->side, 0xFF);
    memset(seen, 1, sizeof seen);
    for (int64_t i = 0; i < c->m; i++) {
        for (int64_t j = 0; j < keys; j++) {
            element_set(lines.bytes + i * line, c->dtype, j, c->add[i * c->keys + first + j]);
            seen[i][j] = c->seen[i * c->keys + first + j];
        }
        seen_rows[i] = seen[i], add_rows[i] = lines.bytes + i * line;
    }
    if (c->bytes && t->kernel->see) {
        t->kernel->see(t->a[EDIT].bytes, c->m, keys, seen_rows);
        tile->seen = t->a[EDIT].bytes;
    } else {
        t->kernel->edit(t->a[EDIT].bytes, c->m, keys, seen_rows, add_rows);
        tile->edit = t->a[EDIT].bytes;
    }
    guarded_free(&lines);
}

static int64_t within(int64_t x, int64_t most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

static struct attn_tile tile_make(struct bench *t, int64_t first)
{
    const struct block_case *c = t->c;
    int64_t                  rows = t->kernel->rows, keys = c->keys - first < ATTN_TILE ? c->keys - first : ATTN_TILE;
    t->pack = (struct attn_pack){.at = t->a[PACK].bytes};
    struct attn_tile tile = {.keys = keys, .k_step = c->dim + c->k_gap, .v_step = c->value_dim + c->v_gap, .pack = &t->pack};
    tile.k = t->a[K].bytes + first * tile.k_step * (int64_t)element_bytes(c->reads);
    tile.v = t->a[V].bytes + first * tile.v_step * (int64_t)element_bytes(c->reads);
    for (int64_t i = 0; i < rows; i++) {
        put(t, NEAR, i, i < c->m ? c->position[i] - (double)first : 0);
        const int64_t row = i < c->m ? i : c->m - 1;
        put(t, LOW, i, (double)within(c->low[row] - first, keys));
        put(t, HIGH, i, (double)within(c->high[row] - first, keys));
    }
    if (c->ranged) tile.low = t->a[LOW].bytes, tile.high = t->a[HIGH].bytes;
    if (c->edited) edit_make(t, &tile, first);
    return tile;
}

static void walk(struct bench *t)
{
    const struct attn_kernel *k = t->kernel;
    t->block.part = t->part[0];
    k->begin(&t->block, &t->block.part);
    for (int64_t first = 0, folds = 0; first < t->c->keys; first += ATTN_TILE) {
        struct attn_tile tile = tile_make(t, first);
        k->step(&t->block, &tile);
        int last = first + ATTN_TILE >= t->c->keys;
        if ((first + ATTN_TILE) % ATTN_CHUNK != 0 && !last) continue;
        if (folds++) k->fold(&t->block, &t->part[0]);
        t->block.part = t->part[1];
        if (!last) k->begin(&t->block, &t->block.part);
    }
    t->block.part = t->part[0];
}

/* A block of one tile at once gives the same bits as step by step. Returns how many it does not. */
static int64_t whole_differs(struct bench *t, const struct block_result *r)
{
    const struct block_case *c = t->c;
    const int64_t            step = c->value_dim + 3;
    struct attn_tile         tile = tile_make(t, 0);
    guarded                  out;
    int64_t                  bad = 0;
    if (!t->kernel->whole || !c->plain) return 0;
    guarded_make(&out, (size_t)(((c->m - 1) * step + c->value_dim) * t->kernel->real_bytes), c->side, 0xA5);
    t->block.shifted = 0;
    if (t->kernel->whole(&t->block, &tile, out.bytes, step))
        for (int64_t i = 0; i < c->m; i++)
            for (int64_t at = 0; at < c->value_dim; at++) {
                const double want = r->out[i * c->value_dim + at], got = element_get(out.bytes, c->dtype, i * step + at);
                bad += isnan(want) ? !isnan(got) : want != got || signbit(want) != signbit(got);
            }
    if (bad) fprintf(stderr, "  %s: %" PRId64 " results of a whole block differ\n", t->kernel->name, bad);
    bad += guarded_broken(&out) != NULL;
    guarded_free(&out);
    return bad;
}

/* Returns faults at the guards. */
static int64_t kernel_block(const struct attn_kernel *k, const struct block_case *c, struct block_result *r)
{
    struct bench t;
    bench_make(&t, k, c);
    int rounds = 0;
    do {
        walk(&t);
        t.block.shifted = 1; /* for the next round, if there is one */
    } while (k->finish(&t.block, t.a[SINK].bytes, t.a[SHIFT].bytes, (double *)(void *)t.a[LSE].bytes) && ++rounds < 3);
    assert_true(rounds < 3);
    for (int64_t i = 0; i < c->m; i++) {
        r->lse[i] = element_get(t.a[LSE].bytes, ATTN_F64, i);
        for (int64_t at = 0; at < c->value_dim; at++) r->out[i * c->value_dim + at] = get(&t, O0, place(k, i, at, wide_of(c->value_dim)));
    }
    for (int64_t first = 0; first < c->keys; first += ATTN_TILE) {
        struct attn_tile tile = tile_make(&t, first);
        k->scores(&t.block, &tile, ATTN_UPTO_WEIGHT);
        k->weights(&t.block, tile.keys, ATTN_UPTO_WEIGHT);
        for (int64_t i = 0; i < c->m; i++)
            for (int64_t j = 0; j < tile.keys; j++) r->weights[i * c->keys + first + j] = get(&t, S, place(k, i, j, ATTN_TILE));
    }
    const int64_t bad = whole_differs(&t, r);
    return bad + bench_broken(&t);
}

static double largest_of(const double *x, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(x[i]) && fabs(x[i]) > largest) largest = fabs(x[i]);
    return largest;
}

/* flushed: what a weight below the smallest normal number, which may be 0, is worth */
static int64_t compare(const char *what, int32_t dtype, const double *got, const double *want, const double *sizes, int64_t m, int64_t n,
                       double flushed)
{
    int64_t bad = 0;
    double  largest = strcmp(what, "lse") ? largest_of(want, m * n) : fmax(1, largest_of(want, m));
    for (int64_t i = 0; i < m * n; i++) {
        double allowed = tolerance(dtype, dtype, largest, want[i], sizes[i / n]) + flushed;
        if (isnan(want[i]) ? isnan(got[i]) : isinf(want[i]) ? got[i] == want[i] : fabs(got[i] - want[i]) <= allowed) continue;
        if (bad++ < 3)
            fprintf(stderr, "  %s[%" PRId64 "][%" PRId64 "]: want %.17g got %.17g allowed %.3g\n", what, i / n, i % n, want[i], got[i],
                    allowed);
    }
    return bad;
}

static int64_t other_bits(const char *what, const double *a, const double *b, int64_t count)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(a[i]) ? isnan(b[i]) : a[i] == b[i] && signbit(a[i]) == signbit(b[i])) continue;
        if (bad++ < 3) fprintf(stderr, "  %s[%" PRId64 "]: the last row has %.17g, this row %.17g\n", what, i, a[i], b[i]);
    }
    return bad;
}

/* Every row against the formula, and against the last row of the same arithmetic: they promise each other's bits. */
static void rows_compute_the_formula(void **state)
{
    (void)state;
    int64_t failed = 0;
    for (int64_t at = 0; at < test_count(900) && failed < 3; at++) {
        if (!test_case_wanted(at)) continue;
        rng                       r = rng_make("kernels", at);
        struct block_case         c;
        int64_t                   bad = 0;
        int                       row = (int)rng_range(&r, 0, COUNT(kernels) - 1);
        const struct attn_kernel *plain = plain_of(kernels[row]);
        if (!usable(kernels[row])) continue;
        case_make(&c, &r, kernels[row]);
        struct block_result want = result_make(&c), got = result_make(&c), base = result_make(&c);
        reference_block(&c, &want);
        bad += kernel_block(kernels[row], &c, &got);
        bad += compare("out", c.reads, got.out, want.out, want.sizes, c.m, c.value_dim,
                       (c.dtype == ATTN_F64 ? DBL_MIN : FLT_MIN) * largest_of(c.v, c.keys * c.value_dim));
        bad += compare("lse", c.dtype, got.lse, want.lse, want.sizes, c.m, 1, 0);
        bad += compare("weights", c.dtype, got.weights, want.weights, want.sizes, c.m, c.keys, 0);
        /* it has fewer rows: block by block */
        for (int64_t from = 0; from < c.m; from += plain->rows) {
            struct block_case part = c;
            part.m = c.m - from < plain->rows ? c.m - from : plain->rows;
            part.q += from * c.dim;
            if (c.add) part.add += from * c.keys;
            if (c.seen) part.seen += from * c.keys;
            memmove(part.slope, c.slope + from, (size_t)part.m * sizeof(double)),
                memmove(part.position, c.position + from, (size_t)part.m * sizeof(double));
            memmove(part.sink, c.sink + from, (size_t)part.m * sizeof(double));
            memmove(part.low, c.low + from, (size_t)part.m * sizeof part.low[0]),
                memmove(part.high, c.high + from, (size_t)part.m * sizeof part.high[0]);
            struct block_result piece = {base.out + from * c.value_dim, base.lse + from, base.weights + from * c.keys, NULL};
            bad += kernel_block(plain, &part, &piece);
        }
        bad += other_bits("out", base.out, got.out, c.m * c.value_dim) + other_bits("lse", base.lse, got.lse, c.m) +
               other_bits("weights", base.weights, got.weights, c.m * c.keys);
        if (bad)
            fprintf(stderr,
                    "%s: ATTN_SEED=%" PRIu64 " ATTN_CASE=%" PRId64 ": kind %d m %" PRId64 " keys %" PRId64 " dim %" PRId64
                    " value_dim %" PRId64 " edited %d bytes %d ranged %d cap %g slope %d\n",
                    kernels[row]->name, test_seed(), at, c.kind, c.m, c.keys, c.dim, c.value_dim, c.edited, c.bytes, c.ranged, c.cap,
                    c.with_slope);
        failed += bad != 0;
        result_free(&want), result_free(&got), result_free(&base);
        case_free(&c);
    }
    assert_int_equal(failed, 0);
}

/* The edit tile: natural numbers into the domain, -inf where not seen; nothing beyond the tile. */
static void edit_tiles(void **state)
{
    (void)state;
    for (int row = 0; row < COUNT(kernels); row++) {
        const struct attn_kernel *k = kernels[row];
        int32_t                   dtype = dtype_of(k);
        if (!usable(k)) continue;
        for (int64_t keys = 1; keys <= ATTN_TILE; keys++) {
            rng                  r = rng_make("edit", row * 1000 + keys);
            unsigned char        seen[ATTN_ROWS_MAX][ATTN_TILE];
            const unsigned char *seen_rows[ATTN_ROWS_MAX];
            const void          *add_rows[ATTN_ROWS_MAX];
            guarded              edit, add;
            int64_t              m = rng_range(&r, 1, k->rows), some = rng_percent(&r, 70), added = !some || rng_percent(&r, 60),
                    line = ATTN_TILE * k->real_bytes;
            guarded_make(&edit, (size_t)(ATTN_TILE * k->rows * k->real_bytes), GUARD_ABOVE, 0xA5);
            guarded_make(&add, (size_t)(m * line), GUARD_ABOVE, 0);
            for (int64_t i = 0; i < m; i++) {
                for (int64_t j = 0; j < ATTN_TILE; j++) {
                    seen[i][j] = (unsigned char)rng_pick(&r, (const int64_t[]){0, 1, 7, 128, 255}, 5);
                    element_set(add.bytes + i * line, dtype, j,
                                rng_percent(&r, 10)   ? -INFINITY
                                : rng_percent(&r, 10) ? -element_max(dtype)
                                                      : rng_normal(&r));
                }
                seen_rows[i] = seen[i], add_rows[i] = add.bytes + i * line;
            }
            k->edit(edit.bytes, m, keys, some ? seen_rows : NULL, added ? add_rows : NULL);
            for (int64_t j = 0; j < keys; j++)
                for (int64_t i = 0; i < m; i++) {
                    double got = element_get(edit.bytes, dtype, place(k, i, j, ATTN_TILE)),
                           x = added ? element_get(add_rows[i], dtype, j) : 0;
                    double want = some && !seen[i][j] ? -INFINITY
                                  : dtype == ATTN_F32 ? (double)((float)x * (float)ATTN_DOMAIN)
                                                      : x * ATTN_DOMAIN;
                    assert_true(got == want);
                }
            assert_null(guarded_broken(&edit));
            guarded_free(&edit), guarded_free(&add);
        }
    }
}

/* Rows that read elements of 16 bits keep queries in pairs of channels, and leave a factor from 1 to 2 to the scores: the rest is a power of two. */
static double query_of(const struct attn_kernel *k, const void *q, int64_t row, int64_t channel, int64_t n)
{
    if (!k->reads) return element_get(q, dtype_of(k), place(k, row, channel, wide_of(n)));
    return element_get(q, k->reads,
                       strstr(k->name, "_few") ? row * ((n + 31) / 32 * 32) + channel : (channel / 2 * k->rows + row) * 2 + channel % 2);
}

static double power_of(double factor)
{
    return factor == 0 ? 0 : copysign(exp2(floor(log2(fabs(factor)))), factor);
}

/* Queries in, results out: transposed, scaled and rounded once, finite numbers staying finite; equal on every row. */
static void transpositions(void **state)
{
    (void)state;
    static const double factors[] = {0.72, -0.1, 0, 1e-17, 1e18, -3, 1, 1e-9}; /* beyond 2^60, exec.c multiplies */
    for (int row = 0; row < COUNT(kernels); row++) {
        const struct attn_kernel *k = kernels[row];
        int32_t                   dtype = dtype_of(k);
        if (!usable(k)) continue;
        for (int at = 0; at < 300; at++) {
            rng         r = rng_make("transpose", row * 1000 + at);
            int32_t     reads = reads_of(k);
            int64_t     m = rng_range(&r, 1, k->rows), n = rng_range(&r, 1, ATTN_TILE), width = (n + 15) / 16 * 16;
            int64_t     step = rng_range(&r, width, ATTN_TILE);
            double      factor = factors[at % COUNT(factors)];
            guarded     lines, q, out;
            const void *line[ATTN_ROWS_MAX];
            int64_t     line_bytes = (reads == dtype ? width : n) * (int64_t)element_bytes(reads);
            guarded_make(&lines, (size_t)(m * line_bytes), GUARD_ABOVE, 0xFF);
            guarded_make(&q, (size_t)((strstr(k->name, "_few") ? width : n) * k->rows * k->real_bytes), GUARD_ABOVE, 0xFF);
            guarded_make(&out, (size_t)(((m - 1) * step + width) * k->real_bytes), GUARD_ABOVE, 0xFF);
            for (int64_t i = 0; i < m; i++) {
                line[i] = lines.bytes + i * line_bytes;
                for (int64_t c = 0; c < n; c++)
                    element_set((void *)(uintptr_t)line[i], reads, c, rng_percent(&r, 2) ? (c % 2 ? NAN : INFINITY) : rng_normal(&r));
            }
            const struct attn_block block = {.m = m, .dim = n, .value_dim = n};
            k->load(&block, q.bytes, 0, n, line, factor);
            for (int64_t i = 0; i < m; i++)
                for (int64_t c = 0; c < n; c++) {
                    double x = element_get(line[i], reads, c), got = query_of(k, q.bytes, i, c, n);
                    double want = rounded(reads, x * (k->reads ? power_of(factor) : factor));
                    if (isfinite(x) && isinf(want)) want = copysign(element_max(reads), want);
                    double up = reads == ATTN_F32 ? (double)nextafterf((float)want, INFINITY) : want,
                           down = reads == ATTN_F32 ? (double)nextafterf((float)want, -INFINITY) : want;
                    assert_true(isnan(want) ? isnan(got) : got == want || (got >= down && got <= up && isfinite(want)));
                }
            for (int64_t i = 0; i < m; i++)
                for (int64_t c = 0; c < n; c++) element_set(q.bytes, dtype, place(k, i, c, width), (double)(c * k->rows + i));
            k->unload(&block, out.bytes, step, q.bytes, n, 0, n);
            for (int64_t i = 0; i < m; i++)
                for (int64_t c = 0; c < n; c++) assert_true(element_get(out.bytes, dtype, i * step + c) == (double)(c * k->rows + i));
            assert_null(guarded_broken(&q));
            assert_null(guarded_broken(&out));
            guarded_free(&lines), guarded_free(&q), guarded_free(&out);
        }
    }
}

/* Each upper half of a float with lower halves about every place where rounding turns: as attn_convert does it. */
static void narrowing(void **state)
{
    (void)state;
    static const uint32_t            lower[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xf001, 0xffff};
    const struct attn_convert *const converts[] = {&attn_convert_f16, &attn_convert_bf16};
    for (int row = 0; row < COUNT(kernels); row++)
        for (int type = 0; usable(kernels[row]) && kernels[row]->narrow && type < 2; type++) {
            float    x[16 * COUNT(lower)];
            uint16_t want[COUNT(x)];
            guarded  got;
            guarded_make(&got, sizeof want, GUARD_ABOVE, 0xFF);
            for (uint32_t upper = 0; upper < 65536; upper += 16) {
                const int64_t n = COUNT(x) - upper / 16 % 16;
                uint16_t     *to = (uint16_t *)(void *)got.bytes + COUNT(x) - n;
                for (int64_t i = 0; i < n; i++) {
                    const uint32_t bits = (upper + (uint32_t)i / COUNT(lower)) << 16 | lower[i % COUNT(lower)];
                    memcpy(&x[i], &bits, sizeof bits);
                }
                converts[type]->store_f32(want, 1, x, n);
                kernels[row]->narrow(to, x, n, type ? ATTN_READ_BF16 : ATTN_READ_F16);
                assert_memory_equal(to, want, (size_t)n * sizeof want[0]);
            }
            assert_null(guarded_broken(&got));
            guarded_free(&got);
        }
}

static void rows_expected_here_are_here(void **state)
{
    (void)state;
    assert_int_equal(isa_report(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_expected_here_are_here),
        cmocka_unit_test(rows_compute_the_formula),
        cmocka_unit_test(edit_tiles),
        cmocka_unit_test(transpositions),
        cmocka_unit_test(narrowing),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
