# json.sh: attn run --json
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
run() { "$ATTN" run "$@" -q --json | flat | grep -v -e '^seconds' -e '^isa=' -e '^threads='; }
run q.csv k.csv v.csv --scale 0
echo "Nothing seen, and no number:"
printf 'nan,1\n' > nan.csv
run nan.csv k.csv v.csv --lse lse.npy
run q.csv k.csv v.csv --key-count 0 --weights w.npy -o out.npy
"$ATTN" run q.csv k.csv v.csv --query-count 1 -q --json --isa scalar --threads 1 | flat | grep -e '^isa' -e '^threads' -e rows
