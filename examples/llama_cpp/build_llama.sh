#!/bin/sh
# Builds llama.cpp's two libraries, llama and ggml (CPU only), once, and installs them and their
# headers into the cache, where this folder's CMake files look for them. llama.cpp is not changed.
#
#   examples/llama_cpp/build_llama.sh [SOURCE [PREFIX]]
#
# SOURCE defaults to what fetch.sh unpacked, PREFIX to "llama" in the cache. Your own source tree works
# as well; give the PREFIX to CMake as -DTRIA_LLAMA_DIR=PREFIX. Environment: TRIA_CACHE, JOBS (default:
# the number of processors).
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${TRIA_CACHE:-$here/../../.cache}
source=${1:-$cache/llama.cpp}
prefix=${2:-$cache/llama}
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}

die() {
    printf 'build_llama: error: %s\n' "$*" >&2
    exit 1
}

[ -f "$source/include/llama.h" ] || die "no llama.cpp source at '$source'; run examples/llama_cpp/fetch.sh llama.cpp"
source=$(CDPATH='' cd -- "$source" && pwd)
for tool in cmake c++; do
    command -v $tool >/dev/null 2>&1 || die "'$tool' is missing; run: apt-get install -y cmake g++ ninja-build"
done

# shellcheck disable=SC2016 # $ORIGIN is for the dynamic linker
set -- -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib '-DCMAKE_INSTALL_RPATH=$ORIGIN' -DBUILD_SHARED_LIBS=ON \
    -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_COMMIT=unknown -DLLAMA_ALL_WARNINGS=OFF -DLLAMA_BUILD_COMMON=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_CURL=OFF -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF \
    -DGGML_METAL=OFF -DGGML_BLAS=OFF

# The libraries are optimised for this machine's processor and belong to this source: both are part of
# the stamp, so that a cache that moved to another machine, or a newer source, is built again.
cpu=$(grep -m1 '^flags' /proc/cpuinfo 2>/dev/null || uname -m)
stamp=$(printf '%s\n' "$source" "$(cat "$source.sha256" 2>/dev/null)" "$cpu" "$@" | sha256sum | cut -d' ' -f1)
if [ -f "$prefix/stamp" ] && [ "$(cat "$prefix/stamp")" = "$stamp" ]; then
    echo "build_llama: llama.cpp is built: $prefix"
    exit 0
fi

mkdir -p "$prefix" || die "cannot create $prefix"
prefix=$(CDPATH='' cd -- "$prefix" && pwd)
build=$prefix/build
rm -rf "$build"
generator='Unix Makefiles'
command -v ninja >/dev/null 2>&1 && generator=Ninja

echo "build_llama: building llama.cpp for the CPU with $jobs jobs (two to four minutes on two cores)"
# The source lies inside another project's work tree: keep its version script from asking that tree.
GIT_CEILING_DIRECTORIES=$(dirname "$source")
export GIT_CEILING_DIRECTORIES
cmake -S "$source" -B "$build" -G "$generator" -DCMAKE_INSTALL_PREFIX="$prefix" "$@" >"$prefix/configure.log" 2>&1 ||
    die "cmake could not configure llama.cpp, see $prefix/configure.log"
cmake --build "$build" --target llama --parallel "$jobs" 2>&1 | tee "$prefix/build.log" | grep --line-buffered '^\[' || true
cmake --install "$build" >"$prefix/install.log" 2>&1 || die "llama.cpp did not build, see $prefix/build.log"
rm -rf "$build"
printf '%s\n' "$stamp" >"$prefix/stamp"
echo "build_llama: llama.cpp is built: $prefix"
