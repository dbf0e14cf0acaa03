/* literal.c: arrays that are written out on the command line: "1,0; 0,1".
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* One number and what follows it: ',' or blanks to the next in the row, ';' to the next row, 0 at the end. -1: no number. */
static int number(const char **text, double *x)
{
    char *end;
    errno = 0;
    *x = strtod(*text, &end);
    if (end == *text || (errno == ERANGE && isinf(*x))) return -1;
    end += strspn(end, " \t");
    const int after = *end == ',' || *end == ';' || *end == 0 ? *end : end[-1] == ' ' || end[-1] == '\t' ? ',' : -1;
    *text = end + (*end == ',' || *end == ';');
    if (after == ';' && !(*text)[strspn(*text, " \t")]) return 0; /* one at the very end */
    return after;
}

/* Rows and columns of the literal, its numbers into `to` unless that is NULL; 0 when it is none. */
static int scan(const char *text, int64_t shape[2], double *to)
{
    int64_t column = 0;
    double  x;
    shape[0] = shape[1] = 0;
    for (;;) {
        const int after = number(&text, &x);
        if (after < 0) return 0;
        if (to) *to++ = x;
        column++;
        if (after == ',') continue;
        if (shape[0]++ == 0) shape[1] = column;
        if (column != shape[1]) return 0; /* rows of different lengths */
        column = 0;
        if (after == 0) return 1;
    }
}

int literal_is(const char *text)
{
    int64_t shape[2];
    return scan(text, shape, NULL);
}

int literal_read(const char *text, io_array *a)
{
    int64_t  shape[2];
    io_error e;
    if (scan(text, shape, NULL)) {
        if (!convert_new(a, IO_F64, 2, shape)) return out_fail(CLI_OUTPUT, "no memory for %s", text);
        scan(text, shape, a->data);
        return CLI_OK;
    }
    if (!io_read(text, a, &e)) return CLI_OK;
    const int code = out_io(&e);
    if (strpbrk(text, ";,") || (code == CLI_UNSUPPORTED && strchr("+-.0123456789", *text)))
        out_fix("a matrix written out has numbers that fit f64, in rows of one length: \"1,0; 0,1\"");
    return code;
}
