#!/bin/sh
# The command's golden lines on the Vulkan backend: what `tria select` and `tria compact` write must be what
# they write on the CPU, byte for byte. And `tria bench` must measure every part.
#   cli.sh TRIA DATA
tria=$1
data=$2
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT

"$tria" backends 2>/dev/null | grep -A1 '^vulkan' | grep -q 'device 0' || {
    echo "SKIPPED: no Vulkan device"
    exit 77
}
failed=0
count=0
for folder in "$data"/golden_spec/compact_q8_0 "$data"/golden_spec/modes; do
    mkdir -p "$out/cpu" "$out/vulkan"
    lines=$(sed -n 's/^cli\.[^ ]* \(compact\|select\) /\1 /p' "$folder/manifest.txt")
    while read -r line; do
        [ -n "$line" ] || continue
        for backend in cpu vulkan; do
            arguments=$(printf '%s' "$line" | sed "s|{d}|$folder|g; s|{o}|$out/$backend|g")
            # shellcheck disable=SC2086 # the line is a list of words
            "$tria" $arguments --backend $backend >/dev/null || {
                echo "failed on $backend: $line"
                failed=$((failed + 1))
            }
        done
        count=$((count + 1))
    done <<LINES
$lines
LINES
    diff -r "$out/cpu" "$out/vulkan" || failed=$((failed + 1))
    rm -rf "$out/cpu" "$out/vulkan"
done
report=$("$tria" bench --backend vulkan --shape 2,4,2,32 --rows 300 --repeat 2 --json) || failed=$((failed + 1))
echo "$report" | python3 -c '
import json, sys
report = json.load(sys.stdin)
parts = [report[part]["seconds"] for part in ("score", "normalise", "select", "compact", "event")]
sys.exit(report["backend"] != "vulkan" or not min(parts + [report["read_gbps"]]) > 0)' || {
    echo "bench: not all is measured: $report"
    failed=$((failed + 1))
}
echo "$count lines, $failed failures"
[ "$failed" -eq 0 ] && [ "$count" -gt 20 ]
