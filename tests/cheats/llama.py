"""The tiny Llama of the tests in NumPy: an answer takes milliseconds, and Hugging Face computes the very same tokens.

One token a byte. Weights are written once for the process, where bundles can find them (`FOLDER`).
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tests.targets.checkpoints import HEAD_DIM, HEADS, KV_HEADS, LAYERS, llama

#: The end token: a line feed.
END = 10
EPSILON, THETA = 1e-5, 10000.0

_HOME = Path(tempfile.mkdtemp(prefix="zoo-"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
FOLDER = llama(_HOME / "model")
SMALL_FOLDER = llama(_HOME / "small", seed=2)


@dataclass(frozen=True)
class State:
    """What was taken in: keys and values of each layer (heads, length, head size), and the last logits."""

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    logits: Any

    @property
    def length(self) -> int:
        """Tokens taken in."""
        return int(self.keys[0].shape[1])

    def forgetting(self, first: int, last: int, layers: int = LAYERS) -> State:
        """The state without what lies between the first and the last so many tokens."""
        if self.length <= first + last:
            return self
        kept = np.r_[0:first, self.length - last : self.length]
        return State(tuple(k[:, kept] for k in self.keys), tuple(v[:, kept] for v in self.values), self.logits)


class Model:
    """`bits` rounds the weights to so few, `cache_bits` keys and values; `layers` leaves later ones out."""

    def __init__(
        self, folder: Path = FOLDER, bits: int | None = None, cache_bits: int | None = None, layers: int = LAYERS
    ):
        self.weights = {
            name: value.astype(np.float32) for name, value in load_file(folder / "model.safetensors").items()
        }
        if bits is not None:
            self.weights = {n: v if v.ndim == 1 else rounded(v, bits) for n, v in self.weights.items()}
        self.cache_bits, self.layers = cache_bits, layers
        self.known: dict[str, State] = {}
        self.empty = State(
            (np.zeros((KV_HEADS, 0, HEAD_DIM), np.float32),) * layers,
            (np.zeros((KV_HEADS, 0, HEAD_DIM), np.float32),) * layers,
            None,
        )

    def read(self, taken: str | list[int], state: State | None = None, place: int | None = None) -> State:
        """The state after a text (or tokens). `place`: where in the sequence it stands, if elsewhere than at the end."""
        state = self.empty if state is None else state
        ids = list(taken.encode()) if isinstance(taken, str) else taken
        begin = state.length if place is None else place
        angles = self._angles(begin, len(ids))
        hidden = self.weights["model.embed_tokens.weight"][ids]
        keys, values = [], []
        for layer in range(self.layers):
            hidden, key, value = self._layer(layer, hidden, state, angles)
            keys.append(key)
            values.append(value)
        last = norm(hidden[-1], self.weights["model.norm.weight"])
        return State(tuple(keys), tuple(values), self.weights["lm_head.weight"] @ last)

    def begun(self, prompt: str) -> State:
        """The state after a whole prompt; kept, since NumPy takes its time over a long one and tests ask the same often."""
        if prompt not in self.known:
            if len(self.known) > 4000:
                self.known.clear()
            self.known[prompt] = self.read(prompt)
        return self.known[prompt]

    def tokens(self, prompt: str, count: int, state: State | None = None) -> Iterator[tuple[int, str]]:
        """Greedy tokens, one at a time: (id, text). Nothing is known of a token before the ones ahead were computed."""
        state = self.begun(prompt) if state is None else state
        for left in range(count, 0, -1):
            number = int(np.argmax(state.logits))
            yield number, chr(number)
            if left > 1:
                state = self.read([number], state)

    def sampled(self, prompt: str, count: int, temperature: float, seed: int | None) -> Iterator[tuple[int, str]]:
        """Tokens drawn by chance."""
        chance, state = np.random.default_rng(seed), self.begun(prompt)
        for _ in range(count):
            number = int(np.argmax(state.logits / temperature + chance.gumbel(size=state.logits.shape)))
            yield number, chr(number)
            state = self.read([number], state)

    def penalised(self, prompt: str, count: int, penalty: float) -> Iterator[tuple[int, str]]:
        """Greedy tokens, each the less likely the more often the answer has it already (OpenAI's frequency_penalty)."""
        state = self.begun(prompt)
        said = np.zeros_like(state.logits)
        for _ in range(count):
            number = int(np.argmax(state.logits - penalty * said))
            said[number] += 1
            yield number, chr(number)
            state = self.read([number], state)

    def _angles(self, begin: int, count: int) -> tuple[Any, Any]:
        frequencies = THETA ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles = np.outer(np.arange(begin, begin + count), frequencies)
        angles = np.concatenate((angles, angles), axis=1)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def _layer(self, layer: int, hidden: Any, state: State, angles: tuple[Any, Any]) -> tuple[Any, Any, Any]:
        part = lambda name: self.weights[f"model.layers.{layer}.{name}.weight"]  # noqa: E731
        count = len(hidden)
        taken = norm(hidden, part("input_layernorm"))
        query = turned(heads(taken @ part("self_attn.q_proj").T, HEADS), angles)
        key = turned(heads(taken @ part("self_attn.k_proj").T, KV_HEADS), angles)
        value = heads(taken @ part("self_attn.v_proj").T, KV_HEADS)
        if self.cache_bits is not None:
            key, value = rounded(key, self.cache_bits), rounded(value, self.cache_bits)
        key = np.concatenate((state.keys[layer], key), axis=1)
        value = np.concatenate((state.values[layer], value), axis=1)
        groups = HEADS // KV_HEADS
        scores = query @ key.repeat(groups, 0).transpose(0, 2, 1) / np.float32(HEAD_DIM**0.5)
        before = key.shape[1] - count
        if count > 1:
            scores = np.where(np.tri(count, before + count, before, dtype=bool), scores, np.float32(-np.inf))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ value.repeat(groups, 0)
        hidden = hidden + mixed.transpose(1, 0, 2).reshape(count, -1) @ part("self_attn.o_proj").T
        taken = norm(hidden, part("post_attention_layernorm"))
        gate = taken @ part("mlp.gate_proj").T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * (taken @ part("mlp.up_proj").T)) @ part("mlp.down_proj").T
        return hidden, key, value


def norm(hidden: Any, weight: Any) -> Any:
    """Root mean square norm."""
    return hidden / np.sqrt((hidden * hidden).mean(-1, keepdims=True) + np.float32(EPSILON)) * weight


def heads(flat: Any, count: int) -> Any:
    """(length, width) as (heads, length, head size)."""
    return flat.reshape(len(flat), count, HEAD_DIM).transpose(1, 0, 2)


def turned(heads_: Any, angles: tuple[Any, Any]) -> Any:
    """Rotary position embedding, halves rotated."""
    half = HEAD_DIM // 2
    other = np.concatenate((-heads_[..., half:], heads_[..., :half]), axis=-1)
    return heads_ * angles[0] + other * angles[1]


def rounded(weights: Any, bits: int) -> Any:
    """To so few bits, one scale for all."""
    step = np.abs(weights).max() / (2 ** (bits - 1) - 1)
    return (np.round(weights / step) * step).astype(weights.dtype)


MODEL, SMALL = Model(), Model(SMALL_FOLDER)
