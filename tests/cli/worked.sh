# worked.sh: the examples that can be calculated by hand
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
q run q.csv k.csv v.csv
q run q.csv k.csv v.csv --allow first.csv
q run q.csv k.csv v.csv --hide first.csv
q run q.csv k.csv v.csv --scale 0
q run q.csv k.csv v.csv --causal
printf '2\n1\n0\n' > scores.csv
printf '1\n' > one.csv
printf '1,0\n0,2\n3,1\n' > values.csv
q run one.csv scores.csv values.csv --scale 1 --weights w.csv
awk -F, '{ printf "%.3f %.3f %.3f\n", $1, $2, $3 }' w.csv
