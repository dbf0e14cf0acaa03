# demo.sh: attn demo: the trained layer, the picture, a layer that is not what it should be
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
"$ATTN" demo --data minilm.safetensors > said 2> notes
echo "exit $?"
cat notes
# Rounding differs from machine to machine, so the last digits of differences do.
sed -E -e 's/(largest difference|from 1): [0-9.e-]+$/\1: small/' -e '/bytes for any length/s/[0-9,]+ bytes for/N bytes for/' said
head -c 4 attn-demo.png | tail -c 3; echo
[ "$(wc -c < attn-demo.png)" -gt 10000 ] && echo "a picture"
"$ATTN" demo -q --head 3 --png three.png --data minilm.safetensors | grep '^Head'
cmp attn-demo.png three.png && echo "the same picture"
rm attn-demo.png
echo "As JSON:"
"$ATTN" demo -q --json --data minilm.safetensors > said.json
echo "exit $?"
flat < said.json | grep -e '^[a-z]*=' -e worked -e '\.ok=' -e 'top_keys\[11\]' -e growth | grep -v work_bytes | sed -E 's/(weight=0\.[0-9]{3})[0-9]*/\1/'
echo "Where the file that comes with the program may be:"
found() { mkdir -p "tree/$1" "tree/$2"; cp "$ATTN" "tree/$1"; cp minilm.safetensors "tree/$2/minilm-layer.safetensors"; "tree/$1/attn" demo 2>&1 > said | sed "s:$(pwd -P)/::"; rm -r tree; }
found bin share/attn
found build examples
found build/debug examples
found . .
mkdir elsewhere
cp "$ATTN" elsewhere
elsewhere/attn demo 2>&1 > said | sed -E -e "s:$(pwd -P)/::" -e 's:nor in [^ ]*:nor in FOLDER:'
echo "One weight of another system changed:"
cp minilm.safetensors other.safetensors
chmod u+w other.safetensors
printf '\100' | dd of=other.safetensors bs=1 seek=$(($(od -An -t u4 -N 4 other.safetensors) + 8 + 3)) conv=notrunc 2> dd.said
"$ATTN" demo -q --data other.safetensors > said
echo "exit $?"
grep -c WRONG said
echo "Refused:"
t demo --data q.npy > said; sed -n '/^attn demo:/p;/^exit/p' said
t demo --data want.safetensors > said; sed -n '/^attn demo:/p;/^exit/p' said
t demo --data missing.safetensors > said; sed -n '/^attn demo:/p;/^exit/p' said
q demo --data minilm.safetensors --head 12 > said; sed -n '/^attn demo:/p;/^exit/p' said
q demo --data minilm.safetensors --png none/x.png > said; sed -n '/^attn demo:/p;/^exit/p' said
mkdir folder.png
q demo --data minilm.safetensors --png folder.png > said; sed -n '/^attn demo:/p;/^exit/p' said
ls | grep png
