# masks.sh: every option about who sees whom, against NumPy; masks that are refused
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
agrees plain
agrees causal_top --causal --align top-left
agrees causal_bottom --causal --align bottom-right
agrees causal_bottom --causal --query-offset 2
agrees offset --causal --query-offset 1,-1
agrees query_count --query-count 2,3
agrees key_count --key-count 5,2
agrees four_keys --key-count 4
agrees key_start --key-start 1,0
agrees window --window 1,0 --align bottom-right
agrees window_left --window 0,-1 --align top-left
agrees mask --allow small.safetensors:mask
agrees mask --hide small.safetensors:hidden
agrees all --causal --align bottom-right --allow small.safetensors:mask --alibi small.safetensors:slopes --scale 0.5 --softcap 2 --sink -1,0,1,2
echo "What lies beyond the keys in use is not looked at:"
"$ATTN" check small.safetensors:q small.safetensors:nan_k small.safetensors:nan_v --against want.safetensors:four_keys --key-count 4 -q | same
echo "Refused:"
S=small.safetensors
q run $S:q $S:k $S:v --causal
q run $S:q $S:k $S:v --window 1,1
q run $S:q $S:k $S:v --alibi default
q run $S:q $S:k $S:v --causal --align top-left --query-offset 1
q run $S:q $S:k $S:v --allow $S:number_mask
q run $S:q $S:k $S:v --hide $S:float_mask
q run $S:q $S:k $S:v --allow half.csv
q run $S:q $S:k $S:v --bias $S:mask
q run $S:q $S:k $S:v --bias $S:number_mask
q run $S:q $S:k $S:v --allow $S:padding
q run $S:q $S:k $S:v --allow $S:mask --hide $S:mask
q run $S:q $S:k $S:v --key-count 6
q run $S:q $S:k $S:v --key-count 1,2,3
