/* burst.c: what the machine can do at most, for a moment: multiply-adds in registers, and reads out of memory.
 * SPDX-License-Identifier: MIT
 *
 * A timing is compared with bursts just before and after it, because a shared machine's speed changes within seconds.
 */
#define _GNU_SOURCE
#include "bench.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double bench_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Twelve independent chains hide a latency of up to six cycles at two multiply-adds a cycle, and leave the sources in two
 * registers of the sixteen that every width has. All start from 0, so that no value is ever slow. */
#define CHAINS(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
enum { CHAIN_COUNT = 12, UNROLLED = 4 };

#if defined(__x86_64__)
#define CLOBBERS                                                                                                                           \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15", "cc", "memory"
#define ZERO(k)   "vpxor %%xmm" #k ", %%xmm" #k ", %%xmm" #k "\n"
#define FMA512(k) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #k "\n"
#define FMA256(k) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #k "\n"
#define LOOP(F)   CHAINS(ZERO) ZERO(14) ZERO(15) "1:\n" CHAINS(F) CHAINS(F) CHAINS(F) CHAINS(F) "dec %0\njnz 1b\nvzeroupper\n"

static void fma_512(long turns)
{
    __asm__ volatile(LOOP(FMA512) : "+r"(turns) : : CLOBBERS);
}

static void fma_256(long turns)
{
    __asm__ volatile(LOOP(FMA256) : "+r"(turns) : : CLOBBERS);
}

int bench_burst_best(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return BURST_512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? BURST_256 : BURST_NONE;
}
#elif defined(__aarch64__)
#define ZERO(k)    "movi v" #k ".4s, #0\n"
#define FMANEON(k) "fmla v" #k ".4s, v14.4s, v15.4s\n"

static void fma_neon(long turns)
{
    __asm__ volatile(CHAINS(ZERO) ZERO(14) ZERO(15) "1:\n" CHAINS(FMANEON) CHAINS(FMANEON) CHAINS(FMANEON)
                         CHAINS(FMANEON) "subs %0, %0, #1\nb.ne 1b\n"
                     : "+r"(turns)
                     :
                     : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v14", "v15", "cc");
}

int bench_burst_best(void)
{
    return BURST_NEON;
}
#else
int bench_burst_best(void)
{
    return BURST_NONE;
}
#endif

static void (*fma_of(int bits))(long)
{
    (void)bits;
#if defined(__x86_64__)
    if (bits == BURST_512 && bench_burst_best() == BURST_512) return fma_512;
    if (bits == BURST_256 && bench_burst_best() != BURST_NONE) return fma_256;
#elif defined(__aarch64__)
    if (bits == BURST_NEON) return fma_neon;
#endif
    return NULL;
}

/* ---- on several threads ----------------------------------------------------------------------------------------------------------- */

static void on_each(const attn_executor *threads, void (*body)(void *, int32_t), void *arg)
{
    if (threads)
        threads->parallel_for(threads->context, threads->width, body, arg);
    else
        body(arg, 0);
}

struct burst {
    void (*fma)(long);
    double until;
    long   turns[64]; /* of each thread */
};

static void burst_body(void *arg, int32_t index)
{
    struct burst *b = arg;
    long          turns = 0;
    while (bench_seconds() < b->until) b->fma(100), turns += 100;
    __atomic_fetch_add(&b->turns[index % 64], turns, __ATOMIC_RELAXED);
}

double bench_burst(int bits, const attn_executor *threads, double seconds)
{
    struct burst b = {.fma = fma_of(bits)};
    double       start = bench_seconds(), turns = 0;
    if (!b.fma) return 0;
    b.until = start + seconds;
    on_each(threads, burst_body, &b);
    double took = bench_seconds() - start;
    for (int i = 0; i < 64; i++) turns += (double)b.turns[i];
    return turns * UNROLLED * CHAIN_COUNT * (bits / 32 * 2) / took;
}

/* ---- memory ----------------------------------------------------------------------------------------------------------------------- */

struct reads {
    const unsigned char *data;
    size_t               bytes;
    int32_t              parts;
    uint64_t             sink[64];
};

typedef uint64_t lanes __attribute__((vector_size(64))); /* the compiler cuts it into what there is */

static void read_body(void *arg, int32_t index)
{
    struct reads *r = arg;
    const lanes  *at = (const lanes *)(r->data + r->bytes / (size_t)r->parts / 4096 * 4096 * (size_t)index);
    const lanes  *end = at + r->bytes / (size_t)r->parts / 4096 * 4096 / sizeof *at;
    lanes         a = {0}, b = {0}, c = {0}, d = {0};
    for (; at < end; at += 4) {
        for (int i = 0; i < 4; i++) __builtin_prefetch((const char *)(at + i) + 4096);
        a ^= at[0], b ^= at[1], c ^= at[2], d ^= at[3];
    }
    a ^= b ^ c ^ d;
    r->sink[index % 64] = a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

/* Four times what the caches are known to hold and at least 256 MiB, so that what it leaves behind is cold for the next. */
double bench_read_burst(const attn_executor *threads)
{
    static unsigned char *data;
    static size_t         bytes = (size_t)256 << 20;
    if (!data) {
        long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
        while (cache > 0 && bytes < 4 * (size_t)cache) bytes *= 2;
        data = bench_alloc(bytes);
        memset(data, 1, bytes);
    }
    struct reads r = {.data = data, .bytes = bytes, .parts = threads ? threads->width : 1};
    double       start = bench_seconds();
    on_each(threads, read_body, &r);
    return (double)bytes / (bench_seconds() - start);
}
