#!/bin/bash
# Installs a build into a scratch prefix, then builds and runs a consumer against it: with pkg-config (shared and
# static), with find_package, and the installed command. Nothing of the source tree is visible to the consumers.
#
# Usage: run.sh BUILD_FOLDER SCRATCH_FOLDER [COMPILER [FLAGS...]]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(realpath "$1")
scratch=$(realpath -m "$2")
cc=${3:-cc}
flags=("${@:4}")

rm -rf "$scratch"
mkdir -p "$scratch"
cmake --install "$build" --prefix "$scratch/prefix" > "$scratch/install.log"
libdir=$(dirname "$(find "$scratch/prefix" -name libtria.so)")
export PKG_CONFIG_PATH=$libdir/pkgconfig
# The prefix was given at install time; the files say that of configure time unless told.
pc() { pkg-config --define-variable=libdir="$libdir" --define-variable=includedir="$scratch/prefix/include" "$@" tria; }

read -ra cflags <<< "$(pc --cflags)"
read -ra libs <<< "$(pc --libs)"
"$cc" -std=c11 -Wall -Wextra -Werror "${flags[@]}" "${cflags[@]}" "$here/consumer.c" "${libs[@]}" -lm -o "$scratch/shared"
LD_LIBRARY_PATH=$libdir "$scratch/shared"

read -ra libs <<< "$(pc --libs --static)"
"$cc" -std=c11 "${flags[@]}" "${cflags[@]}" "$here/consumer.c" "${libs[@]/#-ltria/-l:libtria.a}" -o "$scratch/static"
"$scratch/static"

cmake -S "$here" -B "$scratch/project" -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_C_FLAGS="${flags[*]}" > "$scratch/configure.log"
cmake --build "$scratch/project" > "$scratch/build.log"
"$scratch/project/consumer_tria"
"$scratch/project/consumer_tria_static"

version=$("$scratch/prefix/bin/tria" --version)
[ "$version" = "tria $(pc --modversion)" ] || { echo "tria --version says $version"; exit 1; }
echo "installed: $version, $(find "$scratch/prefix/include" -name '*.h' | wc -l) headers"
