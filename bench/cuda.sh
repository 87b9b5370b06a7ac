#!/bin/sh
# Everything there is to see of the CUDA backend on a real GPU, in one go and under eight minutes: build,
# golden cases, random sweep, compute-sanitizer, the example host with its captured graph, times.
#
#     bench/cuda.sh [BUILD_FOLDER]        results: BUILD_FOLDER/cuda-results/, to be copied to bench/
#
# Steps that cannot be run are reported as SKIPPED; the exit status is the number of steps that failed. Without a
# GPU everything is built (for sm_90), nothing run, and the exit status is 77.
set -u
source_dir=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$source_dir/build/gpu}
out=$build/cuda-results
failed=0
mkdir -p "$out"

step() { # NAME SECONDS COMMAND...
    name=$1
    seconds=$2
    shift 2
    [ -n "$architecture" ] || seconds=0 # a build of its own may take its time
    begin=$(date +%s)
    timeout "$seconds" "$@" >"$out/$name.log" 2>&1
    status=$?
    took=$(($(date +%s) - begin))
    case $status in
    0) echo "ok       $name (${took} s): $(tail -n 1 "$out/$name.log")" ;;
    77) echo "SKIPPED  $name: $(tail -n 1 "$out/$name.log")" ;;
    *)
        echo "FAILED   $name with status $status, see $out/$name.log"
        failed=$((failed + 1))
        ;;
    esac
}

architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
if [ -n "$architecture" ]; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/card.txt"
else
    echo "nvidia-smi finds no GPU: only building, to see that it can be done"
fi
sm=${architecture:-90}
command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || {
    echo "SKIPPED: there is no nvcc in the PATH or in /usr/local/cuda/bin"
    exit 77
}

step configure 60 cmake -S "$source_dir" -B "$build" -DCMAKE_BUILD_TYPE=Release -DTRIA_CUDA=ON -DTRIA_HIP=OFF \
    -DTRIA_VULKAN=OFF -DTRIA_IMPORT=OFF -DCMAKE_CUDA_ARCHITECTURES="$sm"
step build 240 cmake --build "$build" -j "$(nproc)" --target tria_cuda tria_static tria_shared test_score_golden \
    test_select_golden test_compact_golden tria-cuda-host
export TRIA_BACKEND_PATH="$build/src/tria"
export TRIA_TEST_BACKEND=cuda
flags="-O2 -I$source_dir/include -I$source_dir/src -I$source_dir/tests/kernels -I$source_dir/tests/vulkan"
# shellcheck disable=SC2086 # a list
step build-random 60 nvcc $flags -o "$build/random" "$source_dir/tests/kernels/test_random.c" \
    "$source_dir/tests/vulkan/config.c" "$source_dir/tests/kernels/device_real.cpp" "$build/src/libtria.a" -lm -lpthread -ldl
step build-bench 60 nvcc -O3 -std=c++17 -arch="sm_$sm" -I"$source_dir/include" -I"$source_dir/backends/cuda" \
    -o "$build/cuda_bench" "$source_dir/bench/cuda_bench.cu" "$build/src/libtria.a" -lm -lpthread -ldl

if [ -z "$architecture" ]; then
    echo "SKIPPED: everything else needs a GPU"
    [ "$failed" -gt 0 ] || exit 77
    exit "$failed"
fi

for kind in score select compact; do
    step "golden-$kind" 60 "$build/tests/test_${kind}_golden"
done
TRIA_TEST_COUNT=300 step random 60 "$build/random"
host="$build/examples/cuda_host/tria-cuda-host"
step host 30 "$host" --rounds 20
for tool in memcheck racecheck initcheck; do
    if command -v compute-sanitizer >/dev/null; then
        step "$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 1 "$host" --layers 2 --rounds 2
    else
        echo "SKIPPED  $tool: compute-sanitizer is not installed"
    fi
done

header="card,model,layers,dtype,rows,K MB,copy GB/s,score ms,score GB/s,score % of copy,event ms,event / reading K once"
header="$header,compact stable ms,compact fill_holes ms,compact % of event,plain kernel ms"
echo "$header" >"$out/times.csv"
for model in qwen3-8b llama-3.1-70b; do
    for dtype in f16 bf16 fp8_e4m3fn q8_0; do
        for rows in 8192 32768 131072; do
            step "bench-$model-$dtype-$rows" 30 "$build/cuda_bench" $model $dtype $rows
            grep , "$out/bench-$model-$dtype-$rows.log" >>"$out/times.csv"
        done
    done
    step "torch-$model" 60 python3 "$source_dir/bench/cuda_torch.py" $model 32768
    grep , "$out/torch-$model.log" >>"$out/torch.csv"
done
cat "$out/times.csv"
echo "$failed steps failed"
exit "$failed"
