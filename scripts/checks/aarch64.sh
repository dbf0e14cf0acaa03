#!/bin/bash
# the core on 64-bit ARM, built by the cross compiler and run under qemu, the NEON row included
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
cmake --preset aarch64-qemu > build/checks/aarch64.configure 2>&1 || { cat build/checks/aarch64.configure; exit 1; }
build build-aarch64-qemu
ATTN_EXPECT_ISA=neon,scalar ATTN_TEST_SCALE=${ATTN_TEST_SCALE:-0.3} run_ctest build-aarch64-qemu
