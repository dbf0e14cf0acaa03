/* explain_table.c: the table of one row: which numbers stand in it, in which order; as text whose columns add up, and as .csv.
 * SPDX-License-Identifier: MIT
 *
 * Every number is rounded on its own. What a column of rounded numbers lacks to its rounded total is a line of its own, "rounding", so that
 * whoever adds up what is printed gets exactly what is printed.
 */
#include "explain.h"

#include <math.h>
#include <stdlib.h>

const explain_column explain_columns[] = {
    {"dot", "q.k", offsetof(row_key, dot), ATTN_STAGE_SCALED, 0},
    {"scaled", "scaled", offsetof(row_key, scaled), ATTN_STAGE_SCALED, 0},
    {"capped", "capped", offsetof(row_key, capped), ATTN_STAGE_CAPPED, 0},
    {"bias", "bias", offsetof(row_key, bias), ATTN_STAGE_BIASED, 0},
    {"alibi", "alibi", offsetof(row_key, alibi), ATTN_STAGE_BIASED, 0},
    {"score", "score", offsetof(row_key, score), ATTN_STAGE_BIASED, 0},
    {"less_max", "s-max", offsetof(row_key, less_max), EXPLAIN_STAGE_WEIGHT, 0},
    {"exp", "exp", offsetof(row_key, exp), EXPLAIN_STAGE_WEIGHT, 1},
    {"weight", "weight", offsetof(row_key, weight), EXPLAIN_STAGE_WEIGHT, 1},
    {"value_size", "|v|", offsetof(row_key, value_size), EXPLAIN_STAGE_OUTPUT, 0},
    {"contribution_size", "w|v|", offsetof(row_key, contribution_size), EXPLAIN_STAGE_OUTPUT, 0},
    {"share", "share", offsetof(row_key, share), EXPLAIN_STAGE_OUTPUT, 1},
};

enum { DOT, SCALED, CAPPED, BIAS, ALIBI, SCORE, LESS_MAX, EXP, WEIGHT, VALUE_SIZE, CONTRIBUTION_SIZE, SHARE, NAMED }; /* places in it */

const int explain_column_count = NAMED;

double explain_value(const row_key *k, const explain_column *c)
{
    return *(const double *)((const char *)k + c->at);
}

int explain_stage(const explain_view *v)
{
    static const int order[] = {EXPLAIN_STAGE_OUTPUT, EXPLAIN_STAGE_WEIGHT, ATTN_STAGE_SCALED, ATTN_STAGE_CAPPED, ATTN_STAGE_BIASED};
    return order[v->stage];
}

/* ---- which keys, in which order ---------------------------------------------------------------------------------------------------- */

static double sort_value(const row_key *k, int by)
{
    const double x = by == EXPLAIN_BY_SCORE ? k->score : by == EXPLAIN_BY_SHARE ? k->share : k->weight;
    return isnan(x) ? INFINITY : x; /* what is no number is looked at first */
}

static int compare(const void *a, const void *b, void *by)
{
    const row_key *const x = *(row_key *const *)a, *const y = *(row_key *const *)b;
    if (*(int *)by != EXPLAIN_BY_KEY) {
        const double s = sort_value(x, *(int *)by), t = sort_value(y, *(int *)by);
        if (s != t) return s > t ? -1 : 1;
    }
    return (x->key > y->key) - (x->key < y->key);
}

row_key **explain_order(const cli_row *r, const explain_view *v, int64_t *count)
{
    const int64_t n = r->desc->keys;
    int           by = EXPLAIN_BY_WEIGHT;
    row_key     **order = malloc(((size_t)n + 1) * sizeof *order);
    if (!order) return NULL;
    for (int64_t j = 0; j < n; j++) order[j] = &r->key[j];
    *count = v->top && v->top < n ? v->top : n;
    if (*count < n) qsort_r(order, (size_t)n, sizeof(row_key *), compare, &by); /* the heaviest first; those left out stay behind them */
    by = v->sort;
    qsort_r(order, (size_t)*count, sizeof(row_key *), compare, &by);
    return order;
}

/* ---- numbers that add up ------------------------------------------------------------------------------------------------------------ */

void explain_number(char text[EXPLAIN_CELL], double x, int digits)
{
    if (isnan(x))
        strcpy(text, "nan");
    else if (isfinite(x) && fabs(x) >= 1e15)
        snprintf(text, EXPLAIN_CELL, "%.9g", x);
    else
        snprintf(text, EXPLAIN_CELL, "%.*f", digits, x);
    if (text[0] == '-' && strspn(text + 1, "0.") == strlen(text + 1)) memmove(text, text + 1, strlen(text)); /* no "-0.000" */
}

