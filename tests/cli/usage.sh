# usage.sh: exit code 2: the command line
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
t
t frob
t help frob
t run
t run a b
t run a b c d
t info x
t run q.csv k.csv v.csv --cauzal
t run q.csv k.csv v.csv --no-such-thing-at-all
t run q.csv k.csv v.csv --key
t run q.csv k.csv v.csv -x
t run q.csv k.csv v.csv --window
t run q.csv k.csv v.csv --window -2,0
t run q.csv k.csv v.csv --window 1
t run q.csv k.csv v.csv --key-count 5,x
t run q.csv k.csv v.csv --key-count 99999999999999999999
t run q.csv k.csv v.csv --align left
t run q.csv k.csv v.csv --stage none
t run q.csv k.csv v.csv --threads 0
t run q.csv k.csv v.csv --scale 1x
t run q.csv k.csv v.csv --causal=yes
t run q.csv k.csv v.csv --allow ''
t run q.csv k.csv v.csv --scale 1 --causal --causal --scale 2
t run q.csv k.csv v.csv -o one.npy --output two.npy
t check q.csv k.csv v.csv
t check q.csv k.csv v.csv --against v.csv --tolerance 1
t check q.csv k.csv v.csv --against v.csv --tolerance -1,0
t cost
t cost --tokens 0
t cost --tokens 200,100 --queries 101
t explain q.csv k.csv v.csv --row 0 --stage scaled --channels 0
t mask lint --queries 4194305
t layer minilm.safetensors --layer 5
t layer minilm.safetensors --input minilm.safetensors:hidden_states
t layer minilm.safetensors --layer 5 --prefix x --input minilm.safetensors:hidden_states
t demo --head -1
echo "The word that is wrong is named, wherever it stands:"
t run -q "-1,0" "1,0; 0,1" "1,0; 0,1"
t run -q -- "-1,0" "1,0; 0,1" "1,0; 0,1"
t mask show -qx --queries 3
t run --row=
t explain --row=
t help masks info
