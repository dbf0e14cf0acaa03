/* store.c: a .safetensors file as a directory of arrays (https://github.com/huggingface/safetensors describes it).
 * SPDX-License-Identifier: MIT
 *
 *     header bytes (u64)  header  data
 *
 * The header is JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {"key": "text"}}.
 * The arrays cover the data from its first byte to its last, without holes and without overlaps.
 */
#include "io_internal.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEADER_LIMIT 100000000 /* the limit of the safetensors library */

struct entry {
    const char     *name;      /* lives in the header's JSON */
    const char     *unhandled; /* why it cannot be handed out, or NULL */
    io_array        array;     /* data inside the file */
    int64_t         begin, end;
    _Atomic(void *) aligned; /* the copy, where the file's place does not suit the type */
};

struct io_store {
    json_t              *header;
    struct entry        *entries;
    const unsigned char *bytes;
    size_t               size;
    int64_t              count;
    int32_t              mapped;
    char                *shown;
};

static int32_t bad(const io_store *s, const char *name, const char *what, io_error *error)
{
    return io_fail(error, IO_E_READ, "%s: array '%s' %s", s->shown, name, what);
}

/* ---- one array of the header ------------------------------------------------------------------------------------------------------ */

/* 0: not handled, such as F8_E4M3; then only its place in the file is checked. */
static int32_t find_dtype(const char *name)
{
    static const struct {
        const char *name;
        int32_t     dtype;
    } table[] = {
        {"F32", IO_F32}, {"F16", IO_F16}, {"BF16", IO_BF16}, {"F64", IO_F64}, {"BOOL", IO_BOOL}, {"I8", IO_I8},   {"U8", IO_U8},
        {"I16", IO_I16}, {"U16", IO_U16}, {"I32", IO_I32},   {"U32", IO_U32}, {"I64", IO_I64},   {"U64", IO_U64},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, name) == 0) return table[i].dtype;
    return 0;
}

static int32_t take_shape(const io_store *s, struct entry *e, const json_t *shape, io_error *error)
{
    int64_t bytes = 0;
    size_t  rank = json_array_size(shape);
    if (!json_is_array(shape)) return bad(s, e->name, "has no shape", error);
    for (size_t i = 0; i < rank; i++) {
        const json_t *n = json_array_get(shape, i);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return bad(s, e->name, "has a shape of something else than whole numbers", error);
        if (i < IO_MAX_RANK) e->array.shape[i] = json_integer_value(n);
    }
    e->array.rank = rank <= IO_MAX_RANK ? (int32_t)rank : 0;
    if (!e->array.dtype) e->unhandled = "has a dtype that is not handled";
    if (rank > IO_MAX_RANK) e->unhandled = "has more than 8 axes, which is not handled";
    if (e->unhandled) return IO_OK;
    if (!io_layout(&e->array, 0, &bytes)) return bad(s, e->name, "has a shape of more than 2^63 - 1 bytes", error);
    return e->end - e->begin == bytes ? IO_OK : bad(s, e->name, "has data_offsets that do not fit its shape and dtype", error);
}

static int32_t take_entry(const io_store *s, struct entry *e, const json_t *info, int64_t data_bytes, io_error *error)
{
    const char   *dtype = json_string_value(json_object_get(info, "dtype"));
    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (!json_is_object(info) || json_object_size(info) != 3)
        return bad(s, e->name, "must have exactly dtype, shape and data_offsets", error);
    if (!dtype) return bad(s, e->name, "has no dtype", error);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return bad(s, e->name, "has no data_offsets [begin, end]", error);
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    if (e->begin < 0 || e->end < e->begin || e->end > data_bytes) return bad(s, e->name, "has data_offsets outside the file", error);
    e->array.dtype = find_dtype(dtype);
    return take_shape(s, e, json_object_get(info, "shape"), error);
}

