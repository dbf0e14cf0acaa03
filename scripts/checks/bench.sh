#!/bin/bash
# the bench builds without a warning and its quick rows give right results
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
build build attn_bench
env -u OPENBLAS_CORETYPE build/attn_bench --quick
