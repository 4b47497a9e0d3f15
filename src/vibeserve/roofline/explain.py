"""What could explain a difference: small integer combinations of an operation's own tensors that add up to it.

A difference is known to the last printed digit of what was measured. Every combination within one unit of that digit
is a candidate; the numbers cannot tell candidates apart, so the most natural come first (few tensors, each once, then
small multiples, then counts of tiles) and the caller says how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import log2

from vibeserve.roofline.poly import SUPERSCRIPTS

_MOST_NODES = 200_000
_MOST_COST = 8.0
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


def search(
    terms: Sequence[Term],
    low: Fraction,
    high: Fraction,
    tiles: Mapping[int, str] | None = None,
    near: tuple[Fraction, Fraction] | None = None,
) -> list[Fit]:
    """Combinations of `terms` whose total lies between `low` and `high`, the most natural first.

    `tiles` are larger counts that have a meaning (`{16: "R ÷ 128 row tiles"}`). Terms of one size stand for each other:
    the first ones are named. What lies outside `near` (how the digit rounds) counts as a little less natural.
    """
    if high <= 0:
        return []
    classes: dict[int, list[Term]] = {}
    for term in terms:
        if term.size > 0:
            classes.setdefault(term.size, []).append(term)
    sizes = sorted(classes, reverse=True)
    allowed = sorted({*_SMALL, *(tiles or {})})
    found: list[Fit] = []
    nodes = 0

    def descend(place: int, left: Fraction, chosen: tuple[tuple[int, int], ...]) -> None:
        nonlocal nodes
        nodes += 1
        slack = high - low
        if chosen and left <= slack:
            found.append(_fit(chosen, classes, tiles or {}))
        if place == len(sizes) or nodes > _MOST_NODES:
            return
        for index in range(place, len(sizes)):
            size = sizes[index]
            if left < size:
                continue
            for n in allowed:
                if n * size > left:
                    break
                step = (*chosen, (size, n))
                if _cost(step, classes, tiles or {}) <= _MOST_COST:
                    descend(index + 1, left - n * size, step)

    descend(0, high, ())
    middle = (low + high) / 2
    inside = near or (low, high)
    found.sort(
        key=lambda fit: (
            round(fit.cost + (0 if inside[0] <= fit.value <= inside[1] else _OUTSIDE), 6),
            abs(fit.value - middle),
        )
    )
    return found


def _fit(chosen: Iterable[tuple[int, int]], classes: Mapping[int, list[Term]], tiles: Mapping[int, str]) -> Fit:
    chosen = tuple(chosen)
    counts: list[tuple[Term, int]] = []
    for size, n in chosen:
        counts += _named(n, classes[size])
    return Fit(tuple(counts), sum(size * n for size, n in chosen), _cost(chosen, classes, tiles))


def _named(n: int, members: list[Term]) -> Iterator[tuple[Term, int]]:
    """`n` terms of one size: `n` different ones once, all of them equally often, or the first `n` times."""
    if n <= len(members):
        yield from ((term, 1) for term in members[:n])
    elif n % len(members) == 0 and len(members) > 1 and n // len(members) <= 4:
        yield from ((term, n // len(members)) for term in members)
    else:
        yield members[0], n


def _cost(chosen: tuple[tuple[int, int], ...], classes: Mapping[int, list[Term]], tiles: Mapping[int, str]) -> float:
    """Half a point a tensor, and for each different multiple its length in bits; a count of tiles costs two."""
    tensors = 0.0
    multiples: set[int] = set()
    for size, n in chosen:
        for _, times in _named(n, classes[size]):
            tensors += 0.5
            if times > 1:
                multiples.add(times)
    return tensors + sum(2.0 if n in tiles else 1 + log2(n) for n in multiples)


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
