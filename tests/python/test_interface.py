"""The Python module itself: how arguments are read, what is refused and with which words, that nothing is copied, threads and fork.
SPDX-License-Identifier: MIT
"""
import concurrent.futures
import ctypes
import doctest
import inspect
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest

import tolerance
from testdata import BF16, DTYPES, ISAS, ROOT, SEED, attn, random

F32, F64 = np.float32, np.float64
Q, K, V = (random(np.dtype(F32), np.random.default_rng(SEED), *shape) for shape in ((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)))


def test_the_documentation_runs():
    """The examples of the package's own text and of every public function and class."""
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    tests = finder.find(attn, "attn") + [test for name in attn.__all__ if callable(getattr(attn, name))
                                         for test in finder.find(getattr(attn, name), "attn." + name)]
    for test in tests:
        runner.run(test)
    assert runner.summarize().attempted >= 20 and runner.summarize().failed == 0


def test_the_signature():
    plain = inspect.signature(attn.attention)
    plain = plain.replace(parameters=[p.replace(annotation=p.empty) for p in plain.parameters.values()], return_annotation=plain.empty)
    assert str(plain) == (
        "(q, k, v, *, bias=None, allow=None, causal=False, align=None, window=None, query_offset=None, query_count=None, key_count=None, "
        "key_start=None, scale=None, softcap=0.0, alibi=None, sink=None, dropout=0.0, dropout_seed=0, dropout_offset=0, out=None, return_lse=False, "
        "return_weights=None, isa=None, threads=None)")


def test_worked_numbers():
    """The three decimals that lessons print."""
    def shown(array):
        return np.round(array.astype(F64), 3).tolist()

    k, v = np.eye(2, dtype=F32), 10 * np.eye(2, dtype=F32)
    for q, want in (([[1, 0]], [[6.698, 3.302]]), ([[0, 1]], [[3.302, 6.698]])):
        assert shown(attn.attention(np.array(q, F32), k, v)) == want
    out, weights = attn.attention(np.array([[1, 0]], F32), k, v, allow=np.array([True, False]), return_weights="weight")
    assert (out.tolist(), weights.tolist()) == ([[10, 0]], [[1, 0]])
    out, weights = attn.attention(np.ones((1, 1), F32), np.array([[2], [1], [0]], F32), np.array([[1, 0], [0, 2], [3, 1]], F32), scale=1.0,
                                  return_weights="weight")
    assert (shown(out), shown(weights)) == ([[0.935, 0.579]], [[0.665, 0.245, 0.09]])


