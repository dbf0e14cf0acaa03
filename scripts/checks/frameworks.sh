#!/bin/bash
# the Python package inside PyTorch and other frameworks, which it installs into .venv-frameworks/
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
build build attn_bench_shared
venv=.venv-frameworks list=tests/frameworks/requirements.txt
cmp -s $list $venv/requirements.txt || {
    rm -rf $venv
    python3 -m venv $venv
    $venv/bin/python -m pip install -q --disable-pip-version-check -r $list
    cp $list $venv/requirements.txt
}
[ "${1:-}" = install ] || run_pytest $venv frameworks tests/frameworks
