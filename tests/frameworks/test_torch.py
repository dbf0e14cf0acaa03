"""attn.torch against PyTorch's own attention in float64.
SPDX-License-Identifier: MIT
"""
import doctest
import inspect

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import attn.torch
import tolerance
from testdata import SEED, attn

DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
sdpa = attn.torch.scaled_dot_product_attention


def draw(*shapes, dtype=torch.float32, seed=SEED):
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=made, dtype=torch.float64).to(dtype) for shape in shapes]


def close(got, want, dtype, size=0.0, name="out", **how):
    """Within the table of tolerances for that type; `want` is float64."""
    kind = {torch.float32: np.float32, torch.float64: np.float64, torch.float16: np.float16}.get(dtype)
    if kind is None:
        import ml_dtypes
        kind = ml_dtypes.bfloat16
    tolerance.check(name, got.detach().double().numpy().astype(kind), want.detach().numpy(), kind, size, **how)


def peer(q, k, v, mask=None, **how):
    """PyTorch's own formula, written out by it (the math backend), in float64."""
    mask = mask if mask is None or mask.dtype == torch.bool else mask.double()
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), mask, **how)


def test_the_documentation_runs():
    result = doctest.testmod(attn.torch, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= 6 and result.failed == 0


def test_the_signature_is_torchs():
    """Names, order and defaults as the first lines of PyTorch's own documentation give them."""
    said = F.scaled_dot_product_attention.__doc__.split("->")[0]
    ours = [p for p in inspect.signature(sdpa).parameters.values()]
    want = "scaled_dot_product_attention(" + ", ".join(
        p.name if p.default is p.empty else "%s=%s" % (p.name, p.default) for p in ours) + ")"
    assert want == " ".join(said.split())


SHAPES = {
    "plain": ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)),
    "one head of keys": ((2, 4, 5, 8), (2, 1, 7, 8), (2, 1, 7, 6)),
    "one head of queries": ((2, 1, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)),
    "heads of values only": ((2, 1, 5, 8), (2, 1, 7, 8), (2, 4, 7, 6)),
    "batch of queries": ((3, 4, 5, 8), (1, 4, 7, 8), (1, 4, 7, 6)),
    "batch of keys": ((1, 4, 5, 8), (3, 4, 7, 8), (3, 4, 7, 6)),
    "rank 2": ((5, 8), (7, 8), (7, 6)),
    "rank 3": ((4, 5, 8), (4, 7, 8), (4, 7, 6)),
    "rank 5": ((2, 3, 4, 5, 8), (2, 3, 4, 7, 8), (2, 3, 4, 7, 6)),
    "rank 5, broadcast": ((2, 1, 4, 5, 8), (1, 3, 4, 7, 8), (3, 4, 7, 6)),
    "mixed ranks": ((5, 8), (2, 4, 7, 8), (4, 7, 6)),
    "no keys": ((2, 4, 5, 8), (2, 4, 0, 8), (2, 4, 0, 6)),
    "no queries": ((2, 4, 0, 8), (2, 4, 7, 8), (2, 4, 7, 6)),
    "no batch": ((0, 4, 5, 8), (0, 4, 7, 8), (0, 4, 7, 6)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape, dtype):
    q, k, v = draw(*SHAPES[shape], dtype=DTYPES[dtype])
    want = peer(q, k, v) if shape != "no keys" else torch.zeros(2, 4, 5, 6, dtype=torch.float64)
    got = sdpa(q, k, v)
    assert got.dtype == q.dtype and got.shape == want.shape
    close(got, want, q.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", [dict(is_causal=True), dict(scale=0.3), dict(scale=0.0), dict(scale=-1.0), dict(is_causal=True, scale=2.0)],
                         ids=str)
def test_options(how, dtype):
    for queries, keys in ((5, 7), (7, 5), (6, 6), (1, 4)):
        q, k, v = draw((2, 4, queries, 8), (2, 4, keys, 8), (2, 4, keys, 8), dtype=DTYPES[dtype])
        close(sdpa(q, k, v, **how), peer(q, k, v, **how), q.dtype)
        k, v = k[:, :2], v[:, :2]
        close(sdpa(q, k, v, enable_gqa=True, **how), peer(q, k, v, enable_gqa=True, **how), q.dtype)


