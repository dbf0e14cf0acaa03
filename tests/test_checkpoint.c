/* test_checkpoint.c: layers loaded from files: each layout, where heads come from, refusals, damaged files, and two real trained layers.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <attn/attn_layer.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "../io/npy.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* ---- files -------------------------------------------------------------------------------------------------------------------------- */

static char folder[64], model[128], config[128];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/attn-checkpoint-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(model, sizeof model, "%s/model.safetensors", folder);
    snprintf(config, sizeof config, "%s/config.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(model), unlink(config);
    return rmdir(folder);
}

static void put(const char *path, const void *bytes, size_t size)
{
    unlink(path); /* some file systems sync a file that is cut and written anew */
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

/* A .safetensors file that grows tensor by tensor; the header is JSON made by hand, so that it can be made wrong. */
typedef struct file {
    char   header[6000], metadata[200];
    size_t used, size;
    char   data[60000];
} file;

static const char *type_name(int32_t dtype)
{
    return dtype == ATTN_F32 ? "F32" : dtype == ATTN_F64 ? "F64" : dtype == ATTN_F16 ? "F16" : dtype == ATTN_BF16 ? "BF16" : "BOOL";
}

/* rows x columns of f(row, column) = from[row * row_step + column * column_step]; columns 0: a vector. */
static void add(file *f, const char *prefix, const char *name, int32_t dtype, int64_t rows, int64_t columns, const float *from,
                int64_t row_step, int64_t column_step)
{
    const size_t start = f->size, element = element_bytes(dtype);
    char         shape[50];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < (columns ? columns : 1); c++, f->size += element) {
            assert_true(f->size + element <= sizeof f->data);
            element_set(f->data + f->size, dtype, 0, from && dtype != ATTN_BOOL ? from[r * row_step + c * column_step] : 0);
        }
    if (columns)
        snprintf(shape, sizeof shape, "%lld,%lld", (long long)rows, (long long)columns);
    else
        snprintf(shape, sizeof shape, "%lld", (long long)rows);
    f->used += (size_t)snprintf(f->header + f->used, sizeof f->header - f->used,
                                "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", f->used ? "," : "", prefix, name,
                                type_name(dtype), shape, start, f->size);
    assert_true(f->used < sizeof f->header);
}

static void save(const file *f)
{
    static char bytes[70000];
    char        head[7000];
    uint64_t    n = (uint64_t)snprintf(head, sizeof head, "{%s%s%s}", f->metadata, f->metadata[0] ? "," : "", f->header);
    while (n % 8) head[n++] = ' ';
    for (int i = 0; i < 8; i++) bytes[i] = (char)(n >> (8 * i));
    memcpy(bytes + 8, head, n);
    memcpy(bytes + 8 + n, f->data, f->size);
    put(model, bytes, 8 + n + f->size);
}

/* ---- a layer in every layout -------------------------------------------------------------------------------------------------------- */

enum { H = 4, D = 3, WIDTH = 10, OUT = 9, MOST = H * D };

/* W[o][i] of q, k, v, o and their biases, in the order that the formula has. */
typedef struct truth {
    float   w[4][MOST][MOST], b[4][MOST];
    int64_t kv_heads;
} truth;

static int64_t outputs_of(const truth *t, int part)
{
    return part == 0 ? H * D : part == 3 ? OUT : t->kv_heads * D;
}

static void make_truth(truth *t, int64_t stream, int64_t kv_heads)
{
    rng r = rng_make("checkpoint", stream);
    t->kv_heads = kv_heads;
    for (int p = 0; p < 4; p++)
        for (int o = 0; o < MOST; o++) {
            t->b[p][o] = (float)rng_normal(&r);
            for (int i = 0; i < MOST; i++) t->w[p][o][i] = (float)rng_normal(&r);
        }
}

struct kind {
    const char *weight[4], *bias[4]; /* [1] and [2] NULL: q, k and v in one */
    int         conv1d;
};

static const struct kind
    bert = {{"attention.self.query.weight", "attention.self.key.weight", "attention.self.value.weight", "attention.output.dense.weight"},
            {"attention.self.query.bias", "attention.self.key.bias", "attention.self.value.bias", "attention.output.dense.bias"},
            0},
    distilbert = {{"attention.q_lin.weight", "attention.k_lin.weight", "attention.v_lin.weight", "attention.out_lin.weight"},
                  {"attention.q_lin.bias", "attention.k_lin.bias", "attention.v_lin.bias", "attention.out_lin.bias"},
                  0},
    gpt2 = {{"attn.c_attn.weight", NULL, NULL, "attn.c_proj.weight"}, {"attn.c_attn.bias", NULL, NULL, "attn.c_proj.bias"}, 1},
    nanogpt = {{"attn.c_attn.weight", NULL, NULL, "attn.c_proj.weight"}, {"attn.c_attn.bias", NULL, NULL, "attn.c_proj.bias"}, 0},
    mha = {{"in_proj_weight", NULL, NULL, "out_proj.weight"}, {"in_proj_bias", NULL, NULL, "out_proj.bias"}, 0},
    mha_separate = {
        {"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"}, {"in_proj_bias", NULL, NULL, "out_proj.bias"}, 0};

