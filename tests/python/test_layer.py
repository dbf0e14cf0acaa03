"""attn.Layer: a layer of a checkpoint, against the formula in NumPy and what PyTorch computed.
SPDX-License-Identifier: MIT
"""
import gc
import os

import numpy as np
import pytest

import tolerance
from testdata import ROOT, SEED, attn

PATH = os.path.join(ROOT, "examples", "minilm-layer.safetensors")
F32 = np.float32


def tensors(path):
    """The file's tensors, read as its format is written down: length, JSON, bytes."""
    import json
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    made = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "BF16": np.uint16}
    return {name: np.frombuffer(data[slice(*about["data_offsets"])], made[about["dtype"]]).reshape(about["shape"])
            for name, about in header.items() if name != "__metadata__" and about["dtype"] in made}


@pytest.fixture(scope="module")
def file():
    return tensors(PATH)


@pytest.fixture(scope="module")
def layer():
    return attn.Layer.from_safetensors(PATH, 5)


def by_hand(layer, file, x, x_key=None, **options):
    """The projections in float64 around attn.attention(), whose results other tests hold to the formula."""
    got = {name[len(layer.prefix):]: array.astype(np.float64) for name, array in file.items() if name.startswith(layer.prefix)}

    def project(name, x):
        return x.astype(np.float64) @ got[name + ".weight"].T + got[name + ".bias"]

    def heads(x):
        return x.reshape(*x.shape[:-1], layer.heads, -1).swapaxes(-2, -3)

    x_key = x if x_key is None else x_key
    q, k, v = (heads(project("attention.self." + name, x)) for name, x in (("query", x), ("key", x_key), ("value", x_key)))
    out, lse, weights = attn.attention(q, k, v, return_lse=True, return_weights="weight", **options)
    return project("attention.output.dense", out.swapaxes(-2, -3).reshape(*x.shape[:-1], -1)), lse, weights


def test_what_a_layer_says(layer):
    assert (layer.heads, layer.kv_heads, layer.dim, layer.value_dim) == (12, 12, 32, 32)
    assert layer.width == layer.key_width == layer.value_width == layer.out_width == 384 and layer.causal is False
    assert layer.layout == "Hugging Face BERT" and layer.prefix.endswith("layer.5.") and "BERT" in repr(layer)
    again = attn.Layer.from_safetensors(PATH, prefix=layer.prefix)
    assert again.description == layer.description


@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(key_count=[9, 4], scale=0.1), dict(window=(2, 1), softcap=5.0)], ids=str)
def test_results(layer, file, options):
    x = np.random.default_rng(SEED).standard_normal((2, 9, 384)).astype(F32)
    want = by_hand(layer, file, x, **options)
    got = layer(x, return_lse=True, return_weights="weight", **options)
    size = 20.0  # scores here are sums of 384 products, twice
    for name, a, b in zip(("out", "lse", "weights"), got, want):
        tolerance.check(name, a, b, F32, size)
    assert layer(x, **options).tobytes() == got[0].tobytes()


def test_one_sentence_and_other_keys(layer, file):
    rng = np.random.default_rng(SEED)
    x, y = rng.standard_normal((9, 384)).astype(F32), rng.standard_normal((6, 384)).astype(F32)
    out, weights = layer(x, x_key=y, return_weights="weight")
    assert out.shape == (9, 384) and weights.shape == (12, 9, 6)
    want = by_hand(layer, file, x, y)
    tolerance.check("out", out, want[0], F32, 20.0)
    tolerance.check("weights", weights, want[2], F32, 20.0)
    assert layer(np.asfortranarray(x), x_key=y).shape == out.shape
    assert layer(x, x_key=y, x_value=y, threads=1).tobytes() == out.tobytes()


def test_it_outlives_its_maker(file):
    x = np.ones((3, 384), F32)
    layer = attn.Layer.from_safetensors(PATH, 5)
    before = layer(x).tobytes()
    for _ in range(20):
        attn.Layer.from_safetensors(PATH, 5)
    gc.collect()
    assert layer(x).tobytes() == before


REFUSED = [
    (dict(x=np.ones((3, 384))), "x has 2 axes and dtype float64"),
    (dict(x=np.ones((3, 10), F32)), "x has 10 channels, and this layer takes 384"),
    (dict(x=np.ones((1, 1, 3, 384), F32)), "x has 4 axes"),
    (dict(x_key=np.ones((2, 3, 384), F32)), "x_key has 3 axes"),
    (dict(x_key=np.ones((3, 384), F32), x_value=np.ones((4, 384), F32)), "x_value has 4 positions and there are 3 keys"),
    (dict(causal=True, x_key=np.ones((4, 384), F32)), "align is not said"),
    (dict(return_weights="all"), "return_weights is 'all'"),
    (dict(key_count=4), "key_count"),
]


@pytest.mark.parametrize("asked, words", REFUSED, ids=[words for _, words in REFUSED])
def test_refusals(layer, asked, words):
    with pytest.raises(ValueError, match=words):
        layer(**{"x": np.ones((3, 384), F32), **asked})


def test_files_that_are_no_layers(tmp_path):
    with pytest.raises(OSError, match="none.safetensors"):
        attn.Layer.from_safetensors(tmp_path / "none.safetensors", 0)
    with pytest.raises(ValueError, match="layer"):
        attn.Layer.from_safetensors(PATH, 77)
    with pytest.raises(ValueError, match="layer is -1, and must be 0 or more"):
        attn.Layer.from_safetensors(PATH, -1)
    with pytest.raises(ValueError, match="one of the two must be given"):
        attn.Layer.from_safetensors(PATH)
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    with pytest.raises((OSError, ValueError), match="bad.safetensors"):
        attn.Layer.from_safetensors(tmp_path / "bad.safetensors", 0)
