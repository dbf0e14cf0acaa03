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

# build FOLDER [target]: goes on after a fault, so that one run shows them all.
build() { cmake --build "$1" -j "$jobs" ${2:+--target "$2"} -- -k 0 | grep -v "^\[" || [ "${PIPESTATUS[0]}" = 0 ]; }

# The tree's own build, which other checks look at.
build_main() {
    configure build -DATTN_BUILD_TESTS=ON "$@"
    build build
}

# expect_isa FILE: of the names in ATTN_EXPECT_ISA, FILE says of none that it was skipped.
expect_isa() {
    local name
    for name in ${ATTN_EXPECT_ISA//,/ }; do
        if grep -qi "^skipped: *$name\b" "$1"; then echo "the instruction set $name was skipped, and should be usable here"; return 1; fi
    done
}

# run_ctest FOLDER [ctest options]: runs and counts the single tests of cmocka and of the command's cases, whole programs where not.
run_ctest() {
    local folder=$1 rc=0 log=$1/Testing/Temporary/LastTest.log
    shift
    rm -f "$log"
    ctest --test-dir "$folder" -j "$jobs" --no-tests=error "$@" || rc=$?
    [ -f "$log" ] || return 1
    grep -i '^skipped: ' "$log" | sort -u || true
    expect_isa "$log" || rc=1
    awk '/^[0-9]+\/[0-9]+ Testing: /{program = $3; cmocka = 0}
         /^\[ +(OK|FAILED|SKIPPED) +\] [A-Za-z_]/ {cmocka = 1; one[program " " $0] = $2}
         /^[0-9]+ passed, [0-9]+ failed/ {cmocka = 1; n["OK"] += $1; n["FAILED"] += $3; if ($3) known[program]}
         /^Test (Passed|Failed)/ {if (!cmocka) one[program] = $2 == "Passed." ? "OK" : "FAILED"; else if ($2 != "Passed.") bad[program]}
         END {for (t in one) {n[one[t]]++; if (one[t] == "FAILED") {split(t, w, " "); known[w[1]]}}
              for (t in bad) if (!(t in known)) n["FAILED"]++ # failed without a failing test: a leak, a race, a crash
              print "count: " n["OK"] + 0, n["FAILED"] + 0, n["SKIPPED"] + 0}' "$log"
    return $rc
}

# run_pytest VENV NAME FOLDER: runs and counts the tests of a folder; their output stays in build/checks/NAME.out.
run_pytest() {
    local rc=0 out=build/checks/$2.out
    OPENBLAS_NUM_THREADS=1 "$1/bin/python" -m pytest -q -ra -p no:cacheprovider "$3" 2>&1 | tee "$out" || rc=$?
    tail -n 1 "$out" | awk '{
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) p = $(i - 1)
            if ($i ~ /^(failed|error)/) f += $(i - 1)
            if ($i ~ /^(skipped|xfailed)/) s += $(i - 1)
        }
        print "count: " p + 0, f + 0, s + 0 }'
    return $rc
}

# A folder that goes away with the check.
scratch() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
}
