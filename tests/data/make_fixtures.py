"""make_fixtures.py: writes files with NumPy (and safetensors) for test_fixtures.c, and the seeds of the fuzz targets.
SPDX-License-Identifier: MIT

usage: make_fixtures.py     needs numpy and ml_dtypes; with numpy 2 also safetensors

Run once with NumPy 1 and once with NumPy 2: the files go to tests/data/numpy1 and tests/data/numpy2. The seeds (tests/corpus/) come with
NumPy 2. Every array holds the numbers n = 0 .. 23 in C order as (n - 7) / 4, as n where the type is whole, and as n % 3 == 0 where it is
bool; test_fixtures.c knows that.
"""

import io
import json
import pathlib
import struct
import zipfile

import ml_dtypes
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / f"numpy{np.__version__.split('.')[0]}"
CORPUS = HERE.parent / "corpus"
COUNT = np.arange(24).reshape(2, 3, 4)
DTYPES = ["<f4", "<f8", "<f2", ml_dtypes.bfloat16, "?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", ">f4", ">f8", ">f2", ">i8"]


def numbers(dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return COUNT % 3 == 0
    return COUNT.astype(dtype) if dtype.kind in "iu" else ((COUNT - 7) / 4).astype(dtype)


def name_of(dtype):
    dtype = np.dtype(dtype)
    return {">": "be_"}.get(dtype.byteorder, "") + dtype.name


def npy(array, version=None):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version=version)
    return file.getvalue()


def store(header, data=b"", pad=True):
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def fixtures():
    OUT.mkdir(exist_ok=True)
    for dtype in DTYPES:
        np.save(OUT / f"{name_of(dtype)}.npy", numbers(dtype))
    x = numbers("<f4")
    np.save(OUT / "fortran.npy", np.asfortranarray(x))
    np.save(OUT / "rank0.npy", x[0, 0, 0])
    np.save(OUT / "empty.npy", x[:, :0])
    (OUT / "version2.npy").write_bytes(npy(x, (2, 0)))
    (OUT / "version3.npy").write_bytes(npy(x, (3, 0)))
    np.savez(OUT / "stored.npz", x=x, y=numbers("i1"))
    np.savez_compressed(OUT / "deflated.npz", x)
    np.savetxt(OUT / "blanks.csv", x.reshape(6, 4))
    np.savetxt(OUT / "commas.csv", x.reshape(6, 4), delimiter=",", header="four columns")
    np.save(OUT / "refused_object.npy", np.array([None, {}]), allow_pickle=True)
    np.save(OUT / "refused_fields.npy", np.zeros(2, "f4,i4"))
    np.save(OUT / "refused_complex.npy", np.zeros(2, "c8"))
    np.save(OUT / "refused_text.npy", np.array(["a", "bc"]))
    np.save(OUT / "refused_float8.npy", np.zeros(2, ml_dtypes.float8_e4m3fn))
    if OUT.name == "numpy2":
        from safetensors.numpy import save_file

        save_file({name_of(d): numbers(d) for d in DTYPES if np.dtype(d).byteorder != ">"}, OUT / "all.safetensors", {"format": "np"})


def seed(kind, **files):
    (CORPUS / kind).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (CORPUS / kind / name).write_bytes(content)


def archive(method, **members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as z:
        for name, content in members.items():
            z.writestr(zipfile.ZipInfo(name + ".npy"), content, method)
    return file.getvalue()


def seeds():
    x = numbers("<f4")[0, :2, :2]
    seed("npy", plain=npy(x), fortran=npy(x.T), big=npy(x.astype(">i2")), bfloat16=npy(x.astype(ml_dtypes.bfloat16)), version2=npy(x, (2, 0)))
    seed("npy", version3=npy(x, (3, 0)), rank0=npy(x[0, 0]), empty=npy(x[:0]), flags=npy(x > 0), fields=npy(np.zeros(1, "f4,i4")))
    seed("npz", stored=archive(zipfile.ZIP_STORED, a=npy(x), b=npy(x)), deflated=archive(zipfile.ZIP_DEFLATED, a=npy(x)))
    seed("npz", bzip2=archive(zipfile.ZIP_BZIP2, a=npy(x)), nothing=archive(zipfile.ZIP_STORED))
    f32 = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    u8 = {"dtype": "U8", "shape": [3], "data_offsets": [16, 19]}
    seed("safetensors", one=store({"a": f32}, bytes(16)), two=store({"b": u8, "a": f32}, bytes(19)), nothing=store({}))
    seed("safetensors", metadata=store({"__metadata__": {"format": "pt"}, "a": f32}, bytes(16)), odd=store(b'{"a":%s} ' % json.dumps(f32).encode(), bytes(16), False))
    seed("safetensors", other=store({"a": {"dtype": "F8_E4M3", "shape": [16], "data_offsets": [0, 16]}}, bytes(16)), hole=store({"b": u8}, bytes(19)))
    seed("safetensors", scalar=store({"a": {"dtype": "BF16", "shape": [], "data_offsets": [0, 2]}, "e": {"dtype": "I64", "shape": [0, 4], "data_offsets": [2, 2]}}, bytes(2)))
    seed("csv", commas=b"1,2.5\n-3e2,nan\n", blanks=b" 1\t2 # note\r\n\r\n3 -inf\r\n", semicolons=b"\xef\xbb\xbf1; 2\r3 ;4", ragged=b"1,2\n3\n", hex=b"0x1p-3 1e-320 1e999")


fixtures()
if OUT.name == "numpy2":
    seeds()
