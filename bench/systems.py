"""systems.py: other systems' attention on a row of shapes.txt, for peers.py.
SPDX-License-Identifier: MIT

SYSTEMS is a list of (name, open). open(row, data) prepares everything outside the timing, layouts of the system's own included, and returns
(before, call, result): call() computes once and returns when it is done; result() is the output of the last call as a NumPy array with the axes
(batch, head, query, channel); before() is called ahead of a run of calls. It raises Refused where the system cannot express the row.
"""
import numpy as np


class Refused(Exception):
    """The system cannot express the row; the text says why."""


def _nothing():
    pass


def _needs_scores(row, name, copies):
    """Systems that hold all scores in memory would only measure the swap file beyond what there is."""
    need = copies * 4 * row.batch * row.heads * row.queries * row.keys
    if need > 0.7 * available():
        raise Refused("%s holds all scores: %.0f GiB" % (name, need / 2**30))


def available():
    with open("/proc/meminfo") as info:
        return next(1024 * int(line.split()[1]) for line in info if line.startswith("MemAvailable:"))


def _bias(row, data):
    """The bias in the inputs' own type, which is all that some take; 16-bit types by their bits."""
    if row.dtype_name == "f32":
        return data.bias
    import ml_dtypes

    return data.bias.astype(np.float16 if row.dtype_name == "f16" else ml_dtypes.bfloat16).view(np.uint16)


def _hides(row, data):
    """What the row hides as a bool mask that broadcasts, True = seen; None if nothing, or causal alone, which every system has."""
    i, j = np.arange(row.queries)[:, None], np.arange(row.keys)[None, :]
    if row.mask_name == "allow":
        return data.allow
    if row.mask_name == "window":
        return ((j <= i) & (j > i - row.window))[None, None]
    if row.mask_name.startswith("padding"):
        seen = (j < np.asarray(data.lengths)[:, None])[:, None, None, :]
        return seen & (j <= i)[None, None] if row.mask_name.endswith("causal") else seen
    return None


# ---- PyTorch ------------------------------------------------------------------------------------------------------------------------


def _torch(backend):
    import torch

    types = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    torch.set_grad_enabled(False)

    def tensor(array, name):
        if name == "f32":
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(np.int16)).view(types[name])

    def select():
        torch.backends.cuda.enable_flash_sdp(backend == "flash")  # the switches' module is historical; the CPU reads them too
        torch.backends.cuda.enable_math_sdp(backend == "math")
        torch.backends.cuda.enable_mem_efficient_sdp(False)

    def open(row, data):
        torch.set_num_threads(row.threads)
        if backend == "math":
            _needs_scores(row, "math", 2)
        q, k, v = (tensor(a, row.dtype_name) for a in (data.q, data.k, data.v))
        options = {"enable_gqa": True} if row.heads != row.kv_heads else {}
        mask = _hides(row, data)
        if row.mask_name == "causal":
            options["is_causal"] = True
        elif mask is not None:
            options["attn_mask"] = torch.from_numpy(mask)
        elif row.mask_name == "bias":
            options["attn_mask"] = torch.from_numpy(data.bias)
        out = [None]

        def call():
            out[0] = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

        def result():
            return out[0].numpy() if row.dtype_name == "f32" else out[0].view(torch.int16).numpy().view(np.uint16)

        select()
        try:
            call()
        except RuntimeError as fault:
            if "attn_mask" not in options or options["attn_mask"].dtype == torch.bool:
                raise Refused(str(fault).split("\n")[0]) from None
            options["attn_mask"] = options["attn_mask"].to(types[row.dtype_name])  # a bias of the inputs' own type
            call()
        return select, call, result

    return open


# ---- ONNX Runtime -------------------------------------------------------------------------------------------------------------------


