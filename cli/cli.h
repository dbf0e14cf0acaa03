/* cli.h: what the files of the command share: exit codes, options, messages, one call of the operator on files.
 * SPDX-License-Identifier: MIT
 *
 * Results go to stdout, everything said to a person goes to stderr. A failure is the library's (or the reader's) sentence, then what was
 * read and assumed, then the likely fix. Every function that can fail returns an exit code, having said why.
 */
#ifndef ATTN_CLI_H
#define ATTN_CLI_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <attn/attn_layer.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include "npy.h"

/* Exit codes; pinned, listed in attn(1). */
enum {
    CLI_OK = 0,
    CLI_CHECK = 1,       /* a check failed */
    CLI_USAGE = 2,       /* the command line */
    CLI_INPUT = 3,       /* an input cannot be read */
    CLI_FIT = 4,         /* shapes or types do not fit */
    CLI_UNSUPPORTED = 5, /* legal, but not handled here or on this CPU */
    CLI_OUTPUT = 6,      /* an output cannot be written, or no memory or thread is left */
    CLI_INTERNAL = 70    /* a fault of the program */
};

/* ---- options (options.c) ---------------------------------------------------------------------------------------------------------- */

enum {
    CLI_RUN = 1,
    CLI_LAYER = 2,
    CLI_COMPARE = 4,
    CLI_COST = 8,
    CLI_INFO = 16,
    CLI_DEMO = 32,
    CLI_EXPLAIN = 64,
    CLI_LESSON = 128,
    CLI_COMPLETION = 1024,
    CLI_MASK = 256,
    CLI_SHOW = 512
}; /* subcommands, as bits */

typedef struct cli_count {
    int64_t value;
    int     given;
} cli_count;

typedef struct cli_real {
    double value;
    int    given;
} cli_real;

typedef struct cli_list {
    int64_t *at;
    int64_t  count; /* 0 = not given */
} cli_list;

typedef struct cli_pair {
    int64_t first, second;
    int     given;
} cli_pair;

typedef struct cli_real_pair {
    double first, second;
    int    given;
} cli_real_pair;

/* All subcommands' options; 0 or NULL is "not given" everywhere. */
typedef struct cli_options {
    char    **operand;
    int       operands;
    int       help, json, quiet, causal, csv, plan;
    int       align, stage, dtype, out_dtype, sort; /* index in the option's list of words, counted from 1 */
    int       from, to, colour, log, largest;       /* from, to, colour: the same */
    cli_count heads, kv_heads, dim, value_dim, batch, threads, layer, head, queries, keys, entry, row, why, top, digits, limit,
        dropout_seed;
    cli_list      query_offset, query_count, key_count, key_start, tokens, channels, layers;
    cli_pair      window, region;
    cli_real      scale, softcap, dropout;
    cli_real_pair tolerance;
    const char   *output, *layout, *allow, *hide, *bias, *alibi, *sink, *lse, *weights, *isa;
    const char   *against, *input, *kv_input, *prefix, *png, *svg, *html, *data, *q, *k, *v;
    const char   *token_file, *query_token_file;
    const char   *against_lse, *against_weights;
    int           answer;
} cli_options;

int  options_parse(cli_options *o, unsigned command, int argc, char **argv); /* argv[0] is the subcommand's name */
void options_print(unsigned command, FILE *to);
void options_free(cli_options *o);

/* One row of the table, for those who write it out in another form. */
typedef struct cli_option_info {
    const char        *name, *argument, *help; /* argument NULL: takes none */
    const char *const *words;                  /* what it takes, ended by NULL; or NULL */
    char               letter;
    int                file; /* it takes the name of a file, perhaps */
} cli_option_info;

int options_info(unsigned command, int index, cli_option_info *info); /* the index-th of this command; 0 past the last */

extern const char *const mask_forms[]; /* the words of --from and --to (mask_convert.c), ended by NULL */
void                     mask_forms_print(FILE *to);

int32_t options_dtype(int word); /* the attn dtype of --dtype's word; 0 for 0 */

/* ---- messages and results (out.c) -------------------------------------------------------------------------------------------------- */