MASKS = [(5, 7), (7,), (1, 7), (5, 1), (4, 5, 7), (1, 5, 7), (2, 1, 1, 7), (2, 4, 5, 7), (1, 4, 1, 7), (2, 1, 5, 7), ()]


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("kind", ["bool", "float", "both strided"])
def test_masks(shape, kind):
    q, k, v = draw((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6))
    (mask,) = draw(shape)
    if kind == "bool":
        mask = mask > -0.5
    elif kind == "both strided":
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
        mask = torch.stack([mask, mask])[0].masked_fill(mask > 1.0, -torch.inf)
    want = torch.nan_to_num(peer(q, k, v, mask), nan=0.0)
    close(sdpa(q, k, v, mask), want, q.dtype)
    if mask.dim() <= 3:  # the same below two batch axes
        outer = [t.expand(3, *t.shape) for t in (q, k, v)]
        close(sdpa(*outer, mask), want.expand(3, *want.shape), q.dtype)


def test_mask_types():
    q, k, v = draw((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6), dtype=torch.bfloat16)
    (mask,) = draw((5, 7), dtype=torch.bfloat16)
    close(sdpa(q, k, v, mask), peer(q, k, v, mask), torch.bfloat16)
    close(sdpa(q, k, v, mask.float()), peer(q, k, v, mask), torch.bfloat16)  # a type more than PyTorch takes


def test_a_query_that_sees_nothing_gives_zeros():
    q, k, v = draw((1, 2, 3, 8), (1, 2, 4, 8), (1, 2, 4, 8))
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    for given in (mask, torch.zeros(3, 4).masked_fill(~mask, -torch.inf)):
        assert (sdpa(q, k, v, given)[:, :, 1] == 0).all()


def test_biases_of_torch():
    for queries, keys in ((3, 7), (6, 6)):
        q, k, v = draw((2, 4, queries, 8), (2, 4, keys, 8), (2, 4, keys, 8))
        for make, diagonal in ((causal_upper_left, 0), (causal_lower_right, keys - queries)):
            want = peer(q, k, v, torch.ones(queries, keys, dtype=torch.bool).tril(diagonal))
            close(sdpa(q, k, v, make(queries, keys)), want, q.dtype)
    with pytest.raises(ValueError, match="attn_mask is a bias for 3 queries"):
        sdpa(q, k, v, causal_lower_right(3, 7))


def test_layouts_are_read_in_place():
    """(batch, positions, heads, channels) seen through a transpose, a slice of something wider, keys by columns: the same bits."""
    q, k, v = draw((2, 4, 33, 8), (2, 4, 40, 8), (2, 4, 40, 8))
    want = sdpa(q, k, v)
    laid = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    wide = torch.full((2, 4, 33, 17), torch.nan)
    wide[..., 1::2] = q
    channels_last = [t.mT.contiguous().mT for t in (q, k, v)]
    for tensors in (laid, (wide[..., 1::2], k, v), channels_last):
        assert torch.equal(sdpa(*tensors), want)
    assert want.transpose(1, 2).is_contiguous(), "heads side by side"


