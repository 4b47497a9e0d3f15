"""Einsum-like subscripts with names: `x[R D], W1[D F] -> h[R F]`.

A tensor is written with its dimensions in brackets; what is summed over is what the output lacks, as in an einsum. A
sliding window is written as a sum: in `x[N C P+I Q+J], w[K C I J] -> y[N K P Q]` the rows of x are read at P + I, with a
stride at 2*P+I.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vibeserve.base.errors import InputError

_OPERAND = re.compile(r"\s*([A-Za-z_]\w*)\s*\[([^\[\]]*)\]\s*")
_INDEX = re.compile(r"(?:(\d+)\s*\*\s*)?([A-Za-z_]\w*)(?:\+(?:(\d+)\s*\*\s*)?([A-Za-z_]\w*))?$")

HINT = "write tensors with their dimensions: x[R D], W[D F] -> h[R F]"


@dataclass(frozen=True, slots=True)
class Index:
    """One place of a tensor's shape: a dimension, or a window `stride*outer+inner` over two."""

    outer: str
    inner: str = ""
    stride: int = 1

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions that it runs over."""
        return (self.outer, self.inner) if self.inner else (self.outer,)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as a stage uses it."""

    tensor: str
    indices: tuple[Index, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """All dimensions that it runs over, in order."""
        return tuple(dim for index in self.indices for dim in index.dims)


@dataclass(frozen=True, slots=True)
class Subscripts:
    """Inputs and output of a stage."""

    inputs: tuple[Operand, ...]
    output: Operand

    @property
    def dims(self) -> tuple[str, ...]:
        """The iteration space: every dimension, in the order of first use."""
        used = [dim for operand in (*self.inputs, self.output) for dim in operand.dims]
        return tuple(dict.fromkeys(used))

    @property
    def summed(self) -> tuple[str, ...]:
        """The dimensions that the output lacks."""
        kept = set(self.output.dims)
        return tuple(dim for dim in self.dims if dim not in kept)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs, then the output."""
        return (*self.inputs, self.output)


def parse(text: str, where: str) -> Subscripts:
    """Read subscripts. Raises InputError, saying `where` they stand."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise InputError(f"{where}: no '->' in {text!r}", hint=HINT)
    outputs = _operands(right, text, where)
    if len(outputs) != 1:
        raise InputError(f"{where}: {text!r} needs one output after '->'", hint=HINT)
    return Subscripts(tuple(_operands(left, text, where)), outputs[0])


def _operands(side: str, text: str, where: str) -> list[Operand]:
    found = []
    place = 0
    while True:
        match = _OPERAND.match(side, place)
        if match is None:
            raise InputError(f"{where}: cannot read {side[place:].strip() or side!r} in {text!r}", hint=HINT)
        found.append(Operand(match[1], tuple(_index(word, text, where) for word in _words(match[2]))))
        place = match.end()
        if place == len(side):
            return found
        if side[place] != ",":
            raise InputError(f"{where}: expected a comma before {side[place:].strip()!r} in {text!r}", hint=HINT)
        place += 1


def _words(inside: str) -> list[str]:
    return re.sub(r"\s*([+*])\s*", r"\1", inside).replace(",", " ").split()


def _index(word: str, text: str, where: str) -> Index:
    match = _INDEX.match(word)
    if match is None or match[3]:
        raise InputError(
            f"{where}: cannot read the index {word!r} in {text!r}", hint="an index is R, or a window P+I or 2*P+I"
        )
    if match[1] and not match[4]:
        raise InputError(f"{where}: a stride needs a window in {word!r}", hint="write 2*P+I")
    return Index(match[2], match[4] or "", int(match[1] or 1))
