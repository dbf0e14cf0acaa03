/* write.c: outputs that appear whole or not at all; .npy and .csv.
 * SPDX-License-Identifier: MIT
 */
#include "io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a file under a name of its own until it is whole ----------------------------------------------------------------------------- */

/* Not mkstemp(): its mode is 0600, and only the umask of the process says what it should be. */
static int open_temporary(io_output *output)
{
    size_t room = strlen(output->target) + 40;
    output->temporary = malloc(room);
    if (!output->temporary) return -1;
    for (int i = 0; i < 1000; i++) {
        snprintf(output->temporary, room, "%s.%ld-%d.tmp", output->target, (long)getpid(), i);
        int fd = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static int32_t fail_output(io_output *output, const char *path, int why, io_error *error)
{
    io_fail(error, why == ENOMEM ? IO_E_MEMORY : IO_E_WRITE, "%s: cannot be written: %s", path, strerror(why));
    io_output_discard(output); /* path may be its */
    return why == ENOMEM ? IO_E_MEMORY : IO_E_WRITE;
}

int32_t io_output_open(io_output *output, const char *path, io_error *error)
{
    struct stat st;
    io_clear(error);
    memset(output, 0, sizeof *output);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) return io_fail(error, IO_E_WRITE, "%s: cannot be written: not a regular file", path);
    output->target = realpath(path, NULL);
    if (!output->target && errno == ENOENT) output->target = strdup(path);
    if (!output->target) return fail_output(output, path, errno, error);
    int fd = open_temporary(output);
    if (fd < 0) {
        int why = errno;
        free(output->temporary); /* not ours */
        output->temporary = NULL;
        return fail_output(output, path, why, error);
    }
    output->file = fdopen(fd, "wb");
    if (output->file) return IO_OK;
    int why = errno;
    close(fd);
    return fail_output(output, path, why, error);
}

int32_t io_output_commit(io_output *output, io_error *error)
{
    io_clear(error);
    int failed = ferror(output->file); /* of a write some time ago, whose errno is gone; if its bytes still wait, flushing gives it again */
    int why = fflush(output->file) != 0 ? errno : failed ? EIO : 0;
    if (fclose(output->file) != 0 && !why) why = errno;
    output->file = NULL;
    if (!why && rename(output->temporary, output->target) != 0) why = errno;
    if (why) return fail_output(output, output->target, why, error);
    free(output->temporary);
    output->temporary = NULL;
    io_output_discard(output);
    return IO_OK;
}

void io_output_discard(io_output *output)
{
    if (output->file) fclose(output->file);
    if (output->temporary) unlink(output->temporary);
    free(output->temporary);
    free(output->target);
    memset(output, 0, sizeof *output);
}

/* ---- .npy ------------------------------------------------------------------------------------------------------------------------- */

/* bf16 as ml_dtypes does it: numpy knows its arrays by their size only. */
static const char *const descr[] = {
    [IO_F32] = "<f4", [IO_F64] = "<f8", [IO_F16] = "<f2", [IO_BF16] = "<V2", [IO_BOOL] = "|b1", [IO_I8] = "|i1",  [IO_U8] = "|u1",
    [IO_I16] = "<i2", [IO_U16] = "<u2", [IO_I32] = "<i4", [IO_U32] = "<u4",  [IO_I64] = "<i8",  [IO_U64] = "<u8",
};

/* Format 1.0; magic and header together are a multiple of 64 bytes, as numpy has it. */
static int write_header(FILE *file, const io_array *array)
{
    char text[512]; /* the longest dict has 8 axes of 19 digits: below 256 */
    int  n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr[array->dtype]);
    for (int32_t i = 0; i < array->rank; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%" PRId64 "%s", i ? ", " : "", array->shape[i], array->rank == 1 ? "," : "");
    n += snprintf(text + n, sizeof text - (size_t)n, "), }");
    int size = (10 + n + 1 + 63) / 64 * 64 - 10;
    fwrite("\x93NUMPY\x01\x00", 1, 8, file);
    fputc(size & 255, file);
    fputc(size >> 8, file);
    return fprintf(file, "%-*s\n", size - 1, text) == size;
}

static int write_axis(FILE *file, const io_array *array, int32_t axis, int64_t offset)
{
    size_t      bytes = io_dtype_bytes(array->dtype);
    const char *at = (const char *)array->data + offset * (int64_t)bytes;
    if (axis == array->rank) return fwrite(at, bytes, 1, file) == 1;
    size_t n = (size_t)array->shape[axis];
    if (axis == array->rank - 1 && array->stride[axis] == 1) return fwrite(at, bytes, n, file) == n;
    for (int64_t i = 0; i < array->shape[axis]; i++)
        if (!write_axis(file, array, axis + 1, offset + i * array->stride[axis])) return 0;
    return 1;
}

static int write_npy(FILE *file, const io_array *array)
{
    int empty = 0; /* (2^40, 0) must not loop */
    for (int32_t i = 0; i < array->rank; i++) empty |= array->shape[i] == 0;
    return write_header(file, array) && (empty || write_axis(file, array, 0, 0));
}

int32_t io_write_open(io_output *output, const char *path, const io_array *array, io_error *error)
{
    size_t n = strlen(path);
    int    csv = n > 4 && strcmp(path + n - 4, ".csv") == 0, npy = n > 4 && strcmp(path + n - 4, ".npy") == 0;
    io_clear(error);
    memset(output, 0, sizeof *output);
    if (!csv && !npy) return io_fail(error, IO_E_TYPE, "%s: the name of an output must end in .npy or .csv", path);
    if (!io_dtype_bytes(array->dtype) || array->rank < 0 || array->rank > IO_MAX_RANK)
        return io_fail(error, IO_E_TYPE, "%s: an array of dtype %d and %d axes cannot be written", path, (int)array->dtype,
                       (int)array->rank);
    int32_t status = io_output_open(output, path, error);
    if (status != IO_OK) return status;
    if (npy && !write_npy(output->file, array)) return fail_output(output, path, errno, error);
    if (csv) status = io_csv_write(output->file, array, path, error);
    if (status != IO_OK)
        io_output_discard(output);
    else if (fflush(output->file) != 0)
        return fail_output(output, path, errno, error);
    return status;
}

int32_t io_write(const char *path, const io_array *array, io_error *error)
{
    io_output output;
    int32_t   status = io_write_open(&output, path, array, error);
    return status == IO_OK ? io_output_commit(&output, error) : status;
}
