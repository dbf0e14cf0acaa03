#!/bin/bash
# everything builds with gcc, no warning
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main -DATTN_WERROR=ON
