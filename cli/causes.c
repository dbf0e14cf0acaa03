/* causes.c: the known ways to go wrong with attention, one row each: what the other side does, and how to try it.
 * SPDX-License-Identifier: MIT
 */
#include "causes.h"

#include <math.h>

/* ---- other options ------------------------------------------------------------------------------------------------------------------ */

static int hides(const attn_desc *d)
{
    return d->causal || d->window || d->allow.data || d->bias.data || d->key_count || d->key_start;
}

static int may_be_empty(attempt *t)
{
    return hides(&t->desc) || t->desc.query_count;
}

static int may_be_empty_and_shorter(attempt *t)
{
    return t->desc.key_count || t->desc.key_start;
}

static int masked(attempt *t)
{
    return t->desc.allow.data != NULL;
}

static int something_hidden(attempt *t)
{
    return hides(&t->desc);
}

static int realigned(attn_desc *d, int32_t align)
{
    return (d->causal || d->window || d->alibi.data) && (d->query_offset || d->align != align) &&
           (d->query_offset = NULL, d->align = align);
}

static int top_left(attempt *t)
{
    return realigned(&t->desc, ATTN_ALIGN_TOP_LEFT);
}

static int bottom_right(attempt *t)
{
    return realigned(&t->desc, ATTN_ALIGN_BOTTOM_RIGHT);
}

static int causal_top_left(attempt *t)
{
    attn_desc *d = &t->desc;
    return !d->causal && !d->query_offset && (d->causal = 1) && (d->align = ATTN_ALIGN_TOP_LEFT);
}

static int causal_bottom_right(attempt *t)
{
    attn_desc *d = &t->desc;
    return !d->causal && !d->query_offset && (d->causal = 1) && (d->align = ATTN_ALIGN_BOTTOM_RIGHT);
}

static int not_causal(attempt *t)
{
    return t->desc.causal && !(t->desc.causal = 0);
}

/* Every query `by` places further on; what is counted from its place in other ways would move too. */
static int shifted(attempt *t, int64_t by)
{
    attn_desc *d = &t->desc;
    if (!d->causal || d->window || d->alibi.data) return 0;
    for (int64_t b = 0; b < d->batch; b++) t->counts[b] = seen_offset(d, b) + by;
    d->query_offset = t->counts, d->align = 0;
    return 1;
}

static int strict(attempt *t)
{
    return shifted(t, -1);
}

static int one_later(attempt *t)
{
    return shifted(t, 1);
}

/* Only what causal hides is seen: a window that begins behind the query's own key. */
static int only_later(attempt *t)
{
    if (t->desc.window || !shifted(t, 1)) return 0;
    t->desc.causal = 0, t->desc.window = 1, t->desc.window_left = 0, t->desc.window_right = -1;
    return 1;
}

static int no_mask(attempt *t)
{
    return t->desc.allow.data && (t->desc.allow = (attn_in){0}, 1);
}

static int no_bias(attempt *t)
{
    return t->desc.bias.data && (t->desc.bias = (attn_in){0}, 1);
}

static int no_window(attempt *t)
{
    attn_desc *d = &t->desc;
    return d->window && (d->window = 0, d->window_left = d->window_right = 0, 1);
}

static int narrower_left(attempt *t)
{
    return t->desc.window && t->desc.window_left > 0 && t->desc.window_left--;
}

static int wider_left(attempt *t)
{
    return t->desc.window && t->desc.window_left >= 0 && (t->desc.window_left++, 1);
}

static int narrower_right(attempt *t)
{
    return t->desc.window && t->desc.window_right > 0 && t->desc.window_right--;
}

static int wider_right(attempt *t)
{
    return t->desc.window && t->desc.window_right >= 0 && !t->desc.causal && (t->desc.window_right++, 1);
}

static int no_sink(attempt *t)
{
    return t->desc.sink.data && (t->desc.sink = (attn_in){0}, 1);
}

static int has_no_sink(attempt *t)
{
    return !t->desc.sink.data;
}

static int no_alibi(attempt *t)
{
    return t->desc.alibi.data && (t->desc.alibi = (attn_in){0}, 1);
}

static int alibi(attempt *t)
{
    return t->desc.alibi.data != NULL;
}

static int all_keys(attempt *t)
{
    attn_desc *d = &t->desc;
    return (d->key_count || d->key_start) && (d->key_count = d->key_start = NULL, 1);
}

static int counts(attempt *t, int64_t more)
{
    attn_desc *d = &t->desc;
    if (!d->key_count) return 0;
    for (int64_t b = 0; b < d->batch; b++) t->counts[b] = d->key_count[b] + more;
    d->key_count = t->counts;
    return 1;
}

static int one_less(attempt *t)
{
    return counts(t, -1);
}

