/* npy.c: reads one .npy, formats 1.0, 2.0 and 3.0 (numpy/lib/format.py describes them).
 * SPDX-License-Identifier: MIT
 *
 *     "\x93NUMPY"  major minor  header bytes (u16, from 2.0 on u32)  header  data
 *
 * The header is the text of a Python dict: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
 */
#include "io_internal.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER_LIMIT = 65536 }; /* numpy itself writes about 118 bytes for every type that is read here */

struct header {
    const char *at, *end, *shown;
    char        descr[32];
    int32_t     swap, fortran;
    unsigned    seen; /* keys, one bit each */
};

static int32_t bad_header(const struct header *h, const char *what, io_error *error)
{
    return io_fail(error, IO_E_READ, "%s: the .npy header %s", h->shown, what);
}

/* ---- the dict --------------------------------------------------------------------------------------------------------------------- */

static void skip_blanks(struct header *h)
{
    while (h->at < h->end && (*h->at == ' ' || *h->at == '\n' || *h->at == '\t' || *h->at == '\r')) h->at++;
}

static int accept(struct header *h, const char *word)
{
    size_t n = strlen(word);
    skip_blanks(h);
    if ((size_t)(h->end - h->at) < n || memcmp(h->at, word, n) != 0) return 0;
    h->at += n;
    return 1;
}

/* A quoted string without escapes, cut to what fits in to[size]. */
static int take_string(struct header *h, char *to, size_t size)
{
    skip_blanks(h);
    if (h->at == h->end || (*h->at != '\'' && *h->at != '"')) return 0;
    char   quote = *h->at++;
    size_t n = 0;
    for (; h->at < h->end && *h->at != quote; h->at++) {
        if (*h->at == '\\' || *h->at == '\n' || *h->at == 0) return 0;
        if (n + 1 < size) to[n++] = *h->at;
    }
    to[n] = 0;
    return h->at < h->end && *h->at++ == quote;
}

/* (), (3,), (3, 4) or (3, 4,); Python 2 wrote 3L on some systems. */
static int32_t take_shape(struct header *h, io_array *array, io_error *error)
{
    if (!accept(h, "(")) return bad_header(h, "has a shape that is not a tuple", error);
    int32_t comma = 1;
    while (!accept(h, ")")) {
        if (h->at == h->end || *h->at < '0' || *h->at > '9')
            return bad_header(h, "has a shape of something else than whole numbers", error);
        if (!comma) return bad_header(h, "has a shape without commas", error);
        int64_t n = 0;
        for (; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++)
            if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *h->at - '0', &n))
                return bad_header(h, "has an axis of more than 2^63 - 1", error);
        if (h->at < h->end && *h->at == 'L') h->at++;
        if (array->rank == IO_MAX_RANK)
            return io_fail(error, IO_E_TYPE, "%s: an array of more than %d axes is not handled", h->shown, IO_MAX_RANK);
        array->shape[array->rank++] = n;
        comma = accept(h, ",");
    }
    if (array->rank == 1 && !comma) return bad_header(h, "has a shape that is not a tuple", error);
    return IO_OK;
}

static int32_t take_descr(struct header *h, io_error *error)
{
    if (accept(h, "[") || accept(h, "(") || accept(h, "{"))
        return io_fail(error, IO_E_TYPE, "%s: a structured dtype (named fields) is not handled; save the fields one by one", h->shown);
    return take_string(h, h->descr, sizeof h->descr) ? IO_OK : bad_header(h, "has a 'descr' that is not a string", error);
}

static int32_t take_item(struct header *h, io_array *array, io_error *error)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char                     key[16];
    unsigned                 k = 0;
    if (!take_string(h, key, sizeof key)) return bad_header(h, "is not a dict with quoted keys", error);
    while (k < 3 && strcmp(key, keys[k]) != 0) k++;
    if (k == 3) return io_fail(error, IO_E_READ, "%s: the .npy header has the unknown key '%s'", h->shown, key);
    if (h->seen & 1u << k) return io_fail(error, IO_E_READ, "%s: the .npy header has the key '%s' twice", h->shown, key);
    h->seen |= 1u << k;
    if (!accept(h, ":")) return bad_header(h, "has a key without ':'", error);
    if (k == 0) return take_descr(h, error);
    if (k == 2) return take_shape(h, array, error);
    h->fortran = accept(h, "True");
    return h->fortran || accept(h, "False") ? IO_OK : bad_header(h, "has a 'fortran_order' that is neither True nor False", error);
}

static int32_t take_dict(struct header *h, io_array *array, io_error *error)
{
    if (!accept(h, "{")) return bad_header(h, "is not a dict", error);
    int32_t comma = 1;
    while (!accept(h, "}")) {
        if (!comma) return bad_header(h, "has no ',' or '}' after a value", error);
        int32_t status = take_item(h, array, error);
        if (status != IO_OK) return status;
        comma = accept(h, ",");
    }
    skip_blanks(h);
    if (h->at != h->end) return bad_header(h, "goes on after its dict", error);
    return h->seen == 7 ? IO_OK : bad_header(h, "lacks one of 'descr', 'fortran_order' and 'shape'", error);
}

/* ---- types ------------------------------------------------------------------------------------------------------------------------ */

