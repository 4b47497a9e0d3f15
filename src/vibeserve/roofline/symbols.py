"""The same counts in a computer algebra system: for those who want to go on from them, and as a check on ours."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from vibeserve.roofline.analysis import Analysis, VariantAnalysis
from vibeserve.roofline.counting import Count
from vibeserve.roofline.poly import Poly


def expression(poly: Poly) -> Any:
    """A count as a sympy expression; every size is a positive symbol."""
    import sympy

    total = sympy.Integer(0)
    for monomial, coefficient in poly.terms.items():
        term = sympy.Rational(coefficient.numerator, coefficient.denominator)
        for name, power in monomial:
            term *= sympy.Symbol(name, positive=True) ** power
        total += term
    return total


def count_expressions(count: Count) -> dict[str, Any]:
    """Work, bytes and intensity of one core as sympy expressions."""
    import sympy

    work, moved = expression(count.flops(count.kind)), expression(count.bytes)
    return {"work": work, "bytes": moved, "intensity": sympy.cancel(work / moved)}


def closed_forms(analysis: Analysis) -> list[dict[str, Any]]:
    """For each variant, as text and LaTeX: work, bytes and intensity of one core, their growth with each size, the
    intensity's limit, and the crossing with a ridge `I`, solved for each size."""
    return [_forms(variant) for variant in analysis.variants]


def _forms(variant: VariantAnalysis) -> dict[str, Any]:
    import sympy

    found = count_expressions(variant.count)
    ridge = sympy.Symbol("I", positive=True)
    lines: list[dict[str, Any]] = []

    def line(what: str, value: Any) -> None:
        lines.append({"what": what, "text": sympy.sstr(value), "latex": sympy.latex(value)})

    line("work of one core", sympy.factor(found["work"]))
    line("bytes of one core", sympy.factor(found["bytes"]))
    line("intensity", found["intensity"])
    for dim, local in variant.count.local.items():
        size = sympy.Symbol(local, positive=True)
        if size not in found["intensity"].free_symbols:
            line(f"intensity does not depend on {dim}", found["intensity"])
            continue
        line(f"intensity as {local} grows without end", sympy.limit(found["intensity"], size, sympy.oo))
        for root in sympy.solve(sympy.Eq(found["intensity"], ridge), size):
            if root.free_symbols <= found["intensity"].free_symbols | {ridge}:
                line(f"{local} on the ridge", sympy.factor(root))
    return {"variant": variant.name, "forms": lines}


def value(expr: Any, sizes: dict[str, int]) -> Fraction:
    """A sympy expression at given sizes, exact."""
    import sympy

    at = expr.subs({sympy.Symbol(name, positive=True): size for name, size in sizes.items()})
    number = sympy.Rational(at)
    return Fraction(int(number.p), int(number.q))
