"""transformers' models on libattn: the same numbers as eager, from the options that the masks mean.
SPDX-License-Identifier: MIT
"""
import doctest
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from transformers import masking_utils

import models
import tolerance

import attn.hf

attn.hf.register()
EVERY = [*models.DECODERS, *models.ENCODERS]


def close(name, got, want, size=10.0):
    """Both are float32 results of two layers whose scores are below `size`; eager in float64 is no better: its softmax is float32 in most
    models, and gives NaN where a query sees nothing."""
    tolerance.check(name, got.numpy(), want.numpy(), np.float32, size)


@pytest.fixture
def no_dense(monkeypatch):
    """Fails when a mask's elements are made."""
    def made(self, *rows):
        raise AssertionError("a mask of queries times keys was made: %r" % self)
    monkeypatch.setattr(attn.hf.Mask, "dense", made)
    monkeypatch.setattr(attn.hf.Mask, "blocks", made)


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("name", EVERY)
def test_logits_and_weights(name, padding, no_dense):
    inputs = models.batch(padding)
    real = inputs["attention_mask"].bool()
    eager, ours = models.twins(name)
    with torch.no_grad():
        want, got = (model(**inputs, output_attentions=True) for model in (eager, ours))
        plain = ours(**inputs)
    close("logits", got.logits[real], want.logits[real])
    assert plain.attentions is None and torch.equal(plain.logits, got.logits)
    assert len(got.attentions) == len(want.attentions) == 2
    for layer, wanted in zip(got.attentions, want.attentions):
        assert layer.shape == wanted.shape
        rows = real[:, None, :].expand(layer.shape[:3])
        close("weights", layer[rows], wanted[rows])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", models.DECODERS)
def test_greedy_generation(name, padding, cache, no_dense):
    inputs = models.batch(padding)
    how = dict(max_new_tokens=9, do_sample=False, eos_token_id=None, cache_implementation=cache)
    want, got = (model.generate(**inputs, **how) for model in models.twins(name))
    assert got.shape == (3, models.TOKENS + 9) and torch.equal(got, want)


@pytest.mark.parametrize("name", models.BOTH)
def test_encoder_and_decoder(name):
    inputs = models.batch("right")
    eager, ours = models.twins(name)
    want, got = (model.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False) for model in (eager, ours))
    assert torch.equal(got, want)
    with torch.no_grad():
        want, got = (model(**inputs, decoder_input_ids=inputs["input_ids"], output_attentions=True) for model in (eager, ours))
    close("logits", got.logits, want.logits, models.size(name))
    for kind in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        assert [w.shape for w in getattr(got, kind)] == [w.shape for w in getattr(want, kind)] and getattr(got, kind)


@pytest.mark.parametrize("name", models.DECODERS)
def test_chunks_and_steps_give_what_one_call_gives(name):
    """A prefill in two chunks and then single tokens: the queries stand at the end of what the cache holds."""
    ours, ids = models.build(name, "libattn"), models.batch("none")["input_ids"]
    with torch.no_grad():
        whole, cache, parts = ours(ids).logits, transformers.DynamicCache(config=ours.config), []
        for first, last in ((0, 5), (5, 9), (9, 10), (10, 11)):
            parts.append(ours(ids[:, first:last], cache=cache).logits)
    close("logits", torch.cat(parts, 1), whole)


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_compiled_model():
    """The graph breaks at the attention and nowhere in it."""
    model, inputs = models.build("llama", "libattn"), models.batch("left")
    with torch.no_grad():
        want = model(**inputs, use_cache=False).logits
        got = torch.compile(model, backend="eager")(**inputs, use_cache=False).logits
    assert torch.equal(got, want)


def test_half_precision():
    inputs = models.batch("right")
    real = inputs["attention_mask"].bool()
    exact = models.build("llama", "eager", torch.float64)(**inputs).logits[real].detach()
    for dtype in (torch.bfloat16, torch.float16):
        eager, ours = models.twins("llama", dtype)
        with torch.no_grad():
            errors = [(model(**inputs).logits[real].double() - exact).abs().max() for model in (eager, ours)]
        assert errors[1] <= 2 * errors[0]


# ---- masks --------------------------------------------------------------------------------------------------------------------------

