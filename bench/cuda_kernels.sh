#!/bin/sh
# What the compiler says of every CUDA kernel: registers, spills, shared memory; and the width of the loads in
# the score kernels' machine code. Needs no GPU.
#
#     bench/cuda_kernels.sh PTXAS_LOG [PLUGIN]     PTXAS_LOG: what building the target tria_cuda printed
#
# The second part needs cuobjdump and nvdisasm in the PATH.
set -eu
log=$1
plugin=${2:-}

echo "| kernel | architecture | registers | stack bytes | spilled bytes (stores, loads) | static shared bytes |"
echo "|---|---|---|---|---|---|"
awk '
    /Compiling entry function/ { split($0, part, "\047"); name = part[2]; arch = part[4] }
    /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
    /Used [0-9]+ registers/ {
        match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
        shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH - 11) : 0
        print "| " name " | " arch " | " registers " | " stack " | " stores ", " loads " | " shared " |"
    }' "$log" | c++filt -i | sed 's/tria_gpu:://g; s/(ScoreArgs)//; s/([A-Za-z]*Args)//; s/(Call)//; s/void //' | sort -u

if [ -n "$plugin" ]; then
    command -v cuobjdump >/dev/null || {
        echo "cuobjdump is not in the PATH" >&2
        exit 1
    }
    echo
    echo "Loads other than from shared or constant memory in the score kernels, by width in bits:"
    echo
    echo "| kernel | architecture | 128 | 64 | 32 | 16 | 8 |"
    echo "|---|---|---|---|---|---|---|"
    cuobjdump -sass "$plugin" | awk '
        /arch = / { arch = $3 }
        /Function : / {
            name = $3
            if (name ~ /score/) { keys[name " | " arch] = 1 }
        }
        name ~ /score/ && match($0, / LDG?(\.[A-Z0-9]+)* /) {
            code = substr($0, RSTART, RLENGTH)
            width = code ~ /\.128/ ? 128 : code ~ /\.64/ ? 64 : code ~ /\.[US]16/ ? 16 : code ~ /\.[US]8/ ? 8 : 32
            count[name " | " arch, width]++
        }
        END {
            for (key in keys) {
                line = "| " key
                split("128 64 32 16 8", widths, " ")
                for (i = 1; i <= 5; i++) { line = line " | " (count[key, widths[i]] + 0) }
                print line " |"
            }
        }' | c++filt -i | sed 's/tria_gpu:://g; s/(ScoreArgs)//; s/void //' | sort
    echo
    generic=$(cuobjdump -sass "$plugin" | grep -cE ' (LD|ST|ATOM)(\.[A-Z0-9]+)* ' || true)
    echo "Loads, stores and atomic operations that have to find out which memory they go to, in all kernels: $generic."
fi
