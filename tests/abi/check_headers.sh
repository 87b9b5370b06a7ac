#!/bin/bash
# Every public header compiles alone, as strict C11 and as C++, twice in one file, without a warning.
#
# Usage: check_headers.sh INCLUDE_FOLDER C_COMPILER CXX_COMPILER
set -euo pipefail
include=$1
cc=$2
cxx=$3
warnings=(-Wall -Wextra -Wpedantic -Wconversion -Werror)
for header in "$include"/tria/*.h; do
    name=tria/$(basename "$header")
    text=$(printf '#include "%s"\n#include "%s"\nint tria_header_test;\n' "$name" "$name")
    "$cc" -std=c11 "${warnings[@]}" -I"$include" -fsyntax-only -x c - <<< "$text"
    "$cxx" -std=c++11 "${warnings[@]}" -I"$include" -fsyntax-only -x c++ - <<< "$text"
done
echo "$(ls "$include"/tria/*.h | wc -l) headers"
