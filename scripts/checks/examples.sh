#!/bin/bash
# the examples in the headers and in README.md compile, run and give what they say
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
scratch
flags='-Iinclude -std=c11 -Wall -Wextra -Werror'
libs='build/libattn_layer.so build/libattn.so -Wl,-rpath,build -lm'

# Blocks "@example NAME ... @end" of header comments become NAME.c.
awk -v folder="$work" '
    /@example /{name = folder "/" $NF ".c"; next}
    /@end/{name = ""; next}
    name {sub(/^ \* ?/, ""); print > name}' include/attn/*.h
ls "$work"/*.c > /dev/null
[ -f "$work/decode.c" ] && [ -f "$work/padded.c" ] || { echo "attn.h has lost its examples decode and padded"; exit 1; }
for source in "$work"/*.c; do
    name=$(basename "$source" .c)
    if grep -q '\bmain *(' "$source"; then
        gcc $flags "$source" $libs -o "$work/$name"
        "$work/$name" | tee "$work/$name.out"
    else
        gcc $flags -fPIC -shared -Wl,-z,defs "$source" $libs -o "$work/lib$name.so"
    fi
    gcc $flags -std=c99 -fsyntax-only "$source"
    g++ -Iinclude -std=c++17 -Wall -Wextra -fsyntax-only -x c++ "$source"
    echo "example $name: compiles as C99, C11 and C++17, and links"
done
[ "$(tr '\n' ' ' < "$work/weights.out")" = '6.698 3.302 3.302 6.698 ' ] || { echo "the example weights of attn_layer.h prints something else"; exit 1; }
[ "$(cat "$work/plan.out")" = '16.0 times as fast as one thread, 2.0 flop per byte' ] || { echo "the example plan of attn.h prints something else"; exit 1; }
# Those of attn.h are called, and their results compared with the formula.
gcc $flags scripts/checks/examples.c "$work/decode.c" "$work/padded.c" "$work/gradients.c" "$work/inspect.c" $libs -o "$work/call"
"$work/call" | tee "$work/call.out"
[ "$(tail -n 3 "$work/call.out" | tr '\n' ',')" = 'entropy 0.634 nats,key 0: 0.670,key 1: 0.330,' ] || { echo "the example inspect of attn.h prints something else"; exit 1; }

# The program under examples/ on the layer that lies beside it.
gcc $flags examples/layer.c $libs -o "$work/layer_program"
tail -c 26112 examples/minilm-layer.safetensors | "$work/layer_program" examples/minilm-layer.safetensors 5 11 > "$work/heads"
grep -qx 'head 7: token 11 looks most at token 8, weight 0.609' "$work/heads"
echo "examples/layer.c: prints what its comment says"

# README.md: the first C block runs; what it prints stands in the block after it.
awk '/^```c$/{on = 1; next} /^```/{if (on) exit} on' README.md > "$work/readme.c"
[ "$(wc -l < "$work/readme.c")" -le 25 ] || { echo "the C example of README.md has more than 25 lines"; exit 1; }
gcc $flags "$work/readme.c" $libs -o "$work/readme"
awk '/^```c$/{seen = 1} seen && /^```text$/{on = 1; next} /^```/{if (on) exit} on' README.md > "$work/want"
"$work/readme" | diff -u "$work/want" -
echo "README.md: its example prints what it says"
