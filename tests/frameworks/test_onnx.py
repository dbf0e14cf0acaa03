"""ONNX's own test runner and models on attn.onnx.
SPDX-License-Identifier: MIT
"""
import doctest
import json
import os
import unittest

import numpy as np
import onnx
import onnx.backend.test
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

import testdata
import tolerance

import attn.onnx
from attn import _onnx


def names():
    """Every node test of the operator that the installed onnx has, without those that spell it out in other operators."""
    cases = onnx.backend.test.loader.load_model_tests(kind="node")
    return sorted(c.name for c in cases if c.name.startswith("test_attention_") and "_expanded" not in c.name)


@pytest.fixture(scope="module")
def runner():
    test = onnx.backend.test.BackendTest(attn.onnx.Backend, __name__)
    test.include("^test_attention_.*_cpu$")
    return test.tests


@pytest.fixture
def calls(monkeypatch):
    """Counts the runs of the library, and whether each was asked for scores."""
    seen = []

    def counted(*arrays, **options):
        seen.append(options["return_weights"])
        return attn.attention(*arrays, **options)
    monkeypatch.setattr(_onnx, "attention", counted)
    return seen


@pytest.mark.filterwarnings("ignore::RuntimeWarning:onnx")  # its cases for other operators, made when all are loaded
def test_official_runner(runner, calls, capsys):
    suite = unittest.TestSuite(runner("%s_cpu" % name) for name in names())
    result = unittest.TestResult()
    suite.run(result)
    faults = ["%s\n%s" % (test, text) for test, text in result.failures + result.errors]
    assert not faults, faults[0]
    assert not result.skipped and not result.unexpectedSuccesses and result.testsRun == len(names()) >= 93
    assert len(calls) >= result.testsRun
    with capsys.disabled():
        print("\n%d of %d node tests test_attention_* of onnx %s, none skipped" % (result.testsRun, len(names()), onnx.__version__))


@testdata.needs_data
def test_stored_files(calls, capsys):
    """The files of onnx 1.22.0, and those of opset 25, as models; ONNX's own comparison and tolerance."""
    count = 0
    for suite in ("onnx", "onnx25_generated"):
        with open(testdata.data("conformance", suite, "index.json")) as file:
            cases = json.load(file)["cases"]
        for case in cases:
            folder = testdata.data("conformance", suite, case["case"])

            def read(part):
                return [numpy_helper.to_array(onnx.load_tensor(os.path.join(folder, entry["file"]))) for entry in case[part]]
            got = attn.onnx.Backend.run_model(onnx.load(os.path.join(folder, "model.onnx")), read("inputs"))
            onnx.backend.test.BackendTest.assert_similar_outputs(read("outputs"), list(got), rtol=1e-3, atol=1e-7)
            count += 1
    assert count == len(calls) >= 87
    with capsys.disabled():
        print("\n%d stored vectors, none skipped" % count)


def model(inputs, outputs, opset=25, mask=None, **attributes):
    """A model of one Attention; sizes are left open."""
    node = helper.make_node("Attention", inputs, outputs, **attributes)
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in side if name] for side in (inputs, outputs)]
    if mask is not None:
        ends[0][-1] = helper.make_tensor_value_info("attn_mask", helper.np_dtype_to_tensor_dtype(mask.dtype), mask.shape)
    return helper.make_model(helper.make_graph([node], "one", *ends), opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def tensors(*shapes, dtype=np.float32):
    rng = np.random.default_rng(5)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def test_new_ops_in_a_larger_model(calls):
    """The operator between others, whose outputs are used by name; the reference's own operator is the judge."""
    nodes = [helper.make_node("Add", ["Q", "Q"], ["twice"]),
             helper.make_node("Attention", ["twice", "K", "V", "", "pk", "pv"], ["Y", "nk", "nv"], is_causal=1, q_num_heads=4, kv_num_heads=2),
             helper.make_node("Neg", ["Y"], ["end"])]
    ranks = {"Q": 3, "K": 3, "V": 3, "pk": 4, "pv": 4, "end": 3, "nk": 4, "nv": 4}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name, rank in ranks.items()]
    whole = helper.make_model(helper.make_graph(nodes, "three", ends[:5], ends[5:]), opset_imports=[helper.make_opsetid("", 23)])
    feeds = dict(zip(("Q", "K", "V", "pk", "pv"), tensors((2, 3, 32), (2, 3, 16), (2, 3, 16), (2, 2, 4, 8), (2, 2, 4, 8))))
    want = onnx.reference.ReferenceEvaluator(whole).run(None, feeds)
    assert not calls
    got = onnx.reference.ReferenceEvaluator(whole, new_ops=attn.onnx.OPS).run(None, feeds)
    assert calls == [None]
    tolerance.check("end", got[0], want[0], np.float32, 16.0)
    assert all(np.array_equal(a, b) for a, b in zip(got[1:], want[1:]))
    named = attn.onnx.Backend.run_model(whole, feeds)
    assert np.array_equal(named["end"], got[0])


