#!/bin/sh
# Without a network fetch.sh says so in one line and fails; nothing half-fetched is taken for complete.
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip --version >/dev/null 2>&1 || {
    echo "SKIPPED: no pip"
    exit 77
}
# An index that refuses connections stands for the missing network.
export PIP_INDEX_URL=http://127.0.0.1:9/simple PIP_FIND_LINKS='' PIP_RETRIES=0 PIP_CONFIG_FILE=/dev/null
for what in model llama.cpp; do
    if TRIA_CACHE=$work/cache "$here/fetch.sh" $what >"$work/out" 2>"$work/err"; then
        echo "FAILED: fetch.sh $what succeeded without a network"
        exit 1
    fi
    if [ "$(wc -l <"$work/err")" != 1 ] || ! grep -q 'fetch: error: .*no network' "$work/err"; then
        echo "FAILED: not one clear line:"
        cat "$work/err"
        exit 1
    fi
    cat "$work/err"
done
if [ -n "$(ls -A "$work/cache")" ]; then
    echo "FAILED: left behind: $(ls -A "$work/cache")"
    exit 1
fi
