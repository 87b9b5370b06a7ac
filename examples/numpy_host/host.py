#!/usr/bin/env python3
"""Eviction per head and per layer, in place, in a host that owns its tensors.

llama.cpp shares one cell among all layers and heads, so it can only evict the same tokens everywhere. Here
every (layer, KV head) has rows of its own: libtria scores the NumPy arrays where they lie, chooses per
layer and head, and gathers the kept rows to the front of the very same arrays.

    host.py calibrate --model M.gguf --text T --output C.tria
    host.py evaluate  --model M.gguf --calibration C.tria --text HELD_OUT
    host.py logits    --model M.gguf --text T --output L.npy      (to compare with another engine)
"""

import argparse
import json
import sys
import time

import numpy as np

import tria
from smollm2 import Decoder, Weights

# The protocol of the llama.cpp example's passkey.c.
OPENING = ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
           "A secret pass key is hidden in the text below. Find it and remember it.\n\n")
QUESTION = ("\n\nWhat is the secret pass key?<|im_end|>\n<|im_start|>assistant\n"
            "The secret pass key is ")
DIGITS = 5
BLOCK = 256


def note(text, end="\n"):
    print(text, end=end, file=sys.stderr, flush=True)


def make_model(weights):
    return tria.Model(weights.name, weights.n_layers, weights.n_q_heads, weights.n_kv_heads, weights.head_dim,
                      weights.inv_freq, interleaved=True)