/* ml_dtypes has no letter of its own for bf16: numpy writes its arrays as '<V2', and '|V2' after a plain load and save. */
static int32_t find_dtype(struct header *h, int32_t *dtype, io_error *error)
{
    static const struct {
        char    text[3];
        int32_t dtype;
    } table[] = {
        {"f4", IO_F32}, {"f8", IO_F64}, {"f2", IO_F16}, {"V2", IO_BF16}, {"b1", IO_BOOL}, {"i1", IO_I8},  {"u1", IO_U8},
        {"i2", IO_I16}, {"u2", IO_U16}, {"i4", IO_I32}, {"u4", IO_U32},  {"i8", IO_I64},  {"u8", IO_U64},
    };
    char order = h->descr[0];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!order || strcmp(h->descr + 1, table[i].text) != 0) continue;
        size_t bytes = io_dtype_bytes(table[i].dtype);
        int    is_void = table[i].dtype == IO_BF16;
        if (order != '<' && !(order == '>' && !is_void) && !(order == '|' && (bytes == 1 || is_void))) continue;
        h->swap = order == '>' && bytes > 1;
        *dtype = table[i].dtype;
        return IO_OK;
    }
    if (strcmp(h->descr, "|O") == 0 || strcmp(h->descr, "O") == 0)
        return io_fail(error, IO_E_TYPE, "%s: an array of Python objects (pickled) is not handled", h->shown);
    return io_fail(error, IO_E_TYPE, "%s: dtype '%s' is not handled; handled are f2, f4, f8, V2 (as bfloat16), b1, i1 to i8 and u1 to u8",
                   h->shown, h->descr);
}

static void swap_bytes(unsigned char *data, int64_t bytes, int64_t size)
{
    for (int64_t at = 0; at < bytes; at += size)
        for (int64_t i = 0; i < size / 2; i++) {
            unsigned char t = data[at + i];
            data[at + i] = data[at + size - 1 - i];
            data[at + size - 1 - i] = t;
        }
}

/* ---- the file --------------------------------------------------------------------------------------------------------------------- */

static int32_t read_header(io_source *source, struct header *h, io_array *array, io_error *error)
{
    unsigned char start[12];
    if (source->size < 12)
        return io_fail(error, IO_E_READ, "%s: %lld bytes are too short for an .npy file", source->shown, (long long)source->size);
    int32_t status = source->read(source, start, 10, error);
    if (status != IO_OK) return status;
    if (memcmp(start, "\x93NUMPY", 6) != 0)
        return io_fail(error, IO_E_READ, "%s: not an .npy file (it does not begin with \\x93NUMPY)", source->shown);
    if (start[6] < 1 || start[6] > 3 || start[7] != 0)
        return io_fail(error, IO_E_TYPE, "%s: .npy format %d.%d is not handled; 1.0, 2.0 and 3.0 are", source->shown, start[6], start[7]);
    size_t size = (size_t)(start[8] | start[9] << 8);
    if (start[6] > 1) {
        status = source->read(source, start + 10, 2, error);
        if (status != IO_OK) return status;
        size |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
    }
    if (size > HEADER_LIMIT)
        return io_fail(error, IO_E_READ, "%s: an .npy header of %zu bytes is above the limit of %d", source->shown, size, HEADER_LIMIT);
    char *text = malloc(size ? size : 1);
    if (!text) return io_fail(error, IO_E_MEMORY, "%s: no memory for the header", source->shown);
    *h = (struct header){.at = text, .end = text + size, .shown = source->shown};
    status = source->read(source, text, size, error);
    if (status == IO_OK) status = take_dict(h, array, error);
    free(text);
    return status == IO_OK ? find_dtype(h, &array->dtype, error) : status;
}

static int32_t read_array(io_source *source, io_array *array, io_error *error)
{
    struct header h;
    int64_t       bytes;
    int32_t       status = read_header(source, &h, array, error);
    if (status != IO_OK) return status;
    if (!io_layout(array, h.fortran, &bytes)) return bad_header(&h, "has a shape of more than 2^63 - 1 bytes", error);
    int64_t left = source->size - source->at;
    if (left < bytes)
        return io_fail(error, IO_E_READ, "%s: cut short: %lld bytes of data, and its header promises %lld", source->shown, (long long)left,
                       (long long)bytes);
    if (left > bytes)
        return io_fail(error, IO_E_READ, "%s: %lld bytes follow the array; a file of several arrays is not handled", source->shown,
                       (long long)(left - bytes));
    status = io_allocate(array, bytes, source->shown, error);
    if (status == IO_OK) status = source->read(source, array->data, (size_t)bytes, error);
    if (status == IO_OK && h.swap) swap_bytes(array->data, bytes, (int64_t)io_dtype_bytes(array->dtype));
    return status;
}

int32_t io_npy_read(io_source *source, io_array *array, io_error *error)
{
    memset(array, 0, sizeof *array);
    int32_t status = read_array(source, array, error);
    if (status != IO_OK) io_free(array);
    return status;
}

int32_t io_read_npy_memory(const void *bytes, size_t size, io_array *array, io_error *error)
{
    io_source source = io_source_memory(bytes, size, "memory");
    io_clear(error);
    return io_npy_read(&source, array, error);
}