class _OnnxRun:
    """One node as a session whose inputs and outputs stay bound, so that nothing is copied at a call."""

    def __init__(self, row, node, domain, version, inputs, output, shared=()):
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper

        self.type = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[row.dtype_name]
        kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32, np.dtype(np.bool_): TensorProto.BOOL,
                 np.dtype(np.int64): TensorProto.INT64, np.dtype(np.uint16): self.type}
        values = [helper.make_tensor_value_info(name, kinds[a.dtype], a.shape) for name, a in inputs.items()]
        outs = [helper.make_tensor_value_info(name, self.type, None) for name in node.output if name]
        opsets = [helper.make_opsetid("", 24)] + ([helper.make_opsetid(domain, version)] if domain else [])
        model = helper.make_model(helper.make_graph([node], "one", values, outs), opset_imports=opsets, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = row.threads, 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.force_spinning_stop", "1")  # its threads must not spin into the next one's turn
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.binding, self.kept = self.session.io_binding(), []
        places = {}
        for name, array in inputs.items():
            places[name] = self._value(onnxruntime, array)
            self.binding.bind_ortvalue_input(name, places[name])
        self.output = output
        self.binding.bind_ortvalue_output(node.output[0], self._value(onnxruntime, output))
        for name, same in shared:
            self.binding.bind_ortvalue_output(name, places[same])

    def _value(self, onnxruntime, array):
        self.kept.append(array)
        if array.dtype == np.uint16:
            value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, self.type)
        else:
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        self.kept.append(value)
        return value

    def call(self):
        self.session.run_with_iobinding(self.binding)


def _tokens(array):
    """(batch, head, position, channel) as the contiguous (batch, position, head * channel) of these operators."""
    b, h, n, d = array.shape
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(b, n, h * d)


