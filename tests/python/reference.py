"""Attention in double precision, every score held: slow, and written from the formula at the head of attn.h.
SPDX-License-Identifier: MIT
"""
from types import SimpleNamespace

import numpy as np


def per_batch(value, batch, default):
    return np.broadcast_to(np.asarray(default if value is None else value, np.int64), (batch,))


def seen_pairs(shape, *, allow=None, bias=None, causal=False, align=None, window=None, query_offset=None, query_count=None,
               key_count=None, key_start=None, **_):
    """Which query sees which key, (batch, heads, queries, keys), and the distances p - j', (batch, 1, queries, keys)."""
    batch, heads, queries, keys = shape
    key_start = per_batch(key_start, batch, 0)
    key_count = per_batch(key_count, batch, keys - key_start)
    query_count = per_batch(query_count, batch, queries)
    offset = key_count - query_count if align == "bottom_right" else per_batch(query_offset, batch, 0)
    i = np.arange(queries)[None, None, :, None]
    j = np.arange(keys)[None, None, None, :] - key_start[:, None, None, None]
    p = i + offset[:, None, None, None]
    seen = (0 <= j) & (j < key_count[:, None, None, None]) & (i < query_count[:, None, None, None])
    if causal:
        seen = seen & (j <= p)
    left, right = (-1 if side is None else side for side in window or (None, None))
    if left >= 0:
        seen = seen & (j >= p - left)
    if right >= 0:
        seen = seen & (j <= p + right)
    seen = np.broadcast_to(seen, shape)
    if allow is not None:
        seen = seen & np.broadcast_to(allow, shape)
    if bias is not None:
        seen = seen & np.broadcast_to(np.asarray(bias, np.float64) != -np.inf, shape)
    return seen, p - j


def select(weights, seen, v):
    """Sums of what is seen only: 0 times a NaN that is not seen would be NaN in a plain product."""
    finite = np.isfinite(v)
    out = weights @ np.where(finite, v, 0.0)
    for b, h, j, c in np.argwhere(~finite & seen.any(axis=2)[..., None]):
        rows = seen[b, h, :, j]
        out[b, h, rows, c] += weights[b, h, rows, j] * v[b, h, j, c]
    return out


def reference(q, k, v, *, scale=None, softcap=0.0, bias=None, alibi=None, sink=None, **options):
    """out, lse, the four stages and seen; `size` is the largest |scale| sum |q k| + |bias| + |slope| |p - j'| over seen pairs, `size_all`
    over all pairs."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    k, v = (np.repeat(t, group, axis=1) for t in (k, v))  # query head h reads key head h / group
    shape = q.shape[:3] + k.shape[2:3]
    seen, distance = seen_pairs(shape, bias=bias, **options)
    scale = (1 / np.sqrt(q.shape[3]) if q.shape[3] else 0.0) if scale is None else scale
    with np.errstate(all="ignore"):
        scaled = scale * (q @ k.swapaxes(2, 3)) if q.shape[3] else np.zeros(shape)
        size = np.abs(scale) * (np.abs(q) @ np.abs(k).swapaxes(2, 3)) if q.shape[3] else np.zeros(shape)
        capped = softcap * np.tanh(scaled / softcap) if softcap > 0 else scaled
        s = capped
        if bias is not None:
            s, size = s + np.asarray(bias, np.float64), size + np.abs(np.asarray(bias, np.float64))
        if alibi is not None:
            slope = np.broadcast_to(np.asarray(alibi, np.float64), shape[:2])[:, :, None, None]
            s, size = s - slope * np.abs(distance), size + np.abs(slope * distance)
        s = np.where(seen, s, -np.inf)
        rows = np.arange(shape[2])[None, None, :, None] < per_batch(options.get("query_count"), shape[0], shape[2])[:, None, None, None]
        logit = np.full(shape[1], -np.inf) if sink is None else np.asarray(sink, np.float64)
        logit = np.where(rows, logit[None, :, None, None], -np.inf)
        top = np.maximum(s.max(axis=3, keepdims=True, initial=-np.inf), logit)
        empty = top == -np.inf
        base = np.where(empty, 0.0, top)
        e = np.where(seen, np.exp(s - base), 0.0)
        total = e.sum(axis=3, keepdims=True) + np.where(logit == -np.inf, 0.0, np.exp(logit - base))
        weight = np.where(seen & ~empty, e / total, 0.0)
        lse = np.where(empty, -np.inf, base + np.log(total))[..., 0]
        out = select(weight, seen, v)

    def largest(pairs):
        values = size[pairs]
        values = values[np.isfinite(values)]
        return values.max() if values.size else 0.0

    return SimpleNamespace(out=out, lse=lse, weight=weight, scaled=scaled, capped=capped, biased=s, seen=seen,
                           size=largest(seen), size_all=largest(np.ones(shape, bool)))
