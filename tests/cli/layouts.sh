# layouts.sh: axes by rank, by name, and inside the channels
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
S=small.safetensors
W=want.safetensors
c() { p=$1; w=$2; shift 2; t check $S:${p}q $S:${p}k $S:${p}v --against $W:$w "$@"; }
c '' plain
c hsd_ hsd
c sd_ sd
c bshd_ bshd --layout bshd
c bsd_ bsd --layout bsd --heads 4
c sd_ sd --layout sd --heads 1
echo "Refused:"
c bshd_ bshd
c bsd_ bsd --layout bsd
c bsd_ bsd --layout bsd --heads 3
c '' plain --layout bhsx
c '' plain --layout bhs
c '' plain --layout hsd
c '' plain --heads 4
q run $S:rank5 $S:rank5 $S:rank5
q run $S:q $S:hsd_k $S:v
q run $S:sd_v $S:sd_k $S:sd_v
printf '1,2,3\n4,5,6\n' > transposed.csv
q run q.csv transposed.csv $S:sd_v
