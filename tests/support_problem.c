/* support_problem.c: random problems in which every option may meet every other, run on every row and held against the reference.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static const int no_broadcast[4] = {0, 0, 0, 0};

/* ---- executors and rows ------------------------------------------------------------------------------------------------------------ */

static void run_forward(void *context, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    (void)context;
    for (int32_t i = 0; i < count; i++) body(arg, i);
}

static void run_backward(void *context, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    (void)context;
    for (int32_t i = count; i-- > 0;) body(arg, i);
}

const attn_executor executor_forward = {run_forward, NULL, 3, 0}, executor_backward = {run_backward, NULL, 5, 0};

int isa_count(void)
{
    int count = 0;
    while (attn_isa_name(count)) count++;
    return count;
}

/* Whether a list of words with commas between them holds this word. */
static int listed(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at && (at = strstr(at, word)); at++)
        if ((at == list || at[-1] == ',') && (!at[length] || at[length] == ',')) return 1;
    return 0;
}

const char *isa_default(void)
{
    int i = 0;
    while (!attn_isa_usable(i)) i++;
    return attn_isa_name(i);
}

int isa_report(void)
{
    const char *expected = getenv("ATTN_EXPECT_ISA");
    int         failed = 0, found = 0;
    for (int i = 0; attn_isa_name(i); i++) {
        if (listed(expected, attn_isa_name(i))) found++;
        if (attn_isa_usable(i)) continue;
        fprintf(stderr, "skipped: %s\n", attn_isa_name(i));
        failed += listed(expected, attn_isa_name(i));
    }
    int wanted = expected && *expected ? 1 : 0;
    for (const char *at = expected; at && *at; at++) wanted += *at == ',';
    if (failed || found != wanted) fprintf(stderr, "ATTN_EXPECT_ISA=%s: not all of those are here\n", expected);
    return failed + (found != wanted);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------------- */

/* Around the widths of vectors, the rows of query blocks and the 128 keys of a tile. */
static const int64_t edges[] = {1,  2,  3,  7,  8,  9,  15,  16,  17,  31,  32,  33,  47,  48, 49,
                                63, 64, 65, 95, 96, 97, 127, 128, 129, 130, 200, 255, 256, 257};
static const int64_t long_edges[] = {1023, 1024, 1025, 2047, 2048, 2049, 2175, 2176, 2177, 4096, 4097};
static const int64_t widths[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 80, 127, 128, 129, 192, 257};

static int64_t some(rng *r, const int64_t *from, size_t count, int64_t most, int with)
{
    if ((with & WITH_EMPTY) && rng_percent(r, 2)) return 0;
    int64_t size = rng_percent(r, 40) ? rng_range(r, 1, 12) : rng_pick(r, from, count);
    return size < most ? size : most < 1 ? 1 : most;
}

static void choose_sizes(attn_desc *d, rng *r, int with)
{
    int64_t room = 40000; /* elements of the score matrix, so that thousands of problems take seconds */
    d->batch = some(r, (const int64_t[]){1, 1, 2, 3}, 4, 3, with);
    d->kv_heads = rng_range(r, 1, 3);
    d->heads = (with & WITH_EMPTY) && rng_percent(r, 2) ? 0 : d->kv_heads * rng_range(r, 1, 4);
    if (d->heads) room /= d->heads;
    if (d->batch) room /= d->batch;
    if ((with & WITH_LONG) && rng_percent(r, 12)) {
        d->keys = rng_pick(r, long_edges, COUNT(long_edges));
        d->queries = rng_range(r, 1, 3);
    } else {
        d->keys = some(r, edges, COUNT(edges), room, with);
        d->queries = some(r, edges, COUNT(edges), d->keys ? room / d->keys : room, with);
    }
    int64_t narrow = 4000000 / (d->batch * d->heads * d->queries * d->keys + 1) + 1;
    d->dim = some(r, widths, COUNT(widths), narrow, with);
    d->value_dim = rng_percent(r, 50) ? d->dim : some(r, widths, COUNT(widths), narrow, with);
}

/* ---- values ------------------------------------------------------------------------------------------------------------------------ */

static void fill(view *w, rng *r, double spread)
{
    for (int64_t b = 0; b < w->shape[0]; b++)
        for (int64_t h = 0; h < w->shape[1]; h++)
            for (int64_t i = 0; i < w->shape[2]; i++)
                for (int64_t c = 0; c < w->shape[3]; c++) view_set(w, b, h, i, c, spread * rng_normal(r));
}

/* Values whose first channel has a mean of one spread: the mean of many values is otherwise close to 0, and a tolerance relative to the largest
 * result would be one relative to what cancellation has left. */
static void fill_values(view *w, rng *r, double spread)
{
    for (int64_t b = 0; b < w->shape[0]; b++)
        for (int64_t h = 0; h < w->shape[1]; h++)
            for (int64_t i = 0; i < w->shape[2]; i++)
                for (int64_t c = 0; c < w->shape[3]; c++) view_set(w, b, h, i, c, spread * (rng_normal(r) + (c == 0)));
}

static void poison(view *w, rng *r, int places)
{
    static const double evil[] = {NAN, INFINITY, -INFINITY};
    if (!w->memory.size) return;
    while (places-- > 0)
        view_set(w, rng_range(r, 0, w->shape[0] - 1), rng_range(r, 0, w->shape[1] - 1), rng_range(r, 0, w->shape[2] - 1),
                 rng_range(r, 0, w->shape[3] - 1), evil[rng_range(r, 0, 2)]);
}

/* What hides: single places, whole rows, long runs of keys (so that whole blocks vanish), everything. */
static int hidden_here(rng *r, int form, int64_t i, int64_t j, int64_t cut)
{
    switch (form) {
    case 0:
        return rng_percent(r, 50);
    case 1:
        return rng_percent(r, 8);
    case 2:
        return i % 3 == 1;
    case 3:
        return j >= cut;
    case 4:
        return j < cut;
    case 5:
        return (j / 128 + i / 24) % 2 == 0;
    case 6:
        return 1;
    default:
        return rng_percent(r, 97);
    }
}

static void fill_mask(view *w, rng *r, int bias)
{
    int64_t cut = w->shape[3] ? rng_range(r, 0, w->shape[3]) : 0;
    int     form = rng_percent(r, 4) ? 6 : (int)rng_range(r, 0, 5) + 2 * rng_percent(r, 15), most = bias && rng_percent(r, 5);
    if (form == 6 && !rng_percent(r, 20)) form = 7;
    double spread = rng_percent(r, 70) ? 1 : 20;
    for (int64_t b = 0; b < w->shape[0]; b++)
        for (int64_t h = 0; h < w->shape[1]; h++)
            for (int64_t i = 0; i < w->shape[2]; i++)
                for (int64_t j = 0; j < w->shape[3]; j++) {
                    int hide = hidden_here(r, form, i, j, cut);
                    if (!bias)
                        view_set(w, b, h, i, j, hide ? 0 : (double)rng_pick(r, (const int64_t[]){1, 1, 2, 128, 255}, 5));
                    else if (hide)
                        view_set(w, b, h, i, j, most ? -element_max(w->dtype) : -INFINITY);
                    else
                        view_set(w, b, h, i, j, spread * rng_normal(r));
                }
}

/* ---- one problem ------------------------------------------------------------------------------------------------------------------- */

static void choose_counts(problem *p, rng *r)
{
    attn_desc *d = &p->d;
    size_t     bytes = (size_t)(d->batch ? d->batch : 1) * sizeof(int64_t);
    if (rng_percent(r, 25)) d->query_count = p->query_count = malloc(bytes);
    if (rng_percent(r, 25)) d->key_count = p->key_count = malloc(bytes);
    if (rng_percent(r, 25)) d->key_start = p->key_start = malloc(bytes);
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t start = rng_percent(r, 10) ? d->keys : rng_range(r, 0, d->keys / 2);
        if (p->key_start) p->key_start[b] = start;
        if (p->key_count) p->key_count[b] = rng_range(r, 0, d->keys - (p->key_start ? start : 0));
        if (p->query_count) p->query_count[b] = rng_percent(r, 30) ? d->queries : rng_range(r, 0, d->queries);
    }
}

