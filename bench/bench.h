/* bench.h: what the files of the bench share. attn_bench links all of them; peers.py loads those without other systems as a library.
 * SPDX-License-Identifier: MIT
 *
 *     row.c        reads shapes.txt: rows, their names, what is counted
 *     problem.c    a row's inputs: the same numbers on every machine, in C and in Python
 *     burst.c      the machine's limits: bursts of multiply-adds and of reads from memory
 *     reference.c  some rows of the result in double precision, and the error of a result
 *     ours.c       attn_run on a problem
 *     inspect.c    attn_inspect on a problem
 *     chunked.c    competitor: a matrix product per 128 query rows, softmax, another product, by CBLAS
 *     yardstick.c  competitors: the prototypes of the test data's folder, compiled when they are there
 *     measure.c    one row: contenders, interleaved and bracketed timing
 *     report.c     table and JSON
 *     bench.c      options
 */
#ifndef ATTN_BENCH_H
#define ATTN_BENCH_H

#include <attn/attn.h>
#include <stdio.h>

#define BENCH_API __attribute__((visibility("default")))

/* ---- rows ------------------------------------------------------------------------------------------------------------------------- */

enum { MASK_FULL, MASK_CAUSAL, MASK_WINDOW, MASK_PADDING, MASK_PADDING_CAUSAL, MASK_ALLOW, MASK_BIAS };
enum { LAYOUT_BHND, LAYOUT_BNHD };

/* peers.py mirrors this struct: fixed-width members in this order. */
struct row {
    int64_t batch, heads, kv_heads, queries, keys, dim;
    int64_t window;                          /* MASK_WINDOW: keys that a query sees at most, its own included */
    int32_t mask, per_head;                  /* per_head: allow or bias has its own matrix for each batch entry and head */
    int32_t layout, dtype, threads, f32_too; /* f32_too: the table has this row in f32 as well */
    char    group[16], name[112];
};

/* The rows of the table at `path`, expanded, into *rows (malloc); their number. Exits with a message if the table is wrong. */
BENCH_API int bench_rows(const char *path, struct row **rows);

/* Does `name` contain `pattern`, or match it as a glob where it has one of * ? [ ? */
BENCH_API int bench_matches(const char *name, const char *pattern);

void   row_rename(struct row *row);      /* sets the name from the other members */
double row_pairs(const struct row *row); /* (query, key) pairs that are visible, summed over heads; allow and bias hide nothing here */
BENCH_API double bench_flop(const struct row *row);     /* 4 * dim per visible pair: a multiply-add is two */
BENCH_API double bench_kv_bytes(const struct row *row); /* bytes of K and V */
BENCH_API int
bench_is_cold(const struct row *row); /* fewer than 32 queries: timed from memory, a call at a time, between reads of memory */

/* Sentence b's length under MASK_PADDING: the keys that are there, and the queries. */
int64_t row_length(const struct row *row, int64_t b);
/* May query i of batch entry b see key j? allow is not asked here. */
int row_sees(const struct row *row, int64_t b, int64_t i, int64_t j);

/* ---- problems --------------------------------------------------------------------------------------------------------------------- */

struct problem {
    struct row row;
    void      *q, *k, *v, *out; /* row.dtype, row.layout */
    uint8_t   *allow;           /* MASK_ALLOW; about an eighth is hidden, at random */
    float     *bias;            /* MASK_BIAS, f32 */
    int64_t    q_stride[4], k_stride[4], mask_stride[4];
    int64_t   *lengths; /* MASK_PADDING */
    int64_t    q_count, k_count, mask_count;
};

/* Dies with a message where memory is short. `like`, if not NULL, is a problem of the same shape. */
BENCH_API struct problem *bench_problem_new(const struct row *row);
BENCH_API void            bench_problem_free(struct problem *p);

/* Element `at` of a tensor of any dtype. */
double problem_get(const void *data, int32_t dtype, int64_t at);
/* Contiguous (batch, head, position, channel) f32 copy of a tensor of the problem, for those who take nothing else. */
float *problem_widen(const struct problem *p, const void *data, const int64_t stride[4], int64_t heads, int64_t rows);

void *bench_alloc(size_t bytes); /* zeroed, on large pages where they are to be had; free with bench_free */
void  bench_free(void *data, size_t bytes);

