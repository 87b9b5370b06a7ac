#!/bin/sh
# A recorded run, and the same run again from its tokens: the same evictions to the byte, each token once, and
# every keep set recomputed from the trace. Then one dump, and a dump that never comes.
#
#   trace_test.sh GENERATE TRIA MODEL CALIBRATION
set -eu
tria=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# run NAME OPTION...: a run of the program, its output in $work/NAME.txt, its messages in $work/NAME.log
generate=$1
model=$3
calibration=$4
run() {
    name=$1
    shift
    "$generate" --model "$model" --calibration "$calibration" --raw --cells 256 --budget 96 --interval 32 --recent 16 \
        --threads 1 "$@" >"$work/$name.txt" 2>"$work/$name.log"
}
# said WORDS NAME: the messages of that run, or the file of that name, hold WORDS
said() {
    grep -q -- "$1" "$work/$2" || {
        echo "no '$1' in $2:"
        cat "$work/$2"
        exit 1
    }
}

# Two turns, 100 tokens chosen in each.
printf 'Once upon a time in a small town by the sea\nThe next morning everybody\n' |
    run first --n-predict 100 --ignore-eos --seed 7 --record "$work/tokens" --trace "$work/first.trace"
run again --teacher "$work/tokens" --record "$work/tokens2" --trace "$work/again.trace"
cmp "$work/first.txt" "$work/again.txt"
cmp "$work/tokens" "$work/tokens2"
cmp "$work/first.trace" "$work/again.trace"

# Rows appended = tokens recorded = tokens in the trace, prompts included once.
tokens=$(grep -v '^prompt' "$work/tokens" | grep -vc '^tria-tokens')
prompts=$(grep '^prompt' "$work/tokens" | cut -d: -f2 | wc -w)
said "^\[t = $((tokens + prompts)) tokens " first.log
said "^\[t = $((tokens + prompts)) tokens " again.log
"$tria" replay "$work/again.trace" >"$work/replay.txt"
cat "$work/replay.txt"
said "^$((tokens + prompts)) tokens recorded, $prompts of them in prompts" replay.txt
evictions=$(grep -c '^\[eviction' "$work/again.log")
[ "$evictions" -ge 3 ]
said "^$evictions compactions, $evictions recomputed" replay.txt
said "all $evictions keep sets are identical" replay.txt

# The second eviction alone: the run stops there.
run dump --teacher "$work/tokens" --trace "$work/dump.trace" --dump 2
[ "$(grep -c '^\[eviction' "$work/dump.log")" = 2 ]
"$tria" replay --json "$work/dump.trace" >"$work/dump.json"
said '"compactions": *1,' dump.json
said '"exact": *1,' dump.json

# One that never comes: said by the run and by the trace.
if run missing --teacher "$work/tokens" --trace "$work/missing.trace" --dump 99; then
    echo "a dump that never came was not reported"
    exit 1
fi
said "error: .*compaction 99 was to be dumped, there were only $evictions" missing.log
"$tria" replay "$work/missing.trace" >"$work/missing.txt" 2>&1
said 'compaction 99 was to be dumped and never came' missing.txt

# Other settings on the same tokens make other evictions: the comparison above can fail.
run other --teacher "$work/tokens" --sinks 8 --trace "$work/other.trace"
cmp -s "$work/first.txt" "$work/other.txt"
if cmp -s "$work/first.trace" "$work/other.trace"; then
    echo "other settings gave the same trace"
    exit 1
fi
