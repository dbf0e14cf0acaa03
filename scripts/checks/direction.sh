#!/bin/bash
# each folder includes only what it may see
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
rc=0

# allow FILES PATTERN: every #include of the project's own in FILES matches PATTERN. Own: "..." and <attn/...>.
allow() {
    local files=$1 pattern=$2 bad
    bad=$(grep -HnE '^ *# *include *("|<attn/)' $files 2> /dev/null | grep -vE "include *($pattern)") || return 0
    echo "$bad"
    echo "    ^ may include only: $pattern"
    rc=1
}
# Kernels see the kernel contract and each other's templates; no tensors, masks, heads or threads.
allow 'src/kernels/*.c src/kernels/*.h' '"(\.\./)?kernel\.h"|"[a-z0-9_]+\.h"'
for file in $(grep -hoE '^ *# *include *"[^"]+"' src/kernels/*.[ch] | sed 's/.*"\(.*\)"/\1/' | sort -u); do
    [ "${file##*/}" = kernel.h ] || [ -f "src/kernels/$file" ] || { echo "src/kernels includes $file, which is not of its own"; rc=1; }
done
allow 'src/kernel.h' '"kernels\.inc"'
allow 'src/internal.h' '"kernel\.h"|"kernels\.inc"|<attn/attn\.h>'
allow 'src/*.c' '"internal\.h"|"kernel\.h"|"kernels\.inc"|<attn/attn\.h>'
# The reader knows nothing of attention.
allow 'io/*.c io/*.h' '"[a-z0-9_]+\.h"'
for file in $(grep -hoE '^ *# *include *"[^"]+"' io/*.[ch] | sed 's/.*"\(.*\)"/\1/' | sort -u); do
    [ -f "io/$file" ] || { echo "io includes $file, which is not of its own"; rc=1; }
done
# Layer and command see the public headers, the reader, and themselves.
for folder in layer cli; do
    for file in $(grep -hoE '^ *# *include *"[^"]+"' $folder/*.[ch] | sed 's/.*"\(.*\)"/\1/' | sort -u); do
        case $file in
        npy.h | io/npy.h | ../io/npy.h) ;;
        page_html.h) ;; # made from cli/page.html
        */*) echo "$folder includes $file, which it may not see"; rc=1 ;;
        *) [ -f "$folder/$file" ] || { echo "$folder includes $file, which it may not see"; rc=1; } ;;
        esac
    done
done
allow 'layer/*.c layer/*.h cli/*.c cli/*.h' '"|<attn/attn(_layer)?\.h>'
allow 'include/attn/attn.h' 'nothing of ours'
allow 'include/attn/attn_layer.h' '<attn/attn\.h>|"attn\.h"'
# The bench measures what users can call.
allow 'bench/*.c' '<attn/attn\.h>|"[a-z0-9_]+\.h"'
if grep -nE '#include *<(cblas|jansson|zip|png|cmocka)' src/*.[ch] src/kernels/*.[ch] include/attn/attn.h; then
    echo "the core sees a library besides libc, libm and threads"
    rc=1
fi
exit $rc
