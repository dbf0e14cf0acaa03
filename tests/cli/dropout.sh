# dropout.sh: attn run --dropout: which weights are dropped depends on the seed alone; lse and weights are those before
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
S=small.safetensors
q run $S:q $S:k $S:v -o plain.npy --weights plain_weights.npy
q run $S:q $S:k $S:v --dropout 0 -o zero.npy
cmp plain.npy zero.npy && echo "rate 0 is no dropout"
q run $S:q $S:k $S:v --dropout 0.5 --dropout-seed 3 --threads 1 -o one.npy --weights one_weights.npy
q run $S:q $S:k $S:v --dropout 0.5 --dropout-seed 3 --threads 2 -o two.npy
cmp one.npy two.npy && echo "the same seed drops the same weights"
cmp plain_weights.npy one_weights.npy && echo "the weights are those before"
q run $S:q $S:k $S:v --dropout 0.5 --dropout-seed 4 -o other.npy
cmp -s one.npy other.npy || echo "another seed drops others"
echo "One query, weights of 1/4 each, the values count the keys: what is kept is doubled."
printf '0\n' > zero_q.csv
printf '0\n0\n0\n0\n' > zero_k.csv
printf '1\n10\n100\n1000\n' > count.csv
for seed in 0 1 2 3; do t run zero_q.csv zero_k.csv count.csv --dropout 0.5 --dropout-seed $seed -q; done
q run zero_q.csv zero_k.csv count.csv --dropout 1
echo "Refused:"
q run $S:q $S:k $S:v --dropout 1.5
q run $S:q $S:k $S:v --dropout-seed 1
q check $S:q $S:k $S:v --against want.safetensors:plain --dropout 0.5
