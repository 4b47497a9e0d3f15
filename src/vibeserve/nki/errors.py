"""What a kernel author is told: the rule that was broken, at which kernel line, with which operands, and the fix."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a kernel."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_KNOWN: dict[str, bool] = {}
_PLACES: dict[
    tuple[int, int], tuple[CodeType, Place]
] = {}  # by the number of a code object, which is kept, and place in it
_MANY_PLACES = 10_000
NOWHERE = Place("<host>", 0)


def is_ours(file: str) -> bool:
    """Whether `file` belongs to the simulator or the import system (and so is never "the kernel's line")."""
    return file.startswith((_PACKAGE, "<nki ", "<frozen importlib"))


def kernel_place(depth: int = 1) -> Place:
    """The innermost line on the call stack that is not the simulator's own; `depth` calls are known to be."""
    first = sys._getframe(depth)
    known = _PLACES.get((id(first.f_code), first.f_lasti))
    if known is not None:
        return known[1]
    frame: FrameType | None = first
    while frame is not None:
        code = frame.f_code
        ours = _KNOWN.get(code.co_filename)
        if ours is None:
            ours = _KNOWN[code.co_filename] = is_ours(code.co_filename)
        if not ours:
            key = (id(code), frame.f_lasti)
            known = _PLACES.get(key)
            if known is None:
                if len(_PLACES) > _MANY_PLACES:
                    _PLACES.clear()
                known = _PLACES[key] = (code, Place(code.co_filename, frame.f_lineno, code.co_name))
            return known[1]
        frame = frame.f_back
    return NOWHERE


def place_of_traceback(traceback: TracebackType | None) -> Place:
    """The innermost line of a traceback that is not the simulator's own."""
    found = NOWHERE
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_ours(code.co_filename):
            found = Place(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return found


class NkiValidationError(Exception):
    """A rule of the device is broken (the vendor's name for it)."""


class KernelError(NkiValidationError, AssertionError):
    """A kernel does what the device or its compiler refuses.

    `code` is the compiler's own (NCC_…) where there is one, else a rule name of docs/nki.md; `place` the kernel's line;
    `operands` the operands as given; `rule` and `fix` say what holds and what to write instead.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "NKI-RULE",
        rule: str = "",
        fix: str = "",
        operands: str = "",
        place: Place | None = None,
    ):
        self.message = message
        self.code = code
        self.rule = rule
        self.fix = fix
        self.operands = operands
        self.place = kernel_place() if place is None else place
        super().__init__(self.render())

    def render(self) -> str:
        """The whole text: one line of what and where, then operands, rule and fix."""
        lines = [f"{self.message} [{self.code}]", f"  at {self.place}"]
        for label, text in (("operands", self.operands), ("rule", self.rule), ("fix", self.fix)):
            if text:
                lines.append(f"  {label}: {text}")
        return "\n".join(lines)


class NotSimulatedError(KernelError, NotImplementedError):
    """A name that the language has and this simulator lacks: never a wrong value."""

    def __init__(self, name: str):
        super().__init__(
            f"not simulated yet: {name}", code="NKI-NOT-SIMULATED", fix="see docs/nki-coverage.md for what is simulated"
        )
        self.name = name


class NotSimulatedModuleError(NotSimulatedError, ImportError):  # type: ignore[misc]
    """An import of such a name (no ModuleNotFoundError: `from m import x` would swallow that)."""


class NotSimulatedAttributeError(NotSimulatedError, AttributeError):  # type: ignore[misc]
    """An attribute of such a name."""


class SimulatorFaultError(RuntimeError):
    """The simulator itself failed on arguments of the documented kinds; `__cause__` is the error. No KernelError: the
    kernel broke no rule that is known."""

    def __init__(self, called: str, error: Exception, *, operands: str = "", place: Place | None = None):
        self.place = kernel_place() if place is None else place
        self.operands = operands
        super().__init__(
            f"simulator fault in {called}: {type(error).__name__}: {error}\n  at {self.place}\n  operands: {operands}\n"
            "  fix: the arguments are of the kinds that the function documents, so this is an error of the simulator;"
            " report it with this text"
        )


class BudgetError(KernelError):
    """The kernel was stopped: too many instructions, or none for too long."""

    def stands_at(self, place: Place) -> None:
        """Say where the kernel was, for an error that was made somewhere else."""
        self.place = place
        self.args = (self.render(),)
