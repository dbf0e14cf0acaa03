#!/bin/bash
# C sources are formatted as .clang-format says (clang-format-19)
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
scripts/sources.sh | xargs clang-format-19 --dry-run -Werror
