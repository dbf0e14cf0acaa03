/* test_safetensors.c: .safetensors files: arrays where the header says, in file order; a header that does not add up gets its sentence.
 * SPDX-License-Identifier: MIT
 */
#include "io_check.h"

#include <pthread.h>

#define ARRAY(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static bytes store_bytes(const char *header, const void *data, size_t n)
{
    bytes    b = {0};
    uint64_t size = strlen(header);
    put(&b, &size, 8);
    put_text(&b, header);
    put(&b, data, n);
    return b;
}

static void refuse(const char *header, size_t data_bytes, int32_t want, const char *sentence)
{
    static const char zeros[64];
    io_error          error;
    bytes             b = store_bytes(header, zeros, data_bytes);
    io_store         *s = io_store_open_memory(b.at, b.size, &error);
    assert_string_equal(error.message, sentence);
    assert_null(s);
    assert_int_equal(error.status, want);
    assert_null(io_store_open_memory(b.at, b.size, NULL));
    free(b.at);
}

/* ---- what is read ----------------------------------------------------------------------------------------------------------------- */

static void hands_out_arrays_in_place(void **state)
{
    io_error error;
    io_array a;
    bytes    b = store_bytes("{" ARRAY("second", "F32", "[2,1]", "[2,10]") "," ARRAY(
                              "first", "I16", "[]", "[0,2]") ","
                                                                   "\"__metadata__\":{\"format\":\"pt\",\"x\":\"\"}}      ",
                             "\x07\x00"
                                "\x00\x00\x80\x3f"
                                "\x00\x00\x20\xc0",
                             10);
    (void)state;
    io_store *s = io_store_open_memory(b.at, b.size, &error);
    assert_string_equal(error.message, "");
    assert_non_null(s);
    assert_int_equal(io_store_count(s), 2);
    assert_string_equal(io_store_name(s, 0), "second");
    assert_string_equal(io_store_name(s, 1), "first");
    assert_null(io_store_name(s, 2));
    assert_null(io_store_name(s, -1));
    assert_string_equal(io_store_metadata(s, "format"), "pt");
    assert_string_equal(io_store_metadata(s, "x"), "");
    assert_null(io_store_metadata(s, "y"));
    assert_int_equal(io_store_find(s, "second", &a), 1);
    assert_int_equal(a.dtype, IO_F32);
    assert_int_equal(a.rank, 2);
    assert_true(a.shape[0] == 2 && a.shape[1] == 1 && a.stride[0] == 1);
    assert_true(io_get(&a, 0) == 1 && io_get(&a, 1) == -2.5);
    io_free(&a); /* must not free the file's bytes */
    expect_good(io_store_get(s, "first", &a, &error), &error);
    assert_true(a.rank == 0 && a.dtype == IO_I16 && io_get(&a, 0) == 7);
    assert_int_equal(io_store_find(s, "third", &a), 0);
    assert_int_equal(io_store_find(s, "__metadata__", &a), 0);
    expect_refusal(io_store_get(s, "third", &a, &error), &a, &error, IO_E_READ, "memory: no array 'third'; the file holds second, first");
    io_store_close(s);
    io_store_close(NULL);
    free(b.at);
}

