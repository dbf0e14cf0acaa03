"""gradients.py: a step of training, the run and its gradients, by attn and by PyTorch, pair by pair in one run.
SPDX-License-Identifier: MIT

usage: gradients.py [--threads N] [--only PATTERN] [--rounds N] [--quick] [--json FILE]

Each round is a burst of multiply-adds, attn, a burst, PyTorch, a burst, who is first alternating; times are medians of the rounds, `of FMA` those of
rates over the two bursts beside them. Operations are counted as 4 n^2 d for the run and 10 n^2 d for its gradients, half of that when causal. attn is
called by ctypes with descriptors and work prepared once, PyTorch's scaled_dot_product_attention by autograd with the gradients handed in; without PyTorch
attn is measured alone. With a bias whose gradient is asked for, or with values of another width than keys, PyTorch takes its way that holds all
scores.
"""
import argparse
import ctypes
import fnmatch
import json
import os
import sys

import numpy as np

import peers

sys.path.insert(0, os.path.join(peers.HERE, "..", "python"))

# batch, heads, queries = keys, dim, value_dim, what is special
SHAPES = [(1, 8, 1024, 64, 64, ""), (1, 8, 4096, 64, 64, ""), (1, 1, 8192, 64, 64, ""), (4, 12, 512, 64, 64, ""),
          (1, 8, 1024, 64, 64, "bias"), (1, 8, 1024, 64, 96, "")]
QUICK = [(1, 2, 256, 32, 32, ""), (1, 2, 256, 32, 32, "bias"), (1, 2, 256, 32, 48, "")]


class Step:
    """One shape's inputs and both systems' calls."""

    def __init__(self, shape, causal, dtype, threads):
        self.batch, self.heads, self.n, self.dim, self.value_dim, special = shape
        self.causal, self.dtype, self.threads, self.with_bias = causal, dtype, threads, special == "bias"
        rng = np.random.default_rng(1)
        self.q, self.k = (rng.standard_normal((self.batch, self.heads, self.n, self.dim), np.float32) for _ in range(2))
        self.v, self.d_out = (rng.standard_normal((self.batch, self.heads, self.n, self.value_dim), np.float32) for _ in range(2))
        self.bias = rng.standard_normal((1, self.heads, self.n, self.n), np.float32) if self.with_bias else None
        if dtype == "bf16":
            import ml_dtypes

            self.q, self.k, self.v, self.d_out = (a.astype(ml_dtypes.bfloat16) for a in (self.q, self.k, self.v, self.d_out))
        self.name = "gradients-%dx%dx%dx%d%s%s-%s-%s-t%d" % (self.batch, self.heads, self.n, self.dim,
                                                            "" if self.dim == self.value_dim else ":%d" % self.value_dim,
                                                            "-bias" if self.with_bias else "", "causal" if causal else "full", dtype, threads)

    def flop(self, forward=True):
        """Of the run and its gradients, or of these alone."""
        widths = 2 * (self.dim + self.value_dim) * forward + 6 * self.dim + 4 * self.value_dim
        return widths * self.batch * self.heads * self.n**2 * (0.5 if self.causal else 1.0)

    def attn(self):
        """(the step, its gradients alone, gradients by name)"""
        from attn import _describe, _library

        lib, options = _library.lib, {"causal": self.causal}
        if self.with_bias:
            options["bias"] = self.bias
        c = self.call = _describe.describe(self.q, self.k, self.v, threads=self.threads, **options)
        g = self.back = _library.BackwardDesc(size=ctypes.sizeof(_library.BackwardDesc))
        out = c.result("out", self.d_out.shape, c.q.dtype)
        lse = c.result("lse", self.d_out.shape[:3], missing=1)
        grads = {name: np.empty_like(a) for name, a in (("q", self.q), ("k", self.k), ("v", self.v))}
        if self.with_bias:
            grads["bias"] = np.empty_like(self.bias)
        operands = {"out": out, "d_out": self.d_out, "dq": grads["q"], "dk": grads["k"], "dv": grads["v"], "dbias": grads.get("bias")}
        for name, array in operands.items():
            if array is not None:
                setattr(g, name, _describe.view(_describe.operand(name, array)))
        g.lse = _describe.view(_describe.operand("lse", lse), 1)
        size = ctypes.c_size_t()
        self.keep = [out, lse, grads]
        _library.call(lib.attn_work_bytes, ctypes.byref(c.desc), ctypes.byref(size))
        self.keep.append(ctypes.create_string_buffer(size.value))
        c.desc.work, c.desc.work_bytes = ctypes.addressof(self.keep[-1]), size.value
        lib.attn_backward_work_bytes.argtypes = [ctypes.POINTER(_library.Desc), ctypes.POINTER(_library.BackwardDesc),
                                                 ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(_library.Error)]
        _library.call(lib.attn_backward_work_bytes, ctypes.byref(c.desc), ctypes.byref(g), ctypes.byref(size))
        self.keep.append(ctypes.create_string_buffer(size.value))
        g.work, g.work_bytes = ctypes.addressof(self.keep[-1]), size.value
        self.work = size.value
        desc, back = ctypes.byref(c.desc), ctypes.byref(g)

        def backward():
            if lib.attn_backward(desc, back, None):
                raise RuntimeError("attn_backward failed")

        def step():
            if lib.attn_run(desc, None):
                raise RuntimeError("attn_run failed")
            backward()

        return step, backward, grads

    def torch(self):
        import torch

        torch.set_num_threads(self.threads)
        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[self.dtype]

        def tensor(array, grad=True):
            if array is None:
                return None
            t = torch.from_numpy(array.astype(np.float32)).to(kind)
            return t.requires_grad_(grad)

        leaves = [t for t in (tensor(self.q), tensor(self.k), tensor(self.v), tensor(self.bias)) if t is not None]
        d_out, grads = tensor(self.d_out, False), {}
        bias, causal = (leaves[3] if self.with_bias else None), self.causal
        if self.with_bias and causal:  # the two exclude each other there
            hidden = torch.full((self.n, self.n), -torch.inf, dtype=kind).triu(1)

        def step():
            mask = bias + hidden if self.with_bias and causal else bias
            out = torch.nn.functional.scaled_dot_product_attention(*leaves[:3], attn_mask=mask, is_causal=causal and mask is None)
            grads.update(zip(("q", "k", "v", "bias"), torch.autograd.grad(out, leaves, d_out)))

        return step, lambda: {name: t.float().numpy() for name, t in grads.items()}


