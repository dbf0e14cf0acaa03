/* options.c: the options of every subcommand in one table: names, kinds, help.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>

enum kind { FLAG, TEXT, OUTPUT, COUNT, REAL, LIST, PAIR, REAL_PAIR, WORD };

typedef struct option_row {
    const char        *name;
    char               letter;
    enum kind          kind;
    unsigned           commands;
    size_t             at;        /* where in cli_options */
    int64_t            low, high; /* bounds of COUNT, LIST and PAIR */
    const char *const *words;     /* of WORD; the endings of OUTPUT, a file that is written; ended by NULL */
    const char        *argument, *help;
} option_row;

static const char *const align_words[] = {"top-left", "bottom-right", NULL};             /* as ATTN_ALIGN_* count */
static const char *const stage_words[] = {"weight", "scaled", "capped", "biased", NULL}; /* ATTN_STAGE_* + 1 */
static const char *const sort_words[] = {"key", "weight", "score", "share", NULL};       /* as EXPLAIN_BY_* + 1 */
static const char *const colour_words[] = {"auto", "plain", "16", "256", "true", NULL};  /* as PICTURE_* + 1 */
static const char *const dtype_words[] = {"f32", "f64", "f16", "bf16", NULL};            /* as ATTN_F32 .. count */

static const char *const array_ends[] = {".npy", ".csv", NULL};
static const char *const png_ends[] = {".png", NULL}, *const svg_ends[] = {".svg", NULL}, *const html_ends[] = {".html", ".htm", NULL};

#define BIG      (INT64_C(1) << 62)
#define AT(f)    offsetof(cli_options, f)
#define OPERATOR (CLI_RUN | CLI_COMPARE | CLI_LAYER | CLI_EXPLAIN | CLI_SHOW)
#define SEES     (OPERATOR | CLI_MASK)
#define FILES    (CLI_RUN | CLI_COMPARE | CLI_EXPLAIN | CLI_SHOW)
#define LAYER    (CLI_LAYER | CLI_EXPLAIN)
#define ALL      (OPERATOR | CLI_COST | CLI_INFO | CLI_DEMO | CLI_MASK)
#define HELP     (ALL | CLI_COMPLETION | CLI_LESSON)