static void choose_positions(problem *p, rng *r)
{
    attn_desc *d = &p->d;
    d->causal = rng_percent(r, 35);
    if (rng_percent(r, 30)) {
        d->window = 1;
        d->window_left = rng_percent(r, 25) ? -1 : rng_range(r, 0, rng_percent(r, 50) ? 9 : d->keys);
        d->window_right = rng_percent(r, 25) ? -1 : rng_range(r, 0, rng_percent(r, 50) ? 9 : d->keys);
    }
    int way = (int)rng_range(r, 0, 2);
    if (way < 2) {
        d->align = way ? ATTN_ALIGN_TOP_LEFT : ATTN_ALIGN_BOTTOM_RIGHT;
        return;
    }
    d->query_offset = p->query_offset = malloc((size_t)(d->batch ? d->batch : 1) * sizeof(int64_t));
    for (int64_t b = 0; b < d->batch; b++) p->query_offset[b] = rng_range(r, -d->queries - 3, d->keys + 3);
}

static void make_mask(view *w, rng *r, const attn_desc *d, int32_t dtype, int style)
{
    int broadcast[4];
    for (int a = 0; a < 4; a++) broadcast[a] = rng_percent(r, a < 2 ? 50 : 20);
    view_make(w, r, dtype, (const int64_t[]){d->batch, d->heads, d->queries, d->keys}, broadcast, style, 0);
    fill_mask(w, r, dtype != ATTN_BOOL);
}

