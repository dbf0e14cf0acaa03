# completion.sh: what bash and fish complete; zsh's script is one; all options of all subcommands are in each
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
for shell in bash zsh fish; do
    "$ATTN" completion $shell > attn.$shell || echo "exit $?"
    $shell -n attn.$shell || echo "attn.$shell is no script of $shell"
done
cat > ask.bash << 'END'
. ./attn.bash
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_attn
echo "$*: ${COMPREPLY[*]}"
END
ask() { bash ask.bash "$@"; }
ask attn l
ask attn m
ask attn help m
ask attn run --al
ask attn run --align ''
ask attn run --align b
ask attn run --scale ''
ask attn run -o want_l
ask attn explain --sort s
ask attn mask l
ask attn mask ''
touch 'two words.npy'
ask attn mask lint two
bash -c '. ./attn.bash; COMP_WORDS=(attn run two) COMP_CWORD=2; _attn; echo "${#COMPREPLY[@]} name"'
ask attn completion z
echo "zsh:"
cat > ask.zsh << 'END'
_describe() { print -r -- "$words: ${(@)${(P)2}%%:*}" }
_arguments() { print -r -- "$words: ${(M)@:#1:*}" }
compdef() { }
words=("$@") CURRENT=$#
. ./attn.zsh
END
for words in 'attn h' 'attn help m' 'attn mask l'; do zsh -f ask.zsh $words; done
echo "fish:"
for words in 'attn la' 'attn help ma' 'attn run --align ' 'attn explain --sort s' 'attn completion z'; do
    echo "$words: $(HOME=$PWD fish --no-config -c 'source attn.fish; complete -C $argv[1]' "$words" | cut -f 1 | tr '\n' ' ')"
done
echo "Options that a script lacks:"
for sub in $("$ATTN" --help | sed -n '/^Usage/,/^attn help/s/^  \([a-z]*\) .*/\1/p'); do
    for option in $("$ATTN" help "$sub" | sed -nE '/^Options/,$s/^ .{0,8}--([a-z-]+).*/\1/p'); do
        ask attn "$sub" "--$option" | grep -qe ": .*--$option" || echo "bash: $sub --$option"
        sed -n "/^    $sub)/,/;;/p" attn.zsh | grep -qe "'--$option[=[]" || echo "zsh: $sub --$option"
        grep -qe "from $sub' -l $option " attn.fish || echo "fish: $sub --$option"
    done
done
t completion
t completion csh
