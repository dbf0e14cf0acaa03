/* test_contract.c: what attn.h promises apart from numbers: refusals and their sentences, struct layouts, old and new callers, workspace, helpers.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

/* ---- layouts: these numbers may never change, only more may follow --------------------------------------------------------------------- */

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field " has moved")
#if UINTPTR_MAX == UINT64_MAX
AT(attn_error, status, 0);
AT(attn_error, message, 4);
AT(attn_in, data, 0);
AT(attn_in, stride, 8);
AT(attn_in, bytes, 40);
AT(attn_in, dtype, 48);
AT(attn_in, reserved, 52);
AT(attn_out, data, 0);
AT(attn_out, stride, 8);
AT(attn_out, bytes, 40);
AT(attn_out, dtype, 48);
AT(attn_out, reserved, 52);
AT(attn_executor, parallel_for, 0);
AT(attn_executor, context, 8);
AT(attn_executor, width, 16);
AT(attn_executor, reserved, 20);
AT(attn_desc, size, 0);
AT(attn_desc, batch, 8);
AT(attn_desc, heads, 16);
AT(attn_desc, kv_heads, 24);
AT(attn_desc, queries, 32);
AT(attn_desc, keys, 40);
AT(attn_desc, dim, 48);
AT(attn_desc, value_dim, 56);
AT(attn_desc, q, 64);
AT(attn_desc, k, 120);
AT(attn_desc, v, 176);
AT(attn_desc, out, 232);
AT(attn_desc, align, 288);
AT(attn_desc, causal, 292);
AT(attn_desc, window, 296);
AT(attn_desc, scale_given, 300);
AT(attn_desc, window_left, 304);
AT(attn_desc, window_right, 312);
AT(attn_desc, query_offset, 320);
AT(attn_desc, query_count, 328);
AT(attn_desc, key_count, 336);
AT(attn_desc, key_start, 344);
AT(attn_desc, allow, 352);
AT(attn_desc, bias, 408);
AT(attn_desc, alibi, 464);
AT(attn_desc, sink, 520);
AT(attn_desc, scale, 576);
AT(attn_desc, softcap, 584);
AT(attn_desc, lse, 592);
AT(attn_desc, weights, 648);
AT(attn_desc, weights_stage, 704);
AT(attn_desc, reserved, 708);
AT(attn_desc, isa, 712);
AT(attn_desc, executor, 720);
AT(attn_desc, work, 728);
AT(attn_desc, work_bytes, 736);
AT(attn_plan_info, size, 0);
AT(attn_plan_info, kernel, 8);
AT(attn_plan_info, isa, 16);
AT(attn_plan_info, threads, 24);
AT(attn_plan_info, block_heads, 32);
AT(attn_plan_info, block_queries, 40);
AT(attn_plan_info, tasks, 48);
AT(attn_plan_info, units, 56);
AT(attn_plan_info, waves, 64);
AT(attn_plan_info, pairs, 72);
AT(attn_plan_info, flop, 80);
AT(attn_plan_info, longest_flop, 88);
AT(attn_plan_info, critical_flop, 96);
AT(attn_plan_info, speedup, 104);
AT(attn_plan_info, moved_bytes, 112);
AT(attn_plan_info, walked_bytes, 120);
AT(attn_plan_info, work_bytes, 128);
AT(attn_merge_desc, size, 0);
AT(attn_merge_desc, batch, 8);
AT(attn_merge_desc, heads, 16);
AT(attn_merge_desc, queries, 24);
AT(attn_merge_desc, value_dim, 32);
AT(attn_merge_desc, parts, 40);
AT(attn_merge_desc, part_out, 48);
AT(attn_merge_desc, part_lse, 56);
AT(attn_merge_desc, out, 64);
AT(attn_merge_desc, lse, 120);
AT(attn_inspect_desc, size, 0);
AT(attn_inspect_desc, lse, 8);
AT(attn_inspect_desc, heads, 64);
AT(attn_inspect_desc, queries, 72);
AT(attn_inspect_desc, head_count, 80);
AT(attn_inspect_desc, query_count, 88);
AT(attn_inspect_desc, key_first, 96);
AT(attn_inspect_desc, key_count, 104);
AT(attn_inspect_desc, values, 112);
AT(attn_inspect_desc, values_stage, 168);
AT(attn_inspect_desc, top, 172);
AT(attn_inspect_desc, entropy, 176);
AT(attn_inspect_desc, top_weight, 232);
AT(attn_inspect_desc, top_key, 288);
AT(attn_inspect_desc, first_mass, 344);
AT(attn_inspect_desc, window_mass, 400);
AT(attn_inspect_desc, mass_left, 456);
AT(attn_inspect_desc, mass_right, 464);
AT(attn_inspect_desc, received, 472);
AT(attn_inspect_desc, map_mean, 528);
AT(attn_inspect_desc, map_max, 584);
AT(attn_inspect_desc, map_rows, 640);
AT(attn_inspect_desc, map_columns, 648);
AT(attn_inspect_desc, work, 656);
AT(attn_inspect_desc, work_bytes, 664);
enum { DESC_1 = 744, MERGE_1 = 176 }; /* the first versions' sizes */
_Static_assert(sizeof(attn_error) == 256 && sizeof(attn_in) == 56 && sizeof(attn_out) == 56 && sizeof(attn_executor) == 24,
               "frozen structs have grown");
_Static_assert(sizeof(attn_desc) >= DESC_1 && sizeof(attn_merge_desc) >= MERGE_1 && sizeof(attn_inspect_desc) >= 672,
               "structs have shrunk");
#endif
_Static_assert(ATTN_OK == 0 && ATTN_E_ARGUMENT == 1 && ATTN_E_UNSUPPORTED == 2 && ATTN_E_TOO_NEW == 3 && ATTN_E_MEMORY == 4 &&
                   ATTN_E_WORK == 5 && ATTN_E_THREAD == 6,
               "codes");
