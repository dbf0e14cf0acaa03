"""tables.py: the tables of docs/performance.md from the JSON of attn_bench and peers.py.
SPDX-License-Identifier: MIT

usage: tables.py [--into FILE] JSON ...

Without --into the tables go to standard output. With it, whatever stands in FILE between a line <!-- table NAME --> and the next line
<!-- end --> is replaced by table NAME: machine, targets, peers, and one for each group of rows (prefill, window, encoder, mask, layout, decode, few, inspect, overhead).
Later files win where two hold the same row and contender. Nothing is filled in that was not measured: what is missing says so.
"""
import argparse
import json
import math
import re
import statistics
from collections import Counter

NAME = re.compile(r"(\w+)-(\d+)x(\d+):(\d+)x(\d+)x(\d+)x(\d+)-(.+?)(-bnhd)?-(f32|bf16|f16)-t(\d+)$")
NOT_MEASURED = "not measured"


class Measured:
    """A row of the table of shapes with its contenders by name."""

    def __init__(self, name):
        group, *sizes, mask, layout, dtype, threads = NAME.match(name).groups()
        self.name, self.group, self.mask, self.layout, self.dtype, self.threads = name, group, mask, layout or "", dtype, int(threads)
        self.batch, self.heads, self.kv_heads, self.queries, self.keys, self.dim = map(int, sizes)
        self.flop, self.ours, self.beside = 0, None, {}  # ours: attn's entry of attn_bench, or of peers.py if there is no other

    def add(self, row, from_peers):
        self.flop = row["flop"]
        for entry in row["contenders"]:
            if entry["name"] != "attn":
                self.beside[entry["name"]] = entry
            elif "seconds" in entry and not (from_peers and self.ours):
                self.ours = entry

    @property
    def shape(self):
        return "(%d, %d/%d, %d, %d, %d)" % (self.batch, self.heads, self.kv_heads, self.queries, self.keys, self.dim)

    def value(self, contender, key):
        entry = self.ours if contender == "attn" else self.beside.get(contender)
        return entry.get(key) if entry else None


def load(paths):
    rows, about = {}, []
    for path in paths:
        with open(path) as file:
            report = json.load(file)
        about.append({k: v for k, v in report.items() if k != "rows"})
        for row in report["rows"]:
            if row["group"] != "quick":
                rows.setdefault(row["row"], Measured(row["row"])).add(row, "systems" in report)
    return list(rows.values()), about


def table(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)] + ["| " + " | ".join(line) + " |" for line in lines]) + "\n"


def number(value, form="%.2f"):
    return form % value if value is not None else ""


# ---- targets ------------------------------------------------------------------------------------------------------------------------


def of(contender, key):
    return lambda r: r.value(contender, key)


def inverse(contender):
    return lambda r: 1 / r.value(contender, "attn_speedup") if r.value(contender, "attn_speedup") else None


def overhead(r):
    """Microseconds beyond the arithmetic at the best burst's rate."""
    return (r.ours["seconds"] - r.flop / r.ours["burst_high"]) * 1e6 if r.ours and r.ours.get("burst_high") else None


def workspace(r):
    """MiB per thread, less what keys split among threads may take beyond: (value_dim + 2) floats a query row and split."""
    return r.ours["work_bytes"] / r.threads / 2**20 if r.ours and r.ours.get("work_bytes") else None


def least(r):
    """attn's rate over the best of those who take part; prototypes are shown apart."""
    found = [e["attn_speedup"] for n, e in r.beside.items() if is_other(n) and not n.startswith("prototype") and "attn_speedup" in e]
    return min(found) if found else None


