/* attn_layer.h: a multi-head attention layer over attn.h, and a loader for one layer of a checkpoint. This header is the manual.
 * SPDX-License-Identifier: MIT
 *
 * WHAT IT COMPUTES
 *
 * From hidden states x (batch, tokens, width), for every batch entry:
 *
 *     q = x   W_Q^T + b_Q        (queries, heads    * dim)         head h owns channels h * dim .. h * dim + dim - 1
 *     k = x_k W_K^T + b_K        (keys,    kv_heads * dim)         x_k = x_key   when given (cross-attention), else x
 *     v = x_v W_V^T + b_V        (keys,    kv_heads * value_dim)   x_v = x_value when given, else x_k
 *     y = the operator of attn.h, head by head, its heads side by side (queries, heads * value_dim)
 *     out = y W_O^T + b_O        (queries, out_width)
 *
 * W[o, i] is the weight from input channel i to output channel o. The four biases are each optional. Everything the operator can do
 * is asked for through `options`, a descriptor of attn.h in which only masks and options are filled: causal, align, window, query_offset,
 * query_count, key_count, key_start, allow, bias, alibi, sink, scale, softcap, lse, weights, weights_stage, isa, executor. They mean what
 * attn.h says: options->weights receives every head's weights, and query head h reads key head h / (heads / kv_heads). There is no residual,
 * normalisation, dropout or rotary embedding in here.
 *
 * A token past query_count has y = 0 exactly, so its out is b_O (or 0 without one). What x holds at a token that nobody sees, NaN included,
 * reaches the results of no other token.
 *
 * WEIGHT ORDER, FUSED WEIGHTS
 *
 * A weight is a view with two axes, (output, input), which are stride[2] and stride[3]; one of the two strides is 1. So every order
 * that files use is a choice of strides, and a fused matrix is three views into it; nothing is transposed or copied:
 *
 *     torch Linear (rows are outputs), separate:     attn_layer_linear(w, inputs)
 *     torch MHA in_proj_weight (3 E, E):             attn_layer_linear(w, E), attn_layer_linear(w + E * E, E), attn_layer_linear(w + 2 * E * E, E)
 *     GPT-2 Conv1D c_attn (E, 3 E), rows are inputs: attn_layer_conv1d(w, 3 * E), attn_layer_conv1d(w + E, 3 * E), attn_layer_conv1d(w + 2 * E, 3 * E)
 *
 * With grouped heads k begins at output heads * dim and v at (heads + kv_heads) * dim.
 *
 * MEMORY
 *
 * attn_layer_work_bytes() tells what a call needs: q, k, v and y in f32, and the operator's own work:
 *
 *     bytes = 4 * batch * (queries * heads * (dim + value_dim) + keys * kv_heads * (dim + value_dim)), each of the four rounded up to 64,
 *             + attn_work_bytes() + 63
 *
 * With `work` given the layer allocates nothing. The CBLAS library may: OpenBLAS keeps buffers of its own, made at its first call.
 *
 * THREADS: WHAT CBLAS DOES
 *
 * The operator runs on the calling thread, or on options->executor. The four projections are cblas_sgemm() calls, one per batch entry and projection,
 * and run as the CBLAS library that the process loaded is set up, which this library neither reads nor changes, since that setting belongs to the
 * whole process. OpenBLAS as most systems ship it starts a thread per CPU when it is loaded and uses them for large products. A program that does not want
 * that sets OPENBLAS_NUM_THREADS=1 in its environment before start, or calls openblas_set_num_threads(1). The layer itself starts no thread.
 *
 * THE SAME BITS
 *
 * The operator keeps its promises (attn.h) given the same q, k, v. The projections are as reproducible as the CBLAS library is: the bits of a
 * batch entry do not depend on the batch that it sits in or on which optional outputs are asked for, but they may depend on the number of tokens and
 * on OpenBLAS's CPU type and thread count. The calling thread's floating-point environment is the default one during the call and the caller's
 * afterwards.
 *
 * LIMITS OF THIS VERSION
 *
 * x, weights, biases, out and the optional q, k, v, y are f32; others are refused (attn_layer_load() turns f16 and bf16 files into f32).
 * queries, keys, every width, heads * dim, heads * value_dim and every stride that CBLAS sees must be below 2^31.
 *
 * ABI: attn_layer_desc, attn_layer_load_options and attn_layer_checkpoint only grow at their ends; the numbers of codes and layouts stay.
 *
 * EXAMPLE: a layer from weights in memory. One head over two tokens (1, 0) and (0, 1) that look for what they are; prints 6.698 3.302, 3.302 6.698.
 *
 * @example weights
 * #include <attn/attn_layer.h>
 * #include <stdio.h>
 * int main(void)
 * {
 *     const float     x[] = {1, 0, 0, 1}, same[] = {1, 0, 0, 1}, tenfold[] = {10, 0, 0, 10};
 *     float           out[4];
 *     attn_layer_desc d = attn_layer_desc_new();
 *     d.batch = 1, d.heads = d.kv_heads = 1, d.queries = d.keys = 2, d.dim = d.value_dim = 2;
 *     d.width = d.key_width = d.value_width = d.out_width = 2;
 *     d.x   = attn_layer_tokens(x, 2, 2);
 *     d.w_q = d.w_k = d.w_o = attn_layer_linear(same, 2);
 *     d.w_v = attn_layer_linear(tenfold, 2);
 *     d.out = attn_layer_tokens_out(out, 2, 2);
 *     attn_error e;
 *     if (attn_layer_run(&d, &e) != ATTN_OK) { fprintf(stderr, "%s\n", e.message); return 1; }
 *     printf("%.3f %.3f\n%.3f %.3f\n", out[0], out[1], out[2], out[3]);
 *     return 0;
 * }
 * @end
 *
 * EXAMPLE: a layer of a checkpoint over one text, with the weights of every head. examples/layer.c is a program around it.
 *
 * @example layer
 * #include <attn/attn_layer.h>
 * #include <stdio.h>
 * // x (tokens, width), out (tokens, out_width), weights (heads, tokens, tokens)
 * int look(const char *path, int64_t layer, int64_t tokens, const float *x, float *out, float *weights)
 * {
 *     attn_error             e;
 *     attn_layer_checkpoint *c = NULL;
 *     int                    bad = attn_layer_load(path, layer, NULL, &c, &e);
 *     if (!bad) {
 *         attn_desc o = attn_desc_new();
 *         o.causal  = c->causal;
 *         o.weights = attn_out_dense(weights, ATTN_F32, c->heads, tokens, tokens);
 *         attn_layer_desc d = attn_layer_desc_from(c);
 *         d.batch = 1, d.queries = d.keys = tokens, d.options = &o;
 *         d.x   = attn_layer_tokens(x, tokens, c->width);
 *         d.out = attn_layer_tokens_out(out, tokens, c->out_width);
 *         bad   = attn_layer_run(&d, &e);
 *     }
 *     if (bad) fprintf(stderr, "%s\n", e.message);
 *     attn_layer_free(c);
 *     return bad != 0;
 * }
 * @end
 */
