"""Every vector of the ONNX project for its Attention operator, on every isa.
SPDX-License-Identifier: MIT
"""
import json
import os

import numpy as np
import pytest

import tolerance
from testdata import DATA, ISAS, data, needs_data

from attn._onnx import onnx_attention  # attn.onnx without the onnx package

pytestmark = needs_data
SUITES = ("onnx", "onnx25_generated")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
if DATA:
    import onnxpb


def vectors():
    if DATA:
        for suite in SUITES:
            with open(data("conformance", suite, "index.json")) as file:
                yield from ((suite, vector) for vector in json.load(file)["cases"])


VECTORS = list(vectors())


def read(suite, vector, part):
    return {e["slot"]: onnxpb.load_tensor(data("conformance", suite, vector["case"], e["file"]))[2] for e in vector[part]}


def test_no_vector_is_left_out():
    stored = [(suite, name) for suite in SUITES for name in sorted(os.listdir(data("conformance", suite)))
              if os.path.exists(data("conformance", suite, name, "model.onnx"))]
    assert stored == [(suite, vector["case"]) for suite, vector in VECTORS]
    assert len(stored) >= 87


@pytest.mark.parametrize("suite, vector", VECTORS, ids=["%s-%s" % (suite, vector["case"]) for suite, vector in VECTORS])
def test_vector(suite, vector):
    model = onnxpb.load_single_node_model(data("conformance", suite, vector["case"], "model.onnx"))
    attributes = {name: value for name, value in vector["attributes"].items() if value is not None}
    assert model["attributes"] == attributes
    inputs, outputs = read(suite, vector, "inputs"), read(suite, vector, "outputs")
    scores = inputs["Q"].astype(np.float64), inputs["K"].astype(np.float64)
    # no more than |scale| |q| |k|, and the bias: the vectors are uniform in 0 to 1, so this widens little
    size = np.abs(attributes.get("scale", 1.0)) * np.abs(scores[0]).max() * np.abs(scores[1]).max()
    for isa in ISAS:
        got = dict(zip(OUTPUTS, onnx_attention(**inputs, **attributes, scores="qk_matmul_output" in outputs, isa=isa)))
        for slot, want in outputs.items():
            assert got[slot].dtype == want.dtype
            if slot.startswith("present"):
                assert got[slot].tobytes() == want.tobytes()
            else:
                tolerance.check("%s with %s" % (slot, isa), got[slot], want, inputs["Q"].dtype, size)
