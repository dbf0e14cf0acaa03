/* bench.c: times attn_run on a few shapes, on the calling thread alone.
 * SPDX-License-Identifier: MIT
 *
 * usage: attn_bench [ISA ...]     default: every instruction set usable here
 *
 * Each line is the median of at least 5 calls and at least 0.5 s after one call to warm up. A multiply-add counts as two operations; what a mask
 * hides is not counted, so that causal rows show what skipping is worth.
 */
#include <attn/attn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct shape {
    const char *name;
    int64_t     batch, heads, kv_heads, queries, keys, dim;
    int         causal;
};

static const struct shape shapes[] = {
    {"encoder", 8, 12, 12, 128, 128, 32, 0},       {"prefill", 1, 8, 8, 1024, 1024, 64, 0}, {"prefill causal", 1, 8, 8, 1024, 1024, 64, 1},
    {"chunk on cache", 1, 8, 2, 64, 2048, 128, 1}, {"decode", 1, 32, 8, 1, 4096, 128, 1},
};

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static float *random_floats(int64_t count)
{
    static uint32_t state = 1;
    float          *to = malloc((size_t)count * sizeof *to);
    if (!to) exit(1);
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        to[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    return to;
}

/* How many (query, key) pairs are seen: all, or under causal those up to each query's place at the end of the keys. */
static double pairs(const struct shape *s)
{
    double all = (double)s->queries * (double)s->keys;
    return s->causal ? all - 0.5 * (double)s->queries * (double)(s->queries - 1) : all;
}

static int bench(const struct shape *s, const char *isa)
{
    enum { CALLS = 1000 };
    static double took[CALLS];
    float *q = random_floats(s->batch * s->heads * s->queries * s->dim), *k = random_floats(s->batch * s->kv_heads * s->keys * s->dim);
    float *v = random_floats(s->batch * s->kv_heads * s->keys * s->dim), *out = random_floats(s->batch * s->heads * s->queries * s->dim);

    attn_desc d = attn_desc_new();
    d.batch = s->batch, d.heads = s->heads, d.kv_heads = s->kv_heads, d.queries = s->queries, d.keys = s->keys,
    d.dim = d.value_dim = s->dim;
    d.q = attn_in_dense(q, ATTN_F32, s->heads, s->queries, s->dim);
    d.k = attn_in_dense(k, ATTN_F32, s->kv_heads, s->keys, s->dim);
    d.v = attn_in_dense(v, ATTN_F32, s->kv_heads, s->keys, s->dim);
    d.out = attn_out_dense(out, ATTN_F32, s->heads, s->queries, s->dim);
    d.causal = s->causal, d.align = s->causal ? ATTN_ALIGN_BOTTOM_RIGHT : 0, d.isa = isa;

    attn_error error;
    int        calls = 0, rc = attn_run(&d, &error);
    for (double start = seconds(); !rc && calls < CALLS && (calls < 5 || seconds() - start < 0.5); calls++) {
        double before = seconds();
        rc = attn_run(&d, &error);
        took[calls] = seconds() - before;
    }
    free(q), free(k), free(v), free(out);
    if (rc) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    qsort(took, (size_t)calls, sizeof *took, by_size);
    double median = took[calls / 2], operations = 4.0 * (double)(s->batch * s->heads * s->dim) * pairs(s);
    printf("%-16s %-8s %4d x %2d/%-2d x %5d x %5d x %4d  %10.3f ms  %8.1f GFLOP/s  (%d calls, fastest %.3f ms)\n", s->name, isa,
           (int)s->batch, (int)s->heads, (int)s->kv_heads, (int)s->queries, (int)s->keys, (int)s->dim, 1e3 * median,
           1e-9 * operations / median, calls, 1e3 * took[0]);
    return 0;
}

int main(int argc, char **argv)
{
    int rc = 0;
    printf("libattn %s, f32, one thread; batch x heads/key heads x queries x keys x channels\n", attn_version_text());
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int i = 1; i < argc; i++) rc |= bench(&shapes[s], argv[i]);
        for (int32_t i = 0; argc == 1 && attn_isa_name(i); i++)
            if (attn_isa_usable(i)) rc |= bench(&shapes[s], attn_isa_name(i));
    }
    return rc;
}