M = masking_utils
PADDINGS = {
    "none": None,
    "right": [[1] * 12, [1] * 7 + [0] * 5],
    "left": [[0] * 4 + [1] * 8, [1] * 12],
    "empty": [[0] * 12, [1] * 12],
    "holes": [[1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 12],
    "short": [[1] * 9, [0] + [1] * 8],  # as a static cache has it: later keys are not there yet
}
FUNCTIONS = {
    "causal": (M.causal_mask_function, True),
    "both": (M.bidirectional_mask_function, True),
    "window": (M.sliding_window_causal_mask_function(3), True),
    "windows": (M.sliding_window_bidirectional_mask_function(2), True),
    "narrower": (M.and_masks(M.sliding_window_overlay(5), M.sliding_window_causal_mask_function(2)), True),
    "chunks": (M.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long)), False),
    "packed": (M.and_masks(M.causal_mask_function, M.packed_sequence_mask_function(torch.arange(24).view(2, 12) // 5)), False),
    "either": (M.or_masks(M.causal_mask_function, lambda b, h, q, k: k < 3), False),
}
PLACES = [(12, 12, 0, 0), (5, 12, 7, 0), (1, 12, 11, 0), (3, 8, 9, 4), (12, 8, 0, 0)]  # queries, keys, their offsets


class Layer:
    is_causal = True


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_mask_means_its_elements(name, padding, monkeypatch):
    function, known = FUNCTIONS[name]
    padding = None if PADDINGS[padding] is None else torch.tensor(PADDINGS[padding], dtype=torch.bool)
    generator = torch.Generator().manual_seed(3)
    for queries, keys, q_offset, kv_offset in PLACES:
        how = dict(batch_size=2, q_length=queries, kv_length=keys, q_offset=q_offset, kv_offset=kv_offset, mask_function=function,
                   attention_mask=padding)
        mask = attn.hf.mask(**how)
        elements = M.sdpa_mask(**how, allow_is_causal_skip=False).expand(2, 1, queries, keys)
        assert mask.shape == elements.shape and mask.dtype == torch.bool and (mask.options is not None) == known
        assert torch.equal(mask.dense(), elements)
        q, k, v = (torch.randn(2, heads, length, 8, generator=generator, dtype=torch.float64) for heads, length in
                   ((4, queries), (2, keys), (2, keys)))
        got, weights = attn.hf.attention_forward(Layer, q, k, v, mask, scaling=0.5, output_attentions=True)
        want, _ = attn.hf.attention_forward(Layer, q, k, v, elements, scaling=0.5)
        tolerance.check("out", got.numpy(), want.numpy(), np.float64, 8.0)
        assert ((weights != 0) == elements).all()
        monkeypatch.setattr(attn._hf_mask, "MASK_BYTES", 3 * 2 * keys)  # three queries at a time
        again, _ = attn.hf.attention_forward(Layer, q, k, v, attn.hf.mask(**how), scaling=0.5)
        assert torch.equal(got, again)
        monkeypatch.undo()


def test_a_model_may_compute_with_its_mask():
    mask = attn.hf.mask(1, 3, 3)
    with pytest.warns(UserWarning, match="computes with its attention mask"):
        turned = ~mask
    assert type(turned) is torch.Tensor and turned.tolist() == [[[[False, True, True], [False, False, True], [False, False, False]]]]


    with pytest.warns(UserWarning):
        assert torch.where(mask, 1.0, 0.0).tolist() == [[[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]]


@pytest.mark.parametrize("config", [
    transformers.BloomConfig(vocab_size=models.VOCABULARY, hidden_size=64, n_layer=2, n_head=4),
    transformers.MPNetConfig(**models.SMALL),
], ids=lambda config: config.model_type)
def test_models_with_an_attention_of_their_own_are_refused(config):
    """They take any name, and would add a boolean mask to their scores."""
    model = transformers.AutoModel.from_config(config, attn_implementation="libattn").eval()
    with torch.no_grad(), pytest.raises(NotImplementedError, match="computes its attention itself"):
        model(**models.batch("right"))


def test_masks_of_the_callers_own():
    inputs = models.batch("none")
    allow = torch.rand(3, 1, models.TOKENS, models.TOKENS, generator=torch.Generator().manual_seed(4)) < 0.5
    allow |= torch.eye(models.TOKENS, dtype=torch.bool)
    eager, ours = models.twins("llama")
    bias = torch.where(allow, 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        want = eager(inputs["input_ids"], attention_mask=bias).logits
        for mask in (allow, bias):
            got = ours(inputs["input_ids"], attention_mask=mask).logits
            close("logits", got, want)


def test_packed_sequences():
    """Positions that start anew part the sequences, and each gives what it gives alone."""
    ours, ids = models.build("llama", "libattn", torch.float64), models.batch("none")["input_ids"][:1]
    with torch.no_grad():
        together = ours(ids, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]]), use_cache=False).logits
        alone = torch.cat([ours(ids[:, :4]).logits, ours(ids[:, 4:]).logits], 1)
    tolerance.check("logits", together.numpy(), alone.numpy(), np.float64, 8.0)


LONG = """
import resource, sys
import torch, transformers
import models, attn.hf
attn.hf.register()
model = models.build("mistral", "libattn")
ids = torch.randint(3, models.VOCABULARY, (1, 8192))
with torch.no_grad():
    model.model(ids[:, :64])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model.model(ids)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_grows_with_the_length_only():
    """A mask of 8192 by 8192 bytes would be 65536 KiB, the scores of one head 262144; what the other layers hold is below."""
    done = subprocess.run([sys.executable, "-c", LONG], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 50000, done.stdout


# ---- gradients ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "gpt_oss", "t5"])
def test_gradients(name):
    """Of every parameter, sinks and the bias of positions included."""
    inputs = models.batch("right")
    if name == "t5":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    wanted, got = models.twins(name)
    for model in (wanted, got):
        model(**inputs).logits[inputs["attention_mask"].bool()].square().mean().backward()
    found = dict(got.named_parameters())
    largest = max(float(x.grad.abs().max()) for x in wanted.parameters() if x.grad is not None)
    for key, parameter in wanted.named_parameters():
        if parameter.grad is None:
            assert found[key].grad is None
        else:
            tolerance.check(key, found[key].grad.numpy(), parameter.grad.numpy(), np.float32, models.size(name), gradient=True,
                            least=largest)


def test_a_gradient_in_blocks(monkeypatch):
    """Packed sequences, three queries at a time."""
    ids, where = models.batch("none")["input_ids"][:1], torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]])
    gradients = []
    for size in (1 << 20, 3 * models.TOKENS):
        monkeypatch.setattr(attn._hf_mask, "MASK_BYTES", size)
        model = models.build("llama", "libattn")
        model(ids, position_ids=where, use_cache=False).logits.square().mean().backward()
        gradients.append(model.model.layers[0].self_attn.k_proj.weight.grad)
    tolerance.check("gradient", gradients[1].numpy(), gradients[0].numpy(), np.float32, 8.0, gradient=True)


@pytest.mark.parametrize("options", [{}, {"mask_function": lambda batch, head, query, key: key <= query}])
def test_dropout(options, monkeypatch):
    """Values of the identity show the weights, each dropped or raised; the second mask has no options and comes in blocks of 8 queries."""
    monkeypatch.setattr(attn._hf_mask, "MASK_BYTES", 8 * 40)
    q, k = torch.randn(2, 1, 2, 40, 16, generator=torch.Generator().manual_seed(7))
    v = torch.eye(40).expand(1, 2, 40, 40).clone().requires_grad_()
    mask = attn.hf.mask(1, 40, 40, **options)

    def layer(seed, dropout=0.25):
        torch.manual_seed(seed)
        out, weights = attn.hf.attention_forward(Layer, q, k, v, mask, dropout=dropout, output_attentions=True)
        return out.transpose(1, 2), weights

    out, weights = layer(1)
    kept, seen = out.detach() != 0, weights > 0
    close("raised", out.detach(), torch.where(kept, weights / 0.75, 0.0))
    assert torch.equal(seen, torch.ones(40, 40).tril().bool().expand_as(seen)) and torch.equal(weights, layer(2, 0.0)[1])
    assert 0.7 < kept[seen].float().mean() < 0.8  # of 1640: 0.75 and nearly five deviations
    assert not torch.equal(kept[..., 24:32, :25], kept[..., 32:40, :25])
    assert torch.equal(layer(1)[0], out) and not torch.equal(layer(2)[0], out)
    out[..., 0].sum().backward()
    close("gradient", v.grad[..., 0], out.detach().sum(2))
    with torch.no_grad():
        assert torch.equal(layer(1)[0], out)


# ---- what is refused ----------------------------------------------------------------------------------------------------------------


def call(**given):
    q = torch.zeros(1, 2, 3, 4)
    return attn.hf.attention_forward(Layer, q, q, q, **{"attention_mask": attn.hf.mask(1, 3, 3), **given})


@pytest.mark.parametrize("given, sentence", [
    (dict(indices=torch.zeros(1)), "indices"),
    (dict(sinks=torch.zeros(1)), "sinks"),
    (dict(attention_mask=None, cu_seq_lens_q=torch.zeros(1)), "cu_seq_lens_q"),
    (dict(attention_mask=torch.zeros(1, 1, 3, 3, dtype=torch.int64)), "attention_mask has dtype"),
])
def test_refused(given, sentence):
    with pytest.raises((NotImplementedError, ValueError), match=sentence):
        call(**given)


def test_nobody_said_where_the_queries_stand():
    q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)
    with pytest.raises(ValueError, match="align"):
        attn.hf.attention_forward(Layer, q, k, k, None)


# ---- trained weights ----------------------------------------------------------------------------------------------------------------


def test_minilm():
    """Sentences of unlike lengths: the embeddings of eager to 1e-5 (they have length 1), and its weights."""
    inputs = models.sentences()
    eager, ours = models.minilm("eager"), models.minilm("libattn")
    want, got = models.embed(eager, inputs), models.embed(ours, inputs)
    assert got.shape == (8, 384) and (got - want).abs().max() < 1e-5
    with torch.no_grad():
        weights = ours(**inputs, output_attentions=True).attentions
    real = inputs["attention_mask"].bool()
    assert len(weights) == 6 and (weights[0].sum(-1) - 1).abs().max() < 1e-5
    assert (weights[5].masked_select(~real[:, None, None, :]) == 0).all()


# ---- looking ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss", "bert"])
def test_capture(name, no_dense):
    """What is recorded is a part of what output_attentions gives, while the model's result stays the same."""
    model, inputs = models.build(name, "libattn"), models.batch("right")
    with torch.no_grad():
        whole = model(**inputs, output_attentions=True)
        with attn.hf.capture(model, layers=[1], heads=[3, 0], rows=[5, -1], values="weight", entropy=True, top=2, received=True) as seen:
            again = model(**inputs)
    look, = seen
    want = whole.attentions[1][:, [3, 0]][:, :, [5, 10]]
    assert torch.equal(again.logits, whole.logits) and (look.layer, look.heads, look.rows) == (1, [3, 0], [5, 10])
    assert torch.equal(look["values"], want)
    close("entropy", look["entropy"], torch.special.entr(want).sum(-1))
    close("received", look["received"], want.sum(2))
    close("top", look["top_weight"], want.topk(2).values)


def test_capture_while_generating():
    """One look per step at the last row, whose keys grow; a row that only the prefill has is seen once."""
    model = models.build("llama", "libattn")
    with attn.hf.capture(model, layers=[0], rows=[-1]) as last, attn.hf.capture(model, layers=[0], rows=[4]) as fifth:
        model.generate(**models.batch("left"), max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert [tuple(look["values"].shape) for look in last] == [(3, 4, 1, n) for n in (11, 12, 13, 14)]
    assert [look.rows for look in fifth] == [[4]]
    assert all((look["values"].sum(-1) - 1).abs().max() < 1e-5 and (look["values"][2, :, :, :6] == 0).all() for look in last)


def test_capture_switches_and_switches_back():
    model = models.build("bert", "eager")
    inputs = models.batch("none")
    with torch.no_grad():
        want = model(**inputs, output_attentions=True).attentions
        with attn.hf.capture(model) as seen:
            model(**inputs)
    assert "heads [0, 1, 2, 3], rows [0, 1, 2, 3, 4, 5, ...]: values (3, 4, 11, 11)" in repr(seen[0])
    assert model.config._attn_implementation == "eager" and [look.layer for look in seen] == [0, 1]
    for look, weights in zip(seen, want):
        close("values", look["values"], weights)
    with torch.no_grad(), attn.hf.capture(model, layers=["layer.1.attention"]) as seen:
        model(**inputs)
    assert [look.name for look in seen] == ["bert.encoder.layer.1.attention.self"]


def test_capture_of_a_mask_without_options(monkeypatch):
    model, ids = models.build("llama", "libattn"), models.batch("none")["input_ids"][:1]
    how = dict(position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]]), use_cache=False)
    with torch.no_grad():
        want = model(ids, output_attentions=True, **how).attentions[1][:, :, [9, 4]]
        monkeypatch.setattr(attn._hf_mask.Mask, "dense", None)
        monkeypatch.setattr(attn._hf_mask, "MASK_BYTES", 3 * models.TOKENS)
        with attn.hf.capture(model, layers=[1], rows=[9, 4]) as seen:
            model(ids, **how)
        assert torch.equal(seen[0]["values"], want)
        with pytest.raises(ValueError, match="choose fewer rows"), attn.hf.capture(model):
            model(ids, **how)
        with pytest.raises(ValueError, match="window_mass"), attn.hf.capture(model, rows=[1], window_mass=(1, 0)):
            model(ids, **how)


def test_nothing_was_captured():
    model = models.build("bert", "libattn")
    with pytest.raises(ValueError, match="no attention was seen"), torch.no_grad(), attn.hf.capture(model, layers=[7]):
        model(**models.batch("none"))


@pytest.mark.parametrize("module", [attn.hf, attn._hf_capture], ids=lambda module: module.__name__)
def test_examples(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