static const option_row table[] = {
    /* what goes in and out */
    {"output", 'o', OUTPUT, CLI_RUN | CLI_LAYER | CLI_MASK, AT(output), 0, 0, array_ends, "OUT",
     "write the result to OUT (.npy or .csv); without it the numbers go to stdout"},
    {"against", 0, TEXT, CLI_COMPARE, AT(against), 0, 0, NULL, "OUT", "the result to compare with, in the layout of Q"},
    {"against-lse", 0, TEXT, CLI_COMPARE, AT(against_lse), 0, 0, NULL, "F", "log-sum-exps to compare with, axes (batch, head, query)"},
    {"against-weights", 0, TEXT, CLI_COMPARE, AT(against_weights), 0, 0, NULL, "F",
     "weights to compare with, axes (batch, head, query, key)"},
    {"tolerance", 0, REAL_PAIR, CLI_COMPARE, AT(tolerance), 0, 0, NULL, "A,R",
     "accept |got - want| <= A * largest |want| + R * |want|; by default what the dtype promises"},
    {"layer", 0, COUNT, LAYER, AT(layer), 0, 1000000, NULL, "N", "the layer of the checkpoint, from 0"},
    {"layer", 0, LIST, CLI_SHOW, AT(layers), 0, 1000000, NULL, "N,..", "layers of the checkpoint, from 0, side by side"},
    {"prefix", 0, TEXT, LAYER | CLI_SHOW, AT(prefix), 0, 0, NULL, "P",
     "instead of --layer: all that stands before the layer's own names, number included"},
    {"input", 0, TEXT, LAYER, AT(input), 0, 0, NULL, "X", "hidden states: (tokens, width) or (batch, tokens, width)"},
    {"input", 0, TEXT, CLI_SHOW, AT(input), 0, 0, NULL, "X,..", "hidden states before each layer; one for all is allowed"},
    {"kv-input", 0, TEXT, LAYER | CLI_SHOW, AT(kv_input), 0, 0, NULL, "Y", "cross-attention: keys and values come from Y instead of X"},
    {"layout", 0, TEXT, FILES, AT(layout), 0, 0, NULL, "AXES",
     "the axes of Q, K, V: letters b(atch), h(ead), s(equence), d(channel); by default bhsd, hsd or sd by the rank"},
    {"heads", 0, COUNT, CLI_RUN | CLI_COMPARE, AT(heads), 1, BIG, NULL, "N",
     "query heads inside the channels (feature h * D + d) of a layout without h"},
    {"heads", 0, COUNT, CLI_EXPLAIN | CLI_SHOW, AT(heads), 1, BIG, NULL, "N",
     "query heads inside the channels of a layout without h, or of a checkpoint that does not say"},
    {"heads", 0, COUNT, CLI_LAYER, AT(heads), 1, BIG, NULL, "N", "query heads, where the checkpoint does not say"},
    {"heads", 0, COUNT, CLI_COST, AT(heads), 1, BIG, NULL, "N", "query heads (1)"},
    {"kv-heads", 0, COUNT, LAYER | CLI_SHOW, AT(kv_heads), 1, BIG, NULL, "N", "key heads, where the checkpoint does not say"},
    {"kv-heads", 0, COUNT, CLI_COST, AT(kv_heads), 1, BIG, NULL, "N", "key heads (as --heads)"},
    {"dtype", 0, WORD, FILES, AT(dtype), 0, 0, dtype_words, "T", "convert Q, K, V to f32, f64, f16 or bf16 first"},
    {"dtype", 0, WORD, CLI_COST, AT(dtype), 0, 0, dtype_words, "T", "f32 (default), f64, f16 or bf16"},
    {"out-dtype", 0, WORD, CLI_RUN | CLI_COMPARE, AT(out_dtype), 0, 0, dtype_words, "T",
     "type of the result: the inputs' (default) or f32"},
    {"lse", 0, OUTPUT, CLI_RUN, AT(lse), 0, 0, array_ends, "F", "write ln of each row's sum of exponentials, axes (batch, head, query)"},
    {"weights", 0, OUTPUT, CLI_RUN | CLI_LAYER, AT(weights), 0, 0, array_ends, "F", "write the weights, axes (batch, head, query, key)"},
    {"weights", 0, TEXT, CLI_SHOW, AT(weights), 0, 0, NULL, "W",
     "show the weights in W, axes (batch, head, query, key) or fewer from the left; further files are further layers"},
    {"stage", 0, WORD, CLI_RUN | CLI_LAYER, AT(stage), 0, 0, stage_words, "S",
     "what --weights holds: weight (default), scaled, capped or biased"},
    {"from", 0, WORD, CLI_MASK, AT(from), 0, 0, mask_forms, "FORM", "convert: the form of FILE; attn help mask names them"},
    {"to", 0, WORD, CLI_MASK, AT(to), 0, 0, mask_forms, "FORM", "convert: the form of the result"},
    /* explain */
    {"q", 0, TEXT, CLI_EXPLAIN, AT(q), 0, 0, NULL, "M", "in place of Q: a matrix written out, rows ended by ';', as in \"1,0; 0,1\""},
    {"k", 0, TEXT, CLI_EXPLAIN, AT(k), 0, 0, NULL, "M", "the same in place of K"},
    {"v", 0, TEXT, CLI_EXPLAIN, AT(v), 0, 0, NULL, "M", "the same in place of V"},
    {"entry", 0, COUNT, CLI_EXPLAIN, AT(entry), 0, BIG, NULL, "N", "the batch entry, from 0; needed where there are several"},
    {"head", 0, COUNT, CLI_EXPLAIN, AT(head), 0, BIG, NULL, "N", "the query head, from 0; needed where there are several"},
    {"row", 0, COUNT, CLI_EXPLAIN, AT(row), 0, BIG, NULL, "N", "the query, from 0; needed where there are several"},
    {"tokens", 0, TEXT, CLI_EXPLAIN, AT(token_file), 0, 0, NULL, "FILE",
     "names of the keys: a line each, a JSON list, or the list in a .safetensors file's metadata"},
    {"query-tokens", 0, TEXT, CLI_EXPLAIN, AT(query_token_file), 0, 0, NULL, "FILE",
     "names of the queries; those of the keys where there are as many"},
    {"why", 0, COUNT, CLI_EXPLAIN, AT(why), 0, BIG, NULL, "J", "write out key J, term by term"},
    {"top", 0, COUNT, CLI_EXPLAIN, AT(top), 1, BIG, NULL, "K", "only the K keys with the most weight; the others in one line"},
    {"sort", 0, WORD, CLI_EXPLAIN, AT(sort), 0, 0, sort_words, "S", "keys by key (default), weight, score or share, the largest first"},
    {"stage", 0, WORD, CLI_EXPLAIN, AT(stage), 0, 0, stage_words, "S", "no further than this step: scaled, capped, biased or weight"},
    {"channels", 0, LIST, CLI_EXPLAIN, AT(channels), 0, BIG, NULL, "C,..",
     "contributions to these channels of the output (all, up to 4 channels), at most 16"},
    {"digits", 0, COUNT, CLI_EXPLAIN, AT(digits), 0, 15, NULL, "N", "decimals of the table (3)"},
    {"csv", 0, FLAG, CLI_EXPLAIN, AT(csv), 0, 0, NULL, NULL, "print the keys as .csv, all digits"},
    /* sizes of cost and mask */
    {"tokens", 0, LIST, CLI_COST, AT(tokens), 1, INT64_C(1) << 31, NULL, "N,..", "sequence lengths, one line each"},
    {"batch", 0, COUNT, CLI_COST, AT(batch), 1, BIG, NULL, "N", "sequences (1)"},
    {"batch", 0, COUNT, CLI_MASK, AT(batch), 1, INT64_C(1) << 31, NULL, "N", "batch entries (as lists and files say, or 1)"},
    {"heads", 0, COUNT, CLI_MASK, AT(heads), 1, INT64_C(1) << 31, NULL, "N", "query heads (as the files say, or 1)"},
    {"queries", 0, COUNT, CLI_COST, AT(queries), 1, INT64_C(1) << 31, NULL, "N",
     "only the last N queries of each length (all), as in decoding"},
    {"queries", 0, COUNT, CLI_MASK, AT(queries), 0, INT64_C(1) << 31, NULL, "N", "queries (as the files say)"},
    {"keys", 0, COUNT, CLI_MASK, AT(keys), 0, INT64_C(1) << 31, NULL, "N", "keys (as the files say, or as many as queries)"},
    {"plan", 0, FLAG, CLI_COST, AT(plan), 0, 0, NULL, NULL, "how the work divides among 1 to 256 threads, or among --threads"},
    {"dim", 0, COUNT, CLI_COST, AT(dim), 0, BIG, NULL, "N", "channels of queries and keys (64)"},
    {"value-dim", 0, COUNT, CLI_COST, AT(value_dim), 0, BIG, NULL, "N", "channels of values (as --dim)"},
    /* who sees whom */
    {"causal", 0, FLAG, SEES | CLI_COST, AT(causal), 0, 0, NULL, NULL, "a query sees no later key"},
    {"align", 0, WORD, SEES, AT(align), 0, 0, align_words, "A",
     "where query 0 stands: top-left (on key 0) or bottom-right (the last query on the last key)"},
    {"query-offset", 0, LIST, SEES, AT(query_offset), -BIG, BIG, NULL, "N,..",
     "where query 0 stands, as a number; one for all or one per batch entry"},
    {"query-count", 0, LIST, SEES, AT(query_count), 0, BIG, NULL, "N,..",
     "queries in use, per batch entry; attention gives zeros for the rest"},
    {"key-count", 0, LIST, SEES, AT(key_count), 0, BIG, NULL, "N,..", "keys in use, per batch entry"},
    {"key-start", 0, LIST, SEES, AT(key_start), 0, BIG, NULL, "N,..", "first key in use, per batch entry (padding on the left)"},
    {"window", 0, PAIR, SEES | CLI_COST, AT(window), -1, BIG, NULL, "L,R", "a query sees L keys before and R after its own; -1 = no bound"},
    {"allow", 0, TEXT, SEES, AT(allow), 0, 0, NULL, "M", "boolean mask, true = may be seen; broadcasts to (batch, head, query, key)"},
    {"hide", 0, TEXT, SEES, AT(hide), 0, 0, NULL, "M", "boolean mask, true = hidden"},
    /* what a score is */
    {"bias", 0, TEXT, SEES, AT(bias), 0, 0, NULL, "B", "float array added to the scores; broadcasts the same way; -inf hides"},
    {"scale", 0, REAL, OPERATOR, AT(scale), 0, 0, NULL, "X", "factor of the scores (1 / sqrt(D))"},
    {"softcap", 0, REAL, OPERATOR, AT(softcap), 0, 0, NULL, "X", "scores become X * tanh(score / X); 0 = off"},
    {"alibi", 0, TEXT, OPERATOR, AT(alibi), 0, 0, NULL, "S", "slopes per head: default, numbers 0.5,0.25,.. or a file"},
    {"sink", 0, TEXT, OPERATOR, AT(sink), 0, 0, NULL, "S", "one more logit per head in the sum: numbers or a file"},
    {"dropout", 0, REAL, CLI_RUN, AT(dropout), 0, 0, NULL, "P", "as in training: drop a weight at this rate, 0 (off) to 1"},
    {"dropout-seed", 0, COUNT, CLI_RUN, AT(dropout_seed), 0, BIG, NULL, "N", "which weights --dropout drops (0)"},
    /* how it runs */
    {"threads", 0, COUNT, OPERATOR | CLI_COST, AT(threads), 1, 1024, NULL, "N",
     "threads (as many as CPUs may be used); the bits do not depend on it"},
    {"isa", 0, TEXT, OPERATOR | CLI_COST, AT(isa), 0, 0, NULL, "NAME", "instruction set, see attn info (the best)"},
    /* demo */
    {"data", 0, TEXT, CLI_DEMO, AT(data), 0, 0, NULL, "FILE", "the layer to show (the one that comes with attn)"},
    {"head", 0, COUNT, CLI_DEMO, AT(head), 0, BIG, NULL, "N", "the head to print, from 0"},
    {"entry", 0, COUNT, CLI_MASK | CLI_SHOW, AT(entry), 0, BIG, NULL, "N", "the batch entry to draw (0)"},
    {"head", 0, COUNT, CLI_SHOW, AT(head), 0, BIG, NULL, "N", "only this head (all; in the terminal the first)"},
    {"tokens", 0, TEXT, CLI_SHOW, AT(token_file), 0, 0, NULL, "FILE",
     "names of the keys, and of as many queries: a line each, a .json list, or the list in a .safetensors file"},
    {"query-tokens", 0, TEXT, CLI_SHOW, AT(query_token_file), 0, 0, NULL, "FILE", "names of the queries"},
    {"log", 0, FLAG, CLI_SHOW, AT(log), 0, 0, NULL, NULL, "colours count powers of ten, four of them, instead of equal steps"},
    {"largest", 0, FLAG, CLI_SHOW, AT(largest), 0, 0, NULL, NULL, "cells of a down-sampled map hold the largest weight, not the mean"},
    {"colour", 0, WORD, CLI_SHOW, AT(colour), 0, 0, colour_words, "C", "of the terminal: auto (default), plain, 16, 256 or true"},
    {"html", 0, OUTPUT, CLI_SHOW, AT(html), 0, 0, html_ends, "FILE", "one page to click through, which needs nothing else"},
    {"region", 0, PAIR, CLI_SHOW, AT(region), 0, BIG, NULL, "I,J", "where the exact values of a long page begin: query I, key J (0,0)"},
    {"limit", 0, COUNT, CLI_SHOW, AT(limit), 1, 1024, NULL, "MIB", "how large the exact part of a page may be (8)"},
    {"head", 0, COUNT, CLI_MASK, AT(head), 0, BIG, NULL, "N", "the head to draw (0)"},
    {"png", 0, OUTPUT, CLI_MASK | CLI_SHOW, AT(png), 0, 0, png_ends, "FILE", "draw into FILE instead of the terminal"},
    {"svg", 0, OUTPUT, CLI_MASK | CLI_SHOW, AT(svg), 0, 0, svg_ends, "FILE", "the same as shapes"},
    {"png", 0, OUTPUT, CLI_DEMO, AT(png), 0, 0, png_ends, "FILE", "where the picture of all heads goes (attn-demo.png)"},
    {"answer", 0, FLAG, CLI_LESSON, AT(answer), 0, 0, NULL, NULL, "the answer to the lesson's question too"},
    /* everywhere */
    {"json", 0, FLAG, ALL, AT(json), 0, 0, NULL, NULL, "print the result as JSON"},
    {"quiet", 'q', FLAG, OPERATOR | CLI_DEMO | CLI_MASK, AT(quiet), 0, 0, NULL, NULL, "say nothing on stderr but failures"},
    {"help", 'h', FLAG, HELP, AT(help), 0, 0, NULL, NULL, "this text"},
};