def test_autocast():
    q, k, v = draw((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
    with torch.autocast("cpu", torch.bfloat16):
        got, theirs = sdpa(q, k, v), F.scaled_dot_product_attention(q, k, v)
    assert got.dtype == theirs.dtype == torch.bfloat16
    close(got, peer(*(t.bfloat16() for t in (q, k, v))), torch.bfloat16)


REFUSED = [
    (dict(dropout_p=-0.1), "dropout_p is -0.1"),
    (dict(dropout_p=1.5), "dropout_p is 1.5"),
    (dict(attn_mask=torch.ones(5, 7, dtype=torch.bool), is_causal=True), "attn_mask is given and is_causal is True"),
    (dict(attn_mask=causal_lower_right(5, 7), is_causal=True), "attn_mask is given and is_causal is True"),
    (dict(attn_mask=torch.ones(5, 7, dtype=torch.int32)), "attn_mask has dtype torch.int32"),
    (dict(attn_mask=torch.ones(4, 7)), r"attn_mask has shape \(4, 7\), which does not broadcast to .* = \(2, 4, 5, 7\)"),
    (dict(attn_mask=torch.ones(2, 3, 5, 7) > 0), r"attn_mask has shape \(2, 3, 5, 7\)"),
    (dict(attn_mask=torch.ones(1, 2, 4, 5, 7) > 0), r"attn_mask has shape \(1, 2, 4, 5, 7\)"),
    (dict(attn_mask=torch.ones(5, 7).double()), "attn_mask has dtype torch.float64; it must be bool, float32 or query's torch.float32"),
    (dict(query=np.ones((2, 4, 5, 8), np.float32)), "query is a ndarray; it must be a tensor"),
    (dict(value=None), "value is a NoneType; it must be a tensor"),
    (dict(key=torch.ones(2, 2, 7, 8), value=torch.ones(2, 2, 7, 8)), "4, 2 and 2 heads, which do not broadcast; enable_gqa=True"),
    (dict(query=torch.ones(2, 4, 5, 8).double()), "query has dtype torch.float64 and key has torch.float32"),
    (dict(query=torch.ones(2, 4, 5, 8).int()), "query has dtype torch.int32"),
    (dict(query=torch.ones(2, 4, 5, 9)), "q has batch 2 and 9 channels"),
    (dict(key=torch.ones(2, 4, 6, 8)), "k and v differ in their position axis: 6 and 7"),
    (dict(query=torch.ones(8)), "at least 2 axes"),
    (dict(enable_gqa=True, key=torch.ones(2, 3, 7, 8), value=torch.ones(2, 3, 7, 8)), "4, 3 and 3 heads"),
    (dict(enable_gqa=True, key=torch.ones(2, 2, 7, 8)), "4, 2 and 4 heads"),
    (dict(query=torch.ones(2, 4, 5, 8).to_sparse()), "query has layout torch.sparse_coo"),
    (dict(query=torch.nested.nested_tensor([torch.ones(4, 5, 8)] * 2, layout=torch.jagged)), "query has layout torch.jagged"),
    (dict(scale=float("nan")), "scale is"),
]


@pytest.mark.parametrize("asked, words", REFUSED, ids=["-".join(asked) for asked, _ in REFUSED])
def test_refusals(asked, words):
    q, k, v = draw((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
    with pytest.raises(ValueError, match=words):
        sdpa(**{"query": q, "key": k, "value": v, **asked})


def test_heads_that_do_not_broadcast():
    q, k, v = draw((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k, v)
    with pytest.raises(ValueError, match="enable_gqa=True lets"):
        sdpa(q, k, v)


# ---- the operator -----------------------------------------------------------------------------------------------------------------------


def test_all_of_attention():
    """The operator has every argument of attn.attention; the same bits come out."""
    q, k, v = draw((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))
    (bias,) = draw((5, 7))
    options = dict(bias=bias, allow=bias > -1, causal=True, align="bottom_right", window=(3, None), key_count=[7, 6], key_start=[0, 1],
                   query_count=[5, 4], scale=0.4, softcap=3.0, alibi=torch.arange(1.0, 5.0) / 8, sink=torch.zeros(4))
    want = attn.attention(q, k, v, return_lse=True, return_weights="weight", **options)
    got = attn.torch.attention(q, k, v, return_lse=True, return_weights="weight", **options)
    assert len(got) == len(want) == 3 and all(torch.equal(a, b) for a, b in zip(got, want))
    options["align"], options["query_offset"] = None, torch.tensor([1, 2])
    assert torch.equal(attn.torch.attention(q, k, v, **options), attn.attention(q, k, v, **options))
    theirs = set(inspect.signature(attn.attention).parameters) - {"out", "isa"}
    assert set(inspect.signature(attn.torch.attention).parameters) == theirs


def samples():
    q, k, v = draw((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))
    none = [None] * 8
    yield (q, k, v, *none, False, None, None, None, 0.0, 0.0, None, None, None)
    yield (q.double(), k.double(), v.double(), *none, True, "top_left", None, 0.5, 2.0, 0.25, torch.tensor([7, -1]), "weight", None)
    (bias,) = draw((5, 7))
    yield (q.transpose(1, 2).contiguous().transpose(1, 2), k, v, bias, bias > 0, torch.ones(4), torch.zeros(4), None, None,
           torch.tensor([7, 5]), None, True, "bottom_right", [2, 0], None, 0.0, 0.0, None, None, 1)


@pytest.mark.parametrize("number", range(3))
def test_opcheck(number):
    """PyTorch's own examination of an operator: schema, registrations, fake tensors, traced with sizes left open."""
    args = list(samples())[number]
    assert set(torch.library.opcheck(torch.ops.attn.attention.default, args).values()) == {"SUCCESS"}


def test_compile():
    q, k, v = draw((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))

    def model(q, k, v, mask):
        out = sdpa(2 * q, k, v, mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1) + 1

    (mask,) = draw((5, 7))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    assert torch.equal(compiled(q, k, v, mask), model(q, k, v, mask))
    q, k, v = draw((3, 4, 6, 8), (3, 2, 9, 8), (3, 2, 9, 6))
    (mask,) = draw((6, 9))
    assert torch.equal(compiled(q, k, v, mask), model(q, k, v, mask))
    causal = torch.compile(lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True), backend="aot_eager", fullgraph=True)
    assert torch.equal(causal(q, k, v), sdpa(q, k, v, is_causal=True, enable_gqa=True))


def test_export():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return sdpa(q, k, v, is_causal=True)

    q, k, v = draw((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8))
    exported = torch.export.export(Model(), (q, k, v))
    assert "attn.attention" in str(exported.graph) and torch.equal(exported.module()(q, k, v), sdpa(q, k, v, is_causal=True))


def test_meta_tensors():
    out = sdpa(*(t.to("meta") for t in draw((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6))))
    assert out.device.type == "meta" and out.shape == (2, 4, 5, 6)


def test_vmap_is_refused():
    tensors = draw((3, 2, 4, 5, 8), (3, 2, 4, 7, 8), (3, 2, 4, 7, 6))
    with pytest.raises(NotImplementedError, match="does not work under torch.vmap: call it with a batch axis"):
        torch.vmap(sdpa)(*tensors)


def test_threads_are_no_more_than_torchs(monkeypatch):
    """Forward and backward; the bits do not tell, so the pools that are made are looked at."""
    pools, before, tensors = {}, torch.get_num_threads(), draw(*[(2, 8, 300, 32)] * 3)
    monkeypatch.setattr(attn._describe, "pools", pools)
    monkeypatch.setattr(attn._describe, "_default_threads", 5)
    made = []
    try:
        for number in (1, 3, 8):
            torch.set_num_threads(number)
            sdpa(*learn(tensors)).sum().backward()
            made.append([threads for _, threads in pools])
        attn.torch.attention(*tensors, threads=4)
    finally:
        torch.set_num_threads(before)
        for pool, _ in pools.values():
            attn._library.lib.attn_pool_free(pool)
    assert made == [[], [3], [3, 5]] and [threads for _, threads in pools] == [3, 5, 4]


@pytest.mark.parametrize("function", [
    lambda x, q: sdpa(q, q, x), lambda x, q: sdpa(q, q, q, attn_mask=x[0, 0] @ x[0, 0].T), lambda x, q: attn.attention(x, q, q),
    lambda x, q: attn.torch.attention(q, q, q, sink=x[0, 0, 0, :2])], ids=["value", "mask", "NumPy's way", "sink"])
def test_forward_mode_is_refused(function):
    """PyTorch would take the tangent of a result that has none for 0."""
    x, q = draw((1, 2, 5, 8), (1, 2, 5, 8))
    with pytest.raises(NotImplementedError, match="carries a forward-mode derivative"):
        torch.func.jvp(lambda x: function(x, q), (x,), (x,))
    assert torch.equal(torch.func.jvp(lambda x: x + sdpa(q, q, q), (x,), (x,))[1], x)


# ---- gradients --------------------------------------------------------------------------------------------------------------------------


def learn(tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["plain", "one head of keys", "heads of values only", "batch of keys", "rank 3", "rank 5, broadcast"])
@pytest.mark.parametrize("how", [{}, dict(is_causal=True), dict(scale=0.3)], ids=str)
def test_gradients_are_torchs(shape, dtype, how):
    tensors = draw(*SHAPES[shape], dtype=DTYPES[dtype])
    ours, theirs = learn(tensors), learn(t.double() for t in tensors)
    want = peer(*theirs, **how)
    (flow,) = draw(want.shape, dtype=DTYPES[dtype], seed=SEED + 1)
    want.backward(flow.double())
    sdpa(*ours, **how).backward(flow)
    for name, a, b in zip("qkv", ours, theirs):
        assert a.grad.dtype == a.dtype
        # products of d_out and v, rounded once in the inputs' type, are what a sum may lose
        close(a.grad, b.grad, a.dtype, name="d" + name, gradient=True, least=float(flow.abs().max()) * 3)


def test_gradients_by_gradcheck():
    """Every way in, against differences: grouped heads, masks of every shape, slopes, sinks, lse."""
    double = torch.float64
    q, k, v = learn(draw((2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 2), dtype=double))
    assert torch.autograd.gradcheck(lambda *a: sdpa(*a, enable_gqa=True), (q, k, v))
    assert torch.autograd.gradcheck(lambda *a: sdpa(*a, is_causal=True, enable_gqa=True), (q, k, v))
    for shape in ((5, 6), (6,), (2, 1, 1, 6), (4, 5, 6), (2, 4, 5, 6), (2, 1, 5, 1)):
        (bias,) = learn(draw(shape, dtype=double))
        assert torch.autograd.gradcheck(lambda *a: sdpa(*a, enable_gqa=True), (q, k, v, bias))
    hidden = torch.zeros(5, 6, dtype=double).masked_fill(torch.eye(5, 6) > 0, -torch.inf)
    hidden[2] = -torch.inf
    assert torch.autograd.gradcheck(lambda *a: sdpa(*a, hidden, enable_gqa=True), (q, k, v))
    alibi, sink, (bias,) = torch.rand(4, dtype=double), torch.rand(4, dtype=double), draw((5, 6), dtype=double)

    def everything(q, k, v, bias, alibi, sink):
        return attn.torch.attention(q, k, v, bias=bias, alibi=alibi, sink=sink, causal=True, align="bottom_right", window=(3, None),
                                    key_count=[6, 5], softcap=2.0, scale=0.4, return_lse=True)

    assert torch.autograd.gradcheck(everything, (q, k, v, *learn((bias, alibi, sink))))
    assert torch.autograd.gradcheck(lambda *a: attn.torch.attention(*a, return_lse=True)[1], (q, k, v)), "lse alone"


def test_only_what_is_asked_for():
    q, k, v = draw((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))
    (v,) = learn([v])
    sdpa(q, k, v, enable_gqa=True).sum().backward()
    assert v.grad is not None and q.grad is None and k.grad is None
    with torch.no_grad():
        assert not sdpa(q, k, v, enable_gqa=True).requires_grad


def test_hidden_places_have_no_gradient():
    q, k, v = learn(draw((1, 2, 3, 8), (1, 2, 4, 8), (1, 2, 4, 8)))
    with torch.no_grad():
        k[:, :, 3], v[:, :, 3] = torch.nan, torch.inf
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1], mask[:, 3] = False, False
    sdpa(q, k, v, mask).sum().backward()
    assert (q.grad[:, :, 1] == 0).all() and (k.grad[:, :, 3] == 0).all() and (v.grad[:, :, 3] == 0).all()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


@pytest.mark.parametrize("number", range(3))
def test_opcheck_with_gradients(number):
    args = [x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in list(samples())[number]]
    args[-2] = None  # the stage of weights, which have no gradient
    assert set(torch.library.opcheck(torch.ops.attn.attention.default, args).values()) == {"SUCCESS"}


def test_compiled_gradients():
    def loss(q, k, v, bias):
        return sdpa(q, k, v, bias, enable_gqa=True).square().sum()

    plain, compiled = (learn(draw((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), (5, 7))) for _ in range(2))
    loss(*plain).backward()
    torch.compile(loss, backend="aot_eager", fullgraph=True)(*compiled).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain, compiled))


def test_what_has_no_gradient():
    q, k, v = learn(draw((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)))
    out, weights = attn.torch.attention(q, k, v, return_weights="weight")
    out.sum().backward(retain_graph=True)
    with pytest.raises(NotImplementedError, match="weights have no gradient"):
        weights.sum().backward()
    (first,) = torch.autograd.grad(sdpa(q, k, v, enable_gqa=True).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        first.sum().backward()


# ---- dropout ----------------------------------------------------------------------------------------------------------------------------


def test_dropout_is_the_formulas():
    """With the weights that dropout_mask() keeps, by hand in float64; gradients too."""
    q, k, v = learn(draw((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), dtype=torch.float64))
    keep = torch.from_numpy(attn.dropout_mask(0.3, (2, 4, 5, 7), seed=2**63 + 5, offset=9)).double() / 0.7
    got = attn.torch.attention(q, k, v, dropout=0.3, dropout_seed=2**63 + 5, dropout_offset=9)
    peers = learn((q, k, v))
    wide = [t.repeat_interleave(2, 1) for t in peers[1:]]
    want = (torch.softmax(peers[0] @ wide[0].mT / 8**0.5, -1) * keep) @ wide[1]
    close(got, want, torch.float64, 4.0)
    (flow,) = draw(got.shape, dtype=torch.float64, seed=SEED + 1)
    got.backward(flow), want.backward(flow)
    for a, b in zip((q, k, v), peers):
        close(a.grad, b.grad, torch.float64, 4.0, "gradient", gradient=True, least=3.0)
    assert torch.autograd.gradcheck(lambda *a: attn.torch.attention(*a, dropout=0.3, dropout_seed=1), (q, k, v))


def test_dropout_follows_torchs_seed():
    q, k, v = draw((2, 4, 50, 8), (2, 4, 70, 8), (2, 4, 70, 8))
    torch.manual_seed(3)
    first, second = sdpa(q, k, v, dropout_p=0.5), sdpa(q, k, v, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(sdpa(q, k, v, dropout_p=0.5), first) and not torch.equal(first, second)
    assert (sdpa(q, k, v, dropout_p=1.0) == 0).all()
    ones = sdpa(q, k, torch.ones_like(v), dropout_p=0.25)  # the kept weights sum to 1 in the mean
    assert abs(float(ones.mean()) - 1) < 0.02 and float(ones.std()) > 0.01
    compiled = torch.compile(lambda *a: sdpa(*a, dropout_p=0.5), backend="aot_eager", fullgraph=True)
    torch.manual_seed(3)
    assert torch.equal(compiled(q, k, v), first)


def test_multihead_drops_in_training_only():
    torch.manual_seed(SEED)
    layer = attn.torch.MultiheadAttention(16, 4, dropout=0.5, batch_first=True)
    (x,) = draw((2, 5, 16))
    assert not torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])
    _, weights = layer(x, x, x)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 5))
    layer.eval()
    assert torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])


