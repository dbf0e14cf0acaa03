#!/bin/bash
# check.sh: runs the promises of this project by name.
# SPDX-License-Identifier: MIT
#
# usage: check.sh list | all [NAME ...] | NAME ...
#
# A check is scripts/checks/NAME.sh; its second line says what it proves. Logs lie in build/checks/. The last line sums every test of every
# suite: "N passed, N failed". Environment:
#     ATTN_TEST_DATA    folder of further test data (default ../shared where that exists)
#     ATTN_EXPECT_ISA   instruction sets that must be usable here (default: read from /proc/cpuinfo, apart from the library's own detection)
#     ATTN_FUZZ_SECONDS seconds for all fuzz targets together (default 60)
set -u
cd "$(dirname "$0")/.." || exit 1

# What installs hundreds of megabytes is asked for by name.
asked='frameworks'
# Cheap ones first: a fault should show early.
order='style format direction gcc symbols headers ctest examples python page wheel plain install man bench clang loops aarch64 oldx86 asan tsan fuzz'

sentence() { sed -n '2s/^# //p' "scripts/checks/$1.sh"; }

if [ -z "${ATTN_TEST_DATA:-}" ] && [ -d ../shared ]; then ATTN_TEST_DATA=../shared; fi
if [ -n "${ATTN_TEST_DATA:-}" ]; then
    ATTN_TEST_DATA=$(realpath -e "$ATTN_TEST_DATA") || { echo "check: ATTN_TEST_DATA names no folder" >&2; exit 2; }
    export ATTN_TEST_DATA
fi

expected_isa() {
    local flags names=scalar
    flags=" $(sed -n '/^flags/{s/.*: //p;q}' /proc/cpuinfo 2> /dev/null) "
    all() { for f; do [[ $flags == *" $f "* ]] || return 1; done; }
    all avx2 fma f16c && names+=,avx2
    all avx512f avx512bw avx512dq avx512vl && names+=,avx512
    all avx512f avx512bw avx512dq avx512vl avx512_bf16 && names+=,avx512bf16
    [ "$(uname -m)" = aarch64 ] && names+=,neon
    echo "$names"
}
export ATTN_EXPECT_ISA=${ATTN_EXPECT_ISA-$(expected_isa)}
export ATTN_JOBS=${ATTN_JOBS:-$(nproc)} CTEST_OUTPUT_ON_FAILURE=1 LC_ALL=C.UTF-8

passed=0 failed=0 skipped=0 broken=

# A check that runs suites of tests says "count: P F S" for each; any other is one test.
run() {
    local name=$1 log=build/checks/$1.log start=$SECONDS rc p f s
    printf '%-10s %s ... ' "$name" "$(sentence "$name")"
    bash "scripts/checks/$name.sh" > "$log" 2>&1 < /dev/null
    rc=$?
    read -r p f s < <(awk '/^count: /{p += $2; f += $3; s += $4; n = 1} END {if (n) print p + 0, f + 0, s + 0}' "$log")
    if [ -z "${p:-}" ]; then p=0 f=0 s=0; [ $rc = 0 ] && p=1; fi
    [ $rc = 0 ] || [ "$f" -gt 0 ] || f=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ $rc = 0 ] && [ "$f" = 0 ]; then
        echo "ok, $((SECONDS - start)) s$([ "$p" -le 1 ] || echo ", $p tests")$([ "$s" = 0 ] || echo ", $s skipped")"
        grep -i '^ *[0-9: ]*skipped: ' "$log" | sort | uniq -c | sed 's/^ */           /'
    else
        echo "FAILED, $((SECONDS - start)) s"
        tail -n 150 "$log" | sed 's/^/    | /'
        echo "    whole log: $log"
        broken+=" $name"
    fi
}

[ $# -gt 0 ] || { sed -n '5p' "$0" | sed 's/^# //' >&2; exit 2; }
if [ "$1" = list ]; then
    for name in $order $asked; do printf '%-10s %s\n' "$name" "$(sentence "$name")"; done
    exit 0
fi
if [ "$1" = all ]; then
    shift
    for name in $asked; do
        [[ " $* " == *" $name "* ]] || echo "left out: $name, $(sentence "$name"): make test-$name"
    done
    set -- $order "$@"
fi
for name; do
    [ -f "scripts/checks/$name.sh" ] || { echo "check: no check is named $name; there are: $order $asked" >&2; exit 2; }
done
mkdir -p build/checks
echo "test data: ${ATTN_TEST_DATA:-none but what the project carries}"
echo "instruction sets expected here: $ATTN_EXPECT_ISA"
for name; do run "$name"; done
[ -z "$broken" ] || echo "failed checks:$broken"
echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
[ -z "$broken" ]
