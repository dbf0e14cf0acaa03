"""attn explain: its JSON and .csv are read back; numbers against double precision, reasons against the library, printed sums by hand.
SPDX-License-Identifier: MIT
"""
import base64
import csv
import io
import json
import os
import re
import struct
import subprocess
from decimal import Decimal

import numpy as np
import pytest

import testdata
import tolerance
from reference import per_batch, reference

attn = testdata.attn
COMMAND = os.environ.get("ATTN_COMMAND") or os.path.join(testdata.ROOT, "build", "attn")
pytestmark = pytest.mark.skipif(not os.path.exists(COMMAND), reason="the command is not built: run make, or set ATTN_COMMAND")
SHAPE = B, H, G, N, M, D, DV = 2, 4, 2, 5, 7, 4, 3


def random_options(rng):
    """Options of attn.attention, each given or not."""
    coin = lambda p=0.5: rng.random() < p  # noqa: E731
    o = {}
    if coin():
        o["causal"] = True
    if coin(0.4):
        o["window"] = tuple(int(x) for x in rng.integers(-1, 4, 2))
    if coin(0.4):
        o["alibi"] = rng.random(H)
    if o:
        if coin():
            o["query_offset"] = rng.integers(-2, 4, B)
        else:
            o["align"] = str(rng.choice(["top_left", "bottom_right"]))
    if coin(0.4):
        o["key_start"] = rng.integers(0, 3, B)
    if coin(0.4):
        o["key_count"] = rng.integers(0, M - 2, B)
    if coin(0.3):
        o["query_count"] = rng.integers(0, N + 1, B)
    if coin(0.4):
        o["allow"] = rng.random((B, H, N, M) if coin() else (N, M)) < 0.6
    if coin(0.4):
        o["bias"] = np.where(rng.random((H, N, M)) < 0.2, -np.inf, rng.standard_normal((H, N, M)))
    if coin(0.3):
        o["scale"] = float(rng.normal())
    if coin(0.3):
        o["softcap"] = float(rng.random() + 0.5)
    if coin(0.3):
        o["sink"] = rng.standard_normal(H)
    return o


def words(folder, tensors, options):
    line = []
    for name, array in zip("qkv", tensors):
        np.save(folder / (name + ".npy"), array)
        line.append(folder / (name + ".npy"))
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if name == "causal":
            line.append(option)
        elif name in ("allow", "bias", "alibi", "sink"):
            np.save(folder / (name + ".npy"), value)
            line += [option, folder / (name + ".npy")]
        else:
            text = value.replace("_", "-") if isinstance(value, str) else ",".join("%r" % x for x in np.atleast_1d(value).tolist())
            line.append(option + "=" + text)
    return [str(word) for word in line]


