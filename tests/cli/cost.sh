# cost.sh: attn cost: dense entries, pairs that are seen, operations
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
# Bytes of scratch depend on the machine's instruction set.
cost() { "$ATTN" cost --threads 1 "$@" | awk '{ $5 = ""; print }'; }
cost --tokens 100,200
cost --tokens 100 --causal
cost --tokens 100 --window 10,0
cost --tokens 100 --window 10,-1 --causal
cost --tokens 100 --heads 12 --kv-heads 4 --dim 64 --value-dim 32 --batch 2 --dtype f64
echo "The same bytes whatever the length:"
"$ATTN" cost --tokens 1000,100000 --threads 1 --isa scalar --dtype bf16 --json | flat | sed -n 's/.*work_bytes=//p' | uniq | wc -l
echo "As JSON:"
"$ATTN" cost --tokens 100,200 --threads 1 --json | flat | grep -v work_bytes
echo "Only the last query:"
cost --tokens 100 --queries 1 --causal
cost --tokens 100 --queries 1 --window 10,0
echo "Among threads:"
plan() { "$ATTN" cost --isa scalar --plan "$@" | awk 'NF == 8 && $1 > 0 { $6 = "" } { print }'; }
plan --tokens 4096 --queries 1 --heads 32 --kv-heads 8 --dim 128
plan --tokens 500,16384 --causal --threads 16
plan --tokens 4096 --queries 1 --heads 8 --threads 16 --json | flat | grep -v work_bytes
t cost --tokens 2147483648 --heads 1000000
t cost --tokens 100 --heads 3 --kv-heads 2
t cost --tokens 5 --heads 4611686018427387904
