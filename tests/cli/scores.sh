# scores.sh: every option about what a score is, against NumPy
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
S=small.safetensors
agrees scale --scale -0.5
agrees uniform --scale 0
agrees softcap --softcap 0.75
agrees bias --bias $S:bias
agrees alibi --alibi $S:slopes --align bottom-right
agrees alibi --alibi 0.5,0.25,2,0 --align bottom-right
agrees usual --alibi default --align top-left
agrees sink --sink $S:sink
agrees sink --sink -1,0,1,2
agrees plain --sink -inf
echo "Refused:"
q run $S:q $S:k $S:v --sink 1,2
q run $S:q $S:k $S:v --alibi $S:mask --align top-left
q run $S:q $S:k $S:v --alibi nofile.npy --align top-left
q run $S:q $S:k $S:v --softcap -1
q run $S:q $S:k $S:v --scale inf
q run $S:bsd_q $S:k $S:v --bias $S:bias
echo "A bias that would turn from a number into a hiding one by rounding:"
printf '1e300,0\n' > huge.csv
q run q.csv k.csv v.csv --dtype f32 --bias huge.csv
q run q.csv k.csv v.csv --bias huge.csv
