/* lesson.c: attn lesson: short lessons that run. What they show is what the command prints: a line that begins with "$ attn" is run.
 * SPDX-License-Identifier: MIT
 */
#include "explain.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

typedef struct lesson {
    const char *name, *title, *text;
    int (*last)(void); /* numbers that no command prints; NULL */
    const char *after, *question, *answer;
} lesson;

/* ---- what no command shows, since it would be wrong ------------------------------------------------------------------------------------- */

/* A row from matrices written out. */
typedef struct written {
    io_array  q, k, v;
    attn_desc desc;
    cli_row   row;
} written;

static void forget(written *w)
{
    row_close(&w->row);
    io_free(&w->q), io_free(&w->k), io_free(&w->v);
}

static int write_out(written *w, const char *q, const char *k, const char *v, double scale)
{
    memset(w, 0, sizeof *w);
    int code = literal_read(q, &w->q);
    if (!code) code = literal_read(k, &w->k);
    if (!code) code = literal_read(v, &w->v);
    if (code) return code;
    attn_desc *d = &w->desc;
    *d = attn_desc_new();
    d->batch = d->heads = d->kv_heads = d->queries = 1, d->keys = w->k.shape[0], d->dim = w->k.shape[1], d->value_dim = w->v.shape[1];
    d->q = attn_in_dense(w->q.data, ATTN_F64, 1, 1, d->dim);
    d->k = attn_in_dense(w->k.data, ATTN_F64, 1, d->keys, d->dim);
    d->v = attn_in_dense(w->v.data, ATTN_F64, 1, d->keys, d->value_dim);
    d->scale = scale, d->scale_given = scale != 0;
    return row_open(&w->row, d, 0, 0, 0);
}

static int without_maximum(void)
{
    written   w;
    double    sum = 0;
    const int code = write_out(&w, "1", "1000; 999", "1,0; 0,1", 1);
    for (int64_t j = 0; !code && j < 2; j++) sum += exp(w.row.key[j].score);
    for (int64_t j = 0; !code && j < 2; j++)
        printf("  key %lld: exp(%g) = %g, divided by the sum %g: %s\n", (long long)j, w.row.key[j].score, exp(w.row.key[j].score), sum,
               isnan(exp(w.row.key[j].score) / sum) ? "not a number" : "a number");
    forget(&w);
    return code;
}

static int zeroed_afterwards(void)
{
    written   w;
    const int code = write_out(&w, "1,0", "1,0; 0,1", "10,0; 0,10", 0);
    if (!code) {
        const double first = w.row.key[0].weight, second = w.row.key[1].weight;
        printf("  weights of all keys        %.3f  %.3f  sum %.3f\n", first, second, first + second);
        printf("  the second one set to 0    %.3f  %.3f  sum %.3f\n", first, 0.0, first);
        printf("  output of these            %.3f  %.3f\n", first * 10, 0.0);
    }
    forget(&w);
    return code;
}

/* ---- the lessons ------------------------------------------------------------------------------------------------------------------------ */

