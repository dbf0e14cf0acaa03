/* test_same_bits.c: a query's bits depend on its own q, the keys it sees, the options and isa; on nothing else.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <fenv.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- dense copies of results --------------------------------------------------------------------------------------------------------- */

struct copy {
    unsigned char *bytes;
    size_t         size;
};

static unsigned char *gather(unsigned char *to, const attn_out *t, const int64_t shape[4])
{
    size_t bytes = element_bytes(t->dtype);
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t i = 0; i < shape[2]; i++)
                for (int64_t c = 0; c < shape[3]; c++) {
                    int64_t at =
                        (b ? b * t->stride[0] : 0) + (h ? h * t->stride[1] : 0) + (i ? i * t->stride[2] : 0) + (c ? c * t->stride[3] : 0);
                    memcpy(to, (const char *)t->data + at * (int64_t)bytes, bytes);
                    if (isnan(element_get(to, t->dtype, 0))) memset(to, 0xFF, bytes); /* a NaN's sign and payload are nobody's */
                    to += bytes;
                }
    return to;
}

/* out, lse and weights, as far as wanted (bits 1, 2, 4) and there; weights from key `first` on. */
static struct copy collect(const attn_desc *d, int wanted, int64_t first)
{
    int64_t        rows = d->batch * d->heads * d->queries;
    struct copy    copy = {malloc((size_t)(rows * (d->value_dim + d->keys + 1) + 1) * 8), 0};
    unsigned char *at = copy.bytes;
    if (wanted & 1) at = gather(at, &d->out, (const int64_t[]){d->batch, d->heads, d->queries, d->value_dim});
    if (wanted & 2 && d->lse.data) at = gather(at, &d->lse, (const int64_t[]){d->batch, d->heads, d->queries, 1});
    if (wanted & 4 && d->weights.data) {
        attn_out moved = d->weights;
        moved.data = (char *)moved.data + first * moved.stride[3] * (int64_t)element_bytes(moved.dtype);
        at = gather(at, &moved, (const int64_t[]){d->batch, d->heads, d->queries, d->keys - first});
    }
    copy.size = (size_t)(at - copy.bytes);
    return copy;
}

static void run(const attn_desc *d)
{
    attn_error e;
    report_faults(d);
    if (attn_run(d, &e)) {
        fprintf(stderr, "%s\n", e.message);
        describe(d, stderr);
        fail();
    }
    report_faults(NULL);
}

static void same(struct copy a, struct copy b, const char *what, int64_t at, const attn_desc *d)
{
    int differ = a.size != b.size || memcmp(a.bytes, b.bytes, a.size) != 0;
    if (differ) {
        size_t place = 0;
        while (place < a.size && place < b.size && a.bytes[place] == b.bytes[place]) place++;
        fprintf(stderr, "%s: ATTN_SEED=%" PRIu64 " ATTN_CASE=%" PRId64 ": other bits, first at byte %zu of %zu: %02x, %02x\n", what,
                test_seed(), at, place, a.size, a.bytes[place], b.bytes[place]);
        describe(d, stderr);
    }
    free(b.bytes);
    assert_false(differ);
}

/* Runs body(problem, isa's result) for random problems on each row. */
static void each(const char *test, int64_t count, int with, void (*body)(problem *p, struct copy whole, rng *r, int64_t at))
{
    for (int64_t at = 0; at < test_count(count); at++) {
        if (!test_case_wanted(at)) continue;
        rng     r = rng_make(test, at);
        problem p;
        problem_random(&p, &r, with);
        for (int i = 0; attn_isa_name(i); i++) {
            if (!attn_isa_usable(i)) continue;
            p.d.isa = attn_isa_name(i);
            problem_refill(&p);
            run(&p.d);
            struct copy whole = collect(&p.d, 7, 0);
            body(&p, whole, &r, at);
            free(whole.bytes);
        }
        problem_free(&p);
    }
}

