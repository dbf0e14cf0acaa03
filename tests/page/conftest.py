"""conftest.py: the browser, the command, and layers for the tests of the page.
SPDX-License-Identifier: MIT
"""
import base64
import json
import os
import pathlib
import resource
import struct
import subprocess

import numpy as np
import pytest

from browser import Browser, program

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = pathlib.Path(os.environ.get("ATTN_BUILD_DIR", ROOT / "build")).resolve() / "attn"
MINILM = ROOT / "examples" / "minilm-layer.safetensors"
REAL = pathlib.Path(os.environ.get("ATTN_TEST_DATA", ROOT.parent / "shared")) / "real" / "nano-gpt-sort"


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if not program():
        pytest.fail("no Chromium is here; scripts/setup.sh test installs one")
    b = Browser(tmp_path_factory.mktemp("profile"))
    yield b
    b.close()


def attn(*arguments, memory=None):
    """memory: the bytes of addresses that the command may have."""
    limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory))) if memory else None
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    return done.stdout


def data_of(page):
    """What the page holds, its arrays decoded."""
    text = page.read_text(encoding="utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    for layer in data["layers"]:
        heads = len(data["heads"])
        for part, names in (("region", ("weight", "dot", "score", "capped", "bias", "alibi", "share")), ("map", ("mean", "max"))):
            for name in names:
                if part in layer and name in layer[part]:
                    p = layer[part]
                    p[name] = np.frombuffer(base64.b64decode(p[name]), "<f4").reshape(heads, p["rows"], p["columns"])
        if "hidden" in layer["region"]:
            r = layer["region"]
            r["hidden"] = np.frombuffer(base64.b64decode(r["hidden"]), "<u2").reshape(heads, r["rows"], r["columns"])
    return data


def write_safetensors(path, arrays, **metadata):
    header, at = {"__metadata__": metadata}, 0
    for name, a in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(a.astype("<f4").tobytes() for a in arrays.values()))


@pytest.fixture(scope="session")
def nano(tmp_path_factory):
    """The three layers of the sorting GPT as a checkpoint; the input of the first; what its first layer computed."""
    if not REAL.is_dir():
        pytest.skip("no ATTN_TEST_DATA here")

    def arrays(name):
        parts = json.loads((REAL / name).read_text())
        return {k: np.frombuffer(base64.b64decode(v["data"]), "<f4").reshape(v["shape"]) for k, v in parts.items() if k != "config"}

    model, partials = arrays("gpt-nano-sort-model.json"), arrays("gpt-nano-sort-t0-partials.json")
    folder = tmp_path_factory.mktemp("nano")
    kept = {k: v for k, v in model.items() if ".attn.c_" in k}
    write_safetensors(folder / "nano.safetensors", kept, num_attention_heads="3")
    for n in range(3):  # what enters each layer's attention
        block = partials[f"block{n - 1}"] if n else None
        if n:
            centred = block - block.mean(-1, keepdims=True)
            w, b = (model[f"transformer.h.{n}.ln_1.{part}"] for part in ("weight", "bias"))
            x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + b
        else:
            x = partials["ln1"]
        np.save(folder / f"x{n}.npy", np.ascontiguousarray(x, dtype=np.float32))
    return folder, partials["attSm"]
