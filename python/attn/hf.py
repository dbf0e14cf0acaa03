"""attn.hf: Hugging Face transformers models whose attention runs on libattn.
SPDX-License-Identifier: MIT

    register(name="libattn")      afterwards attn_implementation="libattn" is one that models take
    capture(model, ...)           a context in which weights, or what they sum up to, of chosen layers, heads and rows are recorded

>>> import torch, transformers, attn.hf
>>> attn.hf.register()
>>> config = transformers.LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
...                                   num_attention_heads=4, num_key_value_heads=2, attn_implementation="libattn")
>>> model = transformers.LlamaForCausalLM(config).eval()
>>> with torch.no_grad():
...     result = model(torch.tensor([[1, 2, 3]]), output_attentions=True)
>>> result.attentions[0].shape, bool(result.attentions[0][0, 0, 0, 1] == 0)     # causal: the first query does not see the second key
(torch.Size([1, 4, 3, 3]), True)

The mask that a model makes for its layers is not made: `Mask` says in a few numbers what it would hold (causal, a window, where the
keys of each sentence begin and end), and the library skips what it hides. Masks that are none of these (packed sequences, chunks, image
blocks, functions of the caller's) are made as boolean tensors, of no more than MASK_BYTES at a time: a longer one is made again in every
layer, a block of queries after the other.

Alignment is what transformers means: with a cache, the last query stands on the last key. Sequences padded on the left or the right give what
they give alone. A query that sees no key, as left padding does, gives zeros.

Gradients flow through attn.torch. Attention dropout, in training, drops what torch.manual_seed() repeats; the weights that are returned are
those before it.

Tested with transformers 5.24.0, on the CPU.
"""
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.utils.output_capturing import _active_collector

from . import _torch_op, attention
from ._hf_capture import Look, capture, watch
from ._hf_mask import Mask, mask

__all__ = ["register", "capture", "Look", "Mask", "attention_forward", "mask"]


def _refuse(query, key, value, attention_mask, given):
    """Everything that would be computed wrongly or not at all."""
    for name in ("indices", "block_indices", "sinks"):
        if given.get(name) is not None:
            raise NotImplementedError("the model chooses keys or sinks for each query (%s), which libattn does not do" % name)
    if attention_mask is None and given.get("cu_seq_lens_q") is not None:
        raise NotImplementedError("cu_seq_lens_q is given without a mask: packed or paged sequences are not supported")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.device.type != "cpu":
            raise ValueError("%s is on %s; libattn computes on the CPU" % (name, tensor.device))


def _options(attention_mask, position_bias, query, is_causal):
    """The options of attention() that say mask and bias, whatever their form; a Mask that has none is given by its blocks."""
    options, bias = {}, position_bias
    if attention_mask is None:
        if is_causal and query.shape[2] > 1:  # the library refuses it if the lengths differ: nobody says where the queries stand
            options["causal"] = True
    elif type(attention_mask) is Mask:
        options.update(attention_mask.options or {})
    elif attention_mask.dtype == torch.bool:
        options["allow"] = attention_mask
    elif attention_mask.is_floating_point():
        bias = attention_mask if bias is None else bias + attention_mask
    else:
        raise ValueError("attention_mask has dtype %s; it must be bool or a float type" % attention_mask.dtype)
    if bias is not None:
        options["bias"] = bias if bias.dtype in (query.dtype, torch.float32) else bias.float()
    return options


def _weights_wanted(given):
    """Whether output_attentions was asked for. Most models hand it down; some (GPT-2) do not, but collect what their layers return."""
    return bool(given.get("output_attentions")) or any(key.endswith("attentions") for key in _active_collector.get() or ())


def _blocks(mask, queries, options):
    """(rows, options) of each call that together are the whole: one, unless the mask has no options."""
    if type(mask) is not Mask or mask.options is not None:
        yield slice(0, queries), options
        return
    bias = options.get("bias")
    for first, count, allow in mask.blocks():
        rows = slice(first, first + count)
        cut = {} if bias is None or bias.shape[-2] == 1 else {"bias": bias[..., rows, :]}
        yield rows, {**options, **cut, "allow": allow}


def _fill(query, key, value, blocks, wanted):
    """(batch, queries, heads, channels), and the weights if they are wanted, written in place."""
    batch, heads, queries, _ = query.shape
    out = query.new_empty(batch, queries, heads, value.shape[3])
    weights = query.new_empty(batch, heads, queries, key.shape[2]) if wanted else None
    for rows, options in blocks:
        whole = rows.stop - rows.start == queries
        part, place = (query, out) if whole else (query[:, :, rows], out[:, rows])
        result = attention(part, key, value, out=place.transpose(1, 2), return_weights="weight" if wanted else None, **options)
        if wanted:
            weights[:, :, rows] = result[1]
    return out, weights


def _by_operator(query, key, value, blocks, wanted, dropout):
    """The same by PyTorch's operator, which can be differentiated and draws numbers for dropout, new ones for each block. Weights have no
    gradient."""
    outs, weights = [], []
    for rows, options in blocks:
        result = _torch_op.attention(query[:, :, rows], key, value, dropout=dropout, return_weights="weight" if wanted else None, **options)
        outs.append(result[0] if wanted else result)
        weights += [result[1].detach().to(query.dtype)] if wanted else []
    return torch.cat(outs, 2).transpose(1, 2), torch.cat(weights, 2) if wanted else None


@torch.compiler.disable  # a compiled model calls it as it is
def attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, position_bias=None, softcap=None,
                      s_aux=None, **given):
    """What a layer calls: query (batch, heads, queries, channels), key and value (batch, key heads, keys, channels). Returns the result as
    (batch, queries, heads, channels), and the weights (batch, heads, queries, keys) if output_attentions was asked for, else None."""
    _refuse(query, key, value, attention_mask, given)
    if query.shape[0] != key.shape[0]:  # learned queries, the same for every entry of the batch
        query = query.expand(key.shape[0], -1, -1, -1)
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    options = _options(attention_mask, position_bias, query, is_causal)
    options.update(scale=None if scaling is None else float(scaling), softcap=softcap or 0.0, sink=s_aux, threads=_torch_op.threads_of(None))
    blocks = _blocks(attention_mask, query.shape[2], options)
    watch(module, query, key, attention_mask, options)
    inputs = (query, key, value, options.get("bias"), s_aux)
    if dropout or (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)):
        return _by_operator(query, key, value, blocks, _weights_wanted(given), dropout)
    with torch.no_grad():
        return _fill(query, key, value, blocks, _weights_wanted(given))


def register(name="libattn"):
    """Makes `attn_implementation=name` known to transformers: the attention and the mask that belongs to it."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, mask)