static int one_more(attempt *t)
{
    return counts(t, 1);
}

/* ---- other scales ------------------------------------------------------------------------------------------------------------------- */

static double scale_of(const attn_desc *d)
{
    return d->scale_given ? d->scale : d->dim ? 1 / sqrt((double)d->dim) : 1;
}

static int scaled(attempt *t, double scale)
{
    const double before = scale_of(&t->desc);
    return isfinite(scale) && scale != before && (t->desc.scale = scale, t->desc.scale_given = 1);
}

static int unscaled(attempt *t)
{
    return scaled(t, 1);
}

static int scaled_twice(attempt *t)
{
    return scaled(t, scale_of(&t->desc) * scale_of(&t->desc));
}

static int usual_scale(attempt *t)
{
    return scaled(t, 1 / sqrt((double)t->desc.dim));
}

static int model_width(attempt *t)
{
    return scaled(t, 1 / sqrt((double)(t->desc.dim * t->desc.heads)));
}

static int by_dim(attempt *t)
{
    return scaled(t, 1 / (double)t->desc.dim);
}

static int multiplied(attempt *t)
{
    return scaled(t, sqrt((double)t->desc.dim));
}

static int no_cap(attempt *t)
{
    return t->desc.softcap > 0 && (t->desc.softcap = 0, 1);
}

/* A finite bias hides nothing. */
static int bias_hides(const attn_desc *d)
{
    const int64_t *s = d->bias.stride, size[4] = {d->batch, d->heads, d->queries, d->keys};
    int64_t        n[4];
    for (int a = 0; a < 4; a++) n[a] = s[a] ? size[a] : 1;
    for (n[0]--; d->bias.data && n[0] >= 0; n[0]--)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t i = 0; i < n[2]; i++)
                for (int64_t j = 0; j < n[3]; j++)
                    if (seen_bias(d, n[0], h, i, j) == -INFINITY) return 1;
    return 0;
}

static int cap_over_masks(attempt *t)
{
    attn_desc without = t->desc;
    without.bias = (attn_in){0};
    return t->desc.softcap > 0 && (hides(&without) || bias_hides(&t->desc));
}

static int cap_over_bias(attempt *t)
{
    return t->desc.softcap > 0 && (t->desc.bias.data || t->desc.alibi.data);
}

static int bias(attempt *t)
{
    return t->desc.bias.data != NULL;
}

/* ---- other tensors, other axes ------------------------------------------------------------------------------------------------------ */

static int grouped(attempt *t)
{
    return t->desc.heads != t->desc.kv_heads && t->desc.kv_heads > 1;
}

static int several_queries(attempt *t)
{
    return t->desc.queries > 1 && (double)t->desc.queries * (double)t->desc.keys <= 1 << 30;
}

static int several_heads(attempt *t)
{
    return t->desc.heads > 1;
}

static int k_for_v(attempt *t)
{
    attn_desc    *d = &t->desc;
    const attn_in k = d->k;
    return d->dim == d->value_dim && (d->k = d->v, d->v = k, 1);
}

static int k_for_q(attempt *t)
{
    attn_desc    *d = &t->desc;
    const attn_in k = d->k;
    return d->queries == d->keys && d->heads == d->kv_heads && (d->k = d->q, d->q = k, 1);
}

static int layout_applies(const attempt *t)
{
    const attn_desc *d = &t->desc;
    return d->heads > 1 && d->queries > 1 && !d->allow.data && !d->bias.data && !t->lse.array.data && !t->weights.array.data;
}

static void exchange(int64_t *a, int64_t *b)
{
    const int64_t x = *a;
    *a = *b, *b = x;
}

/* Heads taken for positions, and the other way. */
static int axes_exchanged(attempt *t)
{
    attn_desc *d = &t->desc;
    if (!layout_applies(t) || d->query_offset || d->query_count || d->key_count || d->key_start || d->sink.data || d->alibi.data) return 0;
    exchange(&d->heads, &d->queries), exchange(&d->kv_heads, &d->keys);
    exchange(&d->q.stride[1], &d->q.stride[2]), exchange(&d->k.stride[1], &d->k.stride[2]), exchange(&d->v.stride[1], &d->v.stride[2]);
    exchange(&t->out.size[1], &t->out.size[2]), exchange(&t->out.stride[1], &t->out.stride[2]);
    return t->swapped = 1;
}

/* Memory whose two axes of head and position are taken to be in the other order, without moving anything: the inner one becomes the outer. */
static int viewed(int64_t stride[4], int64_t heads, int64_t positions)
{
    const int     heads_outside = stride[1] > stride[2];
    const int64_t inner = heads_outside ? stride[2] : stride[1], outer = heads_outside ? stride[1] : stride[2];
    if (inner <= 0 || outer != inner * (heads_outside ? positions : heads)) return 0; /* not dense */
    stride[heads_outside ? 1 : 2] = inner;
    stride[heads_outside ? 2 : 1] = inner * (heads_outside ? heads : positions);
    return 1;
}

