/* checkpoint.c: finds one attention layer in a .safetensors file by the names that well-known models give it, and copies it out as f32.
 * SPDX-License-Identifier: MIT
 */
#define _POSIX_C_SOURCE 200809L /* strndup */

#include "layer.h"

#include "../io/npy.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define FIRST_LOAD_OPTIONS (offsetof(attn_layer_load_options, prefix) + sizeof(char *)) /* length of the first version */
#define LONGEST_CONFIG     (16 << 20) /* bytes of a config.json; real ones have a few thousand */
#define MOST_HEADS         INT32_MAX

/* ---- what is known about models --------------------------------------------------------------------------------------------------- */

/* Names after the prefix. Order: q, k, v, o; with q, k, v in one tensor the first name is that tensor's and the next two are NULL. */
struct layout {
    int32_t     id;
    const char *families[4]; /* what may stand before the stem */
    const char *stem;        /* then the layer's number; NULL: any prefix whose last number is the layer's */
    const char *weight[4], *bias[4];
    bool        causal;
};

static const struct layout layouts[] = {
    {ATTN_LAYER_LAYOUT_BERT,
     {"", "bert.", "roberta.", "electra."},
     "encoder.layer.",
     {"attention.self.query.weight", "attention.self.key.weight", "attention.self.value.weight", "attention.output.dense.weight"},
     {"attention.self.query.bias", "attention.self.key.bias", "attention.self.value.bias", "attention.output.dense.bias"},
     false},
    {ATTN_LAYER_LAYOUT_DISTILBERT,
     {"", "distilbert."},
     "transformer.layer.",
     {"attention.q_lin.weight", "attention.k_lin.weight", "attention.v_lin.weight", "attention.out_lin.weight"},
     {"attention.q_lin.bias", "attention.k_lin.bias", "attention.v_lin.bias", "attention.out_lin.bias"},
     false},
    {ATTN_LAYER_LAYOUT_GPT2, /* or NANOGPT: told by shape */
     {"", "transformer."},
     "h.",
     {"attn.c_attn.weight", NULL, NULL, "attn.c_proj.weight"},
     {"attn.c_attn.bias", NULL, NULL, "attn.c_proj.bias"},
     true},
    {ATTN_LAYER_LAYOUT_TORCH_MHA,
     {NULL},
     NULL,
     {"in_proj_weight", NULL, NULL, "out_proj.weight"},
     {"in_proj_bias", NULL, NULL, "out_proj.bias"},
     false},
    {ATTN_LAYER_LAYOUT_TORCH_MHA, /* kdim or vdim differs from embed_dim */
     {NULL},
     NULL,
     {"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"},
     {"in_proj_bias", NULL, NULL, "out_proj.bias"},
     false},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* Variants whose formula is another one. A tensor beside the layer's own, or a value in config.json (as text), gives them away. */
static const struct {
    int32_t     layout;
    const char *tensor, *why;
} spoiling_tensors[] = {
    {ATTN_LAYER_LAYOUT_BERT, "attention.self.distance_embedding.weight", "relative position embeddings"},
    {ATTN_LAYER_LAYOUT_BERT, "attention.self.rotary_embeddings.inv_freq", "rotary position embeddings"},
    {ATTN_LAYER_LAYOUT_TORCH_MHA, "bias_k", "a learned extra key"},
    {ATTN_LAYER_LAYOUT_TORCH_MHA, "bias_v", "a learned extra value"},
};

static const struct {
    int32_t     layout;
    const char *key, *value;
    bool        equal; /* refused when the value is this one; else when it is another one */
    const char *why;
} spoiling_config[] = {
    {ATTN_LAYER_LAYOUT_BERT, "position_embedding_type", "absolute", false, "position embeddings inside attention"},
    {ATTN_LAYER_LAYOUT_GPT2, "scale_attn_weights", "true", false, "a scale of 1"},
    {ATTN_LAYER_LAYOUT_GPT2, "scale_attn_by_inverse_layer_idx", "true", true, "a scale by layer"},
    {ATTN_LAYER_LAYOUT_GPT2, "model_type", "gpt_bigcode", true, "q, k and v interleaved or shared by its own rule"},
    {ATTN_LAYER_LAYOUT_GPT2, "model_type", "qwen", true, "rotary position embeddings"},
};

const char *attn_layer_layout_name(int32_t layout)
{
    static const char *const names[] = {"Hugging Face BERT", "Hugging Face DistilBERT", "torch MultiheadAttention", "GPT-2 (Conv1D)",
                                        "nanoGPT (Linear)"};
    return layout >= ATTN_LAYER_LAYOUT_BERT && layout <= ATTN_LAYER_LAYOUT_NANOGPT ? names[layout - 1] : "unknown";
}

/* ---- the work of one load --------------------------------------------------------------------------------------------------------- */

/* What the caller gets is the first member; the rest is freed with it. */
struct loaded {
    attn_layer_checkpoint public;
    float *data[8];
    char  *prefix;
    char   description[400];
};

struct loader {
    attn_layer_load_options options;
    int64_t                 layer;
    io_store               *store;
    json_t                 *config; /* or NULL */
    const struct layout    *layout;
    char                   *prefix;
    io_array                weight[4], bias[4]; /* as in the file; data NULL: none. Fused: [1] and [2] are none */
    const char             *heads_from;
    struct loaded          *to;
    attn_error             *error;
};

#define refuse(l, status, ...) attn_layer_fail((l)->error, status, __VA_ARGS__)

static char *joined(const char *a, const char *b)
{
    char *s = malloc(strlen(a) + strlen(b) + 1);
    if (s) strcat(strcpy(s, a), b);
    return s;
}

/* Names come from files and end on terminals: what is not printable ASCII becomes '?'. */
static const char *plain(char text[100], const char *name)
{
    snprintf(text, 100, "%s", name);
    for (char *c = text; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?';
    return text;
}

/* The tensor PREFIX + name: 1 found, 0 not, -1 no memory. */
static int find(const struct loader *l, const char *prefix, const char *name, io_array *array)
{
    char *full = joined(prefix, name);
    int   found = full ? io_store_find(l->store, full, array) : -1;
    free(full);
    return found;
}

/* ---- config.json ------------------------------------------------------------------------------------------------------------------ */

static int32_t read_config(struct loader *l, const char *path)
{
    const char  *slash = strrchr(path, '/');
    size_t       n = slash ? (size_t)(slash - path) + 1 : 0;
    json_error_t why;
    char        *name = malloc(n + sizeof "config.json");
    if (!name) return refuse(l, ATTN_LAYER_E_MEMORY, "no memory for a file name");
    memcpy(name, path, n);
    strcpy(name + n, "config.json");
    FILE *file = fopen(name, "rb");
    free(name);
    if (!file && (errno == ENOENT || errno == ENOTDIR)) return ATTN_OK;
    if (!file) return refuse(l, ATTN_LAYER_E_FILE, "config.json beside the checkpoint cannot be opened: %s", strerror(errno));

    char  *text = malloc(LONGEST_CONFIG + 1);
    size_t size = text ? fread(text, 1, LONGEST_CONFIG + 1, file) : 0;
    bool   bad = ferror(file);
    fclose(file);
    if (text && !bad && size <= LONGEST_CONFIG) l->config = json_loadb(text, size, 0, &why);
    free(text);
    if (!text) return refuse(l, ATTN_LAYER_E_MEMORY, "no memory for config.json");
    if (bad) return refuse(l, ATTN_LAYER_E_FILE, "config.json beside the checkpoint cannot be read");
    if (size > LONGEST_CONFIG)
        return refuse(l, ATTN_LAYER_E_FILE, "config.json beside the checkpoint is longer than %d bytes", LONGEST_CONFIG);
    if (!json_is_object(l->config)) return refuse(l, ATTN_LAYER_E_FILE, "config.json beside the checkpoint is not a JSON object");
    return ATTN_OK;
}

/* A number of heads from the file's metadata or config.json into *heads, if one is there under one of the names. */
static int32_t said_heads(struct loader *l, const char *const names[3], int64_t *heads, const char **from)
{
    for (int i = 0; i < 3 && names[i]; i++) {
        const char *text = io_store_metadata(l->store, names[i]);
        json_t     *json = json_object_get(l->config, names[i]);
        char       *end;
        if (!text && (!json || json_is_null(json))) continue;
        errno = 0;
        *heads = text ? strtoll(text, &end, 10) : json_integer_value(json);
        *from = text ? "the file's metadata" : "config.json";
        if ((text && (!*text || *end || errno)) || *heads < 1 || *heads > MOST_HEADS)
            return refuse(l, ATTN_LAYER_E_FILE, "%s in %s is not a whole number from 1 to %d", names[i], *from, MOST_HEADS);
        return ATTN_OK;
    }
    return ATTN_OK;
}

static int32_t find_heads(struct loader *l, int64_t *heads, int64_t *kv_heads)
{
    static const char *const names[3] = {"num_attention_heads", "n_head", "n_heads"}, *const kv_names[3] = {"num_key_value_heads"};
    const char *kv_from = NULL;
    *heads = *kv_heads = 0;
    l->heads_from = "the options";
    int32_t status = l->options.heads ? ATTN_OK : said_heads(l, names, heads, &l->heads_from);
    if (!status && !l->options.kv_heads) status = said_heads(l, kv_names, kv_heads, &kv_from);
    if (status) return status;
    if (l->options.heads) *heads = l->options.heads;
    if (l->options.kv_heads) *kv_heads = l->options.kv_heads;
    if (!*heads)
        return refuse(l, ATTN_LAYER_E_HEADS,
                      "the number of heads is not known: it is in neither the options nor the file's metadata nor a config.json beside it "
                      "(num_attention_heads, n_head, n_heads)");
    if (!*kv_heads) *kv_heads = *heads;
    if (*heads % *kv_heads)
        return refuse(l, ATTN_LAYER_E_ARGUMENT, "kv_heads is %lld, which does not divide heads = %lld", (long long)*kv_heads,
                      (long long)*heads);
    return ATTN_OK;
}

/* ---- which layout, where ---------------------------------------------------------------------------------------------------------- */

/* Whether `name` is PREFIX + tail with a dot or nothing before the tail, the last whole number among PREFIX's parts being `layer` (none: 0). */
static bool any_prefix_fits(const char *name, const char *tail, int64_t layer)
{
    size_t      length = strlen(name), rest = strlen(tail);
    long long   last = 0;
    const char *part = name;
    if (length < rest || strcmp(name + length - rest, tail) || (length > rest && name[length - rest - 1] != '.')) return false;
    while (part < name + length - rest) {
        const char *end = strchr(part, '.');
        size_t      digits = strspn(part, "0123456789");
        if (digits && digits < 19 && part + digits == end) last = strtoll(part, NULL, 10);
        part = end + 1;
    }
    return last == layer;
}

/* Remembers a place where a layer starts; a second one is refused. Takes over prefix. */
static int32_t add_candidate(struct loader *l, const struct layout *layout, char *prefix)
{
    char first[100], second[100];
    if (!prefix) return refuse(l, ATTN_LAYER_E_MEMORY, "no memory for a tensor's name");
    if (!l->layout) {
        l->layout = layout, l->prefix = prefix;
        return ATTN_OK;
    }
    refuse(l, ATTN_LAYER_E_LAYOUT, "layer %lld is there more than once, at %.80s and at %.80s; say which by options.prefix",
           (long long)l->layer, plain(first, l->prefix), plain(second, prefix));
    free(prefix);
    return ATTN_LAYER_E_LAYOUT;
}

static int32_t look_for(struct loader *l, const struct layout *layout)
{
    io_array array;
    int32_t  status = ATTN_OK;
    if (l->options.prefix) {
        int found = find(l, l->options.prefix, layout->weight[0], &array);
        return found ? add_candidate(l, layout, found > 0 ? joined(l->options.prefix, "") : NULL) : ATTN_OK;
    }
    for (int64_t i = 0; !layout->stem && !status && i < io_store_count(l->store); i++) {
        const char *name = io_store_name(l->store, i);
        if (any_prefix_fits(name, layout->weight[0], l->layer))
            status = add_candidate(l, layout, strndup(name, strlen(name) - strlen(layout->weight[0])));
    }
    for (int i = 0; layout->stem && !status && i < 4 && layout->families[i]; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "%s%s%lld.", layout->families[i], layout->stem, (long long)l->layer);
        int found = find(l, prefix, layout->weight[0], &array);
        if (found) status = add_candidate(l, layout, found > 0 ? joined(prefix, "") : NULL);
    }
    return status;
}

static int32_t find_layout(struct loader *l)
{
    char   looked[200] = "", name[100];
    size_t used = 0;
    for (int i = 0; i < LAYOUTS; i++) {
        int32_t status = look_for(l, &layouts[i]);
        if (status) return status;
        if (l->options.prefix)
            snprintf(name, sizeof name, "%s", layouts[i].weight[0]);
        else if (layouts[i].stem)
            snprintf(name, sizeof name, "%s%lld.%s", layouts[i].stem, (long long)l->layer, layouts[i].weight[0]);
        else
            snprintf(name, sizeof name, "*.%lld.*.%s", (long long)l->layer, layouts[i].weight[0]);
        if (used < sizeof looked) used += (size_t)snprintf(looked + used, sizeof looked - used, "%s%s", i ? ", " : "", name);
    }
    if (l->layout) return ATTN_OK;
    if (l->options.prefix)
        return refuse(l, ATTN_LAYER_E_LAYOUT, "no layer of a known layout at prefix %.60s; looked for %s after it",
                      plain(name, l->options.prefix), looked);
    return refuse(l, ATTN_LAYER_E_LAYOUT, "no layer %lld of a known layout; looked for %s", (long long)l->layer, looked);
}

static int32_t refuse_variants(struct loader *l)
{
    io_array array;
    for (size_t i = 0; i < sizeof spoiling_tensors / sizeof *spoiling_tensors; i++) {
        if (spoiling_tensors[i].layout != l->layout->id) continue;
        int found = find(l, l->prefix, spoiling_tensors[i].tensor, &array);
        if (found < 0) return refuse(l, ATTN_LAYER_E_MEMORY, "no memory for a tensor's name");
        if (found)
            return refuse(l, ATTN_LAYER_E_UNSUPPORTED, "the layer has a tensor %s: it uses %s, which this version does not compute",
                          spoiling_tensors[i].tensor, spoiling_tensors[i].why);
    }
    for (size_t i = 0; i < sizeof spoiling_config / sizeof *spoiling_config; i++) {
        json_t *said = json_object_get(l->config, spoiling_config[i].key);
        if (spoiling_config[i].layout != l->layout->id || !said || json_is_null(said)) continue;
        const char *text = json_is_true(said) ? "true" : json_is_false(said) ? "false" : json_string_value(said);
        char        shown[100];
        if ((text && !strcmp(text, spoiling_config[i].value)) == spoiling_config[i].equal)
            return refuse(l, ATTN_LAYER_E_UNSUPPORTED,
                          "config.json says %s = %.60s: the layer uses %s, which this version does not compute", spoiling_config[i].key,
                          plain(shown, text ? text : "something that is not text"), spoiling_config[i].why);
    }
    return ATTN_OK;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------------------------- */

/* The tensor of that name as it stands in the file, checked for rank and type. Needed or not: none leaves data NULL. */
static int32_t get_tensor(struct loader *l, const char *name, int32_t rank, bool needed, io_array *array)
{
    memset(array, 0, sizeof *array);
    int found = name ? find(l, l->prefix, name, array) : 0;
    if (found < 0) return refuse(l, ATTN_LAYER_E_MEMORY, "no memory for a tensor's name");
    if (!found && name && needed)
        return refuse(l, ATTN_LAYER_E_LAYOUT, "the file has %s of this layer (%s) but no %s", l->layout->weight[0],
                      attn_layer_layout_name(l->layout->id), name);
    if (!found) return ATTN_OK;
    if (array->dtype != IO_F32 && array->dtype != IO_F16 && array->dtype != IO_BF16)
        return refuse(l, ATTN_LAYER_E_UNSUPPORTED, "%s is stored as %s; this version loads f32, f16 and bf16", name,
                      array->dtype ? io_dtype_name(array->dtype) : "something that the reader cannot hand out");
    if (array->rank != rank) return refuse(l, ATTN_LAYER_E_LAYOUT, "%s has %d axes; this layout has %d", name, (int)array->rank, (int)rank);
    for (int i = 0; i < rank; i++)
        if (array->shape[i] < 1 || array->shape[i] > INT32_MAX)
            return refuse(l, ATTN_LAYER_E_LAYOUT, "%s has %lld elements on axis %d; it must be from 1 to 2^31 - 1", name,
                          (long long)array->shape[i], i);
    return ATTN_OK;
}

static int32_t get_tensors(struct loader *l)
{
    for (int i = 0; i < 4; i++) {
        int32_t status = get_tensor(l, l->layout->weight[i], 2, true, &l->weight[i]);
        if (!status) status = get_tensor(l, l->layout->bias[i], 1, false, &l->bias[i]);
        if (status) return status;
    }
    return ATTN_OK;
}

/* A copy as contiguous f32, owned by l->to; slot is 0 to 3 for weights, 4 to 7 for biases. NULL: no memory. Arrays of a store are in C order. */
static const float *copy_tensor(struct loader *l, int slot, const io_array *array)
{
    int64_t count = array->shape[0] * (array->rank > 1 ? array->shape[1] : 1);
    float  *copy = malloc((size_t)count * sizeof *copy);
    if (copy && array->dtype == IO_F32)
        memcpy(copy, array->data, (size_t)count * sizeof *copy);
    else if (copy)
        for (int64_t i = 0; i < count; i++) copy[i] = (float)io_get(array, i);
    return l->to->data[slot] = copy;
}

/* ---- shapes and views ------------------------------------------------------------------------------------------------------------- */

/* Whether rows are inputs. Only c_attn has both: its bias is as long as its outputs are many, and without one the longer side are the outputs. */
static bool rows_are_inputs(const struct loader *l)
{
    const int64_t *shape = l->weight[0].shape, outputs = l->bias[0].data ? l->bias[0].shape[0] : 0;
    if (l->layout->id != ATTN_LAYER_LAYOUT_GPT2) return false;
    if (outputs && (outputs == shape[0]) != (outputs == shape[1])) return outputs == shape[1];
    return shape[1] > shape[0];
}

/* Sizes from shapes; every way in which they can disagree. outs and ins of the four weights; fused: [0] holds all outputs. */
static int32_t fit_shapes(struct loader *l, const int64_t outs[4], const int64_t ins[4], bool fused)
{
    attn_layer_checkpoint *c = &l->to->public;
    const int64_t          h = c->heads, g = c->kv_heads;
    const int64_t          all_q = fused ? ins[3] : outs[0]; /* fused: q is as wide as the output projection's input */
    char                   name[100];
    const char            *where = plain(name, l->prefix);
    if (all_q % h)
        return refuse(l, ATTN_LAYER_E_LAYOUT, "%s: %lld channels of q are not a multiple of heads = %lld", where, (long long)all_q,
                      (long long)h);
    c->dim = all_q / h;
    c->value_dim = fused ? c->dim : outs[2] / g;
    c->width = ins[0], c->key_width = fused ? ins[0] : ins[1], c->value_width = fused ? ins[0] : ins[2], c->out_width = outs[3];
    if (fused && outs[0] != all_q + 2 * g * c->dim)
        return refuse(l, ATTN_LAYER_E_LAYOUT,
                      "%s: %s has %lld outputs; with heads = %lld, kv_heads = %lld of %lld channels it would have %lld", where,
                      l->layout->weight[0], (long long)outs[0], (long long)h, (long long)g, (long long)c->dim,
                      (long long)(all_q + 2 * g * c->dim));
    if (!fused && outs[1] != g * c->dim)
        return refuse(l, ATTN_LAYER_E_LAYOUT, "%s: %s has %lld outputs; with kv_heads = %lld of %lld channels it would have %lld", where,
                      l->layout->weight[1], (long long)outs[1], (long long)g, (long long)c->dim, (long long)(g * c->dim));
    if (!fused && (outs[2] % g || ins[3] != h * c->value_dim))
        return refuse(l, ATTN_LAYER_E_LAYOUT,
                      "%s: %s has %lld outputs and %s %lld inputs; with heads = %lld and kv_heads = %lld they do not fit", where,
                      l->layout->weight[2], (long long)outs[2], l->layout->weight[3], (long long)ins[3], (long long)h, (long long)g);

    const bool    one = !l->layout->bias[1]; /* one bias for q, k and v, which may come with three weights */
    const int64_t lengths[4] = {one ? h * c->dim + g * c->dim + g * c->value_dim : h * c->dim, g * c->dim, g * c->value_dim, c->out_width};
    for (int i = 0; i < 4; i++)
        if (l->bias[i].data && l->bias[i].shape[0] != lengths[i])
            return refuse(l, ATTN_LAYER_E_LAYOUT, "%s: %s has %lld elements; the weights have %lld outputs", where, l->layout->bias[i],
                          (long long)l->bias[i].shape[0], (long long)lengths[i]);
    return ATTN_OK;
}

/* Copies what the file has and points q, k, v and o at it. first[i]: the output at which part i begins in a fused tensor. */
static int32_t make_views(struct loader *l, bool turned)
{
    attn_layer_checkpoint *c = &l->to->public;
    attn_in               *views[] = {&c->w_q, &c->w_k, &c->w_v, &c->w_o}, *biases[] = {&c->b_q, &c->b_k, &c->b_v, &c->b_o};
    const int64_t          first[4] = {0, c->heads * c->dim, (c->heads + c->kv_heads) * c->dim, 0};
    const float           *w = NULL, *b = NULL;
    int64_t                row = 0;
    for (int i = 0; i < 4; i++) {
        const bool own = l->layout->weight[i] != NULL, own_bias = l->layout->bias[i] != NULL;
        if (own) w = copy_tensor(l, i, &l->weight[i]), row = l->weight[i].shape[1];
        if (own_bias) b = l->bias[i].data ? copy_tensor(l, 4 + i, &l->bias[i]) : NULL;
        if (!w || (own_bias && l->bias[i].data && !b)) return refuse(l, ATTN_LAYER_E_MEMORY, "no memory for the layer's weights");
        int64_t skip = own ? 0 : first[i];
        *views[i] = turned ? attn_layer_conv1d(w + skip, row) : attn_layer_linear(w + skip * row, row);
        if (b) *biases[i] = attn_layer_bias(own_bias ? b : b + first[i]);
    }
    return ATTN_OK;
}

static int32_t take_layer(struct loader *l)
{
    attn_layer_checkpoint *c = &l->to->public;
    int32_t                status = get_tensors(l);
    if (status) return status;
    const bool fused = !l->layout->weight[1], turned = rows_are_inputs(l);
    int64_t    outs[4], ins[4];
    for (int i = 0; i < 4; i++) outs[i] = l->weight[i].shape[turned], ins[i] = l->weight[i].shape[!turned];

    c->layout = l->layout->id == ATTN_LAYER_LAYOUT_GPT2 && !turned ? ATTN_LAYER_LAYOUT_NANOGPT : l->layout->id;
    c->causal = l->layout->causal || (c->layout == ATTN_LAYER_LAYOUT_BERT && json_is_true(json_object_get(l->config, "is_decoder")));
    status = fit_shapes(l, outs, ins, fused);
    if (!status) status = make_views(l, turned);
    if (status) return status;

    char name[100];
    c->prefix = l->to->prefix = l->prefix;
    l->prefix = NULL;
    c->description = l->to->description;
    snprintf(l->to->description, sizeof l->to->description,
             "%s layout at \"%s\", %lld wide, %lld heads of %lld channels (heads from %s), %lld key heads, stored as %s, %s",
             attn_layer_layout_name(c->layout), plain(name, c->prefix), (long long)c->width, (long long)c->heads, (long long)c->dim,
             l->heads_from, (long long)c->kv_heads, io_dtype_name(l->weight[0].dtype), c->b_q.data ? "with biases" : "without biases");
    return ATTN_OK;
}

/* ---- public ----------------------------------------------------------------------------------------------------------------------- */

static bool ends(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static int32_t check_request(struct loader *l, const char *path, const attn_layer_load_options *options)
{
    if (!path) return refuse(l, ATTN_LAYER_E_ARGUMENT, "path is NULL");
    if (options) {
        int32_t status = attn_layer_read("options", options, FIRST_LOAD_OPTIONS, sizeof l->options, &l->options, l->error);
        if (status) return status;
    }
    const int64_t heads = l->options.heads, kv = l->options.kv_heads;
    if (heads < 0 || heads > MOST_HEADS)
        return refuse(l, ATTN_LAYER_E_ARGUMENT, "options.heads is %lld; it must be from 1 to %d, or 0 for not said", (long long)heads,
                      MOST_HEADS);
    if (kv < 0 || kv > MOST_HEADS)
        return refuse(l, ATTN_LAYER_E_ARGUMENT, "options.kv_heads is %lld; it must be from 1 to %d, or 0 for not said", (long long)kv,
                      MOST_HEADS);
    if (l->options.prefix ? l->layer != -1 : l->layer < 0)
        return refuse(l, ATTN_LAYER_E_ARGUMENT, "layer is %lld; it must be %s", (long long)l->layer,
                      l->options.prefix ? "-1 when options.prefix says where the layer is" : "0 or more");
    if (ends(path, ".index.json"))
        return refuse(l, ATTN_LAYER_E_UNSUPPORTED,
                      "the file is the index of a sharded checkpoint; name the .safetensors shard that holds the layer");
    if (!ends(path, ".safetensors"))
        return refuse(l, ATTN_LAYER_E_UNSUPPORTED,
                      "the file's name does not end in .safetensors, the one kind of checkpoint that is read "
                      "(a pickled .bin or .pt must be converted first)");
    return ATTN_OK;
}

static int32_t load(struct loader *l, const char *path, const attn_layer_load_options *options)
{
    io_error said;
    int32_t  status = check_request(l, path, options);
    if (status) return status;
    l->store = io_store_open(path, &said);
    if (!l->store) return refuse(l, said.status == IO_E_MEMORY ? ATTN_LAYER_E_MEMORY : ATTN_LAYER_E_FILE, "%.250s", said.message);
    l->to = calloc(1, sizeof *l->to);
    if (!l->to) return refuse(l, ATTN_LAYER_E_MEMORY, "no memory for a checkpoint");
    attn_layer_checkpoint *c = &l->to->public;
    c->size = sizeof *c;
    status = read_config(l, path);
    if (!status) status = find_layout(l);
    if (!status) status = refuse_variants(l);
    if (!status) status = find_heads(l, &c->heads, &c->kv_heads);
    if (!status) status = take_layer(l);
    return status;
}

int32_t attn_layer_load(const char *path, int64_t layer, const attn_layer_load_options *options, attn_layer_checkpoint **checkpoint,
                        attn_error *error)
{
    struct loader l = {.layer = layer, .error = error};
    if (!checkpoint) return attn_layer_fail(error, ATTN_LAYER_E_ARGUMENT, "checkpoint is NULL");
    *checkpoint = NULL;
    int32_t status = load(&l, path, options);
    io_store_close(l.store);
    json_decref(l.config);
    free(l.prefix);
    if (status) {
        if (l.to) attn_layer_free(&l.to->public);
        return status;
    }
    *checkpoint = &l.to->public;
    return attn_layer_ok(error);
}

void attn_layer_free(attn_layer_checkpoint *checkpoint)
{
    struct loaded *loaded = (struct loaded *)checkpoint;
    if (!loaded) return;
    for (int i = 0; i < 8; i++) free(loaded->data[i]);
    free(loaded->prefix);
    free(loaded);
}
