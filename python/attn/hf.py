"""attn.hf: Hugging Face transformers models whose attention runs on libattn.
SPDX-License-Identifier: MIT

    register(name="libattn")      afterwards attn_implementation="libattn" is one that models take

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

Needs the transformers package, 5.0 or newer, on the CPU. There are no gradients: call the model under torch.no_grad().
"""
import warnings

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers import masking_utils as _masks
from transformers.utils.output_capturing import _active_collector

from . import attention

__all__ = ["register", "Mask", "attention_forward", "mask"]

MASK_BYTES = 64 << 20  # the most that a boolean mask may take at a time


# ---- masks --------------------------------------------------------------------------------------------------------------------------


# Makers of mask functions return closures; all closures of one maker share its code object, by which they are known.
_AND = _masks.and_masks().__code__
_LEFT = _masks.sliding_window_overlay(1).__code__
_BOTH = _masks.sliding_window_bidirectional_overlay(1).__code__


def _held(function, name):
    """The value of a variable that the function closes over."""
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


def _options(function):
    """A mask function as (causal, left, right), or None if these cannot say it. transformers counts the query's own key as one of the window."""
    code = getattr(function, "__code__", None)
    if function is _masks.causal_mask_function:
        return True, None, None
    if function is _masks.bidirectional_mask_function:
        return False, None, None
    if code is _LEFT:
        return False, _held(function, "sliding_window") - 1, None
    if code is _BOTH:
        return False, _held(function, "sliding_window"), _held(function, "sliding_window")
    if code is not _AND:
        return None
    parts = [_options(part) for part in _held(function, "mask_functions")]
    if None in parts:
        return None
    least = [min((part[side] for part in parts if part[side] is not None), default=None) for side in (1, 2)]
    return (any(part[0] for part in parts), *least)


def _runs(padding):
    """(first, count) of each row of a boolean (batch, keys) tensor if its true elements stand together, else None."""
    keys = padding.shape[1]
    count = padding.sum(1)
    number = padding.to(torch.uint8)
    first = number.argmax(1) * (count > 0)
    last = keys - 1 - number.flip(1).argmax(1)
    return (first, count) if bool(((last - first + 1 == count) | (count == 0)).all()) else None


class Mask(torch.Tensor):
    """A mask of shape (batch, 1, queries, keys) without its elements: `options` are the arguments of attn.attention() that mean the
    same, or None if there are none.

    It stands where transformers passes a boolean tensor from the model to its layers. An operation on it other than on its shape makes
    that tensor, and warns, for models that compute with their masks themselves.
    """

    @staticmethod
    def __new__(cls, shape, options, rows):
        mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool)
        mask.options, mask._rows, mask._all = options, rows, None
        return mask

    def dense(self):
        """The boolean tensor, True = may be seen; made once."""
        if self._all is None:
            self._all = self._rows(0, self.shape[2])
        return self._all

    def blocks(self):
        """(first row, rows, boolean tensor of these rows), each tensor no larger than MASK_BYTES."""
        batch, _, queries, keys = self.shape
        step = max(1, MASK_BYTES // max(1, batch * keys))
        if step >= queries:
            return [(0, queries, self.dense())]
        return ((first, min(step, queries - first), self._rows(first, min(step, queries - first))) for first in range(0, queries, step))

    def __repr__(self):
        return "Mask(%s, %s)" % (tuple(self.shape), self.options)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        warnings.warn("the model itself computes with its attention mask (%s): all its elements are made" % function, stacklevel=2)
        args, kwargs = torch.utils._pytree.tree_map_only(Mask, Mask.dense, (args, kwargs or {}))
        return function(*args, **kwargs)


def mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=_masks.causal_mask_function, attention_mask=None, **other):
    """What transformers calls to make a mask: positions of queries count from q_offset, those of keys from kv_offset; `attention_mask`
    is (batch, positions), False where there is padding. `other` is what its own maker needs when elements must be made."""
    known = _options(mask_function)
    options, q_offset = None, int(q_offset)
    if known and (attention_mask is None or attention_mask.ndim == 2):
        causal, left, right = known
        options, offset = {}, q_offset - kv_offset
        padding = _masks.prepare_padding_mask(attention_mask, kv_length, kv_offset)
        if padding is not None:
            padding = padding[:, kv_offset:kv_offset + kv_length]
            if not padding.all():
                runs = _runs(padding)
                if runs is None:
                    options["allow"] = padding[:, None, None, :]
                else:
                    options["key_start"], options["key_count"] = runs[0].numpy(), runs[1].numpy()
                    offset = offset - options["key_start"]
        if causal or left is not None or right is not None:
            options.update(causal=causal, window=(left, right), query_offset=offset)

    def rows(first, count):
        return _masks.sdpa_mask(batch_size, count, kv_length, q_offset + first, kv_offset, mask_function, attention_mask,
                                **{**other, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})

    return Mask((batch_size, 1, q_length, kv_length), options, rows)