@pytest.mark.parametrize("name, attributes, mask", [
    ("plain", {}, None),
    ("causal", dict(is_causal=1), None),
    ("softcap", dict(softcap=2.0, scale=0.5), None),
    ("bool", {}, np.tri(6, 9, 2, bool)),
    ("float", dict(is_causal=1), np.linspace(-2, 2, 54, dtype=np.float32).reshape(6, 9)),
])
def test_onnx_runtime_agrees(name, attributes, mask):
    """A third implementation, where the reference and this one might share a misreading; grouped heads."""
    import onnxruntime

    q, k, v = tensors((2, 4, 6, 8), (2, 2, 9, 8), (2, 2, 9, 8))
    whole = model(["Q", "K", "V"] + ([] if mask is None else ["attn_mask"]), ["Y"], opset=24, mask=mask, **attributes)
    feeds = {"Q": q, "K": k, "V": v, **({} if mask is None else {"attn_mask": mask})}
    want = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    tolerance.check(name, attn.onnx.Backend.run_model(whole, feeds)[0], want, np.float32, 8.0)


def test_memory_without_scores(calls):
    """The scores would be 1 GiB; what the call takes is the library's workspace."""
    q, k, v = tensors((1, 1, 16384, 16), (1, 1, 16384, 16), (1, 1, 16384, 16))
    prepared = attn.onnx.Backend.prepare(model(["Q", "K", "V"], ["Y"], left_window_size=64, is_causal=1))
    assert peak(lambda: prepared.run([q, k, v])) < 8 << 20
    prepared = attn.onnx.Backend.prepare(model(["Q", "K", "V"], ["Y", "", "", "qk"], qk_matmul_output_mode=3))
    q, k, v = q[:, :, :2048], k[:, :, :2048], v[:, :, :2048]
    assert peak(lambda: prepared.run([q, k, v])) > 8 << 20  # what is asked for shows, so the measure is one
    assert calls == [None, "weight"]


def peak(call):
    """Bytes of resident memory that a call takes at most."""
    def read(field):
        with open("/proc/self/status") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith(field))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark starts anew
    before = read("VmRSS:")
    call()
    return read("VmHWM:") - before


def test_softmax_in_double():
    """Precision that is asked for is given: float32 inputs, scores large enough to tell."""
    q, k, v = tensors((1, 1, 4, 8), (1, 1, 6, 8), (1, 1, 6, 8))
    q *= 40
    want = attn.attention(*(x.astype(np.float64) for x in (q, k, v))).astype(np.float32)
    got = [attn.onnx.Backend.run_model(model(["Q", "K", "V"], ["Y"], softmax_precision=kind), [q, k, v])[0]
           for kind in (TensorProto.DOUBLE, TensorProto.FLOAT16)]
    assert np.array_equal(got[0], want) and got[1].dtype == np.float32 and not np.array_equal(got[1], want)


def test_values_of_another_type():
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    half = q.astype(np.float16), k.astype(np.float16)
    want = attn.attention(*(x.astype(np.float32) for x in half), v)
    Y, key, value, _ = attn.onnx.onnx_attention(*half, v)
    assert (Y.dtype, key.dtype, value.dtype) == (np.float16, np.float16, np.float32)
    assert np.array_equal(Y, want.astype(np.float16))


@pytest.mark.parametrize("given, sentence", [
    (dict(attn_mask=np.zeros((4, 6), np.int64)), "attn_mask has dtype int64"),
    (dict(past_key=np.zeros((1, 2, 1, 8), np.float32)), "given together"),
    (dict(past_key=np.zeros((1, 2, 1, 8), np.float32), past_value=np.zeros((1, 2, 1, 8), np.float32), nonpad_kv_seqlen=np.array([3])), "exclude"),
    (dict(qk_matmul_output_mode=4), "qk_matmul_output_mode is 4"),
    (dict(q_num_heads=2, kv_num_heads=2), "rank 3"),
    (dict(softmax_precision=7), "softmax_precision is 7"),
    (dict(left_window_size=-2), "window_left is -2"),
])
def test_refused(given, sentence):
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    with pytest.raises(ValueError, match=sentence):
        attn.onnx.onnx_attention(q, k, v, **given)


def test_heads_that_do_not_divide():
    q = np.zeros((1, 4, 10), np.float32)
    for heads in (None, 0, 3):
        with pytest.raises(ValueError, match="number of heads must be given"):
            attn.onnx.onnx_attention(q, q, q, q_num_heads=heads, kv_num_heads=1)


def test_run_node_and_devices():
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"], is_causal=1)
    q, = tensors((1, 1, 3, 4))
    assert np.array_equal(attn.onnx.Backend.run_node(node, [q, q, q])[0], attn.attention(q, q, q, causal=True))
    assert attn.onnx.Backend.supports_device("CPU:0") and not attn.onnx.Backend.supports_device("CUDA")
    with pytest.raises(ValueError, match="device is 'CUDA'"):
        attn.onnx.Backend.prepare(model(["Q", "K", "V"], ["Y"]), "CUDA")


@pytest.mark.parametrize("module", [attn.onnx, _onnx], ids=lambda module: module.__name__)
def test_examples(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