/* ---- threads ------------------------------------------------------------------------------------------------------------------------- */

static attn_pool *pools[5];

static void threads(problem *p, struct copy whole, rng *r, int64_t at)
{
    attn_executor wide = executor_backward;
    wide.width = 64;
    const attn_executor *ways[] = {NULL, &executor_forward, &executor_backward, &wide, NULL, NULL, NULL, NULL};
    (void)r;
    for (int t = 1; t <= 4; t++) ways[3 + t] = attn_pool_executor(pools[t]);
    for (int w = 0; w < 8; w++) {
        attn_desc d = p->d;
        d.executor = ways[w];
        d.work = NULL, d.work_bytes = 0;
        problem_refill(p);
        run(&d);
        same(whole, collect(&d, 7, 0), "threads", at, &d);
    }
}

static void any_number_of_threads(void **state)
{
    (void)state;
    for (int t = 1; t <= 4; t++) assert_non_null(pools[t] = attn_pool_new(t, NULL));
    each("threads", 70, WITH_ALL, threads);
    for (int t = 1; t <= 4; t++) attn_pool_free(pools[t]);
}

/* ---- pieces of the batch, of the heads, of the queries --------------------------------------------------------------------------------- */

static void move_in(attn_in *t, int axis, int64_t by)
{
    if (t->data && by) t->data = (const char *)t->data + by * t->stride[axis] * (int64_t)element_bytes(t->dtype);
    t->bytes = 0;
}

static void move_out(attn_out *t, int axis, int64_t by)
{
    if (t->data && by) t->data = (char *)t->data + by * t->stride[axis] * (int64_t)element_bytes(t->dtype);
    t->bytes = 0;
}

static attn_desc piece_of_batch(const attn_desc *whole, int64_t b)
{
    attn_desc d = *whole;
    d.batch = 1;
    move_in(&d.q, 0, b), move_in(&d.k, 0, b), move_in(&d.v, 0, b), move_in(&d.allow, 0, b), move_in(&d.bias, 0, b), move_in(&d.alibi, 0, b);
    move_out(&d.out, 0, b), move_out(&d.lse, 0, b), move_out(&d.weights, 0, b);
    if (d.query_offset) d.query_offset += b;
    if (d.query_count) d.query_count += b;
    if (d.key_count) d.key_count += b;
    if (d.key_start) d.key_start += b;
    d.work = NULL, d.work_bytes = 0;
    return d;
}

static attn_desc piece_of_heads(const attn_desc *whole, int64_t h)
{
    attn_desc d = *whole;
    int64_t   g = h / (whole->heads / whole->kv_heads);
    d.heads = d.kv_heads = 1;
    move_in(&d.q, 1, h), move_in(&d.k, 1, g), move_in(&d.v, 1, g), move_in(&d.allow, 1, h), move_in(&d.bias, 1, h), move_in(&d.alibi, 1, h);
    move_in(&d.sink, 1, h), move_out(&d.out, 1, h), move_out(&d.lse, 1, h), move_out(&d.weights, 1, h);
    return d;
}

static void batch_and_heads(problem *p, struct copy whole, rng *r, int64_t at)
{
    (void)r;
    problem_refill(p);
    for (int64_t b = 0; b < p->d.batch; b++) {
        attn_desc entry = piece_of_batch(&p->d, b);
        for (int64_t h = 0; h < p->d.heads; h++) {
            attn_desc d = piece_of_heads(&entry, h);
            run(&d);
        }
    }
    same(whole, collect(&p->d, 7, 0), "batch and heads", at, &p->d);
}

static void any_batch_and_head(void **state)
{
    (void)state;
    each("batch", 150, WITH_ALL, batch_and_heads);
}

