/* measure.c: one row: who takes part, whose results are right, and timings interleaved and bracketed by bursts.
 * SPDX-License-Identifier: MIT
 */
#include "bench.h"
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 21 }; /* rounds of "two threads over one" */

/* ---- who takes part --------------------------------------------------------------------------------------------------------------- */

/* What lives as long as a row is measured. */
struct field {
    const struct row     *row;
    const struct options *options;
    struct result        *result;
    struct problem       *problem, *variant[MOST_CONTENDERS];
    struct reference     *reference;
    attn_pool            *pool;
    const attn_executor  *threads;
};

static struct contender *add(struct field *f, const char *name)
{
    struct contender *c = &f->result->contender[f->result->count++];
    snprintf(c->name, sizeof c->name, "%s", name);
    c->problem = f->problem, c->threads = f->row->threads, c->burst_bits = bench_burst_best();
    c->out = f->problem->out, c->out_dtype = f->row->dtype, c->peak_bytes = -1, c->worst = NAN;
    return c;
}

/* Resident bytes now ("VmRSS:") or at most since it was last reset ("VmHWM:"); 0 where the system does not say. */
static double resident(const char *field)
{
    FILE  *status = fopen("/proc/self/status", "r");
    char   line[256];
    double kib = 0;
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, field, strlen(field))) kib = atof(line + strlen(field));
    if (status) fclose(status);
    return kib * 1024;
}

static double resident_reset(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    malloc_trim(0);
    if (file) fputs("5", file), fclose(file);
    return resident("VmRSS:");
}

/* Opens, calls once, looks at the result. Whoever is wrong is named and not timed. */
static void start(struct field *f, struct contender *c, const char *(*open)(struct contender *, const struct field *, int), int at)
{
    const struct problem *p = c->problem;
    size_t                bytes = (size_t)p->q_count * attn_dtype_bytes(p->row.dtype);
    c->problem_row = p->row;
    memset(p->out, 0xff, bytes); /* NaN in every dtype */
    double before = resident_reset();
    c->refused = open(c, f, at);
    if (!c->refused && c->call(c)) c->refused = "the call failed";
    if (c->refused) return;
    if (before > 0) c->peak_bytes = fmax(0, resident("VmHWM:") - before);
    if (c->problem != f->problem || c->other) return; /* a variant: the same code, checked in rows of its own */
    c->worst = bench_error(f->reference, c->out, c->out_dtype, p->q_stride);
    if (!(c->worst <= bench_error_limit(f->row->dtype))) c->refused = "WRONG RESULT";
}

static const char *open_ours(struct contender *c, const struct field *f, int at)
{
    (void)at;
    return ours_open(c, c->threads > 1 ? f->threads : NULL);
}

static const char *open_inspect(struct contender *c, const struct field *f, int at)
{
    return inspect_open(c, f->result->contender[at].state, f->threads);
}

static const char *open_chunked(struct contender *c, const struct field *f, int at)
{
    (void)at;
    return chunked_open(c, f->threads);
}

static const char *open_yardstick(struct contender *c, const struct field *f, int at)
{
    (void)f;
    return yardstick_open(c, at);
}

static void add_ours(struct field *f, const char *isa)
{
    char name[48];
    snprintf(name, sizeof name, isa ? "attn %s" : "attn", isa);
    struct contender *c = add(f, name);
    c->isa = isa;
    if (isa && !strncmp(isa, "avx2", 4) && c->burst_bits == BURST_512) c->burst_bits = BURST_256;
    start(f, c, open_ours, 0);
}

static void add_variant(struct field *f, const char *name, struct row changed)
{
    struct contender *c = add(f, name);
    row_rename(&changed);
    if (memcmp(&changed, f->row, offsetof(struct row, threads)))
        c->problem = f->variant[f->result->count] = bench_problem_new(&changed), c->out = c->problem->out;
    c->variant = 1, c->threads = changed.threads, c->more = changed.threads < f->row->threads && f->options->rounds == 0;
    start(f, c, open_ours, 0);
}

/* The same call with one thing taken away, for the rows whose targets are such ratios. */
static void add_variants(struct field *f)
{
    const struct row *row = f->row;
    struct row        changed = *row;
    if (row->threads > 1) changed.threads = 1, add_variant(f, "attn, 1 thread", changed), changed = *row;
    if (row->layout == LAYOUT_BNHD) changed.layout = LAYOUT_BHND, add_variant(f, "attn, contiguous", changed), changed = *row;
    if (row->mask >= MASK_ALLOW) changed.mask = MASK_FULL, add_variant(f, "attn, no mask", changed), changed = *row;
    if (row->mask == MASK_WINDOW) /* one head is enough for the time of a pair */
        changed.mask = MASK_FULL, changed.heads = changed.kv_heads = 1, add_variant(f, "attn, full", changed), changed = *row;
    if (row->f32_too && row->dtype != ATTN_F32) changed.dtype = ATTN_F32, add_variant(f, "attn, f32", changed), changed = *row;
    if (row->queries == 1 && row->kv_heads < row->heads)
        changed.kv_heads = row->heads, add_variant(f, "attn, not grouped", changed), changed = *row;
}

