#!/usr/bin/env python3
"""What eviction costs, per mode: the protocol of ../llama_cpp (attention.c, passkey.c, perplexity.c), with the
same prompts, numbers and counted tokens.

    evaluate.py --model M.gguf --calibration C.tria --text HELD_OUT
"""

import argparse
import json
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
    ppl_from: int = 1152  # first of them that counts: the quickstart's first eviction at 50 %
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

    def surprises(self, host, text, n):
        """-log p of each next token. Decoded as in generation, but the tokens between two compactions in one
        block, which changes nothing."""
        surprises = []
        while len(surprises) < n - 1:
            at = len(surprises)
            block = text[at:min(at + min(host.room(), self.protocol.interval), n - 1)]
            following = text[at + 1:at + 1 + len(block)]
            logits = host.decode(block, all_logits=True)
            peak = logits.max(axis=1)
            log_sum = np.log(np.exp(logits - peak[:, None]).sum(axis=1, dtype=np.float64))
            surprises.extend(log_sum - (logits[np.arange(len(block)), following] - peak))
            note(f"\rperplexity: {len(surprises)} of {n} tokens ", end="")
        return surprises

    def perplexity(self, text):
        p, n = self.protocol, self.protocol.ppl_tokens
        trigger = n * p.percent // 100 + p.interval
        if not trigger <= p.ppl_from < n - 1:
            raise ValueError(f"--ppl-from {p.ppl_from}: evictions start at {trigger}, of {n} tokens")
        for name in self.names:
            host = self.host(name, Decoder(self.weights, n if name == "full cache" else trigger), n)
            counted = self.surprises(host, text, n)[p.ppl_from:]
            self.results[name].update(perplexity=float(np.exp(np.mean(counted))), counted=len(counted),
                                      compactions=host.n_compactions, peak_rows=host.peak_rows)
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


def print_table(results, protocol):
    columns = {
        "perplexity": ("perplexity", lambda r: f"{r['perplexity']:.2f}"),
        "passkey": ("answers", lambda r: f"{r['answers'].count('1')}/{len(r['answers'])}"),
        "needle rows kept": ("needle_kept", lambda r: f"{r['needle_kept'] * 100:.0f} %"),
        "attention kept": ("attention_kept", lambda r: f"{r['attention_kept'] * 100:.0f} %"),
        "peak rows": ("peak_rows", lambda r: r["peak_rows"]),
        "compactions": ("compactions", lambda r: r["compactions"]),
    }
    columns = {title: cell for title, (key, cell) in columns.items() if key in results["full cache"]}
    print("|", " | ".join([f"{protocol.percent} %, pool {protocol.pool}", *columns]), "|")
    print("|---" * (len(columns) + 1) + "|")
    for name, result in results.items():
        print("|", " | ".join([name, *(str(cell(result)) for cell in columns.values())]), "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("model", "calibration", "text"):
        parser.add_argument(f"--{option}", required=True)
    for field in fields(Protocol):
        parser.add_argument("--" + field.name.replace("_", "-"), type=int, default=field.default)
    parser.add_argument("--modes", default=",".join(tria.MODES))
    parser.add_argument("--json", help="write the results there as well")
    parser.add_argument("--tasks", default="attention,perplexity,passkey", help="which of these")
    args = parser.parse_args()
    weights = Weights(args.model)
    text = weights.tokens_of(args.text)
    protocol = Protocol(**{field.name: getattr(args, field.name) for field in fields(Protocol)})
    calibration = tria.Calibration.load(args.calibration)
    evaluation = Evaluation(weights, calibration, args.modes.split(","), protocol)
    tasks = {task.__name__: task for task in (evaluation.attention, evaluation.perplexity, evaluation.passkey)}
    for name in args.tasks.split(","):
        if name not in tasks:
            raise ValueError(f"--tasks: no task is called '{name}'")
        tasks[name](text)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(evaluation.results, file, indent=1)
    print_table(evaluation.results, protocol)


if __name__ == "__main__":
    run(main)
