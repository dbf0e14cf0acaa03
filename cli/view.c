/* view.c: the command's own tables as text for a caller in the same process; the Python package loads them as the library attn_view.
 * SPDX-License-Identifier: MIT
 *
 * Private to the package of the same version: no header, no promise. Every function takes a call that attn_check() accepts and returns a malloc'ed
 * text, of which the first byte tells what follows: '{' JSON, '!' the sentence why there is none.
 */
#include "explain.h"
#include "show.h"

#include <stdlib.h>

ATTN_API char *attn_view_explain(const attn_desc *desc, const int64_t place[3], int64_t top, int64_t why, int32_t sort, int32_t stage,
                                 char **token, char **query_token);
ATTN_API char *attn_view_check(const attn_desc *desc, const attn_in want[3], const double *tolerance);
ATTN_API char *attn_view_show(const attn_desc *desc, const attn_in *weights, const int64_t size[4], const int64_t at[2],
                              const int32_t how[2], const char *name, const char *const path[3], char **token, char **query_token);
ATTN_API void  attn_view_free(char *text);

/* ---- what is said on the way ------------------------------------------------------------------------------------------------------ */

typedef struct said {
    FILE  *file;
    char  *text;
    size_t length;
} said;

static int listen(said *s)
{
    *s = (said){0};
    s->file = open_memstream(&s->text, &s->length);
    if (!s->file) return 0;
    fputc('!', s->file);
    out_divert(s->file);
    return 1;
}

/* The text of the result, which is released, or what was said if there is none. */
static char *answer(said *s, json_t *result)
{
    char *text = result ? json_dumps(result, JSON_COMPACT) : NULL;
    json_decref(result);
    out_divert(NULL);
    fclose(s->file);
    if (!text) return s->text;
    free(s->text);
    return text;
}

/* ---- tables ----------------------------------------------------------------------------------------------------------------------- */

/* One row: place is batch entry, head, query. top 0: all keys; why -1: no key; stage 0: all steps, else ATTN_STAGE_* + 1; token and query_token:
 * names of all keys and queries, or NULL. */
char *attn_view_explain(const attn_desc *desc, const int64_t place[3], int64_t top, int64_t why, int32_t sort, int32_t stage, char **token,
                        char **query_token)
{
    said         s;
    cli_call     call = {.desc = *desc};
    cli_row      row;
    row_check    check;
    explain_view view = {.token = token,
                         .query_token = query_token,
                         .isa = call_isa(&call),
                         .check = &check,
                         .top = top,
                         .why = why + 1,
                         .sort = sort,
                         .stage = stage};
    json_t      *result = NULL;
    if (!listen(&s)) return NULL;
    int code = row_open(&row, desc, place[0], place[1], place[2]);
    if (!code) code = row_check_run(&check, &row);
    if (!code) result = explain_json(&row, &view);
    row_close(&row);
    return answer(&s, result);
}

/* An array of the caller's as the operator's axes see it. */
static cli_view seen_as(const char *name, const attn_in *in, const int64_t size[4])
{
    cli_view v = {name, {.data = (void *)in->data, .dtype = in->dtype, .rank = 4}, {0}, {0}};
    for (int a = 0; a < 4; a++) v.size[a] = v.array.shape[a] = size[a], v.stride[a] = v.array.stride[a] = in->stride[a];
    return v;
}

/* Somebody else's out, lse and weights (data NULL where not given) beside the library's own; tolerance: absolute and relative, NULL: the table's. */
char *attn_view_check(const attn_desc *desc, const attn_in want[3], const double *tolerance)
{
    static const char *const name[] = {"out", "lse", "weights"};
    const int32_t            real = desc->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    const int64_t            last[] = {desc->value_dim, 1, desc->keys};
    cli_options              options = {0};
    cli_call                 call = {.options = &options, .desc = *desc, .layout = "bhsd"};
    cli_view                 others[3] = {0};
    said                     s;
    json_t                  *result = NULL;
    if (tolerance) options.tolerance = (cli_real_pair){tolerance[0], tolerance[1], 1};
    for (int n = 0; n < 3; n++) {
        const int64_t size[4] = {desc->batch, desc->heads, desc->queries, last[n]};
        if (want[n].data) others[n] = seen_as(name[n], &want[n], size);
    }
    if (!listen(&s)) return NULL;
    const int64_t shape[4] = {desc->batch, desc->heads, desc->queries, desc->value_dim};
    if (convert_new(&call.out, desc->q.dtype, 4, shape) && convert_new(&call.lse, real, 3, shape)) {
        call.desc.out = attn_out_dense(call.out.data, desc->q.dtype, desc->heads, desc->queries, desc->value_dim);
        call.desc.lse = attn_out_dense(call.lse.data, real, desc->heads, desc->queries, 1);
        call.desc.lse.stride[3] = 0;
        result = check_call(&call, others);
    } else {
        out_fail(CLI_OUTPUT, "no memory for the results");
    }
    io_free(&call.out), io_free(&call.lse);
    return answer(&s, result);
}

/* ---- pictures --------------------------------------------------------------------------------------------------------------------- */

/* Writes the weights of a call, or those of an array of that size where desc is NULL, as PNG, SVG and a page to the paths that are not NULL.
 * at: batch entry, and the one head to show or -1; how: whether colours are logarithmic, whether cells hold the largest weight. */
char *attn_view_show(const attn_desc *desc, const attn_in *weights, const int64_t size[4], const int64_t at[2], const int32_t how[2],
                     const char *name, const char *const path[3], char **token, char **query_token)
{
    cli_options options = {.entry = {at[0], 1}, .head = {at[1], at[1] >= 0}, .log = how[0], .largest = how[1]};
    cli_call    call = {.options = &options};
    cli_show    show;
    cli_view    stored = {0};
    said        s;
    options.png = path[0], options.svg = path[1], options.html = path[2];
    if (desc) {
        call.desc = *desc;
        options.causal = desc->causal;
        options.window = (cli_pair){desc->window_left, desc->window_right, desc->window};
    } else {
        stored = seen_as(name, weights, size);
    }
    if (!listen(&s)) return NULL;
    int code = show_open_memory(&show, &options, desc ? &call : NULL, &stored.array, name);
    show.key_token = token, show.query_token = query_token;
    if (!code) code = show_files(&show);
    free(show.layer), free(show.head);
    return answer(&s, code ? NULL : json_object());
}

void attn_view_free(char *text)
{
    free(text);
}
