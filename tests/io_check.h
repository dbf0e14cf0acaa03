/* io_check.h: what the tests of the readers share: files put together byte by byte, expected sentences, a folder that is swept.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_IO_CHECK_H
#define ATTN_TESTS_IO_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "io/io_internal.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- bytes ------------------------------------------------------------------------------------------------------------------------ */

/* A block of exactly `size` bytes, so that a sanitizer sees a read past its end. */
typedef struct bytes {
    unsigned char *at;
    size_t         size;
} bytes;

static inline void put(bytes *b, const void *from, size_t n)
{
    unsigned char *at = malloc(b->size + n ? b->size + n : 1);
    assert_non_null(at);
    if (b->size) memcpy(at, b->at, b->size);
    if (n) memcpy(at + b->size, from, n);
    free(b->at);
    b->at = at;
    b->size += n;
}

static inline void put_text(bytes *b, const char *text)
{
    put(b, text, strlen(text));
}

/* An .npy of that format version around any header text. */
static inline bytes npy_version(int major, const char *header, const void *data, size_t n)
{
    bytes         b = {0};
    size_t        h = strlen(header);
    unsigned char start[12] = {0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)major, 0};
    for (int i = 0; i < 4; i++) start[8 + i] = (unsigned char)(h >> 8 * i);
    put(&b, start, major == 1 ? 10 : 12);
    put(&b, header, h);
    put(&b, data, n);
    return b;
}

static inline bytes npy(const char *header, const void *data, size_t n)
{
    return npy_version(1, header, data, n);
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------------- */

/* The status and the whole sentence, and nothing in the array. */
static inline void expect_refusal(int32_t status, const io_array *array, const io_error *error, int32_t want, const char *sentence)
{
    static const io_array nothing;
    assert_string_equal(error->message, sentence);
    assert_int_equal(status, want);
    assert_int_equal(error->status, want);
    assert_memory_equal(array, &nothing, sizeof nothing);
}

static inline void expect_good(int32_t status, const io_error *error)
{
    assert_string_equal(error->message, "");
    assert_int_equal(status, IO_OK);
    assert_int_equal(error->status, IO_OK);
}

/* The element at an index, by the array's own strides. */
static inline double at(const io_array *a, int64_t i, int64_t j, int64_t k)
{
    int64_t index[3] = {i, j, k}, offset = 0;
    for (int32_t axis = 0; axis < a->rank && axis < 3; axis++) {
        assert_true(index[axis] < a->shape[axis]);
        offset += index[axis] * a->stride[axis];
    }
    return io_get(a, offset);
}

/* ---- a folder of the test's own ---------------------------------------------------------------------------------------------------- */

static char folder[256];

static inline const char *in_folder(const char *name)
{
    static char path[4][600];
    static int  next;
    char       *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static inline int make_folder(void **state)
{
    const char *base = getenv("TMPDIR");
    (void)state;
    snprintf(folder, sizeof folder, "%s/attn-io-XXXXXX", base ? base : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

/* Removes what is in the folder and says how many files that were. */
static inline int sweep_folder(void)
{
    int            files = 0;
    DIR           *d = opendir(folder);
    struct dirent *entry;
    assert_non_null(d);
    while ((entry = readdir(d)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            files++;
            if (unlink(in_folder(entry->d_name)) != 0) rmdir(in_folder(entry->d_name));
        }
    closedir(d);
    return files;
}

static inline int remove_folder(void **state)
{
    (void)state;
    sweep_folder();
    return rmdir(folder);
}

static inline void save(const char *path, const void *data, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

#endif
