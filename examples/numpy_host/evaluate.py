#!/usr/bin/env python3
"""What eviction costs, per mode: the protocol of ../llama_cpp (attention.c, passkey.c, perplexity.c), with the
same prompts, numbers and counted tokens.

    evaluate.py --model M.gguf --calibration C.tria --text HELD_OUT
"""

import argparse
import json
import time
from dataclasses import dataclass, fields

import numpy as np

import tria
from host import FullHost, RecentHost, Settings, TriaHost, feed, make_model
from program import note, run
from smollm2 import Decoder, Weights

OPENING = ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
           "A secret pass key is hidden in the text below. Find it and remember it.\n\n")
QUESTION = ("\n\nWhat is the secret pass key?<|im_end|>\n<|im_start|>assistant\n"
            "The secret pass key is ")
DIGITS = 5
SEED = 20240601
ATTENTION_QUERIES = 32


@dataclass
class Protocol:
    percent: int = 25  # budget, of the task's tokens
    pool: int = 6  # neighbour pooling of the scores, in positions
    interval: int = 128
    recent: int = 32
    sinks: int = 4
    ppl_tokens: int = 2048
    passkey_tokens: int = 1024
    depths: int = 10
    numbers: int = 3  # per depth


class Random:
    """splitmix64, as in the llama.cpp example: the same numbers are hidden."""

    MASK = 2 ** 64 - 1

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = self.state + 0x9E3779B97F4A7C15 & self.MASK
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & self.MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & self.MASK
        return ((z ^ z >> 31) >> 32) * n >> 32