# ---- MultiheadAttention -----------------------------------------------------------------------------------------------------------------


LAYERS = {
    "plain": {},
    "batch first": dict(batch_first=True),
    "no bias": dict(bias=False),
    "key and value widths": dict(kdim=10, vdim=12, batch_first=True),
    "bias_k and bias_v": dict(add_bias_kv=True),
    "zero key": dict(add_zero_attn=True, batch_first=True),
    "both": dict(add_bias_kv=True, add_zero_attn=True, bias=False, kdim=5),
    "float64": dict(dtype=torch.float64, batch_first=True),
}


def layers(name):
    torch.manual_seed(SEED)
    how = {"embed_dim": 16, "num_heads": 4, **LAYERS[name]}
    theirs, ours = torch.nn.MultiheadAttention(**how).eval(), attn.torch.MultiheadAttention(**how).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    ours.load_state_dict(theirs.state_dict())
    batch, queries, keys = 3, 5, 7
    shapes = [(batch, queries, 16), (batch, keys, theirs.kdim), (batch, keys, theirs.vdim)]
    tensors = draw(*shapes, dtype=how.get("dtype", torch.float32))
    return theirs, ours, tensors if theirs.batch_first else [t.transpose(0, 1) for t in tensors]


def both(theirs, ours, tensors, size=30.0, **how):
    """The same out and weights, within the table, of PyTorch's layer in float64."""
    dtype = next(ours.parameters()).dtype
    wide = {name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in how.items()}
    with torch.no_grad():
        want = theirs.double()(*(t.double() for t in tensors), **wide)
        got = ours(*tensors, **how)
    close(got[0], want[0], dtype, size)
    assert (got[1] is None) == (want[1] is None)
    if got[1] is not None:
        assert got[1].shape == want[1].shape and got[1].dtype == dtype
        close(got[1], want[1], dtype, size)
    return got


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("how", [{}, dict(need_weights=False), dict(average_attn_weights=False)], ids=str)
def test_multihead(name, how):
    theirs, ours, tensors = layers(name)
    assert type(ours).__mro__[1] is torch.nn.MultiheadAttention
    both(theirs, ours, tensors, **how)


