"""Conditions and formulas over facts: the small language in which techniques say when they apply and what they gain."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vibeserve.agents.agent import Fact

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
_BINARY: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_CALLS: dict[str, Callable[..., float]] = {"min": min, "max": max}


@dataclass(frozen=True)
class Condition:
    """`fact op value`, for example `workload.concurrency >= 2`; `why` says in words what it means where it fails."""

    fact: str
    op: str
    value: float
    why: str = ""

    def __post_init__(self) -> None:
        if self.op not in _COMPARE:
            raise ValueError(f"unknown comparison {self.op!r} (known: {', '.join(_COMPARE)})")


def holds(condition: Condition, facts: Mapping[str, Fact]) -> bool | None:
    """Whether it holds; None where the fact is not known."""
    fact = facts.get(condition.fact)
    return None if fact is None else _COMPARE[condition.op](fact.value, condition.value)


class UnknownFactError(LookupError):
    """A formula names a fact that is not known; its text is the name."""


def evaluate(formula: str, facts: Mapping[str, Fact]) -> float:
    """The value of an arithmetic formula (`+ - * / **`, `min`, `max`, numbers, names of facts with dots).

    Raises UnknownFactError for a name that is not known, ValueError for anything that is no such formula, and
    ZeroDivisionError as arithmetic does.
    """
    return _value(_parse(formula), facts, formula)


def names_in(formula: str) -> list[str]:
    """The facts that a formula needs, in order. Raises ValueError for what is no formula."""
    found: list[str] = []
    _value(_parse(formula), _Collector(found), formula)
    return list(dict.fromkeys(found))


class _Collector(dict[str, Fact]):
    """Answers every name with 1 and notes it: so that a formula is walked by the one evaluator."""

    def __init__(self, found: list[str]):
        super().__init__()
        self._found = found

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Fact:
        self._found.append(name)
        return Fact(1.0, "", "assumed")


def _parse(formula: str) -> ast.expr:
    try:
        return ast.parse(formula, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not a formula: {formula!r}") from error


def _value(node: ast.expr, facts: Mapping[str, Fact], formula: str) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name() | ast.Attribute():
            name = _dotted(node, formula)
            if name not in facts:
                raise UnknownFactError(name)
            return facts[name].value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, facts, formula), _value(right, facts, formula))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, facts, formula)
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]) if function in _CALLS and arguments:
            return _CALLS[function](*(_value(argument, facts, formula) for argument in arguments))
    raise ValueError(f"not a formula: {formula!r}")


def _dotted(node: Any, formula: str) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, formula)}.{node.attr}"
    raise ValueError(f"not a formula: {formula!r}")
