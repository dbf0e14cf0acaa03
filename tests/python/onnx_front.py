"""ONNX Attention (opset 23 to 25) in terms of attn.attention: what a front for that operator has to map.
SPDX-License-Identifier: MIT
"""
import numpy as np

import attn

STAGES = ("scaled", "capped", "biased", "weight")  # qk_matmul_output_mode 0 to 3
KNOWN = {"scale", "is_causal", "softcap", "q_num_heads", "kv_num_heads", "qk_matmul_output_mode", "softmax_precision",
         "left_window_size", "right_window_size"}


def split_heads(x, heads):
    """(batch, positions, heads * channels) as a view with the axes (batch, head, position, channel)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def pad_mask(mask, keys):
    """A mask whose last axis is short hides the keys that it lacks; broadcasting would show them."""
    hide = False if mask.dtype == np.bool_ else -np.inf
    return np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, max(0, keys - mask.shape[-1]))], constant_values=hide)


def onnx_attention(Q, K, V, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *, attributes, **how):
    """The four outputs. `how` is passed on (isa, threads). softmax_precision is met by any: it asks for less than is done."""
    a = {name: value for name, value in attributes.items() if value is not None}
    assert a.keys() <= KNOWN, a.keys() - KNOWN
    joined = Q.ndim == 3
    if joined:
        Q, K, V = split_heads(Q, a["q_num_heads"]), split_heads(K, a["kv_num_heads"]), split_heads(V, a["kv_num_heads"])
    where = {"align": "top_left"}
    if past_key is not None:
        K, V = np.concatenate([past_key, K], axis=2), np.concatenate([past_value, V], axis=2)
        where = {"query_offset": past_key.shape[2]}
    if nonpad_kv_seqlen is not None:
        where = {"query_offset": nonpad_kv_seqlen - Q.shape[2], "key_count": nonpad_kv_seqlen}
    if attn_mask is not None:
        how["allow" if attn_mask.dtype == np.bool_ else "bias"] = pad_mask(attn_mask, K.shape[2])
    how.update(where, causal=bool(a.get("is_causal", 0)), scale=a.get("scale"), softcap=a.get("softcap", 0.0),
               window=(a.get("left_window_size", -1), a.get("right_window_size", -1)))
    Y, qk = attn.attention(Q, K, V, return_weights=STAGES[a.get("qk_matmul_output_mode", 0)], **how)
    if joined:
        Y = Y.swapaxes(1, 2).reshape(Y.shape[0], Y.shape[2], -1)
    return {"Y": Y, "present_key": K, "present_value": V, "qk_matmul_output": qk.astype(Q.dtype)}
