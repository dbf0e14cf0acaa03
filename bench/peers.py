"""peers.py: attn beside PyTorch, ONNX Runtime, OpenVINO and JAX on the rows of shapes.txt, pair by pair in one run.
SPDX-License-Identifier: MIT

usage: peers.py [--threads N] [--only PATTERN] [--seconds S] [--rounds N] [--quick] [--list] [--json FILE] [--table FILE]

The inputs, the bursts and the reference in double precision are those of attn_bench: all come from the same C functions. In each round every system
has its turn beside attn: burst, one, burst, the other, burst; who is first alternates. attn is called by ctypes with a descriptor and a workspace
prepared once; the others by the leanest call of their Python interface, their inputs and outputs prepared or bound as far as it lets one. So
everybody's time holds one call from Python: about a microsecond for attn, more for most others, which matters in the smallest rows only.
A process runs with one number of threads and on that many processors, so that systems without a setting for it keep to it as well; --threads
N (default 1) takes the rows of the table with that number.
"""
import argparse
import ctypes
import gc
import json
import os
import sys
import time

import numpy as np

MASKS = ("full", "causal", "window", "padding", "padding+causal", "allow", "bias")
LAYOUTS = ("bhnd", "bnhd")
DTYPES = {1: "f32", 3: "f16", 4: "bf16"}
ELEMENTS = {1: np.float32, 3: np.uint16, 4: np.uint16}  # 16-bit types by their bits
HERE = os.path.dirname(os.path.abspath(__file__))


class Row(ctypes.Structure):  # struct row of bench.h
    _fields_ = ([(n, ctypes.c_int64) for n in ("batch", "heads", "kv_heads", "queries", "keys", "dim", "window")]
                + [(n, ctypes.c_int32) for n in ("mask", "per_head", "layout", "dtype", "threads", "f32_too")]
                + [("group", ctypes.c_char * 16), ("name", ctypes.c_char * 112)])

    mask_name = property(lambda self: MASKS[self.mask])
    layout_name = property(lambda self: LAYOUTS[self.layout])
    dtype_name = property(lambda self: DTYPES[self.dtype])


class Problem(ctypes.Structure):  # struct problem of bench.h
    _fields_ = ([("row", Row)] + [(n, ctypes.c_void_p) for n in ("q", "k", "v", "out", "allow", "bias")]
                + [(n, ctypes.c_int64 * 4) for n in ("q_stride", "k_stride", "mask_stride")]
                + [("lengths", ctypes.POINTER(ctypes.c_int64))] + [(n, ctypes.c_int64) for n in ("q_count", "k_count", "mask_count")])


def load():
    build = os.path.abspath(os.environ.get("ATTN_BUILD_DIR", os.path.join(HERE, "..", "build")))
    ctypes.CDLL(os.path.join(build, "libattn.so"), ctypes.RTLD_GLOBAL)
    attn, lib = ctypes.CDLL(os.path.join(build, "libattn.so")), ctypes.CDLL(os.path.join(build, "libattn_bench_shared.so"))
    pointer, real, integer = ctypes.c_void_p, ctypes.c_double, ctypes.c_int
    for owner, name, result, *args in (
            (attn, "attn_pool_new", pointer, ctypes.c_int32, pointer), (attn, "attn_pool_executor", pointer, pointer),
            (attn, "attn_version_text", ctypes.c_char_p),
            (lib, "bench_rows", integer, ctypes.c_char_p, ctypes.POINTER(ctypes.POINTER(Row))),
            (lib, "bench_matches", integer, ctypes.c_char_p, ctypes.c_char_p), (lib, "bench_flop", real, ctypes.POINTER(Row)),
            (lib, "bench_kv_bytes", real, ctypes.POINTER(Row)), (lib, "bench_is_cold", integer, ctypes.POINTER(Row)),
            (lib, "bench_problem_new", ctypes.POINTER(Problem), ctypes.POINTER(Row)),
            (lib, "bench_problem_free", None, ctypes.POINTER(Problem)), (lib, "bench_burst_best", integer),
            (lib, "bench_burst", real, integer, pointer, real), (lib, "bench_read_burst", real, pointer),
            (lib, "bench_reference_new", pointer, ctypes.POINTER(Problem)), (lib, "bench_reference_free", None, pointer),
            (lib, "bench_error", real, pointer, pointer, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64)),
            (lib, "bench_error_limit", real, ctypes.c_int32),
            (lib, "bench_ours_new", pointer, ctypes.POINTER(Problem), ctypes.c_char_p, pointer, ctypes.POINTER(ctypes.c_size_t)),
            (lib, "bench_ours_run", integer, pointer), (lib, "bench_ours_free", None, pointer)):
        function = getattr(owner, name)
        function.restype, function.argtypes = result, args
    return attn, lib


