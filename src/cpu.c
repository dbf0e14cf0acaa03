/* cpu.c: which instruction sets this CPU and OS can run.
 * SPDX-License-Identifier: MIT
 *
 * __builtin_cpu_supports asks CPUID and the OS (XCR0), and keeps what it found in the compiler's runtime, so there is no state here. */
#include <string.h>

#include "internal.h"

int32_t attn_cpu_usable(const char *isa)
{
#if defined(__x86_64__)
    if (strcmp(isa, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
    if (strcmp(isa, "avx512bf16") == 0) return attn_cpu_usable("avx512") && __builtin_cpu_supports("avx512bf16");
    if (strcmp(isa, "avx2") == 0) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#elif defined(__aarch64__)
    if (strcmp(isa, "neon") == 0) return 1; /* part of the architecture */
#endif
    return strcmp(isa, "scalar") == 0;
}
