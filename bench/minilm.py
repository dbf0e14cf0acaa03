"""minilm.py: a real model (all-MiniLM-L6-v2) through transformers, on libattn, PyTorch's sdpa and eager attention, in one interleaved run.
SPDX-License-Identifier: MIT

usage: minilm.py [--threads N] [--rounds N] [--quick] [--json FILE]

Each round runs every attention once on every batch, in an order that turns; times are medians, and ratios those of the medians.
The embeddings are compared with eager's first. The exit status is 1 if one of them is more than 1e-5 off, or the time with libattn is more
than 1.05 times sdpa's on the batch of sentences (not with --quick, which only shows that it works).
"""
import argparse
import json
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "python"), os.path.join(HERE, "..", "tests", "frameworks")]
SYSTEMS = ("libattn", "sdpa", "eager")
MOST = 1.05


def batches(models, quick):
    """Name and inputs: a padded batch of sentences, one alone, a large batch, and texts without padding."""
    sentences = models.sentences()
    yield "8 sentences", sentences
    if quick:
        return
    yield "1 sentence", {name: tensor[:1, :int(sentences["attention_mask"][0].sum())] for name, tensor in sentences.items()}
    yield "64 sentences", {name: tensor.repeat(8, 1) for name, tensor in sentences.items()}
    for length in (128, 512):
        ids = sentences["input_ids"].flatten()[sentences["attention_mask"].flatten() == 1].repeat(20)[:4 * length].view(4, length)
        yield "4 texts of %d tokens" % length, {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}


def race(loaded, inputs, embed, rounds):
    """Seconds of each system in each round."""
    seconds = {name: [] for name in SYSTEMS}
    for turn in range(rounds + 1):
        for place in range(len(SYSTEMS)):
            name = SYSTEMS[(turn + place) % len(SYSTEMS)]
            begin = time.perf_counter()
            embed(loaded[name], inputs)
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    os.environ["ATTN_NUM_THREADS"] = str(options.threads)
    import models
    import torch
    import transformers

    import attn.hf

    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    attn.hf.register()
    loaded = {name: models.minilm(name) for name in SYSTEMS}
    report = {"torch": torch.__version__, "transformers": transformers.__version__, "threads": options.threads, "batches": []}
    bad = False
    for name, inputs in batches(models, options.quick):
        want = models.embed(loaded["eager"], inputs)
        error = float((models.embed(loaded["libattn"], inputs) - want).abs().max())
        seconds = race(loaded, inputs, models.embed, 2 if options.quick else options.rounds)
        seconds = {key: statistics.median(value) for key, value in seconds.items()}
        ratio = {other: seconds["libattn"] / seconds[other] for other in SYSTEMS[1:]}
        bad |= error > 1e-5 or (not options.quick and name == "8 sentences" and ratio["sdpa"] > MOST)
        report["batches"].append({"name": name, "shape": list(inputs["input_ids"].shape), "error": error, "ratio": ratio,
                                  "seconds": seconds})
        print("%-22s %2d x %3d  %s  libattn/sdpa %.3f  libattn/eager %.3f  error %.1e" % (
            name, *inputs["input_ids"].shape, "  ".join("%s %8.2f ms" % (key, 1e3 * value) for key, value in seconds.items()),
            ratio["sdpa"], ratio["eager"], error), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=1)
    return bad


if __name__ == "__main__":
    sys.exit(main())