/* Queries first .. first + count - 1 as a call of their own: their offset is said, and where the padding begins. */
static void run_queries(const attn_desc *whole, int64_t first, int64_t count)
{
    attn_desc d = *whole;
    int64_t  *offset = calloc((size_t)d.batch + 1, sizeof *offset), *counts = calloc((size_t)d.batch + 1, sizeof *counts);
    for (int64_t b = 0; b < d.batch; b++) {
        int64_t start = d.key_start ? d.key_start[b] : 0, keys = d.key_count ? d.key_count[b] : d.keys - start;
        int64_t queries = d.query_count ? d.query_count[b] : d.queries;
        offset[b] = first + (d.query_offset ? d.query_offset[b] : d.align == ATTN_ALIGN_BOTTOM_RIGHT ? keys - queries : 0);
        counts[b] = queries - first < 0 ? 0 : queries - first > count ? count : queries - first;
    }
    move_in(&d.q, 2, first), move_in(&d.allow, 2, first), move_in(&d.bias, 2, first);
    move_out(&d.out, 2, first), move_out(&d.lse, 2, first), move_out(&d.weights, 2, first);
    d.queries = count, d.query_offset = offset, d.query_count = counts, d.align = 0;
    d.work = NULL, d.work_bytes = 0;
    run(&d);
    free(offset), free(counts);
}

static void split_queries(problem *p, struct copy whole, rng *r, int64_t at)
{
    problem_refill(p);
    int64_t most = rng_percent(r, 40) ? 1 : rng_percent(r, 50) ? 20 : 100;
    for (int64_t first = 0, count; first < p->d.queries; first += count) {
        count = rng_range(r, 1, most);
        if (count > p->d.queries - first) count = p->d.queries - first;
        run_queries(&p->d, first, count);
    }
    same(whole, collect(&p->d, 7, 0), "split of the queries", at, &p->d);
}

static void any_split_of_the_queries(void **state)
{
    (void)state;
    each("queries", 200, WITH_ALL, split_queries);
}

/* ---- strides, options asked for ------------------------------------------------------------------------------------------------------- */

static view plain_copy(const view *w, rng *r)
{
    view      c = {0};
    const int none[4] = {0, 0, 0, 0};
    if (!w->dtype) return c;
    view_make(&c, r, w->dtype, w->shape, none, VIEW_PLAIN, w->output);
    for (int64_t b = 0; !w->output && b < w->shape[0]; b++)
        for (int64_t h = 0; h < w->shape[1]; h++)
            for (int64_t i = 0; i < w->shape[2]; i++)
                for (int64_t j = 0; j < w->shape[3]; j++) view_set(&c, b, h, i, j, view_get(w, b, h, i, j));
    return c;
}

static void contiguous(problem *p, struct copy whole, rng *r, int64_t at)
{
    attn_desc   d = p->d;
    const view *from[] = {&p->q, &p->k, &p->v, &p->allow, &p->bias, &p->out, &p->lse, &p->weights};
    view        to[8];
    for (int i = 0; i < 8; i++) to[i] = plain_copy(from[i], r);
    d.q = view_in(&to[0]), d.k = view_in(&to[1]), d.v = view_in(&to[2]);
    if (d.allow.data) d.allow = view_in(&to[3]);
    if (d.bias.data) d.bias = view_in(&to[4]);
    d.out = view_out(&to[5]);
    if (d.lse.data) {
        d.lse = view_out(&to[6]);
        d.lse.stride[3] = 0; /* an axis it does not have */
    }
    if (d.weights.data) d.weights = view_out(&to[7]);
    run(&d);
    same(whole, collect(&d, 7, 0), "contiguous copies", at, &p->d);
    for (int i = 0; i < 8; i++) view_free(&to[i]);
}

static void strided_or_contiguous(void **state)
{
    (void)state;
    each("strides", 200, WITH_ALL, contiguous);
}

