"""Stop strings over a stream of text, whatever the borders of its pieces.

A stop string is seen as soon as its last character arrives, also where it began in an earlier piece; text that may
still turn out to be the beginning of one is held back until that is settled. The answer depends on the characters
alone, never on how they were cut: each stop string is followed by a Knuth-Morris-Pratt automaton, one step a character.
"""

from __future__ import annotations

from collections.abc import Sequence


def failure_links(pattern: str) -> list[int]:
    """For each length k of a matched prefix: the length of its longest proper border (Knuth, Morris, Pratt 1977)."""
    links = [0] * (len(pattern) + 1)
    length = 0
    for at in range(1, len(pattern)):
        while length and pattern[at] != pattern[length]:
            length = links[length]
        if pattern[at] == pattern[length]:
            length += 1
        links[at + 1] = length
    return links


class StopMatcher:
    """Cuts a stream of text before the first stop string that is completed in it.

    First is the one whose last character comes first; of several that end there, the longest. `stopped` is set once one
    was seen, and `matched` names it; what is pushed afterwards gives nothing.
    """

    __slots__ = ("_held", "_links", "_matched", "_patterns", "matched", "stopped")

    def __init__(self, patterns: Sequence[str]):
        if not all(patterns):
            raise ValueError("a stop string is empty")
        self._patterns = tuple(patterns)
        self._links = tuple(failure_links(pattern) for pattern in patterns)
        self._matched = [0] * len(patterns)
        self._held = ""
        self.stopped = False
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take the next piece; return what is safe to show now."""
        if self.stopped:
            return ""
        if not self._patterns:
            return text
        patterns, links, matched = self._patterns, self._links, self._matched
        for at, char in enumerate(text, 1):
            longest = 0
            for which, pattern in enumerate(patterns):
                length = matched[which]
                while length and (length == len(pattern) or pattern[length] != char):
                    length = links[which][length]
                if pattern[length] == char:
                    length += 1
                matched[which] = length
                if length == len(pattern):
                    longest = max(longest, length)
            if longest:
                seen = self._held + text[:at]
                self.stopped, self.matched, self._held = True, seen[-longest:], ""
                return seen[:-longest]
        seen = self._held + text
        keep = max(matched)
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep]

    def flush(self) -> str:
        """The stream has ended: what was held back is plain text after all."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._patterns)
        return held
