#!/bin/bash
# every file says what it is and its licence; no path of anybody's machine
# SPDX-License-Identifier: MIT
. "$(dirname "$0")/lib.sh"
rc=0
files=$(find . \( -name .git -o -name '.venv*' -o -name 'build*' -o -name __pycache__ -o -name '.*cache' -o -name .hypothesis \) -prune -o -type f -print)
for file in $files; do
    case $file in
    *.c | *.h | *.inc | *.py | *.sh | *.cmake | ./CMakeLists.txt | ./Makefile | ./.ci/run)
        head -n 4 "$file" | grep -q 'SPDX-License-Identifier: MIT' || { echo "$file: no SPDX line in its first lines"; rc=1; } ;;
    esac
    case $file in
    *.c | *.h | *.inc | *.py | *.sh | *.cmake | *.in | *.md | *.json | *.txt | *.1 | *.3 | *.7 | ./Makefile | ./.ci/run)
        # The pattern is in two parts so that this file does not match itself.
        if grep -nE '(^|[^A-Za-z0-9_.$}])/(ro''ot|ho''me|wo''rk|Us''ers|op''t)/' "$file" /dev/null; then rc=1; fi
        if grep -nE '[[:blank:]]+$' "$file" /dev/null | grep -v '\.md:'; then echo "$file: blanks at the end of a line"; rc=1; fi ;;
    esac
done
if grep -rnE --include='*.[ch]' --include='*.inc' '^#if 0|\b(TO''DO|FIX''ME|XX''X)\b' include src layer io cli tests bench 2> /dev/null; then rc=1; fi
if grep -rnE --include='*.[ch]' --include=CMakeLists.txt --include='*.cmake' 'ffast-ma''th|-Ofa''st' . --exclude-dir='build*' --exclude-dir='.venv*'; then rc=1; fi
exit $rc