static void reads_every_type(void **state)
{
    static const struct {
        const char *name;
        int32_t     dtype;
        double      value;
    } table[] = {
        {"F64", IO_F64, 1},
        {"F32", IO_F32, 1},
        {"F16", IO_F16, 1},
        {"BF16", IO_BF16, 1},
        {"BOOL", IO_BOOL, 1},
        {"I8", IO_I8, -1},
        {"U8", IO_U8, 255},
        {"I16", IO_I16, -1},
        {"U16", IO_U16, 65535},
        {"I32", IO_I32, -1},
        {"U32", IO_U32, 4294967295.0},
        {"I64", IO_I64, -1},
        {"U64", IO_U64, 0x1p64},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char     header[160];
        io_array a;
        io_error error;
        size_t   n = io_dtype_bytes(table[i].dtype);
        uint64_t bits = table[i].dtype == IO_F64    ? 0x3ff0000000000000
                        : table[i].dtype == IO_F32  ? 0x3f800000
                        : table[i].dtype == IO_F16  ? 0x3c00
                        : table[i].dtype == IO_BF16 ? 0x3f80
                        : table[i].dtype == IO_BOOL ? 2 /* any value but 0 is true */
                                                    : UINT64_MAX;
        snprintf(header, sizeof header, "{" ARRAY("a", "%s", "[1]", "[0,%zu]") "}", table[i].name, n);
        bytes     b = store_bytes(header, &bits, n);
        io_store *s = io_store_open_memory(b.at, b.size, &error);
        assert_non_null(s);
        assert_int_equal(io_store_find(s, "a", &a), 1);
        assert_int_equal(a.dtype, table[i].dtype);
        assert_true(io_get(&a, 0) == table[i].value);
        io_store_close(s);
        free(b.at);
    }
}

/* Headers of any length put the data anywhere; the first safetensors files were so. */
static void aligns_what_the_file_does_not(void **state)
{
    static const double data[2] = {1.5, -3};
    (void)state;
    for (size_t blanks = 0; blanks < 8; blanks++) {
        io_error error;
        io_array a, again;
        char     header[160];
        snprintf(header, sizeof header, "{" ARRAY("a", "F64", "[2]", "[0,16]") "}%*s", (int)blanks, "");
        bytes     b = store_bytes(header, data, sizeof data);
        io_store *s = io_store_open_memory(b.at, b.size, &error);
        assert_non_null(s);
        assert_int_equal(io_store_find(s, "a", &a), 1);
        assert_int_equal((uintptr_t)a.data % sizeof(double), 0);
        assert_true(io_get(&a, 0) == 1.5 && io_get(&a, 1) == -3);
        assert_int_equal(io_store_find(s, "a", &again), 1);
        assert_ptr_equal(again.data, a.data);
        io_store_close(s);
        free(b.at);
    }
}

static void *find_a(void *store)
{
    io_array a;
    return io_store_find(store, "a", &a) == 1 && io_get(&a, 0) == 1.5 ? a.data : NULL;
}

static void aligns_once_for_all_threads(void **state)
{
    enum { THREADS = 8 };
    static const double data[2] = {1.5, -3};
    bytes               b = store_bytes("{" ARRAY("b", "U8", "[1]", "[0,1]") "," ARRAY("a", "F64", "[1]", "[1,9]") "}", data, 0);
    (void)state;
    put(&b, "x", 1);
    put(&b, data, 8);
    for (int round = 0; round < 20; round++) {
        pthread_t thread[THREADS];
        void     *found[THREADS];
        io_error  error;
        io_store *s = io_store_open_memory(b.at, b.size, &error);
        assert_non_null(s);
        for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&thread[i], NULL, find_a, s), 0);
        for (int i = 0; i < THREADS; i++) pthread_join(thread[i], &found[i]);
        for (int i = 0; i < THREADS; i++) assert_true(found[i] && found[i] == found[0]);
        assert_false((unsigned char *)found[0] >= b.at && (unsigned char *)found[0] < b.at + b.size); /* a copy, or nothing was tested */
        io_store_close(s);
    }
    free(b.at);
}

