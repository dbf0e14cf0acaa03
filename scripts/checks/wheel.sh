#!/bin/bash
# the Python package: sdist, wheel without network, every library inside it, used where there is NumPy only
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
scratch
root=$PWD
python=$root/.venv/bin/python
export PATH=$root/.venv/bin:$PATH PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1

$python -c 'import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])' "$work/sdist" > "$work/sdist.log"
mkdir "$work/source" && tar -xzf "$work"/sdist/*.tar.gz -C "$work/source" --strip-components=1
for folder in tests docs bench .ci; do
    [ ! -e "$work/source/$folder" ] || { echo "the sdist holds $folder"; exit 1; }
done

# wheel NAME: from the unpacked sdist into $work/NAME, which then holds one py3-none wheel
wheel() {
    (cd "$work/source" && rm -rf build && $python -m pip wheel -q --no-build-isolation --no-deps -w "$work/$1" .)
    [ "$(ls "$work/$1")" = "$(cd "$work/$1" && ls -- libattn-*-py3-none-linux_*.whl)" ]
}
wheel full
auditwheel repair -w "$work/repaired" "$work"/full/*.whl > "$work/repair.log" 2>&1 || { cat "$work/repair.log"; exit 1; }
ls "$work/repaired"/libattn-*-py3-none-manylinux_*.whl
PKG_CONFIG_LIBDIR=/nowhere wheel core # a compiler and CMake, no other library

python3 -m venv "$work/venv"
PIP_NO_INDEX= "$work/venv/bin/pip" install -q "$(grep '^numpy' scripts/requirements.txt)"
for kind in repaired core; do
    "$work/venv/bin/pip" install -q --force-reinstall --no-deps "$work/$kind"/*.whl
    (cd "$work" && "$work/venv/bin/python" "$root/tests/wheel.py" "$kind" "$root")
done
