#!/bin/bash
# an installed and then moved tree is used by CMake and by pkg-config; the command and manual pages are there
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
build_main
scratch
cmake --install build --prefix "$work/first" > /dev/null
mv "$work/first" "$work/moved"
prefix=$work/moved
grep -rIl "$work/first\|$PWD" "$prefix" && { echo "installed files name the build or install folder"; exit 1; }

cat > "$work/app.c" << 'END'
#include <attn/attn.h>
#include <attn/attn_layer.h>
#include <stdio.h>
int main(void)
{
    float q[] = {1, 0}, k[] = {1, 0, 0, 1}, v[] = {10, 0, 0, 10}, out[2] = {0};
    attn_desc d = attn_desc_new();
    d.batch = d.heads = d.kv_heads = d.queries = 1, d.keys = d.dim = d.value_dim = 2;
    d.q = attn_in_dense(q, ATTN_F32, 1, 1, 2), d.k = attn_in_dense(k, ATTN_F32, 1, 2, 2);
    d.v = attn_in_dense(v, ATTN_F32, 1, 2, 2), d.out = attn_out_dense(out, ATTN_F32, 1, 1, 2);
    if (attn_run(&d, NULL) != ATTN_OK) return 1;
    printf("%.3f %.3f %s\n", out[0], out[1], attn_version_text());
    return 0;
}
END
cat scripts/checks/install_layer.c > "$work/layer.c"
cat > "$work/CMakeLists.txt" << 'END'
cmake_minimum_required(VERSION 3.16)
project(user C)
find_package(attn 0.1 REQUIRED COMPONENTS layer)
add_executable(core app.c)
target_link_libraries(core attn::attn)
add_executable(core_static app.c)
target_link_libraries(core_static attn::attn_static)
add_executable(layer layer.c)
target_link_libraries(layer attn::layer)
add_executable(layer_static layer.c)
target_link_libraries(layer_static attn::layer_static)
END
cmake -S "$work" -B "$work/out" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/out" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
version=$(sed -n 's/^#define ATTN_VERSION *"\(.*\)"/\1/p' include/attn/attn.h)
want="6.698 3.302 $version"
for program in core core_static; do
    got=$("$work/out/$program")
    [ "$got" = "$want" ] || { echo "$program printed '$got', want '$want'"; exit 1; }
done
"$work/out/layer" && "$work/out/layer_static"
echo "find_package: attn::attn, attn::layer, both static ones"

export PKG_CONFIG_PATH=$(find "$prefix" -name pkgconfig)
lib=$(pkg-config --variable=libdir attn)
[ "$(pkg-config --modversion attn)" = "$version" ]
gcc "$work/app.c" $(pkg-config --cflags --libs attn) -Wl,-rpath,"$lib" -o "$work/core"
[ "$("$work/core")" = "$want" ]
gcc -static "$work/app.c" $(pkg-config --static --cflags --libs attn) -o "$work/core_static"
[ "$("$work/core_static")" = "$want" ]
gcc "$work/layer.c" $(pkg-config --cflags --libs attn_layer) -Wl,-rpath,"$lib" -o "$work/layer"
"$work/layer"
echo "pkg-config: attn, attn static, attn_layer"

[ "$("$prefix/bin/attn" --version 2>&1 | grep -c "$version")" = 1 ] || { echo "the installed command does not say its version"; exit 1; }
for page in man/*.[137]; do
    find "$prefix" -name "${page##*/}" | grep -q . || { echo "$page is not installed"; exit 1; }
done
for file in bash-completion/completions/attn zsh/site-functions/_attn fish/vendor_completions.d/attn.fish; do
    grep -q 'attn completion' "$prefix/share/$file" || { echo "$file is not installed"; exit 1; }
done
