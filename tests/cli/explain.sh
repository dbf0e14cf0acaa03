# explain.sh: attn explain: every number of a row, sums that add up, reasons, what is refused
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
S=small.safetensors
M=minilm.safetensors
echo "The lesson's example:"
q explain --q "1,0" --k "1,0; 0,1" --v "10,0; 0,10"
q explain --q "1,0" --k "1,0; 0,1" --v "10,0; 0,10" --allow "1,0" --why 1
q explain q.csv k.csv v.csv --sink 0.5 --digits 5 --why 0
echo "Every option at once:"
e() { q explain $S:q $S:k $S:v "$@"; }
e --entry 1 --head 2 --row 1 --causal --align bottom-right --window 2,0 --key-start 1 --key-count 4 --query-count 3 --bias $S:bias --hide $S:hidden \
    --alibi $S:slopes --softcap 2 --scale 0.7 --sink $S:sink
e --entry 1 --head 2 --row 2 --causal --align bottom-right --bias $S:bias --alibi $S:slopes --softcap 2 --scale 0.7 --sink $S:sink --channels 2,0
e --entry 0 --head 0 --row 2 --query-count 2
echo "Steps:"
for stage in scaled capped biased weight; do e --entry 0 --head 3 --row 0 --stage $stage --key-count 3; done
for stage in scaled biased; do e --entry 0 --head 3 --row 0 --stage $stage --softcap 2 --bias $S:bias --why 3 | sed -n '/^Key/,$p'; done
echo "Every score is -inf, and one is +inf:"
q explain --q "1" --k "-inf; -inf" --v "1; 2"
q explain --q "1" --k "inf; 1" --v "1; 2" --csv
echo "What makes a row NaN is named:"
q explain --q "1" --k "1; nan; inf" --v "1; 2; 3" | grep softmax
q explain --q "1" --k "nan; inf" --v "1; 2" --allow "0,1" --bias "0,1" | grep softmax
q explain --q "1" --k "nan; 2" --v "1; 2" --allow "0,1" | grep -c softmax
q explain --q "1" --k "1; 2" --v "1; 2" --sink inf | grep softmax
echo "A trained layer:"
# Two decimals: those of a projection differ in the last of f32 from one BLAS kernel to another.
q explain $M --layer 5 --input $M:hidden_states --head 7 --row 10 --top 5 --tokens $M --sort weight --digits 2 | sed '/^  output/,/^   /{ /^  check/!d; }'
q explain $M --layer 5 --input $M:hidden_states --head 7 --row 10 --top 2 --tokens $M --causal --digits 1 --channels 3,1 --why 8 | sed -n '/key  /,/sum/p;/^Key/,$p'
q explain $M --layer 5 --input $M:hidden_states --head 7 --row 10 --top 3 --tokens $M --sort share --causal --csv | cut -d , -f 1-5 | sed -E "s,(\.[0-9]{2})[0-9]*$,\1,"
echo "Refused:"
q explain
q explain --q 1,0 --k 1,0
q explain --q 1,0 --k "1,0; 1" --v 1,0
q explain q.csv k.csv
e --head 0 --row 0
e --entry 0 --head 4 --row 0
e --entry 0 --head 0 --row 0 --why 5
e --entry 0 --head 0 --row 0 --channels 3
e --entry 0 --head 0 --row 0 --json --csv
e --entry 0 --head 0 --row 0 --json --digits 2
e --entry 0 --head 0 --row 0 --causal
e --entry 0 --head 0 --row 0 --tokens $M
e --entry 0 --head 0 --row 0 --tokens missing.txt
printf 'a\n\377\nc\nd\ne' > broken.txt
e --entry 0 --head 0 --row 0 --tokens broken.txt
printf '["a",' > broken.json
e --entry 0 --head 0 --row 0 --tokens broken.json
q explain --q 1e400,1 --k 1,1 --v 1
e --entry 0 --head 0 --row 0 --layer 1
q explain $M --layer 5 --input $M:hidden_states --head 12 --row 0
q explain $M --layer 5 --input $M:hidden_states --head 0 --row 0 --layout sd
