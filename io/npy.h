/* npy.h: reads and writes arrays in files: .npy, .npz, .safetensors, .csv. Knows nothing of attention.
 * SPDX-License-Identifier: MIT
 *
 * Files are hostile: every size is checked before it is used, and what cannot be read gets one sentence. Nothing is printed.
 */
#ifndef ATTN_IO_NPY_H
#define ATTN_IO_NPY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { IO_MAX_RANK = 8 };

/* Element types; the first five are numbered as attn.h numbers them. Arrays in memory are always little endian. */
enum { IO_F32 = 1, IO_F64, IO_F16, IO_BF16, IO_BOOL, IO_I8, IO_U8, IO_I16, IO_U16, IO_I32, IO_U32, IO_I64, IO_U64 };

/* What went wrong: 0 ok; IO_E_READ the file cannot be opened or read or is not what it says; IO_E_TYPE legal but not a type or form
 * that is handled here; IO_E_WRITE an output cannot be written; IO_E_MEMORY. */
enum { IO_OK = 0, IO_E_READ = 1, IO_E_TYPE = 2, IO_E_WRITE = 3, IO_E_MEMORY = 4 };

typedef struct io_error {
    int32_t status;
    char    message[508];
} io_error;

/* An array. Strides are in elements (Fortran order arrives as strides, not as a copy). `owner` is what io_free() releases. */
typedef struct io_array {
    void   *data;
    int64_t shape[IO_MAX_RANK], stride[IO_MAX_RANK];
    void   *owner;
    int32_t dtype, rank;
} io_array;

/* Every function sets *error (which may be NULL): status 0 and an empty message on success. On failure *array is all zero. */

/* Reads one array into memory of its own (not mapped: what does not fit in memory is IO_E_MEMORY). spec is "a.npy", "a.npz:name",
 * "a.safetensors:name" or "a.csv" (one matrix of numbers, IO_F64, rank 2); the ending decides. An .npz or .safetensors that holds
 * exactly one array may be named without ":name"; else the sentence lists the names there are. In a .csv commas, semicolons or blanks
 * separate the numbers (one of the three; the decimal point is always "."); empty lines and what follows a "#" do not count. */
int32_t io_read(const char *spec, io_array *array, io_error *error);

/* The same from bytes in memory, for one .npy (the fuzz target's way in); data is copied. */
int32_t io_read_npy_memory(const void *bytes, size_t size, io_array *array, io_error *error);

void io_free(io_array *array);

/* Writes C-order .npy (any strides in) or .csv by the ending of path, as an io_output (below). bf16 in .npy is stored as ml_dtypes does
 * it. A .csv has at most 2 axes and no empty one; an array of one axis is one number a line. Its numbers read back as the same values. */
int32_t io_write(const char *path, const io_array *array, io_error *error);

/* ---- safetensors as a directory of arrays ----------------------------------------------------------------------------------------- */

typedef struct io_store io_store;

/* Maps the file, which must not shrink until close, or borrows the bytes. NULL on error. */
io_store   *io_store_open(const char *path, io_error *error);
io_store   *io_store_open_memory(const void *bytes, size_t size, io_error *error);
void        io_store_close(io_store *store);
int64_t     io_store_count(const io_store *store);
const char *io_store_name(const io_store *store, int64_t index); /* in file order */
/* The array of that name, C order, read only, inside the mapping (valid until close; io_free() on it does nothing). 1 found, 0 not.
 * Data that the file keeps at an address its type cannot have is copied once, at the first call that asks for it, into the store; any threads
 * may ask. An array that is there but cannot be handed out (a type such as F8_E4M3, more than IO_MAX_RANK axes, no memory for that copy) is
 * found with dtype 0 and data NULL. */
int32_t io_store_find(const io_store *store, const char *name, io_array *array);
/* The same with a sentence where there is none of that name (IO_E_READ), or where it cannot be handed out (IO_E_TYPE, IO_E_MEMORY). */
int32_t io_store_get(const io_store *store, const char *name, io_array *array, io_error *error);
/* A string of the file's __metadata__, or NULL. */
const char *io_store_metadata(const io_store *store, const char *key);

/* ---- outputs ---------------------------------------------------------------------------------------------------------------------- */

/* A file that appears whole or not at all: what is written to `file` goes to a temporary file beside the target (beside what it points to,
 * where it is a symbolic link), and commit renames it. When open or commit fails, nothing is left behind and the target is as it was. */
typedef struct io_output {
    FILE *file;
    char *target, *temporary;
} io_output;

int32_t io_output_open(io_output *output, const char *path, io_error *error);
int32_t io_output_commit(io_output *output, io_error *error); /* also says when an earlier write to `file` failed */
void    io_output_discard(io_output *output);                 /* does nothing after commit or a failed open */

/* io_write() up to the commit: all bytes are on their way to the disk, the target is as it was. For results of which all are to appear or none. */
int32_t io_write_open(io_output *output, const char *path, const io_array *array, io_error *error);

/* ---- scalars ---------------------------------------------------------------------------------------------------------------------- */

size_t      io_dtype_bytes(int32_t dtype);
const char *io_dtype_name(int32_t dtype);                          /* "f32", "bool", ... */
double      io_get(const io_array *array, int64_t element_offset); /* one element as double (integers past 2^53 rounded) */

#endif
