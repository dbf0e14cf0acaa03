/* test_fixtures.c: files that NumPy 1, NumPy 2 and safetensors wrote are read as they meant, and ours are byte for byte NumPy's.
 * SPDX-License-Identifier: MIT
 *
 * tests/data/make_fixtures.py wrote them and says what is in them.
 */
#include "io_check.h"

static const char *const writers[] = {"tests/data/numpy1", "tests/data/numpy2"};

static const struct {
    const char *name;
    int32_t     dtype;
} types[] = {
    {"float32", IO_F32}, {"float64", IO_F64},    {"float16", IO_F16},    {"bfloat16", IO_BF16},  {"bool", IO_BOOL},    {"int8", IO_I8},
    {"uint8", IO_U8},    {"int16", IO_I16},      {"uint16", IO_U16},     {"int32", IO_I32},      {"uint32", IO_U32},   {"int64", IO_I64},
    {"uint64", IO_U64},  {"be_float32", IO_F32}, {"be_float64", IO_F64}, {"be_float16", IO_F16}, {"be_int64", IO_I64},
};

enum { TYPES = sizeof types / sizeof *types };

static double number(int32_t dtype, int n)
{
    return dtype == IO_BOOL ? n % 3 == 0 : dtype <= IO_BF16 ? (n - 7) / 4.0 : n;
}

static void expect_numbers(const io_array *a, int32_t dtype)
{
    assert_int_equal(a->dtype, dtype);
    assert_true(a->rank == 3 && a->shape[0] == 2 && a->shape[1] == 3 && a->shape[2] == 4);
    for (int n = 0; n < 24; n++) assert_true(at(a, n / 12, n / 4 % 3, n % 4) == number(dtype, n));
}

static io_array read_file(const char *writer, const char *name)
{
    char     spec[300];
    io_array a;
    io_error error;
    snprintf(spec, sizeof spec, "%s/%s", writer, name);
    expect_good(io_read(spec, &a, &error), &error);
    return a;
}

static size_t slurp(const char *path, unsigned char *to, size_t room)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(to, 1, room, file);
    fclose(file);
    assert_true(n < room);
    return n;
}

static void reads_npy_of_every_type(void **state)
{
    char name[64];
    (void)state;
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < TYPES; i++) {
            snprintf(name, sizeof name, "%s.npy", types[i].name);
            io_array a = read_file(writers[w], name);
            expect_numbers(&a, types[i].dtype);
            io_free(&a);
        }
}

static void reads_other_forms(void **state)
{
    static const char *const names[] = {"fortran.npy",      "version2.npy", "version3.npy",      "stored.npz:x",
                                        "stored.npz:x.npy", "deflated.npz", "deflated.npz:arr_0"};
    (void)state;
    for (int w = 0; w < 2; w++) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            io_array a = read_file(writers[w], names[i]);
            expect_numbers(&a, IO_F32);
            assert_int_equal(a.stride[0], i == 0 ? 1 : 12);
            io_free(&a);
        }
        io_array a = read_file(writers[w], "stored.npz:y");
        expect_numbers(&a, IO_I8);
        io_free(&a);
        a = read_file(writers[w], "rank0.npy");
        assert_true(a.rank == 0 && a.dtype == IO_F32 && io_get(&a, 0) == -1.75);
        io_free(&a);
        a = read_file(writers[w], "empty.npy");
        assert_true(a.rank == 3 && a.shape[0] == 2 && a.shape[1] == 0 && a.shape[2] == 4);
        io_free(&a);
    }
}

static void reads_csv(void **state)
{
    static const char *const names[] = {"blanks.csv", "commas.csv"};
    (void)state;
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < 2; i++) {
            io_array a = read_file(writers[w], names[i]);
            assert_true(a.rank == 2 && a.shape[0] == 6 && a.shape[1] == 4);
            for (int n = 0; n < 24; n++) assert_true(at(&a, n / 4, n % 4, 0) == number(IO_F64, n));
            io_free(&a);
        }
}

static void refuses_other_types(void **state)
{
    static const char *const table[][2] = {
        {"refused_object.npy", "an array of Python objects (pickled) is not handled"},
        {"refused_fields.npy", "a structured dtype (named fields) is not handled; save the fields one by one"},
        {"refused_complex.npy", "dtype '<c8' is not handled; handled are f2, f4, f8, V2 (as bfloat16), b1, i1 to i8 and u1 to u8"},
        {"refused_text.npy", "dtype '<U2' is not handled; handled are f2, f4, f8, V2 (as bfloat16), b1, i1 to i8 and u1 to u8"},
        {"refused_float8.npy", "dtype '<V1' is not handled; handled are f2, f4, f8, V2 (as bfloat16), b1, i1 to i8 and u1 to u8"},
    };
    (void)state;
    for (int w = 0; w < 2; w++)
        for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
            char     spec[300], want[600];
            io_array a;
            io_error error;
            snprintf(spec, sizeof spec, "%s/%s", writers[w], table[i][0]);
            snprintf(want, sizeof want, "%s: %s", spec, table[i][1]);
            expect_refusal(io_read(spec, &a, &error), &a, &error, IO_E_TYPE, want);
        }
}

static void reads_safetensors(void **state)
{
    io_error  error;
    io_store *s = io_store_open("tests/data/numpy2/all.safetensors", &error);
    int       found = 0;
    (void)state;
    assert_string_equal(error.message, "");
    assert_non_null(s);
    for (int i = 0; i < TYPES; i++) {
        io_array a;
        if (strncmp(types[i].name, "be_", 3) == 0) continue;
        expect_good(io_store_get(s, types[i].name, &a, &error), &error);
        expect_numbers(&a, types[i].dtype);
        found++;
    }
    assert_int_equal(io_store_count(s), found);
    assert_string_equal(io_store_metadata(s, "format"), "np");
    io_store_close(s);
}

static void writes_npy_as_numpy_does(void **state)
{
    static unsigned char want[1000], got[1000];
    char                 name[64], path[300];
    io_error             error;
    (void)state;
    for (int i = 0; i < TYPES; i++) {
        if (strncmp(types[i].name, "be_", 3) == 0) continue;
        snprintf(name, sizeof name, "%s.npy", types[i].name);
        snprintf(path, sizeof path, "%s/%s", writers[1], name);
        io_array a = read_file(writers[1], name);
        expect_good(io_write(in_folder("a.npy"), &a, &error), &error);
        io_free(&a);
        size_t n = slurp(path, want, sizeof want);
        assert_int_equal(slurp(in_folder("a.npy"), got, sizeof got), n);
        assert_memory_equal(got, want, n);
    }
    io_array a = read_file(writers[1], "rank0.npy");
    expect_good(io_write(in_folder("a.npy"), &a, &error), &error);
    io_free(&a);
    size_t n = slurp("tests/data/numpy2/rank0.npy", want, sizeof want);
    assert_int_equal(slurp(in_folder("a.npy"), got, sizeof got), n);
    assert_memory_equal(got, want, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_npy_of_every_type), cmocka_unit_test(reads_other_forms), cmocka_unit_test(reads_csv),
        cmocka_unit_test(refuses_other_types),     cmocka_unit_test(reads_safetensors), cmocka_unit_test(writes_npy_as_numpy_does),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