class Evaluation:
    """The configurations, by name: no eviction, libtria's modes, the most recent rows."""

    def __init__(self, weights, calibration, modes, protocol):
        self.weights, self.calibration, self.protocol = weights, calibration, protocol
        self.model = make_model(weights)
        self.names = ["full cache"] + modes + ["most recent"]
        self.results = {name: {} for name in self.names}

    def host(self, name, decoder, n_tokens):
        if name == "full cache":
            return FullHost(decoder)
        p = self.protocol
        settings = Settings(n_tokens * p.percent // 100, p.interval, p.recent, p.sinks, p.pool)
        if name == "most recent":
            return RecentHost(decoder, settings)
        return TriaHost(decoder, settings, self.model, self.calibration, name)

    def perplexity(self, text):
        """Decoded as in generation; tokens between two compactions in one block, which changes nothing."""
        n = self.protocol.ppl_tokens
        budget = n * self.protocol.percent // 100
        count_from = budget + self.protocol.interval
        for name in self.names:
            capacity = n if name == "full cache" else count_from
            host = self.host(name, Decoder(self.weights, capacity), n)
            surprise, at, begin = [], 0, time.monotonic()
            while at < n - 1:
                block = text[at:min(at + min(host.room(), self.protocol.interval), n - 1)]
                logits = host.decode(block, all_logits=True)
                following = text[at + 1:at + 1 + len(block)]
                peak = logits.max(axis=1)
                log_sum = np.log(np.exp(logits - peak[:, None]).sum(axis=1, dtype=np.float64))
                surprise.extend(log_sum - (logits[np.arange(len(block)), following] - peak))
                at += len(block)
                note(f"\rperplexity, {name}: {at} of {n} tokens, {at / (time.monotonic() - begin):.0f} tokens/s ",
                     end="")
            self.results[name].update(perplexity=float(np.exp(np.mean(surprise[count_from:]))),
                                      counted=len(surprise[count_from:]), compactions=host.n_compactions,
                                      peak_rows=host.peak_rows)
            note(f"\nperplexity, {name}: {self.results[name]}")

    def trials(self, filler):
        """Number, tokens, positions of the sentence with the number."""
        p, random = self.protocol, Random(SEED)
        opening = self.weights.encode(OPENING)
        for depth in range(p.depths):
            for _ in range(p.numbers):
                number = str(random.below(9) + 1) + "".join(str(random.below(10)) for _ in range(DIGITS - 1))
                needle = self.weights.encode(
                    f" The secret pass key is {number}. Remember it: {number} is the secret pass key.")
                room = p.passkey_tokens - len(opening) - len(needle)
                before = room * (2 * depth + 1) // (2 * p.depths)
                begin = len(opening) + before
                yield (number, np.concatenate([opening, filler[:before], needle, filler[before:room]]),
                       (begin, begin + len(needle)))

    def ask(self, host, question):
        """The most likely tokens after the question."""
        logits, answer = host.decode(question), ""
        for _ in range(DIGITS + 1):
            token = int(logits.argmax())
            if token in self.weights.control_tokens or len(answer) > DIGITS:
                break
            answer += self.weights.tokenizer.decode([token])
            logits = host.decode(np.array([token]))
        return answer.lstrip(" \n*\"'")

    def passkey(self, text):
        """Prompt, then eviction to the budget, then the question: all configurations on the same prompts."""
        p, question = self.protocol, self.weights.encode(QUESTION)
        decoder = Decoder(self.weights, p.passkey_tokens + p.interval + 64)
        hosts = {name: self.host(name, decoder, p.passkey_tokens) for name in self.names}
        for result in self.results.values():
            result.update(answers="", needle_kept=[])
        for number, tokens, (first, end) in self.trials(text):
            decoder.clear()
            feed(decoder, tokens)
            snapshot = decoder.snapshot()
            for name, host in hosts.items():
                decoder.restore(snapshot)
                host.begin(len(tokens))
                self.results[name]["needle_kept"].append(decoder.holds(end)[:, :, first:].mean())
                self.results[name]["answers"] += "01"[self.ask(host, question).startswith(number)]
            n = len(self.results[name]["answers"])
            right = [result["answers"].count("1") for result in self.results.values()]
            note(f"passkey: {n} of {p.depths * p.numbers} trials, right: {dict(zip(self.names, right))}")
        for result in self.results.values():
            result["needle_kept"] = float(np.mean(result["needle_kept"]))

    def attention(self, text):
        """Of what the tokens after a prompt attend to among evictable rows, how much goes to kept ones."""
        p, n = self.protocol, self.protocol.passkey_tokens
        decoder = Decoder(self.weights, n + p.interval + ATTENTION_QUERIES)
        feed(decoder, text[:n])
        snapshot = decoder.snapshot()
        kept = {}
        for name in self.names:
            decoder.restore(snapshot)
            self.host(name, decoder, n).begin(n)
            kept[name] = decoder.holds(n)
        evictable = np.zeros(n, bool)
        evictable[p.sinks:n - p.recent] = True
        on_kept = dict.fromkeys(self.names, 0.0)

        def count(layer, head, weights):
            on_rows = weights[..., :n].sum(axis=(0, 1), dtype=np.float64) * evictable
            for name in self.names:
                on_kept[name] += on_rows[kept[name][layer, head]].sum()

        decoder.restore(snapshot)
        decoder.on_attention = count
        decoder.forward(text[n:n + ATTENTION_QUERIES])
        for name in self.names:
            self.results[name].update(attention_kept=float(on_kept[name] / on_kept["full cache"]))


def print_table(results, percent, pool):
    print(f"| {percent} %, pool {pool} | perplexity | passkey | needle rows kept | attention kept | peak rows "
          "| compactions |\n|---|---|---|---|---|---|---|")
    for name, r in results.items():
        print(f"| {name} | {r['perplexity']:.2f} | {r['answers'].count('1')}/{len(r['answers'])} "
              f"| {r['needle_kept']:.0%} | {r['attention_kept']:.0%} | {r['peak_rows']} | {r['compactions']} |"
              .replace("%", " %"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("model", "calibration", "text"):
        parser.add_argument(f"--{option}", required=True)
    for field in fields(Protocol):
        parser.add_argument("--" + field.name.replace("_", "-"), type=int, default=field.default)
    parser.add_argument("--modes", default=",".join(tria.MODES))
    parser.add_argument("--json", help="write the results there as well")
    args = parser.parse_args()
    weights = Weights(args.model)
    text = weights.tokens_of(args.text)
    evaluation = Evaluation(weights, tria.Calibration.load(args.calibration), args.modes.split(","),
                            Protocol(**{field.name: getattr(args, field.name) for field in fields(Protocol)}))
    evaluation.attention(text)
    evaluation.perplexity(text)
    evaluation.passkey(text)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(evaluation.results, file, indent=1)
    print_table(evaluation.results, args.percent, args.pool)


if __name__ == "__main__":
    run(main)
