"""test_page.py: the page of attn show in a headless browser: what it holds, what it shows, what a person does with it.
SPDX-License-Identifier: MIT
"""
import base64
import json
import pathlib
import struct
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from conftest import MINILM, attn, data_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from tolerance import check  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent


def close(got, want, size=0.0):
    """size: the largest score before rounding could matter, sum |q k| scale."""
    check("weights", np.asarray(got, np.float32), want, np.float32, size)


def stored(name):
    raw = MINILM.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    entry = json.loads(raw[8:8 + size])[name]
    a, b = entry["data_offsets"]
    return np.frombuffer(raw[8 + size + a:8 + size + b], "<f4").reshape(entry["shape"])


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    page = tmp_path_factory.mktemp("page") / "minilm.html"
    attn("show", MINILM, "--layer", 5, "--input", f"{MINILM}:hidden_states", "--tokens", MINILM, "--html", page)
    return page


@pytest.fixture
def opened(browser, minilm):
    browser.mouse("mouseMoved", 1, 1)
    browser.open(minilm)
    yield browser
    quiet(browser, minilm)


def quiet(browser, page):
    assert browser.said == []
    assert [r for r in browser.requests if r != f"file://{page}" and not r.startswith("data:")] == []


def number(text):
    return float(text.replace("\u2212", "-"))


# ---- the demo layer -------------------------------------------------------------------------------------------------------------


def test_the_page_holds_pytorchs_weights(minilm):
    data = data_of(minilm)
    close(data["layers"][0]["region"]["weight"], stored("attention_weights"))
    assert data["keys"]["tokens"][11] == "missing" and data["queries"] == data["keys"] and data["sampled"] is None
    assert "http" not in minilm.read_text().replace("http-equiv", "")  # nothing to fetch


def test_a_cell_says_its_numbers(opened):
    opened.choose("#head", "7")
    opened.mouse("mouseMoved", *opened.cell(11, 8))
    said = opened.text("#tip")
    assert "layer 5, head 7: query 11 \u2068missing\u2069 reads key 8 \u2068charge\u2069" in said
    assert "weight 0.6087" in said and "scaled" in said
    opened.mouse("mouseMoved", 2, 2)
    assert opened.text("#tip").startswith("Point at a cell")


def test_a_row_is_explained(opened, minilm):
    opened.choose("#head", "7")
    opened.click(*opened.cell(11, 3))
    head = opened.texts("#row th")
    rows = [opened.texts(f"#row tbody tr:nth-child({n + 1}) td") for n in range(17)]
    column = {name: [row[n] for row in rows] for n, name in enumerate(head)}
    assert head == ["key", "token", "q\u00b7k", "scaled", "score", "\u2212 max", "exp", "weight", "|v|", "weight \u00d7 |v|", "share of output"]
    assert column["token"] == data_of(minilm)["keys"]["tokens"] and column["key"] == [str(n) for n in range(17)]
    explained = json.loads(attn("explain", MINILM, "--layer", 5, "--input", f"{MINILM}:hidden_states", "--head", 7, "--row", 11, "--json"))
    keys = explained["keys"]
    for name, field in (("q\u00b7k", "dot"), ("scaled", "scaled"), ("score", "score"), ("exp", "exp"), ("weight", "weight"), ("share of output", "share")):
        for got, key in zip(column[name], keys, strict=True):
            assert number(got) == pytest.approx(key[field], rel=1e-4, abs=1e-6), name  # five digits are shown
    assert sum(map(number, column["weight"])) == pytest.approx(1, abs=17e-5)
    assert "layer 5, head 7: query 11" in opened.text("#row h2") and "entropy" in opened.text("#row p")
    opened.run("[...document.querySelectorAll('#row th')].find(e => e.textContent === 'weight').click()")
    sorted_rows = opened.texts("#row tbody tr td:nth-child(8)")
    assert sorted_rows == sorted(column["weight"], key=number, reverse=True)
    assert opened.text("#row tbody tr td:nth-child(2)") == "charge"


def test_all_heads_then_one(opened):
    opened.choose("#view", "all")
    assert opened.run("document.querySelectorAll('#maps canvas').length") == 12
    opened.click(*opened.cell(5, 5, canvas=7))
    assert opened.run("document.querySelectorAll('#maps canvas').length") == 1
    assert opened.text("figcaption") == "layer 5, head 7" and opened.run("document.getElementById('head').value") == "7"