void out_name(const char *subcommand, int quiet);
int  out_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3))); /* the sentence; returns code */
void out_read(const char *format, ...) __attribute__((format(printf, 1, 2)));           /* "  read: ..." after a failure */
void out_fix(const char *format, ...) __attribute__((format(printf, 1, 2)));            /* "  fix: ..." after a failure */
void out_divert(FILE *to); /* what this thread says from now on goes there, without notes and names; NULL: to stderr again */
void out_note(const char *format, ...) __attribute__((format(printf, 1, 2))); /* progress; nothing with --quiet */
int  out_io(const io_error *e);                                               /* a reader's or writer's failure */
int  out_index(const char *option, int64_t value, int64_t count);             /* CLI_USAGE unless 0 <= value < count */
int  out_library(const attn_error *e);                                        /* the library's failure */
int  out_finish(int code);                                                    /* flushes stdout; CLI_OUTPUT if that failed */
int  out_colour(void);                                                        /* 1 when stdout is a terminal and nothing forbids colour */
int  out_json(json_t *result);                                                /* prints and releases; NULL is "no memory" */
void out_thousands(char text[32], int64_t value);                             /* 1,234,567 */

/* "(2, 8, 16, 64)" into text; returns text. */
const char *out_shape(char text[160], const int64_t *shape, int rank);

json_t *out_json_open(const char *subcommand); /* {"format": "attn SUB", "version": 1} */
json_t *out_json_real(double x);               /* JSON has no NaN or infinity: those are strings */
json_t *out_json_shape(const int64_t *shape, int rank);
json_t *out_json_array(const io_array *a); /* nested lists */

/* ---- numbers and arrays (convert.c) ------------------------------------------------------------------------------------------------ */

/* Stores x as a float dtype (rounded once, to nearest even) at element `at`. */
void convert_store(void *data, int64_t at, int32_t dtype, double x);

double convert_rounded(double x, int32_t dtype); /* as it would be stored */

/* Replaces the array by a C-order copy of another float dtype. *overflowed counts finite values that became infinite. 0 when no memory. */
int convert_array(io_array *a, int32_t dtype, int64_t *overflowed);

/* A new C-order array of zeros. 0 when no memory or too large. */
int convert_new(io_array *a, int32_t dtype, int rank, const int64_t *shape);

int64_t convert_count(const io_array *a);

/* Walks all elements in C order: start with zeroed index; at() is the element offset; next() returns 0 after the last. */
int64_t convert_at(const io_array *a, const int64_t *index);
int     convert_next(const io_array *a, int64_t *index);

/* ---- one call of the operator on files (call.c, operator.c) ---------------------------------------------------------------------------- */

enum { AXIS_B, AXIS_H, AXIS_S, AXIS_D };

/* A tensor of a file as the operator sees it. */
typedef struct cli_view {
    const char *path;
    io_array    array;
    int64_t     size[4], stride[4]; /* batch, head, position, channel */
} cli_view;

typedef struct cli_call {
    const cli_options *options;
    attn_desc          desc;
    char               layout[5]; /* the letters b h s d, one per axis of the files */
    int                split;     /* heads lie inside the channel axis of the files */
    cli_view           q, k, v;
    io_array           allow, bias, alibi, sink;
    io_array           out, lse, weights; /* as they are written */
    int64_t           *lists;             /* the per-batch arrays, batch entries each */
    attn_pool         *pool;
    int32_t            threads;
} cli_call;

int         call_open(cli_call *c, const cli_options *o); /* reads everything, fills desc, allocates results */
int         call_run(cli_call *c);
void        call_close(cli_call *c);
void        call_describe(const cli_call *c);                         /* what was read and assumed, for a failure */
int         call_refused(const cli_call *c, const attn_error *e);     /* the library's sentence, call_describe(), the likely fix */
int         call_view(const cli_call *c, cli_view *v, int64_t heads); /* sizes and strides of v->array by the call's layout */
int         call_threads_open(cli_call *c);                           /* --threads, into desc.executor */
int         call_isa_choose(cli_call *c);                             /* --isa, into desc.isa */
int         call_scores(cli_call *c, io_array *a, int32_t dtype, const char *option, const char *path, attn_out *out, int keys);
int         call_path(const char *option, const char *path, int rank); /* may a result of that rank be written there */
const char *call_isa(const cli_call *c);
int32_t     call_threads(void); /* CPUs this process may use */

