# json.awk: reads JSON strictly and prints each value as path=value; exit 1 where it is none.
# SPDX-License-Identifier: MIT
function fail(what) { print "no JSON: " what " at " at; bad = 1; exit 1 }
function space() { while (substr(text, at, 1) ~ /[ \t\n\r]/ && at <= length(text)) at++ }
function take(pattern, what,    rest) {
    rest = substr(text, at)
    if (!match(rest, "^" pattern)) fail(what)
    at += RLENGTH
    return substr(rest, 1, RLENGTH)
}
function string(    s) { s = take("\"([^\"\\\\]|\\\\.)*\"", "a string"); return substr(s, 2, length(s) - 2) }
function value(path,    c, n, key) {
    space()
    c = substr(text, at, 1)
    if (c == "{") {
        at++; space()
        if (substr(text, at, 1) == "}") { at++; return }
        do { space(); key = string(); space(); take(":", "a colon"); value(path == "" ? key : path "." key); space() } while (take("[,}]", "a comma or }") == ",")
    } else if (c == "[") {
        at++; space()
        if (substr(text, at, 1) == "]") { at++; return }
        do { value(path "[" n++ + 0 "]"); space() } while (take("[],]", "a comma or ]") == ",")
    } else if (c == "\"") print path "=" string()
    else print path "=" take("(-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null)", "a value")
}
{ text = text $0 "\n" }
END {
    if (bad) exit 1
    at = 1
    value("")
    space()
    if (at <= length(text)) fail("something behind the end")
}
