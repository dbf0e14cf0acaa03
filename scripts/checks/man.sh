#!/bin/bash
# the manual pages are well formed, and attn(3) names every function
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
ls man/*.1
# Pages that are not installed are not found; all else that mandoc says is a fault.
said=$(mandoc -T lint man/*.[137] | grep -v 'STYLE: referenced manual not found' || true)
[ -z "$said" ] || { echo "$said"; exit 1; }
# attn(3) names every function of the headers.
for name in $(grep -hE '^ATTN_API ' include/attn/*.h | grep -oE 'attn_[a-z_]+\(' | tr -d '('); do
    grep -qE "^\.F[no] $name( |$)" man/attn.3 || { echo "attn.3 does not name $name"; exit 1; }
done