enum { ROWS = sizeof table / sizeof *table };

int32_t options_dtype(int word)
{
    return word; /* dtype_words is in the order of ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16 */
}

/* One decimal integer from *text on, *text moved behind it. */
static int integer(const char **text, int64_t low, int64_t high, int64_t *value)
{
    char *end;
    errno = 0;
    const long long x = strtoll(*text, &end, 10);
    if (end == *text || errno || x < low || x > high) return 0;
    *text = end;
    *value = x;
    return 1;
}

static int real(const char **text, double *value)
{
    char *end;
    *value = strtod(*text, &end);
    if (end == *text || !isfinite(*value)) return 0;
    *text = end;
    return 1;
}

static int list(const option_row *row, const char *text, cli_list *to)
{
    int64_t commas = 0;
    for (const char *c = text; *c; c++) commas += *c == ',';
    free(to->at);
    to->count = 0;
    to->at = malloc((size_t)(commas + 1) * sizeof *to->at);
    if (!to->at) return 0;
    for (;; text++) {
        if (!integer(&text, row->low, row->high, &to->at[to->count++])) return 0;
        if (*text != ',') return *text == 0;
    }
}

static int word(const option_row *row, const char *text, int *to)
{
    for (int i = 0; row->words[i]; i++)
        if (strcmp(row->words[i], text) == 0) return *to = i + 1;
    return 0;
}

