"""_hf_mask.py: what stands for a mask between a model of transformers and its layers.
SPDX-License-Identifier: MIT
"""
import warnings

import torch
from transformers import masking_utils as _masks

MASK_BYTES = 64 << 20  # the most that a boolean mask may take at a time

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

    It stands where transformers passes a boolean tensor from the model to its layers. An operation whose result is boolean too, such as
    cutting or inverting, makes that tensor, and warns; torch.where may choose by it. Any other is refused.
    """

    @staticmethod
    def __new__(cls, shape, options, rows):
        mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool)
        mask.options, mask.rows, mask._all = options, rows, None
        return mask

    def dense(self):
        """The boolean tensor, True = may be seen; made once."""
        if self._all is None:
            self._all = self.rows(0, self.shape[2])
        return self._all

    def blocks(self):
        """(first row, rows, boolean tensor of these rows), each tensor no larger than MASK_BYTES."""
        batch, _, queries, keys = self.shape
        step = max(1, MASK_BYTES // max(1, batch * keys))
        if step >= queries:
            return [(0, queries, self.dense())]
        return ((first, min(step, queries - first), self.rows(first, min(step, queries - first))) for first in range(0, queries, step))

    def __repr__(self):
        return "Mask(%s, %s)" % (tuple(self.shape), self.options)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        dense = torch.utils._pytree.tree_map_only(Mask, Mask.dense, (args, kwargs or {}))
        result = function(*dense[0], **dense[1])
        if function is not torch.ops.aten.where.self and any(
                isinstance(x, torch.Tensor) and x.dtype != torch.bool for x in torch.utils._pytree.tree_leaves(result)):
            # A layer that adds it to scores, for one: it does not call attention_forward(), and expects 0 and -inf.
            raise NotImplementedError("the model computes its attention itself (%s with the mask): load it with attn_implementation='eager'"
                                      % function)
        warnings.warn("the model itself computes with its attention mask (%s): all its elements are made" % function, stacklevel=2)
        return result


@torch.compiler.disable  # a compiled model calls it as it is
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
