# looking.sh: the commands of docs/looking.md print what stands under them
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
awk '/^```sh$/ { sh = 1; next } /^```text$/ { text = 1; print command > ("command" ++k); next } /^```$/ { sh = text = 0; next }
     sh { command = $0 } text { print > ("want" k) }' "$CASES/../../docs/looking.md"
for n in 1 2; do
    sed "s:^attn :\"\$ATTN\" :" command$n > one.sh
    sh one.sh > got 2>&1
    diff want$n got && echo "as said: $(cat command$n)"
done
ls command*
