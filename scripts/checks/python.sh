#!/bin/bash
# the Python tests: the package against an independent float64 oracle, vectors, cases, random options
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
run_pytest .venv pytest tests/python
