# common.sh: what the cases share; sourced by each.
# SPDX-License-Identifier: MIT

# same: what no two runs or machines have in common is taken out: times, threads, by how little results differ that agree.
same() { sed -E -e 's/[0-9.]+ ms, [a-z0-9]+, [0-9]+ threads?$/TIME/' -e '/^agree: /,$ { s/largest error [0-9.e+-]+,/largest error small,/; /^largest at/d; }' \
    -e 's/(check|   ) +[a-z0-9]+ kernel in ([a-z0-9]+): .*: (ok|WRONG)$/\1 KERNEL in \2: \3/'; }

# t ARGS: one command, what it says on either stream, and its exit code unless that is 0.
t() {
    echo "\$ attn $*"
    "$ATTN" "$@" > .said 2>&1
    code=$?
    same <.said
    [ $code -eq 0 ] || echo "exit $code"
}

# q ARGS: the same without the notes.
q() { t "$@" -q; }

# agrees NAME ARGS: attn check on the small arrays against what NumPy computed; says so in one line, or all of it.
agrees() {
    want=$1
    shift
    "$ATTN" check small.safetensors:q small.safetensors:k small.safetensors:v --against "want.safetensors:$want" -q "$@" > .said 2>&1
    code=$?
    if [ $code -eq 0 ] && grep -q '^agree: ' .said; then echo "agrees with $want: $*"; else echo "$want: $*"; cat .said; echo "exit $code"; fi
}

# near A B: two .csv files hold the same numbers, to the bound that the table of attn(1) gives for f64.
near() {
    awk -F, 'function inf(x) { return x ~ /inf/ }
        FNR == NR { for (n = 1; n <= NF; n++) { a[FNR, n] = $n; count++; if (!inf($n) && ($n < 0 ? -$n : $n) > top) top = $n < 0 ? -$n : $n }; next }
        { for (n = 1; n <= NF; n++) {
            seen++; d = $n - a[FNR, n]; w = a[FNR, n]
            if (!((FNR, n) in a) || inf($n) != inf(w)) bad++
            else if (!inf(w) && (d < 0 ? -d : d) > 1e-13 * top + 1e-12 * (w < 0 ? -w : w)) bad++ } }
        END { print (bad || seen != count || !count) ? "DIFFERENT" : "same numbers" }' "$1" "$2"
}

# flat: JSON on standard input as lines of path=value; exit 1 where it is no JSON.
flat() { awk -f "$CASES/json.awk"; }
