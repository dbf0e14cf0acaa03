"""Every case that was made after a fault reported against some attention, its memory layout included, on every isa. Cases of packed
sequences are not run, as the library has none; what a case says about gradients is test_backward.py's.
SPDX-License-Identifier: MIT
"""
import glob

import numpy as np
import pytest

import memory
from testdata import DATA, DTYPES, ISAS, attn, data, needs_data

pytestmark = needs_data
if DATA:
    import case_io

TYPES = {**DTYPES, "bool": np.dtype(bool)}
FORWARD = ("out", "lse", "weights")
NAMES = {"q_offset": "query_offset", "kv_len": "key_count", "kv_start": "key_start", "q_len": "query_count", "alibi_slopes": "alibi",
         "sinks": "sink", "scale": "scale", "softcap": "softcap", "causal": "causal", "align": "align", "window_left": None,
         "window_right": None}


def forward_cases():
    cases = [case_io.load(path) for path in sorted(glob.glob(data("cases", "*.json")))] if DATA else []
    return [case for case in cases if case.get("layout") != "packed"]


CASES = forward_cases()


def place(array, spec, buffers):
    """The array in memory as the case says: the whole buffer, and the view that holds the array."""
    if spec is None:
        return array, array
    if "same_buffer_as" in spec:
        flat = buffers[spec["same_buffer_as"]].reshape(-1)
        assert np.shares_memory(flat, buffers[spec["same_buffer_as"]])
    elif spec.get("recipe_only"):
        flat = memory.reserve(spec["alloc"], array.dtype)
    else:
        flat = memory.aligned(spec["alloc"], array.dtype, spec.get("base_align", array.itemsize))
        fill = spec.get("fill", 0)
        flat[:] = case_io.WORDS[fill] if isinstance(fill, str) else fill
    shape = spec.get("view_as", array.shape)
    view = memory.view(flat, shape, spec["strides"], spec["offset"])
    view[...] = np.broadcast_to(array, shape)
    return flat, view


def arguments(case):
    """The case in attention()'s terms."""
    layout = case.get("memory", {})
    arrays = {}
    for name, spec in case["inputs"].items():
        if not name.startswith("d_"):  # what flows back
            arrays[name] = place(case_io.tensor(spec).astype(TYPES[spec["dtype"]]), layout.get(name), arrays)[1]
    options = case.get("options", {})
    o = {NAMES[name]: value for name, value in options.items() if NAMES[name]}
    o.setdefault("align", None if "query_offset" in o else "top_left")
    o["window"] = options.get("window_left", -1), options.get("window_right", -1)
    if "past_k" in arrays:
        for name in "kv":
            arrays[name] = np.concatenate([arrays.pop("past_" + name), arrays[name]], axis=2)
        o.update(align=None, query_offset=options.get("q_offset", case["inputs"]["past_k"]["shape"][2]))
    if "mask" in arrays:
        o["allow"] = arrays.pop("mask")
    return {**arrays, **o}


def output(case, dtype):
    """The case's output buffer, and what checks the rest of it; both None where the case does not say."""
    spec = case.get("memory", {}).get("out")
    if spec is None:
        return None, None
    shape = case["expect"]["out"]["shape"]
    flat, out = place(np.full(shape, 77, dtype), spec, {})
    return out, None if spec.get("recipe_only") else memory.Untouched(flat, shape, spec["strides"], spec["offset"])


def test_there_are_cases():
    assert len(CASES) >= 39 and any("memory" in case for case in CASES)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES, ids=[case["slug"] for case in CASES])
def test_case(case, isa):
    asked = arguments(case)
    if case.get("expect_error"):
        with pytest.raises(ValueError):
            attn.attention(isa=isa, **asked)
        return
    out, untouched = output(case, asked["q"].dtype)
    out, lse, weights = attn.attention(isa=isa, out=out, return_lse=True, return_weights="weight", **asked)
    if untouched:
        untouched.check()
    expect = {name: want for name, want in case["expect"].items() if name in FORWARD}
    assert expect
    assert case_io.compare({**case, "expect": expect}, {"out": out, "lse": lse, "weights": weights}) == []
