/* array.c: element types, layout and ownership of arrays; the sentences.
 * SPDX-License-Identifier: MIT
 */
#include "io_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t      bytes;
} dtypes[] = {
    [IO_F32] = {"f32", 4}, [IO_F64] = {"f64", 8}, [IO_F16] = {"f16", 2}, [IO_BF16] = {"bf16", 2}, [IO_BOOL] = {"bool", 1},
    [IO_I8] = {"i8", 1},   [IO_U8] = {"u8", 1},   [IO_I16] = {"i16", 2}, [IO_U16] = {"u16", 2},   [IO_I32] = {"i32", 4},
    [IO_U32] = {"u32", 4}, [IO_I64] = {"i64", 8}, [IO_U64] = {"u64", 8},
};

static int known(int32_t dtype)
{
    return dtype >= IO_F32 && dtype <= IO_U64;
}

size_t io_dtype_bytes(int32_t dtype)
{
    return known(dtype) ? dtypes[dtype].bytes : 0;
}

const char *io_dtype_name(int32_t dtype)
{
    return known(dtype) ? dtypes[dtype].name : "unknown";
}

/* ---- sentences -------------------------------------------------------------------------------------------------------------------- */

/* Bytes of the printable UTF-8 character at s, 0 if there is none. C1 controls (U+0080 to U+009F) are not: terminals obey them. */
static int printable(const unsigned char *s)
{
    if (s[0] < 0x80) return s[0] >= 0x20 && s[0] != 0x7f;
    int bytes = s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < bytes; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    int too_long = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xc2 && s[1] < 0xa0);
    int no_char = (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf4 && s[1] >= 0x90);
    return too_long || no_char ? 0 : bytes;
}

void io_clear(io_error *error)
{
    if (!error) return;
    error->status = IO_OK;
    error->message[0] = 0;
}

int32_t io_fail(io_error *error, int32_t status, const char *format, ...)
{
    if (!error) return status;
    va_list args;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    error->status = status;
    for (unsigned char *s = (unsigned char *)error->message; *s;) {
        int bytes = printable(s);
        if (bytes == 0) *s = '?';
        s += bytes ? bytes : 1;
    }
    return status;
}

/* ---- layout and ownership --------------------------------------------------------------------------------------------------------- */

int32_t io_layout(io_array *array, int32_t fortran, int64_t *bytes)
{
    int64_t step = 1, elements = 1;
    for (int32_t i = 0; i < array->rank; i++) {
        int32_t axis = fortran ? i : array->rank - 1 - i;
        int64_t n = array->shape[axis];
        array->stride[axis] = step;
        if (__builtin_mul_overflow(step, n > 1 ? n : 1, &step)) return 0;
        elements *= n; /* never above step, or 0 */
    }
    if (__builtin_mul_overflow(step, (int64_t)io_dtype_bytes(array->dtype), &step)) return 0;
    *bytes = elements * (int64_t)io_dtype_bytes(array->dtype);
    return 1;
}

int32_t io_allocate(io_array *array, int64_t bytes, const char *shown, io_error *error)
{
    array->data = array->owner = malloc(bytes ? (size_t)bytes : 1);
    return array->data ? IO_OK : io_fail(error, IO_E_MEMORY, "%s: no memory for an array of %lld bytes", shown, (long long)bytes);
}

void io_free(io_array *array)
{
    if (!array) return;
    free(array->owner);
    memset(array, 0, sizeof *array);
}

/* ---- one element ------------------------------------------------------------------------------------------------------------------ */

static double from_f16(uint16_t h)
{
    int    exponent = h >> 10 & 31, fraction = h & 1023;
    double size = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
                  : exponent == 0 ? ldexp(fraction, -24)
                                  : ldexp(fraction + 1024, exponent - 25);
    return h & 0x8000 ? -size : size;
}

double io_get(const io_array *array, int64_t element_offset)
{
    size_t      bytes = io_dtype_bytes(array->dtype);
    const char *at = (const char *)array->data + element_offset * (int64_t)bytes;
    union {
        float    f32;
        double   f64;
        int8_t   i8;
        uint8_t  u8;
        int16_t  i16;
        uint16_t u16;
        int32_t  i32;
        uint32_t u32;
        int64_t  i64;
        uint64_t u64;
    } x = {.u64 = 0};
    memcpy(&x, at, bytes);
    switch (array->dtype) {
    case IO_F32:
        return (double)x.f32;
    case IO_F64:
        return x.f64;
    case IO_F16:
        return from_f16(x.u16);
    case IO_BF16:
        x.u32 = (uint32_t)x.u16 << 16;
        return (double)x.f32;
    case IO_BOOL:
        return x.u8 ? 1 : 0;
    case IO_I8:
        return x.i8;
    case IO_U8:
        return x.u8;
    case IO_I16:
        return x.i16;
    case IO_U16:
        return x.u16;
    case IO_I32:
        return x.i32;
    case IO_U32:
        return x.u32;
    case IO_I64:
        return (double)x.i64;
    case IO_U64:
        return (double)x.u64;
    default:
        return 0;
    }
}
