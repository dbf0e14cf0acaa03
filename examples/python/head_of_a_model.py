"""The weights of one head of a real model: where "missing" looks in head 7 of the last layer of all-MiniLM-L6-v2.
SPDX-License-Identifier: MIT

prints
    My new laptop arrived today but the charger is missing from the box.
    missing -> charge   0.609
    missing -> [CLS]    0.292
    missing -> missing  0.027
"""
import json
import os

import numpy as np

import attn

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "minilm-layer.safetensors")
with open(path, "rb") as file:  # the file is a small one of the safetensors form: a header in JSON, then the numbers
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size))
    begin, end = header["hidden_states"]["data_offsets"]
    file.seek(8 + size + begin)
    x = np.frombuffer(file.read(end - begin), np.float32).reshape(1, *header["hidden_states"]["shape"])
tokens = json.loads(header["__metadata__"]["tokens"])

layer = attn.Layer.from_safetensors(path, layer=5, heads=12)
out, weights = layer(x, return_weights="weight")
row = weights[0, 7, tokens.index("missing")]
print(header["__metadata__"]["sentence"])
for key in np.argsort(-row)[:3]:
    print("missing -> %-8s %.3f" % (tokens[key], row[key]))
