#!/usr/bin/env python3
# make_fixtures.py: makes the inputs of the command's tests and what must come out, in NumPy and in no other way. Run in this folder.
# SPDX-License-Identifier: MIT
import json
import struct

import ml_dtypes
import numpy as np

rng = np.random.default_rng(20)
B, H, HK, NQ, NK, D, DV = 2, 4, 2, 3, 5, 4, 3


def save(path, arrays):
    """A .safetensors file."""
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL", "int64": "I64"}
    header, data = {}, b""
    for name, a in arrays.items():
        raw = np.ascontiguousarray(a).tobytes()
        header[name] = {"dtype": names[a.dtype.name], "shape": list(a.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def attention(q, k, v, see=True, bias=0.0, scale=None, softcap=0.0, sink=None):
    """The formula, all at once. see and bias broadcast to (B, H, NQ, NK). Returns out, lse and the four stages."""
    g = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, g, 1), np.repeat(v, g, 1)
    scaled = (q @ k.swapaxes(2, 3)) * (1 / np.sqrt(q.shape[3]) if scale is None else scale)
    capped = softcap * np.tanh(scaled / softcap) if softcap else scaled
    biased = np.where(np.broadcast_to(see, scaled.shape), capped + bias, -np.inf)
    top = biased.max(3, keepdims=True)
    if sink is not None:
        top = np.maximum(top, sink[:, None, None])
    top = np.where(np.isinf(top), 0, top)
    e = np.exp(biased - top)
    z = e.sum(3, keepdims=True)
    if sink is not None:
        z = z + np.exp(sink[:, None, None] - top)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(z))[..., 0]
    p = e / np.where(z == 0, 1, z)
    return p @ v, lse, {"weight": p, "scaled": scaled, "capped": capped, "biased": biased}


q, k, v = (rng.standard_normal(s) for s in ((B, H, NQ, D), (B, HK, NK, D), (B, HK, NK, DV)))
i, j = np.arange(NQ)[:, None], np.arange(NK)
per_batch = lambda x: np.asarray(x).reshape(-1, 1, 1, 1)
mask = rng.random((NQ, NK)) < 0.6
mask[1] = False  # a query that sees nothing
bias = rng.standard_normal((B, 1, 1, NK))
bias[1, 0, 0, 2] = -np.inf
slopes = np.array([0.5, 0.25, 2.0, 0.0])
sink = np.array([-1.0, 0.0, 1.0, 2.0])
end = i + NK - NQ  # where the queries stand with bottom-right
usual = 2.0 ** (-8 * (np.arange(H) + 1) / H)

arrays = {"q": q, "k": k, "v": v, "mask": mask, "hidden": ~mask, "bias": bias, "slopes": slopes, "sink": sink, "number_mask": mask.astype(np.int64),
          "float_mask": mask.astype(np.float32), "padding": np.ones((B, NK), bool), "bshd_q": q.swapaxes(1, 2), "bshd_k": k.swapaxes(1, 2),
          "bshd_v": v.swapaxes(1, 2), "k32": k.astype(np.float32), "whole": np.ones((B, HK, NK, D), np.int64), "rank5": np.ones((1, 1, 1, 2, 2))}
for n, a in (("q", q), ("k", k), ("v", v)):
    arrays["bsd_" + n] = a.swapaxes(1, 2).reshape(B, a.shape[2], -1)
    arrays["hsd_" + n] = a[0]
    arrays["sd_" + n] = a[0, 0]
nan_k, nan_v = k.copy(), v.copy()
nan_k[:, :, 4], nan_v[:, :, 4] = np.nan, np.inf  # beyond a key count of 4
arrays["nan_k"], arrays["nan_v"] = nan_k, nan_v

out = {
    "plain": attention(q, k, v),
    "causal_top": attention(q, k, v, j <= i),
    "causal_bottom": attention(q, k, v, j <= end),
    "offset": attention(q, k, v, j <= i + per_batch([1, -1])),
    "query_count": attention(q, k, v, i < per_batch([2, 3])),
    "key_count": attention(q, k, v, j < per_batch([5, 2])),
    "four_keys": attention(q, k, v, j < 4),
    "key_start": attention(q, k, v, j >= per_batch([1, 0])),
    "window": attention(q, k, v, (j >= end - 1) & (j <= end + 0)),
    "window_left": attention(q, k, v, j >= i - 0),
    "mask": attention(q, k, v, mask),
    "bias": attention(q, k, v, bias > -np.inf, np.where(bias > -np.inf, bias, 0)),
    "scale": attention(q, k, v, scale=-0.5),
    "uniform": attention(q, k, v, scale=0.0),
    "softcap": attention(q, k, v, softcap=0.75),
    "alibi": attention(q, k, v, bias=-slopes[:, None, None] * np.abs(end - j)),
    "usual": attention(q, k, v, bias=-usual[:, None, None] * np.abs(i - j)),
    "sink": attention(q, k, v, sink=sink),
    "all": attention(q, k, v, mask & (j <= end), -slopes[:, None, None] * np.abs(end - j), 0.5, 2.0, sink),
}
wants = {name: r[0] for name, r in out.items()}
wants["bshd"] = out["plain"][0].swapaxes(1, 2)
wants["bsd"] = wants["bshd"].reshape(B, NQ, H * DV)
wants["hsd"], wants["sd"] = out["plain"][0][0], attention(q[:1, :1], k[:1, :1], v[:1, :1])[0][0, 0]
for name, t in (("f32", np.float32), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
    r = attention(*(x.astype(t).astype(np.float64) for x in (q, k, v)))[0]
    wants[name] = r.astype(t)
wrong = wants["plain"].copy()
wrong[1, 2, 0, 1] += 0.25
wrong[0, 3, 1] = np.nan
wants["wrong"] = wrong
unmasked_mean = wants["mask"].copy()
unmasked_mean[:, :, 1] = np.repeat(v.mean(2), H // HK, 1)
wants["mask_mean"] = unmasked_mean
save("small.safetensors", arrays)
save("want.safetensors", wants)

# What --lse and --weights write, as .csv: rank 2 is (head, query) of one sentence, or (query, key) of one head.
np.savetxt("want_lse.csv", out["plain"][1][0], delimiter=",", fmt="%.17g")
one = attention(q[:1, :1], k[:1, :1], v[:1, :1], j <= i, 0.0, None, 0.75)[2]
for stage, a in one.items():
    np.savetxt("want_%s.csv" % stage, a[0, 0], delimiter=",", fmt="%.17g")

# Files of the names that the help's examples use; every way of reading them fits.
x = rng.standard_normal((3, 2, 7, 7, 4)).astype(np.float32)
for n, a in zip("qkv", x):
    np.save(n + ".npy", a)
np.save("theirs.npy", attention(*x.astype(np.float64))[0].astype(np.float32))
np.save("padding.npy", np.zeros((2, 1, 1, 7), bool))
np.savez("batch.npz", q=x[0], k=x[1], v=x[2])

# By hand: the worked example with its two queries, and masks.
for name, text in (("q", "1,0\n0,1\n"), ("k", "1,0\n0,1\n"), ("v", "10,0\n0,10\n"), ("first", "1,0\n"), ("half", "0.5,1\n")):
    open(name + ".csv", "w").write(text)

# Broken and foreign files.
np.save("object.npy", np.array([{}], object))
open("torn.npy", "wb").write(open("q.npy", "rb").read()[:400])
open("nonsense.npy", "wb").write(b"these are no numbers\n")
