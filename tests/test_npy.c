/* test_npy.c: .npy files: every type, order and version is read as numpy means it, everything else gets its sentence.
 * SPDX-License-Identifier: MIT
 */
#include "io_check.h"

#include <math.h>

#define DICT(descr, fortran, shape) "{'descr': '" descr "', 'fortran_order': " fortran ", 'shape': " shape ", }\n"

static int32_t read_bytes(bytes b, io_array *array, io_error *error)
{
    int32_t status = io_read_npy_memory(b.at, b.size, array, error);
    free(b.at);
    return status;
}

static io_array read_good(bytes b)
{
    io_array array;
    io_error error;
    expect_good(read_bytes(b, &array, &error), &error);
    return array;
}

static void refuse(bytes b, int32_t want, const char *sentence)
{
    io_array array;
    io_error error;
    expect_refusal(read_bytes(b, &array, &error), &array, &error, want, sentence);
}

/* ---- what is read ----------------------------------------------------------------------------------------------------------------- */

static void reads_every_type(void **state)
{
    static const struct {
        const char *descr;
        int32_t     dtype;
        const char *bytes; /* of two elements */
        double      value[2];
    } table[] = {
        {"<f4", IO_F32, "\x00\x00\x80\x3f\x00\x00\x20\xc0", {1, -2.5}},
        {">f4", IO_F32, "\x3f\x80\x00\x00\xc0\x20\x00\x00", {1, -2.5}},
        {"<f8", IO_F64, "\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\xf0\xff", {1, -INFINITY}},
        {">f8", IO_F64, "\x3f\xf0\x00\x00\x00\x00\x00\x00\xff\xf0\x00\x00\x00\x00\x00\x00", {1, -INFINITY}},
        {"<f2", IO_F16, "\x01\x00\xff\xfb", {0x1p-24, -65504}},
        {">f2", IO_F16, "\x3c\x00\xfc\x00", {1, -INFINITY}},
        {"<V2", IO_BF16, "\x80\x3f\x20\xc0", {1, -2.5}},
        {"|V2", IO_BF16, "\x80\x3f\x20\xc0", {1, -2.5}},
        {"|b1", IO_BOOL, "\x00\x01", {0, 1}},
        {"|i1", IO_I8, "\x80\x7f", {-128, 127}},
        {"<i1", IO_I8, "\x80\x7f", {-128, 127}},
        {"|u1", IO_U8, "\x80\xff", {128, 255}},
        {"<i2", IO_I16, "\x00\x80\x01\x00", {-32768, 1}},
        {">i2", IO_I16, "\x80\x00\x00\x01", {-32768, 1}},
        {"<u2", IO_U16, "\x00\x80\x01\x00", {32768, 1}},
        {"<i4", IO_I32, "\xfe\xff\xff\xff\x04\x03\x02\x01", {-2, 0x01020304}},
        {">u4", IO_U32, "\xff\xff\xff\xfe\x01\x02\x03\x04", {4294967294.0, 0x01020304}},
        {"<i8", IO_I64, "\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x01\x00\x00\x00", {-1, 4294967296.0}},
        {">i8", IO_I64, "\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x01\x00\x00\x00\x00", {-1, 4294967296.0}},
        {"<u8", IO_U64, "\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00\x00\x01\x00\x00\x00", {0x1p63, 4294967296.0}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char header[128];
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (2,), }\n", table[i].descr);
        io_array a = read_good(npy(header, table[i].bytes, 2 * io_dtype_bytes(table[i].dtype)));
        assert_int_equal(a.dtype, table[i].dtype);
        assert_int_equal(a.rank, 1);
        assert_int_equal(a.shape[0], 2);
        assert_true(io_get(&a, 0) == table[i].value[0] && io_get(&a, 1) == table[i].value[1]);
        io_free(&a);
        assert_null(a.data);
    }
}

