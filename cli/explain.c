/* explain.c: attn explain: one row of attention with every number of it.
 * SPDX-License-Identifier: MIT
 */
#include "explain.h"

/* What is explained: tensors of files or literals, or those inside a layer of a checkpoint. */
typedef struct subject {
    cli_call  files;
    cli_layer layer;
    cli_call *call; /* one of the two */
    char    **token, **query_token;
    int64_t   tokens, query_tokens;
} subject;

static int usage(const cli_options *o)
{
    const int named = o->q || o->k || o->v;
    if (named && !(o->q && o->k && o->v))
        return out_fail(CLI_USAGE, "--q, --k and --v go together; --%c is missing", o->q ? o->k ? 'v' : 'k' : 'q');
    if (named && o->operands)
        return out_fail(CLI_USAGE, "--q, --k and --v stand in place of Q K V; %d operands are given too", o->operands);
    if (!named && o->operands != 1 && o->operands != 3) {
        out_fail(CLI_USAGE, "takes Q K V, or the FILE of a checkpoint, or --q, --k and --v; %d operands given", o->operands);
        out_fix("attn explain --q \"1,0\" --k \"1,0; 0,1\" --v \"10,0; 0,10\" shows what comes out");
        return CLI_USAGE;
    }
    if (o->operands != 1 && (o->layer.given || o->prefix || o->input || o->kv_input || o->kv_heads.given))
        return out_fail(CLI_USAGE, "--layer, --prefix, --input, --kv-input and --kv-heads go with the FILE of a checkpoint");
    if (o->operands == 1 && (o->layout || o->dtype)) return out_fail(CLI_USAGE, "--layout and --dtype are for Q K V, not for a checkpoint");
    if (o->json && o->csv) return out_fail(CLI_USAGE, "--json and --csv: one or the other");
    if ((o->json || o->csv) && (o->digits.given || o->channels.count))
        return out_fail(CLI_USAGE, "--digits and --channels are for the table; --json and --csv have all of both");
    if (o->stage && o->channels.count) return out_fail(CLI_USAGE, "--channels are of the output, before which --stage stops");
    if (o->csv && o->why.given) return out_fail(CLI_USAGE, "--why goes with the table or --json, not with --csv");
    return CLI_OK;
}

static int open_subject(subject *s, const cli_options *o)
{
    attn_error e;
    int        code;
    s->call = o->operands == 1 ? &s->layer.call : &s->files;
    if (o->operands != 1) {
        code = call_open(&s->files, o);
    } else {
        code = layer_open(&s->layer, o);
        if (!code) code = call_threads_open(s->call);
        if (!code) code = layer_project(&s->layer);
    }
    if (!code && attn_check(&s->call->desc, &e)) code = call_refused(s->call, &e);
    return code;
}

/* Which batch entry, head or query: said, or the only one. */
static int choose(const char *option, const cli_count *said, int64_t count, int64_t *at)
{
    *at = said->value;
    if (count == 0) return out_fail(CLI_FIT, "--%s: there is none to explain", option);
    if (!said->given && count > 1)
        return out_fail(CLI_USAGE, "--%s N is missing: there are %lld, from 0 to %lld", option, (long long)count, (long long)count - 1);
    return out_index(option, *at, count);
}

static int name_positions(subject *s, const cli_options *o, explain_view *v)
{
    const attn_desc *d = &s->call->desc;
    int              code = labels_read("--tokens", o->token_file, d->keys, &s->token, &s->tokens);
    if (!code) code = labels_read("--query-tokens", o->query_token_file, d->queries, &s->query_token, &s->query_tokens);
    v->token = s->token;
    v->query_token = s->query_token ? s->query_token : d->queries == d->keys && !o->kv_input ? s->token : NULL;
    return code;
}

static int look(subject *s, const cli_options *o, explain_view *v, cli_row *r)
{
    const attn_desc *d = &s->call->desc;
    int64_t          batch, head, row, why;
    int              code = choose("entry", &o->entry, d->batch, &batch);
    if (!code) code = choose("head", &o->head, d->heads, &head);
    if (!code) code = choose("row", &o->row, d->queries, &row);
    if (!code && o->why.given) code = choose("why", &o->why, d->keys, &why);
    if (!code && o->channels.count > EXPLAIN_CHANNELS)
        code = out_fail(CLI_USAGE, "--channels: %lld given, the table holds %d", (long long)o->channels.count, EXPLAIN_CHANNELS);
    for (int64_t n = 0; n < o->channels.count && !code; n++) code = out_index("channels", o->channels.at[n], d->value_dim);
    if (!code) code = name_positions(s, o, v);
    if (!code) code = row_open(r, d, batch, head, row);
    return code;
}

int explain_main(const cli_options *o)
{
    char        *named[3] = {(char *)o->q, (char *)o->k, (char *)o->v};
    cli_options  settled = *o;
    subject      s = {0};
    cli_row      r = {0};
    row_check    check;
    explain_view v = {.top = o->top.value,
                      .why = o->why.given ? o->why.value + 1 : 0,
                      .sort = o->sort ? o->sort - 1 : EXPLAIN_BY_KEY,
                      .stage = o->stage,
                      .digits = o->digits.given ? (int)o->digits.value : 3,
                      .channels = &o->channels,
                      .scale_from = o->scale.given ? "said with --scale" : NULL,
                      .mask_from = o->hide ? "said with --hide: true = hidden" : "said with --allow: true = may be seen",
                      .check = &check};
    int          code = usage(o);
    if (o->q) settled.operand = named, settled.operands = 3;
    settled.stage = 0; /* the table's, and not that of a file of weights */
    if (!code) code = open_subject(&s, &settled);
    if (!code) code = look(&s, o, &v, &r);
    if (!code) code = row_check_run(&check, &r);
    if (!code) {
        v.isa = call_isa(s.call);
        code = o->csv ? explain_csv(&r, &v) : o->json ? out_json(explain_json(&r, &v)) : explain_print(&r, &v);
    }
    if (!code && !(check.kernel[0].ok && check.kernel[1].ok)) code = CLI_CHECK;
    row_close(&r);
    labels_free(s.token, s.tokens), labels_free(s.query_token, s.query_tokens);
    if (s.call == &s.files) call_close(&s.files);
    if (s.call == &s.layer.call) layer_close(&s.layer);
    return code;
}
