/* test_layer_failures.c: each allocation of the layer and of its loader fails in turn: a code, a sentence, nothing left behind.
 * SPDX-License-Identifier: MIT
 *
 * Linked with --wrap for malloc and its kin, so that calls made by the libraries come here.
 */
#include <attn/attn_layer.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int64_t until = -1; /* allocations that still succeed; -1: all do */
static int     failed;

static int fails(void)
{
    if (until > 0)
        until--;
    else if (until == 0)
        return until = -1, failed = 1;
    return 0;
}

#include "failing.h"

static attn_layer_checkpoint *load_minilm(attn_error *e)
{
    attn_layer_checkpoint *c = (void *)e; /* must become NULL */
    int32_t                status = attn_layer_load("examples/minilm-layer.safetensors", 5, NULL, &c, e);
    assert_int_equal(e->status, status);
    assert_true(status == ATTN_OK ? c != NULL : c == NULL);
    return c;
}

static void loading_fails_with_a_sentence_at_every_allocation(void **state)
{
    int count = 0;
    (void)state;
    for (;; count++) {
        attn_error e;
        failed = 0, until = count;
        attn_layer_checkpoint *c = load_minilm(&e);
        until = -1;
        attn_layer_free(c);
        if (!failed) break;
        assert_int_equal(e.status, ATTN_LAYER_E_MEMORY);
        assert_true(strlen(e.message) > 10);
    }
    assert_true(count >= 10); /* the file, the object, eight tensors */
}

static void running_fails_before_anything_is_written_and_not_with_work(void **state)
{
    enum { TOKENS = 3, WIDE = 384 };
    static float           x[TOKENS * WIDE], out[TOKENS * WIDE];
    attn_error             e;
    attn_layer_checkpoint *c = load_minilm(&e);
    size_t                 bytes;
    (void)state;
    attn_layer_desc d = attn_layer_desc_from(c);
    d.batch = 1, d.queries = d.keys = TOKENS;
    d.x = attn_layer_tokens(x, TOKENS, WIDE);
    d.out = attn_layer_tokens_out(out, TOKENS, WIDE);
    out[0] = 5;
    until = 0;
    int32_t status = attn_layer_run(&d, &e);
    until = -1;
    assert_int_equal(status, ATTN_LAYER_E_MEMORY);
    assert_float_equal(out[0], 5, 0);

    assert_int_equal(attn_layer_work_bytes(&d, &bytes, &e), ATTN_OK);
    d.work = malloc(bytes), d.work_bytes = bytes;
    assert_non_null(d.work);
    until = failed = 0; /* the layer asks for nothing; CBLAS is a shared library, so its own buffers do not count */
    status = attn_layer_run(&d, &e);
    until = -1;
    assert_int_equal(status, ATTN_OK);
    assert_int_equal(failed, 0);
    free(d.work);
    attn_layer_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loading_fails_with_a_sentence_at_every_allocation),
        cmocka_unit_test(running_fails_before_anything_is_written_and_not_with_work),
    };
    return cmocka_run_group_tests_name("layer failures", tests, NULL, NULL);
}
