/* qemu_main.c: the operator on random problems with every usable instruction set, without a test framework.
 * SPDX-License-Identifier: MIT
 *
 * A static program of this, the core and support.c alone runs under an emulator where no package of that machine is installed.
 */
#include "support.h"

#include <inttypes.h>

int main(void)
{
    static const struct {
        const char *name;
        int64_t     count;
        int         with;
    } sweeps[] = {
        {"plain", 300, 0},
        {"strange views", 300, WITH_STRANGE_VIEWS | WITH_EXECUTORS},
        {"poison", 200, WITH_POISON | WITH_WORK},
        {"empty", 100, WITH_EMPTY},
        {"long", 20, WITH_LONG},
    };
    int64_t failed = isa_report();
    for (size_t s = 0; s < sizeof sweeps / sizeof *sweeps; s++) {
        int64_t count = test_count(sweeps[s].count), bad = sweep(sweeps[s].name, count, sweeps[s].with);
        printf("%s: %" PRId64 " problems, %" PRId64 " failed\n", sweeps[s].name, count, bad);
        failed += bad;
    }
    int64_t count = test_count(200), bad = sweep_backward("backward", count, WITH_STRANGE_VIEWS | WITH_EXECUTORS);
    printf("backward: %" PRId64 " problems, %" PRId64 " failed\n", count, bad);
    return failed + bad != 0;
}
