#!/bin/bash
# the page of attn show in a headless browser: what it holds, hover, clicks, a picture, no errors and no requests
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
run_pytest .venv page tests/page
