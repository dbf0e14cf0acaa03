/* test_write.c: what is written is read back the same, and a file appears whole or not at all.
 * SPDX-License-Identifier: MIT
 */
#include "io_check.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static int32_t write_read(const char *name, const io_array *a, io_array *back)
{
    io_error error;
    expect_good(io_write(in_folder(name), a, &error), &error);
    expect_good(io_read(in_folder(name), back, &error), &error);
    assert_int_equal(sweep_folder(), 1); /* no temporary is left */
    return back->rank;
}

static io_array array_of(void *data, int32_t dtype, int32_t rank, const int64_t *shape)
{
    int64_t  bytes;
    io_array a = {.data = data, .dtype = dtype, .rank = rank};
    for (int32_t i = 0; i < rank; i++) a.shape[i] = shape[i];
    assert_true(io_layout(&a, 0, &bytes));
    return a;
}

static void expect_text(const char *name, const char *want)
{
    char  text[512];
    FILE *file = fopen(in_folder(name), "rb");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    assert_string_equal(text, want);
}

static io_array six; /* f32 (2, 3): 0 .. 5 */

/* ---- .npy ------------------------------------------------------------------------------------------------------------------------- */

static void npy_keeps_every_type(void **state)
{
    uint64_t bits[6] = {0x3ff8000000000001, 0x0101010100010100, 0xfedcba9876543210, 0, 0x8000000000000000, 7};
    (void)state;
    for (int32_t dtype = IO_F32; dtype <= IO_U64; dtype++) {
        io_array back, a = array_of(bits, dtype, 2, (const int64_t[]){2, 3});
        assert_int_equal(write_read("a.npy", &a, &back), 2);
        assert_int_equal(back.dtype, dtype);
        assert_true(back.shape[0] == 2 && back.shape[1] == 3 && back.stride[0] == 3 && back.stride[1] == 1);
        assert_memory_equal(back.data, bits, 6 * io_dtype_bytes(dtype));
        io_free(&back);
    }
}

static void npy_is_c_order_whatever_the_strides(void **state)
{
    io_array back, a = six;
    (void)state;
    a.shape[0] = 3, a.shape[1] = 2, a.stride[0] = 1, a.stride[1] = 3; /* transposed */
    write_read("a.npy", &a, &back);
    for (int i = 0; i < 6; i++) assert_true(io_get(&back, i) == i / 2 + i % 2 * 3);
    io_free(&back);
    a = six;
    a.data = (float *)six.data + 5, a.stride[0] = -3, a.stride[1] = -1; /* backwards */
    write_read("a.npy", &a, &back);
    for (int i = 0; i < 6; i++) assert_true(io_get(&back, i) == 5 - i);
    io_free(&back);
    a = six;
    a.stride[0] = 0; /* the first row twice */
    write_read("a.npy", &a, &back);
    for (int i = 0; i < 6; i++) assert_true(io_get(&back, i) == i % 3);
    io_free(&back);
}

static void npy_keeps_every_rank(void **state)
{
    static const int64_t ones[IO_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1}, empty[3] = {INT64_C(1) << 40, 0, 1};
    float                x = 2.5F;
    (void)state;
    for (int32_t rank = 0; rank <= IO_MAX_RANK; rank++) {
        io_array back, a = array_of(&x, IO_F32, rank, ones);
        assert_int_equal(write_read("a.npy", &a, &back), rank);
        assert_true(io_get(&back, 0) == 2.5);
        io_free(&back);
    }
    io_array back, a = array_of(&x, IO_F32, 3, empty);
    assert_int_equal(write_read("a.npy", &a, &back), 3);
    assert_true(back.shape[0] == empty[0] && back.shape[1] == 0);
    io_free(&back);
}

/* ---- .csv ------------------------------------------------------------------------------------------------------------------------- */

