#!/bin/bash
# the Python tests: the module against an independent float64 oracle, vectors, cases, random options
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
rc=0
OPENBLAS_NUM_THREADS=1 .venv/bin/python -m pytest -q -ra -p no:cacheprovider tests/python 2>&1 | tee build/checks/pytest.out || rc=$?
tail -n 1 build/checks/pytest.out | awk '{
    for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) p = $(i - 1)
        if ($i ~ /^(failed|error)/) f += $(i - 1)
        if ($i ~ /^(skipped|xfailed)/) s += $(i - 1)
    }
    print "count: " p + 0, f + 0, s + 0 }'
exit $rc
