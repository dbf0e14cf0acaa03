/* test_skipping.c: keys that no query of a block sees are never read: their memory is taken away, and a read of it would be a fault.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

enum { MOST_QUERIES = 100 };

enum { TILE = 128, TILES = 24, KEYS = TILE * TILES };

static float weights[2 * MOST_QUERIES * KEYS];

/* K or V of which each tile of 128 keys fills whole pages. */
struct pages {
    char   *data;
    size_t  tile_bytes;
    int64_t dim;
};

static struct pages pages_make(rng *r)
{
    size_t       page = (size_t)sysconf(_SC_PAGESIZE);
    struct pages p = {NULL, page, (int64_t)(page / (TILE * sizeof(float)))};
    p.data = mmap(NULL, TILES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p.data != MAP_FAILED);
    for (int64_t at = 0; at < KEYS * p.dim; at++) element_set(p.data, ATTN_F32, at, rng_normal(r));
    return p;
}

static void protect(const struct pages *p, int64_t tile, int how)
{
    assert_int_equal(mprotect(p->data + (size_t)tile * p->tile_bytes, p->tile_bytes, how), 0);
}

/* Runs d twice, the second time without the memory of every tile that no query sees; the results must be the same. Returns how many tiles
 * were taken away. key_start must be a multiple of the tile. */
static int64_t run_without_unseen(attn_desc *d, const struct pages *k, const struct pages *v)
{
    reference want;
    int64_t   taken = 0;
    size_t    size = (size_t)(d->heads * d->queries * d->value_dim) * sizeof(float);
    reference_make(&want, d);
    for (int i = 0; attn_isa_name(i); i++) {
        if (!attn_isa_usable(i)) continue;
        d->isa = attn_isa_name(i);
        assert_int_equal(attn_run(d, NULL), ATTN_OK);
        assert_int_equal(compare_results(d, &want), 0);
        void *first = malloc(size + 1);
        memcpy(first, d->out.data, size);
        taken = 0;
        for (int64_t tile = 0; tile < TILES; tile++) {
            int seen = 0;
            for (int64_t row = 0; row < d->heads * d->queries; row++)
                for (int64_t j = tile * TILE; j < (tile + 1) * TILE && j < d->keys; j++) seen |= want.seen[row * d->keys + j];
            if (seen) continue;
            taken++;
            protect(k, tile, PROT_NONE), protect(v, tile, PROT_NONE);
        }
        report_faults(d);
        assert_int_equal(attn_run(d, NULL), ATTN_OK);
        attn_desc shown = *d; /* the weights, where asked for: what is not seen is 0 or -inf without a look at it */
        shown.weights = attn_out_dense(weights, ATTN_F32, d->heads, d->queries, d->keys);
        for (shown.weights_stage = 0; shown.weights_stage < 4; shown.weights_stage += ATTN_STAGE_BIASED)
            assert_int_equal(attn_run(&shown, NULL), ATTN_OK);
        report_faults(NULL);
        for (int64_t tile = 0; tile < TILES; tile++) protect(k, tile, PROT_READ | PROT_WRITE), protect(v, tile, PROT_READ | PROT_WRITE);
        assert_memory_equal(first, d->out.data, size);
        free(first);
    }
    reference_free(&want);
    return taken;
}

static attn_desc start(const float *q, const struct pages *k, const struct pages *v, float *out, int64_t queries)
{
    attn_desc d = attn_desc_new();
    d.batch = d.kv_heads = 1, d.heads = 2, d.queries = queries, d.keys = KEYS, d.dim = d.value_dim = k->dim;
    d.q = attn_in_dense(q, ATTN_F32, 2, queries, d.dim);
    d.k = attn_in_dense(k->data, ATTN_F32, 1, KEYS, d.dim);
    d.v = attn_in_dense(v->data, ATTN_F32, 1, KEYS, d.dim);
    d.out = attn_out_dense(out, ATTN_F32, 2, queries, d.dim);
    return d;
}

static struct pages k, v;
static float       *q, *out;

