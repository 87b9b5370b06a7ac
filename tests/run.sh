#!/bin/bash
# Installs what the tests need, builds with warnings as errors, and runs all tests: once as users build the library,
# once under the address and undefined-behaviour sanitizers.
#
# Usage: tests/run.sh            (from anywhere; Debian 12 or like it)
#   TRIA_BUILD=FOLDER            where to build, default build/ in the checkout
#   TRIA_JOBS=N                  default: the number of processors
set -euo pipefail
cd "$(dirname "$0")/.."
build=${TRIA_BUILD:-build}
jobs=${TRIA_JOBS:-$(nproc)}

packages=(build-essential cmake ninja-build pkg-config libcmocka-dev python3 valgrind
    libjansson-dev libzip-dev                                                          # import library
    libvulkan-dev glslc spirv-tools mesa-vulkan-drivers vulkan-validationlayers        # Vulkan on the CPU
    libopenmpi-dev openmpi-bin)                                                        # tensor parallel example

# Prints the packages that are not installed.
missing_packages()
{
    dpkg-query -W -f '${Package} ${db:Status-Abbrev}\n' "$@" 2> /dev/null | awk '$2 == "ii" {print $1}' | sort > "$installed"
    printf '%s\n' "$@" | sort | comm -23 - "$installed"
}

install_packages()
{
    local missing
    command -v dpkg-query > /dev/null || { echo "tests/run.sh: no dpkg here; needed are the likes of: ${packages[*]}"; return; }
    installed=$(mktemp)
    missing=$(missing_packages "${packages[@]}" | tr '\n' ' ')
    rm -f "$installed"
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        echo "tests/run.sh: these packages are missing; run" >&2
        echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends $missing" >&2
        exit 1
    fi
    echo "== installing $missing"
    apt-get update -q
    # shellcheck disable=SC2086 # a list of names
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
}

# Configures, builds and tests one preset-like variant: NAME, then cmake options.
run_variant()
{
    local name=$1
    shift
    echo "== $name: build"
    cmake -S . -B "$build/$name" -G Ninja "$@" > "$build/$name.configure.log" ||
        { cat "$build/$name.configure.log"; exit 1; }
    grep '^-- tria' "$build/$name.configure.log" || true # what is left out, and why
    cmake --build "$build/$name" -j "$jobs"
    echo "== $name: tests"
    ctest --test-dir "$build/$name" --output-on-failure -j "$jobs"
}

install_packages
mkdir -p "$build"
run_variant check -DTRIA_WERROR=ON
# gcc warns without reason in instrumented code, so here warnings are no errors. Device code was compiled above;
# what the sanitizers can watch are the same kernels run on the CPU.
run_variant sanitize -DTRIA_SANITIZE=address,undefined -DTRIA_CUDA=OFF -DTRIA_HIP=OFF "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1 -g" \
    "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g"
echo "== all tests passed"
