"""Which device a kernel is run for: the generations as data, and the choice among them, read at each call."""

from __future__ import annotations

import functools
import os
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError

DEFAULT_TARGET = "trn2"
TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
ALLOW_VARIABLE = "NKI_ALLOW"
LENIENT = frozenset({"S-BOTH-PSUM", "S-PSTART"})  # rules that one document has and another has kernels break


@dataclass(frozen=True, slots=True)
class Target:
    """One NeuronCore generation under the name it was asked for; sizes in bytes (per partition where so named)."""

    name: str
    number: int
    lnc: tuple[int, ...]
    sbuf_usable_per_partition: int
    sbuf_per_partition: int
    psum_per_partition: int
    psum_bank: int
    hbm_bytes: int
    moving_fmax: dict[str, int]
    row_tiles: tuple[int, ...]

    def __hash__(self) -> int:
        return hash(self.name)


@functools.cache
def _table() -> dict[str, Target]:
    raw: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "data" / "generations.toml").read_text())
    found = {}
    for row in raw.values():
        for name in row["names"]:
            facts = {key: value for key, value in row.items() if key != "names"}
            facts |= {"lnc": tuple(row["lnc"]), "row_tiles": tuple(row["row_tiles"])}
            found[name] = Target(name=name, **facts)
    return found


def target(name: str | None = None) -> Target:
    """The target called `name`; without one, what the environment says now, else trn2. InputError for an unknown name."""
    wanted = name or os.environ.get(TARGET_VARIABLE) or compiler_flag("--target") or DEFAULT_TARGET
    try:
        return _table()[wanted]
    except KeyError:
        raise InputError(
            f"unknown target {wanted!r}" + ("" if name else f" (from {TARGET_VARIABLE} or NEURON_CC_FLAGS)"),
            hint=f"one of {', '.join(_table())}",
        ) from None


def compiler_flag(flag: str) -> str | None:
    """The value of a flag in NEURON_CC_FLAGS (`--target trn2` or `--target=trn2`)."""
    words = shlex.split(os.environ.get("NEURON_CC_FLAGS", ""))
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def default_lnc() -> int:
    """The LNC degree that the environment asks for, else 1."""
    return asked_lnc() or 1


def asked_lnc() -> int | None:
    """The LNC degree that the environment asks for; None where it says nothing."""
    text = os.environ.get(LNC_VARIABLE) or compiler_flag("--lnc")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError(f"LNC degree {text!r}", hint=f"{LNC_VARIABLE} is 1 or 2") from None


def allowed_rules() -> frozenset[str]:
    """The rules that the environment lets pass (NKI_ALLOW="S-BOTH-PSUM S-PSTART"); those of `LENIENT` can be."""
    found = frozenset(os.environ.get(ALLOW_VARIABLE, "").replace(",", " ").split())
    unknown = sorted(found - LENIENT)
    if unknown:
        raise InputError(
            f"{ALLOW_VARIABLE} names {', '.join(unknown)}", hint=f"what can be let pass: {', '.join(sorted(LENIENT))}"
        )
    return found


def current() -> Target:
    """The target of the running kernel; outside of one, the environment's."""
    from vibeserve.nki.context import core_or_none

    core = core_or_none()
    return core.session.target if core is not None else target()


def generation() -> int:
    """2, 3 or 4: the generation of the current target."""
    return current().number
