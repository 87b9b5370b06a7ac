#!/bin/bash
# The example on the real model, short: fetches the engine and the model, builds, runs the end-to-end
# tests, and checks on a few passkey trials that libtria's choice beats the controls. Called by .ci/run.
set -euo pipefail
cd "$(dirname "$0")/../.."
export TRIA_CACHE=${TRIA_CACHE:-$PWD/.cache}
build=${TRIA_BUILD:-build}/llama-ci
jobs=${TRIA_JOBS:-$(nproc)}
programs=$build/examples/llama_cpp

missing=()
python3 -m pip --version > /dev/null 2>&1 || missing+=(python3-pip)
command -v c++ > /dev/null || missing+=(g++)
if [ ${#missing[@]} -gt 0 ]; then
    apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

examples/llama_cpp/fetch.sh
JOBS=$jobs examples/llama_cpp/build_llama.sh
cmake -S . -B "$build" -G Ninja -DTRIA_WERROR=ON -DTRIA_CUDA=OFF -DTRIA_HIP=OFF -DTRIA_IMPORT=OFF \
    -DTRIA_LLAMA_DIR="$TRIA_CACHE/llama" > "$build.log" || { cat "$build.log"; exit 1; }
cmake --build "$build" -j "$jobs" --target tria-llama tria_cli
ctest --test-dir "$programs" --output-on-failure
"$programs/tria-llama-eval" --model "$TRIA_CACHE/SmolLM2-135M-Instruct.Q4_1.gguf" \
    --calibration "$programs/test.tria" --text "$TRIA_CACHE/heldout.txt" --tasks passkey --depths 5 --numbers 1 \
    --configs none,tria:25:union:6,random:25,recent:25 --threads 2 --require