static void reads_c_and_fortran_order(void **state)
{
    static const uint8_t data[6] = {0, 1, 2, 3, 4, 5};
    (void)state;
    io_array a = read_good(npy(DICT("|u1", "False", "(2, 3)"), data, 6));
    assert_int_equal(a.stride[0], 3);
    assert_int_equal(a.stride[1], 1);
    for (int i = 0; i < 6; i++) assert_true(at(&a, i / 3, i % 3, 0) == i);
    io_free(&a);
    a = read_good(npy(DICT("|u1", "True", "(2, 3)"), data, 6));
    assert_int_equal(a.stride[0], 1);
    assert_int_equal(a.stride[1], 2);
    for (int i = 0; i < 6; i++) assert_true(at(&a, i % 2, i / 2, 0) == i);
    io_free(&a);
}

static void reads_all_versions_and_spellings(void **state)
{
    static const uint8_t     data[6] = {0, 1, 2, 3, 4, 5};
    static const char *const headers[] = {
        DICT("|u1", "False", "(2, 3)"),
        "{'shape':(2,3),'fortran_order':False,'descr':'|u1'}",
        "{\"fortran_order\": False, \"descr\": \"|u1\", \"shape\": (2, 3,)}        \n",
        "  {  'descr'  :  '|u1'  ,\n 'shape' : ( 2 , 3 ) ,\t'fortran_order' : False , }  ",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (2L, 3L), }\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        for (int version = 1; version <= 3; version++) {
            io_array a = read_good(npy_version(version, headers[i], data, 6));
            assert_int_equal(a.shape[0], 2);
            assert_int_equal(a.shape[1], 3);
            assert_true(at(&a, 1, 2, 0) == 5);
            io_free(&a);
        }
}

static void reads_no_axes_and_empty_axes(void **state)
{
    (void)state;
    io_array a = read_good(npy(DICT("|i1", "False", "()"), "\x07", 1));
    assert_int_equal(a.rank, 0);
    assert_true(io_get(&a, 0) == 7);
    io_free(&a);
    a = read_good(npy(DICT("<f8", "True", "(3, 0, 2)"), "", 0));
    assert_int_equal(a.rank, 3);
    assert_int_equal(a.shape[1], 0);
    assert_non_null(a.data); /* "absent" is something else */
    io_free(&a);
    a = read_good(npy(DICT("|u1", "False", "(1, 1, 1, 1, 1, 1, 1, 2)"), "\x01\x02", 2));
    assert_int_equal(a.rank, 8);
    assert_int_equal(a.shape[7], 2);
    io_free(&a);
}

static void reads_files(void **state)
{
    io_array a;
    io_error error;
    bytes    b = npy(DICT("<i2", "False", "(2,)"), "\x01\x00\x02\x00", 4);
    (void)state;
    save(in_folder("a.npy"), b.at, b.size);
    expect_good(io_read(in_folder("a.npy"), &a, &error), &error);
    assert_true(io_get(&a, 1) == 2);
    io_free(&a);
    assert_int_equal(io_read(in_folder("a.npy"), &a, NULL), IO_OK); /* no error wanted */
    io_free(&a);
    save(in_folder("short.npy"), b.at, b.size - 1);
    assert_int_equal(io_read(in_folder("short.npy"), &a, &error), IO_E_READ);
    assert_non_null(strstr(error.message, "short.npy: cut short: 3 bytes of data, and its header promises 4"));
    free(b.at);
}

/* ---- what is refused -------------------------------------------------------------------------------------------------------------- */