def masks():
    hide = torch.zeros(3, 7, dtype=torch.bool)
    hide[0, 5:], hide[2, :2] = True, True
    (number,) = draw((5, 7))
    (many,) = draw((12, 5, 7))
    yield "padding", dict(key_padding_mask=hide)
    yield "2-D", dict(attn_mask=number > 1)
    yield "3-D", dict(attn_mask=many > 1)
    yield "padding and 2-D", dict(key_padding_mask=hide, attn_mask=number > 1)
    yield "padding and 3-D", dict(key_padding_mask=hide, attn_mask=many > 1)
    yield "float", dict(attn_mask=number)
    yield "float padding", dict(key_padding_mask=torch.zeros(3, 7).masked_fill(hide, -torch.inf))
    yield "floats", dict(key_padding_mask=hide.float(), attn_mask=many)
    yield "bool and float", dict(key_padding_mask=hide, attn_mask=number)
    yield "float and bool", dict(key_padding_mask=hide.float(), attn_mask=number > 1)


@pytest.mark.parametrize("layer", ["batch first", "both"])
@pytest.mark.parametrize("masks", [how for _, how in masks()], ids=[name for name, _ in masks()])
@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
def test_multihead_masks(layer, masks):
    theirs, ours, tensors = layers(layer)
    both(theirs, ours, tensors, average_attn_weights=False, **masks)
    both(theirs, ours, tensors, need_weights=False, **masks)


