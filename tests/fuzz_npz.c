/* fuzz_npz.c: any bytes as an .npz file.
 * SPDX-License-Identifier: MIT
 */
#include "fuzz_io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {NULL, "a", "a.npy", "b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        io_array array;
        io_error error;
        fuzz_check(io_npz_read_memory(data, size, names[i], &array, &error), &array, &error);
        io_free(&array);
    }
    return 0;
}
