#!/bin/bash
# the file readers and the descriptor under libFuzzer with sanitizers, from the stored corpus
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
configure build-fuzz -DCMAKE_C_COMPILER=clang-19 -DATTN_BUILD_TESTS=ON -DATTN_FUZZ=ON
targets=$(ls tests/fuzz_*.c | sed 's/.*\/\(.*\)\.c/\1/')
for target in $targets; do build build-fuzz "$target"; done
seconds=$((${ATTN_FUZZ_SECONDS:-60} / $(echo "$targets" | wc -w)))

# New inputs stay in the build folder; those worth keeping are copied into tests/corpus/ by hand.
fuzz() {
    local target=$1 found=build-fuzz/found/$1 log=build-fuzz/$1.log
    mkdir -p "$found" build-fuzz/crashes
    if ASAN_OPTIONS=allocator_may_return_null=1 build-fuzz/tests/"$target" -seed="${ATTN_SEED:-0}" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
        -print_final_stats=1 -verbosity=0 -artifact_prefix="build-fuzz/crashes/$target-" "$found" "tests/corpus/${target#fuzz_}" > "$log" 2>&1; then
        echo "$target: $(sed -n 's/stat::number_of_executed_units: *//p' "$log") inputs in $seconds s"
    else
        tail -n 60 "$log"
        echo "$target failed; the input is in build-fuzz/crashes/"
        return 1
    fi
}
export -f fuzz
export seconds
echo "$targets" | xargs -n 1 -P "$jobs" bash -c 'fuzz "$0"'
