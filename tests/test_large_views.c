/* test_large_views.c: views of more than 2^31 elements, and more than 2^31 keys, over sparse memory of which a few pages are ever touched.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <cmocka.h>

/* Address space without memory behind it: pages come into being when they are touched. */
static char *sparse(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED) return p;
    print_message("skipped: no %zu bytes of address space\n", bytes);
    skip();
    return NULL;
}

static int64_t check_each_isa(attn_desc *d)
{
    reference want;
    int64_t   bad = 0;
    reference_make(&want, d);
    for (int i = 0; attn_isa_name(i); i++) {
        if (!attn_isa_usable(i)) continue;
        d->isa = attn_isa_name(i);
        report_faults(d);
        assert_int_equal(attn_run(d, NULL), ATTN_OK);
        report_faults(NULL);
        bad += compare_results(d, &want);
    }
    reference_free(&want);
    return bad;
}

static void write_all(char *base, int32_t dtype, const int64_t shape[4], const int64_t stride[4], rng *r)
{
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t i = 0; i < shape[2]; i++)
                for (int64_t c = 0; c < shape[3]; c++)
                    element_set(base, dtype, b * stride[0] + h * stride[1] + i * stride[2] + c * stride[3],
                                dtype == ATTN_BOOL ? (double)rng_percent(r, 70) : rng_normal(r));
}

/* Every operand spans more than 2^31 elements along the axis given: q, k, v, out, allow, bias, lse, weights, upwards and downwards. */
static void far_apart(int axis, int down, int32_t dtype)
{
    rng           r = rng_make("far apart", axis * 2 + down);
    const int64_t far = (INT64_C(1) << 31) + 12345, size[4] = {2, 2, 2, 3};
    size_t        width = element_bytes(dtype), room = ((size_t)far + 4096) * width * 2;
    int64_t       step[4] = {12, 6, 3, 1};
    step[axis] = down ? -far : far;
    char *memory[8];
    for (int m = 0; m < 8; m++) memory[m] = sparse(room * 4);
    attn_desc d = attn_desc_new();
    d.batch = d.heads = d.kv_heads = d.queries = 2, d.keys = d.dim = d.value_dim = 3;
    /* the middle of each area is element 0, so that both directions fit */
    char *at[8];
    for (int m = 0; m < 8; m++) at[m] = memory[m] + room * 2;
    const int64_t keys[4] = {2, 2, 3, 3};
    const int64_t key_step[4] = {axis == 0 ? step[0] : 18, axis == 1 ? step[1] : 9, axis == 2 ? (down ? -far / 2 : far / 2) : 3,
                                 axis == 3 ? (down ? -far / 2 : far / 2) : 1};
    int64_t q_step[4] = {step[0], step[1], step[2], axis == 3 ? (down ? -far / 2 : far / 2) : 1};
    write_all(at[0], dtype, size, q_step, &r), write_all(at[1], dtype, keys, key_step, &r), write_all(at[2], dtype, keys, key_step, &r);
    write_all(at[3], ATTN_BOOL, size, q_step, &r), write_all(at[4], dtype, size, q_step, &r);
    d.q = attn_in_strided(at[0], dtype, q_step), d.k = attn_in_strided(at[1], dtype, key_step),
    d.v = attn_in_strided(at[2], dtype, key_step);
    d.allow = attn_in_strided(at[3], ATTN_BOOL, q_step), d.bias = attn_in_strided(at[4], dtype, q_step);
    d.out = attn_out_strided(at[5], dtype, q_step), d.weights = attn_out_strided(at[6], dtype, q_step);
    const int64_t lse_step[4] = {q_step[0], q_step[1], q_step[2], 0};
    d.lse = attn_out_strided(at[7], dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, lse_step);
    int64_t bad = check_each_isa(&d);
    for (int m = 0; m < 8; m++) munmap(memory[m], room * 4);
    assert_int_equal(bad, 0);
}

static void strides_beyond_31_bits(void **state)
{
    (void)state;
    for (int axis = 0; axis < 4; axis++)
        for (int down = 0; down < 2; down++) far_apart(axis, down, (int32_t[]){ATTN_F32, ATTN_F16, ATTN_F64, ATTN_BF16}[(axis + down) % 4]);
}

