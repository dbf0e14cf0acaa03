# help.sh: help, examples first, all of which run; the manual page has the same options
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
man=$CASES/../../man/attn.1
pages="$man $(ls "$CASES"/../../man/attn-*.1)"
t --help
subs=$("$ATTN" --help | sed -n '/^Usage/,/^attn help/s/^  \([a-z]*\) .*/\1/p')
for sub in $subs; do
    "$ATTN" help $sub > $sub.help
    "$ATTN" $sub --help | cmp - $sub.help
    "$ATTN" $sub -h | cmp - $sub.help
    [ "$(grep -n '^Examples' $sub.help | cut -d : -f 1)" -lt "$(grep -n '^Usage' $sub.help | cut -d : -f 1)" ] || echo "$sub: examples do not come first"
    grep -q "^\.It Cm $sub" "$man" || echo "attn.1 does not explain $sub"
done
echo "Options in the help and not in the manual page, or the other way:"
grep -hoE '^ .{0,8}--[a-z-]+' ./*.help | sed 's/.*--//' | sort -u > helped
# shellcheck disable=SC2086
grep -ohE 'Fl -[a-z][a-z-]*' $pages | sed 's/Fl -//' | grep -v '^version$' | sort -u > manual
comm -3 helped manual
echo "$(wc -l < helped) options"
echo "Exit codes in the manual page:"
sed -n '/^\.Sh EXIT/,/^\.Sh EXA/s/^\.It //p' "$man" | tr '\n' ' '
echo
echo "Examples of the help:"
mkdir -p bin share/attn
cp "$ATTN" bin
cp minilm.safetensors share/attn/minilm-layer.safetensors
ln -s minilm.safetensors model.safetensors
for sub in run explain check cost info demo; do
    sed -n '/^Examples/,/^Usage/s/^  attn //p' $sub.help > examples
    while read -r line; do
        eval "bin/attn $line" > .said 2>&1
        echo "$? attn $line"
    done < examples
done