static void choose_options(problem *p, rng *r, int style)
{
    attn_desc *d = &p->d;
    int32_t    inputs = d->q.dtype, real = inputs == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    if (rng_percent(r, 30)) {
        make_mask(&p->allow, r, d, ATTN_BOOL, style);
        d->allow = view_in(&p->allow);
    }
    if (rng_percent(r, 30)) {
        make_mask(&p->bias, r, d, rng_percent(r, 50) ? inputs : ATTN_F32, style);
        d->bias = view_in(&p->bias);
    }
    if (rng_percent(r, 25)) {
        view_make(&p->alibi, r, real, (const int64_t[]){d->batch, d->heads, 1, 1},
                  (const int[]){rng_percent(r, 50), rng_percent(r, 10), 1, 1}, style, 0);
        fill(&p->alibi, r, 0.3);
        d->alibi = view_in(&p->alibi);
    }
    if (rng_percent(r, 25)) {
        view_make(&p->sink, r, real, (const int64_t[]){1, d->heads, 1, 1}, (const int[]){1, rng_percent(r, 10), 1, 1}, style, 0);
        fill(&p->sink, r, 2);
        if (d->heads && rng_percent(r, 20)) view_set(&p->sink, 0, rng_range(r, 0, d->heads - 1), 0, 0, -INFINITY);
        d->sink = view_in(&p->sink);
    }
    if (rng_percent(r, 30)) {
        d->scale_given = 1;
        d->scale = rng_percent(r, 20) ? 0 : rng_normal(r) * (rng_percent(r, 20) ? 10 : 0.3);
    }
    if (rng_percent(r, 25)) d->softcap = rng_percent(r, 50) ? 0.5 + rng_unit(r) : 30;
}

static void choose_outputs(problem *p, rng *r, int style)
{
    attn_desc *d = &p->d;
    int32_t    inputs = d->q.dtype, real = inputs == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    view_make(&p->out, r, rng_percent(r, 70) ? inputs : ATTN_F32, (const int64_t[]){d->batch, d->heads, d->queries, d->value_dim},
              no_broadcast, style, 1);
    d->out = view_out(&p->out);
    if (rng_percent(r, 60)) {
        view_make(&p->lse, r, real, (const int64_t[]){d->batch, d->heads, d->queries, 1}, (const int[]){0, 0, 0, 1}, style, 1);
        d->lse = view_out(&p->lse);
    }
    if (rng_percent(r, 40)) {
        int32_t dtype = (int32_t)rng_pick(r, (const int64_t[]){ATTN_F32, ATTN_F64, inputs}, 3);
        view_make(&p->weights, r, dtype, (const int64_t[]){d->batch, d->heads, d->queries, d->keys}, no_broadcast, style, 1);
        d->weights = view_out(&p->weights);
        d->weights_stage = (int32_t)rng_range(r, 0, 3);
    }
}