/* ---- the header ------------------------------------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const struct entry *x = *(const struct entry *const *)a, *y = *(const struct entry *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Every byte of the data belongs to exactly one array. */
static int32_t check_cover(const io_store *s, int64_t data_bytes, io_error *error)
{
    const struct entry **order = malloc(((size_t)s->count + 1) * sizeof *order);
    int64_t              at = 0;
    int32_t              status = IO_OK;
    if (!order) return io_fail(error, IO_E_MEMORY, "%s: no memory for %lld arrays", s->shown, (long long)s->count);
    for (int64_t i = 0; i < s->count; i++) order[i] = &s->entries[i];
    qsort(order, (size_t)s->count, sizeof *order, by_place);
    for (int64_t i = 0; i < s->count && status == IO_OK; i++) {
        if (order[i]->begin < at) status = bad(s, order[i]->name, "overlaps another one", error);
        if (order[i]->begin > at) status = bad(s, order[i]->name, "does not begin where the one before it ends (a hole)", error);
        at = order[i]->end;
    }
    if (status == IO_OK && at != data_bytes)
        status = io_fail(error, IO_E_READ, "%s: %lld bytes after the last array", s->shown, (long long)(data_bytes - at));
    free(order);
    return status;
}

static int32_t take_metadata(const io_store *s, json_t *metadata, io_error *error)
{
    const char *key;
    json_t     *value;
    int32_t     good = json_is_object(metadata);
    json_object_foreach(metadata, key, value) good &= json_is_string(value);
    return good ? IO_OK : io_fail(error, IO_E_READ, "%s: __metadata__ must hold strings only", s->shown);
}

static int32_t take_entries(io_store *s, size_t data_at, io_error *error)
{
    const char *name;
    json_t     *info;
    int32_t     status = IO_OK;
    int64_t     data_bytes = (int64_t)(s->size - data_at);
    s->entries = calloc(json_object_size(s->header) + 1, sizeof *s->entries);
    if (!s->entries) return io_fail(error, IO_E_MEMORY, "%s: no memory for %zu arrays", s->shown, json_object_size(s->header));
    json_object_foreach(s->header, name, info)
    {
        if (strcmp(name, "__metadata__") == 0) {
            status = take_metadata(s, info, error);
        } else {
            struct entry *e = &s->entries[s->count++];
            e->name = name;
            status = take_entry(s, e, info, data_bytes, error);
            if (status == IO_OK) e->array.data = (void *)(uintptr_t)(s->bytes + data_at + e->begin); /* read only, io_store_find() says */
        }
        if (status != IO_OK) return status;
    }
    return check_cover(s, data_bytes, error);
}

static int32_t take_header(io_store *s, io_error *error)
{
    uint64_t     bytes = 0;
    json_error_t why;
    if (s->size < 8) return io_fail(error, IO_E_READ, "%s: %zu bytes are too short for a .safetensors file", s->shown, s->size);
    memcpy(&bytes, s->bytes, 8);
    if (bytes > HEADER_LIMIT)
        return io_fail(error, IO_E_READ, "%s: not a .safetensors file, or its header of %llu bytes is above the limit of %d", s->shown,
                       (unsigned long long)bytes, HEADER_LIMIT);
    if (bytes > s->size - 8)
        return io_fail(error, IO_E_READ, "%s: cut short: a header of %llu bytes in a file of %zu", s->shown, (unsigned long long)bytes,
                       s->size);
    s->header = json_loadb((const char *)s->bytes + 8, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!s->header && (!why.text[0] || json_error_code(&why) == json_error_out_of_memory)) /* no text: an allocation inside failed */
        return io_fail(error, IO_E_MEMORY, "%s: no memory for the header", s->shown);
    if (!s->header) return io_fail(error, IO_E_READ, "%s: the header is not good JSON: %s", s->shown, why.text);
    if (!json_is_object(s->header)) return io_fail(error, IO_E_READ, "%s: the header is not a JSON object", s->shown);
    return take_entries(s, 8 + (size_t)bytes, error);
}

/* ---- open and close --------------------------------------------------------------------------------------------------------------- */