static int ends(const option_row *row, const char *text)
{
    for (int i = 0; row->words[i]; i++) {
        const size_t n = strlen(text), end = strlen(row->words[i]);
        if (n > end && strcmp(text + n - end, row->words[i]) == 0) return 1;
    }
    return 0;
}

/* Reads text into the field; 0 when it is not what the option takes. */
static int take(const option_row *row, const char *text, void *to)
{
    cli_count     *count = to;
    cli_real      *x = to;
    cli_pair      *pair = to;
    cli_real_pair *reals = to;
    switch (row->kind) {
    case FLAG:
        *(int *)to = 1;
        return 1;
    case TEXT:
        *(const char **)to = text;
        return *text != 0;
    case OUTPUT:
        *(const char **)to = text;
        return ends(row, text);
    case COUNT:
        return (count->given = integer(&text, row->low, row->high, &count->value)) && *text == 0;
    case REAL:
        return (x->given = real(&text, &x->value)) && *text == 0;
    case LIST:
        return list(row, text, to);
    case PAIR:
        pair->given = 1;
        return integer(&text, row->low, row->high, &pair->first) && *text++ == ',' && integer(&text, row->low, row->high, &pair->second) &&
               *text == 0;
    case REAL_PAIR:
        reals->given = 1;
        return real(&text, &reals->first) && *text++ == ',' && real(&text, &reals->second) && *text == 0 && reals->first >= 0 &&
               reals->second >= 0;
    case WORD:
        return word(row, text, to);
    }
    return 0;
}

