"""Arithmetic in operation files: `(image / patch)**2 * (frames / tubelet)`; parsed, evaluated exactly, shown."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.roofline.poly import SUPERSCRIPTS, Number, Poly, group, whole

_FUNCTIONS: dict[str, Callable[..., Any]] = {"ceil": ceil, "floor": floor, "min": min, "max": max}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: " + ",
    ast.Sub: " − ",
    ast.Mult: " × ",
    ast.Div: " ÷ ",
    ast.FloorDiv: " // ",
}


class NotPolynomialError(ArithmeticError):
    """The expression has a ceil, floor, min or max, or divides by a sum: it has a value, but no polynomial."""


@dataclass(frozen=True, slots=True)
class Expr:
    """One expression of numbers, names, + - * / // **, ceil, floor, min and max."""

    text: str
    tree: ast.expr

    @staticmethod
    def parse(text: str | int, where: str) -> Expr:
        """Read an expression. Raises InputError, saying `where` it stands, for anything but arithmetic."""
        source = str(text)
        try:
            tree = ast.parse(source, mode="eval").body
        except SyntaxError as error:
            raise InputError(f"{where}: {source!r} is not an expression", hint=_HINT) from error
        _check(tree, source, where)
        return Expr(source, tree)

    @property
    def names(self) -> list[str]:
        """Names in it, in the order of their first use."""
        found = [node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)]
        return [name for name in dict.fromkeys(found) if name not in _FUNCTIONS]

    def value(self, names: Mapping[str, Number]) -> Number:
        """Its value, exact. Raises ZeroDivisionError and KeyError (an unknown name)."""
        if isinstance(self.tree, ast.Constant) and isinstance(self.tree.value, int):
            return self.tree.value
        return whole(_evaluate(self.tree, names, Fraction))

    def poly(self, names: Mapping[str, Poly]) -> Poly:
        """It as a polynomial. Raises NotPolynomialError where it is none."""
        try:
            found = _evaluate(self.tree, names, Poly.of)
        except (TypeError, ArithmeticError) as error:
            raise NotPolynomialError(self.text) from error
        if not isinstance(found, Poly):
            raise NotPolynomialError(self.text)
        return found

    def show(self, names: Mapping[str, str] | None = None) -> str:
        """It as one writes it by hand, with `names` replaced: `(256 ÷ 16)² × (16 ÷ 2)`."""
        return _show(self.tree, names or {})

    def factors(self, names: Mapping[str, Number]) -> list[Number]:
        """The values of its outermost factors: [256, 8]."""

        def split(node: ast.expr) -> list[ast.expr]:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                return [*split(node.left), *split(node.right)]
            return [node]

        return [whole(_evaluate(node, names, Fraction)) for node in split(self.tree)]


_HINT = "write arithmetic of names and numbers: + - * / // ** ceil() floor() min() max()"


def _check(node: ast.expr, source: str, where: str) -> None:
    match node:
        case ast.Constant(value=int()) | ast.Name():
            return
        case ast.Constant(value=float()):
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS or isinstance(op, ast.Pow):
            if isinstance(op, ast.Pow) and not (isinstance(right, ast.Constant) and isinstance(right.value, int)):
                raise InputError(f"{where}: {source!r}: a power must be a whole number", hint=_HINT)
            _check(left, source, where)
            _check(right, source, where)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _check(operand, source, where)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
            for argument in args:
                _check(argument, source, where)
        case _:
            raise InputError(f"{where}: {source!r} has something that is no arithmetic", hint=_HINT)


def _evaluate(node: ast.expr, names: Mapping[str, Any], constant: Callable[[Any], Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return constant(Fraction(str(value)))
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, names, constant)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_evaluate(argument, names, constant) for argument in args))
        case ast.BinOp(left=left, op=op, right=right):
            a = _evaluate(left, names, constant)
            if isinstance(op, ast.Pow):
                assert isinstance(right, ast.Constant)
                return a ** int(str(right.value))
            b = _evaluate(right, names, constant)
            return _apply(op, a, b)
    raise AssertionError(node)


def _apply(op: ast.operator, a: Any, b: Any) -> Any:
    match op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.Div():
            return a / b if isinstance(a, Poly) or isinstance(b, Poly) else Fraction(a) / Fraction(b)
        case _:
            return a // b


def _show(node: ast.expr, names: Mapping[str, str], inner: bool = False) -> str:
    match node:
        case ast.Constant(value=int(value)):
            return group(value)
        case ast.Constant(value=float(value)):
            return f"{value:g}"
        case ast.Name(id=name):
            return names.get(name, name)
        case ast.UnaryOp(operand=operand):
            return f"−{_show(operand, names, True)}"
        case ast.Call(func=ast.Name(id=name), args=args):
            return f"{name}({', '.join(_show(argument, names) for argument in args)})"
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return f"{_show(left, names, True)}{_show(right, names).translate(SUPERSCRIPTS)}"
        case ast.BinOp(left=left, op=op, right=right):
            product = isinstance(op, ast.Mult)
            loose = product and isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mult)
            text = f"{_show(left, names, not loose)}{_OPERATORS[type(op)]}{_show(right, names, True)}"
            return f"({text})" if inner else text
    raise AssertionError(node)
