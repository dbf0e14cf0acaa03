# files.sh: what is read, and what is not
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
"$ATTN" run q.npy k.npy v.npy -o a.npy -q
"$ATTN" run batch.npz:q batch.npz:k batch.npz:v -o b.npy -q
cmp a.npy b.npy && echo "the same from .npy and .npz"
t check q.npy k.npy v.npy --against theirs.npy
echo "Not read:"
q run missing.npy k.npy v.npy
q run torn.npy k.npy v.npy
q run nonsense.npy k.npy v.npy
q run batch.npz k.npy v.npy
q run batch.npz:z k.npy v.npy
q run want.safetensors:none k.npy v.npy
q run q.csv k.csv first.csv:x
printf '1,2\n3\n' > ragged.csv
q run ragged.csv k.csv v.csv
printf '1,two\n' > words.csv
q run words.csv k.csv v.csv
q check q.npy k.npy v.npy --against missing.npy
echo "Read, but not handled:"
q run object.npy k.npy v.npy