static int refuse(const option_row *row, const char *text)
{
    char   rule[160] = "";
    size_t used = 0;
    for (int i = 0; row->words && row->words[i]; i++)
        used += (size_t)snprintf(rule + used, sizeof rule - used, "%s%s",
                                 i                     ? row->kind == WORD ? ", " : " or "
                                 : row->kind == OUTPUT ? "the name of a file that ends in "
                                                       : "one of ",
                                 row->words[i]);
    const char *const takes[] = {[TEXT] = "a name",
                                 [COUNT] = "a whole number",
                                 [REAL] = "a finite number",
                                 [LIST] = "whole numbers with commas between them",
                                 [PAIR] = "two whole numbers, L,R",
                                 [REAL_PAIR] = "two finite numbers that are not negative, A,R"};
    const char       *what = row->words ? rule : takes[row->kind];
    const int         bounded = row->kind == COUNT || row->kind == LIST || row->kind == PAIR;
    char              bounds[64] = "";
    if (bounded && row->high == BIG && row->low > -BIG) snprintf(bounds, sizeof bounds, " from %lld on", (long long)row->low);
    if (bounded && row->high < BIG) snprintf(bounds, sizeof bounds, " from %lld to %lld", (long long)row->low, (long long)row->high);
    return out_fail(CLI_USAGE, "--%s %s: takes %s%s", row->name, *text ? text : "''", what, bounds);
}