class Data:
    """The problem's tensors as arrays over its own memory, axes (batch, head, position, channel)."""

    def __init__(self, problem):
        row = problem.row
        self.q = self._tensor(problem.q, row, row.heads, row.queries)
        self.k = self._tensor(problem.k, row, row.kv_heads, row.keys)
        self.v = self._tensor(problem.v, row, row.kv_heads, row.keys)
        shape = (row.batch, row.heads, row.queries, row.keys) if row.per_head else (1, 1, row.queries, row.keys)
        self.allow = self._array(problem.allow, np.bool_, shape) if problem.allow else None
        self.bias = self._array(problem.bias, np.float32, shape) if problem.bias else None
        self.lengths = [problem.lengths[b] for b in range(row.batch)] if problem.lengths else None

    @staticmethod
    def _array(address, dtype, shape):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)

    def _tensor(self, address, row, heads, count):
        if row.layout_name == "bhnd":
            return self._array(address, ELEMENTS[row.dtype], (row.batch, heads, count, row.dim))
        return self._array(address, ELEMENTS[row.dtype], (row.batch, count, heads, row.dim)).transpose(0, 2, 1, 3)


# ---- measuring ----------------------------------------------------------------------------------------------------------------------


def resident(field):
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(field))


def peak_of(call):
    """Resident bytes beyond those before the call, at most."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        call()
        return None
    before = resident("VmRSS:")
    call()
    return max(0, resident("VmHWM:") - before)


def time_calls(call, window, expected, cold):
    """Seconds per call: one call if cold, else as many as fill the window."""
    batch = 1 if cold else max(1, int(window / 100 / (expected + 1e-9)))
    clock, calls = time.perf_counter, 0
    begin = clock()
    while True:
        for _ in range(batch):
            call()
        calls += batch
        took = clock() - begin
        if cold or took >= window:
            return took / calls


class Bench:
    def __init__(self, options):
        self.attn, self.lib = load()
        self.options, self.window = options, 0.002 if options.quick else 0.02
        self.pool = self.attn.attn_pool_new(options.threads, None) if options.threads > 1 else None
        self.executor = self.attn.attn_pool_executor(self.pool)
        self.bits = self.lib.bench_burst_best()

    def turn(self, row, contender):
        contender["before"]()
        seconds = time_calls(contender["call"], self.window, contender["expected"], self.lib.bench_is_cold(row))
        if self.options.threads > 1:
            time.sleep(0.005)  # thread pools spin for a while after their work
        return seconds

    def bursts(self, row, length):
        """The reads come last, just before what is read from memory too."""
        fma = self.lib.bench_burst(self.bits, self.executor, length)
        return fma, self.lib.bench_read_burst(self.executor) if self.lib.bench_is_cold(row) else 0

    def pair(self, row, ours, peer, turned):
        length = min(max(self.window, peer["expected"]), 0.25)
        before = self.bursts(row, length)
        for contender in (peer, ours) if turned else (ours, peer):
            seconds = self.turn(row, contender)
            after = self.bursts(row, length)
            fma, reads = ((x + y) / 2 for x, y in zip(before, after))
            before = after
            contender["seconds"].append(seconds)
            contender["fraction"].append(self.lib.bench_flop(row) / seconds / fma if fma else None)
            contender["of_reads"].append(self.lib.bench_kv_bytes(row) / seconds / reads if reads else None)
        peer["ratios"].append(peer["seconds"][-1] / ours["seconds"][-1])

    def look(self, contender):
        contender["before"]()
        begin = time.perf_counter()
        contender["call"]()
        first = time.perf_counter() - begin
        contender["expected"] = first if first > 0.3 else time_calls(contender["call"], min(first, 0.01), first, False)

    def error(self, reference, row, array):
        array = np.asarray(array)
        strides = (ctypes.c_int64 * 4)(*(s // array.itemsize for s in array.strides))
        return self.lib.bench_error(reference, array.ctypes.data, row.dtype, strides)

    def measure(self, row, systems):
        problem = self.lib.bench_problem_new(row)
        data, reference = Data(problem.contents), self.lib.bench_reference_new(problem)
        work = ctypes.c_size_t()
        handle = self.lib.bench_ours_new(problem, None, self.executor, ctypes.byref(work))
        run = self.lib.bench_ours_run

        def attn():
            run(handle)

        out = data._tensor(problem.contents.out, row, row.heads, row.queries)
        ours = contender("attn", lambda: None, attn)
        ctypes.memset(problem.contents.out, 0xff, problem.contents.q_count * out.itemsize)  # NaN, and there before memory is looked at
        ours["peak"], ours["work"], ours["error"] = peak_of(attn), work.value, self.error(reference, row, out)
        if not ours["error"] <= self.lib.bench_error_limit(row.dtype):
            ours["refused"] = "WRONG RESULT"
        self.look(ours)
        # Large problems one system at a time: each may hold copies of the inputs. Every pair is attn and one system either way.
        large = self.lib.bench_kv_bytes(row) > 2**30
        peers, rounds = [], 0
        for together in [[system] for system in systems] if large else [systems]:
            running = []
            for system in together:
                peers.append(self.open(row, data, reference, *system))
                running += [] if peers[-1]["refused"] else peers[-1:]
            rounds = max(rounds, self.race(row, ours, running))
            for peer in running:
                peer["before"] = peer["call"] = None  # what it holds is freed
            gc.collect()
        result = summary(self.lib, row, ours, peers, rounds)
        self.lib.bench_ours_free(handle)
        self.lib.bench_reference_free(reference)
        self.lib.bench_problem_free(problem)
        return result

    def race(self, row, ours, running):
        if not running:
            return 0
        cost = sum(2 * max(self.window, p["expected"]) + 3 * min(max(self.window, p["expected"]), 0.25) for p in running)
        rounds = self.options.rounds or (2 if self.options.quick else max(5 if cost < 60 else 3, min(31, int(self.options.seconds / cost))))
        for number in range(rounds):
            for at in range(len(running)):
                self.pair(row, ours, running[(at + number) % len(running)], number % 2)
        return rounds

    def open(self, row, data, reference, name, open, why):
        from systems import Refused, available

        peer = contender(name, None, None)
        peer["refused"] = why
        if why:
            return peer
        try:
            if 3 * self.lib.bench_kv_bytes(row) > 0.8 * available():
                raise Refused("too little memory for copies of K and V")
            peer["before"], peer["call"], result = open(row, data)
            peer["before"]()
            peer["peak"] = peak_of(peer["call"])
            peer["error"] = self.error(reference, row, result())
            if not peer["error"] <= self.lib.bench_error_limit(row.dtype):
                peer["refused"] = "WRONG RESULT, error %.1e" % peer["error"]
            else:
                self.look(peer)
        except Refused as fault:
            peer["refused"] = str(fault)
        except MemoryError:
            peer["refused"] = "no memory"
        return peer


def contender(name, before, call):
    return {"name": name, "before": before, "call": call, "refused": None, "expected": 0, "error": None, "peak": None, "work": 0,
            "seconds": [], "fraction": [], "of_reads": [], "ratios": []}


# ---- reporting ----------------------------------------------------------------------------------------------------------------------


def middle(values):
    values = [v for v in values if v is not None]
    return float(np.median(values)) if values else None


def summary(lib, row, ours, peers, rounds):
    """The same form as attn_bench's JSON."""
    flop, bytes_, rows = lib.bench_flop(row), lib.bench_kv_bytes(row), []
    for c in [ours] + peers:
        entry = {"name": c["name"], "variant": False, "threads": row.threads}
        if c["refused"]:
            entry["refused"] = c["refused"]
        elif c["seconds"]:
            seconds = middle(c["seconds"])
            entry.update(rounds=len(c["seconds"]), seconds=seconds, seconds_each=c["seconds"], flop_per_second=flop / seconds, of_burst=middle(c["fraction"]),
                         work_bytes=c["work"], peak_bytes=c["peak"], error=c["error"])
            if lib.bench_is_cold(row):
                entry.update(kv_bytes_per_second=bytes_ / seconds, of_reads=middle(c["of_reads"]))
            if c is not ours:
                entry.update(attn_speedup=middle(c["ratios"]), attn_speedup_quartiles=[float(np.quantile(c["ratios"], x)) for x in (0.25, 0.75)],
                             attn_time_ratio=1 / middle(c["ratios"]))
        rows.append(entry)
    return {"row": row.name.decode(), "group": row.group.decode(), "flop": flop, "kv_bytes": bytes_, "rounds": rounds, "contenders": rows}


