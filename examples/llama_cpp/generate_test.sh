#!/bin/sh
# A generation three times as long as the engine's KV cells: evictions on schedule, and the same text
# again from the same seed.
#
#   generate_test.sh PROGRAM MODEL CALIBRATION
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for run in 1 2; do
    "$1" --model "$2" --calibration "$3" --raw --prompt 'Once upon a time' --cells 256 --budget 128 --interval 64 \
        --recent 32 --n-predict 764 --ignore-eos --seed 7 --threads 1 >"$work/text$run" 2>"$work/log$run"
    grep -c 'eviction' "$work/log$run" >/dev/null
done
cat "$work/log1"
cmp "$work/text1" "$work/text2"
# 4 prompt tokens + 764: evictions at t = 192, 256, ... 768, each 192 -> 128 rows.
[ "$(grep -c '^\[eviction .* 192 -> 128 rows' "$work/log1")" = 10 ]
grep -q '^\[eviction 1: t = 192,' "$work/log1"
grep -q '^\[eviction 10: t = 768,' "$work/log1"
grep -q '768 tokens through 256 KV cells (at most 192 in use), 10 evictions' "$work/log1"

# Ctrl-C ends a turn, not the conversation.
# wait_for COMMAND...: at most two minutes
wait_for() {
    tries=1200
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { cat "$work/log3"; exit 1; }
        sleep 0.1
    done
}
longer() { [ "$(wc -c <"$work/text3")" -gt "$1" ]; }
cancelled() { [ "$(grep -c '^\[cancelled\]' "$work/log3")" = "$1" ]; }
mkfifo "$work/turns"
"$1" --model "$2" --calibration "$3" --raw --cells 256 --budget 128 --interval 64 --recent 32 --n-predict 100000 \
    --ignore-eos --threads 1 <"$work/turns" >"$work/text3" 2>"$work/log3" &
program=$!
exec 3>"$work/turns"
for turn in 1 2; do
    size=$(wc -c <"$work/text3")
    echo 'Once upon a time' >&3
    wait_for longer $((size + 20))
    kill -INT $program
    wait_for cancelled $turn
done
exec 3>&-
wait $program
cat "$work/log3"
grep -q '^\[t = [0-9]* tokens' "$work/log3"
