#!/bin/bash
# setup.sh: makes sure that what the build (or the tests) need is there, and installs what is missing.
# SPDX-License-Identifier: MIT
#
# usage: setup.sh build | test
#
# Says what it installs before it does, never asks. Where it may not install, it names what is missing and exits with 1. When
# nothing is missing it looks and leaves: no package list is fetched.
set -u
cd "$(dirname "$0")/.." || exit 1
what=${1:-build}

have() { command -v "$1" > /dev/null 2>&1; }
header() { have cc && echo "#include <$1>" | cc -E - > /dev/null 2>&1; }
module() { have pkg-config && pkg-config --exists "$1"; }
cmake_is_new() { have cmake && printf '3.25\n%s\n' "$(cmake --version | sed -n '1s/[^0-9]*//p')" | sort -CV; }

# Each line: Debian package, then how to tell that it (or the same from elsewhere) is there.
build_needs='
gcc                   have cc
libc6-dev             header stdio.h
cmake                 cmake_is_new
ninja-build           have ninja
pkg-config            have pkg-config
libopenblas-dev       module openblas
libjansson-dev        module jansson
libzip-dev            module libzip
libpng-dev            module libpng
'
test_needs='
g++                   have g++
clang-19              have clang-19
clang-format-19       have clang-format-19
libclang-rt-19-dev    test -e /usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.fuzzer-x86_64.a -o "$(uname -m)" != x86_64
libcmocka-dev         module cmocka
gcc-aarch64-linux-gnu have aarch64-linux-gnu-gcc
libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/include/stdio.h
qemu-user             have qemu-aarch64
mandoc                have mandoc
zsh                   have zsh
fish                  have fish
locales               test -e /usr/share/i18n/locales/de_DE
chromium-headless-shell have chromium-headless-shell || have chromium || have google-chrome
fonts-dejavu-core     test -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf
python3               have python3
python3-venv          python3 -c "import venv,ensurepip"
ca-certificates       test -e /etc/ssl/certs/ca-certificates.crt
'

missing_packages() {
    echo "$1" | while read -r package probe; do
        [ -z "$package" ] || eval "$probe" > /dev/null 2>&1 || echo "$package"
    done
}

install_packages() {
    local needs=$1 missing sudo=
    missing=$(missing_packages "$needs" | xargs)
    [ -n "$missing" ] || return 0
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    if ! have apt-get || { [ -n "$sudo" ] && ! sudo -n true 2> /dev/null; }; then
        echo "setup: missing: $missing" >&2
        echo "setup: these are names of Debian 12 packages; nothing can be installed from here (no apt-get, or neither root nor sudo" >&2
        echo "setup: without a password). Get them with:  apt-get install $missing" >&2
        return 1
    fi
    echo "setup: installing the Debian packages: $missing"
    $sudo apt-get -qq update || echo "setup: apt-get update failed; trying with the package lists that are there" >&2
    $sudo env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get -qq -y -o Dpkg::Use-Pty=0 install --no-install-recommends \
        $missing < /dev/null > /dev/null || {
        echo "setup: apt-get could not install them; by hand:  apt-get install $missing" >&2
        return 1
    }
    missing=$(missing_packages "$needs" | xargs)
    [ -z "$missing" ] || { echo "setup: installed, but still not usable: $missing" >&2; return 1; }
}

# The stamp is a copy of the list that was installed; an interpreter that moved or a changed list starts anew.
install_python() {
    local list=scripts/requirements.txt
    cmp -s $list .venv/requirements.txt && .venv/bin/python -c 'import numpy, ml_dtypes, pytest, hypothesis, PIL' 2> /dev/null && return 0
    echo "setup: installing Python packages into .venv/: $(grep -v '^#' $list | xargs)"
    rm -rf .venv
    python3 -m venv .venv && .venv/bin/python -m pip install -q --disable-pip-version-check -r $list && cp $list .venv/requirements.txt || {
        echo "setup: pip could not install them; the tests need: $(grep -v '^#' $list | xargs)" >&2
        return 1
    }
}

case $what in
build) install_packages "$build_needs" ;;
test) install_packages "$build_needs$test_needs" && install_python ;;
*) echo "usage: setup.sh build | test" >&2; exit 2 ;;
esac