static void without_optional_outputs(problem *p, struct copy whole, rng *r, int64_t at)
{
    struct copy first = collect(&p->d, 1, 0);
    (void)r, (void)whole;
    for (int way = 0; way < 6; way++) {
        attn_desc d = p->d;
        problem   w = {.d = d};
        if (way == 0) memset(&d.lse, 0, sizeof d.lse);
        if (way < 2) memset(&d.weights, 0, sizeof d.weights), d.weights_stage = 0;
        if (way >= 2) {
            problem_add_weights(&w, ATTN_F32, way - 2);
            d.weights = w.d.weights, d.weights_stage = way - 2;
        }
        d.work = NULL, d.work_bytes = 0;
        problem_refill(p);
        run(&d);
        same(first, collect(&d, 1, 0), "optional outputs", at, &d);
        view_free(&w.weights);
    }
    free(first.bytes);
}

static void with_or_without_optional_outputs(void **state)
{
    (void)state;
    each("optional", 70, WITH_ALL, without_optional_outputs);
}

static void own_work(problem *p, struct copy whole, rng *r, int64_t at)
{
    attn_desc d = p->d;
    size_t    bytes;
    guarded   work;
    assert_int_equal(attn_work_bytes(&d, &bytes, NULL), ATTN_OK);
    guarded_make(&work, bytes, (int)rng_range(r, 0, 1), 0xFF); /* NaN wherever it is not written first */
    d.work = work.bytes, d.work_bytes = bytes;
    problem_refill(p);
    run(&d);
    same(whole, collect(&d, 7, 0), "own work", at, &d);
    d.work = NULL, d.work_bytes = 0;
    problem_refill(p);
    run(&d);
    same(whole, collect(&d, 7, 0), "no work", at, &d);
    guarded_free(&work);
}

static void whatever_the_work_holds(void **state)
{
    (void)state;
    each("work", 100, WITH_ALL & ~WITH_WORK, own_work);
}

/* ---- where keys begin ----------------------------------------------------------------------------------------------------------------- */

/* `by` keys of garbage in front of k, v, allow and bias, and key_start says so. */
static view shifted(const view *w, rng *r, int axis, int64_t by)
{
    view      c = {0};
    const int none[4] = {0, 0, 0, 0};
    int64_t   shape[4];
    if (!w->dtype) return c;
    memcpy(shape, w->shape, sizeof shape);
    shape[axis] += by;
    view_make(&c, r, w->dtype, shape, none, VIEW_PLAIN, 0);
    for (int64_t b = 0; b < w->shape[0]; b++)
        for (int64_t h = 0; h < w->shape[1]; h++)
            for (int64_t i = 0; i < w->shape[2]; i++)
                for (int64_t j = 0; j < w->shape[3]; j++)
                    view_set(&c, b, h, axis == 2 ? i + by : i, axis == 3 ? j + by : j, view_get(w, b, h, i, j));
    return c;
}

static void shift_keys(problem *p, struct copy whole, rng *r, int64_t at)
{
    attn_desc d = p->d;
    int64_t   by = rng_range(r, 1, 150), *start = calloc((size_t)d.batch + 1, sizeof *start),
            *count = calloc((size_t)d.batch + 1, sizeof *count);
    view to[4] = {shifted(&p->k, r, 2, by), shifted(&p->v, r, 2, by), shifted(&p->allow, r, 3, by), shifted(&p->bias, r, 3, by)},
         weights = {0};
    (void)whole;
    struct copy first = collect(&p->d, p->d.weights_stage == ATTN_STAGE_SCALED || p->d.weights_stage == ATTN_STAGE_CAPPED ? 3 : 7, 0);
    for (int64_t b = 0; b < d.batch; b++) {
        start[b] = by + (d.key_start ? d.key_start[b] : 0);
        count[b] = d.key_count ? d.key_count[b] : d.keys + by - start[b];
    }
    d.keys += by, d.key_start = start, d.key_count = count;
    d.k = view_in(&to[0]), d.v = view_in(&to[1]);
    if (d.allow.data) d.allow = view_in(&to[2]);
    if (d.bias.data) d.bias = view_in(&to[3]);
    if (d.weights.data) {
        const int none[4] = {0, 0, 0, 0};
        view_make(&weights, r, d.weights.dtype, (const int64_t[]){d.batch, d.heads, d.queries, d.keys}, none, VIEW_PLAIN, 1);
        d.weights = view_out(&weights);
    }
    d.work = NULL, d.work_bytes = 0;
    problem_refill(p);
    run(&d);
    same(first, collect(&d, d.weights_stage == ATTN_STAGE_SCALED || d.weights_stage == ATTN_STAGE_CAPPED ? 3 : 7, by), "shifted keys", at,
         &d);
    free(first.bytes), free(start), free(count);
    for (int i = 0; i < 4; i++) view_free(&to[i]);
    view_free(&weights);
}

