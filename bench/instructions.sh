#!/bin/sh
# Instructions per row of the inner loops, counted under valgrind: the same on a busy machine and an idle one.
# valgrind runs AVX2 code; the limits are what GCC 12 makes of it and a tenth more.
#
#   instructions.sh COUNT_PROGRAM
#
# Exit code: 0 within the limits, 1 above one, 77 when nothing can be counted here.
set -eu
program=$1
fewer=8192
more=16384

command -v valgrind >/dev/null || { echo "no valgrind: nothing counted"; exit 77; }
kernels=$(valgrind --quiet "$program" kernels 1 2>/dev/null || true)
[ "$kernels" = avx2 ] || { echo "kernels under valgrind are '$kernels', not avx2: nothing counted"; exit 77; }

count() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
        sed -n 's/.*Collected *: *\([0-9]*\).*/\1/p'
}

status=0
printf '%-12s %12s %12s\n' case per-row limit
while read -r case limit; do
    few=$(count "$case" $fewer)
    many=$(count "$case" $more)
    tenths=$(((many - few) * 10 / (more - fewer)))
    printf '%-12s %10d.%d %12d\n' "$case" $((tenths / 10)) $((tenths % 10)) "$limit"
    if [ "$tenths" -gt $((limit * 10)) ]; then
        echo "$case: above its limit"
        status=1
    fi
done <<LIMITS
f32 458
f16 443
bf16 473
q8_0 643
f16-kept 293
select 25
group 13
LIMITS
exit $status
