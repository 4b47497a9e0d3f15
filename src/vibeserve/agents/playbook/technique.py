"""A technique as data: when it applies, what it changes, what it should gain, how one sees that it is at work.

One TOML file a technique in `techniques/`; an unknown key, a formula that is none or a name that leads nowhere is an
error that names the file. `docs/playbook.md` explains every key.
"""

from __future__ import annotations

import functools
import tomllib
from importlib.resources import files
from typing import Any, Literal

import msgspec

from vibeserve.agents.conditions import Condition, names_in

Kind = Literal["floor", "workload", "precision", "tuning"]
Models = Literal["engine", "other", "any"]


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on evidence; `why` is what to tell where it does not hold. `known`: an unknown fact fails it too."""

    fact: str
    op: str
    value: float
    why: str
    known: bool = False

    def condition(self) -> Condition:
        """As a condition over facts."""
        return Condition(self.fact, self.op, self.value, self.why)


class Applies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a technique can be tried at all. Empty lists mean any.

    `models`: `engine` (families that the engine builds itself), `other` (all the rest) or `any`. `dtypes`: the bundle must
    allow all of them. `requires` (all), `requires_any` (one) and `excludes` (none) are techniques in place.
    """

    modality: tuple[str, ...] = ()
    api: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    models: Models = "engine"
    dtypes: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    requires_any: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    when: tuple[When, ...] = ()


class Changes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What it does to a candidate: parts of the engine, settings, and settings worked out from facts (`computed`)."""

    parts: tuple[str, ...] = ()
    settings: dict[str, bool | int | float | str] = msgspec.field(default_factory=dict)
    computed: dict[str, str] = msgspec.field(default_factory=dict)


class Expects(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What it should gain: `ratio` is a formula over facts (above 1 is better), `otherwise` stands where one is unknown.

    `metrics` restricts it to bundles that measure one of these; empty means any. `source` says where the formula is from.
    """

    effect: str
    ratio: str
    otherwise: float
    source: str
    metrics: tuple[str, ...] = ()


class Knob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting with a range: whole numbers between two formulas, or choices."""

    setting: str
    low: str = ""
    high: str = ""
    step: int = 1
    choices: tuple[bool | int | float | str, ...] = ()


class Technique(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One technique. `hypothesis` and `falsification` are sentences; `trials` bounds the tries of its knobs."""

    name: str
    title: str
    kind: Kind
    why: str
    hypothesis: str
    falsification: str
    changes: Changes
    expects: Expects
    applies: Applies = Applies()
    activation: tuple[When, ...] = ()
    knobs: tuple[Knob, ...] = ()
    trials: int = 1
    verified: str = ""


class FloorItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every server on a kind of hardware must have.

    `techniques`: any of them in place will do; `fact` must then be at least 1 on the candidate's own counters, where it
    is reported. `excused` are conditions any of which makes it needless. `note` says what else there is to know.
    """

    hardware: str
    name: str
    techniques: tuple[str, ...]
    fact: str = ""
    excused: tuple[When, ...] = ()
    note: str = ""


class DataError(ValueError):
    """A file of the playbook is wrong; the text names the file and what is wrong with it."""


def parse(text: str, where: str) -> Technique:
    """One technique from TOML. Raises DataError."""
    technique = _convert(text, where, Technique)
    formulas = [technique.expects.ratio, *technique.changes.computed.values()]
    formulas += [bound for knob in technique.knobs for bound in (knob.low, knob.high) if bound]
    try:
        for formula in formulas:
            names_in(formula)
        for when in (*technique.applies.when, *technique.activation):
            when.condition()
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
    for knob in technique.knobs:
        if bool(knob.choices) == bool(knob.low and knob.high):
            raise DataError(f"{where}: knob {knob.setting!r} needs either choices, or low and high")
    if technique.kind == "tuning" and not technique.knobs:
        raise DataError(f"{where}: a tuning technique needs knobs")
    return technique


def _convert(text: str, where: str, kind: Any) -> Any:
    try:
        return msgspec.convert(tomllib.loads(text), kind)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise DataError(f"{where}: {error}") from error


@functools.cache
def techniques() -> tuple[Technique, ...]:
    """All techniques, by name; checked against each other once."""
    folder = files("vibeserve.agents.playbook").joinpath("techniques")
    found = {}
    for path in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if path.name.endswith(".toml"):
            technique = parse(path.read_text(encoding="utf-8"), path.name)
            if technique.name != path.name.removesuffix(".toml"):
                raise DataError(f"{path.name}: its name is {technique.name!r}; file and name must agree")
            found[technique.name] = technique
    for technique in found.values():
        for other in (*technique.applies.requires, *technique.applies.requires_any, *technique.applies.excludes):
            if other not in found:
                raise DataError(f"{technique.name}.toml: there is no technique {other!r}")
    return tuple(found.values())


class _Floor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    item: tuple[FloorItem, ...]


@functools.cache
def floor_items() -> tuple[FloorItem, ...]:
    """The floor of every kind of hardware, in the order in which it is shown."""
    text = files("vibeserve.agents.playbook").joinpath("floor.toml").read_text(encoding="utf-8")
    items: tuple[FloorItem, ...] = _convert(text, "floor.toml", _Floor).item
    known = {technique.name for technique in techniques()}
    for item in items:
        for name in item.techniques:
            if name not in known:
                raise DataError(f"floor.toml: {item.name!r} names the unknown technique {name!r}")
    return items
