"""Formulas and conditions over facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.agents import Fact
from vibeserve.agents.conditions import Condition, UnknownFactError, evaluate, holds, names_in

FACTS = {"a": Fact(2.0, "", "measured"), "w.b": Fact(5.0, "", "measured")}
numbers = st.floats(min_value=-1e6, max_value=1e6)


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("1 + 2 * 3", 7),
        ("a * w.b", 10),
        ("min(a, w.b, 1.5)", 1.5),
        ("max(a, -w.b)", 2),
        ("a ** 3 - 1", 7),
        ("1 / (1 - 0.5)", 2),
    ],
)
def test_formulas(formula: str, value: float) -> None:
    assert evaluate(formula, FACTS) == value


@pytest.mark.parametrize(
    "formula",
    [
        "",
        "a +",
        "open('x')",
        "a.b.c()",
        "[1]",
        "'a'",
        "True",
        "a if a else 1",
        "min()",
        "a < 1",
        "lambda: 1",
        "max(a, key=a)",
    ],
)
def test_what_is_no_formula(formula: str) -> None:
    with pytest.raises((ValueError, UnknownFactError)):
        evaluate(formula, FACTS)


def test_an_unknown_fact_is_named() -> None:
    with pytest.raises(UnknownFactError, match=r"workload\.rate"):
        evaluate("a * workload.rate", FACTS)


def test_names() -> None:
    assert names_in("max(a, w.b) / a + 1") == ["a", "w.b"]


@given(numbers, numbers)
def test_arithmetic_is_python_s(left: float, right: float) -> None:
    facts = {"x": Fact(left, "", "measured"), "y": Fact(right, "", "measured")}
    assert evaluate("x + y * 2 - x", facts) == left + right * 2 - left


@given(numbers, numbers)
def test_comparisons(value: float, bound: float) -> None:
    facts = {"x": Fact(value, "", "measured")}
    assert holds(Condition("x", ">=", bound), facts) is (value >= bound)
    assert holds(Condition("x", "<", bound), facts) is (value < bound)
    assert holds(Condition("y", ">=", bound), facts) is None


def test_an_unknown_comparison() -> None:
    with pytest.raises(ValueError, match="unknown comparison"):
        Condition("x", "~", 1.0)
