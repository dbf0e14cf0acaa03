#!/bin/sh
# sources.sh: lists the C sources and headers of the project, one a line.
# SPDX-License-Identifier: MIT
cd "$(dirname "$0")/.." || exit 1
find include src layer io cli tests bench examples scripts -name '*.[ch]' | sort
