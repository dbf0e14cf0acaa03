#!/bin/bash
# the core builds without a build system or any flag, with gcc and clang, and gives the same bits on every instruction set
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
scratch
cp scripts/checks/checksum.c "$work/app.c"
for compiler in gcc clang-19; do
    $compiler -Iinclude "$work/app.c" src/*.c src/kernels/*.c -lm -lpthread -o "$work/plain-$compiler"
    "$work/plain-$compiler" > "$work/plain-$compiler.sums"
done
gcc -Iinclude "$work/app.c" build/libattn.so -Wl,-rpath,build -o "$work/shared"
gcc -Iinclude "$work/app.c" build/libattn.a -lm -lpthread -o "$work/static"
"$work/shared" | tee "$work/want"
for name in static plain-gcc plain-clang-19; do
    [ -f "$work/$name.sums" ] || "$work/$name" > "$work/$name.sums"
    diff -u "$work/want" "$work/$name.sums" || { echo "$name: other bits than the library that CMake built"; exit 1; }
done
for name in ${ATTN_EXPECT_ISA//,/ }; do
    grep -q "^$name " "$work/want" || { echo "the instruction set $name is not usable, and should be here"; exit 1; }
done
