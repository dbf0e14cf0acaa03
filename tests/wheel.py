"""wheel.py KIND TREE: what a user of the installed package sees; KIND is "repaired", a wheel with everything in it, or "core".
SPDX-License-Identifier: MIT
"""
import doctest
import importlib.metadata
import os
import sys

import numpy as np

import attn

kind, tree = sys.argv[1:]
here = os.path.dirname(attn.__file__)
assert here.startswith(sys.prefix), attn.__file__
assert importlib.metadata.version("libattn") == attn.version == attn.__version__
assert os.path.exists(os.path.join(here, "py.typed"))

result = doctest.testmod(attn, optionflags=doctest.ELLIPSIS)
assert result.attempted >= 5 and not result.failed
q = np.ones((2, 3, 4), np.float32)
assert attn.attention(q, q, q, threads=2).tobytes() == q.tobytes()
path = os.path.join(tree, "examples", "minilm-layer.safetensors")
if kind == "core":
    try:
        attn.Layer.from_safetensors(path, 5)
        raise SystemExit("a build without the layer has one")
    except ImportError as fault:
        assert "Layer needs the library libattn_layer, which this build of the package does not have" in str(fault)
else:
    assert len(attn.explain(q[0], q[0], q[0], row=0).to_numpy()) == 3
    assert attn.show(q, q).html.startswith("<!DOCTYPE html>")
    assert attn.Layer.from_safetensors(path, 5)(np.ones((3, 384), np.float32)).shape == (3, 384)
assert not {"ml_dtypes", "torch", "jax"} & set(sys.modules)

# The libraries in use are the wheel's own, but for those of the C library.
with open("/proc/self/maps") as file:
    loaded = {line.split(None, 5)[5].strip() for line in file if ".so" in line}
ours = {os.path.basename(path) for path in loaded if path.startswith(os.path.dirname(here))}
assert "libattn.so" in ours and ({"libattn_layer.so", "libattn_view.so"} <= ours) == (kind != "core"), loaded
assert not [path for path in loaded if not path.startswith(os.path.dirname(here)) and any(
    name in path for name in ("libattn", "jansson", "libzip", "libpng"))], loaded
print(kind, "works:", attn.version, here)