_Static_assert(ATTN_F32 == 1 && ATTN_F64 == 2 && ATTN_F16 == 3 && ATTN_BF16 == 4 && ATTN_BOOL == 5 && ATTN_I64 == 6, "dtypes");
_Static_assert(ATTN_ALIGN_TOP_LEFT == 1 && ATTN_ALIGN_BOTTOM_RIGHT == 2, "alignments");
_Static_assert(ATTN_STAGE_WEIGHT == 0 && ATTN_STAGE_SCALED == 1 && ATTN_STAGE_CAPPED == 2 && ATTN_STAGE_BIASED == 3, "stages");

/* ---- a small call that is right, and everything that makes it wrong --------------------------------------------------------------------- */

enum { B = 2, H = 4, G = 2, N = 3, M = 5, D = 3, E = 2 };

struct small {
    attn_desc     d;
    float         q[B * H * N * D], k[B * G * M * D], v[B * G * M * E], out[B * H * N * E], lse[B * H * N], weights[B * H * N * M];
    float         bias[B * H * N * M], alibi[B * H], sink[H];
    unsigned char allow[B * H * N * M];
    int64_t       offset[B], query_count[B], key_count[B], key_start[B];
    attn_executor executor;
};

static void never_called(void *context, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    (void)context, (void)count, (void)body, (void)arg;
    fail();
}

/* Everything that can be given is; the outputs hold a pattern. */
static void small_make(struct small *s)
{
    memset(s, 0, sizeof *s);
    s->d = attn_desc_new();
    s->d.batch = B, s->d.heads = H, s->d.kv_heads = G, s->d.queries = N, s->d.keys = M, s->d.dim = D, s->d.value_dim = E;
    for (int i = 0; i < COUNT(s->q); i++) s->q[i] = (float)i * 0.01f;
    for (int i = 0; i < COUNT(s->k); i++) s->k[i] = (float)(i % 7) * 0.1f;
    for (int i = 0; i < COUNT(s->v); i++) s->v[i] = (float)(i % 5);
    memset(s->allow, 1, sizeof s->allow);
    s->d.q = attn_in_dense(s->q, ATTN_F32, H, N, D), s->d.k = attn_in_dense(s->k, ATTN_F32, G, M, D),
    s->d.v = attn_in_dense(s->v, ATTN_F32, G, M, E);
    s->d.out = attn_out_dense(s->out, ATTN_F32, H, N, E);
    s->d.lse = attn_out_dense(s->lse, ATTN_F32, H, N, 1), s->d.lse.stride[3] = 0;
    s->d.weights = attn_out_dense(s->weights, ATTN_F32, H, N, M);
    s->d.allow = attn_in_dense(s->allow, ATTN_BOOL, H, N, M), s->d.bias = attn_in_dense(s->bias, ATTN_F32, H, N, M);
    s->d.alibi = attn_in_strided(s->alibi, ATTN_F32, (const int64_t[]){H, 1, 0, 0}),
    s->d.sink = attn_in_strided(s->sink, ATTN_F32, (const int64_t[]){0, 1, 0, 0});
    s->d.align = ATTN_ALIGN_BOTTOM_RIGHT, s->d.causal = 1, s->d.window = 1, s->d.window_left = 3, s->d.window_right = -1;
    for (int b = 0; b < B; b++) s->query_count[b] = N, s->key_count[b] = M - 1, s->key_start[b] = 1;
    s->d.query_count = s->query_count, s->d.key_count = s->key_count, s->d.key_start = s->key_start;
    s->d.scale_given = 1, s->d.scale = 0.5, s->d.softcap = 3;
    s->executor = executor_forward;
    memset(s->out, 0xA5, sizeof s->out), memset(s->lse, 0xA5, sizeof s->lse), memset(s->weights, 0xA5, sizeof s->weights);
}

static int small_touched(const struct small *s)
{
    const unsigned char *parts[] = {(const unsigned char *)s->out, (const unsigned char *)s->lse, (const unsigned char *)s->weights};
    const size_t         sizes[] = {sizeof s->out, sizeof s->lse, sizeof s->weights};
    for (int p = 0; p < 3; p++)
        for (size_t at = 0; at < sizes[p]; at++)
            if (parts[p][at] != 0xA5) return 1;
    return 0;
}

