# mask.sh: attn mask: drawing who sees whom, every finding of lint on a mask made that way, every form of convert
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
S=small.safetensors
echo "Show:"
t mask show --queries 8 --causal --window 3,0
t mask show --queries 3 --keys 6 --causal --align bottom-right --key-start 1
t mask show --allow $S:mask --query-count 2,3 --entry 1
t mask show --bias $S:float_mask --json
t mask show --queries 100000 --causal --window 20000,0 > big; grep -c . big; sed -n '2p;4,5p;30p' big | tr -s ' '
t mask show --queries 6 --keys 4 --causal --align top-left --png who.png --svg who.svg
head -c 4 who.png | tail -c 3; echo
grep -c '<path' who.svg; tail -n 1 who.svg

echo "Lint:"
printf '1,0,0,0\n1,1,0,0\n1,1,1,0\n1,1,1,1\n' > causal.csv
printf '0,1,1,1\n0,0,1,1\n0,0,0,1\n0,0,0,0\n' > later.csv
printf '1,0,0,0,0,0\n1,1,0,0,0,0\n1,1,1,0,0,0\n' > left.csv
printf '1,1,1,1,0,0\n1,1,1,1,1,0\n1,1,1,1,1,1\n' > right.csv
printf '0,0\n0,0\n1,0\n1,1\n' > long.csv
printf '1,0,0,0,0,0,0,0\n0,1,0,0,1,0,0,0\n0,0,1,0,0,0,0,0\n' > scattered.csv
printf '1,0,1,1\n1,1,0,1\n' > fine.csv
printf '1,1\n1,1\n' > all.csv
printf '0,-inf,-inf\n0,0,-inf\n0,0,0\n' > add.csv
printf '0,-3.4028234663852886e+38\n-65504,-1e9\n' > least.csv
printf '0,nan\ninf,0.5\n' > nan.csv
printf '0,0.5\n-1,0.25\n' > numbers.csv
printf '0,0,0,1,1,1\n' > behind.csv
printf '1,1,1,1,0,0\n' > before.csv
t mask lint --allow fine.csv
t mask lint --bias numbers.csv
echo "- rows that see nothing, by a mask, by options, by a length; not where the row is padding"
printf '1,1,1\n0,0,0\n1,0,1\n' > row.csv
t mask lint --allow row.csv
t mask lint --queries 4 --keys 2 --causal --align bottom-right --json
t mask lint --queries 2 --keys 3 --key-count 3,0
t mask lint --queries 2 --keys 3 --key-count 3,0 --query-count 2,0
echo "- the polarity"
t mask lint --allow scattered.csv
t mask lint --hide fine.csv
t mask lint --allow later.csv
t mask lint --hide later.csv
q mask lint --allow "1,1,0,0,0,0; 1,1,0,0,0,0; 0,0,1,1,0,0; 0,0,1,1,0,0; 0,0,0,0,1,1; 0,0,0,0,1,1"
q mask lint --allow "0,0,0,1; 1,0,0,0; 0,1,0,0; 0,0,0,1"
echo "- a float mask of 0 and 1"
t mask lint --bias causal.csv
echo "- a finite minimum"
t mask lint --bias least.csv
q mask lint --bias "0.5,-1e9; 0.5,0.25"
t mask lint --bias nan.csv
echo "- the diagonal on the wrong side"
t mask lint --queries 3 --keys 6 --causal --align top-left
t mask lint --queries 3 --keys 6 --causal --align bottom-right
t mask lint --queries 3 --keys 6 --causal --query-offset 9
t mask lint --allow left.csv
t mask lint --allow long.csv
t mask lint --allow right.csv --causal --align top-left
echo "- padding on the other side"
t mask lint --allow behind.csv --key-count 4
t mask lint --allow before.csv --key-start 2
t mask lint --allow behind.csv --key-start 3
echo "- what could be an option"
t mask lint --allow causal.csv
t mask lint --allow right.csv
t mask lint --allow before.csv
t mask lint --allow behind.csv
t mask lint --allow all.csv
t mask lint --bias add.csv
"$ATTN" mask convert --queries 9 --window 2,1 --to keep -o window.npy -q
t mask lint --allow window.npy
"$ATTN" mask convert --queries 3 --keys 9 --causal --window 2,-1 --query-offset 4 --to drop -o band.npy -q
t mask lint --hide band.npy
"$ATTN" mask convert --queries 4 --keys 5 --key-count 3,5 --key-start 1,0 --to add -o pads.npy -q
t mask lint --bias pads.npy

