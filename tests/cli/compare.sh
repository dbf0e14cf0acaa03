# compare.sh: attn check: agreement, what is wrong and where, what would explain it
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
S=small.safetensors
W=want.safetensors
c() { w=$1; shift; t check $S:q $S:k $S:v -q --against $W:$w "$@"; }
c plain
echo "One element and one NaN:"
c wrong
echo "Wide enough for the element, not for the NaN:"
c wrong --tolerance 0,1
c mask_mean --allow $S:mask
echo "Said otherwise:"
c causal_bottom --causal --align top-left | grep -e ^cause -e ^or -e exit
c causal_top | grep -e ^cause -e ^or -e exit
c plain --causal --align top-left | grep -e ^cause -e ^or -e exit
c plain --scale 1 | grep -e ^cause -e ^or -e exit
c plain --softcap 0.5 | grep -e ^cause -e ^or -e exit
c plain --sink 1 | grep -e ^cause -e ^or -e exit
c plain --bias $S:bias | grep -e ^cause -e ^or -e exit
c plain --key-count 3 | grep -e ^cause -e ^or -e exit
c plain --alibi default --align top-left | grep -e ^cause -e ^or -e exit
c window --window 2,0 --align bottom-right | grep -e ^cause -e ^or -e exit
c mask --hide $S:mask | grep -e ^cause -e ^or -e exit
c mask --allow $S:hidden | grep -e ^cause -e ^or -e exit
echo "Nothing that would explain it:"
c uniform | grep -e ^cause -e ^or -e exit
echo "The softmax's logarithm and the weights:"
"$ATTN" run $S:q $S:k $S:v --key-count 4 --lse lse.npy --weights weights.npy -o four.npy -q
t check $S:q $S:k $S:v -q --key-count 4 --against four.npy --against-lse lse.npy --against-weights weights.npy | grep -v -e ^largest
t check $S:q $S:k $S:v -q --against-lse lse.npy --against-weights weights.npy | grep -v -e ^largest -e '^ .*got'
t check $S:sd_q $S:sd_k $S:sd_v -q --against-weights "1,2,3; 4,5,6" | grep -v ' read: '
t check $S:q $S:k $S:v -q --against-weights want.safetensors:hsd | grep -v ' read: '
echo "As JSON:"
"$ATTN" check $S:q $S:k $S:v -q --against $W:wrong --json | flat | grep -v -e '[.]*got=' -e '[.]*want=' -e 'error=0'
"$ATTN" check $S:q $S:k $S:v -q --against $W:wrong --json > /dev/null
echo "exit $?"
echo "Not to be compared:"
c sd
