#!/bin/bash
# From nothing to a table: builds libtria and an unmodified llama.cpp, calibrates a small chat model on a
# novel, measures what eviction costs on another one, and generates far past the engine's KV cells.
#
#   examples/quickstart.sh
#
# Needs Debian 12 or like it and a network; a quarter of an hour on two cores, downloads of 175 MB. As root
# it installs the packages it lacks, otherwise it prints the line that does. A second run reuses all that
# the first one fetched, built and calibrated, and prints the same quality numbers.
#   TRIA_CACHE=FOLDER   downloads, llama.cpp's build, the calibration; default .cache in the checkout
#   TRIA_BUILD=FOLDER   where to build, default build/ in the checkout
#   TRIA_THREADS=N      threads for the model, default 2
set -euo pipefail
cd "$(dirname "$0")/.."
export TRIA_CACHE=${TRIA_CACHE:-$PWD/.cache}
build=${TRIA_BUILD:-build}/quickstart
threads=${TRIA_THREADS:-2}
programs=$build/examples/llama_cpp
model=$TRIA_CACHE/SmolLM2-135M-Instruct.Q4_1.gguf
calibration=$TRIA_CACHE/SmolLM2-135M-Instruct.tria
calibration_tokens=32768
export JOBS=${JOBS:-$(nproc)}

step()
{
    local name=$1 start=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    "$@"
    printf '== %s: %d s\n' "$name" $((SECONDS - start))
}

install_packages()
{
    local tool package missing=()
    while read -r tool package; do
        command -v "$tool" > /dev/null || missing+=("$package")
    done << 'END'
cc gcc
c++ g++
cmake cmake
ninja ninja-build
python3 python3
dpkg-deb dpkg
END
    python3 -m pip --version > /dev/null 2>&1 || missing+=(python3-pip)
    if [ ${#missing[@]} -eq 0 ]; then
        echo "nothing is missing"
    elif [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
        echo "quickstart: error: packages are missing; run: sudo apt-get update && sudo apt-get install -y" \
            "--no-install-recommends libc6-dev ${missing[*]}" >&2
        exit 1
    else
        apt-get update -q
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends libc6-dev "${missing[@]}"
    fi
}

build_tria()
{
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIA_TESTS=OFF -DTRIA_CUDA=OFF -DTRIA_HIP=OFF \
        -DTRIA_VULKAN=OFF -DTRIA_IMPORT=OFF -DTRIA_LLAMA_DIR="$TRIA_CACHE/llama" > "$build.log" ||
        { cat "$build.log"; exit 1; }
    cmake --build "$build" -j "$JOBS" --target tria-llama-calibrate tria-llama-eval tria-llama-generate
}

calibrate()
{
    local stamp
    # Another program, model, text or length makes another calibration.
    stamp=$(cat "$TRIA_CACHE/model.sha256" "$TRIA_CACHE/texts.sha256" examples/llama_cpp/{calibrate,capture}.c |
        sha256sum | cut -d' ' -f1)-$calibration_tokens
    if [ -f "$calibration" ] && [ "$(cat "$calibration.stamp" 2> /dev/null)" = "$stamp" ]; then
        echo "calibration is in place: $calibration"
        return
    fi
    "$programs/tria-llama-calibrate" --model "$model" --text "$TRIA_CACHE/calibration.txt" \
        --tokens "$calibration_tokens" --threads "$threads" --output "$calibration"
    printf '%s\n' "$stamp" > "$calibration.stamp"
}

# Budgets are shares of the task's tokens. Neighbour pooling (pool 6) scores a row by the best within 6
# positions: a number is five tokens, and keeping three of them keeps nothing.
measure()
{
    "$programs/tria-llama-eval" --model "$model" --calibration "$calibration" --text "$TRIA_CACHE/heldout.txt" \
        --configs none,tria:50:union:6,tria:25:union:6,tria:25,random:25,recent:25 \
        --threads "$threads" --json "$build/results.json" --require | tee "$build/results.md"
}

generate()
{
    "$programs/tria-llama-generate" --model "$model" --calibration "$calibration" --threads "$threads" --raw \
        --prompt "The lighthouse had stood on the rock for a hundred years, and" --cells 256 --budget 128 \
        --interval 64 --recent 32 --n-predict 700 --ignore-eos --seed 1
}

mkdir -p "$TRIA_CACHE" "$(dirname "$build")"
step "packages" install_packages
step "downloads" examples/llama_cpp/fetch.sh
step "llama.cpp" examples/llama_cpp/build_llama.sh
step "libtria" build_tria
step "calibration" calibrate
step "what eviction costs" measure
step "700 tokens through 256 KV cells" generate
printf '\nThe table, also in %s:\n\n' "$build/results.md"
cat "$build/results.md"
printf '\nall done in %d s\n' "$SECONDS"