static int inputs_viewed(attempt *t)
{
    attn_desc *d = &t->desc;
    return layout_applies(t) && viewed(d->q.stride, d->heads, d->queries) && viewed(d->k.stride, d->kv_heads, d->keys) &&
           viewed(d->v.stride, d->kv_heads, d->keys);
}

static int output_viewed(attempt *t)
{
    return layout_applies(t) && viewed(t->out.stride, t->desc.heads, t->desc.queries);
}

static int all_viewed(attempt *t)
{
    return inputs_viewed(t) && viewed(t->out.stride, t->desc.heads, t->desc.queries);
}

/* Heads inside the channels as d * heads + h in place of h * D + d. */
static int interleaved(attempt *t)
{
    attn_desc *d = &t->desc;
    if (d->heads == 1 || d->dim < 2 || d->q.stride[1] != d->dim * d->q.stride[3] || d->k.stride[1] != d->dim * d->k.stride[3]) return 0;
    attn_in *const in[] = {&d->q, &d->k, &d->v};
    for (int n = 0; n < 3; n++) {
        const int64_t one = in[n]->stride[3];
        in[n]->stride[1] = one, in[n]->stride[3] = one * (n ? d->kv_heads : d->heads);
    }
    return 1;
}

/* ---- results themselves -------------------------------------------------------------------------------------------------------------- */

static int has_lse(attempt *t)
{
    return t->lse.array.data != NULL;
}

static int has_lse_and_empty(attempt *t)
{
    return t->lse.array.data != NULL && may_be_empty(t);
}

static int has_lse_and_alibi(attempt *t)
{
    return t->lse.array.data != NULL && t->desc.alibi.data != NULL;
}

static int has_weights(attempt *t)
{
    return t->weights.array.data != NULL;
}

static int has_weights_and_cap(attempt *t)
{
    return t->weights.array.data != NULL && t->desc.softcap > 0;
}

static int has_weights_and_more(attempt *t)
{
    return t->weights.array.data != NULL && (hides(&t->desc) || t->desc.alibi.data);
}

static int weights_transposed(attempt *t)
{
    return t->weights.array.data && t->desc.queries == t->desc.keys && (exchange(&t->weights.stride[2], &t->weights.stride[3]), 1);
}

static int has_out(attempt *t)
{
    return t->out.array.data && !t->lse.array.data && !t->weights.array.data;
}

/* ---- the table ---------------------------------------------------------------------------------------------------------------------- */

