#!/bin/bash
# x86-64 CPUs without AVX, and with AVX2 only, under qemu: the best usable row is chosen and no other instruction is met
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
if [ "$(uname -m)" != x86_64 ]; then echo "skipped: the build here is not for x86-64"; exit 0; fi
on() {
    local cpu=$1 isa=$2 rc=0
    ATTN_EXPECT_ISA=$isa ATTN_TEST_SCALE=0.1 qemu-x86_64 -cpu "$cpu" build/tests/qemu_main > "build/checks/$cpu.out" 2>&1 || rc=$?
    grep -v 'TCG doesn' "build/checks/$cpu.out" | sed "s/^skipped: /$cpu lacks: /"
    return $rc
}
on Nehalem scalar
on Haswell scalar,avx2