echo "Convert, from every form and to every form, and back:"
"$ATTN" mask convert --queries 3 --keys 4 --batch 2 --heads 2 --key-count 2,4 --to keep -o start.npy -q
for form in drop add lengths onnx onnx-lengths sdpa mha mha-padding hf hf-4d ort-padding ort-bias ort-gqa; do
    t mask convert start.npy --from keep --to $form --heads 2 | grep '^attn mask: t'
    sed -n '/^attn/!p' .said | tr '\n' ' '; echo
    "$ATTN" mask convert start.npy --from keep --to $form --heads 2 -o form.npy -q
    "$ATTN" mask convert form.npy --from $form --to keep --keys 4 --queries 3 --heads 2 -o back.npy -q
    "$ATTN" mask convert back.npy --from keep --to hf -o back_hf.npy -q && "$ATTN" mask convert start.npy --from keep --to hf -o start_hf.npy -q
    cmp start_hf.npy back_hf.npy
done
t mask convert --queries 3 --causal --to mha
t mask convert causal.csv --from keep --to hf-4d -q
echo "What options hide, a converted mask hides: the same bits."
for options in "--causal --align top-left" "--causal --align bottom-right --window 1,-1" "--window 0,1 --query-offset 1,-1" \
    "--key-count 3,5 --query-count 2,3" "--key-start 2,0 --causal --align bottom-right" "--allow $S:mask --key-count 4"; do
    "$ATTN" run $S:q $S:k $S:v -o by_options.npy -q $options
    "$ATTN" mask convert --batch 2 --heads 4 --queries 3 --keys 5 $options --to keep -o keep.npy -q
    "$ATTN" run $S:q $S:k $S:v -o by_mask.npy -q --allow keep.npy
    "$ATTN" check $S:q $S:k $S:v --against by_options.npy -q --allow keep.npy --tolerance 0,0 > said && echo "same: $options" || cat said
done

echo "Refused:"
t mask
t mask draw
t mask show
t mask show --queries 3 --keys 5 --causal
t mask show causal.csv
t mask show --queries 3 --entry 1
t mask show --queries 3 --png none/x.png
t mask show --queries 3 --svg none/x.svg
t mask show --allow causal.csv --queries 5
t mask lint --allow causal.csv --to hf
t mask convert causal.csv --to hf
t mask convert causal.csv --from keep
t mask convert --from keep --to hf
t mask convert causal.csv --from keep --to hf --allow causal.csv
t mask convert causal.csv --from keep --to hf
t mask convert causal.csv --from add --to keep
t mask convert least.csv --from add --to keep
t mask convert numbers.csv --from add --to keep
t mask convert before.csv --from hf --to keep --png x.png
t mask convert behind.csv --from hf --to lengths
t mask convert scattered.csv --from hf --to lengths
printf '3\n9\n' > lengths.csv
t mask convert lengths.csv --from lengths --to hf --keys 8
t mask convert lengths.csv --from ort-gqa --to hf
t mask convert band.npy --from lengths --to hf --keys 9
t mask convert --queries 3 --to keep --allow causal.csv
t mask convert before.csv --from hf --to keep -o x.png
t mask convert --batch 2 --queries 3 --keys 2 --key-count 0,2 --to ort-gqa
t mask convert band.npy --from mha-padding --to keep
t mask convert --bias numbers.csv --to keep -q
t mask convert --queries 3 --to keep --entry 0
t mask lint --queries 3 --png x.png
t mask show --queries 3 --png x.png --json
echo "Masks that are written out:"
q mask show --allow "1,0; 1,1; 1,1"
q mask show --bias "0,-inf,0" --queries 2
q mask convert "1,0; 1,1" --from sdpa --to mha
q mask lint --key-count 9 --queries 3