static void refuses_other_types(void **state)
{
    static const char *const types[] = {"<c8", "<f16", "|S3", "<U2", "<M8[s]", "=f4", "f4", "|f4", ">V2", "|V4", "<V1", "<f3", "<", ""};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char header[128], sentence[256];
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (2,), }\n", types[i]);
        snprintf(sentence, sizeof sentence,
                 "memory: dtype '%s' is not handled; handled are f2, f4, f8, V2 (as bfloat16), b1, i1 to i8 and u1 to u8", types[i]);
        refuse(npy(header, "12345678", 8), IO_E_TYPE, sentence);
    }
    refuse(npy(DICT("|O", "False", "(2,)"), "\x80\x04", 2), IO_E_TYPE, "memory: an array of Python objects (pickled) is not handled");
    refuse(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "1234", 4), IO_E_TYPE,
           "memory: a structured dtype (named fields) is not handled; save the fields one by one");
    refuse(npy(DICT("|u1", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), "1", 1), IO_E_TYPE,
           "memory: an array of more than 8 axes is not handled");
}

static void refuses_bad_headers(void **state)
{
    static const struct {
        const char *header, *what;
    } table[] = {
        {"", "is not a dict"},
        {"[1]", "is not a dict"},
        {"{", "is not a dict with quoted keys"},
        {"{}", "lacks one of 'descr', 'fortran_order' and 'shape'"},
        {"{'descr': '|u1', 'shape': (2,)}", "lacks one of 'descr', 'fortran_order' and 'shape'"},
        {"{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (2,)}", "has the key 'descr' twice"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2,), 'shape': (2,)}", "has the key 'shape' twice"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2,), 'more': 1}", "has the unknown key 'more'"},
        {"{descr: '|u1'}", "is not a dict with quoted keys"},
        {"{'descr' '|u1'}", "has a key without ':'"},
        {"{'descr': 3}", "has a 'descr' that is not a string"},
        {"{'descr': '|u1}", "has a 'descr' that is not a string"},
        {"{'descr': '\\x7cu1'}", "has a 'descr' that is not a string"},
        {"{'descr': '|u1' 'shape': (2,)}", "has no ',' or '}' after a value"},
        {"{'fortran_order': 0}", "has a 'fortran_order' that is neither True nor False"},
        {"{'shape': 2}", "has a shape that is not a tuple"},
        {"{'shape': [2]}", "has a shape that is not a tuple"},
        {"{'shape': (2)}", "has a shape that is not a tuple"},
        {"{'shape': (2 3)}", "has a shape without commas"},
        {"{'shape': (-2,)}", "has a shape of something else than whole numbers"},
        {"{'shape': (2.0,)}", "has a shape of something else than whole numbers"},
        {"{'shape': (,)}", "has a shape of something else than whole numbers"},
        {"{'shape': (True,)}", "has a shape of something else than whole numbers"},
        {"{'shape': (2,", "has a shape of something else than whole numbers"},
        {"{'shape': (9223372036854775808,)}", "has an axis of more than 2^63 - 1"},
        {"{'shape': (99999999999999999999999999,)}", "has an axis of more than 2^63 - 1"},
        {DICT("|u1", "False", "(2,)") "x", "goes on after its dict"},
        {DICT("<f4", "False", "(4294967296, 4294967296)"), "has a shape of more than 2^63 - 1 bytes"},
        {DICT("<f4", "False", "(4611686018427387904,)"), "has a shape of more than 2^63 - 1 bytes"},
        {DICT("<f4", "False", "(0, 4611686018427387904, 4611686018427387904)"), "has a shape of more than 2^63 - 1 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char sentence[256];
        snprintf(sentence, sizeof sentence, "memory: the .npy header %s", table[i].what);
        refuse(npy(table[i].header, "12", 2), IO_E_READ, sentence);
    }
}