/* Digits without the point. INT64_MIN means "no such number" and stays. */
void explain_add(int64_t *units, const char *text)
{
    int64_t   x = 0;
    const int negative = *text == '-';
    if (*units == INT64_MIN) return;
    for (text += negative; *text; text++) {
        if (*text == '.') continue;
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(x, 10, &x) || __builtin_add_overflow(x, *text - '0', &x)) {
            *units = INT64_MIN;
            return;
        }
    }
    if (__builtin_add_overflow(*units, negative ? -x : x, units)) *units = INT64_MIN;
}

int explain_rest(char text[EXPLAIN_CELL], const char *total, int64_t units, int digits)
{
    int64_t whole = 0, unit = 1;
    explain_add(&whole, total);
    *text = 0;
    if (units == INT64_MIN || whole == INT64_MIN || whole == units) return 0;
    for (int n = 0; n < digits; n++) unit *= 10;
    const int64_t rest = whole - units;
    if (digits)
        snprintf(text, EXPLAIN_CELL, "%s%lld.%0*lld", rest < 0 ? "-" : "", llabs(rest) / unit, digits, llabs(rest) % unit);
    else
        snprintf(text, EXPLAIN_CELL, "%lld", (long long)rest);
    return 1;
}

/* ---- the table -------------------------------------------------------------------------------------------------------------------- */

enum { COLUMNS = NAMED + EXPLAIN_CHANNELS, OTHERS = 0, SINK, ROUNDING, TOTAL, LINES }; /* lines below the keys */

/* A column as it is printed: a number of row_key or the contribution to one channel. */
typedef struct printed {
    int     named; /* place in explain_columns; NAMED: a channel */
    int     adds, width;
    int64_t channel, units; /* the sum of what is printed */
    char    title[EXPLAIN_CELL], line[LINES][EXPLAIN_CELL];
} printed;

typedef struct table {
    const cli_row      *row;
    const explain_view *view;
    row_key           **order;
    int64_t             count; /* of keys that are printed */
    printed             column[COLUMNS];
    int                 columns, seen, left_width, key_width, token_width, seen_width;
    char                line[LINES][EXPLAIN_CELL]; /* labels; empty: not printed */
} table;

static double value(const table *t, const row_key *k, const printed *p)
{
    if (p->named < NAMED) return explain_value(k, &explain_columns[p->named]);
    return k->weight == 0 ? 0 : k->weight * row_v(t->row, k->key, p->channel);
}

static void cell(const table *t, char text[EXPLAIN_CELL], const row_key *k, const printed *p)
{
    const double x = value(t, k, p);
    if ((k->hidden && t->seen && p->named >= SCORE && p->named != VALUE_SIZE) || (p->named == SHARE && isnan(x)))
        strcpy(text, p->named == WEIGHT ? "0" : "-");
    else
        explain_number(text, x, t->view->digits);
}

static void add_column(table *t, int named, int64_t channel)
{
    printed *p = &t->column[t->columns++];
    *p = (printed){.named = named, .channel = channel, .adds = named == NAMED || explain_columns[named].adds};
    if (named == NAMED)
        snprintf(p->title, sizeof p->title, "out[%lld]", (long long)channel);
    else
        strcpy(p->title, explain_columns[named].title);
}

static void choose_columns(table *t)
{
    const attn_desc *d = t->row->desc;
    const int        stage = explain_stage(t->view), cap = d->softcap > 0, more = d->bias.data || d->alibi.data || d->sink.data;
    const cli_list  *list = t->view->channels;
    const int        listed = list && list->count, all = !listed && d->value_dim <= 4;
    t->seen = stage >= ATTN_STAGE_BIASED;
    for (int n = 0; n < NAMED && explain_columns[n].stage <= stage; n++) {
        const int wanted = n == CAPPED              ? cap || stage == ATTN_STAGE_CAPPED
                           : n == BIAS              ? d->bias.data != NULL
                           : n == ALIBI             ? d->alibi.data != NULL
                           : n == SCORE             ? more || stage == ATTN_STAGE_BIASED
                           : n == CONTRIBUTION_SIZE ? !listed && !all
                                                    : 1;
        if (wanted) add_column(t, n, 0);
        for (int64_t c = 0; n == CONTRIBUTION_SIZE && listed && c < list->count; c++) add_column(t, NAMED, list->at[c]);
        for (int64_t c = 0; n == CONTRIBUTION_SIZE && all && c < d->value_dim; c++) add_column(t, NAMED, c);
    }
}

