/* support.h: what the C tests share: seeded numbers, guarded memory, the double-precision reference, random problems, comparison.
 * SPDX-License-Identifier: MIT
 *
 * No test framework is needed here, so a static program under an emulator can use all of it. Reports go to stderr.
 *
 *     ATTN_SEED=n         the seed of every random test (printed by each program); a new one per run without it
 *     ATTN_CASE=n         only that case of a random test
 *     ATTN_TEST=name      only the tests of that name (* and ? allowed)
 *     ATTN_TEST_SCALE=x   multiplies the number of random cases (0.1 under slow tools)
 *     ATTN_EXPECT_ISA=a,b names that must be usable here: a skip of those is a failure
 */
#ifndef ATTN_TESTS_SUPPORT_H
#define ATTN_TESTS_SUPPORT_H

#include <attn/attn.h>
#include <stdio.h>

/* ---- seeds and random numbers ------------------------------------------------------------------------------------------------------ */

typedef struct rng {
    uint64_t state;
} rng;

uint64_t test_seed(void);              /* printed on its first use */
int64_t  test_count(int64_t full);     /* full times ATTN_TEST_SCALE, at least 1 */
int      test_case_wanted(int64_t at); /* 0 where ATTN_CASE names another case */

rng      rng_make(const char *test, int64_t at); /* a stream of its own for each case of each test */
uint64_t rng_bits(rng *r);
int64_t  rng_range(rng *r, int64_t low, int64_t high); /* both ends included */
int      rng_percent(rng *r, int percent);
double   rng_unit(rng *r); /* [0, 1) */
double   rng_normal(rng *r);
int64_t  rng_pick(rng *r, const int64_t *from, size_t count);

/* ---- element types ----------------------------------------------------------------------------------------------------------------- */

double   half_to_double(uint16_t bits);
uint16_t half_from_double(double value); /* nearest, ties to even */
double   brain_to_double(uint16_t bits);
uint16_t brain_from_double(double value);
size_t   element_bytes(int32_t dtype);
double   element_max(int32_t dtype); /* largest finite value */
double   element_get(const void *data, int32_t dtype, int64_t at);
void     element_set(void *data, int32_t dtype, int64_t at, double value);

/* ---- guarded memory ---------------------------------------------------------------------------------------------------------------- */

enum { GUARD_BELOW, GUARD_ABOVE, GUARD_HEAP }; /* flush against an unreadable page below or above, or an exact heap block */

typedef struct guarded {
    unsigned char *bytes;
    size_t         size;
    unsigned char *map; /* NULL: heap */
    size_t         map_bytes;
    unsigned char  fill;
} guarded;

void        guarded_make(guarded *g, size_t size, int side, unsigned char fill);
void        guarded_free(guarded *g);
const char *guarded_broken(const guarded *g); /* NULL, or the side on which something outside was written */

/* ---- views ------------------------------------------------------------------------------------------------------------------------- */

typedef struct view {
    guarded memory;
    int64_t shape[4], stride[4];
    int64_t origin; /* index of element [0,0,0,0] */
    int32_t dtype;
    int     output;
} view;

enum { VIEW_PLAIN, VIEW_STRANGE }; /* contiguous, or permuted, stepped, gapped and (inputs) reversed, repeated, overlapping */

/* What is between elements is filled with ones (a NaN) for inputs and a canary for outputs. `lasting` axes keep stride 0 (broadcast). */
void        view_make(view *w, rng *r, int32_t dtype, const int64_t shape[4], const int broadcast[4], int style, int output);
void        view_free(view *w);
double      view_get(const view *w, int64_t b, int64_t h, int64_t i, int64_t c);
void        view_set(view *w, int64_t b, int64_t h, int64_t i, int64_t c, double value);
attn_in     view_in(const view *w);
attn_out    view_out(const view *w);
void        view_refill(view *w);        /* an output's canaries back everywhere */
const char *view_broken(const view *w);  /* NULL, or where a byte that is no element was written: "below", "above", "between" */
int         view_touched(const view *w); /* whether any byte differs from the canary */

/* ---- the reference ----------------------------------------------------------------------------------------------------------------- */

enum { ROW_EMPTY = 1, ROW_INFINITE = 2 }; /* sees nothing (or -inf only); has a score of +inf */

typedef struct reference {
    int64_t        batch, heads, queries, keys, value_dim;
    double        *out, *lse, *weights;  /* dense; weights at the descriptor's stage */
    double        *size_seen, *size_all; /* per row, S of the tolerance rule over what is seen and over everything */
    unsigned char *seen;                 /* (batch, heads, queries, keys) */
    unsigned char *row;                  /* ROW_ flags */
    unsigned char *loose;                /* out elements that the contract leaves open */
} reference;

/* Computes the formula at the top of attn.h in double, holding every score. The descriptor must be one that attn_check() accepts. */
void reference_make(reference *r, const attn_desc *d);
void reference_free(reference *r);

/* ---- comparison -------------------------------------------------------------------------------------------------------------------- */

/* The allowed difference: the table of section 9 of the semantics, in this one place. `dtype` is the tensor's, `inputs` that of q;
 * largest is max |want| of the tensor, size is S, the largest inexact score. */
double tolerance(int32_t dtype, int32_t inputs, double largest, double want, double size);