static io_store *open_bytes(const void *bytes, size_t size, int32_t mapped, const char *shown, io_error *error)
{
    io_store *s = calloc(1, sizeof *s);
    int32_t   status = IO_OK;
    if (!s || !(s->shown = strdup(shown))) {
        status = io_fail(error, IO_E_MEMORY, "%s: no memory to open it", shown);
        if (mapped) munmap((void *)(uintptr_t)bytes, size);
    } else {
        s->bytes = bytes;
        s->size = size;
        s->mapped = mapped;
        status = take_header(s, error);
    }
    if (status == IO_OK) return s;
    io_store_close(s);
    return NULL;
}

io_store *io_store_open(const char *path, io_error *error)
{
    int64_t size = 0;
    io_clear(error);
    int fd = io_open_regular(path, &size, error);
    if (fd < 0) return NULL;
    void *bytes = size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    close(fd);
    if (bytes == MAP_FAILED) {
        io_fail(error, IO_E_MEMORY, "%s: %lld bytes cannot be mapped", path, (long long)size);
        return NULL;
    }
    return open_bytes(bytes, (size_t)size, bytes != NULL, path, error);
}

io_store *io_store_open_memory(const void *bytes, size_t size, io_error *error)
{
    io_clear(error);
    return open_bytes(bytes, size, 0, "memory", error);
}

void io_store_close(io_store *store)
{
    if (!store) return;
    for (int64_t i = 0; i < store->count; i++) free(atomic_load(&store->entries[i].aligned));
    if (store->mapped) munmap((void *)(uintptr_t)store->bytes, store->size);
    json_decref(store->header);
    free(store->entries);
    free(store->shown);
    free(store);
}

/* ---- what is in it ---------------------------------------------------------------------------------------------------------------- */

int64_t io_store_count(const io_store *store)
{
    return store->count;
}

const char *io_store_name(const io_store *store, int64_t index)
{
    return index >= 0 && index < store->count ? store->entries[index].name : NULL;
}

const char *io_store_metadata(const io_store *store, const char *key)
{
    return json_string_value(json_object_get(json_object_get(store->header, "__metadata__"), key));
}

/* The place that the type can be read from: in the file, or the copy. Several threads may ask at once; one copy wins. NULL: no memory. */
static void *aligned_data(struct entry *e)
{
    size_t bytes = (size_t)(e->end - e->begin);
    if ((uintptr_t)e->array.data % io_dtype_bytes(e->array.dtype) == 0) return e->array.data;
    void *had = atomic_load(&e->aligned);
    if (had) return had;
    void *copy = malloc(bytes ? bytes : 1);
    if (!copy) return NULL;
    if (bytes) memcpy(copy, e->array.data, bytes);
    if (atomic_compare_exchange_strong(&e->aligned, &had, copy)) return copy;
    free(copy);
    return had;
}

int32_t io_store_get(const io_store *store, const char *name, io_array *array, io_error *error)
{
    io_clear(error);
    memset(array, 0, sizeof *array);
    for (int64_t i = 0; i < store->count; i++) {
        struct entry *e = &store->entries[i];
        if (strcmp(e->name, name) != 0) continue;
        if (e->unhandled) {
            const char *dtype = json_string_value(json_object_get(json_object_get(store->header, name), "dtype"));
            return io_fail(error, IO_E_TYPE, "%s: array '%s' (%s) %s", store->shown, name, dtype, e->unhandled);
        }
        void *data = aligned_data(e);
        if (!data) return io_fail(error, IO_E_MEMORY, "%s: no memory for an aligned copy of '%s'", store->shown, name);
        *array = e->array;
        array->data = data;
        return IO_OK;
    }
    io_names names = {0};
    for (int64_t i = 0; error && i < store->count; i++) io_names_add(&names, store->entries[i].name);
    return io_fail(error, IO_E_READ, "%s: no array '%s'; the file holds %s", store->shown, name, io_names_text(&names));
}

int32_t io_store_find(const io_store *store, const char *name, io_array *array)
{
    return io_store_get(store, name, array, NULL) != IO_E_READ;
}