static void choose_threads(problem *p, rng *r, int with)
{
    if ((with & WITH_EXECUTORS) && rng_percent(r, 60)) p->d.executor = rng_percent(r, 50) ? &executor_forward : &executor_backward;
    p->own_work = (with & WITH_WORK) && rng_percent(r, 50);
}

/* Half of the views say how large their memory is; exactly that large must do. */
static void choose_bytes(problem *p, rng *r)
{
    if (rng_percent(r, 50)) p->d.q.bytes = p->q.memory.size;
    if (rng_percent(r, 50)) p->d.k.bytes = p->k.memory.size;
    if (rng_percent(r, 50)) p->d.v.bytes = p->v.memory.size;
    if (rng_percent(r, 50)) p->d.out.bytes = p->out.memory.size;
    if (rng_percent(r, 50)) p->d.bias.bytes = p->bias.memory.size;
    if (rng_percent(r, 50)) p->d.allow.bytes = p->allow.memory.size;
    if (rng_percent(r, 50)) p->d.alibi.bytes = p->alibi.memory.size;
    if (rng_percent(r, 50)) p->d.sink.bytes = p->sink.memory.size;
    if (rng_percent(r, 50)) p->d.lse.bytes = p->lse.memory.size;
    if (rng_percent(r, 50)) p->d.weights.bytes = p->weights.memory.size;
}

void problem_random(problem *p, rng *r, int with)
{
    memset(p, 0, sizeof *p);
    attn_desc *d = &p->d;
    *d = attn_desc_new();
    choose_sizes(d, r, with);
    int32_t dtype = (int32_t)rng_range(r, ATTN_F32, ATTN_BF16);
    int     style = (with & WITH_STRANGE_VIEWS) && rng_percent(r, 60) ? VIEW_STRANGE : VIEW_PLAIN;
    view_make(&p->q, r, dtype, (const int64_t[]){d->batch, d->heads, d->queries, d->dim}, no_broadcast, style, 0);
    do { /* not both of one number per row: in a sum of equal products all roundings may go one way, and S knows nothing of that */
        view_free(&p->k);
        view_make(&p->k, r, dtype, (const int64_t[]){d->batch, d->kv_heads, d->keys, d->dim}, no_broadcast, style, 0);
    } while (d->dim > 1 && p->q.stride[3] == 0 && p->k.stride[3] == 0);
    view_make(&p->v, r, dtype, (const int64_t[]){d->batch, d->kv_heads, d->keys, d->value_dim}, no_broadcast, style, 0);
    double spread = rng_percent(r, 15) ? 6 : 1;
    fill(&p->q, r, spread), fill(&p->k, r, spread), fill_values(&p->v, r, rng_percent(r, 10) ? 100 : 1);
    d->q = view_in(&p->q), d->k = view_in(&p->k), d->v = view_in(&p->v);
    choose_counts(p, r);
    choose_positions(p, r);
    choose_options(p, r, style);
    choose_outputs(p, r, style);
    if ((with & WITH_POISON) && rng_percent(r, 40)) {
        poison(&p->q, r, (int)rng_range(r, 0, 2)), poison(&p->k, r, (int)rng_range(r, 0, 4)), poison(&p->v, r, (int)rng_range(r, 0, 4));
        if (p->bias.memory.size) poison(&p->bias, r, (int)rng_range(r, 0, 3));
    }
    choose_bytes(p, r);
    choose_threads(p, r, with);
}

