/* vocabulary.h: what the instruction-set files share before they define their vectors.
 * SPDX-License-Identifier: MIT */
#include <stdint.h>
#include <string.h>

#define FORCE    inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