def test_keys_move_and_explain(opened):
    opened.run("document.querySelector('#maps canvas').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        opened.key(key)
    assert "query 2 \u2068new\u2069 reads key 1 \u2068my\u2069" in opened.text("#tip")
    opened.key("Enter")
    assert "query 2" in opened.text("#row h2")


def test_colours(opened, minilm):
    data, weight = data_of(minilm), data_of(minilm)["layers"][0]["region"]["weight"]
    ramp = np.frombuffer(base64.b64decode(data["ramp"]), np.uint8).reshape(256, 3)
    light = ramp @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(light) <= 1).all() and light[0] > 240 and light[-1] < 60  # from light to dark, also without colour
    for log in (False, True):
        opened.choose("#colour", "log" if log else "linear")
        picture = opened.picture()
        for i, j in ((4, 0), (2, 2), (16, 16), (8, 9)):
            x, y = opened.cell(i, j)
            part = weight[0, i, j] / weight.max()
            want = ramp[round(255 * max(0, 1 + np.log10(part) / 4 if log else part))]
            assert np.abs(picture[int(y), int(x)].astype(int) - want).max() <= 4, (log, i, j)


def test_the_picture_is_the_stored_one(opened):
    opened.choose("#head", "7")
    opened.click(*opened.cell(11, 8))
    opened.mouse("mouseMoved", *opened.cell(11, 8))
    got = opened.picture()
    wanted = HERE / "minilm.png"
    Image.fromarray(got).save(minilm_path := HERE.parents[1] / "build" / "page-minilm.png")
    want = np.asarray(Image.open(wanted).convert("RGB"))
    assert got.shape == want.shape
    # Letters differ with the fonts that a machine has: averages of 20 x 20 pixels do not by much, and few of them.
    block = lambda a: a[:1000, :1100].reshape(50, 20, 55, 20, 3).mean((1, 3))
    far = np.abs(block(got.astype(float)) - block(want.astype(float))).max(2) > 15
    assert far.mean() < 0.03, f"{far.sum()} blocks differ; look at {minilm_path}"


# ---- other layers and options ---------------------------------------------------------------------------------------------------


def test_layers_side_by_side(browser, nano, tmp_path):
    folder, want = nano
    page = tmp_path / "nano.html"
    attn("show", folder / "nano.safetensors", "--layer", "0,1,2", "--input", ",".join(str(folder / f"x{n}.npy") for n in range(3)), "--causal",
         "--entry", 1, "--html", page)
    data = data_of(page)
    close(data["layers"][0]["region"]["weight"], want[1].astype(float))
    assert (data["layers"][2]["region"]["weight"][:, 0, 1:] == 0).all()
    browser.open(page)
    assert browser.texts("figcaption") == [f"layer {n}, head 0" for n in range(3)]
    browser.mouse("mouseMoved", *browser.cell(3, 7, canvas=1))
    assert "layer 1, head 0: query 3 reads key 7\nweight 0," in browser.text("#tip") and browser.text("#tip").endswith("score \u2212inf; hidden by causal")
    browser.click(*browser.cell(4, 2, canvas=2))
    assert [h.split(":")[0] for h in browser.texts("#row h2")] == [f"layer {n}, head 0" for n in range(3)]
    assert browser.texts("#row table:last-of-type tr.hidden td.why") == 6 * ["causal"] and "causal" in browser.text("#said")
    browser.choose("#view", "all")
    assert browser.run("document.querySelectorAll('#maps canvas').length") == 9
    quiet(browser, page)


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def save(folder, **arrays):
    for name, a in arrays.items():
        np.save(folder / f"{name}.npy", a)
    return [folder / f"{name}.npy" for name in arrays]


def test_groups_and_other_keys_are_labelled(browser, tmp_path):
    page = tmp_path / "p.html"
    files = save(tmp_path, q=random(6, 5, 8), k=random(2, 9, 8, seed=1), v=random(2, 9, 4, seed=2))
    attn("show", *files, "--html", page, "--head", 4, "--softcap", 2, "--alibi", "default", "--align", "bottom-right", "--key-count", 8)
    browser.open(page)
    assert "6 heads in groups of 3 that share a key head" in browser.text("#said") and "5 queries over 9 keys (cross-attention" in browser.text("#said")
    assert browser.text("figcaption").endswith("head 4 (key head 1)")
    browser.click(*browser.cell(2, 8))
    assert {"capped", "ALiBi"} <= set(browser.texts("#row th")) and browser.texts("#row td.why")[-1] == "length"
    quiet(browser, page)