static void wherever_keys_start(void **state)
{
    (void)state;
    each("start", 130, WITH_ALL, shift_keys);
}

/* What a query sees may be said in several ways: the bits are those of the keys seen. A causal run's prefix, a window, a boolean mask, a bias of 0
 * and -inf, a key count. */
static void however_the_seen_keys_are_said(void **state)
{
    (void)state;
    for (int64_t at = 0; at < test_count(60); at++) {
        if (!test_case_wanted(at)) continue;
        rng     r = rng_make("said", at);
        problem p;
        int32_t dtype = (int32_t)rng_range(&r, ATTN_F32, ATTN_BF16);
        int64_t n = rng_percent(&r, 10) ? rng_range(&r, 2040, 2060) : rng_range(&r, 2, 200), used = rng_range(&r, 1, n);
        problem_dense(&p, &r, dtype, 1, 2, 1, rng_range(&r, 1, n > 300 ? 3 : n), n, rng_range(&r, 1, 20), rng_range(&r, 1, 20));
        int64_t offset = n - p.d.queries;
        p.d.causal = 1, p.d.align = ATTN_ALIGN_BOTTOM_RIGHT;
        for (int i = 0; attn_isa_name(i); i++) {
            if (!attn_isa_usable(i)) continue;
            p.d.isa = attn_isa_name(i);
            run(&p.d);
            struct copy whole = collect(&p.d, 3, 0);
            attn_desc   d = p.d;
            d.causal = 0, d.window = 1, d.window_left = -1; /* right = 0 is causal */
            run(&d);
            same(whole, collect(&d, 3, 0), "window for causal", at, &d);
            view      allow, bias;
            const int plane[4] = {1, 1, 0, 0};
            view_make(&allow, &r, ATTN_BOOL, (const int64_t[]){1, 2, p.d.queries, n}, plane, VIEW_PLAIN, 0);
            view_make(&bias, &r, ATTN_F32, (const int64_t[]){1, 2, p.d.queries, n}, plane, VIEW_PLAIN, 0);
            for (int64_t q = 0; q < p.d.queries; q++)
                for (int64_t j = 0; j < n; j++) {
                    view_set(&allow, 0, 0, q, j, j <= q + offset);
                    view_set(&bias, 0, 0, q, j, j <= q + offset ? 0 : -INFINITY);
                }
            d = p.d, d.causal = 0, d.allow = view_in(&allow);
            run(&d);
            same(whole, collect(&d, 3, 0), "mask for causal", at, &d);
            d = p.d, d.causal = 0, d.bias = view_in(&bias);
            run(&d);
            same(whole, collect(&d, 3, 0), "bias for causal", at, &d);
            free(whole.bytes);
            /* the keys beyond `used` do not exist, or are not counted; queries on them are left out */
            int64_t seen_queries = used - offset < 0 ? 0 : used - offset;
            run(&p.d);
            d = p.d, d.queries = seen_queries;
            struct copy prefix = collect(&d, 3, 0);
            problem_counts(&p, &p.query_offset, &d.query_offset, offset);
            d.align = 0, d.keys = used;
            d.k.stride[0] = d.k.stride[1] = d.v.stride[0] = d.v.stride[1] = 0; /* one batch entry, one key head */
            run(&d);
            same(prefix, collect(&d, 3, 0), "prefix of a causal run", at, &d);
            free(prefix.bytes), free(p.query_offset), p.query_offset = NULL;
            view_free(&allow), view_free(&bias);
        }
        problem_free(&p);
    }
}