void problem_dense(problem *p, rng *r, int32_t dtype, int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys,
                   int64_t dim, int64_t value_dim)
{
    int32_t real = dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    memset(p, 0, sizeof *p);
    attn_desc *d = &p->d;
    *d = attn_desc_new();
    d->batch = batch, d->heads = heads, d->kv_heads = kv_heads, d->queries = queries, d->keys = keys, d->dim = dim,
    d->value_dim = value_dim;
    view_make(&p->q, r, dtype, (const int64_t[]){batch, heads, queries, dim}, no_broadcast, VIEW_PLAIN, 0);
    view_make(&p->k, r, dtype, (const int64_t[]){batch, kv_heads, keys, dim}, no_broadcast, VIEW_PLAIN, 0);
    view_make(&p->v, r, dtype, (const int64_t[]){batch, kv_heads, keys, value_dim}, no_broadcast, VIEW_PLAIN, 0);
    view_make(&p->out, r, dtype, (const int64_t[]){batch, heads, queries, value_dim}, no_broadcast, VIEW_PLAIN, 1);
    view_make(&p->lse, r, real, (const int64_t[]){batch, heads, queries, 1}, (const int[]){0, 0, 0, 1}, VIEW_PLAIN, 1);
    fill(&p->q, r, 1), fill(&p->k, r, 1), fill_values(&p->v, r, 1);
    d->q = view_in(&p->q), d->k = view_in(&p->k), d->v = view_in(&p->v), d->out = view_out(&p->out), d->lse = view_out(&p->lse);
}

void problem_add_weights(problem *p, int32_t dtype, int32_t stage)
{
    attn_desc *d = &p->d;
    rng        r = {0};
    view_make(&p->weights, &r, dtype, (const int64_t[]){d->batch, d->heads, d->queries, d->keys}, no_broadcast, VIEW_PLAIN, 1);
    d->weights = view_out(&p->weights);
    d->weights_stage = stage;
}

void problem_add_mask(problem *p, rng *r, int32_t dtype, const int broadcast[4], int filled)
{
    attn_desc *d = &p->d;
    view      *w = dtype == ATTN_BOOL ? &p->allow : &p->bias;
    view_make(w, r, dtype, (const int64_t[]){d->batch, d->heads, d->queries, d->keys}, broadcast, VIEW_PLAIN, 0);
    if (filled)
        fill_mask(w, r, dtype != ATTN_BOOL);
    else
        memset(w->memory.bytes, dtype == ATTN_BOOL, w->memory.size);
    *(dtype == ATTN_BOOL ? &d->allow : &d->bias) = view_in(w);
}

void problem_add_sink(problem *p, rng *r)
{
    attn_desc *d = &p->d;
    view_make(&p->sink, r, d->lse.dtype, (const int64_t[]){1, d->heads, 1, 1}, (const int[]){1, 0, 1, 1}, VIEW_PLAIN, 0);
    fill(&p->sink, r, 1);
    d->sink = view_in(&p->sink);
}

void problem_add_alibi(problem *p, rng *r, int per_batch)
{
    attn_desc *d = &p->d;
    view_make(&p->alibi, r, d->lse.dtype, (const int64_t[]){d->batch, d->heads, 1, 1}, (const int[]){!per_batch, 0, 1, 1}, VIEW_PLAIN, 0);
    fill(&p->alibi, r, 0.1);
    d->alibi = view_in(&p->alibi);
}

int64_t *problem_counts(problem *p, int64_t **array, const int64_t **field, int64_t value)
{
    *field = *array = malloc((size_t)(p->d.batch + 1) * sizeof **array);
    assert(*array);
    for (int64_t b = 0; b < p->d.batch; b++) (*array)[b] = value;
    return *array;
}

void problem_free(problem *p)
{
    view *views[] = {&p->q, &p->k, &p->v, &p->out, &p->allow, &p->bias, &p->alibi, &p->sink, &p->lse, &p->weights};
    for (size_t i = 0; i < COUNT(views); i++) view_free(views[i]);
    free(p->query_offset), free(p->query_count), free(p->key_count), free(p->key_start);
    guarded_free(&p->work);
    memset(p, 0, sizeof *p);
}

void problem_refill(problem *p)
{
    view *views[] = {&p->out, &p->lse, &p->weights};
    for (size_t i = 0; i < COUNT(views); i++)
        if (views[i]->memory.bytes) view_refill(views[i]);
}