def test_the_descriptors_are_the_headers(tmp_path):
    """Offsets and sizes that a C compiler sees, field by field."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "no C compiler"
    library = attn._library
    structs = {"attn_in": library.View, "attn_out": library.View, "attn_error": library.Error, "attn_desc": library.Desc,
               "attn_merge_desc": library.MergeDesc, "attn_backward_desc": library.BackwardDesc,
               "attn_dropout_block": library.DropoutBlock, "attn_layer_desc": library.LayerDesc,
               "attn_layer_load_options": library.LayerLoadOptions, "attn_layer_checkpoint": library.LayerCheckpoint}
    lines = ['printf("%s.%s %%zu\\n", offsetof(%s, %s));' % (s, f, s, f) for s, c in structs.items() for f, _ in c._fields_]
    lines += ['printf("%s %%zu\\n", sizeof(%s));' % (s, s) for s in structs]
    source = tmp_path / "offsets.c"
    source.write_text("#include <attn/attn_layer.h>\n#include <stdio.h>\nint main(void)\n{\n%s\n}\n" % "\n".join(lines))
    subprocess.run([compiler, "-I", os.path.join(ROOT, "include"), source, "-o", tmp_path / "offsets"], check=True)
    text = subprocess.run([tmp_path / "offsets"], check=True, capture_output=True, text=True).stdout
    seen = dict(line.split() for line in text.splitlines())
    want = {"%s.%s" % (s, f): str(getattr(c, f).offset) for s, c in structs.items() for f, _ in c._fields_}
    want.update({s: str(ctypes.sizeof(c)) for s, c in structs.items()})
    assert seen == want


def test_rows_that_this_machine_must_have():
    assert ISAS[-1] == "scalar" and len(set(ISAS)) == len(ISAS)
    if platform.machine() == "x86_64":
        with open("/proc/cpuinfo") as file:
            flags = set(re.search(r"^flags\s*:(.*)$", file.read(), re.M).group(1).split())
        assert ("avx2" in ISAS) == ({"avx2", "fma", "f16c"} <= flags)
        assert "avx512" in ISAS or not {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags
        assert ("avx512bf16" in ISAS) == ("avx512" in ISAS and "avx512_bf16" in flags)
    if platform.machine() == "aarch64":
        assert "neon" in ISAS


# ---- results ------------------------------------------------------------------------------------------------------------------------


def test_what_is_returned():
    out = attn.attention(Q, K, V)
    assert type(out) is np.ndarray and out.shape == (2, 4, 3, 6) and out.dtype == F32
    _, lse = attn.attention(Q, K, V, return_lse=True)
    assert lse.shape == (2, 4, 3) and lse.dtype == F32
    _, weights = attn.attention(Q, K, V, return_weights="weight")
    assert weights.shape == (2, 4, 3, 5) and weights.dtype == F32
    assert [a.shape for a in attn.attention(Q, K, V, return_lse=True, return_weights="biased")] == [out.shape, lse.shape, weights.shape]
    for dtype in DTYPES.values():
        out, lse, weights = attn.attention(Q.astype(dtype), K.astype(dtype), V.astype(dtype), return_lse=True, return_weights="capped")
        assert out.dtype == dtype and lse.dtype == weights.dtype == (F64 if dtype == F64 else F32)


def test_stages():
    o = dict(scale=0.3, softcap=0.7, causal=True, align="bottom_right", bias=np.full((3, 5), 0.25, F32))
    stage = {name: attn.attention(Q, K, V, return_weights=name, return_lse=True, **o) for name in ("scaled", "capped", "biased", "weight")}
    scaled = 0.3 * (Q.astype(F64) @ np.repeat(K, 2, 1).astype(F64).swapaxes(2, 3))
    seen = np.tri(3, 5, 2, dtype=bool)
    size = 1 + 0.3 * (np.abs(Q).astype(F64) @ np.abs(np.repeat(K, 2, 1)).swapaxes(2, 3)).max()
    biased = np.where(seen, 0.7 * np.tanh(scaled / 0.7) + 0.25, -np.inf)
    weight = np.where(seen, np.exp(biased - np.log(np.exp(biased).sum(-1, keepdims=True))), 0)
    for name, want in (("scaled", scaled), ("capped", 0.7 * np.tanh(scaled / 0.7)), ("biased", biased), ("weight", weight)):
        tolerance.check(name, stage[name][2], want, F32, size)
        assert stage[name][0].tobytes() == stage["weight"][0].tobytes()


def test_out_is_written_in_place_between_other_elements():
    buffer = np.full((2, 3, 4, 13), 7, F32)
    out = buffer.swapaxes(1, 2)[..., ::2][..., :6]
    assert attn.attention(Q, K, V, out=out) is out
    assert out.tobytes() == attn.attention(Q, K, V).tobytes()
    assert (buffer[..., 1::2] == 7).all() and (buffer[..., 12] == 7).all()
    for dtype in ("f16", "bf16"):
        q, k, v = (t.astype(DTYPES[dtype]) for t in (Q, K, V))
        wide = attn.attention(q, k, v, out=np.empty((2, 4, 3, 6), F32))
        assert wide.astype(DTYPES[dtype]).tobytes() == attn.attention(q, k, v).tobytes(), "rounded once"
        assert wide.tobytes() != attn.attention(q, k, v).astype(F32).tobytes(), "not rounded before"


def test_strided_inputs_are_not_copied():
    """What a call allocates in Python's sight stays far below the size of its smallest operand."""
    rng = np.random.default_rng(SEED)
    keys = 40000
    k, v = (random(np.dtype(F32), rng, keys, 2, 2 * 8).swapaxes(0, 1)[::-1, ::-1, ::2] for _ in "kv")
    q, out = random(np.dtype(F32), rng, 4, 3, 8), np.empty((4, 3, 8), F32)
    bias, allow = random(np.dtype(F32), rng, 3, keys, 2)[..., 1], rng.random((keys, 2, 2))[:, 0, 0] < 0.5
    masks = dict(bias=np.broadcast_to(bias, (4, 3, keys)), allow=np.broadcast_to(allow, (4, 3, keys)))
    attn.attention(q, k, v, out=out, **masks)
    tracemalloc.start()
    attn.attention(q, k, v, out=out, **masks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < keys, peak  # the mask's own bytes, the smallest of all
    want = attn.attention(*(np.ascontiguousarray(t) for t in (q, k, v)), bias=bias.copy(), allow=allow.copy())
    assert out.tobytes() == want.tobytes()


def test_inputs_that_must_be_copied():
    want = attn.attention(Q, K, V, bias=K[0, 0, :3, :5]).tobytes()
    foreign = [t.astype(t.dtype.newbyteorder()) for t in (Q, K, V)]
    assert attn.attention(*foreign, bias=K[0, 0, :3, :5].astype(">f4")).tobytes() == want
    assert attn.attention(*foreign).dtype == F32 and attn.attention(*foreign).dtype.isnative
    packed = np.zeros(Q.shape, np.dtype([("flag", "u1"), ("x", "f4")]))
    packed["x"] = Q
    assert attn.attention(packed["x"], K, V, bias=K[0, 0, :3, :5]).tobytes() == want
    wide = np.zeros(Q.shape, np.dtype([("x", "f4"), ("pad", "u2")]))  # steps of 6 bytes
    wide["x"] = Q
    assert attn.attention(wide["x"], K, V, bias=K[0, 0, :3, :5]).tobytes() == want


# ---- arguments ----------------------------------------------------------------------------------------------------------------------


def equal(a, b, q=Q):
    assert attn.attention(q, K, V, **a).tobytes() == attn.attention(q, K, V, **b).tobytes()


def test_spellings_of_the_same():
    placed = dict(causal=True, align="bottom_right")
    equal(placed, dict(causal=np.True_, align="bottom-right"))
    equal(placed, dict(causal=1, query_offset=2))
    equal(dict(causal=True, align="top-left"), dict(causal=True, query_offset=[0, 0]))
    equal(dict(causal=True, query_offset=[1, 2]), dict(causal=True, query_offset=np.array([1, 2], np.uint8)))
    equal(dict(key_count=4), dict(key_count=np.array([4, 4], np.int32)))
    equal({}, dict(window=None))
    equal({}, dict(window=(None, None)))
    equal({}, dict(window=(-1, -1)))
    equal(dict(window=(2, None), align="top_left"), dict(window=[2, -1], align="top_left"))
    equal({}, dict(scale=8**-0.5, threads=1, softcap=0))
    equal(dict(bias=0.5), dict(bias=np.full((2, 4, 3, 5), 0.5, F32)))
    equal(dict(bias=[0.0, 1.0, 2.0, -np.inf, 1.0]), dict(bias=np.array([[[[0, 1, 2, -np.inf, 1]]]], F32)))
    equal(dict(allow=[True, False, True, True, True]), dict(allow=np.array([1, 0, 1, 1, 1], np.uint8).view(bool)))
    equal(dict(alibi=[1, 2, 3, 4], align="top_left"), dict(alibi=np.array([[1, 2, 3, 4.0]] * 2), align="top_left"))
    equal(dict(sink=range(4)), dict(sink=np.arange(4.0)))
    with pytest.raises(AssertionError):
        equal({}, dict(scale=0.0))
    with pytest.raises(AssertionError):
        equal({}, dict(sink=[0, 0, 0, 0]))


def test_true_is_every_byte_but_0():
    mask = np.array([2, 0, 255, 1, 128], np.uint8)
    equal(dict(allow=mask.view(bool)), dict(allow=mask != 0))


def test_far_positions():
    for offset in (2**62, -2**62):
        out, lse = attn.attention(Q, K, V, causal=True, query_offset=offset, return_lse=True)
        assert out.tobytes() == attn.attention(Q, K, V).tobytes() if offset > 0 else (out == 0).all() and (lse == -np.inf).all()
    assert (attn.attention(Q, K, V, window=(2**62, 2**62), align="top_left") == attn.attention(Q, K, V)).all()


READ_ONLY = np.zeros((2, 4, 3, 6), F32)
READ_ONLY.flags.writeable = False
REFUSED = [  # what is asked, and what the sentence must name
    (dict(q=Q.astype(np.int64)), "q has dtype int64"),
    (dict(q=Q.astype(complex)), "q has dtype complex128"),
    (dict(k=K.astype(F64)), "k"),
    (dict(v=V.astype(BF16)), "v"),
    (dict(bias=np.zeros((3, 5), bool)), "bias has dtype bool"),
    (dict(bias=np.zeros((3, 5), int)), "bias has dtype int64"),
    (dict(bias=np.zeros((3, 5), F64)), "bias"),
    (dict(bias=np.zeros((3, 5), np.float16)), "bias"),
    (dict(bias=np.zeros((4, 5), F32)), r"bias has shape \(4, 5\), which does not broadcast"),
    (dict(bias=np.zeros((1, 2, 4, 3, 5), F32)), "bias has shape"),
    (dict(bias=np.zeros((4, 2, 3, 5), F32)), "bias has shape"),
    (dict(allow=np.ones((3, 5), F32)), "allow has dtype float32"),
    (dict(allow=np.ones((3, 5), np.int8)), "allow has dtype int8"),
    (dict(allow=np.ones((3, 4), bool)), r"allow has shape \(3, 4\)"),
    (dict(causal=True), "align"),
    (dict(window=(1, 1)), "align"),
    (dict(alibi=[1.0] * 4), "align"),
    (dict(causal=True, align="bottom_right", query_offset=1), "query_offset"),
    (dict(causal=2), "causal is 2"),
    (dict(causal="no"), "causal is 'no'"),
    (dict(align="center"), "align is 'center'"),
    (dict(align=1), "align is 1"),
    (dict(window=3, align="top_left"), "window is 3"),
    (dict(window=(1, 2, 3), align="top_left"), "window is"),
    (dict(window=(-2, 0), align="top_left"), "window_left is -2"),
    (dict(window=(0, -5), align="top_left"), "window_right is -5"),
    (dict(window=(2**63, 0), align="top_left"), "window is 9223372036854775808"),
    (dict(key_count=6), "key_count"),
    (dict(key_count=-1), "key_count"),
    (dict(key_start=6), "key_start"),
    (dict(key_start=3, key_count=3), "key_"),
    (dict(query_count=[3, 4]), "query_count"),
    (dict(key_count=[1, 2, 3]), "key_count must be an int or 2 ints"),
    (dict(key_count=2.0), "key_count must be an int"),
    (dict(key_count=True), "key_count must be an int"),
    (dict(key_count=[[1], [2]]), "key_count must be"),
    (dict(query_offset=2**63 - 1, causal=True), "query_offset"),
    (dict(query_offset=np.array([0, 2**63], np.uint64)), "query_offset is 9223372036854775808"),
    (dict(scale=np.nan), "scale is"),
    (dict(scale=np.inf), "scale is"),
    (dict(softcap=-1.0), "softcap is -1"),
    (dict(softcap=np.nan), "softcap is"),
    (dict(softcap=np.inf), "softcap is"),
    (dict(alibi=[1.0] * 3, align="top_left"), r"alibi has shape \(3,\)"),
    (dict(alibi=np.ones((1, 4)), align="top_left"), r"alibi has shape \(1, 4\)"),
    (dict(alibi=["a"] * 4, align="top_left"), "alibi has dtype"),
    (dict(sink=1.0), r"sink has shape \(\)"),
    (dict(sink=np.ones((2, 4))), r"sink has shape \(2, 4\)"),
    (dict(sink=np.ones(4, bool)), "sink has dtype bool"),
    (dict(out=np.zeros((2, 4, 3, 5), F32)), r"out has shape \(2, 4, 3, 5\)"),
    (dict(out=[0.0]), "out is a list"),
    (dict(out=np.zeros((2, 4, 3, 6), np.int32)), "out must be"),
    (dict(out=np.zeros((2, 4, 3, 6), ">f4")), "out must be"),
    (dict(out=np.zeros((2, 4, 3, 6), F64)), "out"),
    (dict(out=READ_ONLY), "out must be a writeable"),
    (dict(out=np.zeros((2, 4, 3, 6), "u1,f4")["f1"]), "out must be"),
    (dict(out=np.lib.stride_tricks.as_strided(np.zeros(200, F32), (2, 4, 3, 6), (0, 72, 24, 4))), "out"),
    (dict(out=np.lib.stride_tricks.as_strided(np.zeros(200, F32), (2, 4, 3, 6), (192, 48, 20, 4))), "out"),
    (dict(return_weights="probs"), "return_weights is 'probs'"),
    (dict(return_weights=True), "return_weights is True"),
    (dict(isa="avx9000"), "isa"),
    (dict(isa=""), "isa"),
    (dict(threads=0), "threads is 0"),
    (dict(threads=-1), "threads is -1"),
    (dict(threads=1025), "threads is 1025"),
    (dict(threads=2**40), "threads is 1099511627776"),
    (dict(threads=1.5), "threads is 1.5; it must be a whole number"),
    (dict(window=(1.5, 0), align="top_left"), "window is 1.5; it must be a whole number"),
    (dict(scale="1"), "scale is '1'; it must be a number"),
    (dict(softcap="1"), "softcap is '1'; it must be a number"),
    (dict(dropout="1"), "dropout is '1'; it must be a number"),
    (dict(dropout=0.5, dropout_seed=1.5), "dropout_seed is 1.5; it must be a whole number"),
    (dict(q=np.ma.masked_less(Q, 0)), "q is a masked array, whose mask would be lost"),
    (dict(bias=np.ma.masked_less(np.zeros((3, 5), F32), 0)), "bias is a masked array"),
    (dict(key_count=np.ma.array([1, 2])), "key_count is a masked array"),
]


@pytest.mark.parametrize("asked, words", REFUSED, ids=["%s-%d" % ("-".join(asked), n) for n, (asked, _) in enumerate(REFUSED)])
def test_refusals(asked, words):
    out = np.full((2, 4, 3, 6), 77, F32)
    with pytest.raises(ValueError, match=words) as caught:
        attn.attention(**{"q": Q, "k": K, "v": V, "out": out, **asked})
    assert (out == 77).all(), "written before it was refused"
    sentence = str(caught.value)
    assert len(sentence) > 15 and "\n" not in sentence
    attn.attention(Q, K, V)  # and the next call is none the worse


@pytest.mark.parametrize("asked", [dict(window=(1.5, 2)), dict(threads="2"), dict(threads=1.5), dict(scale="x")], ids=str)
def test_wrong_python_types(asked):
    with pytest.raises((TypeError, ValueError)):
        attn.attention(Q, K, V, **asked)


def test_integer_dtypes_of_every_operand():
    for name in "qkv":
        with pytest.raises(ValueError, match="%s has dtype" % name):
            attn.attention(**{"q": Q, "k": K, "v": V, name: np.ones((2, 4, 5, 8), np.uint8)})


# ---- threads, fork, loading -----------------------------------------------------------------------------------------------------------


def test_pools_are_kept():
    before = attn.attention(Q, K, V, threads=3).tobytes()
    made = dict(attn._describe.pools)
    assert attn.attention(Q, K, V, threads=3).tobytes() == before and attn._describe.pools == made
    assert (os.getpid(), 3) in made
    attn.attention(Q, K, V, threads=1)
    attn.attention(Q, K, V)
    assert attn._describe.pools == made


def test_fork():
    """A child of a process with a pool gets the same bits, with threads of its own."""
    rng = np.random.default_rng(SEED)
    q, k, v = random(np.dtype(F32), rng, 3, 4, 300, 16)
    want = attn.attention(q, k, v, threads=2).tobytes()
    child = os.fork()
    if child == 0:
        same = attn.attention(q, k, v, threads=2).tobytes() == want
        os._exit(0 if same and (os.getpid(), 2) in attn._describe.pools else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert attn.attention(q, k, v, threads=2).tobytes() == want


def test_default_threads():
    """ATTN_NUM_THREADS, else the CPUs that the process may use; small calls start none."""
    code = ("import os, numpy as np, attn; x = np.ones((4, 64, 64), np.float32)\n"
            "attn.attention(x[:1, :4], x[:1, :4], x[:1, :4]); assert not attn._describe.pools\n"
            "attn.attention(x, x, x); print([threads for _, threads in attn._describe.pools])")
    base = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
    base.pop("ATTN_NUM_THREADS", None)

    def made(env):
        return subprocess.run([sys.executable, "-c", code], env={**base, **env}, capture_output=True, text=True)

    cpus = len(os.sched_getaffinity(0))
    assert made({}).stdout.strip() == ("[%d]" % cpus if cpus > 1 else "[]")
    assert made({"ATTN_NUM_THREADS": "3"}).stdout.strip() == "[3]"
    assert made({"ATTN_NUM_THREADS": "1"}).stdout.strip() == "[]"
    for bad in ("0", "x", "-2", "1025", "2.0"):
        assert "ValueError: ATTN_NUM_THREADS is '%s', and must be a number from 1 to 1024" % bad in made({"ATTN_NUM_THREADS": bad}).stderr


def test_many_threads_call_at_once():
    """They share the pool, get the right bits, and the interpreter runs on while the library computes."""
    rng = np.random.default_rng(SEED)
    q, k, v = random(np.dtype(F32), rng, 3, 4, 300, 32)
    want = attn.attention(q, k, v, threads=1).tobytes()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda n: attn.attention(q, k, v, threads=1 + n % 3).tobytes() == want, range(64)))
    long = random(np.dtype(F32), rng, 3, 2, 800, 64)
    running, ticks = threading.Thread(target=attn.attention, args=tuple(long), kwargs={"isa": "scalar", "threads": 1}), 0
    running.start()
    while running.is_alive():
        ticks += 1
        time.sleep(0.001)
    assert ticks > 20, "the lock was held"


