#!/bin/bash
# the inner loops of the vector kernels, as gcc and clang-19 made them, neither spill nor call
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
[ "$(uname -m)" = x86_64 ] || { echo "skipped: loops (the instructions looked for are those of x86-64)"; exit 0; }
build_main
configure build-clang -DCMAKE_C_COMPILER=clang-19 -DATTN_BUILD_TESTS=ON -DATTN_WERROR=ON
build build-clang attn_objects
for folder in build build-clang; do
    python3 scripts/loops.py "$folder"/CMakeFiles/attn_objects.dir/src/kernels/avx*.c.o
done
