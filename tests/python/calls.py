"""Random calls: sizes, types, options and memory layouts, drawn by hypothesis; numbers by NumPy from a drawn seed.
SPDX-License-Identifier: MIT
"""
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st

import reference
from testdata import DTYPES, EXAMPLES, SEED, attn, random, tensors

EDGES = [15, 16, 17, 31, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129]
POSITION_FIELDS = ("query_offset", "query_count", "key_count", "key_start")
GARBAGE = (np.nan, np.inf, -np.inf)


def random_examples(count):
    """Decorates a test with so many random examples, the same ones for the same ATTN_SEED."""
    def wrap(test):
        phases = (Phase.explicit, Phase.generate, Phase.shrink)
        options = settings(max_examples=max(1, int(count * EXAMPLES)), deadline=None, database=None, phases=phases,
                           suppress_health_check=list(HealthCheck), print_blob=False)
        return seed(SEED)(options(test))
    return wrap


@dataclass
class Call:
    """One call with rank-4 arrays; `options` are attention()'s keyword arguments, arrays of lengths spelled out."""
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    options: dict = field(default_factory=dict)

    @property
    def shape(self):
        return self.q.shape[:3] + self.k.shape[2:3]

    def run(self, **more):
        return attn.attention(self.q, self.k, self.v, **{**self.options, **more})

    def reference(self):
        return reference.reference(self.q, self.k, self.v, **self.options)

    def lengths(self):
        """query_offset, query_count, key_count, key_start with every default worked out."""
        batch, _, queries, keys = self.shape
        get = self.options.get
        start = reference.per_batch(get("key_start"), batch, 0)
        count = reference.per_batch(get("key_count"), batch, keys - start)
        rows = reference.per_batch(get("query_count"), batch, queries)
        offset = count - rows if get("align") == "bottom_right" else reference.per_batch(get("query_offset"), batch, 0)
        return {"query_offset": offset, "query_count": rows, "key_count": count, "key_start": start}

    def needs_position(self):
        """Whether the library must refuse the call: where the queries stand matters and is not said."""
        options, lengths = self.options, self.lengths()
        bounded = any(side not in (None, -1) for side in options["window"] or ())
        placed = options["causal"] or bounded or options["alibi"] is not None
        said = options["align"] is not None or options["query_offset"] is not None
        return bool(placed and not said and (lengths["query_count"] != lengths["key_count"]).any())


# ---- memory layouts -----------------------------------------------------------------------------------------------------------------

LAYOUTS = ("dense", "transposed", "reversed", "step", "gaps", "odd")


def lay(array, how, rng):
    """An array equal to `array`, elsewhere in memory; between its elements lies NaN (True in a mask)."""
    shape, filler = array.shape, True if array.dtype == np.bool_ else np.nan
    if how == "dense" or array.ndim == 0:
        return array
    if how == "transposed":
        order = rng.permutation(array.ndim)
        buffer = np.ascontiguousarray(array.transpose(order))
        return buffer.transpose(np.argsort(order))
    if how == "reversed":
        flips = tuple(slice(None, None, -1) if rng.random() < 0.6 else slice(None) for _ in shape)
        return np.ascontiguousarray(array[flips])[flips]
    if how == "step":
        steps = rng.integers(1, 4, array.ndim)
        buffer = np.full([n * step for n, step in zip(shape, steps)], filler, array.dtype)
        view = buffer[tuple(slice(None, None, step) for step in steps)]
    elif how == "gaps":
        buffer = np.full(shape[:-1] + (shape[-1] + 5,), filler, array.dtype)
        view = buffer[..., 2:2 + shape[-1]]
    else:  # odd: an address that is aligned for one element only
        buffer = np.full(array.size + 1, filler, array.dtype)
        view = buffer[1:].reshape(shape)
    view[...] = array
    return view


def strided_out(shape, dtype, how, rng):
    """An output to be written in place, and a function that asserts that nothing between its elements was written."""
    mark = np.asarray(77.0).astype(dtype)
    if how == "dense":
        view = buffer = np.full(shape, mark, dtype)
    elif how == "transposed":
        order = rng.permutation(len(shape))
        buffer = np.full([shape[axis] for axis in order], mark, dtype)
        view = buffer.transpose(np.argsort(order))
    else:
        steps = rng.integers(1, 4, len(shape))
        buffer = np.full([n * step + 1 for n, step in zip(shape, steps)], mark, dtype)
        view = buffer[(..., *(slice(0, n * step, step) for n, step in zip(shape, steps)))]  # an array even without axes

    def check():
        rest = buffer.copy()
        if how not in ("dense", "transposed"):
            rest[(..., *(slice(0, n * step, step) for n, step in zip(shape, steps)))] = mark
            assert (rest == mark).all(), "elements between the outputs were written"
    return view, check


# ---- drawing ------------------------------------------------------------------------------------------------------------------------


def sizes(edges):
    return st.one_of(st.integers(1, 9), st.sampled_from(edges))


def seldom(strategy):
    """None five times in eight, so that most calls leave most options out and queries still see something."""
    return st.integers(0, 7).flatmap(lambda n: strategy if n in (2, 4, 7) else st.none())


