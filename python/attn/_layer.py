"""_layer.py: Layer, one multi-head attention layer of a checkpoint.
SPDX-License-Identifier: MIT
"""
import ctypes
import functools
import os
from typing import Any, Optional, Tuple, Union

import numpy as np

from . import _arrays, _describe, _library
from ._operator import STAGES


@functools.lru_cache(maxsize=None)
def _load():
    error, desc = ctypes.POINTER(_library.Error), ctypes.POINTER(_library.LayerDesc)
    checkpoint = ctypes.POINTER(_library.LayerCheckpoint)
    return _library.beside("libattn_layer", "Layer", (
        ("attn_layer_run", ctypes.c_int32, desc, error),
        ("attn_layer_load", ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(_library.LayerLoadOptions),
         ctypes.POINTER(checkpoint), error),
        ("attn_layer_free", None, checkpoint),
        ("attn_layer_layout_name", ctypes.c_char_p, ctypes.c_int32)))


class Layer:
    """A layer of a checkpoint: projections, the operator, the output projection. Made by Layer.from_safetensors().

    Attributes: heads, kv_heads, dim, value_dim (channels of a head); width, key_width, value_width (channels of the hidden states that
    queries, keys and values are projected from), out_width; causal (whether a layer of this family hides later positions); layout;
    prefix (its place in the file); description (one line).

    >>> import attn, numpy as np, os
    >>> path = os.environ.get("ATTN_EXAMPLE_LAYER", "examples/minilm-layer.safetensors")
    >>> layer = attn.Layer.from_safetensors(path, layer=5)
    >>> layer.heads, layer.width, layer.layout
    (12, 384, 'Hugging Face BERT')
    >>> out, weights = layer(np.zeros((2, 7, 384), np.float32), key_count=[7, 4], return_weights="weight")
    >>> out.shape, weights.shape
    ((2, 7, 384), (2, 12, 7, 7))
    """

    def __init__(self, checkpoint: Any) -> None:
        self._checkpoint, self._free = checkpoint, _load().attn_layer_free
        for name, kind in _library.LayerCheckpoint._fields_:
            if kind is ctypes.c_int64:
                setattr(self, name, getattr(checkpoint.contents, name))
        self.causal = bool(checkpoint.contents.causal)
        self.layout = _load().attn_layer_layout_name(checkpoint.contents.layout).decode()
        self.prefix = checkpoint.contents.prefix.decode()
        self.description = checkpoint.contents.description.decode()

    def __del__(self) -> None:
        if getattr(self, "_checkpoint", None):
            self._free(self._checkpoint)

    def __repr__(self) -> str:
        return "<attn.Layer %s>" % self.description

    @classmethod
    def from_safetensors(cls, path: Union[str, "os.PathLike[str]"], layer: Optional[int] = None, *, prefix: Optional[str] = None,
                         heads: Optional[int] = None, kv_heads: Optional[int] = None) -> "Layer":
        """Reads layer number `layer`, from 0, of a .safetensors file of BERT, DistilBERT, GPT-2 or torch.nn.MultiheadAttention.

        prefix: instead of `layer`, all that stands before the layer's own names, number included ("decoder.layers.3.multihead_attn.").
        heads, kv_heads: where neither the file nor the config.json beside it says how many. float16 and bfloat16 become float32.
        """
        if (layer is None) == (prefix is None):
            raise ValueError("layer is %r and prefix is %r; one of the two must be given" % (layer, prefix))
        how = _library.LayerLoadOptions(size=ctypes.sizeof(_library.LayerLoadOptions), heads=_describe.integer("heads", heads or 0),
                                        kv_heads=_describe.integer("kv_heads", kv_heads or 0), prefix=prefix and prefix.encode())
        made = ctypes.POINTER(_library.LayerCheckpoint)()
        number = -1 if layer is None else _describe.integer("layer", layer)
        if layer is not None and number < 0:
            raise ValueError("layer is %d, and must be 0 or more" % number)
        _library.call(_load().attn_layer_load, os.fsencode(path), number, ctypes.byref(how), ctypes.byref(made))
        return cls(made)

    def __call__(self, x: Any, *, x_key: Optional[Any] = None, x_value: Optional[Any] = None, causal: Optional[bool] = None,
                 return_lse: bool = False, return_weights: Optional[str] = None, threads: Optional[int] = None, **options: Any) -> Any:
        """The layer's output for hidden states x: (batch, tokens, width), or (tokens, width), float32.

        x_key, x_value: hidden states that keys and values come from, (batch, keys, key_width) and (batch, keys, value_width); keys from x
        and values from where the keys come from when None. causal: None means the layer's own `causal`. The other arguments are those of
        attention(), with its shapes. Returns out, (batch, tokens, out_width), or (out, lse, weights) of what was asked for. The
        projections run on as many threads as OpenBLAS is set to.
        """
        kind = _arrays.library(x)
        given = {name: _describe.floats(name, value) for name, value in (("x", x), ("x_key", x_key), ("x_value", x_value))
                 if value is not None}
        rank = len(given["x"].shape)
        for name, array in given.items():
            if array.dtype != 1 or rank not in (2, 3) or len(array.shape) != rank:
                raise ValueError("%s has %s axes and dtype %s; it must be float32 with 2 or 3 axes, as many as x" % (
                    name, len(array.shape), _arrays.NAMES[array.dtype]))
            if array.shape[:-2] != given["x"].shape[:-2]:
                raise ValueError("%s has batch %d and x has %d; they must be equal" % (name, array.shape[0], given["x"].shape[0]))
        d, c = self._describe(given, causal, options)
        rows, batch = given["x"].shape[:-1], c.shape[0]
        c.desc.executor = _describe.executor(threads)
        out, to = _describe.result("out", None, rows + (self.out_width,), 1, kind, given["x"])
        d.out = _view(to)
        results = [out]
        heads = () if rank == 2 else (batch,)
        if return_lse:
            lse, to = _describe.result("lse", None, heads + c.shape[1:3], 1, kind, given["x"])
            _describe.put(c.desc, "lse", to, missing=1)
            results.append(lse)
        if return_weights is not None:
            if return_weights not in STAGES:
                raise ValueError("return_weights is %r; it must be one of %s" % (return_weights, ", ".join(STAGES)))
            weights, to = _describe.result("weights", None, heads + c.shape[1:], 1, kind, given["x"])
            _describe.put(c.desc, "weights", to)
            c.desc.weights_stage = STAGES[return_weights]
            results.append(weights)
        _library.call(_load().attn_layer_run, ctypes.byref(d))
        results = [_arrays.finish(kind, array) for array in results]
        return results[0] if len(results) == 1 else tuple(results)

    def _describe(self, given, causal, options) -> Tuple[Any, Any]:
        """The layer's descriptor, and the described options of the operator."""
        x, x_key, x_value = (given.get(name) for name in ("x", "x_key", "x_value"))
        keys = (x_key or x).shape[-2]
        d = _library.LayerDesc(size=ctypes.sizeof(_library.LayerDesc), batch=x.shape[0] if len(x.shape) == 3 else 1, queries=x.shape[-2],
                               keys=keys)
        for name, _ in _library.LayerCheckpoint._fields_:
            if hasattr(d, name) and name != "size":
                setattr(d, name, getattr(self._checkpoint.contents, name))
        for name, array in given.items():
            setattr(d, name, _view(array))
            width = {"x": self.width, "x_key": self.key_width, "x_value": self.value_width}[name]
            if array.shape[-1] != width:
                raise ValueError("%s has %d channels, and this layer takes %d" % (name, array.shape[-1], width))
        if x_value is not None and x_value.shape[-2] != keys:
            raise ValueError("x_value has %d positions and there are %d keys; they must be as many" % (x_value.shape[-2], keys))
        c = _describe.Call()
        c.desc, c.keep, c.shape, c.real = _library.Desc(), [], (d.batch, self.heads, d.queries, keys), np.float32
        c.desc.size = ctypes.sizeof(_library.Desc)
        _describe.options(c, causal=self.causal if causal is None else causal, **options)
        d.options = ctypes.pointer(c.desc)
        return d, c


def _view(x):
    """Hidden states as the layer's descriptor has them: axes (batch, none, token, channel)."""
    batch, (token, channel) = x.stride[0] if len(x.stride) == 3 else 0, x.stride[-2:]
    return _library.View(x.data, (ctypes.c_int64 * 4)(batch, 0, token, channel), 0, x.dtype, 0)
