/* fuzz_safetensors.c: any bytes as a .safetensors file.
 * SPDX-License-Identifier: MIT
 */
#include "fuzz_io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    io_array  array;
    io_error  error;
    io_store *store = io_store_open_memory(data, size, &error);
    FUZZ_ASSERT((store != NULL) == (error.status == IO_OK) && (store != NULL) == (error.message[0] == 0));
    if (!store) return 0;
    FUZZ_ASSERT(io_store_name(store, io_store_count(store)) == NULL && io_store_name(store, -1) == NULL);
    for (int64_t i = 0; i < io_store_count(store); i++) {
        const char *name = io_store_name(store, i);
        FUZZ_ASSERT(io_store_find(store, name, &array) == 1);
        fuzz_check(io_store_get(store, name, &array, &error), &array, &error);
        io_free(&array);
    }
    FUZZ_ASSERT(io_store_find(store, "__metadata__", &array) == 0);
    const char *format = io_store_metadata(store, "format");
    FUZZ_ASSERT(!format || strlen(format) <= size);
    io_store_close(store);
    return 0;
}
