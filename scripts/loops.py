"""loops.py: the loops of tile.h that do the work, as a compiler made them: no vector goes to the stack and comes back, nothing is called.

SPDX-License-Identifier: MIT

usage: loops.py OBJECT..

Looked at are the functions score_N and value_N (N vectors of queries) and whole_N (N queries): of their innermost loops that do nothing to vectors but
move and multiply-add those with the most multiply-adds. Loops that leave keys out blend or have a mask: they stand only at the edges of what is
seen, and may spill where
registers are few.
"""

import re
import subprocess
import sys

FUNCTION = re.compile(r"^[0-9a-f]+ <((?:score|value|whole)_\d+)>:")
LINE = re.compile(r"^ *([0-9a-f]+):\s+(.*)")
BACK = re.compile(r"^j[a-z]+ +([0-9a-f]+)")
OTHER = re.compile(r"^v(?!mov|p?broadcast|fmadd|dpbf16|prefetch)|\{%k[1-7]\}")  # arithmetic besides the product


def functions(path):
    """Name and instructions, address to text, of each of the functions."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True).stdout
    for part in text.split("\n\n"):
        lines = part.strip().split("\n")
        name = FUNCTION.match(lines[0])
        if name:
            yield name[1], {int(m[1], 16): m[2] for m in map(LINE.match, lines[1:]) if m}


def innermost(code):
    """The loops, as lists of instructions, that have no other loop inside."""
    loops = []
    for at, text in code.items():
        jump = BACK.match(text)
        if jump and int(jump[1], 16) <= at:
            loops.append((int(jump[1], 16), at))
    for first, last in loops:
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in loops):
            yield [text for at, text in code.items() if first <= at <= last]


def faults(code):
    """What is wrong with the loops that hold the most multiply-adds, and how many those are."""
    frame = any(re.match(r"mov +%rsp,%rbp", text) for text in code.values())
    stack = re.compile(r"\(%r[sb]p" if frame else r"\(%rsp")
    loops = [loop for loop in innermost(code) if not any(OTHER.search(text) for text in loop)]
    fma = [sum(text.startswith(("vfmadd", "vdpbf16")) for text in loop) for loop in loops]
    most = max(fma, default=0)
    busy = [loop for loop, n in zip(loops, fma) if n == most and n > 0]
    wrong = []
    for loop in busy:
        spills = [text for text in loop if stack.search(text) and re.search(r"%[xyz]mm", text)]
        if len(spills) > most // 24:  # a move out and back in two channels of 24 costs nothing: gcc turns its accumulators around there
            wrong += spills
        wrong += [text for text in loop if text.startswith("call")]
    return wrong, len(busy), most


def main(paths):
    bad = 0
    for path in paths:
        names = 0
        for name, code in functions(path):
            wrong, loops, fma = faults(code)
            names += 1
            print(f"{path}: {name}: {loops} loops of {fma} multiply-adds{': WRONG' if wrong or not loops else ''}")
            for text in wrong:
                print(f"    {text}")
            bad += bool(wrong) or not loops
        if names < 6:
            print(f"{path}: {names} functions score_N and value_N, and there should be 6 or more")
            bad += 1
    return bad != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
