/* info.c: attn info: the version, this CPU, the instruction sets that can run here.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <unistd.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

typedef struct feature {
    const char *name;
    int         present;
} feature;

enum { FEATURES = 8 };

/* What this CPU offers of all that a kernel could use. */
static void look(feature f[FEATURES])
{
    memset(f, 0, FEATURES * sizeof *f);
#if defined(__x86_64__)
    __builtin_cpu_init();
    f[0] = (feature){"sse4.2", __builtin_cpu_supports("sse4.2") != 0};
    f[1] = (feature){"avx2", __builtin_cpu_supports("avx2") != 0};
    f[2] = (feature){"fma", __builtin_cpu_supports("fma") != 0};
    f[3] = (feature){"avx512f", __builtin_cpu_supports("avx512f") != 0};
    f[4] = (feature){"avx512bw", __builtin_cpu_supports("avx512bw") != 0};
    f[5] = (feature){"avx512vl", __builtin_cpu_supports("avx512vl") != 0};
    f[6] = (feature){"avx512bf16", __builtin_cpu_supports("avx512bf16") != 0};
#elif defined(__aarch64__)
    /* Bits of the kernel's <asm/hwcap.h>. */
    f[0] = (feature){"asimd", (getauxval(AT_HWCAP) >> 1 & 1) != 0};
    f[1] = (feature){"asimdhp", (getauxval(AT_HWCAP) >> 10 & 1) != 0};
    f[2] = (feature){"sve", (getauxval(AT_HWCAP) >> 22 & 1) != 0};
    f[3] = (feature){"bf16", (getauxval(AT_HWCAP2) >> 14 & 1) != 0};
#endif
}

static int print_json(const feature *f, const char *best)
{
    json_t *result = out_json_open("info"), *features = json_object(), *isa = json_array();
    for (int i = 0; i < FEATURES && f[i].name; i++) json_object_set_new(features, f[i].name, json_boolean(f[i].present));
    for (int32_t i = 0; attn_isa_name(i); i++)
        json_array_append_new(isa, json_pack("{s:s, s:b}", "name", attn_isa_name(i), "usable", attn_isa_usable(i)));
    json_object_set_new(result, "library", json_string(attn_version_text()));
    json_object_set_new(result, "built_with", json_string(ATTN_VERSION));
    json_object_set_new(result, "isa", isa);
    json_object_set_new(result, "default_isa", json_string(best));
    json_object_set_new(result, "cpu_features", features);
    json_object_set_new(result, "threads", json_integer(call_threads()));
    json_object_set_new(result, "cpus", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    return out_json(result);
}

int info_main(const cli_options *o)
{
    const cli_call none = {.desc = attn_desc_new()};
    const char    *best = call_isa(&none);
    feature        f[FEATURES];
    look(f);
    if (o->json) return print_json(f, best);
    printf("version       %s (built with the header of %s)\n", attn_version_text(), ATTN_VERSION);
    printf("isa          ");
    for (int32_t i = 0; attn_isa_name(i); i++)
        printf(" %s%s", attn_isa_name(i),
               !attn_isa_usable(i)                   ? " (not on this CPU)"
               : strcmp(attn_isa_name(i), best) == 0 ? " (default)"
                                                     : "");
    printf("\ncpu          ");
    for (int i = 0; i < FEATURES && f[i].name; i++)
        if (f[i].present) printf(" %s", f[i].name);
    printf("\nthreads       %d may be used of %ld CPUs\n", call_threads(), sysconf(_SC_NPROCESSORS_ONLN));
    printf("dtypes       ");
    for (int32_t t = ATTN_F32; t <= ATTN_BF16; t++) printf(" %s", attn_dtype_name(t));
    printf("\n");
    return CLI_OK;
}
