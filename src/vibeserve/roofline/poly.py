"""Counts as polynomials in the sizes: exact, fast to evaluate, and printed the way one writes them by hand.

FLOPs and bytes of an operation are sums of products of its dimensions (with negative powers where something is loaded
once per tile), so a small class of our own gives the symbols without loading a computer algebra system; `symbols.py`
hands the same counts to sympy where more is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import gcd, lcm

Monomial = tuple[tuple[str, int], ...]
Number = int | Fraction


@dataclass(frozen=True, slots=True)
class Poly:
    """A Laurent polynomial: monomial (sorted pairs of symbol and exponent) to coefficient; no zero coefficients."""

    terms: Mapping[Monomial, Fraction]

    @staticmethod
    def of(value: Number) -> Poly:
        """A constant."""
        return Poly({(): Fraction(value)} if value else {})

    @staticmethod
    def symbol(name: str) -> Poly:
        """One size, by name."""
        return Poly({((name, 1),): Fraction(1)})

    @staticmethod
    def product(names: Iterable[str]) -> Poly:
        """The product of sizes."""
        return reduce(lambda left, name: left * Poly.symbol(name), names, Poly.of(1))

    @staticmethod
    def total(items: Iterable[Poly]) -> Poly:
        """The sum of polynomials."""
        return reduce(lambda left, right: left + right, items, Poly.of(0))

    def __add__(self, other: Poly | Number) -> Poly:
        other = other if isinstance(other, Poly) else Poly.of(other)
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, Fraction(0)) + coefficient
        return Poly({monomial: value for monomial, value in terms.items() if value})

    __radd__ = __add__

    def __neg__(self) -> Poly:
        return self * -1

    def __sub__(self, other: Poly | Number) -> Poly:
        return self + (-other if isinstance(other, Poly) else -Fraction(other))

    def __rsub__(self, other: Number) -> Poly:
        return Poly.of(other) - self

    def __mul__(self, other: Poly | Number) -> Poly:
        other = other if isinstance(other, Poly) else Poly.of(other)
        terms: dict[Monomial, Fraction] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                key = _times(left, right)
                terms[key] = terms.get(key, Fraction(0)) + a * b
        return Poly({monomial: value for monomial, value in terms.items() if value})

    __rmul__ = __mul__

    def __truediv__(self, other: Poly | Number) -> Poly:
        """Division by a number or by a single term. Raises ArithmeticError for anything else."""
        other = other if isinstance(other, Poly) else Poly.of(other)
        if len(other.terms) != 1:
            raise ArithmeticError("only a single term divides a polynomial here")
        ((monomial, coefficient),) = other.terms.items()
        inverse = Poly({tuple((name, -power) for name, power in monomial): 1 / coefficient})
        return self * inverse

    def __rtruediv__(self, other: Number) -> Poly:
        return Poly.of(other) / self

    def __pow__(self, power: int) -> Poly:
        if power < 0:
            return Poly.of(1) / self**-power
        return reduce(lambda left, _: left * self, range(power), Poly.of(1))

    def __bool__(self) -> bool:
        return bool(self.terms)

    @property
    def symbols(self) -> set[str]:
        """Names of the sizes in it."""
        return {name for monomial in self.terms for name, _ in monomial}

    def evaluate(self, sizes: Mapping[str, Number]) -> Number:
        """Its value, exact: an int where it is whole."""
        total: Number = 0
        for monomial, coefficient in self.terms.items():
            value: Number = coefficient.numerator if coefficient.denominator == 1 else coefficient
            for name, power in monomial:
                value = value * sizes[name] ** power if power > 0 else value / Fraction(sizes[name]) ** -power
            total = total + value
        return whole(total)

    def substitute(self, values: Mapping[str, Poly]) -> Poly:
        """Every symbol of `values` replaced; a negative power needs a single term."""
        total = Poly.of(0)
        for monomial, coefficient in self.terms.items():
            part = Poly.of(coefficient)
            for name, power in monomial:
                part = part * values.get(name, Poly.symbol(name)) ** power
            total = total + part
        return total

    def coefficients(self, name: str) -> dict[int, Poly]:
        """Power of `name` to the polynomial that multiplies it."""
        found: dict[int, Poly] = {}
        for monomial, coefficient in self.terms.items():
            power = dict(monomial).get(name, 0)
            rest = tuple(pair for pair in monomial if pair[0] != name)
            found[power] = found.get(power, Poly.of(0)) + Poly({rest: coefficient})
        return found


def whole(value: Number) -> Number:
    """`value` as an int where it is one."""
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def _times(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for name, power in right:
        powers[name] = powers.get(name, 0) + power
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def common_factor(*polys: Poly) -> Poly:
    """The largest single term that divides all terms of all `polys`."""
    monomials = [dict(monomial) for poly in polys for monomial in poly.terms]
    coefficients = [value for poly in polys for value in poly.terms.values()]
    if not monomials:
        return Poly.of(1)
    names = sorted({name for monomial in monomials for name in monomial})
    powers = {name: min(monomial.get(name, 0) for monomial in monomials) for name in names}
    top = reduce(gcd, (value.numerator for value in coefficients))
    bottom = reduce(lcm, (value.denominator for value in coefficients))
    return Poly({tuple((name, power) for name, power in powers.items() if power): Fraction(top, bottom)})


SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Writer:
    """Prints polynomials: `order` is the order of symbols in a product; in a sum, terms with a `late` symbol come last.

    With `sizes`, numbers stand in for the symbols.
    """

    order: Sequence[str]
    late: frozenset[str] = frozenset()
    sizes: Mapping[str, Number] | None = None

    def poly(self, poly: Poly) -> str:
        """A sum with its common factor in front: `4·D·(F + r)`."""
        if not poly:
            return "0"
        if len(poly.terms) == 1:
            return self._term(*next(iter(poly.terms.items())))
        factor = common_factor(poly)
        inner = self.sum(poly / factor)
        ((monomial, coefficient),) = factor.terms.items()
        if not monomial and coefficient == 1:
            return inner
        return f"{self._term(monomial, coefficient)}{self._dot}({inner})"

    def sum(self, poly: Poly) -> str:
        """A sum, term by term: `4·D·F + 4·r·D`."""
        text = ""
        for monomial, coefficient in sorted(poly.terms.items(), key=self._place):
            sign = (" − " if coefficient < 0 else " + ") if text else ("−" if coefficient < 0 else "")
            text += sign + self._term(monomial, abs(coefficient))
        return text or "0"

    def ratio(self, top: Poly, bottom: Poly) -> str:
        """A quotient with what is common cancelled: `r·F/(F + r)`."""
        factor = common_factor(top, bottom)
        top, bottom = top / factor, bottom / factor
        if bottom == Poly.of(1):
            return self.poly(top)
        slash = "/" if self.sizes is None else " ÷ "
        above, below = self.poly(top), self.poly(bottom)
        if len(top.terms) > 1 and common_factor(top) == Poly.of(1):
            above = f"({above})"
        if len(bottom.terms) > 1 or self._dot in below or slash in below:
            below = f"({below})"
        return f"{above}{slash}{below}"

    @property
    def _dot(self) -> str:
        return "·" if self.sizes is None else " × "

    def _place(self, item: tuple[Monomial, Fraction]) -> tuple[bool, bool, list[int]]:
        names = [name for name, _ in item[0]]
        late = any(name in self.late for name in names)
        return item[1] < 0, late, sorted(self._rank(name) for name in names)

    def _rank(self, name: str) -> int:
        return self.order.index(name) if name in self.order else len(self.order)

    def _term(self, monomial: Monomial, coefficient: Fraction) -> str:
        ordered = sorted(monomial, key=lambda pair: self._rank(pair[0]))
        above = [self._power(name, power) for name, power in ordered if power > 0]
        below = [self._power(name, -power) for name, power in ordered if power < 0]
        if coefficient.numerator != 1 or not above:
            above.insert(0, group(coefficient.numerator))
        if coefficient.denominator != 1:
            below.insert(0, group(coefficient.denominator))
        text = self._dot.join(above)
        if not below:
            return text
        slash = "/" if self.sizes is None else " ÷ "
        return f"{text}{slash}{below[0]}" if len(below) == 1 else f"{text}{slash}({self._dot.join(below)})"

    def _power(self, name: str, power: int) -> str:
        base = name if self.sizes is None else group(self.sizes[name])
        return base if power == 1 else f"{base}{str(power).translate(SUPERSCRIPTS)}"


def group(value: Number) -> str:
    """A whole number plain up to four digits, with thousands separators above; a fraction as decimals."""
    value = whole(value)
    if isinstance(value, Fraction):
        return f"{float(value):.6g}"
    return str(value) if abs(value) < 10_000 else f"{value:,}"