#ifndef ATTN_ATTN_LAYER_H
#define ATTN_ATTN_LAYER_H

#include <attn/attn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- codes ------------------------------------------------------------------------------------------------------------------------ */

/* What a function of this header returns: ATTN_OK; one of these; or a code of attn.h when the operator refuses the `options` it was handed
 * (the message is then the operator's, and names its fields). 101 to 105 mean what 1 to 5 mean in attn.h. */
enum {
    ATTN_LAYER_E_ARGUMENT = 101,    /* a field is out of its rule; the message names the field, its value and the rule */
    ATTN_LAYER_E_UNSUPPORTED = 102, /* legal, but not in this version: a dtype, a kind of file, a variant of a model */
    ATTN_LAYER_E_TOO_NEW = 103,     /* the caller's struct uses fields that this library does not know */
    ATTN_LAYER_E_MEMORY = 104,      /* an allocation failed; never when `work` is given */
    ATTN_LAYER_E_WORK = 105,        /* work_bytes is less than attn_layer_work_bytes() says */
    ATTN_LAYER_E_FILE = 106,        /* a file cannot be opened or read, or is not what it says */
    ATTN_LAYER_E_LAYOUT = 107, /* the file was read, but holds no layer of a known layout there, or several, or one whose shapes disagree */
    ATTN_LAYER_E_HEADS = 108   /* neither the options nor the file nor config.json says how many heads there are */
};

