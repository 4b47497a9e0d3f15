"""Where a kernel sits on the ridge: the size of each dimension at which compute and memory take the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isqrt

from vibeserve.base.errors import InputError
from vibeserve.roofline.bounds import Roof
from vibeserve.roofline.counting import Count
from vibeserve.roofline.expr import NotPolynomialError
from vibeserve.roofline.poly import Number, Poly

_N = "@n"
_LARGEST = 1 << 30


@dataclass(frozen=True, slots=True)
class Crossing:
    """At `value` of `dim` (all others as they are) the kernel is on the ridge; above it, it is bound by `above`.

    `exact` says that the value solves the equation itself; otherwise it is the first size past the ridge, since the
    operation rounds sizes (ceil, floor, min, max). `per_core` is the part of one core where the dimension is split.
    """

    dim: str
    value: float
    per_core: float | None
    above: str
    exact: bool


def crossings(
    count: Count, over: Roof, sizes: Mapping[str, int], changes: Mapping[str, Number], ridge: Fraction | None = None
) -> list[Crossing]:
    """Every crossing at a size of at least 1, those of split dimensions first; `ridge` stands in for P / BW.

    A dimension that is computed from others (keys from tokens) has none of its own: it moves with them.
    """
    entries = count.operation.dims
    own = [name for name, entry in entries.items() if not any(used in entries for used in entry.size.names)]
    dims = sorted(own, key=lambda name: name not in count.split)
    found = []
    for dim in dims:
        parts = count.split.get(dim, 1)
        try:
            balance = _balance(count, over, sizes, changes, dim, ridge)
        except NotPolynomialError:
            found += _scan(count, over, changes, dim, parts)
            continue
        for root in positive_roots(balance):
            if root < 1:
                continue
            above = "compute" if _at(balance, root * (1 + Fraction(1, 10**6))) >= 0 else "memory"
            per_core = float(root / parts) if dim in count.split else None
            found.append(Crossing(dim, float(root), per_core, above, True))
    return found


def ridge_symbol(count: Count) -> str:
    """`I`, or `ρ` where a dimension has that name."""
    return "ρ" if "I" in count.local.values() else "I"


def formula(count: Count, dim: str) -> tuple[Poly, Poly] | None:
    """The crossing of `dim` on one core as a quotient, with `ridge_symbol` for the ridge I, where it is linear in it.

    For work W and bytes Q of one core, W - I Q = 0. None where another size is computed from `dim`.
    """
    if any(dim in entry.size.names for entry in count.operation.dims.values()):
        return None
    symbol = count.local[dim]
    equation = count.flops(count.kind) - Poly.symbol(ridge_symbol(count)) * count.bytes
    parts = equation.coefficients(symbol)
    low = min(parts, default=0)
    if not parts or set(parts) != {low, low + 1}:
        return None
    return -parts[low], parts[low + 1]


def _balance(
    count: Count,
    over: Roof,
    sizes: Mapping[str, int],
    changes: Mapping[str, Number],
    dim: str,
    ridge: Fraction | None,
) -> dict[int, Fraction]:
    """Compute time less memory time of one core, in bytes, as a polynomial in `dim`: power to coefficient."""
    names: dict[str, Poly] = {key: Poly.of(changes.get(key, value)) for key, value in count.operation.given.items()}
    for name, entry in count.operation.dims.items():
        follows = any(used in names and _N in names[used].symbols for used in entry.size.names)
        if name == dim:
            names[name] = Poly.symbol(_N)
        elif follows and name not in changes:
            names[name] = entry.size.poly(names)
        else:
            names[name] = Poly.of(sizes[name])
    local = {count.local[name]: names[name] / count.split.get(name, 1) for name in count.operation.dims}
    for symbol, expr in count.opaque.items():
        if any(_N in names[used].symbols for used in expr.names):
            raise NotPolynomialError(expr.text)
        own = {name: Fraction(sizes[name], count.split.get(name, 1)) for name in sizes}
        local[symbol] = Poly.of(expr.value(own))
    kind = count.kind
    total = -count.bytes.substitute(local)
    for dtype, flops in count.flops_by_dtype(kind).items():
        per_byte = ridge if ridge is not None else over.peak(dtype, kind) / over.bandwidth
        total = total + flops.substitute(local) / per_byte
    return {power: coefficient.terms.get((), Fraction(0)) for power, coefficient in total.coefficients(_N).items()}


def _at(coefficients: Mapping[int, Fraction], n: Fraction) -> Fraction:
    return sum((value * n**power for power, value in coefficients.items()), Fraction(0))


def positive_roots(coefficients: Mapping[int, Fraction]) -> list[Fraction]:
    """The positive roots of a polynomial (powers may be negative), ascending; exact up to degree 2 with rational roots.

    Of a higher degree they are found between the roots of the derivative, to 60 bits.
    """
    terms = {power: value for power, value in coefficients.items() if value}
    if len(terms) < 2:
        return []
    low = min(terms)
    poly = [terms.get(power, Fraction(0)) for power in range(low, max(terms) + 1)]
    if len(poly) == 2:
        roots = [-poly[0] / poly[1]]
    elif len(poly) == 3:
        roots = _quadratic(*poly)
    else:
        roots = _between(poly)
    return sorted(root for root in set(roots) if root > 0)


def _quadratic(c: Fraction, b: Fraction, a: Fraction) -> list[Fraction]:
    inside = b * b - 4 * a * c
    if inside < 0:
        return []
    scale = 1 << 120
    root = Fraction(isqrt(int(inside * scale)), 1 << 60)
    top, bottom = isqrt(inside.numerator), isqrt(inside.denominator)
    if top * top == inside.numerator and bottom * bottom == inside.denominator:
        root = Fraction(top, bottom)
    return [(-b - root) / (2 * a), (-b + root) / (2 * a)]


def _between(poly: list[Fraction]) -> list[Fraction]:
    slope = {power - 1: power * value for power, value in enumerate(poly) if power}
    ends = [Fraction(0), *positive_roots(slope), Fraction(_LARGEST)]

    def value(x: Fraction) -> Fraction:
        total = Fraction(0)
        for coefficient in reversed(poly):
            total = total * x + coefficient
        return total

    found = []
    for left, right in pairwise(ends):
        if value(left) == 0 and left:
            found.append(left)
        if value(left) * value(right) < 0:
            found.append(_bisect(value, left, right))
    return found


def _bisect(value: Callable[[Fraction], Fraction], left: Fraction, right: Fraction) -> Fraction:
    sign = value(left) < 0
    for _ in range(90):
        middle = (left + right) / 2
        middle = Fraction(round(middle * (1 << 60)), 1 << 60)
        if (value(middle) < 0) == sign:
            left = middle
        else:
            right = middle
    return right


def _scan(count: Count, over: Roof, changes: Mapping[str, Number], dim: str, parts: int) -> list[Crossing]:
    """The first size past each change of bound, among powers of two, then by halving between two of them."""
    from vibeserve.roofline.bounds import bounds

    def bound(n: int) -> str | None:
        try:
            return bounds(count.numbers(count.operation.sizes({**changes, dim: n * parts})), over).bound
        except InputError:
            return None

    found = []
    last: tuple[int, str] | None = None
    for n in (1 << power for power in range(24)):
        now = bound(n)
        if now is None:
            continue
        if last is not None and now != last[1]:
            low, high = last[0], n
            while high - low > 1:
                middle = (low + high) // 2
                if (bound(middle) or last[1]) == last[1]:
                    low = middle
                else:
                    high = middle
            found.append(Crossing(dim, float(high * parts), float(high) if dim in count.split else None, now, False))
        last = (n, now)
    return found