/* The operator's options that do not depend on q, k, v: lists, mask, bias, slopes, sinks, scale, into desc. desc's sizes and dtype are known. */
int operator_apply(cli_call *c);
int operator_allow(cli_call *c, const char *option, const char *path); /* c->allow, which is bytes, broadcast into desc */
int operator_invert(cli_call *c);                                      /* --allow to --hide and back; 0 when no memory */

/* ---- which keys a query sees (seen.c) ------------------------------------------------------------------------------------------------- */

/* Why a query does not see a key: the first of the rules of attn.h that hides it, in their order. */
enum {
    SEEN = 0,
    SEEN_QUERY_COUNT,
    SEEN_KEY_START,
    SEEN_KEY_COUNT,
    SEEN_CAUSAL,
    SEEN_WINDOW_LEFT,
    SEEN_WINDOW_RIGHT,
    SEEN_MASK,
    SEEN_BIAS,
    SEEN_REASONS
};

/* desc: one that attn_check() or attn_work_bytes() has accepted; q, k and v are not looked at. */
int64_t     seen_offset(const attn_desc *d, int64_t b);                                         /* the position of query 0 */
void        seen_range(const attn_desc *d, int64_t b, int64_t i, int64_t *first, int64_t *end); /* by all rules but mask and bias */
int         seen_reason(const attn_desc *d, int64_t b, int64_t h, int64_t i, int64_t j);        /* SEEN or the first rule that hides */
unsigned    seen_reasons(const attn_desc *d, int64_t b, int64_t h, int64_t i, int64_t j);       /* all of them, 1 << SEEN_..; 0 = seen */
int64_t     seen_key_start(const attn_desc *d, int64_t b);
int64_t     seen_key_count(const attn_desc *d, int64_t b);
int64_t     seen_query_count(const attn_desc *d, int64_t b);
const char *seen_word(int reason);                                                     /* "causal", ...; "" for SEEN */
double      seen_bias(const attn_desc *d, int64_t b, int64_t h, int64_t i, int64_t j); /* the bias there; 0 without one */

/* ---- a layer of a checkpoint on hidden states of files (layer.c) ------------------------------------------------------------------- */

typedef struct cli_layer {
    cli_call               call; /* options and sizes of the operator inside */
    attn_layer_checkpoint *checkpoint;
    io_array               x, cross;
} cli_layer;

int  layer_open(cli_layer *l, const cli_options *o); /* reads everything */
int  layer_project(cli_layer *l); /* the operator's q, k, v, into call.q, call.k, call.v and its desc, with room for out */
void layer_close(cli_layer *l);

/* ---- arrays written out (literal.c) ------------------------------------------------------------------------------------------------- */

int literal_is(const char *text);
int literal_read(const char *text, io_array *a); /* "1,0; 0,1" as a matrix of f64, or else the file of that name */

/* ---- writing and printing results (run.c) ------------------------------------------------------------------------------------------- */

int     run_write(int count, const char *const path[], const io_array *const array[]); /* all files or none; a path may be NULL */
void    run_print(const io_array *a);                                                  /* comma-separated rows on stdout */
json_t *run_json_result(const char *path, const io_array *a);
double  run_seconds(void);

/* ---- comparing (compare.c) ---------------------------------------------------------------------------------------------------------- */

/* What two results differ in. Accepted is |got - want| <= absolute * (largest finite |want|) + relative * |want|; NaN and infinity must stand
 * in the same places. */
typedef struct cli_difference {
    double  absolute, relative;
    double  largest, got, want;      /* the largest error and the two values there; NaN where one is not finite and the other differs */
    int64_t at[4];                   /* where: batch, head, position, channel */
    int64_t wrong, rows_wrong, rows; /* elements and rows beyond the bound, all rows */
    int64_t nan_only_got, nan_only_want, infinity_differs;
} cli_difference;

void   compare_tolerance(int32_t dtype, double *absolute, double *relative); /* the table of attn(1) */
double compare_largest(const cli_view *v);                                   /* the largest finite |element| */
/* absolute and relative are set by the caller; wrong_row (may be NULL) is called for each row with a wrong element, with its worst. */
void compare_arrays(const cli_view *got, const cli_view *want, cli_difference *d, void (*wrong_row)(void *to, const cli_difference *row),
                    void *to);
