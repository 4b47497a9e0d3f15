"""Figures for people: a value with its unit at a readable size, the full number kept beside it."""

from __future__ import annotations

import math

from vibeserve.base.provenance import Quantity
from vibeserve.base.units import duration, si

_PREFIXED = frozenset({"B", "B/s", "FLOP", "FLOPs", "FLOP/s"})


#: Units that are written out elsewhere.
_SHORT = {"bytes": "B", "byte": "B", "bytes/s": "B/s", "flops": "FLOP", "flops/s": "FLOP/s"}


def show(value: float | None, unit: str = "", digits: int = 4) -> str:
    """`value` and `unit` in one short text: '218.5 µs', '1,234 tokens/s', '12.4×', '83.1 %'; a missing value is '–'."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "s":
        return duration(value, digits)
    unit = _SHORT.get(unit, unit)
    if unit in _PREFIXED:
        return si(value, unit, digits)
    text = plain(value, digits)
    if unit in ("×", "x"):
        return f"{text}×"
    return f"{text} {unit}" if unit else text


def parts(value: float | None, unit: str = "", digits: int = 4) -> tuple[str, str]:
    """`show`, cut into the number and its unit: ('302.1', 'tokens/s'), ('12.4×', '')."""
    text = show(value, unit, digits)
    number, _, rest = text.partition(" ")
    return number, rest


def plain(value: float, digits: int = 4) -> str:
    """A number with `digits` significant digits and thousands separated; whole numbers below 10^15 in full."""
    if value == 0:
        return "0"
    size = abs(value)
    if float(value).is_integer() and size < 1e15:
        return f"{int(value):,}"
    if size >= 1e15 or size < 1e-4:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def exact(value: float, unit: str = "") -> str:
    """The number in full, as programs have it."""
    text = f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e18 else repr(float(value))
    return f"{text} {unit}".strip()


def show_quantity(quantity: Quantity, digits: int = 4) -> str:
    """A quantity's value and unit."""
    return show(quantity.value, quantity.unit, digits)


def show_interval(low: float, high: float, unit: str = "") -> str:
    """'11.8× to 12.9×'."""
    return f"{show(low, unit)} to {show(high, unit)}"
