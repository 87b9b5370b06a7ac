#!/bin/bash
# Every symbol that a library exports begins with tria_, and they are exactly the functions that its headers mark
# TRIA_API.
#
# Usage: check_exports.sh LIBRARY HEADER...
set -euo pipefail
library=$1
shift
exported=$(nm --dynamic --defined-only --format=posix "$library" | awk 'NF > 2 && $2 != "w" && $2 != "W" {print $1}' | sort -u)
stray=$(grep -v '^tria_' <<< "$exported" || true)
if [ -n "$stray" ]; then
    echo "exported, but not named tria_...:" $stray
    exit 1
fi
# Declarations may span lines: join them, cut at semicolons, take the name before the first parenthesis.
declared=$(cat "$@" | sed 's|/\*.*\*/||' | grep -v '^#' | tr '\n' ' ' | tr ';' '\n' | grep 'TRIA_API ' |
    sed 's/.*TRIA_API //; s/(.*//; s/.*[ *]//' | sort -u)
missing=$(comm -23 <(echo "$declared") <(echo "$exported"))
extra=$(comm -13 <(echo "$declared") <(echo "$exported"))
if [ -n "$missing$extra" ]; then
    [ -z "$missing" ] || echo "declared TRIA_API, but not exported:" $missing
    [ -z "$extra" ] || echo "exported, but declared in no public header:" $extra
    exit 1
fi
echo "$(wc -l <<< "$exported") exported functions"
