#!/bin/sh
# Scoring and selecting on a Vulkan device, keys staged: the same evictions and the same text as on the CPU,
# for f16 keys and for q8_0 ones. Keys in host memory are not copied to a device unless that is asked for.
#
#   vulkan_test.sh PROGRAM MODEL CALIBRATION
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() {
    "$program" --model "$model" --calibration "$calibration" --raw --prompt 'Once upon a time' --cells 256 --budget 128 \
        --interval 64 --recent 32 --n-predict 260 --ignore-eos --temperature 0 --threads 1 --log "$@"
}
program=$1
model=$2
calibration=$3
if ! say --backend vulkan --stage --n-predict 1 >"$work/text" 2>"$work/log"; then
    cat "$work/log"
    grep -q 'error: vulkan: ' "$work/log" || exit 1
    echo "SKIPPED: no Vulkan plugin or device"
    exit 77
fi
for type in f16 q8_0; do
    say --cache-type-k $type >"$work/cpu" 2>"$work/cpu.log"
    say --cache-type-k $type --backend vulkan --stage >"$work/vulkan" 2>"$work/vulkan.log"
    cat "$work/vulkan.log"
    grep -q '^\[scored on vulkan: ' "$work/vulkan.log"
    [ "$(grep -c '^\[eviction .* 192 -> 128 rows' "$work/vulkan.log")" = 2 ]
    cmp "$work/cpu" "$work/vulkan"
done
if say --backend vulkan >"$work/text" 2>"$work/log"; then
    echo "FAILED: keys were staged without --stage"
    exit 1
fi
tail -n 1 "$work/log"
grep -q 'error: .*stag' "$work/log"
