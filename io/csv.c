/* csv.c: one matrix of numbers as text, read and written the same in every locale.
 * SPDX-License-Identifier: MIT
 *
 * A line is a row. Numbers are separated by commas, by semicolons or by blanks, one of the three in the whole file: "1,5;2,5" with its
 * decimal commas must not pass for four numbers. Blanks around a comma or semicolon, empty lines and what follows a '#' do not count.
 */
#include "io_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---------------------------------------------------------------------------------------------------------------------- */

struct csv {
    const char *at, *end, *shown;
    double     *values;
    int64_t     count, room, rows, columns, line;
    char        separator; /* ',', ';', ' ' or 0 while there was none */
};

static void skip_blanks(struct csv *c)
{
    while (*c->at == ' ' || *c->at == '\t') c->at++;
}

static int at_line_end(const struct csv *c)
{
    return c->at == c->end || *c->at == '\n' || *c->at == '\r' || *c->at == '#';
}

static int32_t bad_line(const struct csv *c, const char *what, io_error *error)
{
    return io_fail(error, IO_E_READ, "%s: line %lld %s", c->shown, (long long)c->line, what);
}

static int32_t take_number(struct csv *c, io_error *error)
{
    char *after = NULL;
    errno = 0;
    double x = strtod(c->at, &after);
    size_t field = strcspn(c->at, " \t\r\n,;#");
    if (after == c->at || after != c->at + field)
        return io_fail(error, IO_E_READ, "%s: line %lld: '%.*s' is not a number", c->shown, (long long)c->line,
                       field < 40 ? (int)field : 40, c->at);
    if (isinf(x) && errno == ERANGE)
        return io_fail(error, IO_E_READ, "%s: line %lld: '%.*s' does not fit f64", c->shown, (long long)c->line,
                       field < 40 ? (int)field : 40, c->at);
    if (c->count == c->room) {
        int64_t room = c->room ? 2 * c->room : 64; /* no overflow: a number takes two bytes of text or more */
        double *values = realloc(c->values, (size_t)room * sizeof *values);
        if (!values) return io_fail(error, IO_E_MEMORY, "%s: no memory for %lld numbers", c->shown, (long long)room);
        c->values = values;
        c->room = room;
    }
    c->values[c->count++] = x;
    c->at = after;
    return IO_OK;
}

/* To the next number. 0 into *more: the line ends. */
static int32_t take_separator(struct csv *c, int *more, io_error *error)
{
    char separator = ' ';
    skip_blanks(c);
    *more = !at_line_end(c);
    if (!*more) return IO_OK;
    if (*c->at == ',' || *c->at == ';') {
        separator = *c->at++;
        skip_blanks(c);
        if (at_line_end(c)) return bad_line(c, "ends with a separator", error);
    }
    if (c->separator && separator != c->separator)
        return bad_line(c, "mixes commas, semicolons and blanks as separators (decimal commas are not handled)", error);
    c->separator = separator;
    return IO_OK;
}

static int32_t take_line(struct csv *c, io_error *error)
{
    int64_t before = c->count;
    int32_t status = IO_OK;
    c->line++;
    skip_blanks(c);
    for (int more = !at_line_end(c); more && status == IO_OK;) {
        status = take_number(c, error);
        if (status == IO_OK) status = take_separator(c, &more, error);
    }
    if (status != IO_OK) return status;
    if (c->count > before) {
        if (c->rows && c->count - before != c->columns)
            return io_fail(error, IO_E_READ, "%s: line %lld has %lld numbers, the lines before it %lld", c->shown, (long long)c->line,
                           (long long)(c->count - before), (long long)c->columns);
        c->columns = c->count - before;
        c->rows++;
    }
    while (c->at < c->end && *c->at != '\n' && *c->at != '\r') c->at++; /* a comment */
    if (c->at + 1 < c->end && c->at[0] == '\r' && c->at[1] == '\n') c->at++;
    if (c->at < c->end) c->at++;
    return IO_OK;
}

int32_t io_csv_parse(const char *text, size_t size, const char *shown, io_array *array, io_error *error)
{
    struct csv c = {.at = text, .end = text + size, .shown = shown};
    int32_t    status = IO_OK;
    memset(array, 0, sizeof *array);
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return io_fail(error, IO_E_MEMORY, "%s: no memory for a locale", shown);
    locale_t before = uselocale(plain);
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) c.at += 3; /* spreadsheets begin UTF-8 with this mark */
    while (c.at < c.end && status == IO_OK) status = take_line(&c, error);
    uselocale(before);
    freelocale(plain);
    if (status == IO_OK && c.count == 0) status = io_fail(error, IO_E_READ, "%s: holds no numbers", shown);
    if (status != IO_OK) {
        free(c.values);
        return status;
    }
    *array =
        (io_array){.data = c.values, .owner = c.values, .shape = {c.rows, c.columns}, .stride = {c.columns, 1}, .dtype = IO_F64, .rank = 2};
    return IO_OK;
}

/* ---- writing ---------------------------------------------------------------------------------------------------------------------- */

/* The fewest digits that give the same value back; `digits` always do: 17 for f64, 9 for f32 and what is narrower. */
static void print_float(FILE *file, double x, int digits)
{
    char text[40];
    for (int n = 1; n <= digits; n++) {
        snprintf(text, sizeof text, "%.*g", n, x);
        double back = strtod(text, NULL);
        if (digits < 17 ? (float)back == (float)x : back == x) break;
    }
    fputs(isnan(x) ? "nan" : text, file); /* "-nan" says nothing more */
}

static void print_element(FILE *file, const io_array *array, int64_t offset)
{
    switch (array->dtype) {
    case IO_F64:
        print_float(file, io_get(array, offset), 17);
        break;
    case IO_F32:
    case IO_F16:
    case IO_BF16:
        print_float(file, io_get(array, offset), 9);
        break;
    case IO_I64:
        fprintf(file, "%" PRId64, ((const int64_t *)array->data)[offset]);
        break;
    case IO_U64:
        fprintf(file, "%" PRIu64, ((const uint64_t *)array->data)[offset]);
        break;
    default:
        fprintf(file, "%.0f", io_get(array, offset));
        break; /* integers of up to 32 bits */
    }
}

int32_t io_csv_write(FILE *file, const io_array *array, const char *shown, io_error *error)
{
    if (array->rank > 2)
        return io_fail(error, IO_E_TYPE, "%s: a .csv holds at most 2 axes, and the array has %d; write .npy", shown, array->rank);
    int64_t rows = array->rank > 0 ? array->shape[0] : 1, columns = array->rank > 1 ? array->shape[1] : 1;
    if (rows == 0 || columns == 0) return io_fail(error, IO_E_TYPE, "%s: an empty array has no form as .csv; write .npy", shown);
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return io_fail(error, IO_E_MEMORY, "%s: no memory for a locale", shown);
    locale_t before = uselocale(plain);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            print_element(file, array, i * array->stride[0] + j * array->stride[1]);
            fputc(j + 1 < columns ? ',' : '\n', file);
        }
    uselocale(before);
    freelocale(plain);
    return IO_OK;
}