/* One refusal: what is done to the call (REFUSAL below sets s), the code, and the words its sentence must have. */
#define REFUSALS                                                                                                                           \
    R(ATTN_E_ARGUMENT, "batch", "-1", s->d.batch = -1)                                                                                     \
    R(ATTN_E_ARGUMENT, "heads", "-4", s->d.heads = -4)                                                                                     \
    R(ATTN_E_ARGUMENT, "kv_heads", "-2", s->d.kv_heads = -2)                                                                               \
    R(ATTN_E_ARGUMENT, "queries", "-3", s->d.queries = -3)                                                                                 \
    R(ATTN_E_ARGUMENT, "keys", "-5", s->d.keys = -5)                                                                                       \
    R(ATTN_E_ARGUMENT, "dim", "-1", s->d.dim = -1)                                                                                         \
    R(ATTN_E_ARGUMENT, "value_dim", "-1", s->d.value_dim = -1)                                                                             \
    R(ATTN_E_ARGUMENT, "kv_heads", "3", s->d.kv_heads = 3)                                                                                 \
    R(ATTN_E_ARGUMENT, "kv_heads", "0", s->d.kv_heads = 0)                                                                                 \
    R(ATTN_E_ARGUMENT, "kv_heads", "8", s->d.kv_heads = 8)                                                                                 \
    R(ATTN_E_ARGUMENT, "q", "NULL", s->d.q.data = NULL)                                                                                    \
    R(ATTN_E_ARGUMENT, "k", "NULL", s->d.k.data = NULL)                                                                                    \
    R(ATTN_E_ARGUMENT, "v", "NULL", s->d.v.data = NULL)                                                                                    \
    R(ATTN_E_ARGUMENT, "out", "NULL", s->d.out.data = NULL)                                                                                \
    R(ATTN_E_ARGUMENT, "q.dtype", "0", s->d.q.dtype = 0)                                                                                   \
    R(ATTN_E_ARGUMENT, "q.dtype", "bool", s->d.q.dtype = ATTN_BOOL)                                                                        \
    R(ATTN_E_ARGUMENT, "q.dtype", "6", s->d.q.dtype = 6)                                                                                   \
    R(ATTN_E_ARGUMENT, "q.dtype", "-1", s->d.q.dtype = -1)                                                                                 \
    R(ATTN_E_ARGUMENT, "q.dtype", "33", s->d.q.dtype = 33)                                                                                 \
    R(ATTN_E_ARGUMENT, "k.dtype", "f16", s->d.k.dtype = ATTN_F16)                                                                          \
    R(ATTN_E_ARGUMENT, "v.dtype", "f64", s->d.v.dtype = ATTN_F64)                                                                          \
    R(ATTN_E_ARGUMENT, "out.dtype", "f64", s->d.out.dtype = ATTN_F64)                                                                      \
    R(ATTN_E_ARGUMENT, "out.dtype", "bf16", s->d.out.dtype = ATTN_BF16)                                                                    \
    R(ATTN_E_ARGUMENT, "allow.dtype", "f32", s->d.allow.dtype = ATTN_F32)                                                                  \
    R(ATTN_E_ARGUMENT, "bias.dtype", "bool", s->d.bias.dtype = ATTN_BOOL)                                                                  \
    R(ATTN_E_ARGUMENT, "bias.dtype", "f64", s->d.bias.dtype = ATTN_F64)                                                                    \
    R(ATTN_E_ARGUMENT, "alibi.dtype", "f64", s->d.alibi.dtype = ATTN_F64)                                                                  \
    R(ATTN_E_ARGUMENT, "sink.dtype", "f16", s->d.sink.dtype = ATTN_F16)                                                                    \
    R(ATTN_E_ARGUMENT, "lse.dtype", "f64", s->d.lse.dtype = ATTN_F64)                                                                      \
    R(ATTN_E_ARGUMENT, "weights.dtype", "f16", s->d.weights.dtype = ATTN_F16)                                                              \
    R(ATTN_E_ARGUMENT, "allow", "dtype", s->d.allow.data = NULL)                                                                           \
    R(ATTN_E_ARGUMENT, "lse", "dtype", s->d.lse.data = NULL)                                                                               \
    R(ATTN_E_ARGUMENT, "q.reserved", "7", s->d.q.reserved = 7)                                                                             \
    R(ATTN_E_ARGUMENT, "k.reserved", "7", s->d.k.reserved = 7)                                                                             \
    R(ATTN_E_ARGUMENT, "v.reserved", "7", s->d.v.reserved = 7)                                                                             \
    R(ATTN_E_ARGUMENT, "out.reserved", "7", s->d.out.reserved = 7)                                                                         \
    R(ATTN_E_ARGUMENT, "allow.reserved", "7", s->d.allow.reserved = 7)                                                                     \
    R(ATTN_E_ARGUMENT, "bias.reserved", "7", s->d.bias.reserved = 7)                                                                       \
    R(ATTN_E_ARGUMENT, "alibi.reserved", "7", s->d.alibi.reserved = 7)                                                                     \
    R(ATTN_E_ARGUMENT, "sink.reserved", "7", s->d.sink.reserved = 7)                                                                       \
    R(ATTN_E_ARGUMENT, "lse.reserved", "7", s->d.lse.reserved = 7)                                                                         \
    R(ATTN_E_ARGUMENT, "weights.reserved", "7", s->d.weights.reserved = 7)                                                                 \
    R(ATTN_E_ARGUMENT, "reserved", "9", s->d.reserved = 9)                                                                                 \
    R(ATTN_E_ARGUMENT, "q", "aligned", s->d.q.data = (const char *)s->q + 1)                                                               \
    R(ATTN_E_ARGUMENT, "out", "aligned", s->d.out.data = (char *)s->out + 2)                                                               \
    R(ATTN_E_ARGUMENT, "q", "287", s->d.q.bytes = sizeof s->q - 1)                                                                         \
    R(ATTN_E_ARGUMENT, "k", "239", s->d.k.bytes = sizeof s->k - 1)                                                                         \
    R(ATTN_E_ARGUMENT, "v", "159", s->d.v.bytes = sizeof s->v - 1)                                                                         \
    R(ATTN_E_ARGUMENT, "out", "191", s->d.out.bytes = sizeof s->out - 1)                                                                   \
    R(ATTN_E_ARGUMENT, "allow", "119", s->d.allow.bytes = sizeof s->allow - 1)                                                             \
    R(ATTN_E_ARGUMENT, "bias", "479", s->d.bias.bytes = sizeof s->bias - 1)                                                                \
    R(ATTN_E_ARGUMENT, "alibi", "31", s->d.alibi.bytes = sizeof s->alibi - 1)                                                              \
    R(ATTN_E_ARGUMENT, "sink", "15", s->d.sink.bytes = sizeof s->sink - 1)                                                                 \
    R(ATTN_E_ARGUMENT, "lse", "95", s->d.lse.bytes = sizeof s->lse - 1)                                                                    \
    R(ATTN_E_ARGUMENT, "weights", "479", s->d.weights.bytes = sizeof s->weights - 1)                                                       \
    R(ATTN_E_ARGUMENT, "alibi.stride[2]", "1", s->d.alibi.stride[2] = 1)                                                                   \
    R(ATTN_E_ARGUMENT, "alibi.stride[3]", "1", s->d.alibi.stride[3] = 1)                                                                   \
    R(ATTN_E_ARGUMENT, "sink.stride[0]", "4", s->d.sink.stride[0] = 4)                                                                     \
    R(ATTN_E_ARGUMENT, "sink.stride[2]", "4", s->d.sink.stride[2] = 4)                                                                     \
    R(ATTN_E_ARGUMENT, "sink.stride[3]", "4", s->d.sink.stride[3] = 4)                                                                     \
    R(ATTN_E_ARGUMENT, "lse.stride[3]", "1", s->d.lse.stride[3] = 1)                                                                       \
    R(ATTN_E_ARGUMENT, "q.stride[0]", "-9223372036854775808", s->d.q.stride[0] = INT64_MIN)                                                \
    R(ATTN_E_ARGUMENT, "k.stride[2]", "4611686018427387904", s->d.k.stride[2] = INT64_C(1) << 62)                                          \
    R(ATTN_E_ARGUMENT, "out.stride[0]", "0", s->d.out.stride[0] = 0)                                                                       \
    R(ATTN_E_ARGUMENT, "out.stride[1]", "5", s->d.out.stride[1] = 5)                                                                       \
    R(ATTN_E_ARGUMENT, "out.stride", "1", s->d.out.stride[2] = 1)                                                                          \
    R(ATTN_E_ARGUMENT, "out.stride[3]", "0", s->d.out.stride[3] = 0)                                                                       \
    R(ATTN_E_ARGUMENT, "out.stride[3]", "2", s->d.out.stride[3] = 2)                                                                       \
    R(ATTN_E_ARGUMENT, "lse.stride[1]", "2", s->d.lse.stride[1] = 2)                                                                       \
    R(ATTN_E_ARGUMENT, "lse.stride[2]", "0", s->d.lse.stride[2] = 0)                                                                       \
    R(ATTN_E_ARGUMENT, "weights.stride[2]", "4", s->d.weights.stride[2] = 4)                                                               \
    R(ATTN_E_ARGUMENT, "weights.stride[3]", "0", s->d.weights.stride[3] = 0)                                                               \
    R(ATTN_E_ARGUMENT, "align", "0", s->d.align = 0)                                                                                       \
    R(ATTN_E_ARGUMENT, "align", "window", (s->d.align = 0, s->d.causal = 0))                                                               \
    R(ATTN_E_ARGUMENT, "align", "alibi", (s->d.align = 0, s->d.causal = 0, s->d.window = 0, s->d.window_left = s->d.window_right = 0))     \
    R(ATTN_E_ARGUMENT, "align", "query_offset", s->d.query_offset = s->offset)                                                             \
    R(ATTN_E_ARGUMENT, "align", "3", s->d.align = 3)                                                                                       \
    R(ATTN_E_ARGUMENT, "align", "-1", s->d.align = -1)                                                                                     \
    R(ATTN_E_ARGUMENT, "causal", "2", s->d.causal = 2)                                                                                     \
    R(ATTN_E_ARGUMENT, "window", "-1", s->d.window = -1)                                                                                   \
    R(ATTN_E_ARGUMENT, "window", "3", s->d.window = 0)                                                                                     \
    R(ATTN_E_ARGUMENT, "window_left", "-2", s->d.window_left = -2)                                                                         \
    R(ATTN_E_ARGUMENT, "window_right", "-7", s->d.window_right = -7)                                                                       \
    R(ATTN_E_ARGUMENT, "query_count[1]", "4", s->query_count[1] = 4)                                                                       \
    R(ATTN_E_ARGUMENT, "query_count[0]", "-1", s->query_count[0] = -1)                                                                     \
    R(ATTN_E_ARGUMENT, "key_count[1]", "5", s->key_count[1] = 5)                                                                           \
    R(ATTN_E_ARGUMENT, "key_count[1]", "-1", s->key_count[1] = -1)                                                                         \
    R(ATTN_E_ARGUMENT, "key_count[1]", "9223372036854775807", s->key_count[1] = INT64_MAX)                                                 \
    R(ATTN_E_ARGUMENT, "key_start[0]", "-1", s->key_start[0] = -1)                                                                         \
    R(ATTN_E_ARGUMENT, "key_start[1]", "6", s->key_start[1] = 6)                                                                           \
    R(ATTN_E_ARGUMENT, "query_offset[1]", "4611686018427387905",                                                                           \
      (s->d.align = 0, s->d.query_offset = s->offset, s->offset[1] = (INT64_C(1) << 62) + 1))                                              \
    R(ATTN_E_ARGUMENT, "query_offset[0]", "-9223372036854775808",                                                                          \
      (s->d.align = 0, s->d.query_offset = s->offset, s->offset[0] = INT64_MIN))                                                           \
    R(ATTN_E_ARGUMENT, "scale", "nan", s->d.scale = NAN)                                                                                   \
    R(ATTN_E_ARGUMENT, "scale", "inf", s->d.scale = INFINITY)                                                                              \
    R(ATTN_E_ARGUMENT, "scale", "0.5", s->d.scale_given = 0)                                                                               \
    R(ATTN_E_ARGUMENT, "scale_given", "2", s->d.scale_given = 2)                                                                           \
    R(ATTN_E_ARGUMENT, "softcap", "-1", s->d.softcap = -1)                                                                                 \
    R(ATTN_E_ARGUMENT, "softcap", "nan", s->d.softcap = NAN)                                                                               \
    R(ATTN_E_ARGUMENT, "softcap", "inf", s->d.softcap = INFINITY)                                                                          \
    R(ATTN_E_ARGUMENT, "weights_stage", "4", s->d.weights_stage = 4)                                                                       \
    R(ATTN_E_ARGUMENT, "weights_stage", "-1", s->d.weights_stage = -1)                                                                     \
    R(ATTN_E_ARGUMENT, "weights_stage", "2", (memset(&s->d.weights, 0, sizeof s->d.weights), s->d.weights_stage = 2))                      \
    R(ATTN_E_ARGUMENT, "isa", "sse9", s->d.isa = "sse9")                                                                                   \
    R(ATTN_E_ARGUMENT, "isa", "\"\"", s->d.isa = "")                                                                                       \
    R(ATTN_E_ARGUMENT, "parallel_for", "NULL", (s->executor.parallel_for = NULL, s->d.executor = &s->executor))                            \
    R(ATTN_E_ARGUMENT, "width", "0", (s->executor.width = 0, s->d.executor = &s->executor))                                                \
    R(ATTN_E_ARGUMENT, "width", "-3", (s->executor.width = -3, s->d.executor = &s->executor))                                              \
    R(ATTN_E_ARGUMENT, "executor->reserved", "1", (s->executor.reserved = 1, s->d.executor = &s->executor))                                \
    R(ATTN_E_ARGUMENT, "work", "17", s->d.work_bytes = 17)                                                                                 \
    R(ATTN_E_WORK, "work_bytes", "1", (s->d.work = s, s->d.work_bytes = 1))                                                                \
    R(ATTN_E_UNSUPPORTED, "dim", "2199023255552", s->d.dim = INT64_C(1) << 41)