# what, which rows, value, limit, at least (else at most), aim
TARGETS = [
    ("f32 full, n >= 1024, d = %d, of the FMA burst" % d,
     lambda r, d=d: r.group == "prefill" and r.mask == "full" and r.dtype == "f32" and r.dim == d and r.threads == 1,
     of("attn", "of_burst"), must, True, aim) for d, must, aim in ((64, 0.85, 0.93), (128, 0.90, 0.95))
] + [
    ("f32 causal, n >= 1024, d = %d, of the FMA burst" % d,
     lambda r, d=d: r.group == "prefill" and r.mask == "causal" and r.dtype == "f32" and r.dim == d and r.threads == 1,
     of("attn", "of_burst"), must, True, aim) for d, must, aim in ((64, 0.82, 0.90), (128, 0.86, 0.93))
] + [
    ("encoder, n = 128 and 512, f32 %s, of the FMA burst" % mask,
     lambda r, mask=mask: r.group == "encoder" and r.keys >= 128 and r.mask == mask and r.dtype == "f32",
     of("attn", "of_burst"), must, True, aim) for mask, must, aim in (("full", 0.70, 0.82), ("causal", 0.48, 0.65))
] + [
    *[("windowed causal, %s: time per visible pair against full" % dtype, lambda r, dtype=dtype: r.group == "window" and r.dtype == dtype,
       inverse("attn, full"), 1.25, False, 1.1) for dtype in ("f32", "bf16")],
    ("boolean mask or bias: time against the call without", lambda r: r.group == "mask", of("attn, no mask", "attn_time_ratio"), 1.25, False, 1.1),
    ("bf16 full, of the f32 FMA burst", lambda r: r.group == "prefill" and r.mask == "full" and r.dtype == "bf16" and r.threads == 1,
     of("attn", "of_burst"), 1.5, True, 1.75),
    ("f16, of f32's own rate", lambda r: r.group == "prefill" and r.dtype == "f16" and r.threads == 1, of("attn, f32", "attn_speedup"), 0.9, True, 1.0),
    ("(batch, position, head, channel), of the contiguous rate", lambda r: r.group == "layout", of("attn, contiguous", "attn_speedup"), 0.9, True, 0.97),
    *[("decode 32/32, %s, 2 threads, K and V of the DRAM read rate" % dtype,
       lambda r, dtype=dtype: r.group == "decode" and r.threads == 2 and r.heads == r.kv_heads and r.dtype == dtype,
       of("attn", "of_reads"), 0.85, True, 0.93) for dtype in ("f32", "bf16", "f16")],
    *[("decode, %s: time against f32" % dtype, lambda r, dtype=dtype: r.group == "decode" and r.dtype == dtype,
       of("attn, f32", "attn_time_ratio"), 0.6, False, 0.52) for dtype in ("bf16", "f16")],
    ("decode 32/8: time against 32/32", lambda r: r.group == "decode" and r.heads != r.kv_heads, of("attn, not grouped", "attn_time_ratio"), 0.35, False, 0.27),
    ("4 to 16 queries, 4096 keys, of the roofline", lambda r: r.group == "few" and 4 <= r.queries <= 16, of("attn", "of_roofline"), 0.45, True, 0.8),
    ("f32, d = 64: attn_inspect, all summaries: time against the run", lambda r: r.group == "inspect" and r.dtype == "f32", inverse("attn, all summaries"), 1.3, False, 1.0),
    ("two threads over one, n >= 1024", lambda r: r.group == "prefill" and r.threads == 2, of("attn, 1 thread", "attn_speedup"), 1.85, True, 1.95),
    ("call beyond the arithmetic, microseconds", lambda r: r.group == "overhead", overhead, 2, False, 0.5),
    ("workspace, MiB per thread", lambda r: r.dim <= 128, workspace, 0.5, False, 0.3),
    ("AVX2 row, f32 full, of the AVX2 burst", lambda r: r.group == "prefill" and r.dtype == "f32" and r.mask == "full" and r.threads == 1,
     of("attn avx2", "of_burst"), 0.85, True, 0.93),
    ("f32 and bf16, over the best competitor", lambda r: r.dtype != "f16" and not r.mask.endswith("causal"), least, 1, True, 1.5),
    ("f32 and bf16 causal, over the best competitor", lambda r: r.dtype != "f16" and r.mask.endswith("causal"), least, 1, True, 2.5),
    ("f32 error, keys <= 4096", lambda r: r.dtype == "f32" and r.keys <= 4096, of("attn", "error"), 1e-6, False, None),
    ("f32 error, more keys", lambda r: r.dtype == "f32" and r.keys > 4096, of("attn", "error"), 2e-6, False, None),
]


def targets(rows):
    lines = []
    for what, which, value, must, at_least, aim in TARGETS:
        asked = [r for r in rows if which(r)]
        found = [(value(r), r.name) for r in asked if value(r) is not None]
        limit = "%s %g" % ("at least" if at_least else "at most", must)
        if not found:
            lines.append([what, limit, number(aim, "%g"), NOT_MEASURED, "", "", ""])
            continue
        worst, where = (min if at_least else max)(found)
        met = worst >= must if at_least else worst <= must
        lines.append([what, limit, number(aim, "%g"), "%.3g" % statistics.median(v for v, _ in found), "%.3g" % worst, "`%s`" % where,
                      "yes" if met else "**no**"])
    return table(["what", "must", "aim", "median", "worst", "worst row", "met"], lines)


# ---- other tables -------------------------------------------------------------------------------------------------------------------