/* ---- bursts ----------------------------------------------------------------------------------------------------------------------- */

enum { BURST_NONE, BURST_NEON = 128, BURST_256 = 256, BURST_512 = 512 };

BENCH_API int    bench_burst_best(void);                                              /* the widest here */
BENCH_API double bench_burst(int bits, const attn_executor *threads, double seconds); /* FLOP/s; 0 where there is none */
BENCH_API double bench_read_burst(const attn_executor *threads);                      /* bytes/s out of memory */
BENCH_API double bench_seconds(void);

/* ---- reference -------------------------------------------------------------------------------------------------------------------- */

struct reference;

BENCH_API struct reference *bench_reference_new(const struct problem *p);
BENCH_API void              bench_reference_free(struct reference *r);
/* Largest difference over largest reference of the rows looked at; not finite where the result is not. `out` is a tensor as
 * p->out is, of dtype `dtype` and with strides of its own. */
BENCH_API double bench_error(const struct reference *r, const void *out, int32_t dtype, const int64_t stride[4]);
/* What an error may be at most for a result to count as right: what one product of the dtype's precision allows. */
BENCH_API double bench_error_limit(int32_t dtype);

/* ---- contenders ------------------------------------------------------------------------------------------------------------------- */

enum { MOST_ROUNDS = 64 };

/* One who computes a problem. open: 0, or the reason why not (a string that lasts). */
struct contender {
    char            name[48];
    struct problem *problem;
    struct row      problem_row; /* outlives the problem */
    int             variant;     /* ours on a neighbouring problem: compared by rate and time, not a competitor */
    int             other;       /* has no out to look at: it looks at its results itself */
    int             more;        /* has at least 21 rounds */
    int             burst_bits;  /* what it is a fraction of */
    int             threads;
    const char     *isa;
    int (*call)(struct contender *c); /* 0 is done */
    void (*close)(struct contender *c);
    void   *state;
    void   *out; /* where its result is, laid out as problem->out */
    int32_t out_dtype;
    size_t  work_bytes; /* 0: not known */

    /* results */
    const char *refused;    /* why it is not measured */
    double      worst;      /* its error */
    double      peak_bytes; /* resident memory beyond what was there before it was opened, at most; -1: not known */
    int         samples;
    double      seconds[MOST_ROUNDS], fraction[MOST_ROUNDS], of_reads[MOST_ROUNDS], of_roof[MOST_ROUNDS];
    double      fastest, burst_low, burst_high, reads_low, reads_high;
};

BENCH_API void *bench_ours_new(struct problem *p, const char *isa, const attn_executor *threads, size_t *work_bytes); /* NULL: refused */
BENCH_API int   bench_ours_run(void *ours);
BENCH_API void  bench_ours_free(void *ours);
const char     *ours_open(struct contender *c, const attn_executor *threads);
const char     *inspect_open(struct contender *c, void *ours, const attn_executor *threads); /* ours: of bench_ours_new() */
const char     *chunked_open(struct contender *c, const attn_executor *threads);
int             yardstick_count(void);
const char     *yardstick_name(int at);
const char     *yardstick_open(struct contender *c, int at);
const char     *chunked_name(void); /* with the kernels that OpenBLAS chose */

/* ---- measuring and reporting ------------------------------------------------------------------------------------------------------ */

struct options {
    const char *table, *only, *json;
    const char *isa[8];
    int         isas, threads, list, quick, rounds; /* threads, rounds: 0 is what the table or the time says */
    double      seconds, window;                    /* for each row, for each timing */
};

enum { MOST_CONTENDERS = 32 };

struct result {
    struct row       row;
    struct contender contender[MOST_CONTENDERS]; /* the first is ours */
    int              count, rounds;
};

struct result *measure_row(const struct row *row, const struct options *options); /* free() it */

double quantile(const double *values, int count, double at);
/* Per round: how many times faster ours is than contender c (rates of visible pairs), and ours' time over c's, into to[]; their number. */
int result_ratios(const struct result *r, int c, double *speedups, double *times);

/* Prints the head of the table; `json`, if not NULL, is the file that every report_row() writes anew with what there is so far. */
void report_open(const char *json);
void report_row(const struct result *r);

#endif
