/* layer.h: what the files of the layer library call in each other; the only internal header of this folder.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_LAYER_LAYER_H
#define ATTN_LAYER_LAYER_H

#include <attn/attn_layer.h>
#include <stdbool.h>

/* Lengths of the first versions of what callers hand in. */
#define LAYER_FIRST_OPTIONS   (offsetof(attn_desc, work_bytes) + sizeof(size_t))
#define LAYER_FIRST_DESC      (offsetof(attn_layer_desc, work_bytes) + sizeof(size_t))
#define LAYER_FIRST_GRADIENTS (offsetof(attn_layer_gradients, work_bytes) + sizeof(size_t))

/* A checked descriptor, ready to run.
 *
 *     work:  | up to 64 | q | k | v | y | the operator's work |      each part begins on a multiple of 64 bytes
 */
struct layer_plan {
    attn_layer_desc desc;           /* the caller's, with x_key and x_value always filled */
    attn_desc       op;             /* the operator's call; its data pointers are filled when the work is known */
    size_t          part[5], bytes; /* where q, k, v, y and the operator's work begin; all of it */
};

/* Fills *error and returns status. */
int32_t attn_layer_fail(attn_error *error, int32_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));
int32_t attn_layer_ok(attn_error *error);

/* Copies a struct that grows at its end: its first member is its size, `first` the length of its first version, `known` of ours. layer_check.c */
int32_t attn_layer_read(const char *name, const void *given, size_t first, size_t known, void *copy, attn_error *error);

/* Checks desc and fills *plan; data says whether pointers and views are checked too. layer_check.c */
int32_t attn_layer_plan(const attn_layer_desc *desc, bool data, struct layer_plan *plan, attn_error *error);

/* Checks a gradients struct against a resolved descriptor, whose caller gave `given`. layer_check.c */
int32_t attn_layer_check_gradients(const attn_layer_desc *given, const attn_layer_desc *desc, const attn_layer_gradients *grad,
                                   attn_error *error);

/* The projections and the operator: q, k, v and y of the plan's parts. attn_layer.c */
int32_t attn_layer_heads(struct layer_plan *plan, char *work, attn_error *error);

/* The length of rows when CBLAS reads rows x columns elements with these strides, *transposed telling whether a row of memory is a column. 0: it cannot. */
int64_t attn_layer_leading(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, bool *transposed);

#endif
