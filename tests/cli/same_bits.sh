# same_bits.sh: the result's bits do not depend on threads, nor on what else is asked for
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
"$ATTN" run q.npy k.npy v.npy -q -o one.npy --threads 1
for n in 2 3 7; do
    "$ATTN" run q.npy k.npy v.npy -q -o more.npy --threads $n --lse lse.npy --weights w.npy
    cmp one.npy more.npy && echo "$n threads: the same"
done
"$ATTN" run q.npy k.npy v.npy -q -o scalar.npy --isa scalar
t check q.npy k.npy v.npy --isa scalar --against scalar.npy -q
echo "No such instruction set:"
q run q.npy k.npy v.npy --isa sse9
t cost --tokens 5 --isa sse9
