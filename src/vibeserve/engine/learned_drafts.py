"""A small draft model that learns while it serves: which token followed the last few, over all answers so far.

It is a backoff model of counts (Katz's idea, without his smoothing): the longest known context of 4, 3 or 2 tokens speaks, and
only where one token has most of its weight. It costs some dictionary lookups a step where a draft network would cost a step of
its own, so it is asked only while few requests decode, when a step has rows to spare. A draft changes no answer: each token is
chosen from the model's own logits, with its own random number, and a draft's token counts where it is the one that was chosen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Tokens

ORDERS = (4, 3, 2)
MOST_CONTEXTS = 40_000
"""Contexts that are remembered; the ones that were not met for longest are forgotten."""
SURE = 0.6
"""A context speaks where one token followed it in at least this share of the times."""
MOST_FOLLOWERS = 4


class NextTokens:
    """Counts of what followed what, over requests. One for an engine; only its own thread uses it."""

    def __init__(self, most_contexts: int = MOST_CONTEXTS) -> None:
        self._most = most_contexts
        self._counts: OrderedDict[tuple[int, ...], dict[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def learn(self, tokens: Tokens[int], first: int) -> None:
        """Count every token from place `first` on, with what comes before it."""
        for place in range(max(first, ORDERS[-1]), len(tokens)):
            for order in ORDERS:
                if place >= order:
                    self._count(tuple(tokens[place - order : place]), tokens[place])

    def _count(self, context: tuple[int, ...], token: int) -> None:
        followers = self._counts.get(context)
        if followers is None:
            followers = self._counts[context] = {}
            if len(self._counts) > self._most:
                self._counts.popitem(last=False)
        else:
            self._counts.move_to_end(context)
        followers[token] = followers.get(token, 0) + 1
        if len(followers) > MOST_FOLLOWERS:
            del followers[min(followers, key=lambda one: (followers[one], one != token))]

    def propose(self, tokens: Tokens[int], room: int) -> list[int]:
        """At most `room` tokens that are likely to come next; it ends where the counts are not sure."""
        tail = list(tokens[-ORDERS[0] :])
        found: list[int] = []
        while len(found) < room:
            token = self._next(tail)
            if token is None:
                break
            found.append(token)
            tail = [*tail[1 - ORDERS[0] :], token]
        return found

    def _next(self, tail: list[int]) -> int | None:
        for order in ORDERS:
            followers = self._counts.get(tuple(tail[-order:])) if len(tail) >= order else None
            if followers:
                best = max(followers, key=lambda one: followers[one])
                return best if followers[best] >= SURE * sum(followers.values()) else None
        return None