static void assemble(struct field *f)
{
    const struct options *o = f->options;
    add_ours(f, NULL);
    for (int i = 0; i < o->isas; i++) add_ours(f, o->isa[i]);
    if (!o->isas && f->row->dtype == ATTN_F32 && f->row->mask == MASK_FULL && f->row->queries >= 32 && f->row->layout == LAYOUT_BHND)
        for (int i = 1; attn_isa_name(i); i++) /* the best one is there already */
            if (attn_isa_usable(i) && !strcmp(attn_isa_name(i), "avx2") && attn_isa_usable(0)) add_ours(f, "avx2");
    if (!strcmp(f->row->group, "inspect") ||
        (o->quick && f->row->dtype == ATTN_F32 && f->row->mask <= MASK_WINDOW && f->row->queries >= 32)) {
        struct contender *c = add(f, "attn, all summaries");
        c->variant = c->other = 1;
        start(f, c, open_inspect, 0);
    }
    if (!strcmp(f->row->group, "inspect")) return;
    add_variants(f);
    start(f, add(f, chunked_name()), open_chunked, 0);
    for (int i = 0; i < yardstick_count(); i++) start(f, add(f, yardstick_name(i)), open_yardstick, i);
}

/* ---- timing ----------------------------------------------------------------------------------------------------------------------- */

/* Calls until `window` seconds are over; cold: one call. Seconds per call. */
static double time_calls(struct contender *c, double window, double expected, int cold)
{
    int    batch = expected < window / 100 ? (int)(window / 100 / (expected + 1e-9)) + 1 : 1; /* so that the clock costs nothing */
    long   calls = 0;
    double begin = bench_seconds(), now;
    do {
        for (int i = 0; i < (cold ? 1 : batch); i++) c->call(c);
        calls += cold ? 1 : batch;
        now = bench_seconds();
    } while (!cold && now - begin < window);
    return (now - begin) / (double)calls;
}

static void widen(double *low, double *high, double value)
{
    if (*low == 0 || value < *low) *low = value;
    if (value > *high) *high = value;
}

static void sample(struct field *f, struct contender *c, double expected)
{
    const struct row    *row = &c->problem->row;
    int                  cold = bench_is_cold(row);
    const attn_executor *threads = c->threads > 1 ? f->threads : NULL;
    double               length = fmin(fmax(f->options->window, expected), 0.25), reads = 0;
    double               fma = bench_burst(c->burst_bits, threads, length);
    widen(&c->burst_low, &c->burst_high, fma);
    if (cold) reads = bench_read_burst(threads), widen(&c->reads_low, &c->reads_high, reads);
    double seconds = time_calls(c, f->options->window, expected, cold), after;
    if (cold) after = bench_read_burst(threads), widen(&c->reads_low, &c->reads_high, after), reads = (reads + after) / 2;
    after = bench_burst(c->burst_bits, threads, length);
    widen(&c->burst_low, &c->burst_high, after), fma = (fma + after) / 2;

    c->seconds[c->samples] = seconds;
    c->fraction[c->samples] = fma > 0 ? bench_flop(row) / seconds / fma : NAN;
    c->of_reads[c->samples] = cold ? bench_kv_bytes(row) / seconds / reads : NAN;
    c->of_roof[c->samples] = cold && fma > 0 ? fmax(bench_flop(row) / fma, bench_kv_bytes(row) / reads) / seconds : NAN;
    c->samples++;
    if (c->fastest == 0 || seconds < c->fastest) c->fastest = seconds;
}

/* A first look at how long a call takes: the second call where that costs little. */
static double look(struct contender *c)
{
    double begin = bench_seconds(), first;
    c->call(c);
    first = bench_seconds() - begin;
    return first > 0.3 ? first : time_calls(c, fmin(first, 0.01), first, 0);
}

static int rounds_for(const struct field *f, const double *expected)
{
    const struct options *o = f->options;
    double                cost = 0;
    for (int i = 0; i < f->result->count; i++)
        if (!f->result->contender[i].refused) {
            double window = fmax(o->window, expected[i]);
            cost += bench_is_cold(f->row) ? expected[i] + 2 * o->window + 0.03 : window + 2 * fmin(window, 0.25);
        }
    return o->rounds ? o->rounds : o->quick ? 2 : (int)fmin(fmax(o->seconds / cost, 5), 31);
}

static void race(struct field *f)
{
    struct result *r = f->result;
    double         expected[MOST_CONTENDERS];
    int            most;
    for (int i = 0; i < r->count; i++)
        if (!r->contender[i].refused) expected[i] = look(&r->contender[i]);
    most = r->rounds = rounds_for(f, expected);
    for (int i = 0; i < r->count; i++)
        if (r->contender[i].more && !f->options->quick && most < PAIRS) r->contender[0].more = 1, most = PAIRS;
    for (int round = 0; round < most; round++)
        for (int n = 0; n < r->count; n++) {
            int i = (n + round) % r->count;
            if (!r->contender[i].refused && (round < r->rounds || r->contender[i].more)) sample(f, &r->contender[i], expected[i]);
        }
}

struct result *measure_row(const struct row *row, const struct options *options)
{
    struct field f = {.row = row, .options = options, .result = calloc(1, sizeof *f.result)};
    attn_error   error;
    if (!f.result) exit(1);
    f.result->row = *row;
    f.pool = row->threads > 1 ? attn_pool_new(row->threads, &error) : NULL;
    if (row->threads > 1 && !f.pool) fprintf(stderr, "bench: %s\n", error.message), exit(1);
    f.threads = attn_pool_executor(f.pool);
    f.problem = bench_problem_new(row);
    f.reference = bench_reference_new(f.problem);
    assemble(&f);
    race(&f);
    for (int i = 0; i < f.result->count; i++)
        if (f.result->contender[i].state) f.result->contender[i].close(&f.result->contender[i]);
    for (int i = 0; i < MOST_CONTENDERS; i++) bench_problem_free(f.variant[i]);
    bench_reference_free(f.reference), bench_problem_free(f.problem), attn_pool_free(f.pool);
    return f.result;
}
