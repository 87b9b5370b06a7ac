#!/bin/bash
# The NumPy host on the real model, from nothing.
#
#   examples/numpy_host/run.sh evaluate    calibrates and measures what eviction costs in each mode: the table in
#                                          README.md. 80,000 tokens, at 430 a second on two idle cores
#   examples/numpy_host/run.sh check       are its logits llama.cpp's, and every eviction an exact gather? (CI)
#
# Environment: TRIA_CACHE, TRIA_BUILD and TRIA_THREADS as for ../quickstart.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
export TRIA_CACHE=${TRIA_CACHE:-$PWD/.cache}
export OPENBLAS_NUM_THREADS=${TRIA_THREADS:-2}
build=${TRIA_BUILD:-build}/numpy-host
jobs=${TRIA_JOBS:-$(nproc)}
here=examples/numpy_host
model=$TRIA_CACHE/SmolLM2-135M-Instruct.Q4_1.gguf
python=$TRIA_CACHE/venv/bin/python

make_environment()
{
    if ! "$python" -c 'import gguf, numpy, tokenizers' 2> /dev/null; then
        if ! python3 -c 'import ensurepip' 2> /dev/null; then
            apt-get update -q && apt-get install -y -q --no-install-recommends python3-venv
        fi
        python3 -m venv "$TRIA_CACHE/venv"
        "$python" -m pip install --quiet --disable-pip-version-check --requirement $here/requirements.txt
    fi
}

build_targets()
{
    cmake -S . -B "$build" -G Ninja -DTRIA_CUDA=OFF -DTRIA_HIP=OFF -DTRIA_VULKAN=OFF -DTRIA_IMPORT=OFF \
        -DTRIA_TESTS=OFF -DTRIA_LLAMA_DIR="$TRIA_CACHE/llama" > "$build.log" || { cat "$build.log"; exit 1; }
    cmake --build "$build" -j "$jobs" --target "$@"
}

[[ ${1:-} =~ ^(check|evaluate)$ ]] || { echo "usage: run.sh check|evaluate" >&2; exit 2; }
mkdir -p "$build"
examples/llama_cpp/fetch.sh model texts
make_environment
case $1 in
check)
    examples/llama_cpp/fetch.sh llama.cpp
    JOBS=$jobs examples/llama_cpp/build_llama.sh
    build_targets tria_shared numpy-llama-logits
    $here/check.sh "$python" "$build/$here/numpy-llama-logits" "$build/src/libtria.so" "$model" "$TRIA_CACHE"
    ;;
evaluate)
    build_targets tria_shared
    export TRIA_LIBRARY=$build/src/libtria.so
    "$python" $here/calibrate.py --model "$model" --text "$TRIA_CACHE/calibration.txt" --output "$build/model.tria"
    "$python" $here/evaluate.py --model "$model" --calibration "$build/model.tria" --text "$TRIA_CACHE/heldout.txt" \
        --json "$build/results.json" | tee "$build/results.md"
    ;;
esac
