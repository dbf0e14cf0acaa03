"""_inspect.py: looking at the weights of a call without holding them all.
SPDX-License-Identifier: MIT
"""
import ctypes
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import _arrays, _describe, _library
from ._operator import STAGES

Numbers = Optional[Sequence[int]]


class InspectDesc(ctypes.Structure):  # attn_inspect_desc
    _fields_ = ([("size", ctypes.c_size_t), ("lse", _library.View), ("heads", ctypes.c_void_p), ("queries", ctypes.c_void_p)]
                + [(n, ctypes.c_int64) for n in ("head_count", "query_count", "key_first", "key_count")]
                + [("values", _library.View), ("values_stage", ctypes.c_int32), ("top", ctypes.c_int32)]
                + [(n, _library.View) for n in ("entropy", "top_weight", "top_key", "first_mass", "window_mass")]
                + [(n, ctypes.c_int64) for n in ("mass_left", "mass_right")]
                + [(n, _library.View) for n in ("received", "map_mean", "map_max")]
                + [(n, ctypes.c_int64) for n in ("map_rows", "map_columns")]
                + [("work", ctypes.c_void_p), ("work_bytes", ctypes.c_size_t)])


_library.declare(_library.lib, (("attn_inspect", ctypes.c_int32, ctypes.POINTER(_library.Desc), ctypes.POINTER(InspectDesc),
                                 ctypes.POINTER(_library.Error)),))


def _chosen(w, name, numbers, size, keep):
    """A list of heads or queries, negative ones counted from the end; how many are chosen."""
    if numbers is None:
        return size
    array = np.atleast_1d(np.asarray(numbers))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError("%s is %r; it must be a list of numbers" % (name, numbers))
    array = np.ascontiguousarray(np.where(array < 0, array + size, array), np.int64)
    if array.size == 0 or array.min() < 0 or array.max() >= size:
        raise ValueError("%s is %r; it must be numbers from %d to %d, at least one" % (name, numbers, -size, size - 1))
    keep.append(array)
    setattr(w, name, array.ctypes.data)
    setattr(w, {"heads": "head_count", "queries": "query_count"}[name], array.size)
    return array.size


def inspect(q: Any, k: Any, *, heads: Numbers = None, queries: Numbers = None, keys: Optional[Tuple[int, int]] = None,
            lse: Optional[Any] = None, values: Optional[str] = None, entropy: bool = False, top: int = 0, first_mass: bool = False,
            window_mass: Optional[Tuple[int, int]] = None, received: bool = False, map_mean: Optional[Tuple[int, int]] = None,
            map_max: Optional[Tuple[int, int]] = None, **options: Any) -> Dict[str, Any]:
    """What the weights of attention(q, k, v, **options) hold, in a dict of what is asked for; v plays no part.

    heads, queries: the chosen ones, negative numbers from the end; None = all. keys: (first, count). lse: of the call, if there is one;
    otherwise it is computed first. Results have the axes (batch, chosen heads, ...), without those that q's rank lacks:

    values="weight", "scaled", "capped" or "biased": (..., chosen queries, keys), the stage that attention(return_weights=) means
    entropy: (..., chosen queries), in nats
    top=n: top_weight and top_key, (..., chosen queries, n), largest first; key -1 where there are fewer
    first_mass: (..., chosen queries), the weight of the first key. window_mass=(left, right): that of the keys about the query's own
    received: (..., keys), what each key gets from the chosen queries together
    map_mean=(rows, columns), map_max=(rows, columns): (..., rows, columns), the weights of all pairs in so many cells
    """
    c = _describe.describe(q, k, k, **options)
    batch, all_heads, all_queries, all_keys = c.shape
    w = InspectDesc(size=ctypes.sizeof(InspectDesc))
    rank = len(c.q.shape)
    if rank == 2 and heads is not None:
        raise ValueError("heads is %r, but q has no axis of heads" % (heads,))
    head = (batch, _chosen(w, "heads", heads, all_heads, c.keep))[4 - rank:]
    row = head + (_chosen(w, "queries", queries, all_queries, c.keep),)
    if keys is not None:
        w.key_first, w.key_count = (side or 0 for side in _describe.pair("keys", keys, "first, count"))
    seen = (w.key_count or all_keys - w.key_first,)
    if lse is not None:
        x = _describe.floats("lse", lse)
        if x.shape != c.q.shape[:-1]:
            raise ValueError("lse has shape %s, and must have %s" % (x.shape, c.q.shape[:-1]))
        c.keep.append(x)
        w.lse = _describe.view(x, missing=1)
    if values is not None and values not in STAGES:
        raise ValueError("values is %r; it must be one of %s" % (values, ", ".join(STAGES)))
    w.values_stage, w.top = STAGES[values or "weight"], _describe.integer("top", top, 32)
    w.mass_left, w.mass_right = window_mass or (0, 0)
    w.map_rows, w.map_columns = cells = tuple(map_mean or map_max or (0, 0))
    if map_mean and map_max and tuple(map_max) != cells:
        raise ValueError("map_mean is %s and map_max is %s; one call makes maps of one size" % (map_mean, map_max))
    results = {}
    for name, asked, shape in (("values", values, row + seen), ("entropy", entropy, row), ("top_weight", top, row + (w.top,)),
                               ("top_key", top, row + (w.top,)), ("first_mass", first_mass, row), ("window_mass", window_mass, row),
                               ("received", received, head + seen), ("map_mean", map_mean, head + cells), ("map_max", map_max, head + cells)):
        if asked:
            results[name], x = _arrays.empty(c.kind, shape, 6 if name == "top_key" else c.code, c.q)
            c.keep.append(x)
            setattr(w, name, _describe.view(x, rank - len(shape)))  # axes that the field has behind the array's
    _library.call(_library.lib.attn_inspect, ctypes.byref(c.desc), ctypes.byref(w))
    return {name: _arrays.finish(c.kind, array) for name, array in results.items()}


