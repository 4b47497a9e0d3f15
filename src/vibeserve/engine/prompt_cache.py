"""Caches of the beginnings that prompts share, for a core that holds a cache whole and not in blocks.

A recurrent state cannot be cut back to an earlier token, so a beginning can be used again only where the computation
stopped at its end. Where a prompt begins like one before it, it is therefore computed in two parts, and the cache as it is
between them is kept: the third prompt with that beginning, and every later one, starts from a copy.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import torch

WORTH_TOKENS = 32  # a beginning of fewer is computed sooner than its cache is copied
SEEN = 64  # prompts whose beginnings are compared with a new one


class PromptCache:
    """At most `budget_bytes` of caches; the one that was used longest ago leaves first. Not thread-safe."""

    def __init__(self, budget_bytes: int):
        self._budget_bytes = budget_bytes
        self._seen: deque[np.ndarray] = deque(maxlen=SEEN)
        self._held: OrderedDict[tuple[int, ...], tuple[Any, int]] = OrderedDict()
        self.held_tokens = 0
        self.held_bytes = 0
        self.evicted = 0

    def longest(self, tokens: list[int]) -> tuple[int, Any]:
        """(tokens known, a copy of their cache) of the longest beginning that is held and leaves a token over; (0, None)."""
        known = [key for key in self._held if len(key) < len(tokens) and tuple(tokens[: len(key)]) == key]
        if not known:
            return 0, None
        best = max(known, key=len)
        self._held.move_to_end(best)
        return len(best), copy.deepcopy(self._held[best][0])

    def shared(self, tokens: list[int], known: int) -> int:
        """Where to stop and `keep`: the end of the longest beginning that a prompt before had too; 0 where not worth it.

        The prompt itself counts as seen from now on.
        """
        asked = np.asarray(tokens, dtype=np.int64)
        longest = max((_common(asked, other) for other in self._seen), default=0)
        self._seen.append(asked)
        longest = min(longest, len(tokens) - 1)
        return longest if longest - known >= WORTH_TOKENS else 0

    def keep(self, tokens: list[int], cache: Any) -> None:
        """Hold a copy of the cache of exactly these tokens, where it fits into the budget."""
        size = bytes_of(cache)
        if size > self._budget_bytes:
            return
        self._held[tuple(tokens)] = copy.deepcopy(cache), size
        self.held_tokens += len(tokens)
        self.held_bytes += size
        while self.held_bytes > self._budget_bytes:
            key, (_, freed) = self._held.popitem(last=False)
            self.held_tokens -= len(key)
            self.held_bytes -= freed
            self.evicted += 1


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Tokens at the start that both have."""
    length = min(len(one), len(other))
    apart = np.flatnonzero(one[:length] != other[:length])
    return int(apart[0]) if len(apart) else length


def bytes_of(cache: Any) -> int:
    """Bytes of the tensors that a cache of transformers holds, keys, values and states."""
    total = 0
    for layer in cache.layers:
        held = list(vars(layer).values())
        held += [state for value in held if isinstance(value, dict) for state in value.values()]
        total += sum(value.nbytes for value in held if isinstance(value, torch.Tensor))
    return total