static int64_t refusal_bad(int32_t want, const char *field, const char *value, struct small *s)
{
    attn_error  e, checked;
    const char *why = NULL;
    memset(&e, 0x7F, sizeof e), memset(&checked, 0x7F, sizeof checked);
    if (!s->d.executor) s->executor.parallel_for = never_called, s->d.executor = &s->executor;
    int32_t code = attn_run(&s->d, &e), check = attn_check(&s->d, &checked);
    if (code != want)
        why = "the code is another";
    else if (e.status != code)
        why = "the error's status is another";
    else if (!memchr(e.message, 0, sizeof e.message))
        why = "the sentence does not end";
    else if (!strstr(e.message, field))
        why = "the sentence does not name the field";
    else if (!strstr(e.message, value))
        why = "the sentence does not hold the value";
    else if (small_touched(s))
        why = "an output was written";
    else if (attn_run(&s->d, NULL) != want)
        why = "without attn_error the code is another";
    else if (want == ATTN_E_WORK ? check != ATTN_OK : check != want || strcmp(checked.message, e.message))
        why = "attn_check says something else";
    if (why) fprintf(stderr, "  %s %s: %s: %d, \"%.250s\"\n", field, value, why, code, e.message);
    return why != NULL;
}

static void each_refusal_has_its_sentence(void **state)
{
    (void)state;
    static struct small made;
    struct small       *s = &made;
    int64_t             bad = 0;
#define R(code, field, value, change)                                                                                                      \
    small_make(s);                                                                                                                         \
    (void)(change);                                                                                                                        \
    bad += refusal_bad(code, field, value, s);
    REFUSALS
#undef R
    assert_int_equal(bad, 0);
}

