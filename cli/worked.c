/* worked.c: small examples of one attention row, calculated by hand, for the demonstration.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

typedef struct example {
    const char *said;
    int64_t     keys, dim;
    double      q[2], k[6], v[6], scale; /* scale 0: 1 / sqrt(dim) */
    int         first_only;
    const char *weights, *output; /* to three decimals */
} example;

static const example examples[] = {
    {"q (1,0), keys (1,0) (0,1), values (10,0) (0,10)", 2, 2, {1, 0}, {1, 0, 0, 1}, {10, 0, 0, 10}, 0, 0, "0.67, 0.33", "6.698, 3.302"},
    {"the same, only the first key permitted", 2, 2, {1, 0}, {1, 0, 0, 1}, {10, 0, 0, 10}, 0, 1, "1, 0", "10, 0"},
    {"exercise: q (0,1)", 2, 2, {0, 1}, {1, 0, 0, 1}, {10, 0, 0, 10}, 0, 0, "0.33, 0.67", "3.302, 6.698"},
    {"scores already scaled 2, 1, 0, values (1,0) (0,2) (3,1)",
     3,
     1,
     {1},
     {2, 1, 0},
     {1, 0, 0, 2, 3, 1},
     1,
     0,
     "0.665, 0.245, 0.09",
     "0.935, 0.579"},
};

/* To three decimals, without the zeros at the end. */
static void decimals(char text[64], const double *x, int64_t count)
{
    char *to = text;
    for (int64_t i = 0; i < count; i++) {
        to += sprintf(to, "%s%.3f", i ? ", " : "", x[i]);
        while (to[-1] == '0') to--;
        if (to[-1] == '.') to--;
        *to = 0;
    }
}

static int compute(const example *x, double weights[3], double output[2])
{
    static const uint8_t first[3] = {1, 0, 0};
    attn_desc            d = attn_desc_new();
    attn_error           e;
    d.batch = d.heads = d.kv_heads = d.queries = 1, d.keys = x->keys, d.dim = x->dim, d.value_dim = 2;
    d.q = attn_in_dense(x->q, ATTN_F64, 1, 1, x->dim);
    d.k = attn_in_dense(x->k, ATTN_F64, 1, x->keys, x->dim);
    d.v = attn_in_dense(x->v, ATTN_F64, 1, x->keys, 2);
    d.out = attn_out_dense(output, ATTN_F64, 1, 1, 2);
    d.weights = attn_out_dense(weights, ATTN_F64, 1, 1, x->keys);
    d.scale = x->scale, d.scale_given = x->scale != 0;
    if (x->first_only) d.allow = attn_in_dense(first, ATTN_BOOL, 1, 1, x->keys);
    return attn_run(&d, &e) ? out_library(&e) : CLI_OK;
}

int worked_run(json_t *json, int *failed)
{
    json_t *list = json ? json_array() : NULL;
    if (!json) printf("Worked examples%44s%-20s %s\n", "", "weights", "output");
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        double    weights[3], output[2];
        char      text[2][64];
        const int code = compute(&examples[i], weights, output);
        if (code) return json_decref(list), code;
        decimals(text[0], weights, examples[i].keys);
        decimals(text[1], output, 2);
        const int good = strcmp(text[0], examples[i].weights) == 0 && strcmp(text[1], examples[i].output) == 0;
        *failed += !good;
        if (!json)
            printf("  %-57s%-20s %-14s %s\n", examples[i].said, text[0], text[1], good ? "ok" : "WRONG");
        else
            json_array_append_new(
                list, json_pack("{s:s, s:s, s:s, s:b}", "example", examples[i].said, "weights", text[0], "output", text[1], "ok", good));
    }
    if (json) json_object_set_new(json, "worked_examples", list);
    return CLI_OK;
}
