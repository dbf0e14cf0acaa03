#!/bin/bash
# the shared libraries export exactly the listed symbols and need only the listed libraries
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
rc=0
for name in attn attn_layer; do
    nm -D --defined-only build/lib$name.so | awk '{print $3}' | sort | diff -u <(grep -v '^#' cmake/$name.symbols | sort) - ||
        { echo "lib$name.so does not export what cmake/$name.symbols lists"; rc=1; }
    readelf -d build/lib$name.so | grep -q "SONAME.*\[lib$name\.so\.0\]" || { echo "lib$name.so: wrong SONAME"; rc=1; }
done
needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort | xargs; }
case " $(needed build/libattn.so) " in
" libc.so.6 libm.so.6 " | " libc.so.6 " | " libc.so.6 libm.so.6 libpthread.so.0 " | " ld-linux-x86-64.so.2 libc.so.6 libm.so.6 ") ;;
*) echo "libattn.so needs: $(needed build/libattn.so)"; rc=1 ;;
esac
for lib in $(needed build/libattn_layer.so); do
    case $lib in
    libattn.so.0 | libc.so.6 | libm.so.6 | libjansson.so.* | libopenblas.so.* | libblas.so.* | libcblas.so.*) ;;
    *) echo "libattn_layer.so needs $lib"; rc=1 ;;
    esac
done
# Archives: every symbol that others see carries the library's name, so that it meets no other's.
nm -g --defined-only build/libattn.a | awk 'NF == 3 {print $3}' | grep -v '^attn_' && { echo "libattn.a defines global names without attn_"; rc=1; }
exit $rc