static double total(const table *t, const printed *p)
{
    const cli_row *r = t->row;
    if (p->named == NAMED) return r->out[p->channel];
    for (int64_t j = 0; j < r->desc->keys && p->named == SHARE; j++)
        if (isnan(r->key[j].share)) return NAN;
    if (p->named == SHARE) return r->seen ? 1 : NAN;
    return p->named == EXP ? r->sum : r->weights + r->sink_weight;
}

/* The lines below the keys of one column, and its width. */
static void finish_column(table *t, printed *p)
{
    const cli_row *r = t->row;
    const int      digits = t->view->digits, sink = r->sink_exp > 0;
    const double   of_sink = p->named == SCORE      ? r->sink
                             : p->named == LESS_MAX ? r->sink - r->max
                             : p->named == EXP      ? r->sink_exp
                             : p->named == WEIGHT   ? r->sink_weight
                                                    : NAN;
    char           text[EXPLAIN_CELL];
    double         others = 0;
    p->width = (int)strlen(p->title);
    for (int64_t j = 0; j < r->desc->keys; j++) {
        cell(t, text, t->order[j], p);
        if (j >= t->count) {
            others += strcmp(text, "-") ? value(t, t->order[j], p) : 0;
            continue;
        }
        if (p->adds && strcmp(text, "-")) explain_add(&p->units, text);
        if ((int)strlen(text) > p->width) p->width = (int)strlen(text);
    }
    if (p->adds && t->count < r->desc->keys) explain_number(p->line[OTHERS], others, digits);
    if (sink && !isnan(of_sink)) explain_number(p->line[SINK], of_sink, digits);
    if (p->adds && !isnan(total(t, p))) {
        explain_number(p->line[TOTAL], total(t, p), digits);
        explain_add(&p->units, p->line[OTHERS]), explain_add(&p->units, p->line[SINK]);
        explain_rest(p->line[ROUNDING], p->line[TOTAL], p->units, digits);
    }
    for (int n = 0; n < LINES; n++)
        if ((int)strlen(p->line[n]) > p->width) p->width = (int)strlen(p->line[n]);
}