/* ---- the layer -------------------------------------------------------------------------------------------------------------------- */

/* One call. Start from attn_layer_desc_new() or attn_layer_desc_from(); for every field but the sizes 0 means "default" or "absent".
 * Views are attn_in and attn_out of attn.h with its rules (element strides, `bytes`, dtype, reserved 0); strides of axes that an operand does not
 * have are 0; axes of size 1 do not count. */
typedef struct attn_layer_desc {
    size_t size; /* set by attn_layer_desc_new() */

    /* Sizes mean themselves, 0 included, as in attn.h. `queries` counts the tokens of x, `keys` those of x_key (equal without x_key). `width`, `key_width`,
     * `value_width` are the channels of x, x_key, x_value and so the inputs of W_Q, W_K, W_V; without x_key (x_value) they are equal. */
    int64_t batch, heads, kv_heads;
    int64_t queries, keys, dim, value_dim;
    int64_t width, key_width, value_width, out_width;

    /* Hidden states; axes (batch, none, token, channel). Of the token and channel strides one is 1 and the other at least the size of the other axis;
     * the batch stride is free (0 repeats). x_key and x_value: absent for self-attention; x_value absent: values come from x_key too. */
    attn_in x, x_key, x_value;

    /* Weights; axes (none, none, output, input), the same stride rule. Biases: one axis, output, any stride[3]; absent: none. */
    attn_in w_q, w_k, w_v, w_o;
    attn_in b_q, b_k, b_v, b_o;

    /* Axes (batch, none, token, channel); channel stride 1, token stride at least out_width. May be absent when q, k, v or y is asked for or options
     * asks for lse or weights; w_o and b_o must be absent then too, and out_width 0. */
    attn_out out;

    /* Optional copies of what stands in between, any strides: the projected q, k, v and the heads' results y before the output projection.
     * Axes (batch, head, token, channel); for "heads side by side" (batch, tokens, heads * dim) use strides {tokens * heads * dim, dim, heads * dim, 1}. */
    attn_out q, k, v, y;

    /* The operator's options, or NULL for none. Its sizes, q, k, v, out, work and work_bytes belong to the layer and must be 0. */
    const attn_desc *options;

    void  *work;       /* NULL: allocated for the call and freed; else at least attn_layer_work_bytes() bytes, any alignment, */
    size_t work_bytes; /* not used by another call at the same time */
} attn_layer_desc;

/* A descriptor with every field 0 but `size`. Sizes of older and newer callers are read as attn_desc's are (attn.h). */
static inline attn_layer_desc attn_layer_desc_new(void)
{
    attn_layer_desc d;
    memset(&d, 0, sizeof d);
    d.size = sizeof d;
    return d;
}

/* Checks and runs. Returns ATTN_OK or a code; an error is found before anything is written. Inputs are only read, nothing is kept after the call.
 * Any threads may call at the same time. `error` may be NULL. */
ATTN_API int32_t attn_layer_run(const attn_layer_desc *desc, attn_error *error);

/* Only the check that attn_layer_run() makes, data pointers and options included; work is not looked at. */
ATTN_API int32_t attn_layer_check(const attn_layer_desc *desc, attn_error *error);

/* The bytes that attn_layer_run() needs as `work`, into *bytes. They depend on the sizes and on options->isa and options->executor; data
 * pointers may still be NULL. */
