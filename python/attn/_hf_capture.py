"""_hf_capture.py: weights and summaries of the attention of a model of transformers, while it runs.
SPDX-License-Identifier: MIT
"""
import contextvars
import re
import reprlib
from typing import Any, Dict, List, Optional, Sequence, Union

import torch

from . import _hf_mask
from ._inspect import inspect

_open: "contextvars.ContextVar[tuple]" = contextvars.ContextVar("attn.hf.capture", default=())  # captures of this thread and context


class Look(Dict[str, torch.Tensor]):
    """What was seen of one attention call: a dict of what capture() was asked for, and

    name: the attention module's, as in model.named_modules(). layer: its number. heads, rows: those chosen, in the order of the tensors;
    rows count from the first query of this call, which with a cache is not the first token.
    """

    def __init__(self, name: str, layer: Optional[int], heads: List[int], rows: List[int], seen: Dict[str, torch.Tensor]) -> None:
        super().__init__(seen)
        self.name, self.layer, self.heads, self.rows = name, layer, heads, rows

    def __repr__(self) -> str:
        return "Look(%s, layer %s, heads %s, rows %s: %s)" % (
            self.name, self.layer, reprlib.repr(self.heads), reprlib.repr(self.rows), ", ".join("%s %s" % (key, tuple(x.shape)) for key, x in self.items()))


def number(module, name):
    """A layer's number: what the module says, else the first number in its name."""
    found = re.search(r"\d+", name)
    index = getattr(module, "layer_idx", None)
    return index if index is not None else int(found.group()) if found else None


class capture:
    """Looks at the attention of a model while it runs; nothing of size queries * keys is held beyond what is asked for.

    layers: numbers, or parts of module names ("decoder", "encoder.layer.3"). heads, rows: numbers, negative ones from the end; rows that a call
    does not have are left out, and a call without any is not recorded. None = all. What is wanted: values="weight" (the default if nothing
    else is), "scaled", "capped" or "biased", (batch, heads, rows, keys); entropy=True, top=n, first_mass=True, window_mass=(left, right),
    received=True, map_mean=(rows, columns), map_max=(rows, columns), keys=(first, count).

    The result is a list of Look, in the order of the calls. A model that runs on another attention is switched to libattn meanwhile.

    >>> import torch, transformers, attn.hf
    >>> config = transformers.BertConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4)
    >>> model = transformers.BertModel(config).eval()
    >>> with torch.no_grad(), attn.hf.capture(model, layers=[1], heads=[3], rows=[0, -1], values="weight", entropy=True) as seen:
    ...     out = model(torch.tensor([[1, 2, 3, 4, 5]]))
    >>> seen[0].name, seen[0]["values"].shape, seen[0]["entropy"].shape
    ('encoder.layer.1.attention.self', torch.Size([1, 1, 2, 5]), torch.Size([1, 1, 2]))
    """

    def __init__(self, model: Any, *, layers: Optional[Sequence[Union[int, str]]] = None, heads: Optional[Sequence[int]] = None,
                 rows: Optional[Sequence[int]] = None, **wanted: Any) -> None:
        self.model, self.layers, self.heads, self.rows = model, layers, heads, rows
        self.wanted = wanted if set(wanted) - {"keys"} else {**wanted, "values": "weight"}
        self.names = {module: name for name, module in model.named_modules()}
        self.looks: List[Look] = []

    def __enter__(self) -> List[Look]:
        from .hf import attention_forward, register
        from transformers import AttentionInterface

        self.before = self.model.config._attn_implementation
        if AttentionInterface().get(self.before) is not attention_forward:
            register()
            self.model.set_attn_implementation("libattn")
        self.token = _open.set((*_open.get(), self))
        return self.looks

    def __exit__(self, kind: Any, *fault: Any) -> None:
        _open.reset(self.token)
        if self.model.config._attn_implementation != self.before:
            self.model.set_attn_implementation(self.before)
        if kind is None and not self.looks:
            raise ValueError("no attention was seen: no layer of the model that ran is one of %s and has one of the rows %s" % (
                "all" if self.layers is None else list(self.layers), "(all)" if self.rows is None else list(self.rows)))

    def _concerns(self, name, layer):
        return self.layers is None or any(part in name if isinstance(part, str) else part == layer for part in self.layers)

    def look(self, module, query, key, mask, options):
        name = self.names.get(module)
        layer = None if name is None else number(module, name)
        if name is None or not self._concerns(name, layer):
            return
        heads, queries = query.shape[1:3]
        rows = [row + queries if row < 0 else row for row in (range(queries) if self.rows is None else self.rows) if -queries <= row < queries]
        if not rows:
            return
        if type(mask) is _hf_mask.Mask and mask.options is None:
            seen = self._masked(query, key, mask, options, rows)
        else:
            seen = inspect(query, key, heads=self.heads, queries=None if self.rows is None else rows, **self.wanted, **options)
        chosen = range(heads) if self.heads is None else (head % heads for head in self.heads)
        self.looks.append(Look(name, layer, list(chosen), rows, seen))

    def _masked(self, query, key, mask, options, rows):
        """A mask that options cannot say: its chosen rows are made, as are the queries they belong to."""
        if len(rows) * mask.shape[0] * mask.shape[3] > _hf_mask.MASK_BYTES:
            raise ValueError("the mask of %d rows would take more than %d MiB: choose fewer rows" % (len(rows), _hf_mask.MASK_BYTES >> 20))
        if "window_mass" in self.wanted:
            raise ValueError("window_mass is wanted, but this mask (packed, chunked or of the caller's own) does not say where the queries stand")
        bias = options.get("bias")
        cut = {} if bias is None or bias.shape[-2] == 1 else {"bias": bias[..., rows, :]}
        allow = mask.dense() if len(rows) == mask.shape[2] else torch.cat([mask.rows(row, 1) for row in rows], 2)
        return inspect(query[:, :, rows], key, heads=self.heads, **self.wanted, **{**options, **cut, "allow": allow})


def watch(module, query, key, mask, options):
    """What every attention call says; cheap where nobody looks."""
    for one in _open.get():
        with torch.no_grad():
            one.look(module, query.detach(), key.detach(), mask, options)
