"""Arrays of other libraries go in without a copy, and results come back in the caller's type.
SPDX-License-Identifier: MIT
"""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tolerance
from testdata import DTYPES, SEED, attn

TORCH = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
jax.config.update("jax_enable_x64", True)


def numbers(name):
    """q, k, v as NumPy arrays of the type, with grouped heads."""
    rng = np.random.default_rng(SEED)
    return [rng.standard_normal(shape).astype(DTYPES[name]) for shape in ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))]


def as_torch(array, name):
    return torch.from_numpy(array.astype(np.float64)).to(TORCH[name])


def as_numpy(tensor, name):
    return tensor.double().numpy().astype(DTYPES[name])


@pytest.mark.parametrize("name", TORCH)
def test_torch(name):
    arrays = numbers(name)
    allow = np.random.default_rng(SEED).random((5, 7)) < 0.7
    want, lse, weights = attn.attention(*arrays, allow=allow, return_lse=True, return_weights="weight")
    got = attn.attention(*(as_torch(a, name) for a in arrays), allow=torch.from_numpy(allow), return_lse=True, return_weights="weight")
    assert all(type(t) is torch.Tensor for t in got) and got[0].dtype == TORCH[name]
    assert as_numpy(got[0], name).tobytes() == want.tobytes()
    assert got[1].numpy().tobytes() == lse.tobytes() and got[2].numpy().tobytes() == weights.tobytes()


@pytest.mark.parametrize("name", TORCH)
def test_jax(name):
    arrays = numbers(name)
    got, lse = attn.attention(*map(jnp.asarray, arrays), bias=jnp.ones((5, 7), jnp.float32), return_lse=True)
    want = attn.attention(*arrays, bias=np.ones((5, 7), np.float32))
    assert isinstance(got, jax.Array) and isinstance(lse, jax.Array) and got.dtype == DTYPES[name]
    assert np.asarray(got).tobytes() == want.tobytes()


def test_strides_and_no_copy():
    """Permuted, sliced and expanded tensors; the memory that torch hands out is what the library reads and writes."""
    q, k, v = (as_torch(a, "f32") for a in numbers("f32"))
    want = attn.attention(q, k, v)
    wide = torch.full((2, 5, 4, 16), float("nan"))
    wide[..., ::2] = q.transpose(1, 2)
    out = torch.zeros(2, 5, 4, 6).transpose(1, 2)
    assert attn.attention(wide.transpose(1, 2)[..., ::2], k.mT.contiguous().mT, v, out=out) is out
    assert torch.equal(out, want)
    one = k[:, :1].expand(2, 4, 7, 8)
    assert torch.equal(attn.attention(q, one, one), attn.attention(q, k[:, :1], k[:, :1]))
    assert attn._arrays.operand("q", q).data == q.data_ptr()
    x = jnp.ones((3, 4))
    assert attn._arrays.operand("x", x).data == x.unsafe_buffer_pointer()


def test_dlpack_of_anything():
    """A library nobody has heard of, that hands out rows in memory by DLPack only."""
    class Strange:
        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

    arrays = numbers("f32")
    got = attn.attention(*map(Strange, arrays))
    assert type(got) is np.ndarray and got.tobytes() == attn.attention(*arrays).tobytes()
    half = [as_torch(a, "bf16") for a in arrays]  # NumPy itself reads no bfloat16 by DLPack
    got = attn.attention(*map(Strange, half), out=torch.empty(2, 4, 5, 6))
    assert torch.equal(got, attn.attention(*half, out=torch.empty(2, 4, 5, 6)))
    flipped = attn.attention(*(Strange(a[:, :, ::-1]) for a in arrays))
    tolerance.check("out", flipped[:, :, ::-1], attn.attention(*arrays), np.float32, 1.0)


def test_mixed_libraries_follow_q():
    q, k, v = numbers("f32")
    assert type(attn.attention(torch.from_numpy(q), k, v)) is torch.Tensor
    assert type(attn.attention(q, torch.from_numpy(k), jnp.asarray(v))) is np.ndarray


def test_merge_in_torch():
    q, k, v = (as_torch(a, "f32") for a in numbers("f32"))
    parts = [attn.attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 4), slice(4, 7))]
    out, lse = attn.merge(*zip(*parts))
    assert type(out) is type(lse) is torch.Tensor
    want = attn.attention(q, k, v, return_lse=True)
    tolerance.check("out", out.numpy(), want[0].numpy(), np.float32, 1.0)
    tolerance.check("lse", lse.numpy(), want[1].numpy(), np.float32, 1.0)


def test_refusals():
    q, k, v = (as_torch(a, "f32") for a in numbers("f32"))
    for bad, words in ((q.requires_grad_(), "q requires a gradient, which only attn.torch"), (q.detach().to("meta"), "q is a .* on meta"),
                       (q.detach().to_sparse(), "q is a torch.sparse_coo"), (q.detach().int(), "q has dtype int32"),
                       (q.detach().to(torch.complex64), "q has dtype complex64")):
        with pytest.raises(ValueError, match=words):
            attn.attention(bad, k, v)
    with pytest.raises(ValueError, match="bias has dtype bool"):
        attn.attention(q.detach(), k, v, bias=torch.ones(5, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match="out must be a writeable"):
        attn.attention(np.asarray(q.detach()), k, v, out=jnp.zeros((2, 4, 5, 6)))
