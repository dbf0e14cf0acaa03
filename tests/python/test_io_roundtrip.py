"""Files that NumPy writes here go through the command and come back the same.
SPDX-License-Identifier: MIT

With a single key every output row is that key's value row, bit for bit: what the command writes is what it read. So each type, order,
byte order and container is compared with NumPy's own idea of it, random shapes and values included.
"""
import json
import os
import struct
import subprocess
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import testdata

COMMAND = os.environ.get("ATTN_COMMAND") or os.path.join(testdata.ROOT, "build", "attn")
pytestmark = pytest.mark.skipif(not os.path.exists(COMMAND), reason="the command is not built: run make, or set ATTN_COMMAND")
SAFE = {"f32": "F32", "f64": "F64", "f16": "F16", "bf16": "BF16"}


def save_npy(path, array, version=None):
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=version)
    return path


def save_npz(path, array, method):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in (("other", np.arange(5)), ("v", array)):
            with archive.open(name + ".npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, content)
    return path + ":v"


def save_safetensors(path, array, dtype, blanks):
    data = np.ascontiguousarray(array).tobytes()
    arrays = {"other": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
              "v": {"dtype": SAFE[dtype], "shape": list(array.shape), "data_offsets": [3, 3 + len(data)]}}
    header = json.dumps(arrays).encode() + b" " * blanks
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + b"abc" + data)
    return path + ":v"


def save(folder, kind, array, dtype):
    path = os.path.join(folder, "v." + kind.split("-")[0])
    if kind.startswith("npy"):
        return save_npy(path, array, (int(kind[4:]), 0))
    if kind.startswith("npz"):
        return save_npz(path, array, zipfile.ZIP_DEFLATED if kind == "npz-deflated" else zipfile.ZIP_STORED)
    if kind.startswith("safetensors"):
        return save_safetensors(path, array, dtype, int(kind[12:]))
    np.savetxt(path, array, delimiter=", " if kind == "csv-comma" else " ", fmt="%.17g", header="value rows")
    return path


@st.composite
def files(draw):
    kind = draw(st.sampled_from(["npy-1", "npy-2", "npy-3", "npz-stored", "npz-deflated", "safetensors-0", "safetensors-1", "safetensors-5", "csv-comma",
                                 "csv-blank"]))
    text = kind.startswith("csv")
    dtype = "f64" if text else draw(st.sampled_from(sorted(testdata.DTYPES)))
    rank = 2 if text else draw(st.integers(2, 4))
    shape = [draw(st.integers(1, 3)) for _ in range(rank - 2)] + [1, draw(st.integers(1, 40))]
    return kind, dtype, shape, draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2**32 - 1))


@settings(max_examples=max(1, int(60 * testdata.EXAMPLES)), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files())
def test_files_come_back(tmp_path, file):
    kind, dtype, shape, fortran, big, seed = file
    values = testdata.random(testdata.DTYPES[dtype], np.random.default_rng(seed), *shape)
    stored = values
    if big and dtype != "bf16" and kind.startswith("np"):
        stored = stored.astype(stored.dtype.newbyteorder(">"))
    if fortran:
        stored = np.asfortranarray(stored)
    keys = np.zeros(shape[:-1] + [2], values.dtype)
    queries = np.zeros(shape[:-2] + [3, 2], values.dtype)
    arguments = [save_npy(os.path.join(tmp_path, name), array) for name, array in (("q.npy", queries), ("k.npy", keys))]
    arguments.append(save(tmp_path, kind, stored, dtype))
    out, lse = os.path.join(tmp_path, "out.npy"), os.path.join(tmp_path, "lse.npy")
    done = subprocess.run([COMMAND, "run", *arguments, "-o", out, "--lse", lse], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    got = np.load(out)
    if dtype == "bf16":
        assert got.dtype == np.dtype("V2")
        got = got.view(testdata.BF16)
    assert got.dtype == values.dtype and got.flags.c_contiguous
    np.testing.assert_array_equal(got, np.broadcast_to(values, shape[:-2] + [3, shape[-1]]))
    np.testing.assert_array_equal(np.load(lse), np.zeros(shape[:-2] + [3], np.float64 if dtype == "f64" else np.float32))
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


@pytest.mark.parametrize("array, code, sentence", [
    (np.array([[None, 1]], dtype=object), 5, "an array of Python objects (pickled) is not handled"),
    (np.zeros((1, 2), "f4,i4"), 5, "a structured dtype (named fields) is not handled"),
    (np.zeros((1, 2), "c8"), 5, "dtype '<c8' is not handled"),
    (np.array([["a", "b"]]), 5, "dtype '<U1' is not handled"),
])
def test_other_types_are_refused(tmp_path, array, code, sentence):
    path = os.path.join(tmp_path, "v.npy")
    np.save(path, array, allow_pickle=True)
    done = subprocess.run([COMMAND, "run", path, path, path, "-o", os.path.join(tmp_path, "out.npy")], capture_output=True, text=True)
    assert done.returncode == code and sentence in done.stderr and not os.path.exists(os.path.join(tmp_path, "out.npy"))


@pytest.mark.parametrize("end", [0, 5, 9, 64, 127, 128, 130, -1])
def test_short_files_are_refused(tmp_path, end):
    path = save_npy(os.path.join(tmp_path, "v.npy"), np.zeros((1, 2), np.float32))
    with open(path, "rb+") as file:
        file.truncate(end if end >= 0 else os.path.getsize(path) - 1)
    done = subprocess.run([COMMAND, "run", path, path, path, "-o", os.path.join(tmp_path, "out.npy")], capture_output=True, text=True)
    assert done.returncode == 3 and "v.npy: " in done.stderr and not os.path.exists(os.path.join(tmp_path, "out.npy"))