static const lesson lessons[] = {
    {"row", "one row by hand: scores, softmax, mixture",
     "A query asks, keys say what they offer, values are what is handed on. Dot products are divided by the square root of their length,\n"
     "turned into weights that sum to one, and the weights mix the values.\n"
     "$ attn explain -q --q \"1,0\" --k \"1,0; 0,1\" --v \"10,0; 0,10\"\n"
     "The same from scores that are scaled already, 2, 1 and 0:\n"
     "$ attn explain -q --q \"1\" --k \"2; 1; 0\" --v \"1,0; 0,2; 3,1\" --scale 1\n",
     NULL, "", "In the second table, why is the first weight not twice the second one, though its score is?",
     "A weight is an exponential: what counts is the difference of scores. One more gives exp(1) = 2.718 times the weight,\n"
     "0.665 = 2.718 * 0.245, whatever the scores are."},
    {"first-key", "only the first key may be seen",
     "A mask takes keys out before the softmax. What remains still sums to one.\n"
     "$ attn explain -q --q \"1,0\" --k \"1,0; 0,1\" --v \"10,0; 0,10\" --allow \"1,0\"\n",
     NULL, "", "What comes out if the only key that may be seen is the second, which does not match the query at all?",
     "Its value, 0 and 10: the softmax over one key gives it the weight 1, however low the score is.\n"
     "$ attn run -q \"1,0\" \"1,0; 0,1\" \"10,0; 0,10\" --allow \"0,1\"\n"},
    {"mirrored", "the mirrored query",
     "The query now matches the other key.\n"
     "$ attn explain -q --q \"0,1\" --k \"1,0; 0,1\" --v \"10,0; 0,10\"\n",
     NULL, "", "Which query gives both keys the weight 0.5?",
     "Any whose scores with both are equal: 1,1 as well as 0,0 or 5,5. Only differences of scores count.\n"
     "$ attn run -q \"1,1\" \"1,0; 0,1\" \"10,0; 0,10\"\n"},
    {"stable", "why the largest score is subtracted",
     "Scores of 1000 and 999:\n"
     "$ attn explain -q --q \"1\" --k \"1000; 999\" --v \"1,0; 0,1\" --scale 1\n"
     "Without subtracting the largest first:\n",
     without_maximum, "", "What are the weights for scores of 1 and 0?",
     "The same, 0.731 and 0.269: a number that is added to all scores of a row changes no weight.\n"
     "$ attn explain -q --q \"1\" --k \"1; 0\" --v \"1,0; 0,1\" --scale 1\n"},
    {"mask-before", "masking before the softmax against zeroing afterwards",
     "Masked before, the only key that is left has the weight 1:\n"
     "$ attn explain -q --q \"1,0\" --k \"1,0; 0,1\" --v \"10,0; 0,10\" --allow \"1,0\" --stage weight\n"
     "Zeroed afterwards, something is missing:\n",
     zeroed_afterwards, "The second is no mixture any more: it is shorter than the only value that was read.\n",
     "What would make the second right?",
     "Dividing what remains by its sum: 0.670 / 0.670 = 1. That is the masked softmax, if no row is empty. attn check finds results that\n"
     "lack it, and names them mask-after-softmax."},
    {"empty", "a row that sees nothing",
     "With no key to see there is no softmax: it would be 0 divided by 0. By definition the output is zero.\n"
     "$ attn explain -q --q \"1,0\" --k \"1,0; 0,1\" --v \"10,0; 0,10\" --allow \"0,0\"\n"
     "A large negative number in place of -inf does not hide:\n"
     "$ attn explain -q --q \"1,0\" --k \"1,0; 0,1\" --v \"10,0; 0,10\" --bias \"-1e9,-1e9\"\n",
     NULL, "", "Where do the 6.698 of the second table come from, though both keys were to be hidden?",
     "Both scores sink by the same number, and only differences count, as far as rounding leaves any: -1e9 + 0.707 is not\n"
     "stored exactly in f32, and there the row becomes the mean of the values, 5 and 5.\n"
     "$ attn run -q \"1,0\" \"1,0; 0,1\" \"10,0; 0,10\" --bias \"-1e9,-1e9\" --dtype f32\n"},
    {"padding", "causal against padding",
     "Causal hides what comes later, from each query something else:\n"
     "$ attn mask show -q --queries 4 --causal\n"
     "Padding hides the same keys from all queries:\n"
     "$ attn mask show -q --queries 4 --key-count 3\n"
     "Both hold at once:\n"
     "$ attn mask show -q --queries 4 --keys 4 --causal --align top-left --key-count 3\n",
     NULL, "", "With padding on the left, --key-start 1, and causal: what does query 0 see?",
     "Key 1 and no other. Places are counted from the first key in use, so query 0 stands on key 1, and sees it alone.\n"
     "$ attn mask show -q --queries 4 --keys 4 --causal --align top-left --key-start 1\n"},
    {"order", "reordered inputs give reordered outputs, until a causal mask is there",
     "Three tokens read from each other:\n"
     "$ attn run -q \"1,0; 0,1; 1,1\" \"1,0; 0,1; 1,1\" \"1,0; 0,1; 1,1\"\n"
     "The same tokens in reverse give the same rows in reverse (equivariant; not: the same rows):\n"
     "$ attn run -q \"1,1; 0,1; 1,0\" \"1,1; 0,1; 1,0\" \"1,1; 0,1; 1,0\"\n"
     "With a causal mask a token's row depends on what stands before it:\n"
     "$ attn run -q --causal \"1,0; 0,1; 1,1\" \"1,0; 0,1; 1,1\" \"1,0; 0,1; 1,1\"\n"
     "$ attn run -q --causal \"1,1; 0,1; 1,0\" \"1,1; 0,1; 1,0\" \"1,1; 0,1; 1,0\"\n",
     NULL, "", "In the last two, why is one row of each exactly its own token?",
     "The first token sees only itself, and the weight of a lone key is 1."},
    {"heads", "several heads",
     "Two heads of two channels each: each projects, scores and mixes on its own, and the outputs stand side by side.\n"
     "$ attn explain -q --q \"1,0,0,1\" --k \"1,0,1,0; 0,1,0,1\" --v \"10,0,1,0; 0,10,0,1\" --layout sd --heads 2 --head 0\n"
     "$ attn explain -q --q \"1,0,0,1\" --k \"1,0,1,0; 0,1,0,1\" --v \"10,0,1,0; 0,10,0,1\" --layout sd --heads 2 --head 1\n"
     "$ attn run -q \"1,0,0,1\" \"1,0,1,0; 0,1,0,1\" \"10,0,1,0; 0,10,0,1\" --layout sd --heads 2\n"
     "In a layer an output projection follows, which mixes the heads. attn demo shows twelve trained ones.\n",
     NULL, "", "Would one head of four channels give the same?",
     "No. It has one row of weights for all channels; here both its scores are equal, so that everything is halved.\n"
     "$ attn run -q \"1,0,0,1\" \"1,0,1,0; 0,1,0,1\" \"10,0,1,0; 0,10,0,1\" --layout sd --heads 1\n"},
    {"length", "100 against 200 tokens",
     "Every token may read from every token, in one layer, however far apart they are. That is one score for each pair:\n"
     "$ attn cost --tokens 100,200 --threads 1\n",
     NULL, "Twice the tokens are four times the scores. They are computed in blocks and never held together.\n",
     "How much of that does a causal mask save, and a window of 10 keys?",
     "Causal about half; the window nearly all of it where texts are long, since its cost grows with the tokens and not with their "
     "square.\n"
     "$ attn cost --tokens 100,200 --threads 1 --causal\n"
     "$ attn cost --tokens 100,200 --threads 1 --window 10,0\n"},
    {"not-explanations", "weights are not explanations",
     "Two thirds of the weight lie on a key whose value is zero:\n"
     "$ attn explain -q --q \"1,0\" --k \"1,0; 0,1\" --v \"0,0; 0,10\"\n"
     "All that comes out is from the other key: see the column share. And where values agree, quite different weights give the same "
     "output:\n"
     "$ attn explain -q --q \"9,0\" --k \"1,0; 0,1\" --v \"3,4; 3,4\"\n"
     "$ attn explain -q --q \"0,9\" --k \"1,0; 0,1\" --v \"3,4; 3,4\"\n",
     NULL, "", "What are weights and pictures of them good for, then?",
     "For finding wrong masks, wrong alignments and patterns: they tell where values were read. What the layers after it make of\n"
     "that, they do not tell."},
};

