/* test_npz.c: .npz files: members by name, stored and deflated; what does not add up, or would cost more than it says, gets its sentence.
 * SPDX-License-Identifier: MIT
 */
#include "io_check.h"

#include <zip.h>

#define DICT(descr, shape) "{'descr': '" descr "', 'fortran_order': False, 'shape': " shape ", }\n"

enum { BIG = 4000 };

struct member {
    const char *name;
    bytes       content;
    int32_t     method;
    int         encrypted;
};

/* Writes the members with libzip and gives the file's bytes back. */
static bytes zip_bytes(const struct member *members, int count)
{
    const char *path = in_folder("made.npz");
    int         code = 0;
    zip_t      *zip = zip_open(path, ZIP_CREATE | ZIP_TRUNCATE, &code);
    assert_non_null(zip);
    for (int i = 0; i < count; i++) {
        zip_source_t *source = zip_source_buffer(zip, members[i].content.at, members[i].content.size, 0);
        zip_int64_t   index = zip_file_add(zip, members[i].name, source, 0);
        assert_true(index >= 0);
        assert_int_equal(zip_set_file_compression(zip, (zip_uint64_t)index, members[i].method, 0), 0);
        if (members[i].encrypted) assert_int_equal(zip_file_set_encryption(zip, (zip_uint64_t)index, ZIP_EM_TRAD_PKWARE, "secret"), 0);
    }
    assert_int_equal(zip_close(zip), 0);
    for (int i = 0; i < count; i++) free(members[i].content.at);
    bytes b = {0};
    char  buffer[8192];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, file)) > 0;) put(&b, buffer, n);
    fclose(file);
    unlink(path);
    return b;
}

static bytes zip_one(const char *name, bytes content, int32_t method)
{
    struct member one = {name, content, method, 0};
    return zip_bytes(&one, 1);
}

static bytes small(const char *data)
{
    return npy(DICT("|u1", "(3,)"), data, 3);
}

static bytes big(void)
{
    static char zeros[BIG];
    return npy(DICT("|u1", "(4000,)"), zeros, BIG);
}

/* Frees b. */
static void refuse(bytes b, const char *name, int32_t want, const char *sentence)
{
    io_array a;
    io_error error;
    expect_refusal(io_npz_read_memory(b.at, b.size, name, &a, &error), &a, &error, want, sentence);
    free(b.at);
}

/* Where a central directory entry begins; its fields are method at 10, compressed size at 20, size at 24. */
static unsigned char *directory(bytes b)
{
    for (size_t i = b.size - 4; i > 0; i--)
        if (memcmp(b.at + i, "PK\1\2", 4) == 0) return b.at + i;
    fail();
    return NULL;
}

static void set32(unsigned char *to, uint32_t value)
{
    memcpy(to, &value, 4);
}

/* ---- what is read ----------------------------------------------------------------------------------------------------------------- */

static void reads_members(void **state)
{
    static const struct {
        const char *name;
        double      first;
    } table[] = {{"a", 'a'},     {"a.npy", 'a'}, {"b", 'b'},     {"b.npy", 'b'},
                 {"dir/c", 'c'}, {"plain", 'p'}, {"twice", 't'}, {"twice.npy", 'T'}};
    const struct member members[] = {
        {"a.npy", small("abc"), ZIP_CM_STORE, 0},       {"b.npy", small("bcd"), ZIP_CM_DEFLATE, 0},
        {"dir/c.npy", small("cde"), ZIP_CM_DEFLATE, 0}, {"plain", small("pqr"), ZIP_CM_STORE, 0},
        {"twice", small("tuv"), ZIP_CM_STORE, 0},       {"twice.npy", small("TUV"), ZIP_CM_STORE, 0},
    };
    io_array a;
    io_error error;
    char     spec[640];
    bytes    b = zip_bytes(members, 6);
    (void)state;
    save(in_folder("six.npz"), b.at, b.size);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        expect_good(io_npz_read_memory(b.at, b.size, table[i].name, &a, &error), &error);
        assert_true(a.rank == 1 && a.shape[0] == 3 && io_get(&a, 0) == table[i].first);
        io_free(&a);
        snprintf(spec, sizeof spec, "%s:%s", in_folder("six.npz"), table[i].name);
        expect_good(io_read(spec, &a, &error), &error);
        assert_true(io_get(&a, 0) == table[i].first);
        io_free(&a);
    }
    free(b.at);
}