static void csv_is_short_and_exact(void **state)
{
    float    f[4] = {0.1F, -1e30F, -NAN, 16777216};
    double   d[4] = {0.1, 1.0 / 3, -INFINITY, 5e-324};
    uint16_t h[4] = {0x2e66, 0x7bff, 0x0001, 0xfc00}, b[4] = {0x3dcd, 0x7f7f, 0x0001, 0x3f80};
    uint64_t u[2] = {UINT64_MAX, 0};
    int64_t  i[2] = {INT64_MIN, 9007199254740993};
    uint8_t  flags[2] = {2, 0};
    io_error error;
    const struct {
        io_array    array;
        const char *text;
    } table[] = {
        {array_of(f, IO_F32, 2, (const int64_t[]){2, 2}), "0.1,-1e+30\nnan,16777216\n"},
        {array_of(d, IO_F64, 2, (const int64_t[]){2, 2}), "0.1,0.3333333333333333\n-inf,5e-324\n"},
        {array_of(h, IO_F16, 2, (const int64_t[]){1, 4}), "0.099975586,65504,5.9604645e-08,-inf\n"},
        {array_of(b, IO_BF16, 2, (const int64_t[]){1, 4}), "0.100097656,3.3895314e+38,9.1835e-41,1\n"},
        {array_of(u, IO_U64, 1, (const int64_t[]){2}), "18446744073709551615\n0\n"},
        {array_of(i, IO_I64, 1, (const int64_t[]){2}), "-9223372036854775808\n9007199254740993\n"},
        {array_of(flags, IO_BOOL, 1, (const int64_t[]){2}), "1\n0\n"},
        {array_of(f, IO_F32, 0, NULL), "0.1\n"},
    };
    (void)state;
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        expect_good(io_write(in_folder("a.csv"), &table[k].array, &error), &error);
        expect_text("a.csv", table[k].text);
    }
    sweep_folder();
}

static void refuses_what_has_no_form(void **state)
{
    io_error error;
    float    x = 0;
    (void)state;
    io_array cube = array_of(&x, IO_F32, 3, (const int64_t[]){1, 1, 1}), empty = array_of(&x, IO_F32, 2, (const int64_t[]){2, 0}),
             none = cube;
    assert_int_equal(io_write(in_folder("a.csv"), &cube, &error), IO_E_TYPE);
    assert_non_null(strstr(error.message, "a.csv: a .csv holds at most 2 axes, and the array has 3; write .npy"));
    assert_int_equal(io_write(in_folder("a.csv"), &empty, &error), IO_E_TYPE);
    assert_non_null(strstr(error.message, "a.csv: an empty array has no form as .csv; write .npy"));
    assert_int_equal(io_write("a.npz", &cube, &error), IO_E_TYPE);
    assert_string_equal(error.message, "a.npz: the name of an output must end in .npy or .csv");
    none.dtype = 0;
    assert_int_equal(io_write("a.npy", &none, &error), IO_E_TYPE);
    assert_string_equal(error.message, "a.npy: an array of dtype 0 and 3 axes cannot be written");
    assert_int_equal(sweep_folder(), 0);
}

/* ---- whole or not at all ---------------------------------------------------------------------------------------------------------- */

