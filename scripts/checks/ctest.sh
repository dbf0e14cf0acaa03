#!/bin/bash
# the C tests: kernels, operator, contract, failures, layer, readers, stored fuzz inputs, command
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
run_ctest build
