#!/bin/sh
# Runs check.py on llama.cpp's logits for the model as it is and with float weights.
#
# TOKENS in the environment: how many tokens are compared, 128.
#
#   check.sh PYTHON NUMPY-LLAMA-LOGITS LIBTRIA MODEL FOLDER-OF-TEXTS
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
skip() {
    echo "SKIPPED: $*; examples/numpy_host/run.sh check fetches all that is needed"
    exit 77
}
"$1" -c 'import gguf, numpy, tokenizers' 2>/dev/null || skip "no Python with numpy, gguf and tokenizers at $1"
for file in "$4" "$5/calibration.txt" "$5/heldout.txt"; do
    [ -f "$file" ] || skip "no $file"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$2" "$4" "$5/heldout.txt" "${TOKENS:-128}" "$work/quantised.logits"
"$1" "$here/to_f32.py" "$4" "$work/exact.gguf"
"$2" "$work/exact.gguf" "$5/heldout.txt" "${TOKENS:-128}" "$work/exact.logits"
TRIA_LIBRARY=$3 "$1" "$here/check.py" --model "$4" --text "$5/heldout.txt" --calibration-text "$5/calibration.txt" \
    --quantised "$work/quantised.logits" --exact "$work/exact.logits"
