# lib.sh: what the checks share; each sources it from the root of the tree.
# SPDX-License-Identifier: MIT
set -eu -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
jobs=${ATTN_JOBS:-2}

# configure FOLDER [cmake options]: quiet unless it fails
configure() {
    local folder=$1
    shift
    mkdir -p "$folder"
    cmake -S . -B "$folder" -G Ninja "$@" > "$folder/configure.log" 2>&1 || { cat "$folder/configure.log"; return 1; }
}

build() { cmake --build "$1" -j "$jobs" ${2:+--target "$2"} | grep -v '^\[' || [ "${PIPESTATUS[0]}" = 0 ]; }

# The tree's own build, which other checks look at.
build_main() {
    configure build -DATTN_BUILD_TESTS=ON "$@"
    build build
}

# run_ctest FOLDER [ctest options]: runs and counts single cmocka tests where there are some, whole programs where not.
run_ctest() {
    local folder=$1 rc=0 log=$1/Testing/Temporary/LastTest.log
    shift
    rm -f "$log"
    ctest --test-dir "$folder" -j "$jobs" --no-tests=error "$@" || rc=$?
    [ -f "$log" ] || return 1
    grep -i '^skipped: ' "$log" | sort -u || true
    awk '/^\[       OK \] [^ ]/{p++; u = 1} /^\[  FAILED  \] [a-zA-Z_]/ && !/test\(s\)/{seen[$4]} /^\[  SKIPPED \] [a-zA-Z_]/ && !/test\(s\)/{s++}
         /^Test Passed/{if (!u) p++; u = 0} /^Test Failed/{if (!u) f++; u = 0}
         END {for (name in seen) f++; print "count: " p + 0, f + 0, s + 0}' "$log"
    return $rc
}

# A folder that goes away with the check.
scratch() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
}
