# lesson.sh: attn lesson: every lesson with its answer; each command in it gives outside what it gives inside
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
t lesson
# Bytes of scratch depend on the machine's instruction set.
lesson() { "$ATTN" lesson "$@" 2>&1 | sed -E '/^ +(100|200)  /s/ +[0-9,]+( +[0-9.e+]+)$/  N\1/' | same; }
for name in $("$ATTN" lesson | sed '/^$/,$d; s/ .*//'); do
    lesson "$name" --answer
    lesson "$name" > without
    grep -q '^Answer' without && echo "the answer is not behind --answer"
    "$ATTN" lesson "$name" --answer | sed -n 's/^\$ attn //p' | while read -r line; do
        eval "\"$ATTN\" $line" 2>&1 > alone || echo "exit $? $line"
        "$ATTN" lesson "$name" --answer > all
        [ "$(tr -d '\n' < all | grep -cF "$(tr -d '\n' < alone)")" = 1 ] || echo "not the same alone: $line"
    done
done
echo "Refused:"
t lesson nothing
t lesson row empty
t lesson --answer
