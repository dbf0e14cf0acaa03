/* run.c: attn run: the operator on files.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <math.h>
#include <time.h>

double run_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int run_write(int count, const char *const path[], const io_array *const array[])
{
    enum { MOST = 3 };
    io_output output[MOST] = {{0}};
    io_error  e;
    int       code = CLI_OK;
    for (int n = 0; n < count && !code; n++)
        if (path[n] && io_write_open(&output[n], path[n], array[n], &e)) code = out_io(&e);
    for (int n = 0; n < count && !code; n++)
        if (path[n] && io_output_commit(&output[n], &e)) code = out_io(&e);
    for (int n = 0; n < count; n++) io_output_discard(&output[n]);
    return code;
}

/* Matrices as comma-separated rows; each but a lone one under its place along the outer axes. */
void run_print(const io_array *a)
{
    int64_t   index[IO_MAX_RANK] = {0};
    const int rank = a->rank;
    for (int64_t i = 0, n = convert_count(a); i < n; i++) {
        if (rank > 2 && index[rank - 1] == 0 && index[rank - 2] == 0) {
            printf("#");
            for (int x = 0; x < rank - 2; x++) printf(" %lld", (long long)index[x]);
            printf("\n");
        }
        const double x = io_get(a, convert_at(a, index));
        if (isnan(x))
            printf("nan"); /* printf would show its sign bit, which means nothing */
        else
            printf("%.6g", x);
        const int more = convert_next(a, index);
        putchar(more && index[rank - 1] ? ',' : '\n');
    }
}

/* Rows of the result that see no key (lse -inf), and rows whose lse is NaN. */
static void count_rows(const io_array *lse, int64_t *empty, int64_t *nan)
{
    *empty = *nan = 0;
    for (int64_t i = 0, n = convert_count(lse); i < n; i++) {
        const double x = io_get(lse, i);
        *empty += x == -INFINITY;
        *nan += isnan(x);
    }
}

json_t *run_json_result(const char *path, const io_array *a)
{
    json_t *o = json_object();
    if (path) json_object_set_new(o, "file", json_string(path));
    json_object_set_new(o, "dtype", json_string(io_dtype_name(a->dtype)));
    json_object_set_new(o, "shape", out_json_shape(a->shape, a->rank));
    if (!path) json_object_set_new(o, "values", out_json_array(a));
    return o;
}

static int print_json(const cli_call *c, double seconds)
{
    const cli_options *o = c->options;
    const attn_desc   *d = &c->desc;
    int64_t            empty, nan;
    json_t            *result = out_json_open("run");
    count_rows(&c->lse, &empty, &nan);
    json_object_set_new(result, "layout", json_string(c->layout));
    json_object_set_new(result, "sizes",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "batch", (json_int_t)d->batch, "heads", (json_int_t)d->heads,
                                  "kv_heads", (json_int_t)d->kv_heads, "queries", (json_int_t)d->queries, "keys", (json_int_t)d->keys,
                                  "dim", (json_int_t)d->dim, "value_dim", (json_int_t)d->value_dim));
    json_object_set_new(result, "isa", json_string(call_isa(c)));
    json_object_set_new(result, "threads", json_integer(c->threads));
    json_object_set_new(result, "seconds", json_real(seconds));
    json_object_set_new(result, "rows_that_see_no_key", json_integer(empty));
    json_object_set_new(result, "rows_of_nan", json_integer(nan));
    json_object_set_new(result, "out", run_json_result(o->output, &c->out));
    if (o->lse) json_object_set_new(result, "lse", run_json_result(o->lse, &c->lse));
    if (o->weights) json_object_set_new(result, "weights", run_json_result(o->weights, &c->weights));
    return out_json(result);
}

static void summary(const cli_call *c, double seconds)
{
    char    shape[160];
    int64_t empty, nan;
    count_rows(&c->lse, &empty, &nan);
    out_note("%s %s%s%s; %lld of %lld rows see no key, %lld are NaN; %.3f ms, %s, %d thread%s", io_dtype_name(c->out.dtype),
             out_shape(shape, c->out.shape, c->out.rank), c->options->output ? " in " : "", c->options->output ? c->options->output : "",
             (long long)empty, (long long)convert_count(&c->lse), (long long)nan, 1e3 * seconds, call_isa(c), c->threads,
             c->threads == 1 ? "" : "s");
}

int run_main(const cli_options *o)
{
    cli_call c;
    int      code = call_open(&c, o);
    double   seconds = run_seconds();
    if (!code) code = call_run(&c);
    seconds = run_seconds() - seconds;
    if (!code)
        code = run_write(3, (const char *const[]){o->lse, o->weights, o->output}, (const io_array *const[]){&c.lse, &c.weights, &c.out});
    if (!code) summary(&c, seconds);
    if (!code && o->json)
        code = print_json(&c, seconds);
    else if (!code && !o->output)
        run_print(&c.out);
    call_close(&c);
    return code;
}
