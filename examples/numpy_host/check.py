#!/usr/bin/env python3
"""Is the NumPy decoder the model that llama.cpp runs, and does libtria evict from it as each mode says?

    check.py --model M.gguf --text T --calibration-text C --quantised Q.logits --exact E.logits

The logits are numpy-llama-logits' of the model as it is, and of the same weights as float (to_f32.py).
"""

import argparse

import numpy as np

import tria
from calibrate import calibrate
from evaluate import Evaluation, Protocol
from host import feed
from program import run
from smollm2 import Decoder, Weights

# The same weights and no quantisation: only the order of additions differs. Measured 1e-4 with logits whose
# standard deviation is 6.6.
LARGEST_DIFFERENCE = 1e-3
# llama.cpp rounds activations to 8 bits (blocks of 32) before it multiplies them with Q4_1 weights. Measured:
# the same first choice for 96 % of tokens, root mean square difference 0.22.
SAME_FIRST_CHOICE, RMS_DIFFERENCE = 0.9, 0.5


def require(condition, what):
    if not condition:
        raise ValueError(f"check failed: {what}")


def read_logits(path):
    n, n_vocab = np.fromfile(path, "i4", 2)
    tokens = np.fromfile(path, "i4", n, offset=8)
    return tokens, np.fromfile(path, "f4", offset=8 + 4 * n).reshape(n, n_vocab)


def check_logits(own, tokens, path):
    """Root mean square and largest difference, share of tokens with the same first choice."""
    theirs_tokens, theirs = read_logits(path)
    require(np.array_equal(theirs_tokens, tokens), "llama.cpp splits the text into other tokens")
    difference = np.abs(own - theirs)
    result = np.sqrt(np.mean(difference ** 2)), difference.max(), np.mean(own.argmax(1) == theirs.argmax(1))
    print("logits of {} tokens, {}: rms difference {:.2g}, largest {:.2g}, same first choice {:.1%}".format(
        len(tokens), path, *result))
    return result


def compare_with_llama(weights, args):
    n, _ = np.fromfile(args.exact, "i4", 2)
    tokens = weights.tokens_of(args.text)[:n]
    own = Decoder(weights, n).forward(tokens, all_logits=True)
    _, largest, same = check_logits(own, tokens, args.exact)
    require(largest <= LARGEST_DIFFERENCE and same == 1, "logits with float weights")
    rms, _, same = check_logits(own, tokens, args.quantised)
    require(rms <= RMS_DIFFERENCE and same >= SAME_FIRST_CHOICE, "logits with quantised weights")


def all_same(sets, axis):
    return np.array_equal(sets, np.broadcast_to(sets.take([0], axis), sets.shape))


def check_mode(evaluation, mode, decoder, snapshot, n):
    """One compaction: every (layer, head) keeps exactly the budget, a bit-exact gather of its rows, and sets
    are shared where the mode says so and only there."""
    keys, values = snapshot[:2]
    decoder.restore(snapshot)
    host = evaluation.host(mode, decoder, n)
    host.begin(n)
    budget, settings = host.settings.budget, host.settings
    require((decoder.rows == budget).all(), f"{mode}: rows after compaction are not the budget of {budget}")
    sets = decoder.positions[:, :, :budget]
    for layer, head in np.ndindex(decoder.rows.shape):
        kept = sets[layer, head]
        require((np.diff(kept) > 0).all(), f"{mode}: positions do not ascend")
        require((kept[:settings.sinks] == np.arange(settings.sinks)).all(), f"{mode}: first rows were evicted")
        require((kept[-settings.recent:] == np.arange(n - settings.recent, n)).all(),
                f"{mode}: recent rows were evicted")
        for name, now, before in (("K", decoder.keys, keys), ("V", decoder.values, values)):
            require(now[layer, head, :budget].tobytes() == before[layer, head, kept].tobytes(),
                    f"{mode}: {name} of layer {layer}, head {head} is not a gather of the kept rows")
    shared = all_same(sets, 0), all_same(sets, 1)  # by the layers, by the heads
    expected = {"per-layer-per-head": (False, False), "per-head": (True, False), "per-layer": (False, True),
                "union": (True, True), "global": (True, True)}[mode]
    require(shared == expected, f"{mode}: sets shared by layers, by heads: {shared}")
    print(f"{mode}: {n} -> {budget} rows in every layer and head, a bit-exact gather")


def check_eviction(weights, text, calibration):
    protocol = Protocol(percent=50, passkey_tokens=512, depths=2, numbers=1)
    evaluation = Evaluation(weights, calibration, list(tria.MODES), protocol)
    n = protocol.passkey_tokens
    decoder = Decoder(weights, n + protocol.interval)
    feed(decoder, text[:n])
    snapshot = decoder.snapshot()
    for mode in tria.MODES:
        check_mode(evaluation, mode, decoder, snapshot, n)
    evaluation.passkey(text)
    answers = {name: result["answers"] for name, result in evaluation.results.items()}
    print(f"pass keys of {n} tokens, {protocol.percent} %, 1: found: {answers}")
    for name in ("full cache", "union"):
        require(answers[name] == "11", f"{name}: a pass key was not found")
    require(answers["most recent"] == "01", "most recent: found what it evicted, or not what it kept")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("model", "text", "calibration-text", "quantised", "exact"):
        parser.add_argument(f"--{option}", required=True)
    args = parser.parse_args()
    weights = Weights(args.model)
    compare_with_llama(weights, args)
    calibration = calibrate(weights, weights.tokens_of(args.calibration_text)[:1024], 1024)
    check_eviction(weights, weights.tokens_of(args.text), calibration)


if __name__ == "__main__":
    run(main)