/* The same for gradients; largest is at least the sum of the sizes of what was summed up, as what cancels leaves rounding of that size. */
double gradient_tolerance(int32_t dtype, int32_t inputs, double largest, double want, double size);

/* Compares out, lse and weights of a finished call with the reference. Prints the first differences; returns how many there are. */
int64_t compare_results(const attn_desc *d, const reference *r);

void describe(const attn_desc *d, FILE *to);

/* ---- gradients ---------------------------------------------------------------------------------------------------------------------- */

enum { BY_Q, BY_K, BY_V, BY_BIAS, BY_SINK, BY_ALIBI, GRADIENTS };

/* The formula of attn.h, "gradients", in double. Each gradient as a dense array of its shape[] - the bias, sink and slopes in the shape that the
 * strides of `to` say -, and the largest sum of sizes of the terms of any of its elements. */
typedef struct gradients {
    double *value[GRADIENTS];
    double  largest[GRADIENTS];
    int64_t shape[GRADIENTS][4];
    double  size; /* S of the tolerance rule */
} gradients;

void gradients_make(gradients *g, const attn_desc *d, const attn_backward_desc *back);
void gradients_free(gradients *g);

/* What attn_backward() has left against it; prints the first differences, returns how many there are. `before` (or NULL): what each output held, dense. */
int64_t gradients_compare(const gradients *g, const attn_desc *d, const attn_backward_desc *back, double *const before[GRADIENTS]);

/* ---- executors and rows ------------------------------------------------------------------------------------------------------------ */

extern const attn_executor executor_forward, executor_backward; /* one after another on the caller; last index first */

int isa_count(void);
/* Prints "skipped: NAME" for a row this CPU cannot run; counts as failure when ATTN_EXPECT_ISA names it. Returns failures. */
int isa_report(void);

/* The name that isa = NULL stands for here. */
const char *isa_default(void);

/* Whether a run with this descriptor rounds weights to bf16 and takes elements below the smallest normal number as 0, as attn.h says of avx512bf16. */
int multiplies_bf16(const attn_desc *d);

/* ---- random problems --------------------------------------------------------------------------------------------------------------- */

typedef struct problem {
    attn_desc d;
    view      q, k, v, out, allow, bias, alibi, sink, lse, weights;
    int64_t  *query_offset, *query_count, *key_count, *key_start;
    guarded   work;
    int       own_work; /* problem_check() gives each run its workspace */
} problem;

enum {
    WITH_STRANGE_VIEWS = 1, /* strides of every kind; else contiguous */
    WITH_POISON = 2,        /* NaN and infinity at random places, seen or not */
    WITH_EXECUTORS = 4,
    WITH_WORK = 8,
    WITH_EMPTY = 16, /* sizes of 0 */
    WITH_LONG = 32,  /* around 2048 keys */
    WITH_ALL = 63
};

void problem_random(problem *p, rng *r, int with);

/* A contiguous one without options, with out in the inputs' dtype and lse, for a test that adds what it is about. */
void problem_dense(problem *p, rng *r, int32_t dtype, int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys,
                   int64_t dim, int64_t value_dim);
void problem_add_weights(problem *p, int32_t dtype, int32_t stage);
/* dtype ATTN_BOOL: allow, else bias; filled by chance where `filled`, else with 1 (seen) or 0. */
void     problem_add_mask(problem *p, rng *r, int32_t dtype, const int broadcast[4], int filled);
void     problem_add_sink(problem *p, rng *r);
void     problem_add_alibi(problem *p, rng *r, int per_batch);
int64_t *problem_counts(problem *p, int64_t **array, const int64_t **field, int64_t value); /* a count array, every entry = value */
void     problem_free(problem *p);
void     problem_refill(problem *p); /* the outputs' canaries */
/* Runs on `isa` and compares results, canaries and work against the reference; prints and returns the number of faults. */
int64_t     problem_check(problem *p, const reference *r, const char *isa);
const char *problem_broken(const problem *p, const char **which);

unsigned char *problem_results(const problem *p, size_t *size); /* out, lse and weights with their gaps, one after another; to free() */
/* problem_check() on every usable isa; describes the problem when it fails. */
int64_t problem_check_all(problem *p, const char *what);

/* The whole operator on every usable isa over `count` random problems. Returns the number of problems that failed. */
int64_t sweep(const char *test, int64_t count, int with);

/* ---- a problem and its way back ----------------------------------------------------------------------------------------------------- */

typedef struct back {
    problem            p;
    attn_backward_desc g;
    view               out, lse, d_out, d_lse, to[GRADIENTS];
} back;

/* Random d_out and, maybe, d_lse; an output for each gradient, an axis of the bias, sink or slopes that repeats being summed over. */
void back_make(back *k, rng *r, int style);
void back_free(back *k);
void back_fill(view *w, rng *r);
void back_refill(back *k);                   /* the outputs' canaries */
void back_forward(back *k, const char *isa); /* the run whose out and lse flow back */
/* attn_backward() in exactly the work that it asks for, full of NaN, before a page that cannot be touched; prints and returns the number of faults. */
int64_t back_check(back *k, const gradients *want, double *const before[GRADIENTS]);
int64_t back_check_all(back *k, const char *what); /* the same after a run, on every usable isa */
int64_t sweep_backward(const char *test, int64_t count, int with);

/* From here on a fault prints the descriptor in work before the program dies of it (or cmocka counts it). */
void report_faults(const attn_desc *d);

#endif