/* Letters to change, insert or delete between two words: what was probably meant. */
static int distance(const char *a, const char *b)
{
    enum { LONGEST = 32 };
    int       row[LONGEST + 1];
    const int n = (int)strlen(b);
    if (n > LONGEST) return LONGEST;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            const int change = corner + (a[i - 1] != b[j - 1]), edge = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            corner = row[j];
            row[j] = change < edge ? change : edge;
        }
    }
    return row[n];
}

/* Neither a name nor short for one: what is wrong with it. */
static int unknown(unsigned command, const char *text)
{
    const char       *name = text + strspn(text, "-");
    const size_t      length = strcspn(name, "=");
    const option_row *best = NULL, *first = NULL;
    int               least = 3;
    char              bare[32];
    snprintf(bare, sizeof bare, "%.*s", (int)length, name);
    for (int i = 0; i < ROWS; i++) {
        const option_row *row = &table[i];
        if (!(row->commands & command)) continue;
        if (strcmp(bare, row->name) == 0) return out_fail(CLI_USAGE, "--%s takes no value", bare);
        if (length && strncmp(bare, row->name, length) == 0) {
            if (first) return out_fail(CLI_USAGE, "%s is short for --%s and for --%s", text, first->name, row->name);
            first = row;
        }
        const int far = distance(bare, row->name);
        if (far < least && far < (int)length) best = row, least = far;
    }
    out_fail(CLI_USAGE, "%s is not an option of this command", text);
    if (best)
        out_fix("did you mean --%s? The command's --help lists all options", best->name);
    else if (strchr("0123456789.", *name) && length)
        out_fix("numbers that begin with '-' go behind -- after the options, as in: -- \"-1,0\"");
    else
        out_fix("the command's --help lists its options");
    return CLI_USAGE;
}

/* ---- files that are written -------------------------------------------------------------------------------------------------------- */

/* Where a file of that name is or would be, links followed; the caller's to free. NULL where there can be none. */
static char *place(const char *name)
{
    char *real = realpath(name, NULL), *whole = NULL;
    if (real || errno != ENOENT) return real;
    const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name;
    char       *folder = slash ? strndup(name, (size_t)(last - name)) : strdup(".");
    real = folder ? realpath(folder, NULL) : NULL;
    if (real && asprintf(&whole, "%s/%s", real, last) < 0) whole = NULL;
    free(folder), free(real);
    return whole;
}

static int is_at(const char *where, char *name)
{
    char     *real = place(name);
    const int same = real && strcmp(real, where) == 0;
    free(real);
    return same;
}

/* Does text name the file at `where`: as it is, or as a part of FILE,FILE or FILE:NAME? */
static int leads_to(const char *text, const char *where)
{
    char *copy = literal_is(text) ? NULL : strdup(text);
    int   same = copy && is_at(where, copy);
    for (char *part = copy, *next; part && !same; part = next) {
        next = strchr(part, ',');
        if (next) *next++ = 0;
        same = is_at(where, part);
        for (char *colon = strrchr(part, ':'); colon && !same; colon = strrchr(part, ':')) *colon = 0, same = is_at(where, part);
    }
    free(copy);
    return same;
}