static void refuses_bad_files(void **state)
{
    bytes b = npy(DICT("|u1", "False", "(2,)"), "12", 2);
    (void)state;
    refuse((bytes){0}, IO_E_READ, "memory: 0 bytes are too short for an .npy file");
    refuse(npy_version(4, DICT("|u1", "False", "(2,)"), "12", 2), IO_E_TYPE,
           "memory: .npy format 4.0 is not handled; 1.0, 2.0 and 3.0 are");
    b.at[7] = 1;
    refuse(b, IO_E_TYPE, "memory: .npy format 1.1 is not handled; 1.0, 2.0 and 3.0 are");
    b = npy(DICT("|u1", "False", "(2,)"), "12", 2);
    b.at[1] = 'n';
    refuse(b, IO_E_READ, "memory: not an .npy file (it does not begin with \\x93NUMPY)");
    b = npy_version(2, DICT("|u1", "False", "(2,)"), "12", 2);
    b.at[10] = 1;
    refuse(b, IO_E_READ, "memory: an .npy header of 65594 bytes is above the limit of 65536");
    b = npy(DICT("|u1", "False", "(2,)"), "12", 2);
    b.at[9] = 255;
    refuse(b, IO_E_READ, "memory: cut short: it ends after 70 bytes");
    refuse(npy(DICT("|u1", "False", "(2,)"), "123", 3), IO_E_READ,
           "memory: 1 bytes follow the array; a file of several arrays is not handled");
    refuse(npy(DICT("<f8", "False", "(1152921504606846975,)"), "12", 2), IO_E_READ,
           "memory: cut short: 2 bytes of data, and its header promises 9223372036854775800");
}

static void refuses_every_shorter_file(void **state)
{
    bytes b = npy(DICT("<f4", "False", "(2, 1)"), "12345678", 8);
    (void)state;
    for (size_t n = 0; n < b.size; n++) {
        io_array a;
        io_error error;
        bytes    cut = {0};
        put(&cut, b.at, n);
        assert_int_equal(read_bytes(cut, &a, &error), IO_E_READ);
    }
    free(b.at);
}

/* Under a sanitizer this is a small fuzzer; without one it still asks for a consistent answer. */
static void survives_every_changed_byte(void **state)
{
    bytes b = npy(DICT("<f4", "True", "(2, 1)"), "12345678", 8);
    (void)state;
    for (size_t i = 0; i < b.size; i++)
        for (int value = 0; value < 256; value++) {
            io_array a;
            io_error error;
            bytes    changed = {0};
            put(&changed, b.at, b.size);
            changed.at[i] = (unsigned char)value;
            int32_t status = read_bytes(changed, &a, &error);
            assert_true((status == IO_OK) == (error.message[0] == 0) && (status == IO_OK) == (a.data != NULL));
            io_free(&a);
        }
    free(b.at);
}

static void refuses_what_is_no_file(void **state)
{
    io_array a;
    io_error error;
    (void)state;
    expect_refusal(io_read("nowhere/a.npy", &a, &error), &a, &error, IO_E_READ, "nowhere/a.npy: No such file or directory");
    expect_refusal(io_read("a.txt", &a, &error), &a, &error, IO_E_TYPE, "a.txt: the name must end in .npy, .npz, .safetensors or .csv");
    expect_refusal(io_read("", &a, &error), &a, &error, IO_E_TYPE, ": the name must end in .npy, .npz, .safetensors or .csv");
    expect_refusal(io_read("a\x1b[31m\xff.txt", &a, &error), &a, &error, IO_E_TYPE,
                   "a?[31m?.txt: the name must end in .npy, .npz, .safetensors or .csv");
    assert_int_equal(symlink("/dev/zero", in_folder("zero.npy")), 0);
    assert_int_equal(io_read(in_folder("zero.npy"), &a, &error), IO_E_READ);
    assert_non_null(strstr(error.message, "zero.npy: not a regular file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_type),
        cmocka_unit_test(reads_c_and_fortran_order),
        cmocka_unit_test(reads_all_versions_and_spellings),
        cmocka_unit_test(reads_no_axes_and_empty_axes),
        cmocka_unit_test(reads_files),
        cmocka_unit_test(refuses_other_types),
        cmocka_unit_test(refuses_bad_headers),
        cmocka_unit_test(refuses_bad_files),
        cmocka_unit_test(refuses_every_shorter_file),
        cmocka_unit_test(survives_every_changed_byte),
        cmocka_unit_test(refuses_what_is_no_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