def test_a_library_that_is_named_but_missing():
    env = {**os.environ, "ATTN_LIBRARY": "/nonexistent/libattn.so", "PYTHONPATH": os.path.join(ROOT, "python")}
    done = subprocess.run([sys.executable, "-c", "import attn"], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "ImportError: libattn was not found: run make, or set ATTN_LIBRARY" in done.stderr


def test_16_bit_inputs_without_ml_dtypes():
    """The module itself needs NumPy only."""
    code = "import sys, numpy as np, attn; attn.attention(*np.ones((3, 2, 4), np.float16)); assert 'ml_dtypes' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}, check=True)


# ---- the other functions --------------------------------------------------------------------------------------------------------------


def test_work_bytes():
    def at(queries=64, keys=64, dim=32, value_dim=16, dtype=F32, **how):
        shapes = (2, 4, queries, dim), (2, 2, keys, dim), (2, 2, keys, value_dim)
        return attn.work_bytes(*(np.empty(shape, dtype) for shape in shapes), **how)

    assert 0 < at(isa="scalar") < 2**20
    for isa in ISAS:
        assert at(isa=isa) == at(keys=100000, isa=isa), "grows with keys"
        assert at(1000, 1000, isa=isa) == at(8000, 1000, isa=isa), "grows with queries"
        assert at(dim=64, isa=isa) > at(isa=isa) and at(value_dim=64, isa=isa) > at(isa=isa) and at(dtype=F64, isa=isa) > at(isa=isa)
        assert at(1000, 1000, isa=isa, threads=3) > at(1000, 1000, isa=isa, threads=2) > at(1000, 1000, isa=isa, threads=1)
    assert at() == at(isa=ISAS[0])
    with pytest.raises(ValueError, match="isa"):
        at(isa="none")


def test_alibi_slopes():
    for heads in range(0, 40):
        lower = 2 ** max(0, heads.bit_length() - 1)
        want = [2.0 ** (-8 * (h + 1) / lower) for h in range(lower)] + [2.0 ** (-8 * (h + 1) / (2 * lower)) for h in range(0, 2 * lower, 2)]
        got = attn.alibi_slopes(heads)
        assert got.dtype == F32
        tolerance.check("slopes", got, np.array(want[:heads]), F32, 0.0)
    with pytest.raises(ValueError, match="heads is -1"):
        attn.alibi_slopes(-1)


def parts(dtype=F32, count=3):
    rng = np.random.default_rng(SEED)
    return random(np.dtype(dtype), rng, count, 2, 4, 3, 6), rng.normal(0, 3, (count, 2, 4, 3)).astype(F64 if dtype == F64 else F32)


def merged(outs, lses):
    """The formula, plainly; for finite numbers."""
    outs, lses = outs.astype(F64), lses.astype(F64)
    lse = np.log(np.exp(lses).sum(axis=0))
    return (np.exp(lses - lse)[..., None] * outs).sum(axis=0), lse


@pytest.mark.parametrize("dtype", DTYPES)
def test_merge(dtype):
    outs, lses = parts(DTYPES[dtype])
    want = merged(outs, lses)
    for rank in (4, 3, 2):
        leave = (slice(None), *(0,) * (4 - rank))
        out, lse = attn.merge(list(outs[leave]), list(lses[leave]))
        assert out.dtype == DTYPES[dtype] and lse.dtype == lses.dtype
        tolerance.check("out", out, want[0][leave[1:]], DTYPES[dtype], 0.0)
        tolerance.check("lse", lse, want[1][leave[1:]], DTYPES[dtype], 0.0)


def test_merge_special_rows():
    outs, lses = parts()
    want = merged(outs[1:], lses[1:])
    outs[0], lses[0] = np.nan, -np.inf  # no part
    out, lse = attn.merge(outs, lses)
    tolerance.check("out", out, want[0], F32, 0.0)
    tolerance.check("lse", lse, want[1], F32, 0.0)
    out, lse = attn.merge(outs[:1], lses[:1])
    assert (out == 0).all() and (lse == -np.inf).all()
    lses[1, 0, 0, 0] = np.nan
    out, lse = attn.merge(outs, lses)
    assert np.isnan(out[0, 0, 0]).all() and np.isnan(lse[0, 0, 0]) and np.isnan(out).sum() == 6 and np.isnan(lse).sum() == 1
    same = attn.merge(outs, lses, out=outs[1])  # in place of a part
    assert same[0].base is outs and same[0].tobytes() == out.tobytes()


def test_merge_strided_and_mixed():
    outs, lses = parts(count=2)
    want = attn.merge(outs, lses)
    laid = [np.ascontiguousarray(a.T).T for a in outs], [np.repeat(a, 2, axis=-1)[..., ::2] for a in lses]
    for got in (attn.merge(*laid), attn.merge(outs, lses.astype(F64))):
        tolerance.check("out", got[0], want[0], F32, 0.0)
    assert attn.merge(*laid)[0].tobytes() == want[0].tobytes()
    half = [outs[0].astype(np.float16), outs[1]]
    exact = attn.merge([half[0].astype(F32), outs[1]], lses)[0]
    assert attn.merge(half, lses, out=np.empty_like(outs[0]))[0].tobytes() == exact.tobytes()


LSE = Q[..., 0]


@pytest.mark.parametrize("outs, lses", [([], []), ([Q], []), ([Q, K], [LSE] * 2), ([Q], [Q]), ([Q[0, 0, 0]], [LSE[0, 0, 0]]),
                                        ([Q.astype(int)], [LSE]), ([Q], [LSE.astype(np.float16)])], ids=lambda x: "%d" % len(x))
def test_merge_refusals(outs, lses):
    with pytest.raises(ValueError, match="lse|outs"):
        attn.merge(outs, lses)
