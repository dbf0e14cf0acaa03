/* fuzz_npy.c: any bytes as an .npy file.
 * SPDX-License-Identifier: MIT
 */
#include "fuzz_io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    io_array array;
    io_error error;
    fuzz_check(io_read_npy_memory(data, size, &array, &error), &array, &error);
    io_free(&array);
    return 0;
}
