/* test_io_failures.c: each allocation of the readers and the writer fails in turn: the code says so, nothing leaks, nothing is left behind.
 * SPDX-License-Identifier: MIT
 *
 * Linked with -Wl,--wrap for malloc, calloc and realloc, so the calls of io/ come by here; those inside jansson and libzip do not.
 */
#include "io_check.h"

#include <errno.h>

static int64_t left = -1; /* allocations until one fails; -1: none fails */
static int     failed;

static int fails(void)
{
    if (left < 0 || left-- > 0) return 0;
    failed = 1;
    errno = ENOMEM;
    return 1;
}

#include "failing.h"

/* Calls `body` with the first allocation failing, then the second, and so on until none did. Returns how many there are. */
static int each_failing(void (*body)(const char *name), const char *name)
{
    for (int n = 0; n < 1000; n++) {
        failed = 0;
        left = n;
        body(name);
        left = -1;
        if (!failed) return n;
    }
    fail();
    return 0;
}

static void expect_answer(int32_t status, const io_error *error)
{
    int64_t before = left;
    left = -1; /* cmocka allocates too */
    if (failed) {
        assert_int_equal(status, IO_E_MEMORY);
        assert_non_null(strstr(error->message, "memory"));
    } else
        expect_good(status, error);
    left = before;
}

static void read_one(const char *name)
{
    io_array a;
    io_error error;
    int32_t  status = io_read(name, &a, &error);
    expect_answer(status, &error);
    io_free(&a);
}

static void write_one(const char *name)
{
    float    x[2] = {1, 2};
    io_error error;
    io_array a = {.data = x, .shape = {2}, .stride = {1}, .dtype = IO_F32, .rank = 1};
    expect_answer(io_write(in_folder(name), &a, &error), &error);
    int64_t before = left;
    left = -1;
    assert_int_equal(sweep_folder(), failed ? 0 : 1);
    left = before;
}

static void copy_misaligned(const char *name)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}";
    _Alignas(8) char  file[100];
    uint64_t          size = sizeof header - 1;
    io_error          error;
    io_array          a;
    (void)name;
    memcpy(file, &size, 8);
    memcpy(file + 8, header, sizeof header - 1);
    memset(file + 8 + size, 0, 8);
    assert_int_not_equal(size % 8, 0);
    io_store *s = io_store_open_memory(file, 16 + size, &error);
    if (!s) {
        expect_answer(error.status, &error);
        return;
    }
    assert_int_equal(io_store_find(s, "a", &a), 1);
    if (failed) assert_true(a.dtype == 0 && !a.data);
    left = -1; /* what failed once works the next time */
    expect_good(io_store_get(s, "a", &a, &error), &error);
    io_store_close(s);
}

static void says_that_memory_failed(void **state)
{
    (void)state;
    assert_int_equal(each_failing(read_one, "tests/data/numpy2/float32.npy"), 2); /* header, data */
    assert_int_equal(each_failing(read_one, "tests/data/numpy2/commas.csv"), 2);  /* text, numbers */
    assert_true(each_failing(read_one, "tests/data/numpy2/stored.npz:x") >= 2);
    assert_true(each_failing(read_one, "tests/data/numpy2/deflated.npz") >= 2);
    assert_true(each_failing(read_one, "tests/data/numpy2/all.safetensors:int8") >= 4); /* store, entries, their order, data */
    assert_int_equal(each_failing(write_one, "a.npy"), 1);                              /* the temporary's name */
    assert_int_equal(each_failing(write_one, "a.csv"), 1);
    assert_int_equal(each_failing(copy_misaligned, ""), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_that_memory_failed)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