const cause causes[] = {
    {"inverted-mask", "the mask's true means the other thing there: --hide in place of --allow, or the other way", TWIST_INVERTED, masked},
    {"bottom-right", "the last query stands on the last key there: --align bottom-right", 0, bottom_right},
    {"top-left", "query 0 stands on key 0 there: --align top-left", 0, top_left},
    {"causal-top-left", "it is causal there, query 0 on key 0: --causal --align top-left", 0, causal_top_left},
    {"causal-bottom-right", "it is causal there, the last query on the last key: --causal --align bottom-right", 0, causal_bottom_right},
    {"not-causal", "it is not causal there: no --causal", 0, not_causal},
    {"causal-strict", "causal hides a query's own key too there: the diagonal is off by one", 0, strict},
    {"causal-later", "causal lets a query see one later key there: the diagonal is off by one", 0, one_later},
    {"causal-inverted", "just the keys that causal hides are seen there: the causal mask's true means the other thing", 0, only_later},
    {"mask-ignored", "the mask is not used there: no --allow or --hide", 0, no_mask},
    {"bias-ignored", "the bias is not used there: no --bias", 0, no_bias},
    {"not-scaled", "the scores are not scaled there: --scale 1", 0, unscaled},
    {"scaled-twice", "the scale is applied twice there, as to the queries and again to the scores", 0, scaled_twice},
    {"usual-scale", "the scale is 1 / sqrt(D) there: no --scale", 0, usual_scale},
    {"model-width", "the scale is 1 / sqrt(heads * D) there: the width of the model in place of that of a head", 0, model_width},
    {"scale-by-dim", "the scale is 1 / D there: the square root is missing", 0, by_dim},
    {"scale-inverted", "the scores are multiplied by sqrt(D) there in place of divided", 0, multiplied},
    {"window-narrower", "a window sees one key less on the left there: the query's own is counted", 0, narrower_left},
    {"window-wider", "a window sees one key more on the left there", 0, wider_left},
    {"window-right-narrower", "a window sees one key less on the right there", 0, narrower_right},
    {"window-right-wider", "a window sees one key more on the right there", 0, wider_right},
    {"window-ignored", "there is no window there: no --window", 0, no_window},
    {"lengths-ignored", "padding is seen there: no --key-count and --key-start", 0, all_keys},
    {"length-less", "one key less is in use there: lengths are taken for the last index", 0, one_less},
    {"length-more", "one key more is in use there: the last index is taken for the length", 0, one_more},
    {"empty-mean", "rows that see no key are the mean of all values there: hidden with a large number in place of -inf", TWIST_MEAN,
     may_be_empty},
    {"empty-mean-used", "rows that see no key are the mean of the values in use there", TWIST_MEAN_USED, may_be_empty_and_shorter},
    {"empty-nan", "rows that see no key are NaN there: a softmax over nothing but -inf", TWIST_NAN, may_be_empty},
    {"mask-after-softmax", "the mask comes after the softmax there, and what remains is not normalised", TWIST_LATE, something_hidden},
    {"hidden-score-0", "hidden scores are 0 there and so are seen: multiplied by the mask in place of hidden", TWIST_ZERO_SCORE,
     something_hidden},
    {"softcap-ignored", "there is no softcap there: no --softcap", 0, no_cap},
    {"softcap-after-mask", "the softcap comes after the masks there: -inf becomes -cap, and is seen", TWIST_CAP_LAST, cap_over_masks},
    {"softcap-after-bias", "the softcap comes after the bias there", TWIST_CAP_BIAS, cap_over_bias},
    {"bias-scaled", "the bias is scaled too there: it is added before the scale", TWIST_SCALE_BIAS, bias},
    {"alibi-sign", "ALiBi has the other sign there: far keys win", TWIST_ALIBI, alibi},
    {"alibi-ignored", "there is no ALiBi there: no --alibi", 0, no_alibi},
    {"sink-ignored", "the sink is missing there: no --sink", 0, no_sink},
    {"sink-0", "a sink of 0 is there (smooth softmax): --sink 0", TWIST_SINK, has_no_sink},
    {"base-2", "the exponential is 2^x there, with scores that were not divided by ln 2", TWIST_EXP2, NULL},
    {"heads-tiled", "query head h reads key head h % kv_heads there in place of h / group: repeated (tiled), not interleaved", TWIST_TILED,
     grouped},
    {"k-v-swapped", "K and V are exchanged there", 0, k_for_v},
    {"q-k-swapped", "Q and K are exchanged there", 0, k_for_q},
    {"softmax-over-queries", "the softmax runs over the queries there: the wrong axis", TWIST_OVER_QUERIES, several_queries},
    {"softmax-over-heads", "the softmax runs over the heads there: the wrong axis", TWIST_OVER_HEADS, several_heads},
    {"layout-exchanged",
     "heads and positions are exchanged there: (batch, head, position, channel) read as (batch, position, head, channel)", 0,
     axes_exchanged},
    {"layout-viewed", "the tensors are reshaped there in place of transposed between (head, position) and (position, head)", 0, all_viewed},
    {"inputs-viewed", "Q, K and V are reshaped there in place of transposed between (head, position) and (position, head)", 0,
     inputs_viewed},
    {"output-viewed", "the result is reshaped there in place of transposed between (head, position) and (position, head)", 0,
     output_viewed},
    {"channels-interleaved", "channels are read there as d * heads + h in place of h * D + d", 0, interleaved},
    {"lse-base-2", "the lse is in base 2 there", TWIST_LSE_2, has_lse},
    {"lse-without-max", "the lse lacks the maximum there: it is the ln of the sum alone", TWIST_LSE_SUM, has_lse},
    {"lse-plus-inf", "the lse of rows that see no key is +inf there", TWIST_LSE_PLUS, has_lse_and_empty},
    {"lse-alibi", "ALiBi is slope * key there: the same weights, the lse differs by slope * place of the query", TWIST_LSE_ALIBI,
     has_lse_and_alibi},
    {"weights-transposed", "the weights are transposed there: (key, query)", 0, weights_transposed},
    {"weights-scaled", "these are no weights but scaled scores", TWIST_STAGE_SCALED, has_weights},
    {"weights-capped", "these are no weights but capped scores", TWIST_STAGE_CAPPED, has_weights_and_cap},
    {"weights-biased", "these are no weights but biased scores", TWIST_STAGE_BIASED, has_weights_and_more},
    {"sums-f16", "sums, or what is between them, are kept in f16 there: the errors are of that size", TWIST_F16, has_out},
    {"sums-bf16", "sums, or what is between them, are kept in bf16 there: the errors are of that size", TWIST_BF16, has_out},
    {NULL, NULL, 0, NULL},
};
