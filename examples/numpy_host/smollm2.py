"""A small decoder of the Llama architecture in NumPy that owns its KV cache: K and V are plain arrays
[layer][KV head][row][dim], every (layer, head) with rows of its own choice."""

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def _scalar(reader, key):
    return reader.fields[key].contents()


class Weights:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        if _scalar(reader, "general.architecture") != "llama":
            raise ValueError(f"{path}: only the Llama architecture is handled")
        self.name = _scalar(reader, "general.name")
        self.n_layers = int(_scalar(reader, "llama.block_count"))
        self.n_q_heads = int(_scalar(reader, "llama.attention.head_count"))
        self.n_kv_heads = int(_scalar(reader, "llama.attention.head_count_kv"))
        self.width = int(_scalar(reader, "llama.embedding_length"))
        self.head_dim = self.width // self.n_q_heads
        self.epsilon = float(_scalar(reader, "llama.attention.layer_norm_rms_epsilon"))
        theta = float(_scalar(reader, "llama.rope.freq_base"))
        self.inv_freq = theta ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        self.tensors = {t.name: np.ascontiguousarray(gguf.dequantize(t.data, t.tensor_type), np.float32)
                        for t in reader.tensors}
        tokens, kinds = _scalar(reader, "tokenizer.ggml.tokens"), _scalar(reader, "tokenizer.ggml.token_type")
        self.control_tokens = {i for i, kind in enumerate(kinds) if kind == 3}
        self.tokenizer = self._tokenizer(reader, tokens, [tokens[i] for i in sorted(self.control_tokens)])

    @staticmethod
    def _tokenizer(reader, tokens, special):
        merges = [tuple(m.split(" ", 1)) for m in _scalar(reader, "tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        # "smollm": every digit stands alone, the rest splits as in GPT-2
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(special)
        return tokenizer

    def encode(self, text):
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def tokens_of(self, path):
        with open(path, encoding="utf-8", errors="replace") as file:
            return self.encode(file.read())


def _norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


class Decoder:
    """K and V live here; `rows` says how many of each (layer, head) are in use."""

    def __init__(self, weights, capacity):
        w = self.weights = weights
        shape = (w.n_layers, w.n_kv_heads, capacity, w.head_dim)
        self.keys = np.zeros(shape, np.float32)
        self.values = np.zeros(shape, np.float32)
        self.rows = np.zeros(shape[:2], np.int64)
        self.positions = np.full(shape[:3], -1, np.int64)
        self.t = 0
        self.on_queries = None  # called with (layer, [tokens, heads, dim]) before RoPE
        self.on_attention = None  # called with (layer, KV head, [tokens, query heads of it, rows])

    def _rotate(self, x, angles):
        """Interleaved pairs, as in GGUF files of the Llama architecture. x: [tokens, heads, dim]."""
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return out

    def _attend(self, layer, queries, positions):
        """queries: [tokens, Hq, dim], rotated. What a query may see is decided by positions, never by rows."""
        w = self.weights
        group = w.n_q_heads // w.n_kv_heads
        out = np.empty_like(queries)
        for head in range(w.n_kv_heads):
            n = self.rows[layer, head]
            k, v = self.keys[layer, head, :n], self.values[layer, head, :n]
            q = queries[:, head * group:(head + 1) * group].reshape(-1, w.head_dim)
            scores = (q @ k.T).reshape(len(queries), group, n) / np.float32(np.sqrt(w.head_dim))
            hidden = self.positions[layer, head, None, :n] > positions[:, None]
            scores[np.broadcast_to(hidden[:, None], scores.shape)] = -np.inf
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            if self.on_attention is not None:
                self.on_attention(layer, head, scores)
            out[:, head * group:(head + 1) * group] = (scores.reshape(-1, n) @ v).reshape(len(queries), group, -1)
        return out

    def forward(self, tokens, all_logits=False):
        """Decodes tokens at positions t, t+1, ...; logits of the last one, or of all."""
        w, get = self.weights, self.weights.tensors
        n = len(tokens)
        positions = np.arange(self.t, self.t + n)
        angles = (positions[:, None] * w.inv_freq).astype(np.float64)
        angles = np.mod(angles, 2 * np.pi).astype(np.float32)
        x = get["token_embd.weight"][tokens]
        for layer in range(w.n_layers):
            name = f"blk.{layer}."
            h = _norm(x, get[name + "attn_norm.weight"], w.epsilon)
            q = (h @ get[name + "attn_q.weight"].T).reshape(n, w.n_q_heads, w.head_dim)
            k = (h @ get[name + "attn_k.weight"].T).reshape(n, w.n_kv_heads, w.head_dim)
            v = (h @ get[name + "attn_v.weight"].T).reshape(n, w.n_kv_heads, w.head_dim)
            if self.on_queries is not None:
                self.on_queries(layer, q)
            k = self._rotate(k, angles)
            for head in range(w.n_kv_heads):
                at = self.rows[layer, head]
                self.keys[layer, head, at:at + n] = k[:, head]
                self.values[layer, head, at:at + n] = v[:, head]
                self.positions[layer, head, at:at + n] = positions
            self.rows[layer] += n
            a = self._attend(layer, self._rotate(q, angles), positions)
            x = x + a.reshape(n, -1) @ get[name + "attn_output.weight"].T
            h = _norm(x, get[name + "ffn_norm.weight"], w.epsilon)
            gate, up = h @ get[name + "ffn_gate.weight"].T, h @ get[name + "ffn_up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ get[name + "ffn_down.weight"].T
        self.t += n
        x = _norm(x if all_logits else x[-1:], get["output_norm.weight"], w.epsilon)
        logits = x @ get.get("output.weight", get["token_embd.weight"]).T
        return logits if all_logits else logits[0]

    def clear(self):
        self.rows[...], self.t = 0, 0

    def snapshot(self):
        return self.keys.copy(), self.values.copy(), self.rows.copy(), self.positions.copy(), self.t

    def restore(self, snapshot):
        """In place: views of the arrays stay valid."""
        for target, source in zip((self.keys, self.values, self.rows, self.positions), snapshot):
            target[...] = source
        self.t = snapshot[4]

    def gather(self, kept):
        """Keeps the same rows everywhere."""
        for array in (self.keys, self.values, self.positions):
            array[:, :, :len(kept)] = array[:, :, kept]
        self.rows[...] = len(kept)

    def follow(self, sequence):
        """Takes over rows and positions after libtria moved keys and values."""
        for layer, head in np.ndindex(self.rows.shape):
            table = sequence.positions(layer, head)
            self.rows[layer, head] = len(table)
            self.positions[layer, head, :len(table)] = table

    def holds(self, n):
        """[layer, KV head, position < n]: is that token's row there?"""
        there = np.zeros(self.rows.shape + (n,), bool)
        for layer, head in np.ndindex(self.rows.shape):
            held = self.positions[layer, head, :self.rows[layer, head]]
            there[layer, head, held[held < n]] = True
        return there