/* Writes part `p` of the truth, or q, k and v stacked where the kind has them in one, as weight or bias `name`. */
static void add_part(file *f, const struct kind *k, const truth *t, int p, int stacked, int is_bias, const char *prefix, const char *name,
                     int32_t dtype)
{
    static float  all[3 * MOST * MOST];
    const int64_t inputs = p == 3 ? H * D : WIDTH;
    int64_t       n = 0;
    for (int part = p; part < (stacked ? 3 : p + 1); part++)
        for (int64_t o = 0; o < outputs_of(t, part); o++, n++)
            for (int64_t i = 0; i < (is_bias ? 1 : inputs); i++)
                all[is_bias ? n : n * inputs + i] = is_bias ? t->b[part][o] : t->w[part][o][i];
    if (is_bias)
        add(f, prefix, name, dtype, n, 0, all, 1, 0);
    else if (k->conv1d)
        add(f, prefix, name, dtype, inputs, n, all, 1, inputs);
    else
        add(f, prefix, name, dtype, n, inputs, all, inputs, 1);
}

static void add_layer(file *f, const struct kind *k, const truth *t, const char *prefix, int32_t dtype, int biases)
{
    for (int p = 0; p < 4; p++) {
        if (k->weight[p]) add_part(f, k, t, p, p == 0 && !k->weight[1], 0, prefix, k->weight[p], dtype);
        if (k->bias[p] && biases) add_part(f, k, t, p, p == 0 && !k->bias[1], 1, prefix, k->bias[p], dtype);
    }
}

static double loaded_at(const attn_in *t, int64_t o, int64_t i)
{
    return ((const float *)t->data)[o * t->stride[2] + i * t->stride[3]];
}

static double stored_as(int32_t dtype, double value)
{
    return dtype == ATTN_F16    ? half_to_double(half_from_double(value))
           : dtype == ATTN_BF16 ? brain_to_double(brain_from_double(value))
                                : value;
}

static void compare_with_truth(const attn_layer_checkpoint *c, const truth *t, int32_t dtype, int biases)
{
    const attn_in *w[] = {&c->w_q, &c->w_k, &c->w_v, &c->w_o}, *b[] = {&c->b_q, &c->b_k, &c->b_v, &c->b_o};
    assert_int_equal(c->heads, H);
    assert_int_equal(c->kv_heads, t->kv_heads);
    assert_int_equal(c->dim, D);
    assert_int_equal(c->value_dim, D);
    assert_int_equal(c->width, WIDTH);
    assert_int_equal(c->key_width, WIDTH);
    assert_int_equal(c->value_width, WIDTH);
    assert_int_equal(c->out_width, OUT);
    for (int p = 0; p < 4; p++)
        for (int64_t o = 0; o < outputs_of(t, p); o++) {
            for (int64_t i = 0; i < (p == 3 ? H * D : WIDTH); i++)
                assert_true(loaded_at(w[p], o, i) == stored_as(dtype, (double)t->w[p][o][i]));
            if (biases)
                assert_true(((const float *)b[p]->data)[o * b[p]->stride[3]] == (float)stored_as(dtype, (double)t->b[p][o]));
            else
                assert_null(b[p]->data);
        }
}

static attn_layer_checkpoint *load(int64_t layer, int64_t heads, int64_t kv_heads, const char *prefix)
{
    attn_error              e;
    attn_layer_checkpoint  *c = NULL;
    attn_layer_load_options o = attn_layer_load_options_new();
    o.heads = heads, o.kv_heads = kv_heads, o.prefix = prefix;
    if (attn_layer_load(model, layer, &o, &c, &e)) fail_msg("%s", e.message);
    assert_string_equal(e.message, "");
    assert_non_null(c);
    return c;
}

/* The loaded layer runs, and its result is finite and the same twice. */
static void run_loaded(const attn_layer_checkpoint *c)
{
    float           x[5 * WIDTH], out[2][5 * OUT];
    attn_error      e;
    attn_layer_desc d = attn_layer_desc_from(c);
    rng             r = rng_make("checkpoint x", 0);
    for (int i = 0; i < 5 * WIDTH; i++) x[i] = (float)rng_normal(&r);
    d.batch = 1, d.queries = d.keys = 5, d.x = attn_layer_tokens(x, 5, c->width);
    for (int i = 0; i < 2; i++) {
        d.out = attn_layer_tokens_out(out[i], 5, c->out_width);
        if (attn_layer_run(&d, &e)) fail_msg("%s", e.message);
    }
    for (int i = 0; i < 5 * OUT; i++) assert_true(isfinite(out[0][i]));
    assert_memory_equal(out[0], out[1], sizeof out[0]);
}