static void opens_files_and_reads_members(void **state)
{
    io_error error;
    io_array a;
    char     spec[640], want[1400];
    bytes    two = store_bytes("{" ARRAY("x", "U8", "[2]", "[0,2]") "," ARRAY("y:z", "U8", "[0]", "[2,2]") "}", "\x08\x09", 2);
    bytes    one = store_bytes("{" ARRAY("x", "U8", "[2]", "[0,2]") "}", "\x08\x09", 2);
    (void)state;
    save(in_folder("two.safetensors"), two.at, two.size);
    save(in_folder("one.safetensors"), one.at, one.size);
    free(two.at);
    free(one.at);
    io_store *s = io_store_open(in_folder("two.safetensors"), &error);
    assert_non_null(s);
    assert_int_equal(io_store_find(s, "x", &a), 1);
    assert_true(io_get(&a, 1) == 9);
    io_store_close(s);
    expect_good(io_read(in_folder("one.safetensors"), &a, &error), &error);
    assert_true(a.shape[0] == 2 && io_get(&a, 1) == 9);
    io_free(&a);
    snprintf(spec, sizeof spec, "%s:y:z", in_folder("two.safetensors"));
    expect_good(io_read(spec, &a, &error), &error);
    assert_true(a.rank == 1 && a.shape[0] == 0 && a.data);
    io_free(&a);
    snprintf(want, sizeof want, "%s: say which array, as %s:NAME; the file holds x, y:z", in_folder("two.safetensors"),
             in_folder("two.safetensors"));
    expect_refusal(io_read(in_folder("two.safetensors"), &a, &error), &a, &error, IO_E_READ, want);
    snprintf(spec, sizeof spec, "%s:w", in_folder("two.safetensors"));
    snprintf(want, sizeof want, "%s: no array 'w'; the file holds x, y:z", in_folder("two.safetensors"));
    expect_refusal(io_read(spec, &a, &error), &a, &error, IO_E_READ, want);
    snprintf(spec, sizeof spec, "%s:w.npz:v", in_folder("two.safetensors")); /* the first ending decides */
    snprintf(want, sizeof want, "%s: no array 'w.npz:v'; the file holds x, y:z", in_folder("two.safetensors"));
    expect_refusal(io_read(spec, &a, &error), &a, &error, IO_E_READ, want);
    assert_null(io_store_open("nowhere.safetensors", &error));
    assert_string_equal(error.message, "nowhere.safetensors: No such file or directory");
    assert_null(io_store_open(folder, &error));
    save(in_folder("empty.safetensors"), "", 0);
    assert_null(io_store_open(in_folder("empty.safetensors"), &error));
    snprintf(want, sizeof want, "%s: 0 bytes are too short for a .safetensors file", in_folder("empty.safetensors"));
    assert_string_equal(error.message, want);
}

/* ---- what is refused -------------------------------------------------------------------------------------------------------------- */

