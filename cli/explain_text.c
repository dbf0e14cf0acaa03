/* explain_text.c: all that is said of one row around its table: what was given, where the row stands, softmax, output, check, one key's terms.
 * SPDX-License-Identifier: MIT
 */
#include "explain.h"

#include <math.h>

const char *explain_scale_from(const cli_row *r, const explain_view *v)
{
    return v->scale_from ? v->scale_from : r->desc->scale_given ? "said by the caller" : "1 / sqrt(dim) by default";
}

const char *explain_mask_from(const explain_view *v)
{
    return v->mask_from ? v->mask_from : "true = may be seen";
}

/* ---- what was given ----------------------------------------------------------------------------------------------------------------- */

static void say(const char *what, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const char *what, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("  %-9s ", what);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

static void say_row(const cli_row *r, const explain_view *v)
{
    const attn_desc *d = r->desc;
    const int64_t    group = d->heads / d->kv_heads;
    printf("Query %lld", (long long)r->query);
    if (v->query_token) printf(" (%s)", v->query_token[r->query]);
    printf(" of head %lld", (long long)r->head);
    if (d->batch > 1) printf(" of batch entry %lld", (long long)r->batch);
    if (group > 1) printf(", which reads key head %lld (%lld query heads share one)", (long long)r->kv_head, (long long)group);
    printf(", %s\n", attn_dtype_name(d->q.dtype));
}

static void say_position(const cli_row *r)
{
    const attn_desc *d = r->desc;
    const long long  place = r->query + r->offset, i = r->query, offset = r->offset;
    if (d->query_offset)
        say("position", "query offset %lld: query %lld stands at place %lld", offset, i, place);
    else if (d->align == ATTN_ALIGN_BOTTOM_RIGHT)
        say("position", "bottom-right: offset %lld = %lld keys - %lld queries; query %lld stands at place %lld", offset,
            (long long)r->key_count, (long long)r->query_count, i, place);
    else if (d->align == ATTN_ALIGN_TOP_LEFT)
        say("position", "top-left: query %lld stands at place %lld", i, place);
    else if (d->causal || d->window || d->alibi.data)
        say("position", "as many queries as keys: query %lld stands at place %lld", i, place);
    if (r->key_start || r->key_count < d->keys)
        say("length", "keys %lld to %lld are in use; place 0 is key %lld", (long long)r->key_start,
            (long long)(r->key_start + r->key_count) - 1, (long long)r->key_start);
    if (r->query >= r->query_count) say("length", "%lld queries are in use: this one is padding", (long long)r->query_count);
}

static void say_given(const cli_row *r, const explain_view *v)
{
    const attn_desc *d = r->desc;
    char             number[EXPLAIN_CELL], window[64] = "";
    explain_number(number, r->scale, v->digits);
    say("scale", "%s, %s", number, explain_scale_from(r, v));
    if (d->softcap > 0) say("softcap", "%g: scores become %g * tanh(scaled / %g)", d->softcap, d->softcap, d->softcap);
    if (d->window) snprintf(window, sizeof window, "window %lld,%lld", (long long)d->window_left, (long long)d->window_right);
    say("masks", "%s%s%s%s%s%s%s", d->causal ? "causal" : "", d->causal && d->window ? ", " : "", window,
        (d->causal || d->window) && d->allow.data ? ", " : "", d->allow.data ? "a mask, " : "", d->allow.data ? explain_mask_from(v) : "",
        d->causal || d->window || d->allow.data ? "" : "none");
    if (d->bias.data) say("bias", "added to the scores; -inf hides");
    if (d->alibi.data) say("alibi", "slope %g: -slope * |key's place - query's place| is added", r->slope);
    say_position(r);
}

/* ---- what comes out ------------------------------------------------------------------------------------------------------------------ */

/* Which score spoils the row: the first that is NaN or +inf. */
static void say_spoilt(const cli_row *r, const explain_view *v)
{
    char    number[EXPLAIN_CELL], key[48] = "sink";
    double  x = r->sink;
    int64_t j = 0;
    while (j < r->desc->keys && (r->key[j].hidden || r->key[j].score < INFINITY)) j++;
    if (j < r->desc->keys) snprintf(key, sizeof key, "score of key %lld", (long long)j), x = r->key[j].score;
    explain_number(number, x, v->digits);
    say("softmax", "the %s is %s, so that the sum, lse and every weight of this row are NaN", key, number);
}

static void say_softmax(const cli_row *r, const explain_view *v)
{
    char         number[6][EXPLAIN_CELL];
    const double x[] = {r->max, r->sum, r->lse, r->weights, r->entropy, r->effective};
    for (int n = 0; n < 6; n++) explain_number(number[n], x[n], v->digits);
    if (r->sum == 0) {
        say("softmax", "%s: the output is 0 and lse is -inf, by definition", r->seen ? "every score is -inf" : "no key is seen");
        return;
    }
    if (isnan(r->sum)) {
        say_spoilt(r, v);
        return;
    }
    say("max", "%s, the largest score; it is subtracted first, which changes no weight", number[0]);
    say("sum", "%s of the exponentials%s; lse = max + ln sum = %s", number[1], r->sink_exp > 0 ? ", the sink's too" : "", number[2]);
    if (r->sink_exp > 0) say("weights", "%s on keys; the rest is the sink's, which has no value", number[3]);
    if (r->weights != 0)
        say("entropy", "%s nats%s as spread out as %s keys of equal weight", number[4],
            r->sink_exp > 0 ? "; the keys' weights, made to sum to 1, are" : ":", number[5]);
}

static void say_output(const cli_row *r, const explain_view *v)
{
    enum { ON_A_LINE = 8 };
    char text[EXPLAIN_CELL];
    for (int64_t c = 0; c < r->desc->value_dim; c++) {
        explain_number(text, r->out[c], v->digits);
        printf(c == 0 ? "  output    %s" : c % ON_A_LINE ? ", %s" : ",\n            %s", text);
    }
    printf(r->desc->value_dim ? "\n" : "  output    no channels\n");
}

static void say_check(const row_check *c, const char *isa)
{
    for (int n = 0; n < 2; n++) {
        if (n && c->kernel[0].dtype == ATTN_F64) break; /* the same kernel again */
        say(n ? "" : "check", "%s kernel in %s: output differs by %.2g (accepted %.2g), lse by %.2g, weights by %.2g (%.2g): %s", isa,
            attn_dtype_name(c->kernel[n].dtype), c->kernel[n].out, c->kernel[n].out_accepted, c->kernel[n].lse, c->kernel[n].weight,
            c->kernel[n].accepted, c->kernel[n].ok ? "ok" : "WRONG");
    }
}

/* ---- one key, term by term ------------------------------------------------------------------------------------------------------------ */

static void say_dot(const cli_row *r, const explain_view *v, const row_key *k)
{
    char    text[3][EXPLAIN_CELL];
    int64_t units = 0;
    printf("  %9s  %12s  %12s  %12s\n", "channel", "q", "k", "q * k");
    for (int64_t c = 0; c < r->desc->dim; c++) {
        const double x[] = {row_q(r, c), row_k(r, k->key, c), row_q(r, c) * row_k(r, k->key, c)};
        for (int n = 0; n < 3; n++) explain_number(text[n], x[n], v->digits);
        printf("  %9lld  %12s  %12s  %12s\n", (long long)c, text[0], text[1], text[2]);
        explain_add(&units, text[2]);
    }
    explain_number(text[0], k->dot, v->digits);
    if (explain_rest(text[1], text[0], units, v->digits)) printf("  %9s  %40s\n", "rounding", text[1]);
    printf("  %9s  %40s\n", "q.k", text[0]);
}

static void say_weight(const cli_row *r, const explain_view *v, const row_key *k)
{
    enum { SCALE, DOT, SCALED, CAPPED, BIAS, ALIBI, SCORE, MAX, LESS, EXP, SUM, WEIGHT, COUNT };
    const attn_desc *d = r->desc;
    const int        stage = explain_stage(v);
    const double     x[COUNT] = {r->scale, k->dot, k->scaled,   k->capped, k->bias, k->alibi,
                                 k->score, r->max, k->less_max, k->exp,    r->sum,  k->weight};
    char             t[COUNT][EXPLAIN_CELL], why[80];
    for (int n = 0; n < COUNT; n++) explain_number(t[n], x[n], v->digits);
    say("scaled", "scale * q.k = %s * %s = %s", t[SCALE], t[DOT], t[SCALED]);
    if (d->softcap > 0 && stage >= ATTN_STAGE_CAPPED)
        say("capped", "%g * tanh(%s / %g) = %s", d->softcap, t[SCALED], d->softcap, t[CAPPED]);
    if (stage < ATTN_STAGE_BIASED) return;
    if (k->hidden) {
        say("weight", "0: not seen (%s)", row_why(why, k->hidden, ", "));
        return;
    }
    if (d->bias.data || d->alibi.data) say("score", "%s + bias %s + alibi %s = %s", t[CAPPED], t[BIAS], t[ALIBI], t[SCORE]);
    if (stage < EXPLAIN_STAGE_WEIGHT) return;
    say("exp", "exp(%s - max %s) = exp(%s) = %s", t[SCORE], t[MAX], t[LESS], t[EXP]);
    say("weight", "exp / sum = %s / %s = %s", t[EXP], t[SUM], t[WEIGHT]);
}

static void say_why(const cli_row *r, const explain_view *v)
{
    const row_key *k = &r->key[v->why - 1];
    char           text[2][EXPLAIN_CELL];
    printf("\nKey %lld", (long long)k->key);
    if (v->token) printf(" (%s)", v->token[k->key]);
    printf(", term by term\n");
    say_dot(r, v, k);
    say_weight(r, v, k);
    if (k->weight == 0 || explain_stage(v) < EXPLAIN_STAGE_OUTPUT) return;
    printf("  %9s  %12s  %12s\n", "channel", "v", "weight * v");
    for (int64_t c = 0; c < r->desc->value_dim; c++) {
        explain_number(text[0], row_v(r, k->key, c), v->digits), explain_number(text[1], k->weight * row_v(r, k->key, c), v->digits);
        printf("  %9lld  %12s  %12s\n", (long long)c, text[0], text[1]);
    }
}

int explain_print(const cli_row *r, const explain_view *v)
{
    const int stage = explain_stage(v);
    say_row(r, v);
    say_given(r, v);
    printf("\n");
    const int code = explain_table(r, v);
    if (code) return code;
    printf("\n");
    if (stage >= EXPLAIN_STAGE_WEIGHT) say_softmax(r, v);
    if (stage >= EXPLAIN_STAGE_OUTPUT) say_output(r, v);
    if (v->check) say_check(v->check, v->isa);
    if (v->why) say_why(r, v);
    if (stage >= EXPLAIN_STAGE_WEIGHT) printf("  W%s.\n", &EXPLAIN_NOTE[1]);
    return CLI_OK;
}
