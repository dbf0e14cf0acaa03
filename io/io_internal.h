/* io_internal.h: what the files of io/ call in each other, and the ways in from memory that the tests use.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_IO_INTERNAL_H
#define ATTN_IO_INTERNAL_H

#include "npy.h"

#if defined __BYTE_ORDER__ && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "io/ hands file bytes out as they are and so needs a little-endian machine"
#endif

/* ---- array.c ---------------------------------------------------------------------------------------------------------------------- */

/* Fills *error (NULL is allowed), control characters and broken UTF-8 replaced by '?' since names come out of files. Returns status. */
__attribute__((format(printf, 3, 4))) int32_t io_fail(io_error *error, int32_t status, const char *format, ...);
/* No error yet. */
void io_clear(io_error *error);

/* Strides from shape, rank and dtype, and the bytes of all elements. 0 if they do not fit in 63 bits, with empty axes counted as 1
 * so that no stride overflows either. */
int32_t io_layout(io_array *array, int32_t fortran, int64_t *bytes);

/* Memory for `bytes` (at least one byte, so that an empty array is not NULL) as owner and data. */
int32_t io_allocate(io_array *array, int64_t bytes, const char *shown, io_error *error);

/* ---- source.c --------------------------------------------------------------------------------------------------------------------- */

/* Where an .npy comes from: a file, memory or a member of a zip. `read` delivers exactly `bytes` or fails with a sentence. */
typedef struct io_source {
    int32_t (*read)(struct io_source *source, void *to, size_t bytes, io_error *error);
    const char          *shown; /* its name in sentences */
    int64_t              size, at;
    int                  fd;
    const unsigned char *memory;
    void                *member;
} io_source;

/* Opens a regular file for reading and gives its size; -1 with a sentence. */
int io_open_regular(const char *path, int64_t *size, io_error *error);

int32_t   io_source_open(io_source *source, const char *path, io_error *error); /* close its fd after use */
io_source io_source_memory(const void *bytes, size_t size, const char *shown);

/* A list of names for a sentence; when it gets long it is cut and says how many there are. Start from zero. */
typedef struct io_names {
    char    text[300];
    int64_t count, shown;
} io_names;

void        io_names_add(io_names *names, const char *name);
const char *io_names_text(io_names *names); /* "a, b, ... (12)", or "none" */

/* ---- formats ---------------------------------------------------------------------------------------------------------------------- */

int32_t io_npy_read(io_source *source, io_array *array, io_error *error);

/* name NULL: the only one. */
int32_t io_npz_read(const char *path, const char *name, io_array *array, io_error *error);
int32_t io_npz_read_memory(const void *bytes, size_t size, const char *name, io_array *array, io_error *error);

/* text[size] must be a readable 0. */
int32_t io_csv_parse(const char *text, size_t size, const char *shown, io_array *array, io_error *error);
int32_t io_csv_write(FILE *file, const io_array *array, const char *shown, io_error *error);

#endif
