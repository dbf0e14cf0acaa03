#!/bin/bash
# the core builds without a build system or any flag, with gcc and clang, and gives the same bits on every instruction set
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
scratch
cp scripts/checks/checksum.c "$work/app.c"
plain() {
    "$1" -Iinclude "$work/app.c" src/*.c src/kernels/*.c -lm -lpthread -o "$work/plain-$1"
    "$work/plain-$1" > "$work/plain-$1.sums"
}
plain gcc &
plain clang-19
wait $!
gcc -Iinclude "$work/app.c" build/libattn.so -Wl,-rpath,build -o "$work/shared"
gcc -Iinclude "$work/app.c" build/libattn.a -lm -lpthread -o "$work/static"
"$work/static" > "$work/static.sums"
"$work/shared" | tee "$work/want"
for name in static plain-gcc plain-clang-19; do
    diff -u "$work/want" "$work/$name.sums" || { echo "$name: other bits than the library that CMake built"; exit 1; }
done
for name in ${ATTN_EXPECT_ISA//,/ }; do
    grep -q "^$name " "$work/want" || { echo "the instruction set $name is not usable, and should be here"; exit 1; }
done