ATTN_API int32_t attn_layer_work_bytes(const attn_layer_desc *desc, size_t *bytes, attn_error *error);

/* ---- gradients -------------------------------------------------------------------------------------------------------------------- */

/* The gradients of some number that depends on the layer's out, d_out being its derivative by out:
 *
 *     dW_O = d_out^T y    db_O = sum d_out    dy = d_out W_O    (dq, dk, dv) from dy as attn_backward() has them, head by head
 *     dW_Q = dq^T x       db_Q = sum dq       dx = dq W_Q + (without x_key: dk W_K) + (without x_value too: dv W_V)
 *     dW_K = dk^T x_k     db_K = sum dk       dx_key = dk W_K + (without x_value: dv W_V)
 *     dW_V = dv^T x_v     db_V = sum dv       dx_value = dv W_V
 *
 * Start from attn_layer_gradients_new(); what is not given is not computed. All are f32. Views have the axes of what they are the gradients of and
 * the stride rules of outputs; of the last two strides either may be 1, so the gradient of a fused weight is three views into one matrix. The run's
 * q, k, v and y are computed again, so a run need not keep anything. A token that nobody sees has a dx_key and dx_value of 0 exactly and reaches no
 * other gradient, whatever x holds there.
 *
 *     bytes = attn_layer_work_bytes() + 4 * batch * (queries * heads * (dim + 2 * value_dim + 1) + keys * kv_heads * (dim + value_dim)), each part rounded
 *             up to 64, + attn_backward_work_bytes()
 *
 * @example layer_gradients
 * #include <attn/attn_layer.h>
 * // one step of training: out, then the gradients of the four weights (width, width) and of x, all dense
 * int step(int64_t tokens, int64_t width, int64_t heads, const float *x, const float *const w[4], float *out, const float *d_out,
 *          float *dx, float *const dw[4], attn_error *e)
 * {
 *     attn_layer_desc d = attn_layer_desc_new();
 *     d.batch = 1, d.heads = d.kv_heads = heads, d.queries = d.keys = tokens, d.dim = d.value_dim = width / heads;
 *     d.width = d.key_width = d.value_width = d.out_width = width;
 *     d.x   = attn_layer_tokens(x, tokens, width);
 *     d.w_q = attn_layer_linear(w[0], width), d.w_k = attn_layer_linear(w[1], width);
 *     d.w_v = attn_layer_linear(w[2], width), d.w_o = attn_layer_linear(w[3], width);
 *     d.out = attn_layer_tokens_out(out, tokens, width);
 *     attn_layer_gradients g = attn_layer_gradients_new();
 *     g.d_out = attn_layer_tokens(d_out, tokens, width);
 *     g.dx    = attn_layer_tokens_out(dx, tokens, width);
 *     g.dw_q  = attn_layer_linear_out(dw[0], width), g.dw_k = attn_layer_linear_out(dw[1], width);
 *     g.dw_v  = attn_layer_linear_out(dw[2], width), g.dw_o = attn_layer_linear_out(dw[3], width);
 *     int32_t bad = attn_layer_run(&d, e);
 *     return bad ? bad : attn_layer_backward(&d, &g, e);
 * }
 * @end
 */
typedef struct attn_layer_gradients {
    size_t   size; /* set by attn_layer_gradients_new() */
    attn_in  d_out;
    attn_out dx, dx_key, dx_value;
    attn_out dw_q, dw_k, dw_v, dw_o;
    attn_out db_q, db_k, db_v, db_o;
    attn_out dbias, dsink, dalibi; /* of the operator's options, as in attn_backward_desc */
    int32_t  accumulate, reserved; /* 1: gradients are added to what stands there */
    void    *work;                 /* as in attn_layer_desc, at least attn_layer_backward_work_bytes() */
    size_t   work_bytes;
} attn_layer_gradients;

static inline attn_layer_gradients attn_layer_gradients_new(void)
{
    attn_layer_gradients g;
    memset(&g, 0, sizeof g);
    g.size = sizeof g;
    return g;
}

