/* fuzz_io.h: what every fuzz target of a reader asks of its answer.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_FUZZ_IO_H
#define ATTN_TESTS_FUZZ_IO_H

#include "io/io_internal.h"

#include <stdlib.h>
#include <string.h>

#define FUZZ_ASSERT(condition) ((condition) ? (void)0 : abort())

/* Reads every element through the strides, so that a sanitizer sees one outside. */
static inline double fuzz_walk(const io_array *array, int32_t axis, int64_t offset)
{
    double sum = 0;
    if (axis >= array->rank || axis >= IO_MAX_RANK) return io_get(array, offset);
    for (int64_t i = 0; i < array->shape[axis]; i++) sum += fuzz_walk(array, axis + 1, offset + i * array->stride[axis]);
    return sum;
}

/* A status of 0 comes with a readable array and no sentence, every other with a sentence and no array. */
static inline void fuzz_check(int32_t status, const io_array *array, const io_error *error)
{
    static const io_array nothing;
    FUZZ_ASSERT(error->status == status && (status == IO_OK) == (error->message[0] == 0));
    for (const char *s = error->message; *s; s++) FUZZ_ASSERT((unsigned char)*s >= 0x20 && *s != 0x7f);
    if (status != IO_OK) {
        FUZZ_ASSERT(memcmp(array, &nothing, sizeof nothing) == 0);
        return;
    }
    int empty = 0; /* (2^40, 0) would take long to walk */
    for (int32_t i = 0; i < array->rank; i++) empty |= array->shape[i] == 0;
    FUZZ_ASSERT(array->data && (uintptr_t)array->data % io_dtype_bytes(array->dtype) == 0);
    volatile double sink = empty ? 0 : fuzz_walk(array, 0, 0);
    (void)sink;
}

#endif
