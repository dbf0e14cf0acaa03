"""Each form of attn mask convert, given to the system whose form it is: the results are those of the options that it was made from.
SPDX-License-Identifier: MIT
"""
import os
import pathlib
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tolerance
from testdata import ROOT

COMMAND = pathlib.Path(os.environ.get("ATTN_BUILD_DIR", os.path.join(ROOT, "build"))).resolve() / "attn"
B, H, N, D = 2, 3, 6, 8
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((B, H, N, D)) for _ in range(3))
SIZE = (np.abs(q) @ np.abs(k).swapaxes(2, 3)).max() / np.sqrt(D)

# No row is empty, since systems differ there.
PADDED = "--key-count 4,6"
ALL = [PADDED, "--causal", "--window 2,1", "--causal --align top-left --key-start 0 --key-count 5,6", "--causal --window 1,-1"]


def attn(*arguments):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def made(tmp_path):
    """options, form -> the converted mask, and what attn gives with those options."""
    for name, a in (("q", q), ("k", k), ("v", v)):
        np.save(tmp_path / f"{name}.npy", a)

    def make(options, form):
        attn("mask", "convert", "--batch", B, "--heads", H, "--queries", N, *options.split(), "--to", form, "-o", tmp_path / "mask.npy", "-q")
        attn("run", *(tmp_path / f"{n}.npy" for n in "qkv"), *options.split(), "-o", tmp_path / "out.npy", "-q")
        return np.load(tmp_path / "mask.npy"), np.load(tmp_path / "out.npy")

    return make


def same(got, want):
    got = np.asarray(got)
    tolerance.check("out", got, want, got.dtype, SIZE)


@pytest.mark.parametrize("options", ALL)
@pytest.mark.parametrize("form", ["sdpa", "keep", "add", "hf-4d", "ort-bias"])
def test_scaled_dot_product_attention(made, options, form):
    mask, want = made(options, form)
    mask = torch.from_numpy(mask if mask.dtype == bool else mask.astype(np.float64))
    same(F.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), mask), want)


def multihead(**masks):
    """nn.MultiheadAttention whose projections change nothing."""
    m = torch.nn.MultiheadAttention(H * D, H, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        m.in_proj_weight.copy_(torch.eye(H * D, dtype=torch.float64).repeat(3, 1))
        m.out_proj.weight.copy_(torch.eye(H * D))
    flat = [torch.from_numpy(x.swapaxes(1, 2).reshape(B, N, H * D).copy()) for x in (q, k, v)]
    out = m(*flat, need_weights=False, **{name: torch.from_numpy(mask) for name, mask in masks.items()})[0]
    return out.detach().numpy().reshape(B, N, H, D).swapaxes(1, 2)


@pytest.mark.parametrize("options", ALL)
def test_multihead_attention(made, options):
    mask, want = made(options, "mha")
    assert mask.ndim == (3 if "count" in options else 2)
    same(multihead(attn_mask=mask), want)


def test_multihead_attention_padding(made):
    mask, want = made(PADDED, "mha-padding")
    same(multihead(key_padding_mask=mask), want)


def test_hugging_face(made):
    """A model's weights are 0 exactly where its attention_mask says padding."""
    import transformers
    mask, _ = made(PADDED, "hf")
    config = transformers.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                                     attn_implementation="eager")
    torch.manual_seed(0)
    bert = transformers.BertModel(config).eval()
    with torch.no_grad():
        weights = bert(torch.zeros(B, N, dtype=torch.int64), attention_mask=torch.from_numpy(mask), output_attentions=True).attentions[0]
    assert mask.dtype == np.int64 and ((weights.numpy() > 0) == mask[:, None, None].astype(bool)).all()


def model(op, domain, version, inputs, outputs, **attributes):
    node = helper.make_node(op, list(inputs), outputs, domain=domain, **attributes)
    kinds = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "bool": TensorProto.BOOL, "int64": TensorProto.INT64, "int32": TensorProto.INT32}
    typed = [helper.make_tensor_value_info(n, kinds[a.dtype.name], a.shape) for n, a in inputs.items() if n]
    first = kinds[inputs["q"].dtype.name]
    graph = helper.make_graph([node], "g", typed, [helper.make_tensor_value_info(o, first, None) for o in outputs])
    opsets = [helper.make_opsetid("", 24)] + ([helper.make_opsetid(domain, version)] if domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("options", ALL)
def test_onnx(made, options):
    mask, want = made(options, "onnx")
    inputs = {"q": q, "k": k, "v": v, "mask": mask}
    same(ReferenceEvaluator(model("Attention", "", 24, inputs, ["out"])).run(None, inputs)[0], want)


def test_onnx_lengths(made):
    lengths, want = made(PADDED, "onnx-lengths")
    inputs = {"q": q, "k": k, "v": v, "lengths": lengths}
    node = helper.make_node("Attention", ["q", "k", "v", "", "", "", "lengths"], ["out"])
    m = model("Attention", "", 24, inputs, ["out"])
    m.graph.node[0].CopyFrom(node)
    same(ReferenceEvaluator(m).run(None, inputs)[0], want)


def run_microsoft(op, places, inputs, outputs, **attributes):
    """An operator of ONNX Runtime's own; places: its inputs in order, "" where one is left out."""
    m = model(op, "com.microsoft", 1, inputs, outputs)
    m.graph.node[0].CopyFrom(helper.make_node(op, places, outputs, domain="com.microsoft", **attributes))
    session = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0].reshape(B, N, H, D).swapaxes(1, 2)


def flat(x):
    return x.swapaxes(1, 2).reshape(B, N, H * D).astype(np.float32)


@pytest.mark.parametrize("form,at", [("ort-padding", 4), ("ort-bias", 5)])
def test_onnx_runtime(made, form, at):
    mask, want = made(PADDED, form)
    inputs = {"q": flat(q), "k": flat(k), "v": flat(v), "mask": mask}
    places = ["q", "k", "v", "", "", ""]
    places[at] = "mask"
    same(run_microsoft("MultiHeadAttention", places, inputs, ["out"], num_heads=H), want)


def test_onnx_runtime_grouped_query_attention(made, tmp_path):
    """Its prompt is causal, and what it leaves in padded rows means nothing."""
    lengths, _ = made(PADDED, "ort-gqa")
    assert lengths.dtype == np.int32 and lengths.tolist() == [3, 5]
    attn("run", *(tmp_path / f"{n}.npy" for n in "qkv"), "--causal", "--align", "top-left", "--key-count", "4,6", "--query-count", "4,6", "-o", tmp_path / "out.npy", "-q")
    want, empty = np.load(tmp_path / "out.npy"), np.zeros((B, H, 0, D), np.float32)
    inputs = {"q": flat(q), "k": flat(k), "v": flat(v), "past_k": empty, "past_v": empty, "lengths": lengths, "total": np.array(N, np.int32)}
    got = run_microsoft("GroupQueryAttention", list(inputs), inputs, ["out", "present_k", "present_v"], num_heads=H, kv_num_heads=H)
    for b in range(B):
        same(got[b, :, :lengths[b] + 1], want[b, :, :lengths[b] + 1])