const char *problem_broken(const problem *p, const char **which)
{
    static const char *names[] = {"out", "lse", "weights"};
    const view        *views[] = {&p->out, &p->lse, &p->weights};
    for (size_t i = 0; i < COUNT(views); i++) {
        *which = names[i];
        const char *side = views[i]->memory.bytes ? view_broken(views[i]) : NULL;
        if (side) return side;
    }
    *which = "work";
    return p->work.bytes ? guarded_broken(&p->work) : NULL;
}

/* Exactly as much as this row asks for, full of NaN, in front of a page that cannot be touched. */
static void make_work(problem *p)
{
    size_t bytes = 0;
    attn_work_bytes(&p->d, &bytes, NULL); /* where it fails, attn_run will say why */
    guarded_free(&p->work);
    guarded_make(&p->work, bytes, bytes % 2 ? GUARD_BELOW : GUARD_ABOVE, 0xFF);
    p->d.work = p->work.bytes;
    p->d.work_bytes = bytes;
}

int64_t problem_check(problem *p, const reference *r, const char *isa)
{
    attn_error e;
    p->d.isa = isa;
    problem_refill(p);
    if (p->own_work) make_work(p);
    report_faults(&p->d);
    int32_t code = attn_run(&p->d, &e);
    report_faults(NULL);
    if (code) {
        fprintf(stderr, "  refused with %d: %s\n", code, e.message);
        return 1;
    }
    const char *which, *side = problem_broken(p, &which);
    if (side) fprintf(stderr, "  written %s the elements of %s\n", side, which);
    return compare_results(&p->d, r) + (side != NULL);
}

unsigned char *problem_results(const problem *p, size_t *size)
{
    const guarded *parts[] = {&p->out.memory, &p->lse.memory, &p->weights.memory};
    *size = parts[0]->size + parts[1]->size + parts[2]->size;
    unsigned char *copy = malloc(*size + 1), *at = copy;
    for (int i = 0; i < 3; i++) {
        if (parts[i]->size) memcpy(at, parts[i]->bytes, parts[i]->size);
        at += parts[i]->size;
    }
    return copy;
}

int64_t problem_check_all(problem *p, const char *what)
{
    reference want;
    int64_t   bad = 0;
    reference_make(&want, &p->d);
    for (int i = 0; attn_isa_name(i); i++) {
        if (!attn_isa_usable(i)) continue;
        int64_t here = problem_check(p, &want, attn_isa_name(i));
        if (here) {
            fprintf(stderr, "%s failed:\n", what);
            describe(&p->d, stderr);
        }
        bad += here;
    }
    reference_free(&want);
    return bad;
}

int64_t sweep(const char *test, int64_t count, int with)
{
    int64_t failed = 0;
    for (int64_t at = 0; at < count && failed < 5; at++) {
        if (!test_case_wanted(at)) continue;
        rng     r = rng_make(test, at);
        problem p;
        char    what[96];
        snprintf(what, sizeof what, "%s: ATTN_SEED=%" PRIu64 " ATTN_CASE=%" PRId64, test, test_seed(), at);
        problem_random(&p, &r, with);
        failed += problem_check_all(&p, what) != 0;
        problem_free(&p);
    }
    return failed;
}

/* ---- faults ------------------------------------------------------------------------------------------------------------------------ */

static const attn_desc *volatile at_work;
static struct sigaction before[2];

/* Prints what was at work, then lets the fault happen again under whoever handled it before. fprintf here is not safe in general; the
 * program is lost anyway and the text is what one needs. */
static void on_fault(int number)
{
    if (at_work) {
        fprintf(stderr, "signal %d while this ran (ATTN_SEED=%" PRIu64 "):\n", number, test_seed());
        describe(at_work, stderr);
    }
    sigaction(number, &before[number == SIGBUS], NULL);
}

void report_faults(const attn_desc *d)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_fault;
    at_work = d;
    if (d) {
        sigaction(SIGSEGV, &action, &before[0]);
        sigaction(SIGBUS, &action, &before[1]);
    } else {
        sigaction(SIGSEGV, &before[0], NULL);
        sigaction(SIGBUS, &before[1], NULL);
    }
}
