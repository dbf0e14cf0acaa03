"""python_overhead.py: what a call costs in Python beyond the call of the C library, and what importing the package costs.
SPDX-License-Identifier: MIT

usage: python bench/python_overhead.py [--json FILE] [--max MICROSECONDS]

Every number is the least of several rounds, which is what the code costs when nothing disturbs it. With --max it exits with 1 if the
overhead of an attention() call on NumPy arrays is more. PyTorch is measured where it is installed.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import time

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python")
sys.path.insert(0, PACKAGE)

import numpy as np  # noqa: E402

import attn  # noqa: E402
from attn import _describe, _library  # noqa: E402


def least(call, rounds=15, calls=2000):
    """Microseconds of one call."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / calls


def importing(rounds=7):
    """Milliseconds that `import attn` takes where NumPy is already there, in processes of their own."""
    code = "import numpy, time; t = time.perf_counter(); import attn; print(time.perf_counter() - t)"
    env = {**os.environ, "PYTHONPATH": PACKAGE}
    return 1e3 * min(float(subprocess.check_output([sys.executable, "-c", code], env=env)) for _ in range(rounds))


def torch_rows(rows, c_call):
    try:
        import torch
        import attn.torch
    except ImportError:
        return
    q, k, v = torch.ones(3, 1, 1, 1, 16)
    rows["attn.attention, torch tensors"] = least(lambda: attn.attention(q, k, v)) - c_call
    with torch.no_grad():
        rows["attn.torch.scaled_dot_product_attention"] = least(lambda: attn.torch.scaled_dot_product_attention(q, k, v)) - c_call
        rows["torch's own scaled_dot_product_attention, whole"] = least(
            lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--max", type=float)
    args = parser.parse_args()
    q, k, v = (np.ones((1, 1, 1, 16), np.float32) for _ in range(3))
    described = _describe.describe(q, k, v)
    out = described.result("out", q.shape, 1)
    desc, error = ctypes.byref(described.desc), ctypes.byref(_library.Error())
    run = _library.lib.attn_run
    c_call = least(lambda: run(desc, error))
    mask = np.ones((1, 1), bool)
    rows = {"attn.attention": least(lambda: attn.attention(q, k, v)) - c_call,
            "attn.attention, out given": least(lambda: attn.attention(q, k, v, out=out)) - c_call,
            "attn.attention, mask, key_count, causal": least(
                lambda: attn.attention(q, k, v, allow=mask, key_count=1, causal=True)) - c_call}
    overhead = rows["attn.attention"]
    torch_rows(rows, c_call)
    print("%-50s %8.1f us" % ("the C call by ctypes, one query, one key", c_call))
    for name, value in rows.items():
        print("%-50s %8.1f us%s" % (name, value, "" if "whole" in name else " beyond it"))
    import_ms = importing()
    print("%-50s %8.1f ms beyond NumPy's own" % ("import attn", import_ms))
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"c_call_us": c_call, "overhead_us": rows, "import_ms": import_ms}, file, indent=1)
    if args.max is not None and overhead > args.max:
        sys.exit("a call costs %.1f us beyond the C call, more than %g" % (overhead, args.max))


if __name__ == "__main__":
    main()
