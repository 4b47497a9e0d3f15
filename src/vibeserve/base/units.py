"""Numbers for people to read: 218.5 µs, 41.9 MB, 157.3 TFLOP/s. Programs get the plain number."""

from __future__ import annotations

_LARGE = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]
_SMALL_TIME = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]


def si(value: float, unit: str, digits: int = 4) -> str:
    """`value` with a decimal prefix: si(41943040, 'B') is '41.94 MB'."""
    for factor, prefix in _LARGE:
        if abs(value) >= factor:
            return f"{value / factor:.{digits}g} {prefix}{unit}"
    return f"{value:.{digits}g} {unit}"


def duration(seconds: float, digits: int = 4) -> str:
    """A time span: duration(2.185e-4) is '218.5 µs'."""
    for factor, unit in _SMALL_TIME:
        if abs(seconds) >= factor:
            return f"{seconds / factor:.{digits}g} {unit}"
    return f"{seconds:.{digits}g} s" if seconds == 0 else f"{seconds / 1e-9:.{digits}g} ns"


def parse_duration_s(text: str) -> float:
    """'10m', '90s', '1.5h', '250ms' or plain seconds, as seconds. Raises ValueError for anything else."""
    for suffix, factor in (("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)):
        if suffix and not text.endswith(suffix):
            continue
        number = text.removesuffix(suffix) if suffix else text
        try:
            value = float(number) * factor
        except ValueError:
            continue
        if value >= 0 and value != float("inf"):
            return value
    raise ValueError(f"not a time span: {text!r} (write 90s, 10m or 1.5h)")