def test_multihead_without_a_batch():
    theirs, ours, tensors = layers("batch first")
    single = [t[0] for t in tensors]
    got = both(theirs, ours, single, key_padding_mask=torch.arange(7) > 4)
    assert got[0].shape == (5, 16) and got[1].shape == (5, 7)


def test_multihead_causal_hint():
    theirs, ours, (x, _, _) = layers("batch first")
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    for need in (True, False):
        both(theirs, ours, (x, x, x), attn_mask=mask, is_causal=True, need_weights=need)


def test_multihead_row_that_sees_nothing():
    _, ours, tensors = layers("batch first")
    out, weights = ours(*tensors, key_padding_mask=torch.ones(3, 7, dtype=torch.bool))
    assert torch.equal(out, ours.out_proj.bias.expand_as(out)) and (weights == 0).all()


@pytest.mark.parametrize("name", LAYERS)
def test_multihead_learns(name):
    """Gradients of every parameter and of the inputs."""
    theirs, ours, tensors = layers(name)
    theirs, ours = theirs.double().train(), ours.double().train()
    mine, peers = learn(t.double() for t in tensors), learn(t.double() for t in tensors)
    hide = torch.zeros(3, 7, dtype=torch.bool)
    hide[1, 4:] = True
    for layer, inputs in ((ours, mine), (theirs, peers)):
        layer(*inputs, key_padding_mask=hide, need_weights=layer is ours)[0].square().sum().backward()
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters()):
        close(a.grad, b.grad, torch.float64, 30.0, name, gradient=True)
    for a, b in zip(mine, peers):
        close(a.grad, b.grad, torch.float64, 30.0, "input", gradient=True)