@st.composite
def shapes(draw):
    """(batch, heads, kv_heads, queries, keys, dim, value_dim), small enough for a slow reference; sometimes one of them is 0."""
    batch = draw(st.sampled_from([1, 1, 1, 2, 2, 3]))
    kv_heads = draw(st.sampled_from([1, 1, 2, 3]))
    heads = kv_heads * draw(st.sampled_from([1, 1, 2, 3]))
    queries = min(draw(sizes(EDGES)), 300 // (batch * heads))
    keys = draw(sizes(EDGES + [255, 256, 257, 300, 2047, 2048, 2049, 2100]))
    if keys > 300:
        queries = min(queries, 6)
    width = sizes([15, 16, 17, 24, 32, 33, 48, 64, 65, 80, 96, 128, 129, 160])
    shape = [batch, heads, kv_heads, queries, keys, draw(width), draw(width)]
    empty = draw(st.sampled_from([None] * 9 + [0, 1, 3, 4, 4, 5, 6]))
    if empty is not None:
        shape[empty] = 0
    return shape


@st.composite
def mask_shapes(draw, full):
    """A shape that broadcasts from the right to `full`: any rank, any axis 1."""
    shape = [draw(st.sampled_from([1, n])) for n in full]
    return tuple(shape[draw(st.sampled_from([0, 0, 1, 2, 3, 4])):])


def draw_lengths(draw, batch, queries, keys):
    def some(low, high):
        return [draw(st.integers(min(l, h), h)) for l, h in zip(low, high)]

    none = [0] * batch
    start = draw(seldom(st.just(none)))
    if start is not None:
        start = some(none, [min(keys, 140)] * batch)
    room = [keys - s for s in start or none]
    o = {"key_start": start, "key_count": None, "query_count": None}
    if draw(seldom(st.just(True))):
        o["key_count"] = some([n // 2 for n in room] if draw(st.booleans()) else none, room)
    if draw(seldom(st.just(True))):
        o["query_count"] = some(none, [queries] * batch)
    return o


@st.composite
def options(draw, shape, dtype, rng):
    batch, heads, _, queries, keys = shape[:5]
    full = (batch, heads, queries, keys)
    real = np.float64 if dtype == np.float64 else np.float32
    o = draw_lengths(draw, batch, queries, keys)
    o["causal"] = draw(st.booleans())
    bound = st.sampled_from([None, None, -1, 0, 1, 2, 5, 40, 130])
    o["window"] = draw(seldom(st.tuples(bound, bound)))
    where = draw(st.sampled_from(["top_left", "bottom_right", "bottom_right", "bottom_right", "offset", "offsets", "unsaid"]))
    o["align"] = where if where in ("top_left", "bottom_right") else None
    near = st.integers(min(0, keys - queries), keys + 3)
    far = st.one_of(near, near, st.sampled_from([-200, -3, -1, 1000]))
    o["query_offset"] = draw(far) if where == "offset" else [draw(far) for _ in range(batch)] if where == "offsets" else None
    o["scale"] = draw(seldom(st.sampled_from([0.0, 0.3, -0.7, 1.0])))
    o["softcap"] = draw(st.sampled_from([0.0, 0.0, 0.0, 0.5, 5.0, 30.0]))
    slopes = draw(seldom(st.sampled_from([(heads,), (batch, heads)])))
    o["alibi"] = None if slopes is None else rng.uniform(-0.1, 0.5, slopes).astype(real)
    o["sink"], o["bias"], o["allow"] = None, None, None
    if draw(seldom(st.just(True))):
        o["sink"] = rng.choice([-np.inf, -1.0, 0.0, 2.5, 20.0], heads).astype(real)
    if draw(seldom(st.just(True))):
        bias_type = dtype if draw(st.booleans()) else np.dtype(np.float32)
        o["bias"] = random(bias_type, rng, *draw(mask_shapes(full)))
        hidden = rng.random(o["bias"].shape) < draw(st.sampled_from([0.0, 0.0, 0.3, 0.9]))
        o["bias"] = np.where(hidden, np.asarray(-np.inf).astype(bias_type), o["bias"])
    if draw(seldom(st.just(True))):
        o["allow"] = np.asarray(rng.random(draw(mask_shapes(full))) < draw(st.sampled_from([0.1, 0.7, 0.95, 1.0])))
        if o["allow"].ndim and draw(seldom(st.just(True))):
            o["allow"][..., :draw(st.sampled_from([128, 256]))] = False  # whole tiles hidden
    return o


@st.composite
def random_calls(draw):
    """A Call with finite numbers, dense in memory, and the generator that made it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(shapes())
    dtype = DTYPES[draw(st.sampled_from(["f32", "f32", "f64", "f16", "bf16"]))]
    return Call(*tensors(rng, dtype, *shape), draw(options(shape, dtype, rng))), rng


# ---- what must not matter -----------------------------------------------------------------------------------------------------------


def spoil(call, rng):
    """The same call with NaN and infinities wherever nothing may look: keys and values that no query sees, queries that see nothing,
    biases at places that something else hides."""
    o = dict(call.options)
    seen = reference.seen_pairs(call.shape, **o)[0]
    batch, heads, queries, keys = call.shape
    kv_heads = call.k.shape[1]
    group = heads // kv_heads if kv_heads else 0
    by_key = seen.reshape(batch, kv_heads, group * queries, keys).any(axis=2) if group else np.zeros((batch, kv_heads, keys), bool)
    q, k, v = call.q.copy(), call.k.copy(), call.v.copy()
    for array, used in ((q, seen.any(axis=3)), (k, by_key), (v, by_key)):
        array[~used] = rng.choice(GARBAGE, array[~used].shape).astype(array.dtype)
    if o["bias"] is not None:
        bias = np.array(o["bias"])
        elsewhere = reference.seen_pairs(call.shape, **{**o, "bias": None})[0]
        axes = tuple(axis for axis, n in enumerate((1,) * (4 - bias.ndim) + bias.shape) if n == 1)
        used = elsewhere.any(axis=axes, keepdims=True).reshape(bias.shape)
        o["bias"] = np.where(used, bias, rng.choice(GARBAGE, bias.shape).astype(bias.dtype))
    return Call(q, k, v, o)
