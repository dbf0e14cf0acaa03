# types.sh: element types: conversion before the run, the result's type, what is refused
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
S=small.safetensors
W=want.safetensors
for dtype in f32 f16 bf16; do
    agrees $dtype --dtype $dtype
    "$ATTN" run $S:q $S:k $S:v --dtype $dtype -o out.npy
    "$ATTN" check $S:q $S:k $S:v --dtype $dtype --against out.npy -q --tolerance 0,0
done 2>&1 | sed -E 's/[0-9.]+ ms, [a-z0-9]+, [0-9]+ threads?$/TIME/' | grep -v '^largest'
echo "In f32 from 16-bit inputs:"
t run $S:q $S:k $S:v --dtype f16 --out-dtype f32 -o out.npy
agrees f16 --dtype f16 --out-dtype f32
echo "Whole numbers are converted when asked:"
agrees plain --dtype f64
t run $S:whole $S:whole $S:whole -o out.npy --dtype bf16
echo "Too large for the type:"
printf '70000,1\n' > large.csv
t run large.csv k.csv v.csv --dtype f16 --scale 0
echo "Refused:"
q run $S:q $S:k32 $S:v
q run $S:whole $S:whole $S:whole
q run $S:q $S:k $S:v --dtype f32 --out-dtype f16
q run $S:q $S:k $S:v --dtype int8
