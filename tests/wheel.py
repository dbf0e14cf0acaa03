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
assert importlib.metadata.version("libattn") == attn.version
assert os.path.exists(os.path.join(here, "py.typed"))

# The libraries in use are the wheel's own.
with open("/proc/self/maps") as file:
    loaded = {line.split(None, 5)[5].strip() for line in file if line.count(" ") > 4 and "/" in line}
assert any(path.startswith(here) and "libattn" in path for path in loaded), loaded

result = doctest.testmod(attn, optionflags=doctest.ELLIPSIS)
assert result.attempted >= 5 and not result.failed
q = np.ones((2, 3, 4), np.float32)
assert attn.attention(q, q, q, threads=2).tobytes() == q.tobytes()
assert not {"ml_dtypes", "torch", "jax"} & set(sys.modules)
print(kind, "works:", attn.version, here)
