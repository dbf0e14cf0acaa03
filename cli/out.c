/* out.c: what the command says: failures, notes, results as JSON.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static char name[32] = "attn";
static int  silent;

static _Thread_local FILE *diverted;

void out_divert(FILE *to)
{
    diverted = to;
}

void out_name(const char *subcommand, int quiet)
{
    snprintf(name, sizeof name, "attn %s", subcommand);
    silent = quiet;
}

static void say(const char *before, const char *format, va_list arguments)
{
    FILE *const to = diverted ? diverted : stderr;
    fflush(stdout); /* so that both streams read in order on one terminal */
    if (!diverted) fputs(before, to);
    vfprintf(to, format, arguments);
    fputc('\n', to);
}

int out_fail(int code, const char *format, ...)
{
    char before[40];
    snprintf(before, sizeof before, "%s: ", name);
    va_list arguments;
    va_start(arguments, format);
    say(before, format, arguments);
    va_end(arguments);
    return code;
}

void out_read(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say("  read: ", format, arguments);
    va_end(arguments);
}

void out_fix(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say("  fix: ", format, arguments);
    va_end(arguments);
}

void out_note(const char *format, ...)
{
    if (silent || diverted) return;
    char before[40];
    snprintf(before, sizeof before, "%s: ", name);
    va_list arguments;
    va_start(arguments, format);
    say(before, format, arguments);
    va_end(arguments);
}

int out_io(const io_error *e)
{
    static const int code[] = {CLI_OK, CLI_INPUT, CLI_UNSUPPORTED, CLI_OUTPUT, CLI_OUTPUT};
    const int        known = e->status >= 0 && e->status <= IO_E_MEMORY;
    return out_fail(known ? code[e->status] : CLI_INTERNAL, "%s", e->message);
}

int out_index(const char *option, int64_t value, int64_t count)
{
    if (value < count) return CLI_OK;
    if (count == 0) return out_fail(CLI_USAGE, "--%s %lld: there is none", option, (long long)value);
    return out_fail(CLI_USAGE, "--%s %lld: there are %lld, from 0 to %lld", option, (long long)value, (long long)count,
                    (long long)count - 1);
}

int out_library(const attn_error *e)
{
    static const int core[] = {CLI_OK, CLI_FIT, CLI_UNSUPPORTED, CLI_INTERNAL, CLI_OUTPUT, CLI_INTERNAL, CLI_OUTPUT};
    static const int layer[] = {CLI_INTERNAL, CLI_FIT,   CLI_UNSUPPORTED, CLI_INTERNAL, CLI_OUTPUT,
                                CLI_INTERNAL, CLI_INPUT, CLI_FIT,         CLI_FIT};
    int              code = CLI_INTERNAL;
    if (e->status >= 0 && e->status <= ATTN_E_THREAD) code = core[e->status];
    if (e->status > 100 && e->status <= ATTN_LAYER_E_HEADS) code = layer[e->status - 100];
    return out_fail(code, "%s", e->message);
}

int out_finish(int code)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        const int failed = out_fail(CLI_OUTPUT, "stdout cannot be written");
        return code == CLI_OK || code == CLI_CHECK ? failed : code;
    }
    return code;
}

int out_colour(void)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM"); /* https://no-color.org: any value but an empty one */
    return isatty(STDOUT_FILENO) && !(no && *no) && !(term && strcmp(term, "dumb") == 0);
}

void out_thousands(char text[32], int64_t value)
{
    char      digits[24];
    const int length = snprintf(digits, sizeof digits, "%lld", (long long)value);
    char     *to = text;
    for (int i = 0; i < length; i++) {
        *to++ = digits[i];
        if (digits[i] != '-' && i + 1 < length && (length - 1 - i) % 3 == 0) *to++ = ',';
    }
    *to = 0;
}

const char *out_shape(char text[160], const int64_t *shape, int rank)
{
    char *to = text;
    *to++ = '(';
    for (int i = 0; i < rank; i++) to += sprintf(to, i ? ", %lld" : "%lld", (long long)shape[i]);
    strcpy(to, ")");
    return text;
}

json_t *out_json_open(const char *subcommand)
{
    char format[40];
    snprintf(format, sizeof format, "attn %s", subcommand);
    return json_pack("{s:s, s:i}", "format", format, "version", 1);
}

json_t *out_json_real(double x)
{
    return isfinite(x) ? json_real(x) : json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
}

json_t *out_json_shape(const int64_t *shape, int rank)
{
    json_t *list = json_array();
    for (int i = 0; i < rank; i++) json_array_append_new(list, json_integer(shape[i]));
    return list;
}

static json_t *nested(const io_array *a, int axis, int64_t at)
{
    if (axis == a->rank) return out_json_real(io_get(a, at));
    json_t *list = json_array();
    for (int64_t i = 0; i < a->shape[axis]; i++) json_array_append_new(list, nested(a, axis + 1, at + i * a->stride[axis]));
    return list;
}

json_t *out_json_array(const io_array *a)
{
    return nested(a, 0, 0);
}

int out_json(json_t *result)
{
    if (!result) return out_fail(CLI_OUTPUT, "no memory for the result");
    const int failed = json_dumpf(result, stdout, JSON_INDENT(2));
    fputc('\n', stdout);
    json_decref(result);
    return failed ? out_fail(CLI_OUTPUT, "stdout cannot be written") : CLI_OK;
}
