#!/bin/bash
# the manual pages are well formed
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
ls man/*.1
mandoc -T lint -W warning man/*.[137]