def weights(q: Any, k: Any, lse: Optional[Any] = None, *, heads: Numbers = None, queries: Numbers = None,
            keys: Optional[Tuple[int, int]] = None, stage: str = "weight", **options: Any) -> Any:
    """The weights of attention(q, k, v, **options) at chosen places: (batch, heads, queries, keys), or fewer axes as q has.

    heads and queries: numbers in any order, negative ones from the end; None = all. keys: (first, count), None = all. lse: what
    attention() returned, which saves computing it again. stage: "weight", or the scores "scaled", "capped" or "biased". The cost is that
    of the places asked for.

    >>> import numpy as np, attn
    >>> q, k, v = np.random.default_rng(4).standard_normal((3, 8, 1000, 16))
    >>> out, lse = attn.attention(q, k, v, causal=True, return_lse=True)
    >>> w = attn.weights(q, k, lse, heads=[2], queries=[500, -1], causal=True)
    >>> w.shape, bool(np.allclose(w[0] @ v[2], out[2, [500, -1]]))
    ((1, 2, 1000), True)
    """
    if stage not in STAGES:
        raise ValueError("stage is %r; it must be one of %s" % (stage, ", ".join(STAGES)))
    return inspect(q, k, lse=lse, heads=heads, queries=queries, keys=keys, values=stage, **options)["values"]


class Summary(NamedTuple):
    """What summary() returns; None where it was not asked for. Axes are q's, with the chosen heads and queries."""
    entropy: Any  # (.., queries): of each query's weights, in nats
    first_mass: Any  # (.., queries): the weight of the sequence's first key
    top_weight: Any  # (.., queries, top): the largest weights, largest first
    top_key: Any  # (.., queries, top): their keys, int64; -1 where fewer keys have a weight above 0
    window_mass: Any  # (.., queries): the sum of the weights in the window
    received: Any  # (.., keys): what each key gets from all chosen queries together
    map_mean: Any  # (.., rows, columns): the mean of the weights in each cell, hidden ones counting as 0
    map_max: Any  # (.., rows, columns): the largest of them


def summary(q: Any, k: Any, lse: Optional[Any] = None, *, heads: Numbers = None, queries: Numbers = None,
            keys: Optional[Tuple[int, int]] = None, top: int = 0, mass: Optional[Tuple[Optional[int], Optional[int]]] = None,
            received: bool = True, map: Optional[Tuple[int, int]] = None, **options: Any) -> Summary:
    """What the weights of attention(q, k, v, **options) add up to, without a matrix of queries * keys.

    top: how many of the largest weights of each query, up to 64. mass: (left, right), sums the weights that near to the query's
    position; None = no bound. received: the sum over the queries, for each key. map: (rows, columns) of a picture of all weights.
    heads, queries, keys, lse: as for weights(); keys choose what received and the map show, all else is of whole rows.

    >>> import numpy as np, attn
    >>> q, k = np.random.default_rng(5).standard_normal((2, 4, 300, 8))
    >>> s = attn.summary(q, k, causal=True, top=3, mass=(10, 0), map=(20, 20))
    >>> s.entropy.shape, s.top_key.shape, s.received.shape, s.map_mean.shape
    ((4, 300), (4, 300, 3), (4, 300), (4, 20, 20))
    >>> bool(np.allclose(s.received.sum(axis=1), 300)), int(s.top_key[0, 0, 0]), int(s.top_key[0, 0, 1])
    (True, 0, -1)
    """
    if not 0 <= _describe.whole("top", top) <= 64:
        raise ValueError("top is %d, and must be from 0 to 64" % top)
    if mass is not None:
        mass = tuple(-1 if side is None else side for side in _describe.pair("mass", mass, "left, right"))
    if map is not None:
        map = tuple(side or 0 for side in _describe.pair("map", map, "rows, columns"))
    got = inspect(q, k, lse=lse, heads=heads, queries=queries, keys=keys, entropy=True, first_mass=True, top=top, window_mass=mass,
                  received=received, map_mean=map, map_max=map, **options)
    return Summary(*(got.get(name) for name in Summary._fields))