def apart(ours, theirs):
    """The largest difference of any gradient, over its largest element."""
    return max(float(np.abs(ours[name].astype(np.float32) - theirs[name]).max() / np.abs(theirs[name]).max()) for name in ours)


def measure(bench, step, rounds, window):
    ours, backward, grads = step.attn()
    contenders = [{"name": "attn", "call": ours, "flop": step.flop()}, {"name": "attn, gradients alone", "call": backward, "flop": step.flop(False)}]
    ours()
    try:
        theirs, result = step.torch()
        theirs()
        contenders.append({"name": "torch", "call": theirs, "flop": step.flop(), "apart": apart(grads, result())})
        if contenders[-1]["apart"] > (0.05 if step.dtype == "bf16" else 1e-3):
            raise SystemExit("%s: attn and torch differ by %.1e" % (step.name, contenders[-1]["apart"]))
    except ImportError:
        pass
    for c in contenders:
        c["seconds"], c["fraction"] = [], []
    for number in range(rounds):
        before = bench.lib.bench_burst(bench.bits, bench.executor, window)
        for c in contenders[::-1] if number % 2 else contenders:
            seconds = peers.time_calls(c["call"], window, 0.01, False)
            after = bench.lib.bench_burst(bench.bits, bench.executor, window)
            c["seconds"].append(seconds)
            c["fraction"].append(c["flop"] / seconds / ((before + after) / 2))
            before = after
    return contenders


def show(step, contenders, rounds):
    print("%s  %.2f GFLOP, %d rounds, work %.1f MiB" % (step.name, step.flop() * 1e-9, rounds, step.work / 2**20))
    for c in contenders:
        text = "    %-24s %10.3f ms  %7.1f GFLOP/s  of FMA %.3f" % (c["name"], 1e3 * np.median(c["seconds"]), 1e-9 * c["flop"] / np.median(c["seconds"]),
                                                                  np.median(c["fraction"]))
        if c["name"] == "torch":
            ratios = np.array(c["seconds"]) / np.array(contenders[0]["seconds"])
            c["attn_speedup"] = float(np.median(ratios))
            text += "  attn is %.2fx [%.2f..%.2f]  apart %.1e" % (c["attn_speedup"], *np.quantile(ratios, (0.25, 0.75)), c["apart"])
        print(text)
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="*", help="only rows whose name matches this glob")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="small rows, 2 rounds: shows that it works, measures nothing")
    parser.add_argument("--json")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:options.threads])
    options.seconds = 0
    bench, rows = peers.Bench(options), []
    for shape in QUICK if options.quick else SHAPES:
        for causal in (False, True):
            for dtype in ("f32",) if options.quick or shape[5] or shape[3] != shape[4] else ("f32", "bf16"):
                step = Step(shape, causal, dtype, options.threads)
                if not fnmatch.fnmatch(step.name, options.only):
                    continue
                rounds = 2 if options.quick else options.rounds
                contenders = measure(bench, step, rounds, 0.002 if options.quick else 0.02)
                show(step, contenders, rounds)
                rows.append({"row": step.name, "work_bytes": step.work, "contenders": [
                    {k: v for k, v in c.items() if k not in ("call", "fraction")} | {"of_burst": float(np.median(c["fraction"]))} for c in contenders]})
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rows": rows}, file, indent=1)
    return 0 if rows else 2


if __name__ == "__main__":
    sys.exit(main())
