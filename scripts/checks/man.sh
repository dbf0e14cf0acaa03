#!/bin/bash
# the manual pages are well formed, and attn(3) names every function
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
ls man/*.1
mandoc -T lint -W warning man/*.[137]
# attn(3) names every function of the headers.
for name in $(grep -hE '^ATTN_API ' include/attn/*.h | grep -oE 'attn_[a-z_]+\(' | tr -d '('); do
    grep -qE "^\.F[no] $name( |$)" man/attn.3 || { echo "attn.3 does not name $name"; exit 1; }
done
