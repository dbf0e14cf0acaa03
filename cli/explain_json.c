/* explain_json.c: one row as JSON, every number of it, as attn-explain(1) describes it.
 * SPDX-License-Identifier: MIT
 */
#include "explain.h"

#include <math.h>
#include <stdlib.h>

static json_t *reasons(unsigned hidden)
{
    json_t *list = json_array();
    for (int n = 1; row_reason(n); n++)
        if (hidden >> n & 1) json_array_append_new(list, json_string(row_reason(n)));
    return list;
}

static json_t *token_or_null(char **token, int64_t at)
{
    return token ? json_string(token[at]) : json_null();
}

static json_t *keys(const cli_row *r, const explain_view *v)
{
    const int stage = explain_stage(v);
    json_t   *list = json_array();
    int64_t   count;
    row_key **order = explain_order(r, v, &count);
    if (!order) return json_decref(list), NULL;
    for (int64_t n = 0; n < count; n++) {
        const row_key *k = order[n];
        json_t        *key = json_pack("{s:I, s:o, s:b, s:o}", "key", (json_int_t)k->key, "token", token_or_null(v->token, k->key), "seen",
                                       !k->hidden, "hidden_by", reasons(k->hidden));
        for (int c = 0; c < explain_column_count; c++)
            if (explain_columns[c].stage <= stage) {
                const double x = explain_value(k, &explain_columns[c]);
                json_object_set_new(key, explain_columns[c].name, out_json_real(x));
            }
        if (stage == EXPLAIN_STAGE_OUTPUT) {
            json_t *contribution = json_array();
            for (int64_t c = 0; c < r->desc->value_dim; c++)
                json_array_append_new(contribution, out_json_real(k->weight == 0 ? 0 : k->weight * row_v(r, k->key, c)));
            json_object_set_new(key, "contribution", contribution);
        }
        json_array_append_new(list, key);
    }
    free(order);
    return list;
}

static json_t *position(const cli_row *r)
{
    const attn_desc *d = r->desc;
    const char      *from = d->query_offset                       ? "query_offset"
                            : d->align == ATTN_ALIGN_BOTTOM_RIGHT ? "bottom-right"
                            : d->align == ATTN_ALIGN_TOP_LEFT     ? "top-left"
                                                                  : "not needed";
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "align", from, "offset", (json_int_t)r->offset, "position",
                     (json_int_t)(r->query + r->offset), "query_count", (json_int_t)r->query_count, "key_start", (json_int_t)r->key_start,
                     "key_count", (json_int_t)r->key_count);
}

static json_t *check(const row_check *c, const char *isa)
{
    json_t *list = json_array();
    for (int n = 0; n < 2; n++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:b}", "kernel", isa ? isa : "", "dtype",
                                              attn_dtype_name(c->kernel[n].dtype), "output", out_json_real(c->kernel[n].out), "lse",
                                              out_json_real(c->kernel[n].lse), "weights", out_json_real(c->kernel[n].weight),
                                              "output_accepted", out_json_real(c->kernel[n].out_accepted), "accepted",
                                              out_json_real(c->kernel[n].accepted), "ok", c->kernel[n].ok));
    return list;
}

static json_t *why(const cli_row *r, int64_t key)
{
    json_t *terms = json_array();
    for (int64_t c = 0; c < r->desc->dim; c++) {
        const double q = row_q(r, c), k = row_k(r, key, c);
        json_array_append_new(terms, json_pack("{s:I, s:o, s:o, s:o}", "channel", (json_int_t)c, "q", out_json_real(q), "k",
                                               out_json_real(k), "product", out_json_real(q * k)));
    }
    return json_pack("{s:I, s:o}", "key", (json_int_t)key, "terms", terms);
}

/* What was said of the call, as far as it bears on this row. */
static void put_call(json_t *o, const cli_row *r, const explain_view *v)
{
    const attn_desc *d = r->desc;
    json_object_set_new(o, "sizes",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "batch", (json_int_t)d->batch, "heads", (json_int_t)d->heads,
                                  "kv_heads", (json_int_t)d->kv_heads, "queries", (json_int_t)d->queries, "keys", (json_int_t)d->keys,
                                  "dim", (json_int_t)d->dim, "value_dim", (json_int_t)d->value_dim));
    json_object_set_new(o, "scale", out_json_real(r->scale));
    json_object_set_new(o, "scale_from", json_string(explain_scale_from(r, v)));
    json_object_set_new(o, "softcap", d->softcap > 0 ? out_json_real(d->softcap) : json_null());
    json_object_set_new(o, "causal", json_boolean(d->causal));
    json_object_set_new(o, "window",
                        d->window ? json_pack("[I, I]", (json_int_t)d->window_left, (json_int_t)d->window_right) : json_null());
    json_object_set_new(o, "mask", d->allow.data ? json_string(explain_mask_from(v)) : json_null());
    json_object_set_new(o, "bias", json_boolean(d->bias.data != NULL));
    json_object_set_new(o, "alibi_slope", d->alibi.data ? out_json_real(r->slope) : json_null());
    json_object_set_new(o, "position", position(r));
}

static void put_softmax(json_t *o, const cli_row *r)
{
    json_t *sink = r->desc->sink.data ? json_pack("{s:o, s:o, s:o}", "score", out_json_real(r->sink), "exp", out_json_real(r->sink_exp),
                                                  "weight", out_json_real(r->sink_weight))
                                      : json_null();
    json_object_set_new(o, "sink", sink);
    json_object_set_new(o, "max", out_json_real(r->max));
    json_object_set_new(o, "sum", out_json_real(r->sum));
    json_object_set_new(o, "lse", out_json_real(r->lse));
    json_object_set_new(o, "weights_sum", out_json_real(r->weights));
    json_object_set_new(o, "entropy", out_json_real(r->entropy));
    json_object_set_new(o, "effective_keys", out_json_real(r->effective));
}

json_t *explain_json(const cli_row *r, const explain_view *v)
{
    const int stage = explain_stage(v);
    json_t   *list = keys(r, v), *out = json_array(), *o;
    if (!list) return json_decref(out), NULL;
    o = json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:s, s:o}", "attn_explain", 1, "library", attn_version_text(), "batch",
                  (json_int_t)r->batch, "head", (json_int_t)r->head, "kv_head", (json_int_t)r->kv_head, "query", (json_int_t)r->query,
                  "dtype", attn_dtype_name(r->desc->q.dtype), "token", token_or_null(v->query_token, r->query));
    put_call(o, r, v);
    json_object_set_new(o, "keys_seen", json_integer(r->seen));
    json_object_set_new(o, "left_out", json_integer(r->desc->keys - (int64_t)json_array_size(list)));
    json_object_set_new(o, "keys", list);
    if (stage >= EXPLAIN_STAGE_WEIGHT) put_softmax(o, r);
    for (int64_t c = 0; c < r->desc->value_dim; c++) json_array_append_new(out, out_json_real(r->out[c]));
    if (stage == EXPLAIN_STAGE_OUTPUT) json_object_set(o, "output", out);
    json_decref(out);
    if (v->why) json_object_set_new(o, "why", why(r, v->why - 1));
    if (v->check) json_object_set_new(o, "check", check(v->check, v->isa));
    json_object_set_new(o, "note", json_string(EXPLAIN_NOTE));
    return o;
}