# ---- attention ----------------------------------------------------------------------------------------------------------------------


def _refuse(query, key, value, attention_mask, dropout, given):
    """Everything that would be computed wrongly or not at all."""
    for name in ("indices", "block_indices", "sinks"):
        if given.get(name) is not None:
            raise NotImplementedError("the model chooses keys or sinks for each query (%s), which libattn does not do" % name)
    if attention_mask is None and given.get("cu_seq_lens_q") is not None:
        raise NotImplementedError("cu_seq_lens_q is given without a mask: packed or paged sequences are not supported")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.device.type != "cpu":
            raise ValueError("%s is on %s; libattn computes on the CPU" % (name, tensor.device))
    if dropout:
        raise NotImplementedError("attention dropout is %s; it is not supported: call model.eval()" % dropout)
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        raise NotImplementedError("a gradient through the attention is asked for, which is not supported: call the model under torch.no_grad()")


def _mask_options(attention_mask, position_bias, query, key, is_causal):
    """The options that say the mask and the bias, whatever their form; a Mask that has none must be given by its blocks."""
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
        options["bias"] = bias.detach() if bias.dtype in (query.dtype, torch.float32) else bias.detach().float()
    return options


def _weights_wanted(given):
    """Whether output_attentions was asked for. Most models hand it down; some (GPT-2) do not, but collect what their layers return."""
    return bool(given.get("output_attentions")) or any(key.endswith("attentions") for key in _active_collector.get() or ())


def attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, position_bias=None, softcap=None,
                      s_aux=None, **given):
    """What a layer calls: query (batch, heads, queries, channels), key and value (batch, key heads, keys, channels). Returns the result as
    (batch, queries, heads, channels), and the weights (batch, heads, queries, keys) if output_attentions was asked for, else None."""
    _refuse(query, key, value, attention_mask, dropout, given)
    if query.shape[0] != key.shape[0]:  # learned queries, the same for every entry of the batch
        query = query.expand(key.shape[0], -1, -1, -1)
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    options = _mask_options(attention_mask, position_bias, query, key, is_causal)
    options.update(scale=None if scaling is None else float(scaling), softcap=softcap or 0.0, threads=1 if torch.get_num_threads() == 1 else None)
    if s_aux is not None:
        options["sink"] = s_aux.detach()
    batch, heads, queries, _ = query.shape
    out = query.new_empty(batch, queries, heads, value.shape[3])
    weights = query.new_empty(batch, heads, queries, key.shape[2]) if _weights_wanted(given) else None
    if type(attention_mask) is Mask and attention_mask.options is None:
        for first, count, options["allow"] in attention_mask.blocks():
            rows = slice(first, first + count)
            _run(query[:, :, rows], key, value, out[:, rows], None if weights is None else weights[:, :, rows], options)
    else:
        _run(query, key, value, out, weights, options)
    return out, weights


def _run(query, key, value, out, weights, options):
    """Fills out, (batch, queries, heads, channels), and weights if they are wanted."""
    if weights is None:
        attention(query, key, value, out=out.transpose(1, 2), **options)
    else:
        weights.copy_(attention(query, key, value, out=out.transpose(1, 2), return_weights="weight", **options)[1])


def register(name="libattn"):
    """Makes `attn_implementation=name` known to transformers: the attention and the mask that belongs to it."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, mask)