/* Adds a part of the rows, those from origin on, to *d. */
void compare_block(const cli_view *got, const cli_view *want, double unit, const int64_t origin[3], cli_difference *d,
                   void (*wrong_row)(void *to, const cli_difference *row), void *to);

/* ---- names of positions (labels.c) --------------------------------------------------------------------------------------------------- */

/* `count` strings, the caller's to free with labels_free(); NULL when there is no memory. In format, each the number where its part of
 * `span` numbers from `first` on begins. */
char **labels_numbers(const char *format, int64_t count, int64_t first, int64_t span);
/* A line each of a text file, a JSON list in a .json, or the list "tokens" in the metadata of a .safetensors, as many as wanted; nothing where path
 * is NULL; an exit code, labels_free() in any case. */
int  labels_read(const char *option, const char *path, int64_t want, char ***label, int64_t *count);
int  labels_from(const json_t *list, const char *path, char ***label, int64_t *count);
void labels_free(char **label, int64_t count);

/* ---- pictures (picture.c, picture_terminal.c, png.c) ---------------------------------------------------------------------------------- */

typedef struct cli_image {
    int64_t  width, height;
    uint8_t *rgb; /* 3 bytes per pixel, rows from the top */
} cli_image;

/* Maps of one size, one panel each: rows are queries, columns keys. */
typedef struct cli_maps {
    const float *cell;                          /* [panels][rows][columns] */
    int64_t      panels, rows, columns, across; /* across: panels side by side; 0: as fits */
    char       **row_label, **column_label, **panel_label;
    const char  *title, *said, *under, *last; /* the lines above, and the one below */
    int          named;                       /* row_label holds tokens, beside which the terminal numbers the rows */
    int          log;                         /* colours count powers of ten instead of steps */
    double       top;                         /* the value of the darkest colour; 0: the largest there is */
} cli_maps;

enum { PICTURE_PLAIN = 1, PICTURE_16, PICTURE_256, PICTURE_TRUE, PICTURE_DECADES = 4 };

void   picture_colour(double x, uint8_t rgb[3]);          /* 0..1 to a ramp whose lightness falls evenly */
double picture_level(const cli_maps *m, float value);     /* a value as 0..1 of the ramp; m->top is set */
float  picture_top(const cli_maps *m);                    /* m->top, or the largest value */
int    picture_draw(cli_image *image, const cli_maps *m); /* 0 when no memory */
int    picture_svg(const char *path, const cli_maps *m);  /* an exit code */
/* One panel on stdout. colours: PICTURE_PLAIN.. */
void picture_terminal(const cli_maps *m, int64_t panel, int colours);
int  picture_colours(int asked);                          /* what --colour says, else what stdout and the environment allow */
int  picture_columns(void);                               /* how wide the terminal is */
int  png_write(const char *path, const cli_image *image); /* temporary file and rename; returns an exit code */

/* ---- subcommands ------------------------------------------------------------------------------------------------------------------- */

int run_main(const cli_options *o);
int layer_main(const cli_options *o);
int check_main(const cli_options *o);
int cost_main(const cli_options *o);
int info_main(const cli_options *o);
int demo_main(const cli_options *o);
int mask_main(const cli_options *o);
int show_main(const cli_options *o);
int explain_main(const cli_options *o);
int completion_main(const cli_options *o);
int lesson_main(const cli_options *o);

const char *lesson_words(void); /* the lessons' names with blanks between */

/* The table of main.c. words: what the first operand may be, with blanks between; or NULL. 0 past the last. */
int subcommand_run(int argc, char **argv); /* argv[0] is its name; an exit code */
int subcommand_info(int index, unsigned *bit, const char **name, const char **summary, const char **words);

/* The hand-calculated examples, printed or (json not NULL) put into json; *failed counts those that come out otherwise. An exit code. */
int worked_run(json_t *json, int *failed);

/* check_main()'s JSON for a call in memory, whose out and lse have room, and others' out, lse and weights (path NULL where there is none);
 * the places of `size` and `stride` are the operator's axes. NULL: it failed, which was said. */
json_t *check_call(const cli_call *call, const cli_view want[3]);

#endif
