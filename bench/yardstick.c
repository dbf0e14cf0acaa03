/* yardstick.c: competitors from the folder of test data: prototypes that show what is reachable, without masks, odd sizes or strides.
 * They are compiled by clang-19 when they are first wanted, into a folder beside this program. Some keep scratch memory that nobody
 * can free: a leak checker names them.
 * SPDX-License-Identifier: MIT
 */
#define _GNU_SOURCE
#include "bench.h"
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The prototypes' own interface, as their api.h has it. */
struct yardstick_args {
    int          batch, heads, kv_heads, queries, keys, dim, causal, threads;
    const float *q, *k, *v;
    float       *out;
    float        scale;
};

struct state {
    struct yardstick_args args;
    int (*run)(const struct yardstick_args *args);
    void  *library;
    float *widened[3];
    size_t q_bytes, k_bytes;
    float *out;
};

/* few: for fewer than 32 queries; the others are for more. */
static const struct {
    const char *name, *source, *flags[4];
    int         dtype, few;
} known[] = {
    {"prototype B, 32 queries", "protoB.c", {"-DPF=0", "-DBC=128", "-DNV=2"}, ATTN_F32, 0},
    {"prototype B, 48 queries", "protoB.c", {"-DPF=0", "-DBC=128", "-DNV=3"}, ATTN_F32, 0},
    {"prototype A", "protoA.c", {"-DBRG=8", "-DJT=4"}, ATTN_F32, 0},
    {"prototype of equal bits", "same_bits_prefill.c", {"-DNV=3", "-ffp-contract=off"}, ATTN_F32, 0},
    {"prototype bf16", "protoH.c", {NULL}, ATTN_BF16, 0},
    {"prototype D", "protoD.c", {NULL}, ATTN_F32, 1},
    {"prototype of equal bits, decode", "same_bits_decode.c", {"-ffp-contract=off"}, ATTN_F32, 1},
};

int yardstick_count(void)
{
    return (int)(sizeof known / sizeof *known);
}

const char *yardstick_name(int at)
{
    return known[at].name;
}

extern char **environ;

static int compile(int at, const char *source, const char *library)
{
    const char *argv[24] = {"clang-19", "-w", "-O3", "-march=native", "-fPIC", "-shared"};
    int         n = 6, status;
    pid_t       child;
    for (int f = 0; f < 4 && known[at].flags[f]; f++) argv[n++] = known[at].flags[f];
    argv[n++] = source, argv[n++] = "-o", argv[n++] = library, argv[n++] = "-lm", argv[n++] = "-lpthread";
    if (posix_spawnp(&child, argv[0], NULL, NULL, (char *const *)argv, environ)) return 1;
    return waitpid(child, &status, 0) != child || status != 0;
}

/* The library's path, compiled if it is not there or is older than its source; NULL with *why otherwise. */
static const char *library_of(int at, const char **why)
{
    static char library[PATH_MAX];
    char        source[PATH_MAX], self[PATH_MAX - 64];
    const char *data = getenv("ATTN_TEST_DATA");
    struct stat from, to;
    ssize_t     length = readlink("/proc/self/exe", self, sizeof self - 1);
    *why = "the folder of test data is not there";
    snprintf(source, sizeof source, "%s/yardstick/%s", data ? data : "../shared", known[at].source);
    if (length < 0 || stat(source, &from)) return NULL;
    self[length] = 0;
    *strrchr(self, '/') = 0;
    snprintf(library, sizeof library, "%s/yardstick", self);
    mkdir(library, 0777);
    snprintf(library, sizeof library, "%s/yardstick/%d-%s.so", self, at, known[at].source);
    *why = "clang-19 does not compile it for this CPU";
    return (stat(library, &to) || to.st_mtime < from.st_mtime) && compile(at, source, library) ? NULL : library;
}

static int call(struct contender *c)
{
    struct state *s = c->state;
    return s->run(&s->args);
}

static void close_yardstick(struct contender *c)
{
    struct state *s = c->state;
    for (int t = 0; t < 3; t++) bench_free(s->widened[t], t ? s->k_bytes : s->q_bytes);
    if (s->widened[0]) bench_free(s->out, s->q_bytes);
    dlclose(s->library);
    free(s);
}

/* Those of 16 bits take f32 inputs and convert them, outside the timing, and give f32 back. */
static void set_data(struct state *s, const struct problem *p)
{
    const struct row *row = &p->row;
    s->q_bytes = (size_t)p->q_count * sizeof(float), s->k_bytes = (size_t)p->k_count * sizeof(float);
    s->args.q = p->q, s->args.k = p->k, s->args.v = p->v, s->out = p->out;
    if (row->dtype != ATTN_F32) {
        s->args.q = s->widened[0] = problem_widen(p, p->q, p->q_stride, row->heads, row->queries);
        s->args.k = s->widened[1] = problem_widen(p, p->k, p->k_stride, row->kv_heads, row->keys);
        s->args.v = s->widened[2] = problem_widen(p, p->v, p->k_stride, row->kv_heads, row->keys);
        s->out = bench_alloc(s->q_bytes);
    }
    s->args.out = s->out;
}

const char *yardstick_open(struct contender *c, int at)
{
    const struct row *row = &c->problem->row;
    const char       *why, *library;
    if (row->dtype != known[at].dtype) return "another dtype";
    if ((row->queries < 32) != known[at].few) return "not for so many or so few queries";
    if (row->layout != LAYOUT_BHND || (row->mask != MASK_FULL && row->mask != MASK_CAUSAL)) return "contiguous, full or causal only";
    if (row->dim % 32) return "dim not a multiple of 32";
    if (!(library = library_of(at, &why))) return why;
    struct state *s = calloc(1, sizeof *s);
    if (!s) exit(1);
    if (!(s->library = dlopen(library, RTLD_NOW | RTLD_LOCAL))) return free(s), "its library does not load";
    s->run = (int (*)(const struct yardstick_args *))dlsym(s->library, "attn_fwd");
    s->args = (struct yardstick_args){(int)row->batch,
                                      (int)row->heads,
                                      (int)row->kv_heads,
                                      (int)row->queries,
                                      (int)row->keys,
                                      (int)row->dim,
                                      row->mask == MASK_CAUSAL,
                                      row->threads,
                                      NULL,
                                      NULL,
                                      NULL,
                                      NULL,
                                      1 / sqrtf((float)row->dim)};
    set_data(s, c->problem);
    c->state = s, c->call = call, c->close = close_yardstick;
    c->out = s->out, c->out_dtype = ATTN_F32;
    if (!s->run || s->run(&s->args)) return close_yardstick(c), c->state = NULL, "it does not take the shape";
    return NULL;
}
