"""A budget as people write it: `10m`, `10m, 400k tokens`, `1h, $5`, `2M tokens`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vibeserve.base.errors import InputError
from vibeserve.base.units import parse_duration_s

_TOKENS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kM]?)\s*tokens?")
_MONEY = re.compile(r"\$\s*([0-9]+(?:\.[0-9]+)?)|([0-9]+(?:\.[0-9]+)?)\s*(?:usd|dollars?)", re.IGNORECASE)
_SCALE = {"": 1, "k": 1_000, "M": 1_000_000}


@dataclass(frozen=True)
class Budget:
    """Each None where it was not given: seconds, tokens, US dollars."""

    seconds: float | None = None
    tokens: int | None = None
    cost_usd: float | None = None


def parse_budget(text: str) -> Budget:
    """Parts with commas between, each kind at most once. Raises InputError with the part that is none."""
    found: dict[str, float | int] = {}
    for part in (piece.strip() for piece in text.split(",")):
        name, value = _part(part)
        if name in found:
            raise InputError(f"--budget: two amounts of {name} in {text!r}", hint=_HINT)
        found[name] = value
    return Budget(
        seconds=found.get("seconds"), tokens=None if "tokens" not in found else int(found["tokens"]), cost_usd=found.get("cost_usd")
    )  # fmt: skip


_MOST = 1e12
_HINT = "for example --budget 10m, or --budget '1h, 400k tokens', or --budget '1h, $5'"


def _part(text: str) -> tuple[str, float | int]:
    if match := _TOKENS.fullmatch(text):
        name, value = "tokens", float(match[1]) * _SCALE[match[2]]
    elif match := _MONEY.fullmatch(text):
        name, value = "cost_usd", float(match[1] or match[2])
    else:
        try:
            name, value = "seconds", parse_duration_s(text)
        except ValueError as error:
            raise InputError(f"--budget: {error}", hint=_HINT) from None
    if not value < _MOST:
        raise InputError(f"--budget: {text[:40]!r} is no amount", hint=_HINT)
    return name, round(value) if name == "tokens" else value