def run(*line):
    done = subprocess.run([COMMAND, "explain", "-q", *line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def why_hidden(options, b, h, i):
    """For each key, the names of the rules that hide it, by the formula at the head of attn.h."""
    start, used = per_batch(options.get("key_start"), B, 0)[b], per_batch(options.get("query_count"), B, N)[b]
    count = per_batch(options.get("key_count"), B, M - per_batch(options.get("key_start"), B, 0))[b]
    offset = count - used if options.get("align") == "bottom_right" else per_batch(options.get("query_offset"), B, 0)[b]
    left, right = options.get("window", (-1, -1))
    allow, bias = options.get("allow"), options.get("bias")
    for j in range(M):
        at = j - start - (i + offset)
        rules = [("query", i >= used), ("start", j < start), ("length", j - start >= count), ("causal", bool(options.get("causal")) and at > 0),
                 ("window", (left >= 0 and at < -left) or (right >= 0 and at > right)),
                 ("mask", allow is not None and not np.broadcast_to(allow, (B, H, N, M))[b, h, i, j]),
                 ("bias -inf", bias is not None and bias[h, i, j] == -np.inf)]
        yield [name for name, holds in rules if holds]


@pytest.mark.parametrize("seed", range(max(1, int(40 * testdata.EXAMPLES))))
def test_numbers_and_reasons(tmp_path, seed):
    rng = np.random.default_rng([testdata.SEED, seed])
    dtype = testdata.DTYPES[["f64", "f32", "f16"][seed % 3]]
    tensors, options = testdata.tensors(rng, dtype, B, H, G, N, M, D, DV), random_options(rng)
    if dtype != np.float64:
        options = {n: v.astype(np.float32) if n in ("bias", "alibi", "sink") else v for n, v in options.items()}
    biased = attn.attention(*tensors, return_weights="biased", **options)[-1]  # the library's own idea of who is seen
    want = reference(*tensors, **options)
    line = words(tmp_path, tensors, options)
    b, h, i = (int(rng.integers(n)) for n in (B, H, N))
    said = json.loads(run(*line, "--entry", str(b), "--head", str(h), "--row", str(i), "--json"))
    keys = said["keys"]
    assert said["attn_explain"] == 1 and [k["key"] for k in keys] == list(range(M))
    assert [k["seen"] for k in keys] == np.isfinite(biased[b, h, i]).tolist() == want.seen[b, h, i].tolist()
    assert [k["hidden_by"] for k in keys] == list(why_hidden(options, b, h, i))
    row = lambda name: np.array([float(k[name]) for k in keys])  # noqa: E731
    for name, stage in (("scaled", want.scaled), ("capped", want.capped), ("score", want.biased), ("weight", want.weight)):
        tolerance.check(name, row(name), stage[b, h, i], np.float64, want.size_all)
    tolerance.check("out", np.array(said["output"]), want.out[b, h, i], np.float64, want.size_all)
    tolerance.check("lse", np.array([float(said["lse"])]), want.lse[b, h, i:i + 1], np.float64, want.size_all)
    contribution = np.array([k["contribution"] for k in keys])
    tolerance.check("sum of contributions", contribution.sum(0), want.out[b, h, i], np.float64, want.size_all)
    weight = want.weight[b, h, i][want.weight[b, h, i] > 0]
    tolerance.check("entropy", np.array([said["entropy"]]), [-(weight * np.log(weight)).sum()], np.float64, 1 + want.size_all)
    if want.seen[b, h, i].any() and np.any(want.out[b, h, i]):
        tolerance.check("sum of shares", np.array([row("share").sum()]), [1.0], np.float64, want.size_all)
    assert all(check["ok"] for check in said["check"])


def test_csv_and_json_hold_the_same_doubles(tmp_path):
    tensors = testdata.tensors(np.random.default_rng(1), np.float32, *SHAPE)
    line = words(tmp_path, tensors, {"causal": True, "align": "bottom_right"}) + ["--entry", "1", "--head", "3", "--row", "2"]
    said = json.loads(run(*line, "--json"))
    assert json.loads(json.dumps(said)) == said
    for key, row in zip(said["keys"], csv.DictReader(io.StringIO(run(*line, "--csv")))):
        assert int(row["key"]) == key["key"] and bool(int(row["seen"])) == key["seen"]
        for name in ("dot", "scaled", "capped", "bias", "alibi", "score", "less_max", "exp", "weight", "value_size", "contribution_size", "share"):
            assert float(row[name]) == float(key[name]), name
        assert [float(row["contribution_%d" % c]) for c in range(DV)] == key["contribution"]
    # what was read in is in what came out: the dot product of the numbers in the file
    exact = (tensors[0][1, 3, 2].astype(np.float64) * tensors[1][1, 1, 0].astype(np.float64)).sum()
    tolerance.check("dot", np.array([said["keys"][0]["dot"]]), [exact], np.float64, 1.0)


def test_top_and_sort(tmp_path):
    tensors = testdata.tensors(np.random.default_rng(2), np.float64, 1, 1, 1, 2, 30, 4, 2)
    line = words(tmp_path, tensors, {}) + ["--row", "1", "--json"]
    whole = json.loads(run(*line))["keys"]
    heaviest = sorted(whole, key=lambda k: (-k["weight"], k["key"]))[:5]
    for sort in ("key", "weight", "score", "share"):
        said = json.loads(run(*line, "--top", "5", "--sort", sort))
        assert said["left_out"] == 25
        assert said["keys"] == sorted(heaviest, key=lambda k: (k["key"] if sort == "key" else -k[sort], k["key"]))


def test_stage_leaves_out_what_comes_later(tmp_path):
    tensors = testdata.tensors(np.random.default_rng(2), np.float64, 1, 1, 1, 1, 3, 4, 2)
    members = {stage: set(json.loads(run(*words(tmp_path, tensors, {}), "--json", "--stage", stage))["keys"][0])
               for stage in ("scaled", "capped", "biased", "weight")}
    assert members["capped"] - members["scaled"] == {"capped"}
    assert members["biased"] - members["capped"] == {"bias", "alibi", "score"}
    assert members["weight"] - members["biased"] == {"less_max", "exp", "weight"}


NUMBER = re.compile(r"^-?\d+(\.\d+)?$")


def columns(text):
    """Each numeric column of the printed table: its title, the numbers above, and the lines below by name; by where they end on the line."""
    lines = text.split("\n")
    top = next(n for n, line in enumerate(lines) if line.startswith("  key"))
    body = []
    for line in lines[top + 1:]:
        if not line.strip() or line.startswith("  Each"):
            break
        body.append(line)
    for title in re.finditer(r"\S+", lines[top]):
        numbers, below = [], {}
        for line in body:
            cell = line[:title.end()].split("  ")[-1].strip() if len(line) >= title.end() else ""
            if not NUMBER.match(cell) or title.start() < lines[top].index("q.k") or line[title.end():title.end() + 1].strip():
                continue
            name = re.match(r"\s+(sum|rounding|sink|\d+ others)\s", line)
            if name:
                below[re.sub(r"\d+ ", "", name.group(1))] = Decimal(cell)
            else:
                numbers.append(Decimal(cell))
        yield title.group(), numbers, below


@pytest.mark.parametrize("seed", range(12))
def test_printed_sums_add_up(tmp_path, seed):
    rng = np.random.default_rng([7, seed])
    tensors = testdata.tensors(rng, np.float64, 1, H, G, 3, 23, D, DV)
    options = {"sink": rng.standard_normal(H)} if seed % 2 else {}
    extra = ["--head", "2", "--row", "1", "--digits", str(seed % 5), *(["--top", "9", "--sort", "weight"] if seed % 3 else [])]
    added = set()
    for title, numbers, below in columns(run(*words(tmp_path, tensors, options), *extra)):
        if "sum" not in below:
            assert not below.keys() - {"sink"}, title
            continue
        total = below.pop("sum")
        assert sum(numbers) + sum(below.values()) == total, title
        assert abs(below.get("rounding", 0)) <= (len(numbers) + 3) * Decimal(10) ** -(seed % 5) / 2
        added.add(title)
    assert added == {"exp", "weight", "out[0]", "out[1]", "out[2]", "share"}


def test_layer_and_tokens():
    model = os.path.join(testdata.ROOT, "examples", "minilm-layer.safetensors")
    said = json.loads(run(model, "--layer", "5", "--input", model + ":hidden_states", "--head", "7", "--row", "11", "--tokens", model, "--json",
                          "--top", "1"))
    assert (said["token"], said["keys"][0]["token"]) == ("missing", "charge")
    assert round(said["keys"][0]["weight"], 3) == 0.609  # what PyTorch computed, as the README says


@testdata.needs_data
def test_every_row_of_a_trained_gpt(tmp_path):
    """The layer's stored scores, weights and outputs, which another system computed, row by row."""
    def load(name, keys=None):
        with open(testdata.data("real", "nano-gpt-sort", "gpt-nano-sort-%s.json" % name), encoding="utf-8") as file:
            return {key: np.frombuffer(base64.b64decode(t["data"]), np.float32).reshape(t["shape"])
                    for key, t in json.load(file).items() if isinstance(t, dict) and "data" in t and (not keys or keys in key)}
    weights, made = load("model", "h.0.attn.c_"), load("t0-partials")
    header, data = {"__metadata__": {"num_attention_heads": "3"}}, b""
    for name, array in weights.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (tmp_path / "gpt.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    np.save(tmp_path / "x.npy", made["ln1"])
    (tmp_path / "tokens.txt").write_text("".join("letter %d\n" % n for n in range(11)), encoding="utf-8")
    for b, h, i in [(0, 0, 10), (1, 1, 4), (2, 2, 7), (0, 2, 0)]:
        said = json.loads(run(str(tmp_path / "gpt.safetensors"), "--layer", "0", "--heads", "3", "--input", str(tmp_path / "x.npy"), "--causal", "--json",
                              "--tokens", str(tmp_path / "tokens.txt"), "--entry", str(b), "--head", str(h), "--row", str(i)))
        assert said["token"] == "letter %d" % i and [k["hidden_by"] for k in said["keys"]] == [[]] * (i + 1) + [["causal"]] * (10 - i)
        weight = np.array([k["weight"] for k in said["keys"]], np.float32)
        size = (np.abs(made["k"][b, h, :i + 1]) @ np.abs(made["q"][b, h, i])).max() / 4
        tolerance.check("weights", weight, made["attSm"][b, h, i], np.float32, size)
        tolerance.check("output", np.array(said["output"], np.float32), made["y"][b, i, 16 * h:16 * h + 16], np.float32, size)
        assert all(check["ok"] for check in said["check"])


def test_nothing_is_seen(tmp_path):
    tensors = testdata.tensors(np.random.default_rng(2), np.float64, 1, 1, 1, 1, 3, 4, 2)
    said = json.loads(run(*words(tmp_path, tensors, {"key_count": 0}), "--json"))
    assert (said["max"], said["sum"], said["lse"], said["entropy"], said["effective_keys"]) == ("-inf", 0, "-inf", 0, 0)
    assert said["output"] == [0, 0] and {k["share"] for k in said["keys"]} == {"nan"}


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", "kv")
def test_numbers_that_are_none(tmp_path, special, where):
    """NaN and infinity at a seen key come out as the kernels give them, at a hidden one they do not come out at all."""
    for key, hidden in ((1, False), (2, True)):
        tensors = dict(zip("qkv", testdata.tensors(np.random.default_rng(2), np.float64, 1, 1, 1, 1, 3, 4, 2)))
        tensors[where][0, 0, key] = special
        want = reference(*tensors.values(), key_count=2)
        said = json.loads(run(*words(tmp_path, tensors.values(), {"key_count": 2}), "--json"))
        assert all(check["ok"] for check in said["check"])
        tolerance.check("out", np.array([float(x) for x in said["output"]]), want.out[0, 0, 0], np.float64, want.size)
        assert hidden == bool(np.isfinite([float(x) for x in said["output"]]).all()) or special == -np.inf


def test_a_fused_result_that_differs_is_an_exit_code(tmp_path):
    """1e200 is no f32 product: the kernel gives NaN where double precision has numbers."""
    q, k, v = np.full((1, 2), 1e30, np.float32), np.float32([[1e30, 0], [0, 1]]), np.eye(2, dtype=np.float32)
    done = subprocess.run([COMMAND, "explain", "-q", *words(tmp_path, (q, k, v), {})], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "WRONG" in done.stdout
