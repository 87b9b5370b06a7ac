#!/bin/sh
# Bad input to the programs: exactly one line of error that says what is wrong, nothing else, and an exit
# code other than 0.
#
#   errors_test.sh FOLDER-OF-PROGRAMS MODEL CALIBRATION CALIBRATION-OF-ANOTHER-MODEL
set -u
programs=$1
model=$2
calibration=$3
other=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# expect WORDS PROGRAM ARGUMENT...: the error line must contain WORDS
expect() {
    words=$1
    program=$2
    shift 2
    "$programs/$program" "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
    if [ $code = 0 ] || [ $code -gt 2 ] || [ "$(wc -l <"$work/err")" != 1 ] || [ -s "$work/out" ] ||
        ! grep -q "^$program: error: .*$words" "$work/err"; then
        echo "FAILED: $program $*"
        echo "  wanted one line with '$words', got exit code $code and:"
        sed 's/^/  /' "$work/out" "$work/err"
        failures=$((failures + 1))
    else
        echo "ok: $(cat "$work/err")"
    fi
}

head -c 5000 "$calibration" >"$work/short.tria"
head -c 100000 "$model" >"$work/short.gguf"
: >"$work/empty.txt"
say="--prompt Hello --threads 1"

# shellcheck disable=SC2086 # $say is a list of options
{
    expect 'cannot read the model' tria-llama-generate --model "$work/none.gguf" --calibration "$calibration" $say
    expect 'cannot load' tria-llama-generate --model "$work/short.gguf" --calibration "$calibration" $say
    expect 'none.tria' tria-llama-generate --model "$model" --calibration "$work/none.tria" $say
    expect 'short.tria' tria-llama-generate --model "$model" --calibration "$work/short.tria" $say
    expect '' tria-llama-generate --model "$model" --calibration "$other" $say
    expect 'budget 0' tria-llama-generate --model "$model" --calibration "$calibration" --budget 0 $say
    expect 'budget' tria-llama-generate --model "$model" --calibration "$calibration" --budget 40 --recent 60 $say
    expect 'capacity' tria-llama-generate --model "$model" --calibration "$calibration" --cells 256 --budget 200 $say
    expect 'union or global' tria-llama-generate --model "$model" --calibration "$calibration" --mode per-head $say
    expect 'policy that evicts' tria-llama-generate --model "$model" --policy none --bound-prefill $say
    expect 'policy best' tria-llama-generate --model "$model" --calibration "$calibration" --policy best $say
    expect 'needs --calibration' tria-llama-generate --model "$model" $say
    expect 'records scores' tria-llama-generate --model "$model" --policy recent --trace "$work/t" $say
    expect 'needs --trace' tria-llama-generate --model "$model" --calibration "$calibration" --dump 1 $say
    expect 'has no place' tria-llama-generate --model "$model" --calibration "$calibration" --teacher "$work/t" $say
    expect "$work/none/t" tria-llama-generate --model "$model" --calibration "$calibration" --trace "$work/none/t" $say
    expect "$work/none/t" tria-llama-generate --model "$model" --calibration "$calibration" --record "$work/none/t" $say
    teach="tria-llama-generate --model $model --calibration $calibration --threads 1 --record $work/kept --teacher"
    expect 'cannot read' $teach "$work/none.txt"
    expect 'does not begin' $teach "$model"
    printf 'tria-tokens 1\n' >"$work/tokens"
    expect 'holds no tokens' $teach "$work/tokens"
    printf 'tria-tokens 1\n5 prompt 1: 7\n' >"$work/tokens"
    expect 'word 1 is .5., expected a prompt' $teach "$work/tokens"
    printf 'tria-tokens 1\nprompt 0: 7\n' >"$work/tokens"
    expect 'word 2 is .0:., expected the prompt' $teach "$work/tokens"
    printf 'tria-tokens 1\nprompt 3: 7 8 prompt 1: 9\n' >"$work/tokens"
    expect 'word 5 is .prompt., expected a token' $teach "$work/tokens"
    printf 'tria-tokens 1\nprompt 2000000000: 7 8\n' >"$work/tokens"
    expect 'word 4 is .., expected a token' $teach "$work/tokens"
    printf 'tria-tokens 1\nprompt 1: 7 49152\n' >"$work/tokens"
    expect 'word 4 is .49152., expected a token' $teach "$work/tokens"
    printf 'tria-tokens 1\nprompt 1: 7 -1\n' >"$work/tokens"
    expect 'word 4 is .-1., expected a token' $teach "$work/tokens"
    expect 'unknown option' tria-llama-generate --modle "$model"
    expect 'whole number' tria-llama-generate --budget many
    expect "type 'q9'" tria-llama-generate --model "$model" --calibration "$calibration" --cache-type-k q9 $say
    expect 'needs a value' tria-llama-generate --model
    expect 'are needed' tria-llama-calibrate --model "$model"
    expect 'cannot read the text' tria-llama-calibrate --model "$model" --text "$work/none.txt" --output "$work/x.tria"
    expect 'empty' tria-llama-calibrate --model "$model" --text "$work/empty.txt" --output "$work/x.tria"
    expect 'tria needs --calibration' tria-llama-eval --model "$model" --text "$model"
    expect 'configs' tria-llama-eval --model "$model" --text "$model" --configs tria:0
}
if [ -e "$work/kept" ]; then
    echo "FAILED: a run that did not begin left its recording behind"
    failures=$((failures + 1))
fi
[ $failures = 0 ] || exit 1