static void refuses_types_on_use_only(void **state)
{
    static const char *const others[] = {"F8_E4M3", "F8_E5M2", "C64", "F7"};
    io_error                 error;
    io_array                 a;
    char                     header[256], sentence[128];
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(header, sizeof header, "{" ARRAY("odd", "%s", "[1]", "[0,1]") "," ARRAY("good", "U8", "[1]", "[1,2]") "}", others[i]);
        bytes     b = store_bytes(header, "\x01\x02", 2);
        io_store *s = io_store_open_memory(b.at, b.size, &error);
        assert_non_null(s);
        assert_int_equal(io_store_find(s, "good", &a), 1);
        assert_true(io_get(&a, 0) == 2);
        assert_int_equal(io_store_find(s, "odd", &a), 1);
        assert_true(a.dtype == 0 && !a.data);
        snprintf(sentence, sizeof sentence, "memory: array 'odd' (%s) has a dtype that is not handled", others[i]);
        expect_refusal(io_store_get(s, "odd", &a, &error), &a, &error, IO_E_TYPE, sentence);
        io_store_close(s);
        free(b.at);
    }
    bytes     b = store_bytes("{" ARRAY("deep", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", "\x01", 1);
    io_store *s = io_store_open_memory(b.at, b.size, &error);
    assert_non_null(s);
    expect_refusal(io_store_get(s, "deep", &a, &error), &a, &error, IO_E_TYPE,
                   "memory: array 'deep' (U8) has more than 8 axes, which is not handled");
    io_store_close(s);
    free(b.at);
}

static void refuses_bad_arrays(void **state)
{
    static const struct {
        const char *header;
        size_t      data_bytes;
        const char *what;
    } table[] = {
        {"{\"a\":3}", 0, "must have exactly dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, "must have exactly dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"more\":1}}", 0,
         "must have exactly dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":8,\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "has no dtype"},
        {"{" ARRAY("a", "U8", "3", "[0,3]") "}", 3, "has no shape"},
        {"{" ARRAY("a", "U8", "[-3]", "[0,3]") "}", 3, "has a shape of something else than whole numbers"},
        {"{" ARRAY("a", "U8", "[3.0]", "[0,3]") "}", 3, "has a shape of something else than whole numbers"},
        {"{" ARRAY("a", "U8", "[\"3\"]", "[0,3]") "}", 3, "has a shape of something else than whole numbers"},
        {"{" ARRAY("a", "U8", "[3]", "[0]") "}", 3, "has no data_offsets [begin, end]"},
        {"{" ARRAY("a", "U8", "[3]", "[0,3,3]") "}", 3, "has no data_offsets [begin, end]"},
        {"{" ARRAY("a", "U8", "[3]", "[0,3.0]") "}", 3, "has no data_offsets [begin, end]"},
        {"{" ARRAY("a", "U8", "[3]", "\"0,3\"") "}", 3, "has no data_offsets [begin, end]"},
        {"{" ARRAY("a", "U8", "[3]", "[-1,2]") "}", 3, "has data_offsets outside the file"},
        {"{" ARRAY("a", "U8", "[3]", "[3,0]") "}", 3, "has data_offsets outside the file"},
        {"{" ARRAY("a", "U8", "[3]", "[0,3]") "}", 2, "has data_offsets outside the file"},
        {"{" ARRAY("a", "U8", "[3]", "[0,9223372036854775807]") "}", 2, "has data_offsets outside the file"},
        {"{" ARRAY("a", "F32", "[3]", "[0,3]") "}", 3, "has data_offsets that do not fit its shape and dtype"},
        {"{" ARRAY("a", "U8", "[2]", "[0,3]") "}", 3, "has data_offsets that do not fit its shape and dtype"},
        {"{" ARRAY("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "has a shape of more than 2^63 - 1 bytes"},
        {"{" ARRAY("a", "U8", "[0,4611686018427387904,4]", "[0,0]") "}", 0, "has a shape of more than 2^63 - 1 bytes"},
        {"{" ARRAY("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, "has a shape of more than 2^63 - 1 bytes"},
        {"{" ARRAY("b", "U8", "[3]", "[0,3]") "," ARRAY("a", "U8", "[3]", "[2,5]") "}", 5, "overlaps another one"},
        {"{" ARRAY("b", "U8", "[3]", "[0,3]") "," ARRAY("a", "U8", "[3]", "[0,3]") "}", 3, NULL},
        {"{" ARRAY("b", "U8", "[3]", "[0,3]") "," ARRAY("a", "U8", "[1]", "[4,5]") "}", 5,
         "does not begin where the one before it ends (a hole)"},
        {"{" ARRAY("a", "U8", "[1]", "[1,2]") "}", 2, "does not begin where the one before it ends (a hole)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char sentence[160];
        snprintf(sentence, sizeof sentence, "memory: array 'a' %s", table[i].what ? table[i].what : "");
        if (table[i].what) {
            refuse(table[i].header, table[i].data_bytes, IO_E_READ, sentence);
            continue;
        }
        io_error error; /* of two at one place either may be named */
        bytes    b = store_bytes(table[i].header, "abc", table[i].data_bytes);
        assert_null(io_store_open_memory(b.at, b.size, &error));
        assert_non_null(strstr(error.message, "overlaps another one"));
        free(b.at);
    }
}

static void refuses_bad_headers(void **state)
{
    io_error error;
    (void)state;
    refuse("{" ARRAY("a", "U8", "[1]", "[0,1]") "}", 2, IO_E_READ, "memory: 1 bytes after the last array");
    refuse("{}", 2, IO_E_READ, "memory: 2 bytes after the last array");
    refuse("[]", 0, IO_E_READ, "memory: the header is not a JSON object");
    refuse("", 0, IO_E_READ, "memory: the header is not good JSON: '[' or '{' expected near end of file");
    refuse("{\"a\":}", 0, IO_E_READ, "memory: the header is not good JSON: unexpected token near '}'");
    refuse("{" ARRAY("a", "U8", "[1]", "[0,1]") "," ARRAY("a", "U8", "[1]", "[1,2]") "}", 2, IO_E_READ,
           "memory: the header is not good JSON: duplicate object key near '\"a\"'");
    refuse("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, IO_E_READ,
           "memory: the header is not good JSON: duplicate object key near '\"dtype\"'");
    refuse("{}x", 0, IO_E_READ, "memory: the header is not good JSON: end of file expected near 'x'");
    refuse("{\"__metadata__\":{\"a\":1}}", 0, IO_E_READ, "memory: __metadata__ must hold strings only");
    refuse("{\"__metadata__\":[]}", 0, IO_E_READ, "memory: __metadata__ must hold strings only");
    refuse("{\"__metadata__\":\"text\"}", 0, IO_E_READ, "memory: __metadata__ must hold strings only");
    refuse("{\"a\\nb\\u001b[2J\":3}", 0, IO_E_READ, "memory: array 'a?b?[2J' must have exactly dtype, shape and data_offsets");
    assert_null(io_store_open_memory("1234567", 7, &error));
    assert_string_equal(error.message, "memory: 7 bytes are too short for a .safetensors file");
    assert_null(io_store_open_memory("\x01\0\0\0\0\0\0\0", 8, &error));
    assert_string_equal(error.message, "memory: cut short: a header of 1 bytes in a file of 8");
    assert_null(io_store_open_memory("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, &error));
    assert_string_equal(error.message,
                        "memory: not a .safetensors file, or its header of 18446744073709551615 bytes is above the limit of 100000000");
}

static void refuses_deep_nesting(void **state)
{
    enum { DEPTH = 1000000 };
    io_error error;
    char    *text = malloc(DEPTH + 1);
    (void)state;
    assert_non_null(text);
    memset(text, '[', DEPTH);
    text[DEPTH] = 0;
    bytes b = store_bytes(text, "", 0);
    assert_null(io_store_open_memory(b.at, b.size, &error));
    assert_string_equal(error.message, "memory: the header is not good JSON: maximum parsing depth reached near '['");
    free(text);
    free(b.at);
}

static void survives_every_changed_or_missing_byte(void **state)
{
    bytes b = store_bytes("{" ARRAY("a", "F32", "[1]", "[0,4]") "," ARRAY("b", "U8", "[2]", "[4,6]") "}", "123456", 6);
    (void)state;
    for (size_t i = 0; i < b.size; i++) {
        bytes cut = {0};
        put(&cut, b.at, i);
        assert_null(io_store_open_memory(cut.at, cut.size, NULL));
        free(cut.at);
        for (int value = 0; value < 256; value++) {
            io_error error;
            bytes    changed = {0};
            put(&changed, b.at, b.size);
            changed.at[i] = (unsigned char)value;
            io_store *s = io_store_open_memory(changed.at, changed.size, &error);
            assert_true((s != NULL) == (error.message[0] == 0));
            io_store_close(s);
            free(changed.at);
        }
    }
    free(b.at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hands_out_arrays_in_place),
        cmocka_unit_test(reads_every_type),
        cmocka_unit_test(aligns_what_the_file_does_not),
        cmocka_unit_test(aligns_once_for_all_threads),
        cmocka_unit_test(opens_files_and_reads_members),
        cmocka_unit_test(refuses_types_on_use_only),
        cmocka_unit_test(refuses_bad_arrays),
        cmocka_unit_test(refuses_bad_headers),
        cmocka_unit_test(refuses_deep_nesting),
        cmocka_unit_test(survives_every_changed_or_missing_byte),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