static const struct place {
    const struct kind *kind;
    const char        *prefix;
    int64_t            layer;
    int                by_prefix;
    int32_t            layout;
    int                causal;
} places[] = {
    {&bert, "encoder.layer.3.", 3, 0, ATTN_LAYER_LAYOUT_BERT, 0},
    {&bert, "bert.encoder.layer.0.", 0, 0, ATTN_LAYER_LAYOUT_BERT, 0},
    {&bert, "roberta.encoder.layer.11.", 11, 0, ATTN_LAYER_LAYOUT_BERT, 0},
    {&bert, "electra.encoder.layer.1.", 1, 0, ATTN_LAYER_LAYOUT_BERT, 0},
    {&bert, "text_model.encoder.layer.1.", -1, 1, ATTN_LAYER_LAYOUT_BERT, 0},
    {&distilbert, "transformer.layer.5.", 5, 0, ATTN_LAYER_LAYOUT_DISTILBERT, 0},
    {&distilbert, "distilbert.transformer.layer.0.", 0, 0, ATTN_LAYER_LAYOUT_DISTILBERT, 0},
    {&gpt2, "h.2.", 2, 0, ATTN_LAYER_LAYOUT_GPT2, 1},
    {&gpt2, "transformer.h.10.", 10, 0, ATTN_LAYER_LAYOUT_GPT2, 1},
    {&gpt2, "_orig_mod.transformer.h.1.", -1, 1, ATTN_LAYER_LAYOUT_GPT2, 1},
    {&nanogpt, "h.0.", 0, 0, ATTN_LAYER_LAYOUT_NANOGPT, 1},
    {&nanogpt, "transformer.h.4.", 4, 0, ATTN_LAYER_LAYOUT_NANOGPT, 1},
    {&mha, "", 0, 0, ATTN_LAYER_LAYOUT_TORCH_MHA, 0},
    {&mha, "self_attn.", 0, 0, ATTN_LAYER_LAYOUT_TORCH_MHA, 0},
    {&mha, "encoder.layers.4.self_attn.", 4, 0, ATTN_LAYER_LAYOUT_TORCH_MHA, 0},
    {&mha, "visual.v2.resblocks.10.attn.", 10, 0, ATTN_LAYER_LAYOUT_TORCH_MHA, 0},
    {&mha, "decoder.layers.1.multihead_attn.", -1, 1, ATTN_LAYER_LAYOUT_TORCH_MHA, 0},
    {&mha_separate, "layers.2.cross.", 2, 0, ATTN_LAYER_LAYOUT_TORCH_MHA, 0},
    {&mha_separate, "", -1, 1, ATTN_LAYER_LAYOUT_TORCH_MHA, 0},
};

static void every_layout_is_recognised_wherever_it_stands(void **state)
{
    static const int32_t dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    static file          f;
    truth                t, other;
    (void)state;
    for (size_t i = 0; i < COUNT(places); i++)
        for (size_t dtype = 0; dtype < COUNT(dtypes); dtype++)
            for (int biases = 0; biases < 2; biases++) {
                const struct place *p = &places[i];
                make_truth(&t, (int64_t)i, dtype == 1 ? 2 : H), make_truth(&other, 1000, t.kv_heads);
                memset(&f, 0, sizeof f);
                add_layer(&f, p->kind, &other, "bert.encoder.layer.77.", dtypes[dtype], biases); /* not this one */
                add(&f, "", "wte.weight", ATTN_F64, 2, 3, NULL, 0, 0);                           /* nor this */
                add_layer(&f, p->kind, &t, p->prefix, dtypes[dtype], biases);
                save(&f);
                attn_layer_checkpoint *c = load(p->layer, H, t.kv_heads, p->by_prefix ? p->prefix : NULL);
                compare_with_truth(c, &t, dtypes[dtype], biases);
                assert_int_equal(c->layout, p->layout);
                assert_int_equal(c->causal, p->causal);
                assert_string_equal(c->prefix, p->prefix);
                assert_non_null(strstr(c->description, attn_layer_layout_name(p->layout)));
                assert_non_null(strstr(c->description, dtypes[dtype] == ATTN_F32 ? "stored as f32"
                                                       : dtype == 1              ? "stored as f16"
                                                                                 : "stored as bf16"));
                run_loaded(c);
                attn_layer_free(c);
            }
    attn_layer_free(NULL);
}

/* ---- where the number of heads is read ---------------------------------------------------------------------------------------------- */

