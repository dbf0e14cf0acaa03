/* demo.h: the trained layer that the demonstration shows, and what is asked of it.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_CLI_DEMO_H
#define ATTN_CLI_DEMO_H

#include "cli.h"

/* A file that holds one layer, a sentence's hidden states, and what another system computed from them. */
typedef struct demo_model {
    io_store              *store;
    char                 **token;
    const char            *sentence, *source, *computed_by;
    int64_t                layer, head, n;
    attn_layer_checkpoint *checkpoint;
    io_array               hidden, want_weights, want_output; /* (n, width), (heads, n, n), (n, out_width) */
} demo_model;

int  demo_open(demo_model *m, const char *path); /* path NULL: looks where the program's own file may be; an exit code */
void demo_close(demo_model *m);

#endif