def show(result):
    print("%s  %.3f GFLOP, %d rounds" % (result["row"], result["flop"] * 1e-9, result["rounds"]))
    for c in result["contenders"]:
        if "seconds" not in c:
            print("    %-44s %s" % (c["name"], c.get("refused", "not timed: nobody to pair with")))
            continue
        text = "    %-44s %11.3f us  %7.1f GFLOP/s" % (c["name"], c["seconds"] * 1e6, c["flop_per_second"] * 1e-9)
        text += "  of FMA %.3f" % c["of_burst"] if c["of_burst"] else ""
        text += "  K+V %.1f GB/s" % (c["kv_bytes_per_second"] * 1e-9) if "kv_bytes_per_second" in c else ""
        text += "  of reads %.3f" % c["of_reads"] if c.get("of_reads") else ""
        if "attn_speedup" in c:
            text += "  attn is %.2fx [%.2f..%.2f]" % (c["attn_speedup"], *c["attn_speedup_quartiles"])
        text += "  workspace %.2f MiB" % (c["work_bytes"] / 2**20) if c["work_bytes"] else ""
        text += "  peak %.1f MiB" % (c["peak_bytes"] / 2**20) if c["peak_bytes"] is not None else ""
        print(text + "  error %.1e" % c["error"])
    sys.stdout.flush()