/* An output that is another file of the command line too would take its place. */
static int check_outputs(const cli_options *o, unsigned command)
{
    int code = CLI_OK;
    for (int i = 0; i < ROWS && !code; i++) {
        const option_row *row = &table[i];
        const char       *name = row->commands & command && row->kind == OUTPUT ? *(char *const *)((const char *)o + row->at) : NULL;
        char             *where = name ? place(name) : NULL;
        for (int n = 0; n < o->operands && where && !code; n++)
            if (leads_to(o->operand[n], where))
                code = out_fail(CLI_USAGE, "--%s %s would overwrite what is read, %s", row->name, name, o->operand[n]);
        for (int n = 0; n < ROWS && where && !code; n++) {
            const option_row *other = &table[n];
            const int         file = other->kind == TEXT || (other->kind == OUTPUT && n < i);
            const char       *text = other->commands & command && file ? *(char *const *)((const char *)o + other->at) : NULL;
            if (!text || !leads_to(text, where)) continue;
            code = other->kind == OUTPUT
                       ? out_fail(CLI_USAGE, "--%s and --%s name the same file, %s", other->name, row->name, name)
                       : out_fail(CLI_USAGE, "--%s %s would overwrite what is read, --%s %s", row->name, name, other->name, text);
        }
        free(where);
    }
    return code;
}

int options_parse(cli_options *o, unsigned command, int argc, char **argv)
{
    struct option names[ROWS + 1];
    char letters[2 * ROWS + 2] = ":", *letter = letters + 1; /* ':' first: getopt tells a missing argument from an unknown option */
    char given[ROWS] = {0};
    int  n = 0;
    memset(names, 0, sizeof names);
    for (int i = 0; i < ROWS; i++) {
        if (!(table[i].commands & command)) continue;
        names[n++] = (struct option){table[i].name, table[i].kind != FLAG, NULL, 1000 + i};
        if (table[i].letter) *letter++ = table[i].letter;
        if (table[i].letter && table[i].kind != FLAG) *letter++ = ':';
    }
    *letter = 0;
    opterr = 0, optind = 0; /* glibc: begin anew, as a lesson does */
    for (;;) {
        const int got = getopt_long(argc, argv, letters, names, NULL);
        if (got < 0) break;
        const option_row *row = NULL;
        for (int i = 0; i < ROWS && got != '?' && got != ':'; i++)
            if (table[i].commands & command && (got == 1000 + i || got == table[i].letter)) row = &table[i];
        if (got == ':') return out_fail(CLI_USAGE, "%s needs a value", argv[optind - 1]);
        if (!row) return unknown(command, optopt > 0 && optopt < 1000 ? (char[]){'-', (char)optopt, 0} : argv[optind - 1]);
        if (row->kind != FLAG && given[row - table]++) return out_fail(CLI_USAGE, "--%s is given twice", row->name);
        if (!take(row, optarg, (char *)o + row->at)) return refuse(row, optarg);
    }
    o->operand = argv + optind;
    o->operands = argc - optind;
    return o->help ? CLI_OK : check_outputs(o, command);
}

void options_print(unsigned command, FILE *to)
{
    fprintf(to, "Options:\n");
    for (int i = 0; i < ROWS; i++) {
        const option_row *row = &table[i];
        if (!(row->commands & command)) continue;
        char left[40];
        if (row->letter)
            snprintf(left, sizeof left, "-%c, --%s %s", row->letter, row->name, row->argument ? row->argument : "");
        else
            snprintf(left, sizeof left, "--%s %s", row->name, row->argument ? row->argument : "");
        fprintf(to, "  %-22s %s\n", left, row->help);
    }
}

int options_info(unsigned command, int index, cli_option_info *info)
{
    for (int i = 0; i < ROWS; i++) {
        const option_row *row = &table[i];
        if (!(row->commands & command) || index--) continue;
        const int file = row->kind == TEXT || row->kind == OUTPUT;
        *info = (cli_option_info){row->name, row->argument, row->help, file ? NULL : row->words, row->letter, file};
        return 1;
    }
    return 0;
}

void options_free(cli_options *o)
{
    cli_list *const lists[] = {&o->layers, &o->query_offset, &o->query_count, &o->key_count, &o->key_start, &o->tokens, &o->channels};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]->at);
}
