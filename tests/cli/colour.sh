# colour.sh: colour only on a terminal, and not where NO_COLOR is set
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
# script(1) gives the command a terminal.
on() { script -qec "$1 \"$ATTN\" demo -q --data minilm.safetensors --png x.png" .typescript < /dev/null > .said; grep -c "$(printf '\033')" .said; }
echo "pipe: $("$ATTN" demo -q --data minilm.safetensors --png x.png | grep -c "$(printf '\033')") lines with colour"
echo "terminal: $(on env)"
echo "terminal, NO_COLOR=1: $(on 'env NO_COLOR=1')"
echo "terminal, NO_COLOR empty: $(on 'env NO_COLOR=')"
echo "terminal, TERM=dumb: $(on 'env TERM=dumb')"
script -qec "stty cols 30; \"$ATTN\" mask show --queries 30 --causal" .typescript < /dev/null | tail -n +2 | tr -d '\r' | sed "s/$(printf '\033')\[[0-9;]*m//g" |
    awk '{ if (length > most) most = length } END { print "a terminal of 30 columns: a picture as for 40, " (most > 20 && most <= 40 ? "no" : most) " wider" }'
