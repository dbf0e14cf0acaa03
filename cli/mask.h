/* mask.h: what the files of attn mask share: the masks of a call without its tensors, their shapes as options, their forms elsewhere.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_CLI_MASK_H
#define ATTN_CLI_MASK_H

#include "cli.h"

enum { MASK_ROWS = 1 << 22 }; /* batch entries * heads * queries, as far as they can differ */

/* A call of which only sizes, lists, mask and bias are known. */
typedef struct cli_mask {
    cli_call call;
    int64_t  batches, heads; /* so many entries and heads can differ: 1 where none of the inputs has that axis */
} cli_mask;

/* given: the file that convert reads, already as bytes of (batch, head, query, key) or fewer axes, taken over; NULL otherwise. Close by
 * call_close(). */
int mask_open(cli_mask *m, const cli_options *o, io_array *given);

/* ---- a plane of a mask as options (mask_form.c) --------------------------------------------------------------------------------------- */

/* What one (query, key) plane of a mask lets be seen, if it is a band: query i sees key_start <= j < key_end and i + left <= j <= i + right. */
typedef struct mask_form {
    int     fits;
    int     has_left, has_right;
    int64_t left, right, key_start, key_end;
    int64_t seen, empty_rows; /* places, and rows without one, whether it fits or not */
    int64_t before, after;    /* keys at either end that no query sees */
    int64_t diagonal;         /* places j = i that are seen */
} mask_form;

/* in: bytes, nonzero = seen, or floats, -inf = hidden; the plane begins at element `at`. inverse: the mask turned round. 0 when no memory. */
int mask_form_find(mask_form *f, const attn_in *in, int64_t at, int64_t queries, int64_t keys, int inverse);

/* The options that say the same as these forms of the batch's entries; 0 when no options do. */
int mask_form_options(char text[512], const mask_form *f, int64_t batch, int64_t queries, int64_t keys);

/* The diagonal that a form hangs on, query 0's position in the keys that it uses; 0 when it has none. */
int mask_form_offset(const mask_form *f, int64_t *offset);

int mask_lint(const cli_mask *m);
int mask_convert(const cli_options *o);

#endif