static void reads_the_only_one(void **state)
{
    const struct member members[] = {{"notes.txt", small("xyz"), ZIP_CM_STORE, 0}, {"a.npy", big(), ZIP_CM_DEFLATE, 0}};
    io_array            a;
    io_error            error;
    bytes               b = zip_bytes(members, 2);
    (void)state;
    expect_good(io_npz_read_memory(b.at, b.size, NULL, &a, &error), &error);
    assert_int_equal(a.shape[0], BIG);
    io_free(&a);
    save(in_folder("one.npz"), b.at, b.size);
    expect_good(io_read(in_folder("one.npz"), &a, &error), &error);
    assert_int_equal(a.shape[0], BIG);
    io_free(&a);
    free(b.at);
}

/* ---- what is refused -------------------------------------------------------------------------------------------------------------- */

static void refuses_names(void **state)
{
    const struct member two[] = {{"a.npy", small("abc"), ZIP_CM_STORE, 0}, {"b.npy", small("bcd"), ZIP_CM_STORE, 0}};
    const struct member again[] = {{"a.npy", small("abc"), ZIP_CM_STORE, 0}, {"b.npy", small("bcd"), ZIP_CM_STORE, 0}};
    (void)state;
    bytes b = zip_bytes(two, 2);
    refuse(b, NULL, IO_E_READ, "memory: say which array, as memory:NAME; the file holds a.npy, b.npy");
    refuse(zip_one("a.npy", small("abc"), ZIP_CM_STORE), "c", IO_E_READ, "memory: no array 'c'; the file holds a.npy");
    refuse(zip_one("a.txt", small("abc"), ZIP_CM_STORE), NULL, IO_E_READ, "memory: say which array, as memory:NAME; the file holds none");
    b = zip_bytes(again, 2);
    for (size_t i = 0; i + 5 <= b.size; i++)
        if (memcmp(b.at + i, "b.npy", 5) == 0) b.at[i] = 'a';
    refuse(b, "a", IO_E_READ, "memory: 2 members are named 'a'");
}

static void lists_many_names_briefly(void **state)
{
    struct member members[100];
    char          names[100][32];
    io_array      a;
    io_error      error;
    (void)state;
    for (int i = 0; i < 100; i++) {
        snprintf(names[i], sizeof names[i], "array_%d.npy", i);
        members[i] = (struct member){names[i], small("abc"), ZIP_CM_STORE, 0};
    }
    bytes b = zip_bytes(members, 100);
    assert_int_equal(io_npz_read_memory(b.at, b.size, "c", &a, &error), IO_E_READ);
    free(b.at);
    assert_non_null(strstr(error.message, "no array 'c'; the file holds array_0.npy, array_1.npy, "));
    assert_string_equal(error.message + strlen(error.message) - 11, ", ... (100)");
}

static void refuses_methods_and_encryption(void **state)
{
    const struct member secret = {"a.npy", small("abc"), ZIP_CM_STORE, 1};
    (void)state;
    refuse(zip_bytes(&secret, 1), "a", IO_E_TYPE, "memory:a.npy: encrypted members are not handled");
    bytes b = zip_one("a.npy", small("abc"), ZIP_CM_STORE);
    directory(b)[10] = ZIP_CM_BZIP2;
    refuse(b, "a", IO_E_TYPE, "memory:a.npy: zip method 12 is not handled; stored and deflate are");
}

