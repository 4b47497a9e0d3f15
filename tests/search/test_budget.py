"""Budgets as people write them."""

from __future__ import annotations

import pytest

from vibeserve.base.errors import InputError
from vibeserve.search.budget import Budget, parse_budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("10m", Budget(600.0)),
        ("400k tokens", Budget(None, 400_000)),
        ("1h, 1.5M tokens, $5", Budget(3600.0, 1_500_000, 5.0)),
        ("2.50 dollars,90s", Budget(90.0, None, 2.5)),
        ("1 token", Budget(None, 1)),
    ],
)
def test_parts(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ten",
        "10m, 20m",
        "5 tokens, 6 tokens",
        "$",
        "$-1",
        "10m,",
        "nan tokens",
        "1e400s",
        "9" * 400 + " tokens",
        "$" + "9" * 400,
        "-1h",
        "1e12h",
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(InputError, match="--budget"):
        parse_budget(text)
