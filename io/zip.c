/* zip.c: reads one array of an .npz, which is a zip file of .npy files.
 * SPDX-License-Identifier: MIT
 */
#include "io_internal.h"

#include <string.h>
#include <unistd.h>
#include <zip.h>

/* "path: what: why" with why in libzip's words. */
static int32_t fail_zip(io_error *error, const char *shown, const char *what, zip_error_t *why)
{
    int32_t status = zip_error_code_zip(why) == ZIP_ER_MEMORY ? IO_E_MEMORY : IO_E_READ;
    return io_fail(error, status, "%s: %s: %s", shown, what, zip_error_strerror(why));
}

static int32_t read_member(io_source *source, void *to, size_t bytes, io_error *error)
{
    enum { CHUNK = 1 << 30 };
    for (size_t done = 0; done < bytes;) {
        size_t      left = bytes - done;
        zip_int64_t n = zip_fread(source->member, (char *)to + done, left < CHUNK ? left : CHUNK);
        if (n < 0) return fail_zip(error, source->shown, "damaged", zip_file_get_error(source->member));
        if (n == 0) return io_fail(error, IO_E_READ, "%s: cut short: it ends after %lld bytes", source->shown, (long long)source->at);
        done += (size_t)n;
        source->at += n;
    }
    return IO_OK;
}

/* Refuses what could cost memory or time out of proportion to the file: sizes that deflate cannot reach, other methods, encryption. */
static int32_t check_member(const zip_stat_t *st, const char *shown, io_error *error)
{
    const zip_uint64_t wanted = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    if ((st->valid & wanted) != wanted) return io_fail(error, IO_E_READ, "%s: the zip directory lacks its size", shown);
    if ((st->valid & ZIP_STAT_ENCRYPTION_METHOD) && st->encryption_method != ZIP_EM_NONE)
        return io_fail(error, IO_E_TYPE, "%s: encrypted members are not handled", shown);
    if (st->comp_method != ZIP_CM_STORE && st->comp_method != ZIP_CM_DEFLATE)
        return io_fail(error, IO_E_TYPE, "%s: zip method %d is not handled; stored and deflate are", shown, (int)st->comp_method);
    /* 258 bytes from 2 bits is the most that deflate can do */
    zip_uint64_t most = st->comp_method == ZIP_CM_STORE ? 1 : 1032;
    if (st->size > INT64_MAX || st->size / most > st->comp_size)
        return io_fail(error, IO_E_READ, "%s: %llu bytes cannot come from %llu compressed ones", shown, (unsigned long long)st->size,
                       (unsigned long long)st->comp_size);
    return IO_OK;
}

static int32_t read_index(zip_t *zip, zip_uint64_t index, const char *path, io_array *array, io_error *error)
{
    zip_stat_t st;
    char       shown[256];
    snprintf(shown, sizeof shown, "%s:%s", path, zip_get_name(zip, index, 0));
    if (zip_stat_index(zip, index, 0, &st) != 0) return fail_zip(error, shown, "cannot be opened", zip_get_error(zip));
    int32_t status = check_member(&st, shown, error);
    if (status != IO_OK) return status;
    zip_file_t *file = zip_fopen_index(zip, index, 0);
    if (!file) return fail_zip(error, shown, "cannot be opened", zip_get_error(zip));
    io_source source = {.read = read_member, .shown = shown, .size = (int64_t)st.size, .member = file};
    status = io_npy_read(&source, array, error);
    if (status == IO_OK) {
        /* the sum of the whole member is compared when its end is read */
        char        more;
        zip_int64_t n = zip_fread(file, &more, 1);
        if (n < 0) status = fail_zip(error, shown, "damaged", zip_file_get_error(file));
        if (n > 0) status = io_fail(error, IO_E_READ, "%s: holds more than the zip directory says", shown);
        if (status != IO_OK) io_free(array);
    }
    zip_fclose(file);
    return status;
}

/* Members of that name: the exact name, else with ".npy"; every ".npy" for NULL. The last one's index into *index. */
static int64_t count_members(zip_t *zip, const char *name, const char *ending, io_names *names, zip_uint64_t *index)
{
    int64_t found = 0, count = zip_get_num_entries(zip, 0);
    for (int64_t i = 0; i < count; i++) {
        const char *member = zip_get_name(zip, (zip_uint64_t)i, 0);
        size_t      n = member ? strlen(member) : 0, m = name ? strlen(name) : 0, e = strlen(ending);
        if (!member || n < e || strcmp(member + n - e, ending) != 0) continue;
        if (name && (n - e != m || memcmp(member, name, m) != 0)) continue;
        found++;
        *index = (zip_uint64_t)i;
        if (names) io_names_add(names, member);
    }
    return found;
}

static int32_t read_zip(zip_t *zip, const char *path, const char *name, io_array *array, io_error *error)
{
    zip_uint64_t index = 0, other = 0;
    io_names     names = {0};
    int64_t      all = count_members(zip, NULL, ".npy", &names, &other);
    int64_t      found = name ? count_members(zip, name, "", NULL, &index) : all;
    if (name && found == 0) found = count_members(zip, name, ".npy", NULL, &index);
    if (found == 1) return read_index(zip, name ? index : other, path, array, error);
    const char *held = io_names_text(&names);
    if (!name) return io_fail(error, IO_E_READ, "%s: say which array, as %s:NAME; the file holds %s", path, path, held);
    if (found == 0) return io_fail(error, IO_E_READ, "%s: no array '%s'; the file holds %s", path, name, held);
    return io_fail(error, IO_E_READ, "%s: %lld members are named '%s'", path, (long long)found, name);
}

int32_t io_npz_read(const char *path, const char *name, io_array *array, io_error *error)
{
    int64_t size = 0;
    int     code = 0, fd = io_open_regular(path, &size, error);
    if (fd < 0) return IO_E_READ;
    zip_t *zip = zip_fdopen(fd, 0, &code); /* takes fd over when it succeeds */
    if (!zip) {
        zip_error_t why;
        zip_error_init_with_code(&why, code);
        int32_t status = fail_zip(error, path, "not a good .npz file", &why);
        zip_error_fini(&why);
        close(fd);
        return status;
    }
    int32_t status = read_zip(zip, path, name, array, error);
    zip_discard(zip);
    return status;
}

int32_t io_npz_read_memory(const void *bytes, size_t size, const char *name, io_array *array, io_error *error)
{
    zip_error_t   why;
    int32_t       status;
    zip_source_t *source;
    io_clear(error);
    memset(array, 0, sizeof *array);
    zip_error_init(&why);
    source = zip_source_buffer_create(bytes, size, 0, &why);
    zip_t *zip = source ? zip_open_from_source(source, ZIP_RDONLY, &why) : NULL;
    if (zip) {
        status = read_zip(zip, "memory", name, array, error);
        zip_discard(zip);
    } else {
        status = fail_zip(error, "memory", "not a good .npz file", &why);
        zip_source_free(source);
    }
    zip_error_fini(&why);
    return status;
}
