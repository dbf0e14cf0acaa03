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
