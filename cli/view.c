/* view.c: the command's own tables as text for a caller in the same process; the Python package loads them as the library attn_view.
 * SPDX-License-Identifier: MIT
 *
 * Private to the package of the same version: no header, no promise. Texts are JSON, malloc'ed, NULL where memory is out.
 */
#include "explain.h"

#include <stdlib.h>

ATTN_API char *attn_view_explain(const attn_desc *desc, const int64_t place[3], int64_t top, int64_t why, int32_t sort, int32_t stage,
                                 char **token, char **query_token);
ATTN_API void  attn_view_free(char *text);

/* One row of a call that attn_check() accepts: place is batch entry, head, query. top 0: all keys; why -1: no key; stage 0: all steps, else
 * ATTN_STAGE_* + 1; token and query_token: names of all keys and queries, or NULL. */
char *attn_view_explain(const attn_desc *desc, const int64_t place[3], int64_t top, int64_t why, int32_t sort, int32_t stage, char **token,
                        char **query_token)
{
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
    char        *text = NULL;
    int          code = row_open(&row, desc, place[0], place[1], place[2]);
    if (!code) code = row_check_run(&check, &row);
    if (!code) result = explain_json(&row, &view);
    if (result) text = json_dumps(result, JSON_COMPACT);
    json_decref(result);
    row_close(&row);
    return text;
}

void attn_view_free(char *text)
{
    free(text);
}