def test_inside_a_transformer():
    """nn.TransformerEncoderLayer uses the layer that it is given, in inference too."""
    torch.manual_seed(SEED)
    theirs = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).eval()
    ours = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).eval()
    ours.self_attn = attn.torch.MultiheadAttention(16, 4, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    (x,) = draw((2, 5, 16))
    padding = torch.arange(5)[None] >= torch.tensor([[5], [3]])
    calls = []
    ours.self_attn.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        got, want = ours(x, src_key_padding_mask=padding), theirs.double()(x.double(), src_key_padding_mask=padding)
    assert calls
    close(got[~padding], want[~padding], torch.float32, 10.0)


@pytest.mark.parametrize("how, words", [
    (dict(is_causal=True), "is_causal is True without attn_mask"),
    (dict(attn_mask=torch.zeros(5, 7, dtype=torch.int32)), "attn_mask has dtype torch.int32"),
    (dict(key_padding_mask=torch.zeros(3, 7, dtype=torch.uint8)), "key_padding_mask has dtype torch.uint8"),
    (dict(attn_mask=torch.zeros(3, 5, 7)), r"attn_mask has shape \(3, 5, 7\)"),
    (dict(key_padding_mask=torch.zeros(7, 3) > 0), r"key_padding_mask has shape \(7, 3\)"),
], ids=str)
def test_multihead_refusals(how, words):
    _, ours, tensors = layers("batch first")
    with pytest.raises(ValueError, match=words):
        ours(*tensors, **how)