/* Characters of UTF-8. */
static int characters(const char *text)
{
    int n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

static void seen_text(char text[96], unsigned hidden)
{
    char why[80];
    snprintf(text, 96, hidden ? "no: %s" : "yes", row_why(why, hidden, ", "));
}

static const char *token_of(const table *t, const row_key *k)
{
    return t->view->token ? t->view->token[k->key] : "";
}

static void larger(int *width, int other)
{
    if (other > *width) *width = other;
}

/* Labels of the lines below, and the widths of what stands left of the numbers. */
static void finish_lines(table *t)
{
    static const char *const label[] = {"", "sink", "rounding", "sum"};
    char                     text[96];
    t->key_width = t->token_width = 0;
    larger(&t->key_width, 3);
    if (t->seen) larger(&t->seen_width, 4);
    for (int64_t n = 0; n < t->count; n++) {
        larger(&t->key_width, snprintf(text, sizeof text, "%lld", (long long)t->order[n]->key));
        larger(&t->token_width, characters(token_of(t, t->order[n])));
        seen_text(text, t->order[n]->hidden);
        if (t->seen) larger(&t->seen_width, (int)strlen(text));
    }
    if (t->token_width) larger(&t->token_width, 5);
    t->left_width = t->key_width + (t->token_width ? 2 + t->token_width : 0) + (t->seen ? 2 + t->seen_width : 0);
    for (int n = 0; n < LINES; n++) {
        int used = 0;
        for (int c = 0; c < t->columns; c++) used |= t->column[c].line[n][0] != 0;
        if (n == OTHERS && t->count < t->row->desc->keys)
            snprintf(t->line[n], sizeof t->line[n], "%lld others", (long long)(t->row->desc->keys - t->count));
        else if (used)
            strcpy(t->line[n], label[n]);
        larger(&t->left_width, (int)strlen(t->line[n]));
    }
}

/* Pads what stands left of the numbers. */
static void left(const table *t, const char *key, const char *token, const char *seen)
{
    int at = printf("  %*s", t->key_width, key) - 2;
    if (t->token_width) at += printf("  %s%*s", token, t->token_width - characters(token), "") - (int)strlen(token) + characters(token);
    if (t->seen) at += printf("  %s", seen);
    printf("%*s", t->left_width > at ? t->left_width - at : 0, "");
}

static void print(const table *t)
{
    char text[96], key[24];
    left(t, "key", "token", "seen");
    for (int c = 0; c < t->columns; c++) printf("  %*s", t->column[c].width, t->column[c].title);
    printf("\n");
    for (int64_t n = 0; n < t->count; n++) {
        snprintf(key, sizeof key, "%lld", (long long)t->order[n]->key);
        seen_text(text, t->order[n]->hidden);
        left(t, key, token_of(t, t->order[n]), text);
        for (int c = 0; c < t->columns; c++) {
            cell(t, text, t->order[n], &t->column[c]);
            printf("  %*s", t->column[c].width, text);
        }
        printf("\n");
    }
    for (int n = 0; n < LINES; n++) {
        if (!t->line[n][0]) continue;
        int last = t->columns;
        while (last && !t->column[last - 1].line[n][0]) last--;
        printf("  %-*s", last ? t->left_width : 0, t->line[n]);
        for (int c = 0; c < last; c++) printf("  %*s", t->column[c].width, t->column[c].line[n]);
        printf("\n");
    }
}

/* On how many lines a sum across them differs in the last digit: score = capped + bias + alibi, and score - max. */
static int64_t across(const table *t)
{
    int64_t off = 0;
    for (int64_t n = 0; n < t->count; n++) {
        const row_key *k = t->order[n];
        char           text[EXPLAIN_CELL];
        const double   parts[] = {k->capped, k->bias, k->alibi}, want[] = {k->score, k->less_max, t->row->max};
        int64_t        sum = 0, is[3] = {0};
        if (k->hidden) continue;
        for (int p = 0; p < 3; p++) {
            explain_number(text, parts[p], t->view->digits), explain_add(&sum, text);
            explain_number(text, want[p], t->view->digits), explain_add(&is[p], text);
        }
        if (sum == INT64_MIN || is[0] == INT64_MIN || is[1] == INT64_MIN || is[2] == INT64_MIN) continue;
        off += is[0] != sum || (explain_stage(t->view) >= EXPLAIN_STAGE_WEIGHT && is[0] - is[2] != is[1]);
    }
    return off;
}

int explain_table(const cli_row *r, const explain_view *v)
{
    table t = {.row = r, .view = v};
    t.order = explain_order(r, v, &t.count);
    if (!t.order) return out_fail(CLI_OUTPUT, "no memory for the table");
    choose_columns(&t);
    for (int c = 0; c < t.columns; c++) finish_column(&t, &t.column[c]);
    finish_lines(&t);
    print(&t);
    const int64_t off = t.seen ? across(&t) : 0;
    if (off)
        printf("  Each number is rounded on its own: on %lld of %lld lines a sum across is off in the last digit.\n", (long long)off,
               (long long)t.count);
    free(t.order);
    return CLI_OK;
}

/* ---- .csv ------------------------------------------------------------------------------------------------------------------------- */

/* A field as RFC 4180 has it. */
static void quoted(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"') putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void csv_number(double x)
{
    if (isnan(x))
        printf(",nan"); /* printf would show its sign bit, which means nothing */
    else
        printf(",%.17g", x);
}

int explain_csv(const cli_row *r, const explain_view *v)
{
    const int stage = explain_stage(v);
    char      why[80];
    int64_t   count;
    row_key **order = explain_order(r, v, &count);
    if (!order) return out_fail(CLI_OUTPUT, "no memory for the table");
    printf(v->token ? "key,token,seen,hidden_by" : "key,seen,hidden_by");
    for (int c = 0; c < NAMED; c++)
        if (explain_columns[c].stage <= stage) printf(",%s", explain_columns[c].name);
    for (int64_t c = 0; c < r->desc->value_dim && stage == EXPLAIN_STAGE_OUTPUT; c++) printf(",contribution_%lld", (long long)c);
    printf("\n");
    for (int64_t n = 0; n < count; n++) {
        const row_key *k = order[n];
        printf("%lld,", (long long)k->key);
        if (v->token) quoted(v->token[k->key]), putchar(',');
        printf("%d,%s", !k->hidden, row_why(why, k->hidden, " + "));
        for (int c = 0; c < NAMED; c++)
            if (explain_columns[c].stage <= stage) csv_number(explain_value(k, &explain_columns[c]));
        for (int64_t c = 0; c < r->desc->value_dim && stage == EXPLAIN_STAGE_OUTPUT; c++)
            csv_number(k->weight == 0 ? 0 : k->weight * row_v(r, k->key, c));
        printf("\n");
    }
    free(order);
    return CLI_OK;
}
