#!/bin/bash
# everything builds with clang-19, no warning, and the C tests pass
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
configure build-clang -DCMAKE_C_COMPILER=clang-19 -DATTN_BUILD_TESTS=ON -DATTN_WERROR=ON
build build-clang
ATTN_TEST_SCALE=${ATTN_TEST_SCALE:-0.3} run_ctest build-clang
