"""How the hand count writes numbers: whole ones in full, rates as 157.2864e12, others to four digits."""

from __future__ import annotations

from fractions import Fraction

from vibeserve.roofline.poly import Number, whole


def number(value: Number | float) -> str:
    """A whole number in full, with separators; another to about two decimals or four digits."""
    value = whole(value) if isinstance(value, Fraction) else value
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    real = float(value)
    if real and abs(real) < 1:
        return f"{real:.4g}"
    text = f"{real:,.2f}" if abs(real) < 10_000 else f"{real:,.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(value: Number | float) -> str:
    """A large rate as one writes it on paper: 157.2864e12, 0.75e12, 2.4e9."""
    real = float(value)
    for power in (12, 9, 6):
        if abs(real) >= 10**power or (power == 12 and abs(real) >= 10**11):
            return f"{real / 10**power:.7g}e{power}"
    return number(value)


def flop_rate(value: Number | float) -> str:
    """FLOP/s: 157.2864e12 FLOP/s."""
    return f"{short(value)} FLOP/s"
