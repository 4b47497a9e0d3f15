"""Caches of transformers as rows that come and go: what batching over any family needs.

Rows are aligned at their newest token: keys and values of shorter rows are padded with zeros on the left (and masked by
whoever uses them); recurrent and convolution states have no length and are stacked as they are.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

# Layers whose contents are known to be keys and values [rows, heads, tokens, width], states [rows, …], or both.
KNOWN_LAYERS = (
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
)


def joinable(cache: Any) -> bool:
    """Whether every layer of a cache is of a kind that can be put side by side with another's."""
    return all(type(layer).__name__ in KNOWN_LAYERS for layer in cache.layers)


def _has_keys(layer: Any) -> bool:
    return isinstance(getattr(layer, "keys", None), torch.Tensor)


def _kept(layer: Any, length: int) -> int:
    """Tokens of a row of this length that the layer keeps: a sliding window drops the oldest."""
    window = getattr(layer, "sliding_window", None)
    return length if window is None else min(length, window - 1)


def _aligned(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """Keys or values with exactly this many places, padded or cut on the left."""
    missing = length - tensor.shape[-2]
    return pad(tensor, (0, 0, missing, 0)) if missing >= 0 else tensor[..., -missing:, :]


def _set_length(layer: Any, length: int) -> None:
    if hasattr(layer, "cumulative_length"):
        layer.cumulative_length = length


@dataclass
class RowCache:
    """A cache of several rows; `lengths` are their real tokens, the longest is the cache's own length."""

    cache: Any
    lengths: list[int]

    def grown(self) -> None:
        """Every row has got one token more."""
        self.lengths = [length + 1 for length in self.lengths]

    def join(self, other: RowCache) -> RowCache:
        """Both, one below the other. The arguments are used up."""
        length = max(*self.lengths, *other.lengths)
        for mine, theirs in zip(self.cache.layers, other.cache.layers, strict=True):
            if _has_keys(mine):
                kept = _kept(mine, length)
                mine.keys = torch.cat([_aligned(mine.keys, kept), _aligned(theirs.keys, kept)])
                mine.values = torch.cat([_aligned(mine.values, kept), _aligned(theirs.values, kept)])
                _set_length(mine, length)
            for name in ("conv_states", "recurrent_states"):
                states = getattr(mine, name, None) or {}
                for at, state in states.items():
                    if state is not None:
                        states[at] = torch.cat([state, getattr(theirs, name)[at]])
        return RowCache(self.cache, [*self.lengths, *other.lengths])

    def select(self, rows: list[int]) -> RowCache:
        """Only these rows, without padding that all of them have. The argument is used up."""
        lengths = [self.lengths[row] for row in rows]
        index = torch.tensor(rows)
        for layer in self.cache.layers:
            if _has_keys(layer):
                kept = _kept(layer, max(lengths))
                layer.keys = _aligned(layer.keys[index], kept)
                layer.values = _aligned(layer.values[index], kept)
                _set_length(layer, max(lengths))
            for name in ("conv_states", "recurrent_states"):
                states = getattr(layer, name, None) or {}
                for at, state in states.items():
                    if state is not None:
                        states[at] = state[index]
        return RowCache(copy.copy(self.cache), lengths)
