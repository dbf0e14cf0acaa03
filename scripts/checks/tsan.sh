#!/bin/bash
# the threaded C tests under the thread sanitizer
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
cmake --preset tsan > build/checks/tsan.configure 2>&1 || { cat build/checks/tsan.configure; exit 1; }
build build-tsan
ATTN_TEST_SCALE=${ATTN_TEST_SCALE:-0.1} run_ctest build-tsan -R '^test_(operator|same_bits|contract|failures|threads|layer)'