/* Checks and computes. `desc` is that of the run; its out, q, k, v, y and work, and the lse and weights of its options, are not looked at. */
ATTN_API int32_t attn_layer_backward(const attn_layer_desc *desc, const attn_layer_gradients *grad, attn_error *error);

/* The bytes that attn_layer_backward() needs as grad->work, into *bytes; data pointers may still be NULL where a dtype is set. */
ATTN_API int32_t attn_layer_backward_work_bytes(const attn_layer_desc *desc, const attn_layer_gradients *grad, size_t *bytes,
                                                attn_error *error);

/* "argument", "layout", ... for 101 to 108; what attn_status_name() says for the others. A static string. */
ATTN_API const char *attn_layer_status_name(int32_t status);

/* ---- checkpoints ------------------------------------------------------------------------------------------------------------------ */

/* Layouts that attn_layer_load() recognises; N is the layer's number, and [..] may be missing.
 *
 *   BERT       [bert.|roberta.|electra.]encoder.layer.N.attention.self.{query,key,value}.{weight,bias}, .attention.output.dense.{weight,bias}
 *   DISTILBERT [distilbert.]transformer.layer.N.attention.{q_lin,k_lin,v_lin,out_lin}.{weight,bias}
 *   TORCH_MHA  PREFIX{in_proj_weight,in_proj_bias,out_proj.weight,out_proj.bias} of torch.nn.MultiheadAttention, or {q,k,v}_proj_weight in place of
 *              in_proj_weight; the last whole number in PREFIX (layers.N.self_attn.) is the layer's number, and a PREFIX without one is layer 0
 *   GPT2       [transformer.]h.N.attn.{c_attn,c_proj}.{weight,bias}, rows are inputs (Conv1D): c_attn.weight is (E, outputs)
 *   NANOGPT    the same names, rows are outputs (Linear): c_attn.weight is (outputs, E)
 *
 * Biases may be missing everywhere. GPT2 and NANOGPT are told apart by which side of c_attn.weight is as long as c_attn.bias, or without one by which is
 * the longer. */
enum {
    ATTN_LAYER_LAYOUT_BERT = 1,
    ATTN_LAYER_LAYOUT_DISTILBERT = 2,
    ATTN_LAYER_LAYOUT_TORCH_MHA = 3,
    ATTN_LAYER_LAYOUT_GPT2 = 4,
    ATTN_LAYER_LAYOUT_NANOGPT = 5
};

/* For every field 0 means "not said". */
typedef struct attn_layer_load_options {
    size_t      size;            /* set by attn_layer_load_options_new() */
    int64_t     heads, kv_heads; /* win over what the files say; kv_heads not said anywhere: heads */
    const char *prefix; /* all that stands before the layout's own names, number included, such as "decoder.layers.3.multihead_attn." or */
                        /* "bert.encoder.layer.3."; for files with several kinds of attention. The argument `layer` must be -1 then. */
} attn_layer_load_options;

static inline attn_layer_load_options attn_layer_load_options_new(void)
{
    attn_layer_load_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    return o;
}

/* A loaded layer. Made by attn_layer_load(), which owns all that it points to until attn_layer_free(); read only, may be shared by threads. */
typedef struct attn_layer_checkpoint {
    size_t  size;
    int64_t heads, kv_heads, dim, value_dim;
    int64_t width, key_width, value_width, out_width;
    attn_in w_q, w_k, w_v, w_o; /* f32 */
    attn_in b_q, b_k, b_v, b_o; /* data NULL: the file has none */
    int32_t
        causal; /* 1: a layer of this family masks later positions (GPT-2; BERT with is_decoder in config.json); a hint, nothing applies it */
    int32_t     layout;      /* ATTN_LAYER_LAYOUT_... */
    const char *prefix;      /* where it was found: "bert.encoder.layer.3." */
    const char *description; /* one line for people: the layout, the prefix, sizes, stored dtype, and where heads was read */
} attn_layer_checkpoint;

