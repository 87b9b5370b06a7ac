#!/bin/sh
# Runs `tria bench` over shapes, rows, element types and threads; a line of JSON per run.
#
#   run.sh TRIA [OUTPUT.jsonl]        all of it (some minutes)
#   QUICK=1 run.sh TRIA [OUTPUT]      few rows, to see that it works
#
# Numbers of one line belong together: each run measures the machine's own read bandwidth beside the library.
# median.py joins the outputs of several runs.
set -eu
tria=$1
output=${2:-bench.jsonl}
rows_list="1024 8192 32768 131072"
threads_list="1 2"
layers=8
if [ -n "${QUICK:-}" ]; then
    rows_list="1024 4096"
    threads_list=1
    layers=2
fi

run() {
    "$tria" bench --json --layers "$layers" "$@" >>"$output"
    echo "bench $*" >&2
}

: >"$output"
for threads in $threads_list; do
    for rows in $rows_list; do
        run --threads "$threads" --rows "$rows" --dtype f16
    done
    rows=${QUICK:+4096}
    rows=${rows:-32768}
    for dtype in f32 bf16 q8_0 int8 fp8_e4m3fn; do
        run --threads "$threads" --rows "$rows" --dtype $dtype
    done
    for dtype in f16 bf16 q8_0 int8; do
        run --threads "$threads" --rows "$rows" --dtype $dtype --kept-terms
    done
    run --threads "$threads" --rows "$rows" --layout head
    run --threads "$threads" --rows "$rows" --shape smollm2-135m
    run --threads "$threads" --rows "$rows" --shape 8,12,2,256
    run --threads "$threads" --rows "$rows" --mode per-head
    if [ -z "${QUICK:-}" ]; then
        layers=36 # as many sets as the whole model has
        run --threads "$threads" --rows 32768 --repeat 5
        layers=8
    fi
done
