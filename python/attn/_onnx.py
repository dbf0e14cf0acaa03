"""_onnx.py: the ONNX operator Attention, opsets 23 to 25, on NumPy arrays; needs no onnx package.
SPDX-License-Identifier: MIT
"""
import numpy as np

from . import attention

STAGES = ("scaled", "capped", "biased", "weight")  # qk_matmul_output_mode 0 to 3
TYPES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}  # ONNX's numbers of the float types


def split_heads(name, x, heads):
    """(batch, positions, heads * channels) as a view with the axes (batch, head, position, channel)."""
    if heads is None or heads < 1 or x.shape[2] % heads:
        raise ValueError("%s has %d channels in all; with rank 3 its number of heads must be given and divide them, it is %s"
                         % (name, x.shape[2], heads))
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def pad_mask(mask, keys):
    """A mask whose last axis is short hides the keys that it lacks; broadcasting would show them."""
    hide = False if mask.dtype == np.bool_ else -np.inf
    short = keys - mask.shape[-1] if mask.ndim else 0
    return mask if short <= 0 else np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, short)], constant_values=hide)


def mask_option(mask, keys, dtype):
    """The mask as the option of attention() that means the same."""
    mask = pad_mask(mask, keys)
    if mask.dtype == np.bool_:
        return {"allow": mask}
    if mask.dtype.name not in TYPES.values():
        raise ValueError("attn_mask has dtype %s; it must be bool or a float type" % mask.dtype.name)
    return {"bias": mask if mask.dtype.name in ("float32", dtype) else mask.astype("float64" if dtype == "float64" else "float32")}


def working_type(Q, V, softmax_precision):
    """The inputs' type, unless V's differs or a softmax in float64 is asked for; any other precision is less than what is done anyway."""
    if softmax_precision is not None and softmax_precision not in TYPES:
        raise ValueError("softmax_precision is %s; it must be one of %s" % (softmax_precision, ", ".join(map(str, TYPES))))
    names = {Q.dtype.name, V.dtype.name, TYPES.get(softmax_precision) if softmax_precision == 11 else Q.dtype.name}
    if len(names) == 1:
        return Q.dtype
    return np.dtype(np.float64 if "float64" in names else np.float32)


def onnx_attention(Q, K, V, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *, scale=None, is_causal=0, softcap=0.0,
                   q_num_heads=None, kv_num_heads=None, qk_matmul_output_mode=0, softmax_precision=None, left_window_size=-1,
                   right_window_size=-1, scores=False, isa=None, threads=None):
    """The operator's four outputs (Y, present_key, present_value, qk_matmul_output). Its inputs and attributes have the operator's own
    names and meaning. `scores`: whether qk_matmul_output is wanted; without it, it is None and memory grows with the lengths only.
    `isa` and `threads` are those of attn.attention.

    >>> import numpy as np, attn.onnx
    >>> q = np.ones((1, 2, 3, 4), np.float32)
    >>> Y, key, value, weights = attn.onnx.onnx_attention(q, q, q, is_causal=1, qk_matmul_output_mode=3, scores=True)
    >>> weights[0, 0, 1].tolist()
    [0.5, 0.5, 0.0]
    """
    if (past_key is None) != (past_value is None):
        raise ValueError("past_key and past_value must be given together")
    if past_key is not None and nonpad_kv_seqlen is not None:
        raise ValueError("nonpad_kv_seqlen and past_key exclude each other: a past holds no padding")
    if qk_matmul_output_mode not in range(len(STAGES)):
        raise ValueError("qk_matmul_output_mode is %s; it must be 0 to 3" % qk_matmul_output_mode)
    joined = Q.ndim == 3
    if joined:
        Q, K, V = split_heads("Q", Q, q_num_heads), split_heads("K", K, kv_num_heads), split_heads("V", V, kv_num_heads)
    elif q_num_heads is not None or kv_num_heads is not None:
        raise ValueError("q_num_heads and kv_num_heads go with inputs of rank 3; Q has rank %d" % Q.ndim)
    where = {"align": "top_left"}
    if past_key is not None:
        K, V = np.concatenate([past_key, K], axis=2), np.concatenate([past_value, V], axis=2)
        where = {"query_offset": past_key.shape[2]}
    if nonpad_kv_seqlen is not None:
        where = {"query_offset": nonpad_kv_seqlen - Q.shape[2], "key_count": nonpad_kv_seqlen}
    own, work = Q.dtype, working_type(Q, V, softmax_precision)
    if attn_mask is not None:
        where.update(mask_option(attn_mask, K.shape[2], work.name))
    result = attention(Q.astype(work, copy=False), K.astype(work, copy=False), V.astype(work, copy=False), causal=bool(is_causal),
                       scale=scale, softcap=softcap, window=(left_window_size, right_window_size), isa=isa, threads=threads,
                       return_weights=STAGES[qk_matmul_output_mode] if scores else None, **where)
    Y, qk = result if scores else (result, None)
    if joined:
        Y = Y.swapaxes(1, 2).reshape(Y.shape[0], Y.shape[2], -1)
    return Y.astype(own, copy=False), K, V, None if qk is None else qk.astype(own, copy=False)