/* A score of -inf that is seen, with NaN in the value there: whatever comes of it, the neighbours have no part in it. */
static void minus_infinite_scores_and_their_values(void **state)
{
    (void)state;
    for (int isa = 0; attn_isa_name(isa); isa++)
        for (int form = 0; form < 4 && attn_isa_usable(isa); form++) {
            rng     r = rng_make("minus infinite", form);
            problem p;
            problem_dense(&p, &r, form % 2 ? ATTN_F64 : ATTN_F32, 1, 1, 1, 20, 20, 1, 3);
            p.d.isa = attn_isa_name(isa), p.d.causal = 1, p.d.align = ATTN_ALIGN_TOP_LEFT;
            for (int64_t i = 0; i < 20; i++) view_set(&p.q, 0, 0, i, 0, 1);
            for (int64_t j = form < 2 ? 7 : 0; j < (form < 2 ? 8 : 20); j++) {
                view_set(&p.k, 0, 0, j, 0, -INFINITY);
                view_set(&p.v, 0, 0, j, 1, j % 2 ? NAN : INFINITY);
            }
            run(&p.d);
            struct copy whole = collect(&p.d, 7, 0);
            problem_refill(&p);
            for (int64_t first = 0; first < 20; first++) run_queries(&p.d, first, 1);
            same(whole, collect(&p.d, 7, 0), "scores of -inf", form, &p.d);
            free(whole.bytes);
            problem_free(&p);
        }
}

/* ---- the caller's floating-point mode --------------------------------------------------------------------------------------------------- */

