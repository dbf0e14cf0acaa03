/* labels.c: names of positions: numbers, or tokens out of a file.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <stdlib.h>

void labels_free(char **label, int64_t count)
{
    for (int64_t i = 0; label && i < count; i++) free(label[i]);
    free(label);
}

char **labels_numbers(const char *format, int64_t count, int64_t first, int64_t span)
{
    char **label = calloc((size_t)count + 1, sizeof *label);
    int    good = label != NULL;
    for (int64_t i = 0; good && i < count; i++) {
        char text[64];
        snprintf(text, sizeof text, format, (long long)(first + i * span / count));
        good = (label[i] = strdup(text)) != NULL;
    }
    if (good) return label;
    labels_free(label, count);
    return NULL;
}
