# layer.sh: attn layer on the trained layer that comes with the project
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
M=minilm.safetensors
X=$M:hidden_states
# With a window of 0,0 every query sees its own key alone, so the result is V: what check compares then is V and the other file.
like() { "$ATTN" check "$1" "$1" "$1" --window 0,0 -q --against "$2" | sed -n -e 's/: largest error.*//p' -e '/^rows/p'; }
t layer $M --layer 5 --input $X -o y.npy --weights w.npy
like y.npy $M:attention_output
like w.npy $M:attention_weights
t layer $M --prefix encoder.layer.5. --heads 12 --kv-heads 12 --input $X -o again.npy --threads 1 -q
like again.npy y.npy
echo "Keys and values from the same states, said explicitly:"
t layer $M --layer 5 --input $X --kv-input $X -o cross.npy -q
like cross.npy y.npy
echo "Masked:"
t layer $M --layer 5 --input $X -o causal.npy --weights cw.npy --causal -q
like causal.npy y.npy
t layer $M --layer 5 --input $X -o c2.npy --window -1,0 --isa scalar -q
like c2.npy causal.npy
t layer $M --layer 5 --input $X -o s.npy --weights sw.npy --stage biased --query-count 5 --key-count 5 -q
echo "As JSON:"
"$ATTN" layer $M --layer 5 --input $X -o y.npy -q --json | flat | grep -v -e seconds -e isa -e threads
"$ATTN" layer $M --layer 5 --input $X -q | wc -l
echo "Refused:"
q layer $M --layer 4 --input $X
q layer $M --layer 5 --heads 7 --input $X
q layer $M --layer 5 --input q.csv
q layer $M --layer 5 --input q.npy
q layer $M --layer 5 --input $X --kv-input small.safetensors:hsd_q
q layer missing.safetensors --layer 5 --input $X
q layer q.npy --layer 5 --input $X
q layer $M --layer 5 --input $X -o none/y.npy
q layer $M --layer 5 --input $X -o y.npy --weights y.npy
q layer $M --layer 5 --input $X --stage scaled
