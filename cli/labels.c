/* labels.c: names of positions: numbers, or tokens out of a file.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <errno.h>
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

/* ---- tokens of a file --------------------------------------------------------------------------------------------------------------- */

/* Control characters of a foreign file would steer the terminal. */
static void clean(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 32 || *text == 127) *text = '?';
}

int labels_from(const json_t *list, const char *path, char ***label, int64_t *count)
{
    *count = (int64_t)json_array_size(list);
    if (*count == 0) return out_fail(CLI_FIT, "%s has no list of tokens", path);
    *label = calloc((size_t)*count, sizeof **label);
    if (!*label) return out_fail(CLI_OUTPUT, "no memory for the tokens");
    for (int64_t i = 0; i < *count; i++) {
        const char *word = json_string_value(json_array_get(list, (size_t)i));
        (*label)[i] = word ? strdup(word) : NULL;
        if (!(*label)[i]) return out_fail(CLI_FIT, "%s: token %lld is no text in UTF-8", path, (long long)i);
        clean((*label)[i]);
    }
    return CLI_OK;
}

static json_t *lines(FILE *file)
{
    json_t *list = json_array();
    char   *line = NULL;
    size_t  room = 0;
    for (ssize_t length; (length = getline(&line, &room, file)) >= 0;) {
        while (length && (line[length - 1] == '\n' || line[length - 1] == '\r')) length--;
        json_t *word = json_stringn(line, (size_t)length);
        json_array_append_new(list, word ? word : json_null()); /* broken UTF-8: no text */
    }
    free(line);
    return list;
}

int labels_read(const char *option, const char *path, int64_t want, char ***label, int64_t *count)
{
    const char  *end = path ? strrchr(path, '.') : NULL;
    json_t      *list = NULL;
    json_error_t bad = {0};
    *label = NULL, *count = 0;
    if (!path) return CLI_OK;
    if (end && strcmp(end, ".safetensors") == 0) {
        io_error  e;
        io_store *store = io_store_open(path, &e);
        if (!store) return out_io(&e);
        const char *text = io_store_metadata(store, "tokens");
        list = text ? json_loads(text, 0, &bad) : NULL;
        io_store_close(store);
    } else {
        FILE *file = fopen(path, "r");
        if (!file) return out_fail(CLI_INPUT, "%s cannot be opened: %s", path, strerror(errno));
        list = end && strcmp(end, ".json") == 0 ? json_loadf(file, 0, &bad) : lines(file);
        const int failed = ferror(file);
        fclose(file);
        if (failed) return json_decref(list), out_fail(CLI_INPUT, "%s cannot be read", path);
    }
    if (!list && *bad.text) return out_fail(CLI_INPUT, "%s: the tokens are not good JSON: %s", path, bad.text);
    const int code = labels_from(list, path, label, count);
    json_decref(list);
    if (code || *count == want) return code;
    return out_fail(CLI_FIT, "%s %s holds %lld tokens, %lld are needed", option, path, (long long)*count, (long long)want);
}
