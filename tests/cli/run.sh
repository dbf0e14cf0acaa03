#!/bin/sh
# run.sh: runs the command's cases: NAME.sh must print what NAME.out holds. run.sh [-u] PATH/TO/attn [NAME..]; -u writes the .out files anew.
# SPDX-License-Identifier: MIT
set -u
update=
if [ "${1-}" = -u ]; then update=1; shift; fi
[ $# -ge 1 ] || { echo "usage: run.sh [-u] PATH/TO/attn [NAME..]" >&2; exit 2; }
ATTN=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
[ -x "$ATTN" ] || { echo "$ATTN is no program" >&2; exit 2; }
shift
CASES=$(cd "$(dirname "$0")" && pwd)
export ATTN CASES LC_ALL=C OPENBLAS_NUM_THREADS=1 TERM=xterm-256color
unset NO_COLOR
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
for script in "$CASES"/*.sh; do
    name=$(basename "$script" .sh)
    case $name in run | common) continue ;; esac
    [ $# -eq 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
    mkdir "$work/$name"
    ln -s "$CASES"/data/* "$work/$name" # each case works in a folder of its own that holds the input files
    ln -s "$CASES/../../examples/minilm-layer.safetensors" "$work/$name/minilm.safetensors"
    (cd "$work/$name" && sh -u "$script") > "$work/$name.got" 2>&1
    code=$?
    [ -z "$update" ] || cp "$work/$name.got" "$CASES/$name.out"
    if [ $code -eq 0 ] && diff -u "$CASES/$name.out" "$work/$name.got"; then
        passed=$((passed + 1))
    else
        echo "FAILED $name (exit $code)"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