/* The call that the refusals start from is right, and what they change is what makes them wrong. */
static void the_right_call_runs(void **state)
{
    (void)state;
    static struct small s;
    attn_error          e;
    small_make(&s);
    assert_int_equal(attn_check(&s.d, &e), ATTN_OK);
    assert_false(small_touched(&s));
    assert_int_equal(attn_run(&s.d, &e), ATTN_OK);
    assert_int_equal(e.status, ATTN_OK);
    assert_string_equal(e.message, "");
    reference want;
    reference_make(&want, &s.d);
    assert_int_equal(compare_results(&s.d, &want), 0);
    reference_free(&want);
}

/* What looks like the refusals above but is right. */
static void near_refusals_run(void **state)
{
    (void)state;
    static struct small made;
    struct small       *s = &made;
    attn_error          e;
#define RUNS(change)                                                                                                                       \
    do {                                                                                                                                   \
        small_make(s);                                                                                                                     \
        (void)(change);                                                                                                                    \
        int32_t code = attn_run(&s->d, &e);                                                                                                \
        if (code) fprintf(stderr, "  " #change ": %s\n", e.message);                                                                       \
        assert_int_equal(code, ATTN_OK);                                                                                                   \
    } while (0)
    RUNS((s->d.q.bytes = sizeof s->q, s->d.k.bytes = sizeof s->k, s->d.v.bytes = sizeof s->v, s->d.out.bytes = sizeof s->out));
    RUNS((s->d.lse.bytes = sizeof s->lse, s->d.weights.bytes = sizeof s->weights, s->d.alibi.bytes = sizeof s->alibi,
          s->d.sink.bytes = sizeof s->sink));
    RUNS((s->d.align = 0, s->key_count[0] = s->key_count[1] = N)); /* as many keys as queries: nothing to say */
    RUNS((s->d.align = 0, s->d.query_offset = s->offset, s->offset[0] = INT64_C(1) << 62, s->offset[1] = -(INT64_C(1) << 62)));
    RUNS((s->d.align = 0, s->d.causal = 0, s->d.window_left = s->d.window_right = -1,
          memset(&s->d.alibi, 0, sizeof s->d.alibi))); /* no bound: no place needed */
    RUNS((s->key_start[0] = s->key_start[1] = M, s->key_count[0] = s->key_count[1] = 0));
    RUNS(s->d.batch = 1);
    RUNS((s->d.heads = 0, s->d.kv_heads = 0));
    RUNS((s->d.scale = 0));
    RUNS((s->d.scale = -2));
    RUNS((s->d.scale = 0, s->d.scale_given = 0));
    RUNS((s->d.out.stride[0] = -s->d.out.stride[0],
          s->d.out.data = s->out + sizeof s->out / sizeof s->out[0] / 2));                       /* backwards, but no two in one place */
    RUNS((s->d.queries = 1, s->query_count[0] = s->query_count[1] = 1, s->d.out.stride[2] = 0)); /* an axis of size 1 does not count */
    RUNS((s->d.allow.stride[0] = s->d.allow.stride[1] = s->d.allow.stride[2] = s->d.allow.stride[3] = 0));
    RUNS((s->d.q.stride[3] = s->d.k.stride[3] = 0));
    RUNS((s->d.window_left = INT64_MAX, s->d.window_right = INT64_MAX));
}

/* Pointers to nothing are right where there is nothing. */
static void empty_operands_need_no_memory(void **state)
{
    (void)state;
    static struct small s;
    small_make(&s);
    s.d.keys = 0, s.key_count[0] = s.key_count[1] = s.key_start[0] = s.key_start[1] = 0;
    s.d.k.data = s.d.v.data = s.d.allow.data = s.d.bias.data = NULL, s.d.weights.data = NULL;
    assert_int_equal(attn_run(&s.d, NULL), ATTN_OK);
    for (int i = 0; i < COUNT(s.out); i++) assert_true(s.out[i] == 0);
    for (int i = 0; i < COUNT(s.lse); i++) assert_true(s.lse[i] == 0); /* the sinks */
    small_make(&s);
    s.d.queries = 0, s.query_count[0] = s.query_count[1] = 0;
    s.d.q.data = NULL, s.d.out.data = NULL;
    assert_int_equal(attn_run(&s.d, NULL), ATTN_OK);
    assert_false(small_touched(&s));
}

/* Nothing loops over a size that costs nothing. */
static void huge_sizes_return_at_once(void **state)
{
    (void)state;
    static struct small s;
    for (int way = 0; way < 3; way++) {
        small_make(&s);
        s.d.query_count = s.d.key_count = s.d.key_start = NULL;
        s.d.batch = INT64_C(1) << 40;
        if (way == 0) s.d.queries = 0;
        if (way == 1) s.d.heads = s.d.kv_heads = 0;
        attn_in *in[] = {&s.d.q, &s.d.k, &s.d.v, &s.d.allow, &s.d.bias, &s.d.alibi};
        for (int i = 0; i < COUNT(in); i++) in[i]->stride[0] = 0;
        size_t bytes;
        if (way == 2) s.d.out.stride[0] = 1 << 20, s.d.lse.stride[0] = 1 << 20, s.d.weights.stride[0] = 1 << 20;
        int32_t code = way == 2 ? attn_work_bytes(&s.d, &bytes, NULL) : attn_run(&s.d, NULL);
        assert_int_equal(code, ATTN_OK);
        assert_false(small_touched(&s));
    }
}

/* ---- callers of other versions ---------------------------------------------------------------------------------------------------------- */

static void old_and_new_callers(void **state)
{
    (void)state;
    static struct small s;
    attn_error          e;
    small_make(&s);
    const size_t short_sizes[] = {0, 1, 8, sizeof(attn_desc) / 2, DESC_1 - 1};
    for (int i = 0; i < COUNT(short_sizes); i++) {
        s.d.size = short_sizes[i];
        assert_int_equal(attn_run(&s.d, &e), ATTN_E_ARGUMENT);
        assert_non_null(strstr(e.message, "size"));
        assert_int_equal(attn_check(&s.d, &e), ATTN_E_ARGUMENT);
    }
    s.d.size = DESC_1;
    assert_int_equal(attn_check(&s.d, &e), ATTN_OK);
    /* a later version's caller: more fields behind ours, in a block of exactly that size */
    for (size_t more = 1; more <= 64; more *= 4) {
        unsigned char *later = calloc(1, sizeof s.d + more);
        size_t         size = sizeof s.d + more;
        s.d.size = size;
        memcpy(later, &s.d, sizeof s.d);
        assert_int_equal(attn_run((const attn_desc *)(const void *)later, &e), ATTN_OK);
        for (size_t at = 0; at < more; at++) {
            later[sizeof s.d + at] = 1;
            assert_int_equal(attn_check((const attn_desc *)(const void *)later, &e), ATTN_E_TOO_NEW);
            assert_int_equal(e.status, ATTN_E_TOO_NEW);
            assert_non_null(strstr(e.message, "size"));
            later[sizeof s.d + at] = 0;
        }
        free(later);
    }
    s.d.size = SIZE_MAX; /* an uninitialised descriptor must not be walked to the end of memory */
    assert_int_not_equal(attn_check(&s.d, &e), ATTN_OK);
    assert_int_equal(attn_run(NULL, &e), ATTN_E_ARGUMENT);
    assert_int_equal(attn_check(NULL, NULL), ATTN_E_ARGUMENT);
    assert_int_equal(attn_merge(NULL, &e), ATTN_E_ARGUMENT);
}

static void sentences_end_in_their_buffer(void **state)
{
    (void)state;
    static struct small s;
    char                name[1000];
    attn_error          e;
    memset(name, 'x', sizeof name), name[sizeof name - 1] = 0;
    small_make(&s);
    s.d.isa = name;
    assert_int_equal(attn_run(&s.d, &e), ATTN_E_ARGUMENT);
    assert_true(strlen(e.message) < sizeof e.message);
    assert_non_null(strstr(e.message, "scalar")); /* what there is, is named though the wrong name is long */
    small_make(&s);
    s.d.align = 0, s.d.batch = B, s.d.scale = -DBL_MAX;
    assert_int_equal(attn_run(&s.d, &e), ATTN_E_ARGUMENT);
    assert_true(strlen(e.message) < sizeof e.message);
}

/* ---- workspace --------------------------------------------------------------------------------------------------------------------------- */

/* What attn.h says `rows` is. */
static size_t rows_of(const char *isa, int32_t dtype)
{
    size_t rows = !strncmp(isa, "avx512", 6) ? 48 : !strcmp(isa, "avx2") ? 24 : !strcmp(isa, "neon") ? 16 : 4;
    return dtype == ATTN_F64 && rows > 4 ? rows / 2 : rows;
}

static void workspace_is_exact_and_bounded(void **state)
{
    (void)state;
    for (int64_t at = 0; at < test_count(150); at++)
        for (int i = 0; attn_isa_name(i); i++) {
            if (!attn_isa_usable(i)) continue;
            rng        r = rng_make("work", at);
            problem    p;
            size_t     bytes = 0, without = 0;
            attn_error e;
            problem_random(&p, &r, WITH_STRANGE_VIEWS | WITH_EXECUTORS);
            attn_desc *d = &p.d, unset;
            d->isa = attn_isa_name(i);
            assert_int_equal(attn_work_bytes(d, &bytes, &e), ATTN_OK);
            unset = *d; /* data pointers and work may still be NULL */
            unset.q.data = unset.k.data = unset.v.data = unset.allow.data = unset.bias.data = unset.alibi.data = unset.sink.data = NULL;
            unset.out.data = unset.lse.data = unset.weights.data = NULL;
            assert_int_equal(attn_work_bytes(&unset, &without, &e), ATTN_OK);
            assert_int_equal(bytes, without);
            size_t rows = rows_of(d->isa, d->q.dtype), real = d->q.dtype == ATTN_F64 ? 8 : 4,
                   slots = d->executor ? (size_t)d->executor->width : 1;
            size_t dim = ((size_t)d->dim + 15) / 16 * 16, value_dim = ((size_t)d->value_dim + 15) / 16 * 16;
            size_t parts = d->executor && d->executor->width > 1 && d->keys > 2048 ? 8 * slots : 0;
            size_t bound = 64 + slots * (real * (rows * (dim + 2 * value_dim + 268) + 128 * (dim + value_dim)) + 2560) +
                           parts * (real * rows * (value_dim + 2) + 400);
            if (d->q.dtype == ATTN_BF16 && strcmp(d->isa, "avx512bf16") == 0) bound += slots * (264 << 10);
            if (bytes > bound) fprintf(stderr, "%s: %zu bytes, %zu by the header\n", d->isa, bytes, bound), describe(d, stderr);
            assert_true(bytes <= bound);
            /* flush at the end of a page, at every alignment */
            guarded work;
            guarded_make(&work, bytes + 64, GUARD_ABOVE, 0xFF);
            for (size_t shift = at % 16; shift < 64; shift += 16) {
                d->work = work.bytes + 64 - shift, d->work_bytes = bytes;
                memset(work.bytes, 0xFF, work.size);
                problem_refill(&p);
                assert_int_equal(attn_run(d, &e), ATTN_OK);
                for (size_t b = 0; b < 64 - shift; b++) assert_int_equal(work.bytes[b], 0xFF);
                for (size_t b = 64 - shift + bytes; b < work.size; b++) assert_int_equal(work.bytes[b], 0xFF);
            }
            if (bytes) {
                problem_refill(&p);
                d->work_bytes = bytes - 1;
                assert_int_equal(attn_run(d, &e), ATTN_E_WORK);
                assert_non_null(strstr(e.message, "work_bytes"));
                assert_false(view_touched(&p.out));
            }
            guarded_free(&work);
            problem_free(&p);
        }
}

/* Scratch is what the header says it depends on: not queries, not keys. */
static void workspace_does_not_grow_with_length(void **state)
{
    (void)state;
    static struct small s;
    size_t              before, after;
    small_make(&s);
    s.d.query_count = s.d.key_count = s.d.key_start = NULL;
    attn_in *in[] = {&s.d.q, &s.d.k, &s.d.v, &s.d.allow, &s.d.bias};
    for (int i = 0; i < COUNT(in); i++) in[i]->data = NULL, in[i]->stride[2] = 0;
    s.d.bias.stride[3] = s.d.allow.stride[3] = 0;
    memset(&s.d.weights, 0, sizeof s.d.weights);
    s.d.out.stride[0] = s.d.lse.stride[0] = INT64_C(1) << 40, s.d.out.stride[1] = s.d.lse.stride[1] = INT64_C(1) << 36;
    s.d.queries = s.d.keys = 1000;
    assert_int_equal(attn_work_bytes(&s.d, &before, NULL), ATTN_OK);
    s.d.queries = s.d.keys = INT64_C(1) << 33;
    assert_int_equal(attn_work_bytes(&s.d, &after, NULL), ATTN_OK);
    assert_int_equal(before, after);
    assert_int_equal(attn_work_bytes(&s.d, NULL, NULL), ATTN_E_ARGUMENT);
}

/* ---- small helpers ----------------------------------------------------------------------------------------------------------------------- */

static void alibi_slopes(void **state)
{
    (void)state;
    static const double twelve[] = {0x1p-1,
                                    0x1p-2,
                                    0x1p-3,
                                    0x1p-4,
                                    0x1p-5,
                                    0x1p-6,
                                    0x1p-7,
                                    0x1p-8,
                                    0.70710678118654757,
                                    0.35355339059327379,
                                    0.17677669529663689,
                                    0.088388347648318447};
    float               slopes[40];
    attn_error          e;
    assert_int_equal(attn_alibi_slopes(12, slopes, &e), ATTN_OK);
    for (int h = 0; h < 12; h++) assert_true(slopes[h] == (float)twelve[h]);
    for (int n = 1; n <= 32; n++) {
        memset(slopes, 0xA5, sizeof slopes);
        assert_int_equal(attn_alibi_slopes(n, slopes, NULL), ATTN_OK);
        int power = 1;
        while (power * 2 <= n) power *= 2;
        for (int h = 0; h < n; h++) {
            double want = h < power ? pow(2, -8.0 * (h + 1) / power) : pow(2, -8.0 * (2 * (h - power) + 1) / (2 * power));
            assert_true(fabs(slopes[h] - want) <= tolerance(ATTN_F32, ATTN_F32, 0, want, 0));
        }
        assert_memory_equal(&slopes[n], "\xA5\xA5\xA5\xA5", 4);
    }
    assert_int_equal(attn_alibi_slopes(0, NULL, &e), ATTN_OK);
    assert_int_equal(attn_alibi_slopes(-1, slopes, &e), ATTN_E_ARGUMENT);
    assert_non_null(strstr(e.message, "-1"));
    assert_int_equal(attn_alibi_slopes(4, NULL, &e), ATTN_E_ARGUMENT);
}

static void names_and_versions(void **state)
{
    (void)state;
    static const char *const known[] = {"avx512bf16", "avx512", "avx2", "neon", "scalar"};
    int                      count = isa_count(), last = -1;
    assert_true(count >= 1);
    assert_string_equal(attn_isa_name(count - 1), "scalar");
    assert_int_equal(attn_isa_usable(count - 1), 1);
    for (int i = 0; i < count; i++) {
        int at = 0;
        while (at < COUNT(known) && strcmp(known[at], attn_isa_name(i))) at++;
        assert_true(at < COUNT(known) && at > last); /* best first, each once */
        last = at;
        assert_in_range(attn_isa_usable(i), 0, 1);
    }
    assert_null(attn_isa_name(count)), assert_null(attn_isa_name(-1)), assert_null(attn_isa_name(INT32_MAX)),
        assert_null(attn_isa_name(INT32_MIN));
    assert_int_equal(attn_isa_usable(count), 0), assert_int_equal(attn_isa_usable(-1), 0), assert_int_equal(attn_isa_usable(INT32_MAX), 0);

    int numbers[3];
    assert_int_equal(sscanf(attn_version_text(), "%d.%d.%d", &numbers[0], &numbers[1], &numbers[2]), 3);
    assert_int_equal(attn_version(), 10000 * numbers[0] + 100 * numbers[1] + numbers[2]);
    assert_string_equal(attn_version_text(), ATTN_VERSION);
    assert_int_equal(attn_version(), 10000 * ATTN_VERSION_MAJOR + 100 * ATTN_VERSION_MINOR + ATTN_VERSION_PATCH);

    static const char *const codes[] = {"ok", "argument", "unsupported", "too new", "memory", "work", "thread"}, *const dtypes[] = {
                                                                                                                     "unknown", "f32",
                                                                                                                     "f64",     "f16",
                                                                                                                     "bf16",    "bool"};
    static const size_t bytes[] = {0, 4, 8, 2, 2, 1};
    for (int i = 0; i < COUNT(codes); i++) assert_string_equal(attn_status_name(i), codes[i]);
    for (int i = 0; i < COUNT(dtypes); i++)
        assert_string_equal(attn_dtype_name(i), dtypes[i]), assert_int_equal(attn_dtype_bytes(i), bytes[i]);
    static const int32_t wild[] = {-1, 7, 100, INT32_MAX, INT32_MIN};
    for (int i = 0; i < COUNT(wild); i++) {
        assert_string_equal(attn_status_name(wild[i]), "unknown"), assert_string_equal(attn_dtype_name(wild[i]), "unknown");
        assert_int_equal(attn_dtype_bytes(wild[i]), 0);
    }
}

/* A row that this machine lacks is refused as such, not as an unknown word. */
static void rows_of_other_machines(void **state)
{
    (void)state;
    static struct small s;
    attn_error          e;
    for (int i = 0; attn_isa_name(i); i++) {
        small_make(&s);
        s.d.isa = attn_isa_name(i);
        assert_int_equal(attn_run(&s.d, &e), attn_isa_usable(i) ? ATTN_OK : ATTN_E_UNSUPPORTED);
        if (!attn_isa_usable(i)) assert_non_null(strstr(e.message, attn_isa_name(i))), assert_false(small_touched(&s));
    }
}

/* With nothing to write a call is over at once, however many batch entries or heads there are of nothing. */
static void nothing_to_write_takes_no_time(void **state)
{
    (void)state;
    const int64_t many = INT64_C(1) << 40;
    float         x = 0, y = 0;
    const attn_in in = {&x, {0}, 0, ATTN_F32, 0};
    attn_out      out = {&y, {0}, 0, ATTN_F32, 0};

    attn_desc d = attn_desc_new();
    d.batch = many, d.heads = d.kv_heads = 1, d.queries = 1 << 20;
    d.q = d.k = d.v = in, d.out = d.weights = out;
    assert_int_equal(attn_run(&d, NULL), ATTN_OK); /* no keys: no weights */

    attn_inspect_desc w = attn_inspect_desc_new();
    w.values = w.received = out;
    assert_int_equal(attn_inspect(&d, &w, NULL), ATTN_OK);

    attn_backward_desc g = attn_backward_desc_new();
    g.out = g.lse = g.d_out = in, g.dk = g.dv = g.dbias = g.dsink = out;
    d.queries = 0, d.keys = 1 << 20, d.bias = d.sink = in, y = 1;
    assert_int_equal(attn_backward(&d, &g, NULL), ATTN_OK);
    assert_true(y == 0); /* one number each, summed over nothing */

    attn_merge_desc m = attn_merge_desc_new();
    m.batch = INT64_MAX, m.heads = 1, m.parts = 1, m.part_out = m.part_lse = &in, m.out = m.lse = out;
    assert_int_equal(attn_merge(&m, NULL), ATTN_OK);
    m.queries = 1, m.lse.data = NULL, m.lse.dtype = 0;
    assert_int_equal(attn_merge(&m, NULL), ATTN_OK); /* no channels */

    attn_dropout_block b = attn_dropout_block_new();
    b.batch_count = b.head_count = b.query_count = many, b.keep = out, b.keep.dtype = ATTN_BOOL;
    assert_int_equal(attn_dropout_mask(&b, NULL), ATTN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_to_write_takes_no_time),
        cmocka_unit_test(the_right_call_runs),
        cmocka_unit_test(each_refusal_has_its_sentence),
        cmocka_unit_test(near_refusals_run),
        cmocka_unit_test(empty_operands_need_no_memory),
        cmocka_unit_test(huge_sizes_return_at_once),
        cmocka_unit_test(old_and_new_callers),
        cmocka_unit_test(sentences_end_in_their_buffer),
        cmocka_unit_test(workspace_is_exact_and_bounded),
        cmocka_unit_test(workspace_does_not_grow_with_length),
        cmocka_unit_test(alibi_slopes),
        cmocka_unit_test(names_and_versions),
        cmocka_unit_test(rows_of_other_machines),
    };
    cmocka_set_test_filter(getenv("ATTN_TEST"));
    return cmocka_run_group_tests_name("contract", tests, NULL, NULL);
}
