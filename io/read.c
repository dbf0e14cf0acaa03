/* read.c: io_read: finds the format and the array that a spec names.
 * SPDX-License-Identifier: MIT
 */
#include "io_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int32_t read_npy(const char *path, io_array *array, io_error *error)
{
    io_source source;
    int32_t   status = io_source_open(&source, path, error);
    if (status != IO_OK) return status;
    status = io_npy_read(&source, array, error);
    close(source.fd);
    return status;
}

static int32_t read_csv(const char *path, io_array *array, io_error *error)
{
    io_source source;
    int32_t   status = io_source_open(&source, path, error);
    if (status != IO_OK) return status;
    char *text = malloc((size_t)source.size + 1);
    status = text ? source.read(&source, text, (size_t)source.size, error)
                  : io_fail(error, IO_E_MEMORY, "%s: no memory for %lld bytes of text", path, (long long)source.size);
    close(source.fd);
    if (status == IO_OK) {
        text[source.size] = 0;
        status = io_csv_parse(text, (size_t)source.size, path, array, error);
    }
    free(text);
    return status;
}

/* name NULL: the only one. */
static int32_t read_store(const char *path, const char *name, io_array *array, io_error *error)
{
    io_array  view;
    io_store *store = io_store_open(path, error);
    if (!store) return error->status;
    int32_t status = IO_OK;
    if (!name && io_store_count(store) != 1) {
        io_names names = {0};
        for (int64_t i = 0; i < io_store_count(store); i++) io_names_add(&names, io_store_name(store, i));
        status = io_fail(error, IO_E_READ, "%s: say which array, as %s:NAME; the file holds %s", path, path, io_names_text(&names));
    }
    if (status == IO_OK) status = io_store_get(store, name ? name : io_store_name(store, 0), &view, error);
    if (status == IO_OK) {
        int64_t bytes = 0;
        *array = view;
        io_layout(array, 0, &bytes);
        status = io_allocate(array, bytes, path, error);
        if (status == IO_OK && bytes) memcpy(array->data, view.data, (size_t)bytes);
    }
    io_store_close(store);
    return status;
}

static int ends_with(const char *text, const char *ending)
{
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

/* A spec cut at the first ".npz:" or ".safetensors:". */
static int32_t read_member(const char *spec, size_t path_bytes, io_array *array, io_error *error)
{
    char *path = strndup(spec, path_bytes);
    if (!path) return io_fail(error, IO_E_MEMORY, "%s: no memory for the name", spec);
    const char *name = spec[path_bytes] ? spec + path_bytes + 1 : NULL;
    int32_t     status = ends_with(path, ".npz") ? io_npz_read(path, name, array, error) : read_store(path, name, array, error);
    free(path);
    return status;
}

int32_t io_read(const char *spec, io_array *array, io_error *error)
{
    const char *zip = strstr(spec, ".npz:"), *store = strstr(spec, ".safetensors:");
    io_error    own; /* so that a status is there where the caller wants none */
    int32_t     status;
    if (!error) error = &own;
    io_clear(error);
    memset(array, 0, sizeof *array);
    if (zip && (!store || zip < store))
        status = read_member(spec, (size_t)(zip - spec) + strlen(".npz"), array, error);
    else if (store)
        status = read_member(spec, (size_t)(store - spec) + strlen(".safetensors"), array, error);
    else if (ends_with(spec, ".npz") || ends_with(spec, ".safetensors"))
        status = read_member(spec, strlen(spec), array, error);
    else if (ends_with(spec, ".npy"))
        status = read_npy(spec, array, error);
    else if (ends_with(spec, ".csv"))
        status = read_csv(spec, array, error);
    else
        status = io_fail(error, IO_E_TYPE, "%s: the name must end in .npy, .npz, .safetensors or .csv", spec);
    if (status != IO_OK) io_free(array);
    return status;
}