static void heads_come_from_options_then_metadata_then_config(void **state)
{
    static file       f;
    truth             t;
    static const char metadata[] = "\"__metadata__\":{\"num_attention_heads\":\"4\",\"num_key_value_heads\":\"2\"}";
    static const char other[] = "{\"num_attention_heads\": 6, \"num_key_value_heads\": 1}";
    const struct {
        const char *metadata, *config;
        int64_t     heads, kv_heads, stored_kv;
        const char *from;
    } cases[] = {
        {"", NULL, H, 2, 2, "options"},
        {"", NULL, H, 0, H, "options"},
        {metadata, NULL, 0, 0, 2, "metadata"},
        {metadata, other, 0, 0, 2, "metadata"},
        {metadata, other, H, 1, 1, "options"},
        {"", "{\"num_attention_heads\": 4}", 0, 0, H, "config.json"},
        {"", "{\"n_head\": 4, \"n_kv\": 9}", 0, 0, H, "config.json"},
        {"", "{\"n_heads\": 4, \"num_key_value_heads\": 2}", 0, 0, 2, "config.json"},
        {"", "{\"num_attention_heads\": null, \"n_head\": 4}", 0, 0, H, "config.json"},
        {"", other, H, H, H, "options"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        make_truth(&t, 50, cases[i].stored_kv);
        memset(&f, 0, sizeof f);
        strcpy(f.metadata, cases[i].metadata);
        add_layer(&f, &bert, &t, "bert.encoder.layer.0.", ATTN_F32, 1);
        save(&f);
        if (cases[i].config) put(config, cases[i].config, strlen(cases[i].config));
        attn_layer_checkpoint *c = load(0, cases[i].heads, cases[i].kv_heads, NULL);
        compare_with_truth(c, &t, ATTN_F32, 1);
        if (!strstr(c->description, cases[i].from)) fail_msg("\"%s\" does not say %s", c->description, cases[i].from);
        attn_layer_free(c);
        unlink(config);
    }
}

static void a_decoder_of_the_bert_family_is_causal(void **state)
{
    static file       f;
    static const char said[] = "{\"num_attention_heads\": 4, \"is_decoder\": true, \"position_embedding_type\": \"absolute\"}";
    truth             t;
    (void)state;
    make_truth(&t, 51, H);
    memset(&f, 0, sizeof f);
    add_layer(&f, &bert, &t, "bert.encoder.layer.0.", ATTN_F32, 1);
    save(&f);
    put(config, said, strlen(said));
    attn_layer_checkpoint *c = load(0, 0, 0, NULL);
    assert_int_equal(c->causal, 1);
    attn_layer_free(c);
    unlink(config);
}

/* Widths that differ: torch's kdim and vdim; heads of another width for values. */
static void separate_weights_may_have_their_own_widths(void **state)
{
    static file  f;
    static float numbers[200];
    (void)state;
    memset(&f, 0, sizeof f);
    for (int i = 0; i < 200; i++) numbers[i] = (float)i;
    add(&f, "a.", "q_proj_weight", ATTN_F32, 6, 6, numbers, 6, 1);
    add(&f, "a.", "k_proj_weight", ATTN_F32, 6, 5, numbers, 5, 1);
    add(&f, "a.", "v_proj_weight", ATTN_F32, 8, 3, numbers, 3, 1);
    add(&f, "a.", "out_proj.weight", ATTN_F32, 7, 8, numbers, 8, 1);
    add(&f, "a.", "in_proj_bias", ATTN_F32, 20, 0, numbers, 1, 0);
    save(&f);
    attn_layer_checkpoint *c = load(0, 2, 0, NULL);
    assert_int_equal(c->dim, 3);
    assert_int_equal(c->value_dim, 4);
    assert_int_equal(c->width, 6);
    assert_int_equal(c->key_width, 5);
    assert_int_equal(c->value_width, 3);
    assert_int_equal(c->out_width, 7);
    assert_true(((const float *)c->b_k.data)[0] == 6 && ((const float *)c->b_v.data)[0] == 12);
    assert_null(c->b_o.data);
    attn_layer_free(c);
}

/* ---- refusals ----------------------------------------------------------------------------------------------------------------------- */

/* What is changed in a good file of that kind with prefix bert.encoder.layer.0. (or h.0., or layers.0.attn.) before it is loaded as layer 0. */
struct refusal {
    const struct kind *kind;
    const char        *without, *with; /* a tensor left out or renamed "gone"; a tensor added */
    int32_t            dtype;          /* 0: f32 */
    int64_t            rows, columns;  /* of the added tensor */
    const char        *config;
    int64_t            layer, heads, kv_heads;
    int32_t            status;
    const char        *sentence; /* all of these, | between */
};

static const struct refusal refusals[] = {
    {&bert, 0, 0, 0, 0, 0, 0, 9, H, 0, ATTN_LAYER_E_LAYOUT,
     "no layer 9 of a known "
     "layout|encoder.layer.9.attention.self.query.weight|transformer.layer.9.attention.q_lin.weight|h.9.attn.c_attn.weight|in_proj_weight"},
    {&bert, "attention.self.query.weight", 0, 0, 0, 0, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT, "no layer 0"},
    {&bert, "attention.self.key.weight", 0, 0, 0, 0, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT, "Hugging Face BERT|but no attention.self.key.weight"},
    {&bert, "attention.output.dense.weight", 0, 0, 0, 0, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT, "but no attention.output.dense.weight"},
    {&gpt2, "attn.c_proj.weight", 0, 0, 0, 0, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT, "but no attn.c_proj.weight"},
    {&bert, 0, 0, ATTN_F64, 0, 0, 0, 0, H, 0, ATTN_LAYER_E_UNSUPPORTED, "attention.self.query.weight is stored as f64|f32, f16 and bf16"},
    {&bert, 0, 0, ATTN_BOOL, 0, 0, 0, 0, H, 0, ATTN_LAYER_E_UNSUPPORTED, "stored as bool"},
    {&bert, "attention.self.value.weight", "attention.self.value.weight", 0, 12, 0, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT,
     "attention.self.value.weight has 1 axes|2"},
    {&bert, "attention.self.value.bias", "attention.self.value.bias", 0, 12, 1, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT,
     "attention.self.value.bias has 2 axes"},
    {&bert, "attention.self.value.bias", "attention.self.value.bias", 0, 11, 0, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT,
     "attention.self.value.bias has 11 elements|12"},
    {&mha, "in_proj_bias", "in_proj_bias", 0, 12, 0, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT, "in_proj_bias has 12 elements|36"},
    {&bert, "attention.self.key.weight", "attention.self.key.weight", 0, 9, 10, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT,
     "attention.self.key.weight has 9 outputs|12"},
    {&bert, "attention.self.value.weight", "attention.self.value.weight", 0, 8, 10, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT,
     "attention.self.value.weight has 8 outputs"},
    {&bert, "attention.self.value.weight", "attention.self.value.weight", 0, 0, 10, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT,
     "0 elements on axis 0"},
    {&bert, 0, 0, 0, 0, 0, 0, 0, 5, 0, ATTN_LAYER_E_LAYOUT, "12 channels of q|heads = 5"},
    {&bert, 0, 0, 0, 0, 0, 0, 0, H, 3, ATTN_LAYER_E_ARGUMENT, "kv_heads is 3, which does not divide heads = 4"},
    {&bert, 0, 0, 0, 0, 0, 0, 0, H, 2, ATTN_LAYER_E_LAYOUT, "kv_heads = 2"},
    {&gpt2, 0, 0, 0, 0, 0, 0, 0, H, 2, ATTN_LAYER_E_LAYOUT, "attn.c_attn.weight has 36 outputs|24"},
    {&mha, "out_proj.weight", "out_proj.weight", 0, 9, 8, 0, 0, H, 0, ATTN_LAYER_E_LAYOUT, "in_proj_weight has 36 outputs|24"},
    {&mha, 0, "bias_k", 0, 1, 12, 0, 0, H, 0, ATTN_LAYER_E_UNSUPPORTED, "bias_k|a learned extra key"},
    {&mha, 0, "bias_v", 0, 1, 12, 0, 0, H, 0, ATTN_LAYER_E_UNSUPPORTED, "bias_v|a learned extra value"},
    {&bert, 0, "attention.self.distance_embedding.weight", 0, 9, 3, 0, 0, H, 0, ATTN_LAYER_E_UNSUPPORTED, "relative position embeddings"},
    {&bert, 0, "attention.self.rotary_embeddings.inv_freq", 0, 3, 0, 0, 0, H, 0, ATTN_LAYER_E_UNSUPPORTED, "rotary position embeddings"},
    {&bert, 0, 0, 0, 0, 0, "{\"position_embedding_type\": \"relative_key\"}", 0, H, 0, ATTN_LAYER_E_UNSUPPORTED,
     "position_embedding_type = relative_key"},
    {&bert, 0, 0, 0, 0, 0, "{\"position_embedding_type\": 7}", 0, H, 0, ATTN_LAYER_E_UNSUPPORTED, "position_embedding_type = something"},
    {&gpt2, 0, 0, 0, 0, 0, "{\"scale_attn_weights\": false}", 0, H, 0, ATTN_LAYER_E_UNSUPPORTED, "scale_attn_weights = false"},
    {&gpt2, 0, 0, 0, 0, 0, "{\"scale_attn_by_inverse_layer_idx\": true}", 0, H, 0, ATTN_LAYER_E_UNSUPPORTED, "a scale by layer"},
    {&nanogpt, 0, 0, 0, 0, 0, "{\"model_type\": \"gpt_bigcode\"}", 0, H, 0, ATTN_LAYER_E_UNSUPPORTED, "model_type = gpt_bigcode"},
    {&nanogpt, 0, 0, 0, 0, 0, "{\"model_type\": \"qwen\"}", 0, H, 0, ATTN_LAYER_E_UNSUPPORTED, "rotary"},
    {&bert, 0, 0, 0, 0, 0, "{\"num_hidden_layers\": 2}", 0, 0, 0, ATTN_LAYER_E_HEADS,
     "number of heads is not known|num_attention_heads|config.json"},
    {&bert, 0, 0, 0, 0, 0, 0, 0, 0, 0, ATTN_LAYER_E_HEADS, "number of heads is not known"},
    {&bert, 0, 0, 0, 0, 0, "{\"num_attention_heads\": \"12\"}", 0, 0, 0, ATTN_LAYER_E_FILE,
     "num_attention_heads in config.json is not a whole number"},
    {&bert, 0, 0, 0, 0, 0, "{\"num_attention_heads\": 0}", 0, 0, 0, ATTN_LAYER_E_FILE, "num_attention_heads in config.json"},
    {&bert, 0, 0, 0, 0, 0, "{\"n_head\": 4294967296}", 0, 0, 0, ATTN_LAYER_E_FILE, "n_head in config.json"},
    {&bert, 0, 0, 0, 0, 0, "{\"num_attention_heads\": 4, \"num_key_value_heads\": -1}", 0, 0, 0, ATTN_LAYER_E_FILE, "num_key_value_heads"},
    {&bert, 0, 0, 0, 0, 0, "{\"num_attention_heads\": 4,", 0, H, 0, ATTN_LAYER_E_FILE, "config.json|not a JSON object"},
    {&bert, 0, 0, 0, 0, 0, "[4]", 0, H, 0, ATTN_LAYER_E_FILE, "not a JSON object"},
    {&bert, 0, 0, 0, 0, 0, "", 0, H, 0, ATTN_LAYER_E_FILE, "not a JSON object"},
    {&bert, 0, 0, 0, 0, 0, 0, -2, H, 0, ATTN_LAYER_E_ARGUMENT, "layer is -2|0 or more"},
    {&bert, 0, 0, 0, 0, 0, 0, 0, -3, 0, ATTN_LAYER_E_ARGUMENT, "options.heads is -3"},
    {&bert, 0, 0, 0, 0, 0, 0, 0, H, -3, ATTN_LAYER_E_ARGUMENT, "options.kv_heads is -3"},
};

static void says(const char *message, const char *sentence)
{
    char parts[400];
    snprintf(parts, sizeof parts, "%s", sentence);
    for (char *part = strtok(parts, "|"); part; part = strtok(NULL, "|"))
        if (!strstr(message, part)) fail_msg("\"%s\" does not say \"%s\"", message, part);
    for (const char *c = message; *c; c++) assert_true(*c >= ' ' && *c <= '~');
}

static void refused(const char *path, int64_t layer, const attn_layer_load_options *o, int32_t status, const char *sentence)
{
    attn_error             e;
    attn_layer_checkpoint *c = (void *)&e;
    int32_t                got = attn_layer_load(path, layer, o, &c, &e);
    if (got != status) fail_msg("%d, not %d: %s", (int)got, (int)status, e.message);
    assert_int_equal(e.status, status);
    assert_null(c);
    says(e.message, sentence);
    assert_int_equal(attn_layer_load(path, layer, o, &c, NULL), status);
}

static void refusals_say_what_is_wrong(void **state)
{
    static file f;
    truth       t;
    (void)state;
    make_truth(&t, 60, H);
    for (size_t i = 0; i < COUNT(refusals); i++) {
        const struct refusal *r = &refusals[i];
        const char           *prefix = r->kind == &bert ? "bert.encoder.layer.0." : r->kind == &mha ? "layers.0.attn." : "h.0.";
        memset(&f, 0, sizeof f);
        add_layer(&f, r->kind, &t, prefix, r->dtype ? r->dtype : ATTN_F32, 1);
        if (r->without) { /* renamed in place, so that nothing else moves */
            char *name = strstr(f.header, r->without);
            assert_non_null(name);
            *name = '!';
        }
        if (r->with) add(&f, prefix, r->with, ATTN_F32, r->rows, r->columns, NULL, 0, 0);
        save(&f);
        if (r->config) put(config, r->config, strlen(r->config));
        attn_layer_load_options o = attn_layer_load_options_new();
        o.heads = r->heads, o.kv_heads = r->kv_heads;
        refused(model, r->layer, &o, r->status, r->sentence);
        unlink(config);
    }
}

static void requests_and_places_are_checked(void **state)
{
    static file             f;
    truth                   t;
    char                    path[200];
    attn_error              e;
    attn_layer_checkpoint  *c;
    attn_layer_load_options o = attn_layer_load_options_new();
    (void)state;
    make_truth(&t, 61, H);
    memset(&f, 0, sizeof f);
    add_layer(&f, &mha, &t, "encoder.layers.0.self\\u001b[31m.", ATTN_F32, 1);
    add_layer(&f, &mha, &t, "decoder.layers.0.self_attn.", ATTN_F32, 1);
    add_layer(&f, &mha_separate, &t, "decoder.layers.1.self_attn.", ATTN_F32, 1);
    save(&f);
    o.heads = H;
    refused(model, 0, &o, ATTN_LAYER_E_LAYOUT, "more than once|encoder.layers.0.self?[31m.|decoder.layers.0.self_attn.|options.prefix");
    o.prefix = "encoder.layers.1.";
    refused(model, -1, &o, ATTN_LAYER_E_LAYOUT,
            "prefix encoder.layers.1.|attention.self.query.weight|attn.c_attn.weight|in_proj_weight|q_proj_weight");
    refused(model, 0, &o, ATTN_LAYER_E_ARGUMENT, "layer is 0; it must be -1");
    o.prefix = "decoder.layers.0.self_attn.";
    attn_layer_free(load(-1, H, 0, o.prefix));
    o.prefix = NULL;

    static file near;
    add_layer(&near, &mha, &t, "layers.0.not_", ATTN_F32, 1); /* layers.0.not_in_proj_weight is no in_proj_weight */
    save(&near);
    refused(model, 0, &o, ATTN_LAYER_E_LAYOUT, "no layer 0");
    save(&f);

    refused(NULL, 0, &o, ATTN_LAYER_E_ARGUMENT, "path is NULL");
    assert_int_equal(attn_layer_load(model, 0, &o, NULL, &e), ATTN_LAYER_E_ARGUMENT);
    says(e.message, "checkpoint is NULL");
    snprintf(path, sizeof path, "%s/none.safetensors", folder);
    refused(path, 0, &o, ATTN_LAYER_E_FILE, "");
    refused("model.safetensors.index.json", 0, &o, ATTN_LAYER_E_UNSUPPORTED, "sharded");
    refused("pytorch_model.bin", 0, &o, ATTN_LAYER_E_UNSUPPORTED, ".safetensors|pickled");
    refused("", 0, &o, ATTN_LAYER_E_UNSUPPORTED, ".safetensors");

    assert_int_equal(mkdir(config, 0700), 0); /* a folder of that name cannot be read */
    refused(model, 1, &o, ATTN_LAYER_E_FILE, "config.json");
    assert_int_equal(rmdir(config), 0);

    strcpy(f.metadata, "\"__metadata__\":{\"num_attention_heads\":\"4x\"}");
    save(&f);
    refused(model, 1, NULL, ATTN_LAYER_E_FILE, "num_attention_heads in the file's metadata");
    o.size = 3;
    refused(model, 1, &o, ATTN_LAYER_E_ARGUMENT, "options.size is 3");
    struct {
        attn_layer_load_options o;
        int64_t                 future;
    } newer = {o, 1};
    newer.o.size = sizeof newer;
    refused(model, 1, &newer.o, ATTN_LAYER_E_TOO_NEW, "options has a field");
    newer.future = 0;
    assert_int_equal(attn_layer_load(model, 1, &newer.o, &c, &e), ATTN_OK);
    attn_layer_free(c);
}

/* Whatever is cut off or overwritten, the loader says a sentence or loads something that can be run or refused. */
static void damaged_files_are_refused_or_read(void **state)
{
    static file f;
    static char whole[70000], bytes[70000];
    truth       t;
    int         loaded = 0, rounds = 0;
    (void)state;
    make_truth(&t, 62, H);
    memset(&f, 0, sizeof f);
    strcpy(f.metadata, "\"__metadata__\":{\"num_attention_heads\":\"4\"}");
    add_layer(&f, &bert, &t, "encoder.layer.0.", ATTN_F32, 1);
    save(&f);
    FILE *in = fopen(model, "rb");
    assert_non_null(in);
    const size_t size = fread(whole, 1, sizeof whole, in);
    fclose(in);
    const size_t header = size - f.size;
    for (int64_t i = 0; i < test_count(1500); i++, rounds++) {
        rng                    r = rng_make("checkpoint damage", i);
        size_t                 length = i % 3 ? size : (size_t)rng_range(&r, 0, (int64_t)size - 1);
        attn_error             e;
        attn_layer_checkpoint *c = NULL;
        memcpy(bytes, whole, size);
        for (int64_t flips = i % 3 ? rng_range(&r, 1, 3) : 0; flips; flips--)
            bytes[rng_range(&r, 0, (int64_t)header - 1)] = (char)rng_range(&r, i % 2 ? 32 : 0, i % 2 ? 126 : 255);
        put(model, bytes, length);
        int32_t status = attn_layer_load(model, 0, NULL, &c, &e);
        assert_int_equal(e.status, status);
        if (i % 3 == 0) assert_int_equal(status, ATTN_LAYER_E_FILE); /* cut short */
        if (status) {
            assert_true(status >= ATTN_LAYER_E_ARGUMENT && status <= ATTN_LAYER_E_HEADS);
            assert_true(e.message[0]);
        } else if (c->width == WIDTH && c->key_width == WIDTH && c->value_width == WIDTH && c->out_width == OUT) {
            run_loaded(c);
            loaded++;
        }
        attn_layer_free(c);
    }
    printf("    %d damaged files, %d of them still a layer\n", rounds, loaded);
}

/* ---- real layers -------------------------------------------------------------------------------------------------------------------- */

static double largest_difference(const char *what, const float *got, const float *want, int64_t count)
{
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        assert_true(isfinite(got[i]));
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        largest = fmax(largest, fabs((double)want[i]));
    }
    printf("    %s: largest difference %.3g among values up to %.3g\n", what, worst, largest);
    return worst;
}