enum { LESSONS = sizeof lessons / sizeof *lessons };

const char *lesson_words(void)
{
    static char words[32 * LESSONS];
    size_t      used = 0;
    for (int i = 0; i < LESSONS; i++) used += (size_t)snprintf(words + used, sizeof words - used, i ? " %s" : "%s", lessons[i].name);
    return words;
}

/* ---- running one ------------------------------------------------------------------------------------------------------------------------ */

/* Splits a command as a shell does that knows blanks and double quotes, and runs it. line is written over. */
static int run_command(char *line)
{
    enum { WORDS = 40 };
    char *word[WORDS + 1];
    int   count = 0;
    for (char *to = line; *line && count < WORDS;) {
        int quoted = 0;
        while (isspace((unsigned char)*line)) line++;
        if (!*line) break;
        word[count++] = to = line;
        for (; *line && (quoted || !isspace((unsigned char)*line)); line++) {
            if (*line == '"')
                quoted = !quoted;
            else
                *to++ = *line;
        }
        if (*line) line++;
        *to = 0;
    }
    word[count] = NULL;
    return subcommand_run(count - 1, word + 1); /* word[0] is attn */
}

/* Prints text line by line; a command is run after it is printed. */
static int tell(const char *text)
{
    int code = CLI_OK;
    for (const char *end; *text && !code; text = *end ? end + 1 : end) {
        end = text + strcspn(text, "\n");
        printf("%.*s\n", (int)(end - text), text);
        if (text[0] != '$') continue;
        char *line = strndup(text + 2, (size_t)(end - text) - 2);
        code = line ? run_command(line) : out_fail(CLI_OUTPUT, "no memory for a command");
        free(line);
        out_name("lesson", 0);
        printf("\n");
    }
    return code;
}

/* Then an empty line stands below. */
static int ends_in_command(const char *text)
{
    const char *line = text;
    for (const char *c = text; *c; c++)
        if (*c == '\n' && c[1]) line = c + 1;
    return *line == '$';
}

static int list(void)
{
    for (int i = 0; i < LESSONS; i++) printf("%-17s %s\n", lessons[i].name, lessons[i].title);
    printf("\nattn lesson NAME runs one; --answer adds the answer to its question.\n");
    return CLI_OK;
}

int lesson_main(const cli_options *o)
{
    const lesson *l = NULL;
    if (o->operands == 0 && o->answer) return out_fail(CLI_USAGE, "--answer goes with the name of a lesson");
    if (o->operands == 0) return list();
    if (o->operands > 1) return out_fail(CLI_USAGE, "takes one lesson, %d given", o->operands);
    for (int i = 0; i < LESSONS; i++)
        if (strcmp(lessons[i].name, o->operand[0]) == 0) l = &lessons[i];
    if (!l) {
        out_fail(CLI_USAGE, "%s is no lesson", o->operand[0]);
        out_fix("attn lesson lists them");
        return CLI_USAGE;
    }
    printf("%s\n\n", l->title);
    int code = tell(l->text);
    if (!code && l->last) code = l->last();
    if (!code) code = tell(l->after);
    if (!code) printf("%sQuestion: %s\n", l->last || *l->after || !ends_in_command(l->text) ? "\n" : "", l->question);
    if (!code && o->answer) printf("\nAnswer: "), code = tell(l->answer);
    if (!code && !o->answer) printf("attn lesson %s --answer has the answer.\n", l->name);
    return code;
}