static void enter_mode(int mode)
{
    static const int rounding[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    feclearexcept(FE_ALL_EXCEPT);
    if (mode < 4) fesetround(rounding[mode]);
#if defined(__x86_64__)
    if (mode == 4) _mm_setcsr(_mm_getcsr() | 0x8040);              /* flush to zero, denormals are zero */
    if (mode == 5) _mm_setcsr(_mm_getcsr() & ~(unsigned)0x1F80);   /* every exception traps */
    if (mode == 6) _mm_setcsr((_mm_getcsr() | 0xE040) & ~0x1E80u); /* all of it at once */
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    if (mode >= 4) control |= UINT64_C(1) << 24 | (mode == 6 ? UINT64_C(3) << 22 : 0); /* flush to zero; and toward zero */
    __asm__ volatile("msr fpcr, %0" : : "r"(control));
#endif
}

/* Control and status words as one number, to see whether a call left them as they were. */
static uint64_t mode_word(void)
{
#if defined(__x86_64__)
    unsigned short x87_control, x87_status;
    __asm__ volatile("fnstcw %0" : "=m"(x87_control));
    __asm__ volatile("fnstsw %0" : "=am"(x87_status));
    return (uint64_t)_mm_getcsr() | (uint64_t)x87_control << 32 | (uint64_t)(x87_status & 63) << 48;
#elif defined(__aarch64__)
    uint64_t control, status;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("mrs %0, fpsr" : "=r"(status));
    return control | status << 32;
#else
    return (uint64_t)fegetround() | (uint64_t)fetestexcept(FE_ALL_EXCEPT) << 32;
#endif
}

static void modes(problem *p, struct copy whole, rng *r, int64_t at)
{
    (void)r;
    const attn_executor *ways[] = {NULL, &executor_forward, attn_pool_executor(pools[1])};
    for (int mode = 1; mode < 7; mode++)
        for (int w = 0; w < 3; w++) {
            fenv_t    usual;
            attn_desc d = p->d;
            if (w && mode != 1 + at % 6) continue;
            d.executor = ways[w], d.work = NULL, d.work_bytes = 0;
            problem_refill(p);
            fegetenv(&usual);
            enter_mode(mode);
            uint64_t before = mode_word();
            int32_t  code = attn_run(&d, NULL);
            uint64_t after = mode_word();
            fesetenv(&usual);
            assert_int_equal(code, ATTN_OK);
            if (before != after) fprintf(stderr, "mode %d: %" PRIx64 " became %" PRIx64 "\n", mode, before, after);
            assert_true(before == after);
            same(whole, collect(&d, 7, 0), "floating-point mode", at, &d);
        }
}

static void any_floating_point_mode(void **state)
{
    (void)state;
    /* threads inherit the mode of their creator: this pool's have the worst */
    fenv_t usual;
    fegetenv(&usual);
    enter_mode(6);
    pools[1] = attn_pool_new(3, NULL);
    fesetenv(&usual);
    assert_non_null(pools[1]);
    each("modes", 60, WITH_ALL, modes);
    attn_pool_free(pools[1]);
}

static void merge_in_any_floating_point_mode(void **state)
{
    (void)state;
    for (int64_t at = 0; at < 20; at++) {
        rng             r = rng_make("merge", at);
        float           outs[3][6], lses[3][2], slopes[2][12], out[2][6], lse[2][2];
        attn_in         part_out[3], part_lse[3];
        attn_merge_desc d = attn_merge_desc_new();
        for (int part = 0; part < 3; part++) {
            for (int c = 0; c < 6; c++) outs[part][c] = (float)rng_normal(&r);
            for (int i = 0; i < 2; i++) lses[part][i] = (float)rng_normal(&r);
            if (at == 3) outs[part][0] *= 1e-39f; /* subnormal in, subnormal out */
            part_out[part] = attn_in_dense(outs[part], ATTN_F32, 1, 2, 3);
            part_lse[part] = attn_in_dense(lses[part], ATTN_F32, 1, 2, 1);
            part_lse[part].stride[3] = 0;
        }
        d.batch = d.heads = 1, d.queries = 2, d.value_dim = 3, d.parts = 3, d.part_out = part_out, d.part_lse = part_lse;
        for (int mode = 0; mode < 7; mode++) {
            fenv_t usual;
            int    to = mode != 0;
            d.out = attn_out_dense(out[to], ATTN_F32, 1, 2, 3);
            d.lse = attn_out_dense(lse[to], ATTN_F32, 1, 2, 1);
            d.lse.stride[3] = 0;
            fegetenv(&usual);
            enter_mode(mode);
            uint64_t before = mode_word();
            int32_t  code = attn_merge(&d, NULL), more = attn_alibi_slopes(12, slopes[to], NULL);
            uint64_t after = mode_word();
            fesetenv(&usual);
            assert_int_equal(code, ATTN_OK);
            assert_int_equal(more, ATTN_OK);
            assert_true(before == after);
            if (!to) continue;
            assert_memory_equal(out[0], out[1], sizeof out[0]);
            assert_memory_equal(lse[0], lse[1], sizeof lse[0]);
            assert_memory_equal(slopes[0], slopes[1], sizeof slopes[0]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(any_batch_and_head),
        cmocka_unit_test(any_split_of_the_queries),
        cmocka_unit_test(strided_or_contiguous),
        cmocka_unit_test(with_or_without_optional_outputs),
        cmocka_unit_test(whatever_the_work_holds),
        cmocka_unit_test(wherever_keys_start),
        cmocka_unit_test(however_the_seen_keys_are_said),
        cmocka_unit_test(minus_infinite_scores_and_their_values),
        cmocka_unit_test(any_floating_point_mode),
        cmocka_unit_test(merge_in_any_floating_point_mode),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("same bits", tests, NULL, NULL);
}