/* Within the table's tolerance; size: the largest score, as there. */
static void expect_close(const char *what, const float *got, const float *want, int64_t count, double size)
{
    double largest = 0;
    largest_difference(what, got, want, count);
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)want[i]));
    for (int64_t i = 0; i < count; i++)
        if (fabs((double)got[i] - (double)want[i]) > tolerance(ATTN_F32, ATTN_F32, largest, (double)want[i], size))
            fail_msg("%s[%lld] is %.9g, want %.9g", what, (long long)i, (double)got[i], (double)want[i]);
}

static io_array find(const io_store *s, const char *name, int64_t count)
{
    io_array a;
    int64_t  n = 1;
    assert_int_equal(io_store_find(s, name, &a), 1);
    assert_int_equal(a.dtype, IO_F32);
    for (int i = 0; i < a.rank; i++) n *= a.shape[i];
    assert_int_equal(n, count);
    return a;
}

static void minilm_is_what_pytorch_computes(void **state)
{
    enum { TOKENS = 17, HEADS = 12, WIDE = 384 };
    static const char      path[] = "examples/minilm-layer.safetensors";
    static float           out[TOKENS * WIDE], weights[HEADS * TOKENS * TOKENS], scores[HEADS * TOKENS * TOKENS];
    attn_error             e;
    attn_layer_checkpoint *c = NULL;
    (void)state;
    io_store *s = io_store_open(path, NULL);
    assert_non_null(s);
    if (attn_layer_load(path, 5, NULL, &c, &e)) fail_msg("%s", e.message);
    printf("    %s\n", c->description);
    assert_int_equal(c->layout, ATTN_LAYER_LAYOUT_BERT);
    assert_int_equal(c->heads, HEADS);
    assert_int_equal(c->width, WIDE);
    assert_non_null(c->b_o.data);

    const float    *x = find(s, "hidden_states", TOKENS * WIDE).data;
    attn_desc       o = attn_desc_new();
    attn_layer_desc d = attn_layer_desc_from(c);
    d.batch = 1, d.queries = d.keys = TOKENS, d.options = &o;
    d.x = attn_layer_tokens(x, TOKENS, WIDE);
    d.out = attn_layer_tokens_out(out, TOKENS, WIDE);
    o.weights = attn_out_dense(weights, ATTN_F32, HEADS, TOKENS, TOKENS);
    if (attn_layer_run(&d, &e)) fail_msg("%s", e.message);
    o.weights.data = scores, o.weights_stage = ATTN_STAGE_SCALED;
    if (attn_layer_run(&d, &e)) fail_msg("%s", e.message);
    double size = 0;
    for (size_t i = 0; i < COUNT(scores); i++) size = fmax(size, fabs((double)scores[i]));
    expect_close("attention_weights", weights, find(s, "attention_weights", HEADS * TOKENS * TOKENS).data, HEADS * TOKENS * TOKENS, size);
    expect_close("attention_output", out, find(s, "attention_output", TOKENS * WIDE).data, TOKENS * WIDE, size);

    /* what the demo shows: in the head that the file names, "missing" draws most from "charge" */
    const char *tokens = io_store_metadata(s, "tokens"), *head = io_store_metadata(s, "head");
    assert_non_null(tokens);
    assert_non_null(head);
    json_t *list = json_loads(tokens, 0, NULL);
    int     missing = -1, charge = -1, best = 0;
    assert_int_equal(json_array_size(list), TOKENS);
    for (int i = 0; i < TOKENS; i++) {
        const char *word = json_string_value(json_array_get(list, (size_t)i));
        if (!strcmp(word, "missing")) missing = i;
        if (!strcmp(word, "charge")) charge = i;
    }
    const float *row = weights + (atoi(head) * TOKENS + missing) * TOKENS;
    for (int j = 0; j < TOKENS; j++)
        if (row[j] > row[best]) best = j;
    assert_true(missing >= 0 && best == charge);
    json_decref(list);
    attn_layer_free(c);
    io_store_close(s);
}

