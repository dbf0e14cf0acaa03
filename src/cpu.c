/* cpu.c: which instruction sets this CPU and OS can run.
 * SPDX-License-Identifier: MIT
 *
 * __builtin_cpu_supports asks CPUID and the OS (XCR0), and keeps what it found in the compiler's runtime, so there is no state here. */
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "internal.h"

#if defined(__x86_64__)
static int32_t has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
}
#endif

int32_t attn_cpu_usable(const char *isa)
{
#if defined(__x86_64__)
    if (strcmp(isa, "avx512bf16") == 0) return has_avx512() && __builtin_cpu_supports("avx512bf16");
    if (strcmp(isa, "avx512") == 0) return has_avx512();
    if (strcmp(isa, "avx2") == 0) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#elif defined(__aarch64__)
    if (strcmp(isa, "neon") == 0) return 1; /* part of the architecture */
#endif
    return strcmp(isa, "scalar") == 0;
}

/* Rounding, subnormals, traps and flags of the one unit that this library computes with; <fenv.h> would also save the x87 unit, which takes longer
 * than a small call. */
uint64_t attn_cpu_enter(void)
{
#if defined(__x86_64__)
    uint64_t caller = _mm_getcsr();
    _mm_setcsr(0x1f80);
#else
    uint64_t control, flags, none = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("mrs %0, fpsr" : "=r"(flags));
    __asm__ volatile("msr fpcr, %0" : : "r"(none));
    uint64_t caller = control << 32 | flags;
#endif
    return caller;
}

void attn_cpu_leave(uint64_t caller)
{
#if defined(__x86_64__)
    _mm_setcsr((unsigned)caller);
#else
    __asm__ volatile("msr fpcr, %0" : : "r"(caller >> 32));
    __asm__ volatile("msr fpsr, %0" : : "r"(caller & 0xffffffff));
#endif
}
