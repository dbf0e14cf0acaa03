# help.sh: help, examples first, all of which run; the manual page has the same options
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
man=$CASES/../../man/attn.1
t --help
subs=$("$ATTN" --help | sed -n '/^Usage/,/^attn help/s/^  \([a-z]*\) .*/\1/p')
for sub in $subs; do
    "$ATTN" help $sub > $sub.help
    "$ATTN" $sub --help | cmp - $sub.help
    "$ATTN" $sub -h | cmp - $sub.help
    [ "$(grep -n '^Examples' $sub.help | cut -d : -f 1)" -lt "$(grep -n '^Usage' $sub.help | cut -d : -f 1)" ] || echo "$sub: examples do not come first"
    grep -q "^\.It Cm $sub" "$man" || echo "attn.1 does not explain $sub"
done
echo "Options in a subcommand's help and not on its page, or the other way:"
for sub in $subs; do
    page=$CASES/../../man/attn-$sub.1
    sed -nE '/^Options/,$s/^ .{0,8}--([a-z-]+).*/\1/p' $sub.help | sort -u > helped
    awk '/(^|[ .])(Fl|Op)( |$)/ { for (n = 1; n <= NF; n++) if ($n ~ /^-[a-z][a-z-]*$/) print substr($n, 2) }' "$page" | sort -u > manual
    comm -3 helped manual | sed "s/^/$sub: /"
    cat helped
done | sort -u > options
grep : options
echo "$(grep -vc : options) options"
echo "Exit codes in the manual page:"
sed -n '/^\.Sh EXIT/,/^\.Sh EXA/s/^\.It //p' "$man" | tr '\n' ' '
echo
echo "Who sees whom:"
"$ATTN" help masks
"$ATTN" help masks | grep -oE '^ +--[a-z-]+|, --[a-z-]+' | grep -o '[a-z].*' | while read -r option; do grep -qx "$option" options || echo "--$option is no option"; done
show() { "$ATTN" mask show --queries 3 --keys 5 --causal "$@" | sed -nE 's/^ +[0-2] ([#c]+) .*/\1/p' | tr c .; }
show --align top-left > 1; show --align bottom-right > 2; show --query-offset 1 > 3
"$ATTN" help masks | awk '/^ +[#.] / { for (n = 1; n <= 15; n++) printf "%s%s", $n, n % 5 ? "" : n < 15 ? "\t" : "\n" }' > drawn
paste 1 2 3 | diff - drawn && echo "drawn as attn mask show draws it"
echo "Examples of the help:"
mkdir -p bin share/attn
cp "$ATTN" bin
cp minilm.safetensors share/attn/minilm-layer.safetensors
ln -s minilm.safetensors model.safetensors
for sub in run explain check lesson cost show mask info demo; do
    sed -n '/^Examples/,/^Usage/s/^  attn //p' $sub.help > examples
    while read -r line; do
        eval "bin/attn $line" > .said 2>&1
        echo "$? attn $line"
    done < examples
done
