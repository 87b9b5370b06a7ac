#!/bin/bash
# Formatting, clang-tidy and cppcheck over what is tracked. Needs a configured build for its compile commands.
#
# Usage: tests/lint.sh BUILD_FOLDER
set -euo pipefail
build=$(realpath "$1")
cd "$(dirname "$0")/.."
jobs=${TRIA_JOBS:-$(nproc)}

echo "== lint: clang-format"
git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror

echo "== lint: clang-tidy"
# Files of the build that are ours and C; gcc-only options in the commands are not clang's to judge.
python3 - "$build/compile_commands.json" "$PWD/src/" > "$build/tidy.list" << 'PYTHON'
import json, sys
files = {entry["file"] for entry in json.load(open(sys.argv[1]))}
print("\n".join(sorted(f for f in files if f.startswith(sys.argv[2]) and f.endswith(".c"))))
PYTHON
xargs -a "$build/tidy.list" -P "$jobs" -n 4 clang-tidy --quiet -p "$build" \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-value

echo "== lint: cppcheck"
cppcheck --quiet --error-exitcode=1 --std=c11 -j "$jobs" --enable=warning,performance,portability --inline-suppr \
    --suppress=unusedStructMember --suppress=missingIncludeSystem --library=posix -D_GNU_SOURCE -DTRIA_BUILD \
    -D__GNUC__ -D__x86_64__ -I include -I src -I src/cli src
echo "== lint: clean"
