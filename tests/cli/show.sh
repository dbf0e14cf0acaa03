# show.sh: attn show: weights in the terminal, as PNG, SVG and JSON, from tensors, a checkpoint and files; what is refused
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
S=small.safetensors
M=minilm.safetensors
q show $M --layer 5 --input $M:hidden_states --tokens $M --head 7
q show $S:q $S:k $S:v --causal --align bottom-right --entry 1 --log
t show $S:q $S:k $S:v --head 1 --json | head -n 5
echo "Weights from a file look as those that are computed:"
"$ATTN" run $S:q $S:k $S:v --weights w.npy -o o.npy -q
"$ATTN" show $S:q $S:k $S:v --head 2 -q > computed
"$ATTN" show --weights w.npy --head 2 -q > stored
sed -n '2p;4p' computed; sed -n '2p;4p' stored
sed 1,4d computed > a; sed 1,4d stored > b; cmp a b && echo same
echo "Colours:"
for colour in plain 16 256 true; do
    "$ATTN" show --weights w.npy --head 2 -q --colour $colour | sed -n 6p | tr '\033' 'E'
done
on() { script -qec "$1 \"$ATTN\" show --weights w.npy --head 2 -q" .typescript < /dev/null > .said; sed -n 6p .said | tr '\033\r' 'E ' | cut -c 1-40; }
on "env COLORTERM=truecolor"
on "env COLORTERM="
on "env COLORTERM= TERM=xterm"
on "env COLORTERM=truecolor NO_COLOR=1"
on "env TERM=dumb"
echo "A picture is no wider than a narrow terminal:"
narrow() { NO_COLOR=1 script -qec "stty cols $1 < /dev/tty; \"$ATTN\" $2" .typescript < /dev/null | tr -d '\r' | grep -E '^ +[0-9]+ ' | awk -v most="$1" '{ if (length($0) > wide) wide = length($0) } END { print wide, (wide > 17 && wide <= most) }'; }
narrow 50 "show $M --layer 5 --input $M:hidden_states --head 7 --colour plain -q"
narrow 70 "show $M --layer 5 --input $M:hidden_states --head 7 --colour plain -q"
narrow 50 "mask show --queries 60 --causal"
narrow 80 "mask show --queries 60 --causal"
printf '1,0\nnan,1\n' > nan.csv
for colour in plain 16 256 true; do "$ATTN" show --weights nan.csv -q --colour $colour | sed -n '7,9p' | tr '\033' 'E'; done
echo "Down-sampled:"
awk 'BEGIN { for (i = 0; i < 300; i++) for (j = 0; j < 300; j++) printf "%s%s", i == j ? 1 : 0, j < 299 ? "," : "\n" }' > identity.csv
"$ATTN" show --weights identity.csv -q | sed -n '1,9p;65,67p' | cut -c 1-60
"$ATTN" show --weights identity.csv -q --largest | sed -n '3p;9p' | cut -c 1-60
echo "Pictures:"
t show $M --layer 5 --input $M:hidden_states --tokens $M -q --png heads.png --svg heads.svg
head -c 4 heads.png | tail -c 3; echo
"$ATTN" demo -q --data $M --png demo.png > said
[ "$(wc -c < heads.png)" -gt 20000 ] && echo "a picture"
grep -o '<text[^>]*>[^<]*</text>' heads.svg | sed 's/<[^>]*>//g' | sed -n '1,3p;4,6p;$p'
grep -c '<path' heads.svg
printf '<a>\n"&"\n\001\n' > names.txt
printf '0.5,0.5,0\n1,0,0\n0,0,1\n' > three.csv
t show --weights three.csv --tokens names.txt --svg three.svg
grep -o '<text[^>]*>[^<]*</text>' three.svg | sed 's/<[^>]*>//g' | sort | uniq -c | grep '#'
echo "The last line has a line of its own where the picture is narrow, inside of it:"
awk -F'[ ()"]' '/^<svg/ { high = $9 } /not why/ { print ($11 > 200 && $11 < high - 10) ? "inside" : $0 }' three.svg
cp three.csv attentions-of-the-model-0.csv; cp three.csv attentions-of-the-model-1.csv
"$ATTN" show --weights attentions-of-the-model-0.csv attentions-of-the-model-1.csv --svg two.svg
grep -o '>[^<]*head 0<' two.svg
t show $S:q $S:k $S:v -q --png none/x.png
t show $S:q $S:k $S:v -q --html none/x.html
t show $S:q $S:k $S:v -q --html x.html
sed -n '1p;$p' x.html; grep -c 'https*:' x.html
echo "Refused:"
q show
q show $S:q $S:k
q show $S:q $S:k $S:v --layer 1
q show $S:q $S:k $S:v --head 4
q show $S:q $S:k $S:v --entry 2
q show $S:q $S:k $S:v --causal
q show $S:q $S:k $S:v --tokens names.txt
q show --weights w.npy --causal
q show --weights w.npy three.csv
q show --weights $S:mask
q show --weights $S:slopes
q show $M --layer 5
q show $M --input $M:hidden_states
q show $M --layer 5,5,5 --input $M:hidden_states,$M:hidden_states
q show $M --layer 3 --input $M:hidden_states
q show --weights none.npy
q show --weights w.npy --colour red
q show w.npy --weights w.npy --heads 2
q show $M --layer 5 --input $M:hidden_states,$M:hidden_states
q show $M --layer 5 --input $M:hidden_states --dtype f32
q show $S:q $S:k $S:v --region 1,1
q show $S:q $S:k $S:v --html x.html --colour 16
q show $S:q $S:k $S:v --html x.html --json
q show $S:q $S:k $S:v --json --log
