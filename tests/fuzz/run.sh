#!/bin/sh
# Runs every fuzz target for SECONDS (default 600), two at a time; findings and what is new stay in OUT.
#   cmake -G Ninja -S . -B build/fuzz -DCMAKE_C_COMPILER=clang -DTRIA_FUZZ=ON -DTRIA_SANITIZE=address,undefined
#   tests/fuzz/run.sh build/fuzz OUT [SECONDS] [KIND...]
set -eu
build=$1
out=$2
seconds=${3:-600}
[ $# -lt 3 ] && shift 2 || shift 3
here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || set -- dialect_a dialect_b dialect_c tria5 checkpoint zip torch json safetensors model

one() {
    mkdir -p "$out/$1/corpus" "$out/$1/findings"
    if "$build/tests/fuzz_$1" -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=1024 \
        -malloc_limit_mb=256 -artifact_prefix="$out/$1/findings/" "$out/$1/corpus" "$here/corpus/$1" \
        >"$out/$1/log" 2>&1; then
        echo "$1: no finding; $(tail -1 "$out/$1/log")"
    else
        echo "$1: FAILED, see $out/$1/log"
    fi
}

while [ $# -gt 0 ]; do
    one "$1" &
    shift
    if [ $# -gt 0 ]; then
        one "$1" &
        shift
    fi
    wait
done