def machine(rows, about):
    lines = [[str(a.get(k, "")) for k in ("date", "cpu", "isa", "compiler", "version")] + [", ".join(a.get("systems", []))] for a in about]
    return table(["date", "CPU", "isa", "compiler", "libattn", "systems"], [list(line) for line in dict.fromkeys(map(tuple, lines))])


def group_table(rows, group):
    rows = [r for r in rows if r.group == group and r.ours]
    if not rows:
        return NOT_MEASURED + "\n"
    cold = any("of_reads" in r.ours for r in rows)
    head = ["shape", "mask", "dtype", "threads", "ms", "GFLOP/s", "of FMA", "max/max"] + (["K+V GB/s", "of reads", "of roofline"] if cold else [])
    lines = []
    for r in rows:
        o = r.ours
        line = [r.shape, r.mask + r.layout, r.dtype, str(r.threads), number(o["seconds"] * 1e3, "%.4g"), number(o["flop_per_second"] * 1e-9, "%.1f"),
                number(o["of_burst"], "%.3f"), number(o.get("of_burst_max_max"), "%.3f")]
        if cold:
            rate = o.get("kv_bytes_per_second")
            line += [number(rate * 1e-9 if rate else None, "%.1f"), number(o.get("of_reads"), "%.3f"), number(o.get("of_roofline"), "%.3f")]
        peak = o.get("peak_bytes")
        lines.append(line + [number(o["work_bytes"] / 2**20), number(peak / 2**20 if peak is not None else None, "%.1f"), number(o["error"], "%.1e")])
    text = table(head + ["workspace MiB", "peak MiB", "error"], lines)
    for dtype in ("f32", "bf16", "f16"):
        text += ratios([r for r in rows if r.dtype == dtype], dtype)
    return text


def ratios(rows, dtype):
    """attn's rate over that of everybody who was timed."""
    others = list(dict.fromkeys(n for r in rows for n, e in r.beside.items() if "attn_speedup" in e))
    if not others:
        return ""
    lines = [[r.shape, r.mask + r.layout, str(r.threads)] + [number(r.value(n, "attn_speedup"), "%.2f") for n in others] for r in rows]
    return "\n%s, attn's rate over that of:\n\n" % dtype + table(["shape", "mask", "threads"] + others, lines)


def mean(values):
    return math.exp(statistics.fmean(math.log(v) for v in values))


def is_other(name):
    return not re.match(r"attn\b", name)


def peers(rows):
    """Each competitor over the f32 and bf16 rows that it can express, and why it cannot the others."""
    names = list(dict.fromkeys(n for r in rows for n in r.beside if is_other(n)))
    lines, refusals = [], []
    for name in names:
        for dtype in ("f32", "bf16"):
            found = [(r.value(name, "attn_speedup"), r.name, "causal" in r.mask) for r in rows if r.dtype == dtype and r.value(name, "attn_speedup")]
            causal = [v for v, _, c in found if c]
            if found:
                lines.append([name, dtype, str(len(found)), "%.2fx" % mean([v for v, *_ in found]), "%.2fx" % mean(causal) if causal else "",
                              "%.2fx" % min(found)[0], "`%s`" % min(found)[1]])
        why = Counter(e["refused"] for r in rows if r.dtype != "f16" for n, e in r.beside.items() if n == name and "refused" in e)
        if why:
            refusals.append("- %s: %s" % (name, "; ".join("%s (%d)" % pair for pair in why.most_common())))
    if not lines:
        return NOT_MEASURED + "\n"
    text = table(["competitor", "dtype", "rows", "attn is, geometric mean", "causal rows", "least", "in row"], lines)
    return text + ("\nWhy they do not take part in the other f32 and bf16 rows (number of rows):\n\n" + "\n".join(refusals) + "\n" if refusals else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--into", help="the document whose tables are replaced")
    parser.add_argument("json", nargs="+")
    options = parser.parse_args()
    rows, about = load(options.json)
    made = {"machine": machine(rows, about), "targets": targets(rows), "peers": peers(rows)}
    for group in ("prefill", "window", "encoder", "mask", "layout", "decode", "few", "inspect", "overhead"):
        made[group] = group_table(rows, group)
    if not options.into:
        for name, text in made.items():
            print("## %s\n\n%s" % (name, text))
        return
    with open(options.into) as file:
        document = file.read()
    for name, text in made.items():
        document = re.sub(r"(<!-- table %s -->\n).*?(<!-- end -->)" % name, lambda m: m[1] + "\n" + text + "\n" + m[2], document, flags=re.S)
    with open(options.into, "w") as file:
        file.write(document)


if __name__ == "__main__":
    main()