NASTY = ["</script><script>throw 1</script>", "<img src=x onerror=\"throw 2\">", "'\"&amp;", "\u05e9\u05dc\u05d5\u05dd", "\u202eright\u202c", "\U0001f600", "<!--", "a\u2028b", "c\x07\td"]


def test_tokens_are_text(browser, tmp_path):
    page, names = tmp_path / "p.html", tmp_path / "t.json"
    names.write_text(json.dumps(NASTY))
    files = save(tmp_path, q=random(9, 4), k=random(9, 4, seed=1), v=random(9, 4, seed=2))
    shown = NASTY[:-1] + ["c??d"]  # a terminal would obey control characters
    attn("show", *files, "--tokens", names, "--html", page)
    assert data_of(page)["keys"]["tokens"] == shown
    browser.open(page)
    browser.click(*browser.cell(0, 0))
    assert browser.texts("#row td:nth-child(2)") == shown
    assert browser.run("document.images.length") == 0 and browser.run("document.scripts.length") == 2
    quiet(browser, page)


def test_a_long_page_is_sampled_and_says_so(browser, tmp_path):
    page = tmp_path / "long.html"
    n, heads = 900, 2
    q, k, v = random(heads, n, 16), random(heads, n, 16, seed=1), random(heads, n, 16, seed=2)
    weight = np.exp((q.astype(float) @ k.astype(float).transpose(0, 2, 1)) / 4)
    weight = np.where(np.tri(n, dtype=bool), weight, 0)
    weight /= weight.sum(-1, keepdims=True)
    attn("show", *save(tmp_path, q=q, k=k, v=v), "--causal", "--html", page, "--limit", 1, "--region", "500,400")
    data = data_of(page)
    layer, r = data["layers"][0], data["layers"][0]["region"]
    cut = [i * n // 128 for i in range(129)]
    cell = lambda f: np.array([[[f(w[a:b, c:d]) for c, d in zip(cut, cut[1:])] for a, b in zip(cut, cut[1:])] for w in weight])
    size = (np.abs(q) @ np.abs(k).transpose(0, 2, 1)).max() / 4
    close(layer["map"]["mean"], cell(np.mean), size)
    close(layer["map"]["max"], cell(np.max), size)
    assert (r["row"], r["column"]) == (500, 400) and r["rows"] * r["columns"] < n * n and page.stat().st_size < 3e6
    close(r["weight"], weight[:, 500:500 + r["rows"], 400:400 + r["columns"]], size)
    browser.open(page)
    assert "down-sampled" in browser.text("#sampled") and browser.run("document.getElementById('sampled').hidden") is False
    assert "rows of the exact places" in browser.text("#tip")  # a row of the map has no table
    browser.mouse("mouseMoved", *browser.cell(100, 3))
    assert browser.text("#tip").split("\n")[0].endswith(f"queries {cut[100]} to {cut[101] - 1}, keys {cut[3]} to {cut[4] - 1}")
    mean, largest = (number(x.split()[1]) for x in browser.text("#tip").split("\n")[1].split(", "))
    assert mean == pytest.approx(layer["map"]["mean"][0, 100, 3], rel=1e-3) and largest == pytest.approx(layer["map"]["max"][0, 100, 3], rel=1e-3)
    browser.choose("#value", "max")
    browser.run("document.getElementById('zoom').click()")
    assert "click a row" in browser.text("#tip")
    browser.mouse("mouseMoved", *browser.cell(1, 2))
    assert "query 501 reads key 402" in browser.text("#tip")
    browser.click(*browser.cell(1, 2))
    assert "query 501" in browser.text("#row h2") and browser.text("#row tbody td") == "400"
    assert any("the others are not stored" in p for p in browser.texts("#row p"))
    quiet(browser, page)


def test_stored_weights_of_any_rank(browser, tmp_path):
    page = tmp_path / "w.html"
    w = random(2, 3, 4, 5) ** 2
    w /= w.sum(-1, keepdims=True)
    files = save(tmp_path, four=w, three=w[1])
    attn("show", "--weights", files[0], files[1], "--entry", 0, "--html", page)
    data = data_of(page)
    assert (data["layers"][0]["region"]["weight"] == w[0]).all() and (data["layers"][1]["region"]["weight"] == w[1]).all()
    browser.open(page)
    assert browser.texts("figcaption") == ["four.npy, head 0", "three.npy, head 0"]
    browser.click(*browser.cell(1, 1))
    assert browser.texts("#row table:first-of-type th") == ["key", "weight"]
    quiet(browser, page)


def test_an_empty_row_and_nan(browser, tmp_path):
    page = tmp_path / "e.html"
    q = random(3, 4)
    q[2, 0] = np.nan
    attn("show", *save(tmp_path, q=q, k=random(3, 4, seed=1), v=random(3, 4, seed=2)), "--causal", "--query-offset", -1, "--html", page)
    browser.open(page)
    browser.click(*browser.cell(0, 0))
    assert "largest score \u2212inf" in browser.text("#row p") and set(browser.texts("#row td.why")) == {"causal"}
    browser.click(*browser.cell(2, 0))
    assert "largest score NaN" in browser.text("#row p")
    quiet(browser, page)


def test_json_holds_the_maps(tmp_path):
    q, k, v = random(2, 5, 4), random(2, 5, 4, seed=1), random(2, 5, 4, seed=2)
    got = json.loads(attn("show", *save(tmp_path, q=q, k=k, v=v), "--json"))
    x = q.astype(float) @ k.astype(float).transpose(0, 2, 1) / 2
    want = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    assert got["format"] == "attn show" and [m["head"] for m in got["maps"]] == [0, 1] and got["sampled"] is None
    close([m["cells"] for m in got["maps"]], want, (np.abs(q) @ np.abs(k).transpose(0, 2, 1)).max() / 2)


def test_pictures_read_back(tmp_path):
    w = random(2, 6, 9) ** 2
    w /= w.sum(-1, keepdims=True)
    names = tmp_path / "t.txt"
    names.write_text("\n".join(["<a>", "b&c", "\u05e9", '"'] + list("defgh")))
    attn("show", "--weights", save(tmp_path, w=w)[0], "--tokens", names, "--png", tmp_path / "w.png", "--svg", tmp_path / "w.svg")
    tree = ElementTree.parse(tmp_path / "w.svg").getroot()
    said = [e.text for e in tree if e.tag.endswith("text")]
    assert {"<a>", "b&c", "\u05e9", '"', "head 0", "head 1"} <= set(said)
    page = tmp_path / "w.html"
    attn("show", "--weights", tmp_path / "w.npy", "--html", page)
    ramp = np.frombuffer(base64.b64decode(data_of(page)["ramp"]), np.uint8).reshape(256, 3).astype(int)
    picture = np.asarray(Image.open(tmp_path / "w.png").convert("RGB")).astype(int)
    cells = [e for e in tree if e.tag.endswith("path") and "h16v16" in e.get("d")]
    assert len(cells) == w.size
    for cell, x in zip(cells, w.ravel(), strict=True):
        want = ramp[round(255 * x / w.max())]
        left, top = (int(n) for n in cell.get("d")[1:].split("h")[0].split())
        rgb = [int(cell.get("fill")[n:n + 2], 16) for n in (1, 3, 5)]
        assert np.abs(rgb - want).max() <= 4 and np.abs(picture[top + 8, left + 8] - rgb).max() == 0


def test_a_hundred_thousand_tokens(browser, tmp_path):
    """A dense matrix would be 40 GB; the command may have 4 GiB of addresses, and takes seconds."""
    page, n = tmp_path / "long.html", 100_000
    q, k, v = (random(n, 8, seed=seed) for seed in range(3))
    files = save(tmp_path, q=q, k=k, v=v)
    attn("show", *files, "--causal", "--window", "300,0", "--html", page, "--png", tmp_path / "long.png", "--region", "90000,89900",
         memory=4 << 30)
    assert page.stat().st_size < 12e6
    data = data_of(page)
    r, m = data["layers"][0]["region"], data["layers"][0]["map"]
    assert (r["row"], r["column"]) == (90000, 89900) and m["mean"].shape == (1, 128, 128) and "down-sampled" in data["sampled"]
    for i in (0, r["rows"] - 1):
        keys = np.arange(90000 + i - 300, 90000 + i + 1)
        x = k[keys].astype(float) @ q[90000 + i].astype(float) / np.sqrt(8)
        row = np.zeros(n)
        row[keys] = np.exp(x) / np.exp(x).sum()
        close(r["weight"][0, i], row[89900:89900 + r["columns"]], (np.abs(k[keys]) @ np.abs(q[90000 + i])).max() / np.sqrt(8))
    assert (m["mean"][0][np.triu_indices(128, 1)] == 0).all() and m["mean"][0].diagonal().min() > 0
    browser.open(page)
    browser.run("document.getElementById('zoom').click()")
    browser.click(*browser.cell(5, 5))
    assert browser.texts("#row th") == ["key", "q\u00b7k", "scaled", "score", "weight", "hidden by"]
    quiet(browser, page)
