"""The integration to copy: hosts that keep a decoder's cache within a budget after every step.

llama.cpp shares one cell among all layers and heads, so it can only evict the same tokens everywhere. Here
every (layer, KV head) has rows of its own: libtria scores the NumPy arrays where they lie, chooses per
layer and head, and gathers the kept rows to the front of the very same arrays.
"""

from dataclasses import dataclass

import numpy as np

import tria

BLOCK = 256  # tokens of a prompt decoded at once


@dataclass
class Settings:
    budget: int
    interval: int = 128
    recent: int = 32
    sinks: int = 4
    pool: int = 6


def make_model(weights):
    return tria.Model(weights.name, weights.n_layers, weights.n_q_heads, weights.n_kv_heads, weights.head_dim,
                      weights.inv_freq, interleaved=True)


def feed(decoder, tokens):
    """A prompt in blocks."""
    for at in range(0, len(tokens), BLOCK):
        decoder.forward(tokens[at:at + BLOCK])


class FullHost:
    """Nothing is ever evicted."""

    def __init__(self, decoder):
        self.decoder, self.n_compactions, self.peak_rows = decoder, 0, 0

    def begin(self, n_rows):
        """A new sequence; its prompt of n_rows is in the cache already."""

    def room(self):
        """Tokens that may be decoded at once: up to the next compaction."""
        return BLOCK

    def decode(self, tokens, all_logits=False):
        logits = self.decoder.forward(tokens, all_logits)
        self.peak_rows = max(self.peak_rows, int(self.decoder.rows.max()))
        self.after(len(tokens))
        return logits

    def after(self, n):
        """n tokens were decoded."""


class BudgetHost(FullHost):
    def __init__(self, decoder, settings):
        super().__init__(decoder)
        self.settings = settings

    def room(self):
        return self.settings.budget + self.settings.interval - int(self.decoder.rows.max())


class RecentHost(BudgetHost):
    """A control without the library: the same schedule, but what is kept are the first and last rows."""

    def begin(self, n_rows):
        self.after(n_rows)

    def after(self, n):
        if self.room() <= 0:
            n_rows, budget, sinks = int(self.decoder.rows.max()), self.settings.budget, self.settings.sinks
            self.decoder.gather(np.r_[:sinks, n_rows - (budget - sinks):n_rows])
            self.n_compactions += 1


class TriaHost(BudgetHost):
    """libtria chooses the rows, per layer and head as its mode says, and moves them in place."""

    def __init__(self, decoder, settings, model, calibration, mode):
        super().__init__(decoder, settings)
        w = decoder.weights
        self.view = tria.View(decoder.keys, decoder.values)
        self.policy = tria.make_policy(calibration, w.n_layers, w.n_kv_heads, decoder.keys.shape[2],
                                       budget=settings.budget, interval=settings.interval,
                                       n_recent=settings.recent, n_sink=settings.sinks, protect_prefill=0,
                                       mode=tria.MODES.index(mode))
        self.plan = tria.Plan(model, calibration, self.view, self.policy, pool_radius=settings.pool)
        self.sequence = tria.Sequence(self.policy)

    def begin(self, n_rows):
        self.sequence = tria.Sequence(self.policy)
        self.sequence.begin_prefill(n_rows)
        self.sequence.append(n_rows)
        self.sequence.end_prefill()
        self.compact_if_due()

    def after(self, n):
        self.sequence.append(n)
        self.compact_if_due()

    def compact_if_due(self):
        if self.sequence.should_compact():
            self.sequence.compact(self.plan, self.view)
            self.decoder.follow(self.sequence)
            self.n_compactions += 1
