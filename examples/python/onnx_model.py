"""An ONNX model whose Attention runs on the library: grouped heads, a cache, a window.
SPDX-License-Identifier: MIT

prints
    {'Y': (1, 8, 1, 64), 'key': (1, 2, 101, 64), 'value': (1, 2, 101, 64)}
    as ONNX's reference: True
"""
import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import attn.onnx

node = helper.make_node("Attention", ["Q", "K", "V", "", "past_key", "past_value"], ["Y", "key", "value"], is_causal=1, left_window_size=15)
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in ("Q", "K", "V", "past_key", "past_value", "Y", "key", "value")]
model = helper.make_model(helper.make_graph([node], "decode", ends[:5], ends[5:]), opset_imports=[helper.make_opsetid("", 25)])

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 8, 1, 64), np.float32)                 # 8 query heads, one new token
k, v = rng.standard_normal((2, 1, 2, 1, 64), np.float32)           # 2 key heads
past = rng.standard_normal((2, 1, 2, 100, 64), np.float32)
got = attn.onnx.Backend.prepare(model).run([q, k, v, *past])
print({name: getattr(got, name).shape for name in got._fields})

want = ReferenceEvaluator(model).run(None, {"Q": q, "K": k, "V": v, "past_key": past[0], "past_value": past[1]})
print("as ONNX's reference:", np.allclose(got.Y, want[0], rtol=1e-5, atol=2e-6))