static void replaces_the_old_file_at_once(void **state)
{
    struct stat st;
    io_output   out;
    io_error    error;
    (void)state;
    save(in_folder("a.txt"), "old", 3);
    expect_good(io_output_open(&out, in_folder("a.txt"), &error), &error);
    fputs("new", out.file);
    fflush(out.file);
    expect_text("a.txt", "old");
    expect_good(io_output_commit(&out, &error), &error);
    io_output_discard(&out); /* after commit: nothing */
    expect_text("a.txt", "new");
    expect_good(io_output_open(&out, in_folder("a.txt"), &error), &error);
    fputs("third", out.file);
    io_output_discard(&out);
    expect_text("a.txt", "new");
    mode_t mask = umask(027);
    expect_good(io_write(in_folder("mode.npy"), &six, &error), &error);
    umask(mask);
    assert_int_equal(stat(in_folder("mode.npy"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(sweep_folder(), 2);
}

static void two_outputs_to_one_name_do_not_meet(void **state)
{
    io_output first, second;
    io_error  error;
    (void)state;
    expect_good(io_output_open(&first, in_folder("a.txt"), &error), &error);
    expect_good(io_output_open(&second, in_folder("a.txt"), &error), &error);
    fputs("first", first.file);
    fputs("second", second.file);
    expect_good(io_output_commit(&first, &error), &error);
    expect_text("a.txt", "first");
    expect_good(io_output_commit(&second, &error), &error);
    expect_text("a.txt", "second");
    assert_int_equal(sweep_folder(), 1);
}

static void writes_through_a_link(void **state)
{
    struct stat st;
    io_error    error;
    (void)state;
    save(in_folder("real.npy"), "", 0);
    assert_int_equal(symlink("real.npy", in_folder("link.npy")), 0);
    expect_good(io_write(in_folder("link.npy"), &six, &error), &error);
    assert_int_equal(lstat(in_folder("link.npy"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(in_folder("real.npy"), &st), 0);
    assert_int_equal(st.st_size, 152);
    assert_int_equal(sweep_folder(), 2);
}

/* With a limit on file sizes a write fails in the middle, as on a full disk. */
static void leaves_nothing_when_a_write_fails(void **state)
{
    enum { N = 100000 };
    static const char *const names[] = {"a.npy", "a.csv"};
    struct rlimit            before, small;
    io_error                 error;
    float                   *data = calloc(N, sizeof *data);
    (void)state;
    assert_non_null(data);
    io_array a = array_of(data, IO_F32, 1, (const int64_t[]){N}), strided = a;
    strided.shape[0] = N / 2, strided.stride[0] = 2; /* element by element */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (int i = 0; i < 4; i++) {
        const char *name = names[i % 2];
        save(in_folder(name), "old", 3);
        small = before;
        small.rlim_cur = 10000;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        int32_t status = io_write(in_folder(name), i < 2 ? &a : &strided, &error);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(status, IO_E_WRITE);
        assert_non_null(strstr(error.message, ": cannot be written: File too large"));
        expect_text(name, "old");
        assert_int_equal(sweep_folder(), 1);
    }
    free(data);
}

static void refuses_places(void **state)
{
    io_error error;
    char     want[700];
    (void)state;
    assert_int_equal(io_write("nowhere/a.npy", &six, &error), IO_E_WRITE);
    assert_string_equal(error.message, "nowhere/a.npy: cannot be written: No such file or directory");
    assert_int_equal(mkdir(in_folder("d.npy"), 0777), 0);
    snprintf(want, sizeof want, "%s: cannot be written: not a regular file", in_folder("d.npy"));
    assert_int_equal(io_write(in_folder("d.npy"), &six, &error), IO_E_WRITE);
    assert_string_equal(error.message, want);
    assert_int_equal(sweep_folder(), 1);
    assert_int_equal(mkdir(in_folder("closed"), 0555), 0);
    if (geteuid() != 0) { /* root may write everywhere */
        assert_int_equal(io_write(in_folder("closed/a.npy"), &six, &error), IO_E_WRITE);
        assert_non_null(strstr(error.message, "closed/a.npy: cannot be written: Permission denied"));
    }
    assert_int_equal(sweep_folder(), 1);
}

int main(void)
{
    static float            numbers[6] = {0, 1, 2, 3, 4, 5};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(npy_keeps_every_type),
        cmocka_unit_test(npy_is_c_order_whatever_the_strides),
        cmocka_unit_test(npy_keeps_every_rank),
        cmocka_unit_test(csv_is_short_and_exact),
        cmocka_unit_test(refuses_what_has_no_form),
        cmocka_unit_test(replaces_the_old_file_at_once),
        cmocka_unit_test(two_outputs_to_one_name_do_not_meet),
        cmocka_unit_test(writes_through_a_link),
        cmocka_unit_test(leaves_nothing_when_a_write_fails),
        cmocka_unit_test(refuses_places),
    };
    six = array_of(numbers, IO_F32, 2, (const int64_t[]){2, 3});
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