static int set_up(void **state)
{
    rng r = rng_make("skipping", 0);
    (void)state;
    k = pages_make(&r), v = pages_make(&r);
    q = malloc((size_t)(2 * MOST_QUERIES * k.dim) * sizeof *q), out = malloc((size_t)(2 * MOST_QUERIES * k.dim) * sizeof *out);
    for (int64_t at = 0; at < 2 * MOST_QUERIES * k.dim; at++) q[at] = (float)rng_normal(&r);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    munmap(k.data, TILES * k.tile_bytes), munmap(v.data, TILES * v.tile_bytes);
    free(q), free(out);
    return 0;
}

static void causal(void **state)
{
    (void)state;
    attn_desc d = start(q, &k, &v, out, MOST_QUERIES);
    d.causal = 1, d.align = ATTN_ALIGN_TOP_LEFT;
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES - 1);
    int64_t offset = 5 * TILE + 60;
    d.align = 0, d.query_offset = &offset;
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES - 7);
    offset = -MOST_QUERIES; /* every query stands before the first key */
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES);
}

static void windows(void **state)
{
    (void)state;
    attn_desc d = start(q, &k, &v, out, MOST_QUERIES);
    int64_t   offset = 9 * TILE + 10;
    d.query_offset = &offset;
    d.window = 1, d.window_left = 20, d.window_right = 5;
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES - 2);
    d.window_left = -1;
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES - 10);
    d.window_left = 0, d.window_right = -1;
    assert_int_equal(run_without_unseen(&d, &k, &v), 9);
    d.causal = 1, d.window_left = 130; /* crosses the chunk edge at 2048 further on */
    offset = 2048 - 40;
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES - 3);
    int64_t one = 1;
    d.query_count = &one;
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES - 2);
}

static void lengths(void **state)
{
    (void)state;
    attn_desc d = start(q, &k, &v, out, 7);
    int64_t   count = 3 * TILE, from = 4 * TILE, none = 0;
    d.key_count = &count;
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES - 3);
    d.key_start = &from;
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES - 3);
    count = TILE + 1;
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES - 2);
    d.query_count = &none; /* all queries are padding */
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES);
    d.query_count = NULL, count = 0;
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES);
}

/* Whole blocks under a boolean mask, or under a bias of -inf, each in several broadcast forms. */
static void masks(void **state)
{
    (void)state;
    rng r = rng_make("skipping masks", 0);
    for (int form = 0; form < 4; form++)
        for (int kind = 0; kind < 2; kind++) {
            view      mask;
            attn_desc d = start(q, &k, &v, out, 33);
            const int broadcast[4] = {1, form & 1, form >> 1, 0};
            view_make(&mask, &r, kind ? ATTN_F32 : ATTN_BOOL, (const int64_t[]){1, 2, 33, KEYS}, broadcast, VIEW_PLAIN, 0);
            for (int64_t h = 0; h < 2; h++)
                for (int64_t i = 0; i < 33; i++)
                    for (int64_t j = 0; j < KEYS; j++) {
                        int hide = j / TILE % 3 != 1 || (i + j) % 5 == 0;
                        view_set(&mask, 0, h, i, j, kind ? (hide ? -INFINITY : 0.1) : !hide);
                    }
            if (kind)
                d.bias = view_in(&mask);
            else
                d.allow = view_in(&mask);
            assert_int_equal(run_without_unseen(&d, &k, &v), TILES * 2 / 3);
            view_free(&mask);
        }
}

/* Rules that only together leave nothing of a tile: causal hides what a mask would show and the other way round. */
static void together(void **state)
{
    (void)state;
    rng       r = rng_make("skipping together", 0);
    view      mask;
    attn_desc d = start(q, &k, &v, out, MOST_QUERIES);
    int64_t   offset = 5 * TILE;
    view_make(&mask, &r, ATTN_BOOL, (const int64_t[]){1, 2, MOST_QUERIES, KEYS}, (const int[]){1, 1, 1, 0}, VIEW_PLAIN, 0);
    for (int64_t j = 0; j < KEYS; j++) view_set(&mask, 0, 0, 0, j, j / TILE == 2 || j / TILE >= 6);
    d.allow = view_in(&mask), d.causal = 1, d.query_offset = &offset;
    assert_int_equal(run_without_unseen(&d, &k, &v), TILES - 1);
    view_free(&mask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causal), cmocka_unit_test(windows), cmocka_unit_test(lengths), cmocka_unit_test(masks), cmocka_unit_test(together),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("skipping", tests, set_up, tear_down);
}
