"""What could explain a difference: small integer combinations of an operation's own tensors that add up to it.

A difference is known to the last printed digit of what was measured. Every combination within one unit of that digit
is a candidate; the numbers cannot tell candidates apart, so the most natural come first (few tensors, each once, then
small multiples, then counts of tiles) and the caller says how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, log2

from vibeserve.roofline.poly import SUPERSCRIPTS

_MOST_NODES = 60_000
_MOST_FITS = 2_000
_BUDGETS = (3.0, 5.0, 8.0)
_SMALL = range(1, 13)
_OUTSIDE = 0.4


@dataclass(frozen=True, slots=True)
class Term:
    """Something that can occur a whole number of times: its name, its formula, its size in the unit of the search."""

    name: str
    formula: str
    size: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A combination that fits: how often each term occurs, its total, and how natural it is (less is more)."""

    counts: tuple[tuple[Term, int], ...]
    value: int
    cost: float


@dataclass(frozen=True, slots=True)
class Found:
    """The combinations that fit, the most natural first; `complete` where every one up to the largest cost was tried."""

    fits: tuple[Fit, ...]
    complete: bool


def search(
    terms: Sequence[Term],
    low: Fraction,
    high: Fraction,
    tiles: Mapping[int, str] | None = None,
    near: tuple[Fraction, Fraction] | None = None,
) -> Found:
    """Combinations of `terms` whose total lies between `low` and `high`, the most natural first.

    `tiles` are larger counts that have a meaning (`{16: "R ÷ 128 tiles"}`). Terms of one size stand for each other: the
    first ones are named. What lies outside `near` (how the digit rounds) counts as a little less natural. The cheap
    combinations are tried first, all of them, before the search goes on to dearer ones and gives up after a while.
    """
    most, least = floor(high), max(1, ceil(low))
    if most < least:
        return Found((), True)
    classes: dict[int, list[Term]] = {}
    for term in terms:
        if term.size > 0:
            classes.setdefault(term.size, []).append(term)
    hunt = _Hunt(classes, tiles or {}, least, most)
    found: dict[tuple[tuple[int, int], ...], Fit] = {}
    complete = True
    for budget in _BUDGETS:
        complete = hunt.run(budget, found)
        if not complete:
            break
    middle = (low + high) / 2
    inside = near or (low, high)

    def place(fit: Fit) -> tuple[float, Fraction]:
        off = 0.0 if inside[0] <= fit.value <= inside[1] else _OUTSIDE
        return round(fit.cost + off, 6), abs(fit.value - middle)

    return Found(tuple(sorted(found.values(), key=place)), complete)


class _Hunt:
    """The search itself: sizes from the largest down, each a number of times, while the cost allows."""

    def __init__(self, classes: Mapping[int, list[Term]], tiles: Mapping[int, str], low: int, high: int):
        self._classes = classes
        self._sizes = sorted(classes, reverse=True)
        self._counts = sorted({*_SMALL, *tiles})
        self._tiles = tiles
        self._slack, self._high = high - low, high
        self._parts: dict[tuple[int, int], tuple[float, frozenset[int]]] = {}

    def run(self, budget: float, found: dict[tuple[tuple[int, int], ...], Fit]) -> bool:
        """Add every combination of at most `budget`; False where it gave up before the end."""
        nodes = 0

        def descend(
            place: int, left: int, chosen: tuple[tuple[int, int], ...], cost: float, many: frozenset[int]
        ) -> None:
            nonlocal nodes
            nodes += 1
            if chosen and left <= self._slack:
                found.setdefault(chosen, self._fit(chosen, cost + self._multiples(many)))
            for index in range(place, len(self._sizes)):
                size = self._sizes[index]
                for n in self._counts:
                    if n * size > left or nodes > _MOST_NODES or len(found) > _MOST_FITS:
                        break
                    own, multiples = self._part(size, n)
                    together = many | multiples
                    if cost + own + self._multiples(together) <= budget:
                        descend(index + 1, left - n * size, (*chosen, (size, n)), cost + own, together)

        descend(0, self._high, (), 0.0, frozenset())
        return nodes <= _MOST_NODES and len(found) <= _MOST_FITS

    def _part(self, size: int, n: int) -> tuple[float, frozenset[int]]:
        """Half a point for each tensor that `n` of a size takes, and the multiples that it needs."""
        key = (size, n)
        if key not in self._parts:
            named = list(_named(n, self._classes[size]))
            self._parts[key] = 0.5 * len(named), frozenset(times for _, times in named if times > 1)
        return self._parts[key]

    def _multiples(self, multiples: frozenset[int]) -> float:
        """Each different multiple costs its length in bits and one; a count of tiles costs two."""
        return sum(2.0 if n in self._tiles else 1 + log2(n) for n in multiples)

    def _fit(self, chosen: tuple[tuple[int, int], ...], cost: float) -> Fit:
        counts = tuple(pair for size, n in chosen for pair in _named(n, self._classes[size]))
        return Fit(counts, sum(size * n for size, n in chosen), cost)


def _named(n: int, members: list[Term]) -> Iterator[tuple[Term, int]]:
    """`n` terms of one size: `n` different ones once, all of them equally often, or the first `n` times."""
    if n <= len(members):
        yield from ((term, 1) for term in members[:n])
    elif n % len(members) == 0 and len(members) > 1 and n // len(members) <= 4:
        yield from ((term, n // len(members)) for term in members)
    else:
        yield members[0], n


def describe(fit: Fit, tiles: Mapping[int, str]) -> tuple[str, str]:
    """A fit in words and as a formula: (`2 × h and W1`, `2·R·F + D·F`)."""
    by_count: dict[int, list[Term]] = {}
    for term, n in fit.counts:
        by_count.setdefault(n, []).append(term)
    words, formulas = [], []
    for n, terms in sorted(by_count.items()):
        names = _joined([term.name for term in terms])
        inside = " + ".join(term.formula for term in terms)
        if n == 1:
            words.append(names)
            formulas.append(inside)
        else:
            words.append(f"{n} × {'(' + names + ')' if len(terms) > 1 else names}")
            formulas.append(f"{n}·({inside})" if len(terms) > 1 else f"{n}·{inside}")
            if n in tiles:
                words[-1] += f" ({n} = {tiles[n]})"
    return _joined(words), " + ".join(formulas)


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def in_powers(value: int) -> str:
    """20971520 as 20·2²⁰, where a power of two of at least 10 divides it; else in full."""
    power = (value & -value).bit_length() - 1 if value else 0
    while power > 10 and value >> power < 16 and power % 10:
        power -= 1
    return f"{value >> power:,}·2{str(power).translate(SUPERSCRIPTS)}" if power >= 10 else f"{value:,}"
