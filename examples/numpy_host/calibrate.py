#!/usr/bin/env python3
"""Makes a calibration of a GGUF model from a text: every query as it enters RoPE goes to the accumulator.

    calibrate.py --model M.gguf --text T --output C.tria
"""

import argparse

import tria
from host import feed, make_model
from program import note, run
from smollm2 import Decoder, Weights


def calibrate(weights, tokens, window):
    accumulator = tria.Accumulator(make_model(weights))
    for at in range(0, len(tokens), window):
        decoder = Decoder(weights, window)
        decoder.on_queries = accumulator.add
        feed(decoder, tokens[at:at + window])
        note(f"\rcalibrate: {min(at + window, len(tokens))} of {len(tokens)} tokens ", end="")
    note("")
    return accumulator.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("model", "text", "output"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--window", type=int, default=2048)
    args = parser.parse_args()
    weights = Weights(args.model)
    calibrate(weights, weights.tokens_of(args.text)[:args.tokens], args.window).save(args.output)


if __name__ == "__main__":
    run(main)