/* Reads layer `layer` (from 0) of the .safetensors file `path`. f32 weights are copied, f16 and bf16 turned into f32, others refused. heads is taken from options,
 * else from the file's own __metadata__, else from config.json in the same folder (num_attention_heads, n_head or n_heads; num_key_value_heads).
 * A sharded checkpoint's index.json and pickled .bin or .pt files are refused. Variants that these layouts' formula does not cover are refused where the file
 * or config.json shows them: relative position embeddings, rotary embeddings, bias_k and bias_v, GPT-2's other scales. What leaves no trace there (torch's
 * add_zero_attn) goes unnoticed.
 * `options` may be NULL. On success *checkpoint is the caller's to free; on failure it is NULL. */
ATTN_API int32_t attn_layer_load(const char *path, int64_t layer, const attn_layer_load_options *options,
                                 attn_layer_checkpoint **checkpoint, attn_error *error);

/* Frees a loaded layer; NULL is allowed. No descriptor may use its weights afterwards. */
ATTN_API void attn_layer_free(attn_layer_checkpoint *checkpoint);

/* "Hugging Face BERT", ...: a static string; "unknown" for a number that is none. */
ATTN_API const char *attn_layer_layout_name(int32_t layout);

/* A descriptor with a loaded layer's sizes and weights; batch, queries, keys, x, out and options remain to be said. */
static inline attn_layer_desc attn_layer_desc_from(const attn_layer_checkpoint *c)
{
    attn_layer_desc d = attn_layer_desc_new();
    d.heads = c->heads, d.kv_heads = c->kv_heads, d.dim = c->dim, d.value_dim = c->value_dim;
    d.width = c->width, d.key_width = c->key_width, d.value_width = c->value_width, d.out_width = c->out_width;
    d.w_q = c->w_q, d.w_k = c->w_k, d.w_v = c->w_v, d.w_o = c->w_o;
    d.b_q = c->b_q, d.b_k = c->b_k, d.b_v = c->b_v, d.b_o = c->b_o;
    return d;
}

/* ---- views ------------------------------------------------------------------------------------------------------------------------ */

/* Contiguous f32 (batch, tokens, width). */
static inline attn_in attn_layer_tokens(const float *data, int64_t tokens, int64_t width)
{
    attn_in t = {data, {tokens * width, 0, width, 1}, 0, ATTN_F32, 0};
    return t;
}

static inline attn_out attn_layer_tokens_out(float *data, int64_t tokens, int64_t width)
{
    attn_out t = {data, {tokens * width, 0, width, 1}, 0, ATTN_F32, 0};
    return t;
}

/* A weight whose rows are outputs (torch Linear); row_length: elements from one row to the next. */
static inline attn_in attn_layer_linear(const float *data, int64_t row_length)
{
    attn_in t = {data, {0, 0, row_length, 1}, 0, ATTN_F32, 0};
    return t;
}

static inline attn_out attn_layer_linear_out(float *data, int64_t row_length)
{
    attn_out t = {data, {0, 0, row_length, 1}, 0, ATTN_F32, 0};
    return t;
}

/* A weight whose rows are inputs (GPT-2 Conv1D); row_length: elements from one row to the next. */
static inline attn_in attn_layer_conv1d(const float *data, int64_t row_length)
{
    attn_in t = {data, {0, 0, 1, row_length}, 0, ATTN_F32, 0};
    return t;
}

static inline attn_out attn_layer_conv1d_out(float *data, int64_t row_length)
{
    attn_out t = {data, {0, 0, 1, row_length}, 0, ATTN_F32, 0};
    return t;
}

/* A contiguous projection bias. */
static inline attn_in attn_layer_bias(const float *data)
{
    attn_in t = {data, {0, 0, 0, 1}, 0, ATTN_F32, 0};
    return t;
}

static inline attn_out attn_layer_bias_out(float *data)
{
    attn_out t = {data, {0, 0, 0, 1}, 0, ATTN_F32, 0};
    return t;
}

#ifdef __cplusplus
}
#endif
#endif