def _heads_of(array, heads):
    b, n, hd = array.shape
    return array.reshape(b, n, heads, hd // heads).transpose(0, 2, 1, 3)


def _onnx(make):
    def open(row, data):
        try:
            run, result = make(row, data)
            run.call()
        except Refused:
            raise
        except Exception as fault:  # the runtime's own exceptions have no common base
            raise Refused(str(fault).strip().split("\n")[0].split(" : ")[-1].replace(" node with name ''", "")[:200]) from None
        return _nothing, run.call, result

    return open


def _multi_head(row, data):
    from onnx import helper

    if row.heads != row.kv_heads:
        raise Refused("no grouped heads")
    if row.mask_name == "window":
        raise Refused("no window")
    if row.mask_name == "allow":
        raise Refused("no boolean mask")
    _needs_scores(row, "MultiHeadAttention", 1)
    inputs = {"q": _tokens(data.q), "k": _tokens(data.k), "v": _tokens(data.v)}
    names = ["q", "k", "v"]
    if row.mask_name.startswith("padding"):
        names += ["", "lengths"]
        inputs["lengths"] = np.asarray(data.lengths, np.int32)
    if row.mask_name == "bias":
        names += ["", "", "bias"]
        inputs["bias"] = _bias(row, data)
    node = helper.make_node("MultiHeadAttention", names, ["o"], domain="com.microsoft", num_heads=row.heads,
                            unidirectional=int(row.mask_name.endswith("causal")))
    out = np.empty_like(inputs["q"])
    return _OnnxRun(row, node, "com.microsoft", 1, inputs, out), lambda: _heads_of(out, row.heads)


def _group_query(row, data):
    from onnx import helper

    causal = row.mask_name in ("causal", "window", "padding+causal")
    if not causal and row.queries != 1:
        raise Refused("causal only")
    if row.mask_name in ("allow", "bias"):
        raise Refused("no mask tensor")
    _needs_scores(row, "GroupQueryAttention", 1)
    total = np.array([row.keys], np.int32)
    lengths = np.asarray(data.lengths if data.lengths is not None else [row.keys] * row.batch, np.int32) - 1
    # New keys and values go into a cache that past and present share: all of them in a prefill, the last one when decoding.
    new = slice(-1, None) if row.queries == 1 else slice(None)
    inputs = {"q": _tokens(data.q), "k": _tokens(data.k[:, :, new]), "v": _tokens(data.v[:, :, new]),
              "past_k": np.array(data.k, order="C"), "past_v": np.array(data.v, order="C"), "lengths": lengths, "total": total}
    names, outputs = list(inputs), ["o", "present_k", "present_v"]
    shared = (("present_k", "past_k"), ("present_v", "past_v"))
    window = {"local_window_size": row.window} if row.mask_name == "window" else {}
    node = helper.make_node("GroupQueryAttention", names, outputs, domain="com.microsoft", num_heads=row.heads, kv_num_heads=row.kv_heads, **window)
    out = np.empty_like(inputs["q"])
    return _OnnxRun(row, node, "com.microsoft", 1, inputs, out, shared), lambda: _heads_of(out, row.heads)


def _onnx_attention(row, data):
    from onnx import helper

    _needs_scores(row, "Attention", 2)
    tokens = row.layout_name == "bnhd"
    shape = _tokens if tokens else np.ascontiguousarray
    inputs = {"q": shape(data.q), "k": shape(data.k), "v": shape(data.v)}
    names = ["q", "k", "v"]
    mask = _hides(row, data)
    if mask is not None or row.mask_name == "bias":
        inputs["mask"] = np.ascontiguousarray(mask if mask is not None else _bias(row, data))
        if inputs["mask"].shape[-2] == 1:
            inputs["mask"] = np.ascontiguousarray(np.broadcast_to(inputs["mask"], inputs["mask"].shape[:2] + (row.queries, row.keys)))
        names.append("mask")
    heads = {"q_num_heads": row.heads, "kv_num_heads": row.kv_heads} if tokens else {}
    node = helper.make_node("Attention", names, ["o"], is_causal=int(row.mask_name == "causal"), **heads)
    out = np.empty_like(inputs["q"])
    return _OnnxRun(row, node, "", 0, inputs, out), lambda: _heads_of(out, row.heads) if tokens else out


# ---- OpenVINO -----------------------------------------------------------------------------------------------------------------------


def _openvino():
    import openvino
    from openvino import opset13 as ops

    core = openvino.Core()

    def graph(row, kind, mask):
        """The inputs as they lie, transposed and (for grouped heads) repeated in the graph, where the plugin may fuse them."""
        tokens, group = row.layout_name == "bnhd", row.heads // row.kv_heads
        shapes = [(row.batch, h, n, row.dim) for h, n in ((row.heads, row.queries), (row.kv_heads, row.keys), (row.kv_heads, row.keys))]
        if tokens:
            shapes = [(b, n, h, d) for b, h, n, d in shapes]
        given = [ops.parameter(s, kind) for s in shapes]
        used = [ops.transpose(g, np.array([0, 2, 1, 3])) for g in given] if tokens else list(given)
        if group > 1:
            for at in (1, 2):
                wide = ops.broadcast(ops.unsqueeze(used[at], np.array([2])), np.array([row.batch, row.kv_heads, group, row.keys, row.dim]))
                used[at] = ops.reshape(wide, np.array([row.batch, row.heads, row.keys, row.dim]), False)
        if mask is not None:
            given.append(ops.parameter(mask.shape, openvino.Type.boolean if mask.dtype == np.bool_ else kind))
            used.append(given[-1])
        out = ops.scaled_dot_product_attention(*used, causal=row.mask_name == "causal")
        return openvino.Model([ops.transpose(out, np.array([0, 2, 1, 3])) if tokens else out], given, "attention")

    def open(row, data):
        kind = {"f32": openvino.Type.f32, "bf16": openvino.Type.bf16, "f16": openvino.Type.f16}[row.dtype_name]
        tokens = row.layout_name == "bnhd"
        mask = _bias(row, data) if row.mask_name == "bias" else _hides(row, data)
        _needs_scores(row, "OpenVINO", 1)
        try:
            compiled = core.compile_model(graph(row, kind, mask), "CPU", {"INFERENCE_NUM_THREADS": row.threads, "PERFORMANCE_HINT": "LATENCY",
                                                                         "INFERENCE_PRECISION_HINT": kind})
        except RuntimeError as fault:
            raise Refused(str(fault).strip().split("\n")[-1][:200]) from None
        request, kept = compiled.create_infer_request(), []
        for at, array in enumerate((data.q, data.k, data.v) + (() if mask is None else (mask,))):
            if at < 3 and tokens:
                array = array.transpose(0, 2, 1, 3)
            array = np.ascontiguousarray(array)
            kept.append(array)
            tensor = openvino.Tensor(array, array.shape, kind) if array.dtype == np.uint16 else openvino.Tensor(array, shared_memory=True)
            request.set_input_tensor(at, tensor)

        def result():
            out = request.get_output_tensor().data
            out = out.view(np.uint16) if row.dtype_name != "f32" else out
            return out.transpose(0, 2, 1, 3) if tokens else out

        def call(kept=kept):
            request.infer()

        return _nothing, call, result

    return open


# ---- JAX ----------------------------------------------------------------------------------------------------------------------------


def _jax():
    import jax
    import ml_dtypes

    jax.config.update("jax_platforms", "cpu")
    types = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}

    def open(row, data):
        _needs_scores(row, "XLA", 3)
        q, k, v = (jax.device_put(np.ascontiguousarray(a.transpose(0, 2, 1, 3)).view(types[row.dtype_name])) for a in (data.q, data.k, data.v))
        fixed, arrays = {"is_causal": row.mask_name.endswith("causal") or row.mask_name == "window"}, {}
        if row.mask_name == "window":
            fixed["local_window_size"] = (row.window - 1, 0)
        if row.mask_name.startswith("padding"):
            lengths = np.asarray(data.lengths, np.int32)
            arrays = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
        if row.mask_name == "allow":
            arrays["mask"] = jax.device_put(data.allow)
        if row.mask_name == "bias":
            arrays["bias"] = jax.device_put(data.bias)
        function = jax.jit(lambda q, k, v, arrays: jax.nn.dot_product_attention(q, k, v, **fixed, **arrays))
        out = [None]

        def call():
            out[0] = function(q, k, v, arrays).block_until_ready()

        def result():
            array = np.asarray(out[0]).transpose(0, 2, 1, 3)
            return array if row.dtype_name == "f32" else array.view(np.uint16)

        try:
            call()
        except (ValueError, TypeError, NotImplementedError) as fault:
            raise Refused(str(fault).split("\n")[0][:200]) from None
        return _nothing, call, result

    return open


# ---- the list -----------------------------------------------------------------------------------------------------------------------


def _version(module, extra=""):
    import importlib

    found = importlib.import_module(module)
    return getattr(found, "__version__", "?").split("-")[0] + extra


def systems():
    """[(name, open or None, why not)]: every system, whether it is installed or not."""
    found = []
    for module, label, make in (
            ("torch", "PyTorch %s flash", lambda: _torch("flash")),
            ("torch", "PyTorch %s math", lambda: _torch("math")),
            ("onnxruntime", "ONNX Runtime %s MultiHeadAttention", lambda: _onnx(_multi_head)),
            ("onnxruntime", "ONNX Runtime %s GroupQueryAttention", lambda: _onnx(_group_query)),
            ("onnxruntime", "ONNX Runtime %s Attention", lambda: _onnx(_onnx_attention)),
            ("openvino", "OpenVINO %s", _openvino),
            ("jax", "JAX %s", _jax)):
        try:
            found.append((label % _version(module), make(), None))
        except ImportError as fault:
            found.append((label.replace(" %s", ""), None, "not installed (%s)" % fault))
    return found