def tokens_of(weights, path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return np.array(weights.tokenizer.encode(file.read(), add_special_tokens=False).ids)


def feed(decoder, tokens):
    """A prompt in blocks; logits of its last token."""
    logits = None
    for at in range(0, len(tokens), BLOCK):
        logits = decoder.forward(tokens[at:at + BLOCK])
    return logits


def calibrate(args):
    weights = Weights(args.model)
    accumulator = tria.Accumulator(make_model(weights))
    tokens = tokens_of(weights, args.text)[:args.tokens]
    for at in range(0, len(tokens), args.context):
        decoder = Decoder(weights, args.context)
        decoder.on_queries = accumulator.add
        feed(decoder, tokens[at:at + args.context])
        note(f"\rcalibrate: {min(at + args.context, len(tokens))} of {len(tokens)} tokens ", end="")
    note("")
    accumulator.finish().save(args.output)


class Evictor:
    """A decoder whose cache libtria keeps within a budget; without a mode nothing is evicted."""

    def __init__(self, decoder, model, calibration, mode, budget, args):
        self.decoder, self.mode = decoder, mode
        if mode is None:
            return
        weights = decoder.weights
        self.view = tria.View(decoder.keys, decoder.values)
        self.policy = tria.make_policy(calibration, weights.n_layers, weights.n_kv_heads, decoder.keys.shape[2],
                                       budget=budget, interval=args.interval, n_recent=args.recent,
                                       n_sink=args.sinks, protect_prefill=0, mode=tria.MODES.index(mode))
        self.plan = tria.Plan(model, calibration, self.view, self.policy)
        self.start(0)

    def start(self, n_rows):
        """A new sequence that begins with a prompt of n_rows already in the cache."""
        self.n_compactions = 0
        if self.mode is not None:
            self.sequence = tria.Sequence(self.policy)
            if n_rows > 0:
                self.sequence.begin_prefill(n_rows)
                self.sequence.append(n_rows)
                self.sequence.end_prefill()
                self.compact_if_due()

    def compact_if_due(self):
        if self.sequence.should_compact():
            self.sequence.compact(self.plan, self.view)
            self.decoder.follow(self.sequence)
            self.n_compactions += 1

    def decode(self, tokens):
        logits = self.decoder.forward(tokens)
        if self.mode is not None:
            self.sequence.append(len(tokens))
            self.compact_if_due()
        return logits


def perplexity(weights, model, calibration, tokens, mode, budget, count_from, args):
    capacity = len(tokens) if mode is None else budget + args.interval
    evictor = Evictor(Decoder(weights, capacity), model, calibration, mode, budget, args)
    surprise = []
    begin = time.monotonic()
    for i, token in enumerate(tokens[:-1]):
        logits = evictor.decode(tokens[i:i + 1]).astype(np.float64)
        if i >= count_from:
            peak = logits.max()
            surprise.append(peak + np.log(np.exp(logits - peak).sum()) - logits[tokens[i + 1]])
        if i % 32 == 0:
            note(f"\rperplexity, {mode or 'full'}: {i} of {len(tokens)} tokens, "
                 f"{(i + 1) / (time.monotonic() - begin):.1f} tokens/s ", end="")
    note("")
    return float(np.exp(np.mean(surprise))), evictor.n_compactions


def passkey_trials(weights, filler, args):
    random = np.random.default_rng(args.seed)
    encode = weights.tokenizer.encode
    opening = encode(OPENING, add_special_tokens=False).ids
    for depth in range(args.depths):
        for _ in range(args.numbers):
            number = str(random.integers(10 ** (DIGITS - 1), 10 ** DIGITS))
            needle = encode(f" The secret pass key is {number}. Remember it.", add_special_tokens=False).ids
            room = args.passkey_tokens - len(opening) - len(needle)
            before = room * (2 * depth + 1) // (2 * args.depths)
            tokens = np.concatenate([opening, filler[:before], needle, filler[before:room]]).astype(np.int64)
            yield number, tokens


def passkey(weights, model, calibration, filler, configs, args):
    """Prompt, then eviction to the budget, then the question: all configurations on the same keys."""
    question = np.array(weights.tokenizer.encode(QUESTION, add_special_tokens=False).ids)
    decoder = Decoder(weights, args.passkey_tokens + args.interval + 64)
    evictors = [Evictor(decoder, model, calibration, mode, budget, args) for mode, budget in configs]
    right = [0] * len(configs)
    for trial, (number, tokens) in enumerate(passkey_trials(weights, filler, args)):
        decoder.rows[:], decoder.t = 0, 0
        feed(decoder, tokens)
        snapshot = decoder.snapshot()
        for i, evictor in enumerate(evictors):
            decoder.restore(snapshot)
            evictor.start(len(tokens))
            logits, answer = evictor.decode(question), []
            for _ in range(DIGITS + 1):
                answer.append(int(logits.argmax()))
                logits = evictor.decode(np.array(answer[-1:]))
            right[i] += weights.tokenizer.decode(answer).lstrip(" \n*\"'").startswith(number)
        note(f"\rpasskey: {trial + 1} trials, right: {right} ", end="")
    note("")
    return right


def evaluate(args):
    weights = Weights(args.model)
    model, calibration = make_model(weights), tria.Calibration.load(args.calibration)
    text = tokens_of(weights, args.text)[args.skip:]
    modes = args.modes.split(",")
    results = {name: {} for name in ["full"] + modes}
    if args.ppl_tokens > 0:
        budget = args.ppl_tokens * args.percent // 100
        for name in results:
            mode = None if name == "full" else name
            ppl, n = perplexity(weights, model, calibration, text[:args.ppl_tokens], mode, budget,
                                budget + args.interval, args)
            results[name].update(perplexity=round(ppl, 3), compactions=n)
    if args.depths > 0:
        budget = args.passkey_tokens * args.percent // 100
        configs = [(None, 0)] + [(mode, budget) for mode in modes]
        for name, right in zip(results, passkey(weights, model, calibration, text, configs, args)):
            results[name].update(passkey=right, trials=args.depths * args.numbers)
    if args.json:
        print(json.dumps(results))
        return
    print(f"| keep sets at {args.percent} % | perplexity | compactions | passkey |\n|---|---|---|---|")
    for name, r in results.items():
        print(f"| {name} | {r.get('perplexity', '')} | {r.get('compactions', '')} | "
              f"{r.get('passkey', '')} of {r.get('trials', '')} |")


def logits_of(args):
    weights = Weights(args.model)
    tokens = tokens_of(weights, args.text)[:args.tokens]
    np.save(args.output, Decoder(weights, len(tokens)).forward(tokens, all_logits=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, needs in (("calibrate", calibrate, ["text", "output"]),
                             ("evaluate", evaluate, ["text", "calibration"]),
                             ("logits", logits_of, ["text", "output"])):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        for option in ["model"] + needs:
            command.add_argument(f"--{option}", required=True)
        if name != "evaluate":
            command.add_argument("--tokens", type=int, default=16384 if name == "calibrate" else 64)
            command.add_argument("--context", type=int, default=2048)
            continue
        for option, default in (("percent", 25), ("interval", 128), ("recent", 32), ("sinks", 4), ("seed", 1),
                                ("ppl-tokens", 1024), ("skip", 0), ("passkey-tokens", 1024), ("depths", 10),
                                ("numbers", 3)):
            command.add_argument(f"--{option}", type=int, default=default)
        command.add_argument("--modes", default=",".join(tria.MODES))
        command.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        args.run(args)
    except (tria.TriaError, OSError, ValueError) as why:
        sys.exit(f"numpy_host: {why}")


if __name__ == "__main__":
    main()