/* nano-gpt-sort: weights and intermediate values as JSON with base64 of little-endian f32. */
static float *decode(json_t *root, const char *name, int64_t count)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char       *text = json_string_value(json_object_get(json_object_get(root, name), "data"));
    unsigned char    *to = malloc((size_t)count * 4 + 3);
    size_t            n = 0;
    assert_non_null(text);
    assert_non_null(to);
    for (uint32_t bits = 0, used = 0; *text && *text != '='; text++) {
        bits = bits << 6 | (uint32_t)(strchr(alphabet, *text) - alphabet);
        used += 6;
        if (used >= 8) {
            assert_true(n < (size_t)count * 4);
            to[n++] = (unsigned char)(bits >> (used -= 8));
        }
    }
    assert_int_equal(n, (size_t)count * 4);
    return (float *)to;
}

static json_t *open_json(const char *name)
{
    const char *data = getenv("ATTN_TEST_DATA");
    char        path[4000];
    snprintf(path, sizeof path, "%s/real/nano-gpt-sort/%s", data && *data ? data : "../shared", name);
    return json_load_file(path, 0, NULL);
}

static void nano_gpt_sort_is_reproduced(void **state)
{
    enum { B = 3, HEADS = 3, T = 11, WIDE = 48, DIM = 16, ALL = B * T * WIDE };
    static float q[ALL], k[ALL], v[ALL], y[ALL], out[ALL], weights[B * HEADS * T * T];
    json_t      *net = open_json("gpt-nano-sort-model.json"), *values = open_json("gpt-nano-sort-t0-partials.json");
    const char  *required = getenv("ATTN_TEST_DATA_REQUIRED");
    (void)state;
    if (!net || !values) {
        json_decref(net), json_decref(values);
        if (required && !strcmp(required, "1")) fail_msg("real/nano-gpt-sort is not in ATTN_TEST_DATA, which is required");
        printf("skipped: nano-gpt-sort (no test data)\n");
        skip();
    }
    float *w = decode(net, "transformer.h.0.attn.c_attn.weight", 3 * WIDE * WIDE),
          *b = decode(net, "transformer.h.0.attn.c_attn.bias", 3 * WIDE);
    float *wo = decode(net, "transformer.h.0.attn.c_proj.weight", WIDE * WIDE), *bo = decode(net, "transformer.h.0.attn.c_proj.bias", WIDE);
    float *x = decode(values, "ln1", ALL);

    attn_desc       o = attn_desc_new();
    attn_layer_desc d = attn_layer_desc_new();
    d.batch = B, d.heads = d.kv_heads = HEADS, d.queries = d.keys = T, d.dim = d.value_dim = DIM, d.options = &o, o.causal = 1;
    d.width = d.key_width = d.value_width = d.out_width = WIDE;
    d.x = attn_layer_tokens(x, T, WIDE);
    d.w_q = attn_layer_linear(w, WIDE), d.w_k = attn_layer_linear(w + WIDE * WIDE, WIDE),
    d.w_v = attn_layer_linear(w + 2 * WIDE * WIDE, WIDE);
    d.b_q = attn_layer_bias(b), d.b_k = attn_layer_bias(b + WIDE), d.b_v = attn_layer_bias(b + 2 * WIDE);
    d.w_o = attn_layer_linear(wo, WIDE), d.b_o = attn_layer_bias(bo);
    d.q = attn_out_dense(q, ATTN_F32, HEADS, T, DIM), d.k = attn_out_dense(k, ATTN_F32, HEADS, T, DIM),
    d.v = attn_out_dense(v, ATTN_F32, HEADS, T, DIM);
    d.y = attn_out_strided(y, ATTN_F32, (const int64_t[4]){T * WIDE, DIM, WIDE, 1});
    d.out = attn_layer_tokens_out(out, T, WIDE);
    o.weights = attn_out_dense(weights, ATTN_F32, HEADS, T, T);
    attn_error e;
    if (attn_layer_run(&d, &e)) fail_msg("%s", e.message);

    const struct {
        const char  *name;
        const float *got;
        int64_t      count;
        double       bound; /* as the data's own README says */
    } results[] = {
        {"q", q, ALL, 5e-6}, {"k", k, ALL, 5e-6}, {"v", v, ALL, 5e-6}, {"attSm", weights, B * HEADS * T * T, 1e-6}, {"y", y, ALL, 1e-6}};
    for (size_t i = 0; i < COUNT(results); i++) {
        float *want = decode(values, results[i].name, results[i].count);
        assert_true(largest_difference(results[i].name, results[i].got, want, results[i].count) <= results[i].bound);
        free(want);
    }
    float *want = decode(values, "yProj", ALL);
    expect_close("yProj", out, want, ALL, 0);
    free(want), free(w), free(b), free(wo), free(bo), free(x);
    json_decref(net), json_decref(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_is_recognised_wherever_it_stands),
        cmocka_unit_test(heads_come_from_options_then_metadata_then_config),
        cmocka_unit_test(a_decoder_of_the_bert_family_is_causal),
        cmocka_unit_test(separate_weights_may_have_their_own_widths),
        cmocka_unit_test(refusals_say_what_is_wrong),
        cmocka_unit_test(requests_and_places_are_checked),
        cmocka_unit_test(damaged_files_are_refused_or_read),
        cmocka_unit_test(minilm_is_what_pytorch_computes),
        cmocka_unit_test(nano_gpt_sort_is_reproduced),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, make_folder, remove_folder);
}
