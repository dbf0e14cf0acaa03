/* explain.h: one row of attention with every number of it: who computes it, who prints it.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_CLI_EXPLAIN_H
#define ATTN_CLI_EXPLAIN_H

#include "cli.h"

/* ---- the numbers (row.c) ---------------------------------------------------------------------------------------------------------- */

typedef struct row_key {
    double   dot, scaled, capped, bias, alibi, score; /* alibi: -slope * distance; score -inf where not seen */
    double   less_max, exp, weight;                   /* score - max, exp of that, exp / sum; -inf, 0, 0 where not seen */
    double   value_size, contribution_size, share;    /* |v|, weight * |v|, part of the output (sums to 1; NaN for an output of 0) */
    int64_t  key;
    unsigned hidden, reserved; /* 1 << SEEN_..; 0 = seen */
} row_key;

/* All in double precision (sums in long double), from the inputs as they are stored. */
typedef struct cli_row {
    const attn_desc *desc;
    int64_t          batch, head, kv_head, query;
    int64_t          offset, query_count, key_start, key_count;
    double           scale, slope, sink;          /* sink -inf: none */
    double           max, sum, lse;               /* the sink is in them; -inf, 0, -inf when nothing is seen */
    double           sink_exp, sink_weight;       /* the sink's part of the sum */
    double           weights, entropy, effective; /* over the keys: sum, -sum w ln w, and how many keys of equal weight are as spread out */
    double           mixed;                       /* the largest sum w |v| of a channel: what |out| would be if nothing cancelled */
    double           terms;                       /* the largest |scale| sum |q k| + |bias| + |alibi|: how inexact scores are */
    int64_t          seen;                        /* keys */
    row_key         *key;                         /* desc->keys of them, in the order of the keys */
    double          *out;                         /* desc->value_dim */
} cli_row;

/* row_open() does all of it for one row of a descriptor that attn_check() accepts; an exit code. row_close() always. */
int  row_open(cli_row *r, const attn_desc *d, int64_t batch, int64_t head, int64_t query);
void row_close(cli_row *r);

/* Its steps, for those who change something in between: memory and positions, who is seen, scores (of hidden keys too or not), softmax, output,
 * the keys' parts of it. */
int  row_begin(cli_row *r, const attn_desc *d, int64_t batch, int64_t head, int64_t query);
void row_see(cli_row *r);
void row_score(cli_row *r, int hidden);
void row_soften(cli_row *r);
void row_mix(cli_row *r);
void row_share(cli_row *r);

double      row_q(const cli_row *r, int64_t channel); /* one element of the inputs */
double      row_k(const cli_row *r, int64_t key, int64_t channel);
double      row_v(const cli_row *r, int64_t key, int64_t channel);
int64_t     row_distance(const cli_row *r, int64_t key);                /* key's place - query's place */
const char *row_why(char text[80], unsigned hidden, const char *comma); /* "causal, mask" */
const char *row_reason(int reason);                                     /* one word for SEEN_..; NULL past the last */

/* A call of `count` queries of one head of one batch entry; where they stand is said in numbers, for which `place` is the room. */
void row_slice(attn_desc *part, const attn_desc *d, int64_t b, int64_t h, int64_t i, int64_t count, int64_t place[4]);

/* What the kernels give for the same row, beside the row's own numbers: the call as it is, and in f64. */
typedef struct row_check {
    struct {
        int32_t dtype, ok;
        double  out, lse, weight;       /* largest differences */
        double  out_accepted, accepted; /* for the output, for lse and weights */
    } kernel[2];
} row_check;

int row_check_run(row_check *c, const cli_row *r); /* an exit code */

/* ---- what is printed ---------------------------------------------------------------------------------------------------------------- */

enum { EXPLAIN_CHANNELS = 16 }; /* contributions in the table */
enum { EXPLAIN_BY_KEY, EXPLAIN_BY_WEIGHT, EXPLAIN_BY_SCORE, EXPLAIN_BY_SHARE };

/* What is said of a row besides its numbers; everything may be 0 or NULL. */
typedef struct explain_view {
    char           **token, **query_token;   /* names of keys and queries */
    const char      *scale_from, *mask_from; /* where the scale comes from, which convention the mask follows */
    const char      *isa;                    /* of the check */
    const row_check *check;
    int64_t          top;   /* only so many keys, the heaviest; 0 = all */
    int64_t          why;   /* the key to write out, counted from 1; 0 = none */
    int              sort;  /* EXPLAIN_BY_* */
    int              stage; /* ATTN_STAGE_* + 1: no further than this step; 0 = all */
    int              digits;
    const cli_list  *channels; /* contributions of these; NULL or none = all up to 4 */
} explain_view;

/* The columns (explain_table.c). A column that adds up has its total below. */
enum { EXPLAIN_STAGE_WEIGHT = ATTN_STAGE_BIASED + 1, EXPLAIN_STAGE_OUTPUT };

typedef struct explain_column {
    const char *name, *title; /* in JSON and .csv; in the table */
    size_t      at;           /* in row_key */
    int         stage, adds;  /* from which step of the formula on */
} explain_column;

extern const explain_column explain_columns[];
extern const int            explain_column_count;

double    explain_value(const row_key *k, const explain_column *c);
int       explain_stage(const explain_view *v); /* the last step to be shown, in the order of the formula */
row_key **explain_order(const cli_row *r, const explain_view *v,
                        int64_t *count); /* malloc'ed; count of those to be shown; NULL when no memory */

/* x with so many decimals. explain_add() adds what is printed to a sum in units of the last digit; explain_rest() writes what is missing to the
 * printed total, and returns 0 when nothing is (or where the numbers are none or too large for that). */
enum { EXPLAIN_CELL = 48 };
void explain_number(char text[EXPLAIN_CELL], double x, int digits);
void explain_add(int64_t *units, const char *text);
int  explain_rest(char text[EXPLAIN_CELL], const char *total, int64_t units, int digits);

#define EXPLAIN_NOTE "weights tell where values were read, not why a model decided"
const char *explain_scale_from(const cli_row *r, const explain_view *v);
const char *explain_mask_from(const explain_view *v);

int     explain_table(const cli_row *r, const explain_view *v);
int     explain_csv(const cli_row *r, const explain_view *v);
int     explain_print(const cli_row *r, const explain_view *v); /* explain_text.c: all that is said of a row */
json_t *explain_json(const cli_row *r, const explain_view *v);  /* explain_json.c: the schema of attn-explain(1); NULL when no memory */

#endif
