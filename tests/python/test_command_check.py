"""attn check: each known way to go wrong is made here in NumPy, and must be named; what is wrong in no known way must not be.
SPDX-License-Identifier: MIT
"""
import json
import os
import re
import subprocess

import ml_dtypes
import numpy as np
import pytest

import testdata
from reference import reference, seen_pairs

COMMAND = os.environ.get("ATTN_COMMAND") or os.path.join(testdata.ROOT, "build", "attn")
pytestmark = pytest.mark.skipif(not os.path.exists(COMMAND), reason="the command is not built: run make, or set ATTN_COMMAND")
B, H, G, N, M, D = 2, 4, 2, 6, 9, 8
RNG = np.random.default_rng(testdata.SEED)
Q, K, V = testdata.tensors(RNG, np.float64, B, H, G, N, M, D)
SELF = testdata.tensors(RNG, np.float64, B, H, H, M, M, D)  # as many queries as keys, as many key heads as heads
KEEP = RNG.random((N, M)) < 0.5
KEEP[:, 0], KEEP[2] = True, False  # one query sees nothing
BIAS = RNG.standard_normal((H, N, M))
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625])
SINK = np.array([0.5, -1.0, 1.0, 0.0])
TWICE = np.repeat(np.arange(G), H // G)  # the key head of each query head


def softmax(s, axis=-1):
    with np.errstate(invalid="ignore", divide="ignore"):
        top = s.max(axis=axis, keepdims=True)
        e = np.exp(s - np.where(np.isfinite(top), top, 0))
        return e / e.sum(axis=axis, keepdims=True)


def mix(p, v=V):
    return p @ v[:, np.repeat(np.arange(v.shape[1]), H // v.shape[1])]


def scores(scale=1 / np.sqrt(D), q=Q, k=K):
    return scale * (q @ k[:, np.repeat(np.arange(k.shape[1]), H // k.shape[1])].swapaxes(2, 3))


def out(q=Q, k=K, v=V, **options):
    return reference(q, k, v, **options).out


def empty_rows(fill):
    wrong = out(allow=KEEP)
    wrong[:, :, 2] = fill
    return wrong


def padded(fill):
    wrong = out(key_count=[0, 5])
    wrong[0] = fill
    return wrong


def view(x):
    """(b, h, s, d) memory taken for (b, s, h, d), and that transposed to (b, h, s, d)."""
    b, h, s, d = x.shape
    return np.ascontiguousarray(x).reshape(b, s, h, d).swapaxes(1, 2)


def unview(x):
    """A result of that shape, in memory that is taken for (b, h, s, d)."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape)


def sums_in(dtype):
    """Dot products, sum and mixture one after the other in 16 bits, in another order than the command's model of it."""
    r = lambda x: np.asarray(x, np.float64).astype(dtype).astype(np.float64)  # noqa: E731
    k, v = K[:, TWICE], V[:, TWICE]
    dot = np.zeros((B, H, N, M))
    for c in reversed(range(D)):
        dot = r(dot + Q[..., c][..., None] * k[..., c][:, :, None])
    s = r(dot / np.sqrt(D))
    e = r(np.exp(s - s.max(-1, keepdims=True)))
    total = np.zeros((B, H, N))
    for j in reversed(range(M)):
        total = r(total + e[..., j])
    x = np.zeros((B, H, N, D))
    for j in reversed(range(M)):
        x = r(x + r(e[..., j] / total)[..., None] * v[:, :, None, j])
    return x


BOTTOM = ["--align", "bottom-right"]
TOP = ["--align", "top-left"]
SEEN, _ = seen_pairs((B, H, N, M), causal=True, align="bottom_right")
CAP = 0.8
HIDE = np.where(KEEP, 0.0, -np.inf)
PLAIN = reference(Q, K, V)
PLACE = np.arange(N)[:, None] + M - N  # of the queries, bottom-right
DISTANCE = np.abs(PLACE - np.arange(M))
FLIPPED = reference(Q, K, V, allow=~KEEP)
heads_last = lambda x: x.reshape(B, x.shape[1], -1)  # noqa: E731

# cause: options of the call, what the other side gave (an array, or by option), and files in place of q, k, v.
CASES = {
    "inverted-mask": (["--allow", KEEP], out(allow=~KEEP)),
    "bottom-right": (["--causal", *TOP], out(causal=True, align="bottom_right")),
    "top-left": (["--causal", *BOTTOM], out(causal=True, align="top_left")),
    "causal-top-left": ([], out(causal=True, align="top_left")),
    "causal-bottom-right": ([], out(causal=True, align="bottom_right")),
    "causal-strict": (["--causal", *BOTTOM], out(allow=np.arange(M) < PLACE)),
    "causal-later": (["--causal", "--key-count", "8,6", *TOP], out(allow=np.arange(M) <= np.arange(N)[:, None] + 1, key_count=[8, 6])),
    "causal-inverted": (["--causal", *BOTTOM], out(allow=np.arange(M) > PLACE)),
    "not-causal": (["--causal", *TOP], PLAIN.out),
    "mask-ignored": (["--allow", KEEP], PLAIN.out),
    "bias-ignored": (["--bias", BIAS], PLAIN.out),
    "not-scaled": ([], out(scale=1)),
    "scaled-twice": ([], out(scale=1 / D, softcap=CAP), ["--softcap", str(CAP)]),
    "usual-scale": (["--scale", "0.3"], PLAIN.out),
    "model-width": ([], out(scale=1 / np.sqrt(H * D))),
    "scale-by-dim": (["--scale", "0.7"], out(scale=1 / D)),
    "scale-inverted": ([], out(scale=np.sqrt(D))),
    "window-narrower": (["--window", "3,0", *BOTTOM], out(window=(2, 0), align="bottom_right")),
    "window-wider": (["--window", "3,0", *BOTTOM], out(window=(4, 0), align="bottom_right")),
    "window-right-narrower": (["--window", "2,2", *BOTTOM], out(window=(2, 1), align="bottom_right")),
    "window-right-wider": (["--window", "2,2", *TOP], out(window=(2, 3), align="top_left")),
    "window-ignored": (["--window", "3,0", *TOP], PLAIN.out),
    "lengths-ignored": (["--key-count", "4,6"], PLAIN.out),
    "length-less": (["--key-count", "4,6"], out(key_count=[3, 5])),
    "length-more": (["--key-count", "4,6"], out(key_count=[5, 7])),
    "empty-mean": (["--allow", KEEP], empty_rows(V.mean(2)[:, TWICE])),
    "empty-mean-used": (["--key-count", "5", "--allow", KEEP & (np.arange(M) < 5)],
                        np.where((np.arange(N) == 2)[:, None], V[:, :, :5].mean(2)[:, TWICE][:, :, None],
                                 out(key_count=[5, 5], allow=KEEP))),
    "empty-nan": (["--key-count", "0,5"], padded(np.nan)),
    "mask-after-softmax": (["--causal", *BOTTOM], mix(np.where(SEEN, softmax(scores()), 0))),
    "hidden-score-0": (["--causal", *BOTTOM], mix(softmax(np.where(SEEN, scores(), 0)))),
    "softcap-ignored": (["--softcap", str(CAP)], PLAIN.out),
    "softcap-after-mask": (["--softcap", str(CAP), "--causal", *BOTTOM], mix(softmax(CAP * np.tanh(np.where(SEEN, scores(), -np.inf) / CAP)))),
    "softcap-after-bias": (["--softcap", str(CAP), "--bias", BIAS], mix(softmax(CAP * np.tanh((scores() + BIAS) / CAP)))),
    "bias-scaled": (["--bias", BIAS], mix(softmax((scores(1) + BIAS) / np.sqrt(D)))),
    "alibi-sign": (["--alibi", SLOPES, *BOTTOM], mix(softmax(scores() + SLOPES[:, None, None] * DISTANCE))),
    "alibi-ignored": (["--alibi", SLOPES, *BOTTOM], PLAIN.out),
    "sink-ignored": (["--sink", SINK], PLAIN.out),
    "sink-0": ([], out(sink=np.zeros(H))),
    "base-2": ([], mix(softmax(scores() * np.log(2)))),
    "heads-tiled": ([], softmax(Q @ np.tile(K, (1, H // G, 1, 1)).swapaxes(2, 3) / np.sqrt(D)) @ np.tile(V, (1, H // G, 1, 1))),
    "k-v-swapped": ([], out(k=V, v=K)),
    "q-k-swapped": ([], out(SELF[1], SELF[0], SELF[2]), [], SELF),
    "softmax-over-queries": (["--causal", *BOTTOM, "--bias", BIAS],
                             mix(np.nan_to_num(softmax(np.where(SEEN, scores() + BIAS, -np.inf), 2)))),
    "softmax-over-heads": ([], mix(softmax(scores(), 1))),
    "layout-exchanged": ([], out(*(x.swapaxes(1, 2) for x in SELF)).swapaxes(1, 2), [], SELF),
    "layout-viewed": ([], unview(out(*map(view, SELF))), [], SELF),
    "inputs-viewed": ([], out(*map(view, SELF)), [], SELF),
    "output-viewed": ([], unview(PLAIN.out)),
    "channels-interleaved": (["--layout", "bsd", "--heads", str(H)],
                             heads_last(out(*(x.swapaxes(1, 2).reshape(B, M, D, H).transpose(0, 3, 1, 2) for x in SELF)).swapaxes(1, 2)), [],
                             [heads_last(x.swapaxes(1, 2)) for x in SELF]),
    "lse-base-2": ([], {"lse": PLAIN.lse / np.log(2)}),
    "lse-without-max": ([], {"lse": PLAIN.lse - PLAIN.biased.max(-1)}),
    "lse-plus-inf": (["--allow", KEEP], {"lse": np.abs(reference(Q, K, V, allow=KEEP).lse) * np.where(np.arange(N) == 2, 1, np.nan)}),
    "lse-alibi": (["--alibi", SLOPES, "--causal", *BOTTOM],
                  {"lse": reference(Q, K, V, alibi=SLOPES, causal=True, align="bottom_right").lse + SLOPES[:, None] * (np.arange(N) + M - N)}),
    "weights-transposed": ([], {"weights": reference(*SELF).weight.swapaxes(2, 3)}, [], SELF),
    "weights-scaled": ([], {"weights": PLAIN.scaled}),
    "weights-capped": (["--softcap", str(CAP)], {"weights": reference(Q, K, V, softcap=CAP).capped}),
    "weights-biased": (["--allow", KEEP], {"weights": reference(Q, K, V, allow=KEEP).biased}),
    "sums-f16": ([], sums_in(np.float16)),
    "sums-bf16": ([], sums_in(ml_dtypes.bfloat16)),
}
CASES["lse-plus-inf"][1]["lse"][:] = np.where(np.arange(N) == 2, np.inf, reference(Q, K, V, allow=KEEP).lse)
CASES["scaled-twice"] = (["--softcap", str(CAP), "--scale", "0.6"], out(scale=0.36, softcap=CAP))


def known():
    with open(os.path.join(testdata.ROOT, "cli", "causes.c"), encoding="utf-8") as file:
        return re.findall(r'^    \{"([a-z0-9-]+)",', file.read(), re.M)


def run(folder, options, wrong, tensors=(Q, K, V), dtype=np.float64):
    """attn check --json of the call, its exit code."""
    words = []
    wrong = wrong if isinstance(wrong, dict) else {"out": wrong}
    for name, array in zip("qkv", tensors):
        np.save(folder / (name + ".npy"), array.astype(dtype))
        words.append(folder / (name + ".npy"))
    for name, array in wrong.items():
        np.save(folder / (name + ".npy"), np.asarray(array, dtype))
        words += ["--against" + ("" if name == "out" else "-" + name), folder / (name + ".npy")]
    for n, option in enumerate(options):
        if isinstance(option, np.ndarray):
            path = folder / ("option%d.npy" % n)
            np.save(path, option)
            option = path
        words.append(option)
    done = subprocess.run([COMMAND, "check", "-q", "--json", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout), done.returncode


def test_every_cause_has_a_case():
    assert sorted(CASES) == sorted(known())


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_cause_is_named(tmp_path, name, dtype):
    options, wrong, more, tensors = (*CASES[name], [], (Q, K, V))[:4] if len(CASES[name]) == 2 else (*CASES[name], (Q, K, V))[:4]
    said, code = run(tmp_path, options + more, wrong, tensors, dtype)
    assert code == 1
    names = [cause["cause"] for cause in said["causes"]]
    assert name in names
    if not name.startswith("sums-"):
        assert names == [name] or {name, *names} <= {"empty-mean", "empty-mean-used"}, names


@pytest.mark.parametrize("options, seen", [([], PLACE > -1), (["--causal", *BOTTOM], DISTANCE == PLACE - np.arange(M)),
                                           (["--window", "2,1", *BOTTOM], (np.arange(M) - PLACE <= 1) & (PLACE - np.arange(M) <= 2)),
                                           (["--causal", "--window=2,4", *BOTTOM], (np.arange(M) <= PLACE) & (PLACE - np.arange(M) <= 2)),
                                           (["--window=-1,1", *BOTTOM], np.arange(M) - PLACE <= 1)])
def test_softmax_over_queries_under_masks(tmp_path, options, seen):
    said, code = run(tmp_path, options, mix(np.nan_to_num(softmax(np.where(seen, scores(), -np.inf), 2))))
    assert code == 1 and [cause["cause"] for cause in said["causes"]] == ["softmax-over-queries"]


def test_all_nan_is_no_known_cause(tmp_path):
    said, code = run(tmp_path, [], PLAIN.out * np.nan)
    assert code == 1 and said["causes"] == [] and said["out"]["nan_only_there"] == PLAIN.out.size


def test_right_results_have_no_cause(tmp_path):
    said, code = run(tmp_path, ["--causal", *BOTTOM], {"out": out(causal=True, align="bottom_right"), **{
        "lse": reference(Q, K, V, causal=True, align="bottom_right").lse, "weights": reference(Q, K, V, causal=True, align="bottom_right").weight}})
    assert code == 0 and said["causes"] == [] and said["causes_tried"] == 0
    assert all(said[part]["agree"] for part in ("out", "lse", "weights"))


@pytest.mark.parametrize("size", [1e-9, 1e-6, 0.1, 3.0])
def test_no_known_cause_is_an_answer(tmp_path, size):
    noise = size * np.random.default_rng(3).standard_normal(PLAIN.out.shape)
    said, code = run(tmp_path, [], PLAIN.out + noise)
    assert code == 1 and said["causes"] == [] and said["causes_tried"] > 10


def test_one_wrong_row_of_many(tmp_path):
    q, k, v = testdata.tensors(np.random.default_rng(5), np.float64, 1, 2, 2, 3000, 8, 4)
    wrong = reference(q, k, v).out
    wrong[0, 1, 2345] += 1
    said, code = run(tmp_path, [], wrong, (q, k, v))
    assert code == 1 and said["causes"] == []
    assert said["out"]["wrong_rows"] == 1 and said["out"]["first_wrong_rows"][0]["at"][:3] == [0, 1, 2345]
