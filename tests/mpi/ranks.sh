#!/bin/sh
# ranks.sh PROGRAM: 1, 2 and 4 ranks print the same keep sets, in every mode and split that exchanges data.
set -eu
program=$1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
run() {
    mpirun --oversubscribe -n "$1" "$program" --mode "$2" --split "$3"
}
for mode in per-layer-per-head per-head per-layer union global; do
    for split in heads layers; do
        one=$(run 1 $mode $split)
        test "$(echo "$one" | wc -l)" -eq 16
        for ranks in 2 4; do
            if [ "$one" != "$(run $ranks $mode $split)" ]; then
                echo "$mode split by $split: $ranks ranks differ from one" >&2
                exit 1
            fi
        done
        echo "$mode split by $split: 1, 2 and 4 ranks agree"
    done
done
