/* fuzz_csv.c: any bytes as a .csv file; what is a matrix is written and read back, and must be the same matrix.
 * SPDX-License-Identifier: MIT
 */
#include "fuzz_io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_and_compare(const io_array *array)
{
    io_array back;
    io_error error = {0};
    char    *text = NULL;
    size_t   size = 0;
    FILE    *file = open_memstream(&text, &size);
    FUZZ_ASSERT(file && io_csv_write(file, array, "memory", &error) == IO_OK && fclose(file) == 0);
    FUZZ_ASSERT(io_csv_parse(text, size, "memory", &back, &error) == IO_OK);
    FUZZ_ASSERT(back.shape[0] == array->shape[0] && back.shape[1] == array->shape[1]);
    for (int64_t i = 0; i < back.shape[0] * back.shape[1]; i++) {
        double x = io_get(array, i), y = io_get(&back, i);
        FUZZ_ASSERT(x != x ? y != y : memcmp(&x, &y, sizeof x) == 0);
    }
    io_free(&back);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    io_array array;
    io_error error = {0};
    char    *text = malloc(size + 1);
    FUZZ_ASSERT(text != NULL);
    if (size) memcpy(text, data, size);
    text[size] = 0;
    int32_t status = io_csv_parse(text, size, "memory", &array, &error);
    fuzz_check(status, &array, &error);
    if (status == IO_OK) write_and_compare(&array);
    io_free(&array);
    free(text);
    return 0;
}
