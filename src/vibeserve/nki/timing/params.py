"""The model's constants: one data file per generation, each value with how it is known; a file of one's own overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import read_toml

MARKS = ("documented", "legacy", "measured", "figure", "inferred", "guess", "given")
UNSURE = ("inferred", "guess")
_DATA = Path(__file__).parent.parent / "data" / "timing"
_FILES = {2: "trn1", 3: "trn2", 4: "trn3"}


@dataclass(frozen=True, slots=True)
class Constant:
    """A value in the unit that its name or section gives, and its mark (one of MARKS)."""

    value: float
    mark: str


class Params:
    """Constants by "section.name"; `values` are the bare numbers."""

    def __init__(self, constants: Mapping[str, Constant]):
        self.constants = dict(constants)
        self.values = {name: constant.value for name, constant in constants.items()}

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def unsure(self) -> Iterator[str]:
        """The names of what is inferred or guessed."""
        return (name for name, constant in self.constants.items() if constant.mark in UNSURE)

    def changed(self, name: str, value: float) -> Params:
        """A copy with one value changed."""
        return Params({**self.constants, name: Constant(value, self.constants[name].mark)})


def load(generation: int, override: Path | None = None) -> Params:
    """The constants of a generation (2, 3, 4); those in `override` (the same form, or bare numbers) take their places.

    Raises InputError for a file that cannot be read, a name that there is none of, or a value that is no number.
    """
    path = _DATA / f"{_FILES[generation]}.toml"
    found = {name: _constant(path, name, value) for name, value in _flat(tomllib.loads(path.read_text("utf-8")))}
    if override is not None:
        try:
            raw = read_toml(override)
        except (OSError, ValueError) as error:
            raise InputError(f"{override}: {error}", hint=f"a TOML file as {path.name} of the package") from None
        for name, value in _flat(raw):
            if name not in found:
                section = name.partition(".")[0]
                near = [known for known in found if known.startswith(f"{section}.")] or sorted(
                    {known.partition(".")[0] for known in found}
                )
                raise InputError(f"{override}: there is no constant {name!r}", hint=f"one of {', '.join(near)}")
            found[name] = _constant(override, name, value)
    return Params(found)


def _flat(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, rows in raw.items():
        if not isinstance(rows, dict):
            yield section, rows
            continue
        for name, value in rows.items():
            yield f"{section}.{name}", value


def _constant(path: Path, name: str, value: Any) -> Constant:
    mark = "given"
    if isinstance(value, dict):
        mark, value = value.get("mark", "given"), value.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise InputError(f"{path}: {name} = {value!r}", hint="a number that is not negative")
    if mark not in MARKS:
        raise InputError(f"{path}: {name} has the mark {mark!r}", hint=f"one of {', '.join(MARKS)}")
    return Constant(float(value), mark)