static void refuses_sizes_that_lie(void **state)
{
    bytes b = zip_one("a.npy", big(), ZIP_CM_DEFLATE);
    (void)state;
    set32(directory(b) + 24, 0x7fffffff); /* two gigabytes from some fifty bytes */
    io_array a;
    io_error error;
    assert_int_equal(io_npz_read_memory(b.at, b.size, "a", &a, &error), IO_E_READ);
    assert_non_null(strstr(error.message, "memory:a.npy: 2147483647 bytes cannot come from "));
    free(b.at);
    b = zip_one("a.npy", big(), ZIP_CM_DEFLATE);
    set32(directory(b) + 24, 100); /* the directory says less than the header in the member */
    assert_int_equal(io_npz_read_memory(b.at, b.size, "a", &a, &error), IO_E_READ);
    assert_non_null(strstr(error.message, "memory:a.npy: cut short: "));
    free(b.at);
    refuse(zip_one("a.npy", npy(DICT("|u1", "(2,)"), "abc", 3), ZIP_CM_DEFLATE), "a", IO_E_READ,
           "memory:a.npy: 1 bytes follow the array; a file of several arrays is not handled");
    refuse(zip_one("a.npy", npy(DICT("|u1", "(4,)"), "abc", 3), ZIP_CM_DEFLATE), "a", IO_E_READ,
           "memory:a.npy: cut short: 3 bytes of data, and its header promises 4");
}

static void refuses_damaged_members(void **state)
{
    bytes b = zip_one("a.npy", small("abc"), ZIP_CM_STORE);
    (void)state;
    for (size_t i = 0; i + 3 <= b.size; i++)
        if (memcmp(b.at + i, "abc", 3) == 0) b.at[i + 2] = 'd'; /* only the sum tells */
    refuse(b, "a", IO_E_READ, "memory:a.npy: damaged: CRC error");
    refuse(zip_one("a.npy", (bytes){0}, ZIP_CM_STORE), "a", IO_E_READ, "memory:a.npy: 0 bytes are too short for an .npy file");
    b = (bytes){0};
    put_text(&b, "this is no zip file");
    refuse(b, "a", IO_E_READ, "memory: not a good .npz file: Not a zip archive");
}

static void refuses_files(void **state)
{
    io_array a;
    io_error error;
    char     want[640];
    (void)state;
    save(in_folder("bad.npz"), "this is no zip file", 19);
    snprintf(want, sizeof want, "%s: not a good .npz file: Not a zip archive", in_folder("bad.npz"));
    expect_refusal(io_read(in_folder("bad.npz"), &a, &error), &a, &error, IO_E_READ, want);
    expect_refusal(io_read("nowhere.npz:a", &a, &error), &a, &error, IO_E_READ, "nowhere.npz: No such file or directory");
}

static void survives_every_changed_or_missing_byte(void **state)
{
    bytes b = zip_one("a.npy", small("abc"), ZIP_CM_DEFLATE);
    (void)state;
    for (size_t i = 0; i < b.size; i++) {
        io_array a;
        io_error error;
        bytes    cut = {0};
        put(&cut, b.at, i);
        assert_int_not_equal(io_npz_read_memory(cut.at, cut.size, "a", &a, &error), IO_OK);
        free(cut.at);
        for (int bit = 0; bit < 8; bit++) {
            b.at[i] ^= (unsigned char)(1 << bit);
            int32_t status = io_npz_read_memory(b.at, b.size, "a", &a, &error);
            assert_true((status == IO_OK) == (error.message[0] == 0) && (status == IO_OK) == (a.data != NULL));
            /* what the sum of the member covers may not change unnoticed */
            if (status == IO_OK) assert_true(a.shape[0] == 3 && io_get(&a, 0) == 'a' && io_get(&a, 1) == 'b' && io_get(&a, 2) == 'c');
            io_free(&a);
            b.at[i] ^= (unsigned char)(1 << bit);
        }
    }
    free(b.at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_members),
        cmocka_unit_test(reads_the_only_one),
        cmocka_unit_test(refuses_names),
        cmocka_unit_test(lists_many_names_briefly),
        cmocka_unit_test(refuses_methods_and_encryption),
        cmocka_unit_test(refuses_sizes_that_lie),
        cmocka_unit_test(refuses_damaged_members),
        cmocka_unit_test(refuses_files),
        cmocka_unit_test(survives_every_changed_or_missing_byte),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