def cpu():
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "not known"


def rows_of(lib, options):
    table = ctypes.POINTER(Row)()
    count = lib.bench_rows(os.fsencode(options.table), ctypes.byref(table))
    for row in table[:count]:
        if row.group != b"inspect" and (row.group == b"quick") == options.quick and row.threads == options.threads:
            if not options.only or lib.bench_matches(row.name, options.only.encode()):
                yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", help="only rows whose name contains this, or matches it as a glob")
    parser.add_argument("--seconds", type=float, default=10, help="for each row, about; at least 5 rounds")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="small rows, 2 rounds: shows that it works, measures nothing")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--table", default=os.path.join(HERE, "shapes.txt"))
    options = parser.parse_args()
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < options.threads:
        parser.error("--threads is %d, but there are %d processors" % (options.threads, len(processors)))
    os.sched_setaffinity(0, processors[:options.threads])  # before any system starts its threads
    os.environ.pop("OPENBLAS_CORETYPE", None)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    bench = Bench(options)
    if options.list:
        for row in rows_of(bench.lib, options):
            print(row.name.decode())
        return 0
    from systems import systems

    others = systems()
    report = {"version": bench.attn.attn_version_text().decode(), "cpu": cpu(), "date": time.strftime("%Y-%m-%d", time.gmtime()),
              "systems": [name for name, *_ in others], "rows": []}
    wrong = 0
    for row in rows_of(bench.lib, options):
        report["rows"].append(bench.measure(row, others))
        show(report["rows"][-1])
        wrong |= "refused" in report["rows"][-1]["contenders"][0]
        if options.json:
            with open(options.json, "w") as file:
                json.dump(report, file, indent=1)
    if not report["rows"]:
        print("peers: no row matches", file=sys.stderr)
        return 2
    return wrong


if __name__ == "__main__":
    sys.exit(main())
