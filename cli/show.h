/* show.h: what the files of attn show share: where weights come from, and what is drawn of them.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_CLI_SHOW_H
#define ATTN_CLI_SHOW_H

#include "cli.h"

/* One layer's weights: out of a file, or computed. */
typedef struct show_layer {
    char            name[96];
    cli_layer       layer;   /* of a checkpoint */
    cli_call        tensors; /* of Q, K and V */
    const cli_call *from;    /* one of these two, or NULL: stored */
    attn_desc       desc;    /* computed: one batch entry of it */
    io_array        stored;  /* (batch, head, query, key) or fewer axes from the left */
    int64_t         batch, heads, kv_heads, queries, keys;
} show_layer;

typedef struct cli_show {
    const cli_options *options;
    show_layer        *layer;
    int64_t            layers, heads;            /* heads shown */
    int64_t           *head;                     /* [heads]; their numbers */
    char             **query_token, **key_token; /* NULL: numbers */
    int64_t            query_tokens, key_tokens;
    char               title[200], said[320], sampled[160]; /* sampled: empty where every place is a cell */
} cli_show;

/* ---- show_source.c ---------------------------------------------------------------------------------------------------------------- */

int  show_open(cli_show *s, const cli_options *o); /* everything but title, said and sampled */
void show_close(cli_show *s);
/* The same for one layer in memory: a call that outlives s, or weights with the axes (batch, head, query, key). s->layer and s->head alone are to be
 * freed; names of positions are the caller's to set. */
int show_open_memory(cli_show *s, const cli_options *o, const cli_call *call, const io_array *weights, const char *name);

/* Means and largest weights (either may be NULL) of rows x columns cells, cell c of n places having those from floor(c n / cells) on;
 * [heads shown][rows][columns]. */
int show_map(const cli_show *s, const show_layer *l, int64_t rows, int64_t columns, float *mean, float *largest);

/* A stage (ATTN_STAGE_*; of a file, its weights) of the places from (row, column) on; [heads shown][rows][columns]. */
int show_values(const cli_show *s, const show_layer *l, int stage, int64_t row, int64_t rows, int64_t column, int64_t columns, float *to);

/* ---- show.c ------------------------------------------------------------------------------------------------------------------------- */

int    show_files(cli_show *s);              /* writes what options->png, svg and html name */
char **show_query_tokens(const cli_show *s); /* the keys' where queries are the same positions; NULL: numbers */

/* ---- show_page.c ------------------------------------------------------------------------------------------------------------------ */

enum { PAGE_CELLS = 128 }; /* of the map of a long sequence, each way */

int show_page(const cli_show *s, const char *path);

#endif