/* More than 2^32 keys of which a window shows a few: what is out of sight costs nothing, and positions are 64 bits wide. */
static void keys_beyond_32_bits(void **state)
{
    (void)state;
    rng           r = rng_make("many keys", 0);
    const int64_t n = (INT64_C(1) << 32) + 1000, queries = 5, seen = 300;
    for (int at_end = 0; at_end < 2; at_end++) {
        int64_t first = at_end ? n - seen : (INT64_C(1) << 32) - 150, offset = first + seen - queries;
        float  *keys = (float *)(void *)sparse((size_t)n * sizeof(float)), *values = (float *)(void *)sparse((size_t)n * sizeof(float));
        float   q[5], out[5], lse[5], near_out[5], near_lse[5];
        for (int i = 0; i < queries; i++) q[i] = (float)rng_normal(&r);
        for (int64_t j = first - 10; j < first + seen; j++) keys[j] = (float)rng_normal(&r), values[j] = (float)rng_normal(&r);
        attn_desc d = attn_desc_new();
        d.batch = d.heads = d.kv_heads = d.dim = d.value_dim = 1, d.queries = queries, d.keys = n;
        d.q = attn_in_dense(q, ATTN_F32, 1, queries, 1), d.k = attn_in_dense(keys, ATTN_F32, 1, n, 1),
        d.v = attn_in_dense(values, ATTN_F32, 1, n, 1);
        d.out = attn_out_dense(out, ATTN_F32, 1, queries, 1);
        d.lse = attn_out_dense(lse, ATTN_F32, 1, queries, 1), d.lse.stride[3] = 0;
        d.causal = 1, d.window = 1, d.window_left = 250, d.window_right = -1, d.query_offset = &offset;
        for (int i = 0; attn_isa_name(i); i++) {
            if (!attn_isa_usable(i)) continue;
            d.isa = attn_isa_name(i);
            assert_int_equal(attn_run(&d, NULL), ATTN_OK);
            /* the same keys as a short sequence that starts on the same place of a tile and chunk: the same bits */
            attn_desc near = d;
            int64_t   base = (first - 260) / 2048 * 2048, nearby = offset - base;
            near.keys = n - base, near.query_offset = &nearby;
            near.k.data = keys + base, near.v.data = values + base;
            near.out.data = near_out, near.lse.data = near_lse;
            assert_int_equal(attn_run(&near, NULL), ATTN_OK);
            assert_memory_equal(out, near_out, sizeof out);
            assert_memory_equal(lse, near_lse, sizeof lse);
            /* several threads change nothing, and what is out of sight still costs neither time nor scratch */
            size_t one, several;
            memset(near_out, 0, sizeof near_out);
            assert_int_equal(attn_work_bytes(&d, &one, NULL), ATTN_OK);
            near = d, near.executor = &executor_forward, near.out.data = near_out, near.lse.data = near_lse;
            assert_int_equal(attn_work_bytes(&near, &several, NULL), ATTN_OK);
            assert_true(several < 100 * one); /* the keys would make it thousands of times as much */
            assert_int_equal(attn_run(&near, NULL), ATTN_OK);
            assert_memory_equal(out, near_out, sizeof out);
            near = d, near.out.data = near_out, near.lse.data = near_lse, near.query_offset = &nearby;
            near.k.data = keys + base, near.v.data = values + base, near.keys = n - base;
            reference want;
            reference_make(&want, &near);
            assert_int_equal(compare_results(&near, &want), 0);
            reference_free(&want);
        }
        munmap(keys, (size_t)n * sizeof(float)), munmap(values, (size_t)n * sizeof(float));
    }
}

/* More than 2^31 queries, all but a few of them at a time left to other calls, with heads and batches beyond 2^31 rows. */
static void batches_beyond_31_bits(void **state)
{
    (void)state;
    const int64_t stride[4] = {0, 0, 0, 1};
    float         q = 1, k = 2, v = 3, out = 0;
    attn_desc     d = attn_desc_new();
    d.batch = INT64_C(1) << 40, d.heads = d.kv_heads = d.keys = d.dim = d.value_dim = 1, d.queries = 0;
    d.q = attn_in_strided(&q, ATTN_F32, stride), d.k = attn_in_strided(&k, ATTN_F32, stride), d.v = attn_in_strided(&v, ATTN_F32, stride);
    d.out = attn_out_strided(&out, ATTN_F32, stride);
    assert_int_equal(attn_run(&d, NULL), ATTN_OK); /* nothing to write: done at once */
    assert_true(out == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strides_beyond_31_bits),
        cmocka_unit_test(keys_beyond_32_bits),
        cmocka_unit_test(batches_beyond_31_bits),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("large views", tests, NULL, NULL);
}
