#!/bin/bash
# the C tests under the address and undefined behaviour sanitizers
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
cmake --preset asan-ubsan > build/checks/asan.configure 2>&1 || { cat build/checks/asan.configure; exit 1; }
build build-asan-ubsan
ATTN_TEST_SCALE=${ATTN_TEST_SCALE:-0.2} run_ctest build-asan-ubsan
