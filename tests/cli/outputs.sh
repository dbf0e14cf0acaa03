# outputs.sh: results in files: all of them or none
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
S=small.safetensors
t run $S:q $S:k $S:v -o out.npy
"$ATTN" check $S:q $S:k $S:v --against out.npy -q --tolerance 0,0 | same
q run $S:hsd_q $S:hsd_k $S:hsd_v --lse lse.csv -o out.npy
near want_lse.csv lse.csv
for stage in weight scaled capped biased; do
    q run $S:sd_q $S:sd_k $S:sd_v --causal --align top-left --softcap 0.75 --weights w.csv --stage $stage -o out.csv
    near want_$stage.csv w.csv
done
near want_weight.csv want_scaled.csv
rm -f out.npy out.csv lse.csv w.csv
echo "Not written, and nothing left behind:"
ls -A > before
q run $S:q $S:k $S:v -o none/out.npy
mkdir folder.npy
q run $S:q $S:k $S:v -o folder.npy
q run $S:q $S:k $S:v -o out.npy --lse none/lse.npy
q run $S:q $S:k $S:v -o out.npy --weights none/w.npy
q run $S:q $S:k $S:v -o out.csv
q run $S:q $S:k $S:v -o out.npy --lse lse.csv
q run $S:q $S:k $S:v -o out.txt
q run $S:q $S:k $S:v -o out.npy --lse out.npy
q run $S:q $S:k $S:v -o out.npy --stage scaled
q run $S:hsd_q $S:hsd_k $S:hsd_v --lse lse.csv --weights w.npy -o none/out.npy
"$ATTN" run q.csv k.csv v.csv -q > /dev/full
echo "exit $?"
rmdir folder.npy
ls -A | diff before - && echo "nothing"
echo "Nothing that is read is overwritten, nor one result by another:"
cp -L q.csv own.csv
cp -L q.npy own.npy
ln -s own.csv link.csv
echo missing > words.svg
sum own.csv own.npy words.svg > before
q run own.csv k.csv v.csv -o own.csv
q run own.csv k.csv v.csv -o ../outputs/./own.csv
q run own.csv k.csv v.csv -o link.csv
q run link.csv k.csv v.csv --lse own.csv
q run q.csv k.csv v.csv --bias own.csv --weights own.csv
q run q.csv k.csv v.csv --lse new.csv --weights ./new.csv
q run batch.npz:q batch.npz:k batch.npz:v --allow own.npy -o own.npy
q layer minilm.safetensors --layer 5 --input own.csv -o own.csv
q layer minilm.safetensors --layer 5 --input minilm.safetensors:hidden_states --weights new.npy -o new.npy
q mask convert own.csv --from mha --to sdpa -o own.csv
q show --weights own.csv --png own.csv
q show q.csv k.csv v.csv --tokens words.svg --svg words.svg
q show q.csv k.csv v.csv --html own.npy
q mask show --queries 3 --svg own.csv
q demo --png own.csv
sum own.csv own.npy words.svg | diff before - && echo "all as it was"
