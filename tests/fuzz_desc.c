/* fuzz_desc.c: fuzz target: any descriptor over honest memory is either refused with nothing written, or runs inside its operands.
 * SPDX-License-Identifier: MIT
 *
 * The input is read as a list of choices; past its end every choice is 0. Operands are heap blocks of exactly the bytes that their strides span,
 * so that a sanitizer sees every step outside; what spans too much gets a small block and says so in `bytes`, and must be refused.
 */
#include <attn/attn.h>

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

__extension__ typedef __int128 wide;

enum { ROOM = 1 << 16, SMALL = 64, OPERANDS = 30 };

static const uint8_t *input;
static size_t         left;

static uint8_t byte(void)
{
    return left ? left--, *input++ : 0;
}

static int64_t word(void)
{
    uint64_t x = 0;
    for (int i = 0; i < 8; i++) x = x << 8 | byte();
    return (int64_t)x;
}

static void promise(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

/* Mostly small, at times anything. */
static int64_t choose_size(void)
{
    uint8_t b = byte();
    return b < 200 ? b % 9 : b < 250 ? b - 70 : word();
}

static int32_t choose_switch(void)
{
    uint8_t b = byte();
    return b < 250 ? b % 2 : (int32_t)word();
}

/* ---- operands ---------------------------------------------------------------------------------------------------------------------------- */

struct operand {
    unsigned char *block;
    size_t         bytes;
    int            output;
};

static struct operand operands[OPERANDS];
static int            made;

/* dtype: most of the time what fits. */
static int32_t choose_dtype(int32_t usual)
{
    uint8_t b = byte();
    return b < 245 ? usual : b < 253 ? b % 7 : (int32_t)word();
}

static void choose_strides(int64_t stride[4], const int64_t size[4], const int present[4])
{
    uint8_t way = byte() % 20; /* most often contiguous */
    int64_t step = 1;
    for (int at = 3; at >= 0; at--) {
        int a = way == 1 ? (at + 2) % 4 : at; /* contiguous, in one of two orders */
        stride[a] = present[a] ? step : 0;
        if (present[a] && size[a] > 0 && size[a] < 1000 && step < ROOM) step *= size[a];
    }
    if (way == 2) stride[byte() % 4] *= -1;
    if (way == 3) stride[byte() % 4] = 0;
    if (way == 4)
        for (int a = 0; a < 4; a++) stride[a] = (int8_t)byte();
    if (way == 5) stride[byte() % 4] = word();
    if (way == 6) stride[byte() % 4] += (int8_t)byte();
}

/* A block that the view spans exactly, and where element 0 lies in it; 0 if it is too large for one. present: 2 for an axis that a step of 0
 * makes one of one entry. */
static int span(const int64_t stride[4], const int64_t size[4], const int present[4], size_t width, size_t *bytes, size_t *origin)
{
    wide low = 0, high = 0;
    for (int a = 0; a < 4; a++) {
        if (!present[a] || (present[a] == 2 && stride[a] == 0)) continue;
        if (size[a] < 0) return 0;
        if (size[a] == 0) return *bytes = *origin = 0, 1;
    }
    for (int a = 0; a < 4; a++) {
        wide reach = present[a] ? (wide)stride[a] * (size[a] - 1) : 0;
        if (reach > ROOM || reach < -ROOM) return 0; /* before sums and products leave 128 bits */
        *(reach < 0 ? &low : &high) += reach;
    }
    if ((high - low + 1) * (wide)width > ROOM) return 0;
    *bytes = (size_t)(high - low + 1) * width;
    *origin = (size_t)-low * width;
    return 1;
}

/* Fills an attn_in or attn_out, which have the same layout. */
static void choose_view(attn_out *t, int output, int needed, int32_t usual, const int64_t size[4], const int present[4])
{
    struct operand *o = &operands[made++];
    size_t          bytes = SMALL, origin = 0;
    memset(t, 0, sizeof *t);
    o->block = NULL;
    if (!needed && byte() % 3 == 0) return;
    t->dtype = choose_dtype(usual);
    choose_strides(t->stride, size, present);
    size_t width = attn_dtype_bytes(t->dtype);
    int    fits = span(t->stride, size, present, width ? width : 1, &bytes, &origin);
    o->bytes = fits ? bytes : SMALL, o->output = output;
    o->block = malloc(o->bytes ? o->bytes : 1);
    if (!o->block) exit(0);
    for (size_t at = 0; at < o->bytes; at++) o->block[at] = output ? 0xA5 : byte();
    t->data = o->block + (fits ? origin : 0);
    t->bytes = !fits ? SMALL : byte() % 2 ? o->bytes : 0;
    uint8_t odd = byte();
    if (odd == 255) t->reserved = 1;
    if (odd == 254) t->data = NULL;
    if (odd == 253) t->bytes = (size_t)word(), t->bytes = t->bytes && t->bytes < o->bytes ? t->bytes : o->bytes;
}

static int outputs_untouched(void)
{
    for (int i = 0; i < made; i++)
        for (size_t at = 0; operands[i].block && operands[i].output && at < operands[i].bytes; at++)
            if (operands[i].block[at] != 0xA5) return 0;
    return 1;
}

/* ---- the rest of the descriptor -------------------------------------------------------------------------------------------------------------- */

static void forward(void *context, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    for (int32_t i = 0; i < count; i++) body(arg, context ? count - 1 - i : i);
}

static const int64_t *choose_counts(int64_t batch, int64_t usual)
{
    if (byte() % 3 || batch < 0 || batch > 16) return NULL;
    int64_t *counts = malloc((size_t)batch * sizeof *counts + 1);
    for (int64_t b = 0; counts && b < batch; b++) {
        uint8_t c = byte();
        counts[b] = c < 245 ? (usual > 0 && usual < 256 ? c % (usual + 1) : 0) : c < 252 ? c - 248 : word();
    }
    return counts;
}

static void choose_options(attn_desc *d, attn_executor *executor)
{
    static const char *const names[] = {NULL, "scalar", "avx2", "avx512", "neon", "", "avx512bf16"};
    d->align = byte() % 8 ? 1 + byte() % 2 : 0;
    if (byte() > 250) d->align = (int32_t)word();
    d->causal = choose_switch(), d->window = choose_switch(), d->scale_given = choose_switch();
    if (d->window)
        d->window_left = byte() % 8 == 7 ? word() : byte() % 12 - 1, d->window_right = byte() % 8 == 7 ? word() : byte() % 12 - 1;
    uint8_t form = byte();
    int64_t bits = form > 240 ? word() : 0;
    if (d->scale_given) d->scale = form % 4 - 1;
    if (form % 5 == 1) d->softcap = form;
    if (form > 240) memcpy(form % 2 ? &d->scale : &d->softcap, &bits, sizeof bits);
    d->query_offset = choose_counts(d->batch, d->keys);
    if (d->query_offset && byte() % 8) d->align = 0;
    d->query_count = choose_counts(d->batch, d->queries);
    d->key_count = choose_counts(d->batch, d->keys / 2);
    d->key_start = choose_counts(d->batch, d->keys / 2);
    if (byte() > 250) d->reserved = byte();
    uint8_t name = byte();
    d->isa = names[name < 240 ? name % 4 : name % 7];
    *executor = (attn_executor){forward, byte() % 2 ? executor : NULL, byte() % 7 + 1, 0};
    if (byte() > 250) executor->width = (int32_t)word();
    if (byte() > 253) executor->parallel_for = NULL;
    if (byte() % 2) d->executor = executor;
}

/* Whether a run ends in a blink: a size that costs nothing may be anything. */
static int small_enough(const attn_desc *d)
{
    wide product = 1;
    if (d->batch == 0 || d->heads == 0 || d->queries == 0) return 1;
    const int64_t factors[] = {d->batch, d->heads, d->queries, d->keys + 1, d->dim + d->value_dim + 1};
    for (int i = 0; i < 5; i++) {
        if (factors[i] < 0 || factors[i] > 1 << 20) return 0;
        product *= factors[i];
    }
    return product <= 1 << 21 && d->dim + d->value_dim < 1 << 12;
}

static void choose_all(attn_desc *d, attn_executor *executor)
{
    *d = attn_desc_new();
    d->batch = choose_size(), d->kv_heads = choose_size();
    uint8_t group = byte();
    d->heads = group < 220 && d->kv_heads < 1000 && d->kv_heads >= 0 ? d->kv_heads * (group % 4) : choose_size();
    d->queries = choose_size(), d->keys = choose_size(), d->dim = choose_size(), d->value_dim = choose_size();
    choose_options(d, executor);
    int32_t       type = byte() % 4 + 1, real = type == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    const int64_t qs[4] = {d->batch, d->heads, d->queries, d->dim}, ks[4] = {d->batch, d->kv_heads, d->keys, d->dim},
                  vs[4] = {d->batch, d->kv_heads, d->keys, d->value_dim};
    const int64_t os[4] = {d->batch, d->heads, d->queries, d->value_dim}, ms[4] = {d->batch, d->heads, d->queries, d->keys};
    const int     all[4] = {1, 1, 1, 1}, two[4] = {1, 1, 0, 0}, one[4] = {0, 1, 0, 0}, three[4] = {1, 1, 1, 0};
    made = 0;
    choose_view((attn_out *)&d->q, 0, 1, type, qs, all), choose_view((attn_out *)&d->k, 0, 1, d->q.dtype, ks, all);
    choose_view((attn_out *)&d->v, 0, 1, d->q.dtype, vs, all), choose_view(&d->out, 1, 1, byte() % 2 ? d->q.dtype : ATTN_F32, os, all);
    choose_view((attn_out *)&d->allow, 0, 0, ATTN_BOOL, ms, all),
        choose_view((attn_out *)&d->bias, 0, 0, byte() % 2 ? d->q.dtype : ATTN_F32, ms, all);
    choose_view((attn_out *)&d->alibi, 0, 0, real, ms, two), choose_view((attn_out *)&d->sink, 0, 0, real, ms, one);
    choose_view(&d->lse, 1, 0, real, ms, three), choose_view(&d->weights, 1, 0, byte() % 2 ? d->q.dtype : ATTN_F64, ms, all);
    d->weights_stage = byte() > 250 ? 4 : byte() % 4;
    if (!d->weights.data) d->weights_stage = byte() > 250;
}

/* The caller's own workspace: exactly right, one byte short, or none. */
static void *choose_work(attn_desc *d)
{
    size_t         bytes = 0;
    attn_error     e;
    uint8_t        way = byte() % 8;
    attn_plan_info info = attn_plan_info_new();
    int32_t        code = attn_work_bytes(d, &bytes, &e), described = attn_plan_describe(d, &info, &e);
    promise(described == code, "attn_plan_describe refuses as attn_work_bytes does");
    promise(described ||
                (info.work_bytes == bytes && info.speedup >= 0 && info.speedup <= 1e-6 + (double)(info.threads ? info.threads : 1)),
            "a plan speaks of the same bytes, and no thread is faster than a thread");
    if (code != ATTN_OK || way < 5 || bytes > 1 << 24) return NULL;
    if (way == 7 && bytes) bytes--;
    d->work = malloc(bytes ? bytes : 1);
    d->work_bytes = bytes;
    return d->work;
}

/* ---- looking at weights ---------------------------------------------------------------------------------------------------------------- */

static int64_t *choose_list(int64_t *count, int64_t full)
{
    if (byte() % 3) return NULL;
    *count = byte() % 9;
    int64_t *list = malloc((size_t)*count * sizeof *list + 1);
    for (int64_t i = 0; list && i < *count; i++) {
        uint8_t c = byte();
        list[i] = c < 250 ? (full > 0 && full < 256 ? c % full : 0) : word();
    }
    return list;
}

static void choose_looks(attn_inspect_desc *w, const attn_desc *d)
{
    const int all[4] = {1, 1, 1, 1}, three[4] = {1, 1, 1, 0};
    *w = attn_inspect_desc_new();
    w->heads = choose_list(&w->head_count, d->heads), w->queries = choose_list(&w->query_count, d->queries);
    if (byte() % 4 == 0) w->key_first = choose_size();
    if (byte() % 4 == 0) w->key_count = choose_size();
    w->map_rows = byte() % 4, w->map_columns = byte() % 4, w->top = byte() % 80;
    w->mass_left = byte() % 8 == 7 ? word() : byte() % 12 - 1, w->mass_right = byte() % 8 == 7 ? word() : byte() % 12 - 1;
    const int64_t heads = w->heads ? w->head_count : d->heads, n = w->queries ? w->query_count : d->queries;
    const int64_t k = w->key_count ? w->key_count : d->keys - w->key_first;
    const int64_t rows[4] = {d->batch, d->heads, d->queries, 1}, pairs[4] = {d->batch, heads, n, k},
                  ranks[4] = {d->batch, heads, n, w->top}, keys[4] = {d->batch, heads, k, 1},
                  cells[4] = {d->batch, heads, w->map_rows, w->map_columns};
    choose_view((attn_out *)&w->lse, 0, 0, d->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, rows, three);
    choose_view(&w->values, 1, 0, ATTN_F32, pairs, all), choose_view(&w->entropy, 1, 0, ATTN_F64, pairs, three);
    choose_view(&w->top_weight, 1, 0, ATTN_F64, ranks, all), choose_view(&w->top_key, 1, 0, ATTN_I64, ranks, all);
    choose_view(&w->first_mass, 1, 0, ATTN_F32, pairs, three), choose_view(&w->window_mass, 1, 0, ATTN_F32, pairs, three);
    choose_view(&w->received, 1, 0, ATTN_F64, keys, three);
    choose_view(&w->map_mean, 1, 0, ATTN_F32, cells, all), choose_view(&w->map_max, 1, 0, ATTN_F32, cells, all);
    /* mostly nothing that belongs to what is not asked for */
    if (w->values.data) w->values_stage = byte() % 5;
    if (!w->top_weight.data && !w->top_key.data && byte() < 250) w->top = 0;
    if (!w->window_mass.data && byte() < 250) w->mass_left = w->mass_right = 0;
    if (!w->map_mean.data && !w->map_max.data && byte() < 250) w->map_rows = w->map_columns = 0;
}

/* Any look is refused with nothing written, or stays inside its operands; the workspace that it names is enough. */
static void inspect(const attn_desc *d)
{
    attn_inspect_desc w;
    attn_error        e;
    size_t            bytes = 0;
    choose_looks(&w, d);
    int32_t code = attn_inspect_work_bytes(d, &w, &bytes, &e);
    void   *work = NULL;
    if (code == ATTN_OK && bytes <= 1 << 24 && byte() % 2) w.work = work = malloc(bytes + 1), w.work_bytes = bytes;
    if (code || (small_enough(d) && bytes <= 1 << 28)) {
        int32_t ran = attn_inspect(d, &w, &e);
        promise(e.status == ran && (ran == ATTN_OK) == !e.message[0], "a sentence exactly when there is a fault");
        promise(!code || ran, "what attn_inspect_work_bytes refuses is refused");
        promise(ran == ATTN_OK || outputs_untouched(), "a refusal writes nothing");
    }
    free(work), free((void *)w.heads), free((void *)w.queries);
}

/* ---- gradients ------------------------------------------------------------------------------------------------------------------------- */

static void choose_gradients(attn_backward_desc *g, const attn_desc *d)
{
    const int     all[4] = {1, 1, 1, 1}, three[4] = {1, 1, 1, 0}, sums[4] = {2, 2, 2, 2}, two[4] = {2, 2, 0, 0}, one[4] = {0, 2, 0, 0};
    const int32_t real = d->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    const int64_t qs[4] = {d->batch, d->heads, d->queries, d->dim}, os[4] = {d->batch, d->heads, d->queries, d->value_dim},
                  ks[4] = {d->batch, d->kv_heads, d->keys, d->dim}, vs[4] = {d->batch, d->kv_heads, d->keys, d->value_dim},
                  ms[4] = {d->batch, d->heads, d->queries, d->keys};
    *g = attn_backward_desc_new();
    choose_view((attn_out *)&g->out, 0, 1, byte() % 2 ? real : d->q.dtype, os, all);
    choose_view((attn_out *)&g->lse, 0, 1, real, os, three), choose_view((attn_out *)&g->d_out, 0, 1, d->q.dtype, os, all);
    choose_view((attn_out *)&g->d_lse, 0, 0, real, os, three);
    choose_view(&g->dq, 1, 0, byte() % 2 ? real : d->q.dtype, qs, all), choose_view(&g->dk, 1, 0, d->q.dtype, ks, all);
    choose_view(&g->dv, 1, 0, d->q.dtype, vs, all), choose_view(&g->dbias, 1, 0, byte() % 2 ? real : d->q.dtype, ms, sums);
    choose_view(&g->dsink, 1, 0, real, ms, one), choose_view(&g->dalibi, 1, 0, real, ms, two);
    /* mostly no gradient of what the run has not, but a sum over axes as the bias has them */
    if (!d->bias.data && byte() < 250) memset(&g->dbias, 0, sizeof g->dbias);
    if (!d->sink.data && byte() < 250) memset(&g->dsink, 0, sizeof g->dsink);
    if (!d->alibi.data && byte() < 250) memset(&g->dalibi, 0, sizeof g->dalibi);
    uint8_t summed = byte();
    for (int a = 0; g->dbias.data && summed < 64 && a < 4; a++)
        if (summed >> a & 1 && ms[a] > 0) g->dbias.stride[a] = 0;
    g->accumulate = choose_switch();
    if (byte() > 250) g->reserved = byte();
}

/* As inspect(). */
static void backward(attn_desc *d)
{
    attn_backward_desc g;
    attn_error         e;
    size_t             bytes = 0;
    choose_gradients(&g, d);
    uint8_t rate = byte();
    d->dropout = rate < 128 ? 0 : rate < 250 ? (rate - 128) / 121.0 : rate - 252.0;
    int32_t code = attn_backward_work_bytes(d, &g, &bytes, &e);
    void   *work = NULL;
    if (code == ATTN_OK && bytes <= 1 << 24 && byte() % 2) g.work = work = malloc(bytes + 1), g.work_bytes = bytes;
    if (code || (small_enough(d) && bytes <= 1 << 28)) {
        int32_t ran = attn_backward(d, &g, &e);
        promise(e.status == ran && (ran == ATTN_OK) == !e.message[0], "a sentence exactly when there is a fault");
        promise(!code || ran, "what attn_backward_work_bytes refuses is refused");
        promise(ran == ATTN_OK || outputs_untouched(), "a refusal writes nothing");
    }
    free(work);
}

/* What was an output may hold anything from here on. */
static void forget_outputs(void)
{
    for (int i = 0; i < made; i++) operands[i].output = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    attn_desc     d;
    attn_executor executor;
    attn_error    checked, e;
    input = data, left = size;
    choose_all(&d, &executor);
    void   *work = choose_work(&d);
    int32_t check = attn_check(&d, &checked);
    promise(checked.status == check && memchr(checked.message, 0, sizeof checked.message) != NULL,
            "the sentence ends, the status is the code");
    promise((check == ATTN_OK) == !checked.message[0], "a sentence exactly when there is a fault");
    promise(outputs_untouched(), "attn_check writes nothing");
    if (check || small_enough(&d)) {
        int32_t code = attn_run(&d, &e);
        promise(e.status == code, "the status is the code");
        if (check)
            promise(code == check && !strcmp(e.message, checked.message), "attn_run refuses as attn_check does");
        else
            promise(code == ATTN_OK || code == ATTN_E_WORK || code == ATTN_E_MEMORY, "what was checked runs");
        if (code) promise(outputs_untouched(), "a refusal writes nothing");
    }
    forget_outputs();
    inspect(&d);
    forget_outputs();
    backward(&d);
    for (int i = 0; i < made; i++) free(operands[i].block);
    free((void *)d.query_offset), free((void *)d.query_count), free((void *)d.key_count), free((void *)d.key_start);
    free(work);
    return 0;
}
