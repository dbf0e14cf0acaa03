# info.sh: attn info
# SPDX-License-Identifier: MIT
. "$CASES/common.sh"
"$ATTN" info | sed -n -e 's/^\(version  *[0-9]*\.[0-9]*\.[0-9]*\) .*/\1/p' -e 's/^isa .*\(scalar\).*/\1/p' -e '/^threads  *[1-9][0-9]* may be used/s/.*/threads/p' -e '/^dtypes/p'
"$ATTN" info --json | flat | grep -e '^format' -e '^version' -e '^library'
"$ATTN" info --json | flat | grep -A 1 'name=scalar' | cut -d . -f 2
"$ATTN" --version
