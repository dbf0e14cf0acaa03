#!/bin/bash
# each public header alone compiles as C99, C11 and C++17 without a warning; no struct has a hole
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
scratch
flags='-Iinclude -Wall -Wextra -Wpedantic -Werror -fsyntax-only'
for header in include/attn/*.h; do
    name=attn/${header##*/}
    printf '#include <%s>\nint main(void) { return 0; }\n' "$name" > "$work/alone.c"
    cp "$work/alone.c" "$work/alone.cpp"
    for std in c99 c11; do
        gcc $flags -std=$std "$work/alone.c"
        clang-19 $flags -std=$std "$work/alone.c"
    done
    g++ $flags -std=c++17 "$work/alone.cpp"
    clang-19 $flags -x c++ -std=c++17 "$work/alone.cpp"
    gcc $flags -std=c11 -Wpadded "$work/alone.c"
    echo "$name: C99, C11, C++17, no padding"
done
