"""attn.onnx: ONNX models whose Attention operators (opsets 23 to 25) run on libattn.
SPDX-License-Identifier: MIT

Needs the onnx package, 1.19 or newer. Every other operator of a model is run by ONNX's own reference evaluator.

    Backend             an onnx.backend.base.Backend: Backend.prepare(model).run([inputs])
    OPS                 for onnx.reference.ReferenceEvaluator(model, new_ops=attn.onnx.OPS)
    onnx_attention      the operator itself, on NumPy arrays

>>> import numpy as np, onnx.helper as helper, attn.onnx
>>> from onnx import TensorProto
>>> node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"], is_causal=1)
>>> tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 3, 4]) for name in ("Q", "K", "V", "Y")]
>>> model = helper.make_model(helper.make_graph([node], "one", tensors[:3], tensors[3:]), opset_imports=[helper.make_opsetid("", 24)])
>>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 3, 4), np.float32)
>>> Y, = attn.onnx.Backend.prepare(model).run([q, k, v])
>>> bool(np.array_equal(Y[:, :, 0], v[:, :, 0]))           # the first query sees the first key only
True

A model that does not name the output qk_matmul_output needs memory that grows with the lengths only, not with their product.
"""
import onnx
from onnx.backend.base import Backend as _Base
from onnx.backend.base import BackendRep, namedtupledict
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ._onnx import onnx_attention

__all__ = ["Backend", "OPS", "onnx_attention"]


class Attention(OpRun):
    """The operator as the reference evaluator calls it: one class for all its opsets, as attributes that one lacks keep their defaults."""

    op_domain = ""

    def _run(self, *inputs, **attributes):
        names = list(self.output)
        while names and not names[-1]:
            names.pop()
        given = {name: value for name, value in attributes.items() if value is not None}
        return onnx_attention(*inputs, scores=len(names) == 4, **given)[:len(names)]


OPS = [Attention]


class _Prepared(BackendRep):
    def __init__(self, model):
        self.evaluator = ReferenceEvaluator(model, new_ops=OPS)

    def run(self, inputs, **kwargs):
        """The outputs, by position or by name. `inputs`: a dict by name, or a list in the model's order."""
        if not isinstance(inputs, dict):
            names = self.evaluator.input_names
            if len(inputs) > len(names):
                raise ValueError("there are %d inputs; the model has %d" % (len(inputs), len(names)))
            inputs = dict(zip(names, inputs))
        names = self.evaluator.output_names
        return namedtupledict("Outputs", names)(*self.evaluator.run(None, inputs))


class Backend(_Base):
    """Runs models on the CPU."""

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        super().prepare(model, device, **kwargs)  # checks the model
        if not cls.supports_device(device):
            raise ValueError("device is %r; it must be 'CPU'" % device)
        return _Prepared(model)

    @classmethod
    def run_node(cls, node, inputs, device="CPU", outputs_info=None, **kwargs):
        super().run_node(node, inputs, device, outputs_info, **kwargs)  # checks the node
        version = kwargs.get("opset_version", min(onnx.defs.onnx_opset_version(), 25))
        evaluator = ReferenceEvaluator(node, new_ops=OPS, opsets={"": version})
        return tuple(evaluator.run(None, dict(zip(filter(None, node.input), inputs))))

    @classmethod
    def supports_device(cls, device):
        return device.split(":")[0] == "CPU"
