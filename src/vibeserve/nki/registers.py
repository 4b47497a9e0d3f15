"""Registers of the engine sequencers: run-time integers that index, count and decide loops."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from vibeserve.nki.errors import KernelError


class VirtualRegister:
    """A 32-bit register. Usable as loop bound, `while` condition, index and `scalar_offset`; not in Python arithmetic."""

    __slots__ = ("frozen", "state")

    def __init__(self, state: Any = None, frozen: bool = False):
        self.state = state
        self.frozen = frozen

    def value(self) -> int:
        """The integer that it holds; an uninitialised register is an error."""
        if self.state is None:
            raise KernelError(
                "a register is read before it holds a value",
                code="NCC_ISIM074",
                fix="nisa.register_alloc(0), nisa.register_move(reg, value) or nisa.register_load(reg, tensor)",
            )
        return int(self.state)

    def set(self, value: Any) -> None:
        """Store a 32-bit value; the induction register of a dynamic loop is read-only."""
        if self.frozen:
            raise KernelError(
                "the induction register of a dynamic loop is written",
                code="V4-INDVAR",
                rule="a loop's own register is read-only",
                fix="copy it into a register of your own: nisa.register_move(mine, i)",
            )
        self.state = float(value) if isinstance(value, float | np.floating) else wrap32(int(value))

    def __bool__(self) -> bool:
        if self.frozen:  # a loop's own counts passes; a register of the kernel's may be the condition of a `while`
            self._refuse()
        return self.value() != 0

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | float | np.number) or (isinstance(other, VirtualRegister) and other is not self):
            self._refuse()
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def _refuse(self, *_: Any) -> NoReturn:
        raise KernelError(
            "Python arithmetic, if, int(), range() or comparison on a register",
            code="V6-LOOPARITH",
            rule="a register has no value while the kernel is traced",
            fix="use it as .ap(scalar_offset=reg), as an index, or with nisa instructions",
        )

    __int__ = __index__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = __neg__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __repr__(self) -> str:
        return f"VirtualRegister({self.state})"


def wrap32(value: int) -> int:
    """An integer as a register keeps it: signed 32 bits, but unsigned values up to 2^32-1 stay as they are."""
    return value if -(1 << 31) <= value < (1 << 32) else ((value + (1 << 31)) % (1 << 32)) - (1 << 31)
