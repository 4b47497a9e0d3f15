"""Names: the machine's short name, and a bundle's slug `<family>-<size>-<hardware-or-workload>`."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

_DATA = Path(__file__).with_name("machines.toml")
_NUMERIC = re.compile(r"^(\d+x)?\d+(\.\d+)?[bm](-?a\d+(\.\d+)?b)?$", re.I)
_NAMED = re.compile(r"^(tiny|small|base|medium|large|xl|xxl|mini|nano|micro|turbo|schnell)(\.en)?$", re.I)


@cache
def _machines() -> tuple[tuple[re.Pattern[str], str], ...]:
    entries = tomllib.loads(_DATA.read_text(encoding="utf-8"))["machine"]
    return tuple((re.compile(entry["pattern"], re.I), entry["name"]) for entry in entries)


@cache
def _packing() -> frozenset[str]:
    return frozenset(tomllib.loads(_DATA.read_text(encoding="utf-8"))["packing"].split())


def hyphenate(text: str) -> str:
    """Lowercase letters, digits and hyphens only."""
    return re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9]+", "-", text.lower())).strip("-")


def machine_of(text: str | None) -> str | None:
    """The short name of the machine that a text names; the text itself in hyphen case where it is no known one."""
    if not text or not text.strip():
        return None
    return _named_in(text) or hyphenate(text) or None


def machine_in_goal(goal: str) -> str | None:
    """A machine that the goal names in passing; None where it names none. Cores alone may count anything."""
    named = _named_in(goal)
    return named if named != "cpu" or re.search(r"\bcpus?\b", goal, re.I) else None


def _named_in(text: str) -> str | None:
    one_by_one = re.sub(r"(?<=\d)\s*[x×]\s*(?=[a-z])", " ", text, flags=re.I)  # "8xA100"
    for pattern, name in _machines():
        if found := pattern.search(one_by_one):
            return name.format(*(group.lower() for group in found.groups() if group))
    return None


def family_and_size(model: str) -> str:
    """`qwen3-8b` out of `Qwen/Qwen3-8B-Instruct-AWQ`: the name up to its size, packaging words left out.

    The size is the number of parameters where the name has one (`mistral-small-24b`), else a word (`whisper-base`).
    """
    name = model.rstrip("/").split("/")[-1].removesuffix(".gguf")
    parts = [part for part in re.split(r"[-_\s]+", name) if part]
    size = _NUMERIC if any(_NUMERIC.match(part) for part in parts) else _NAMED
    sized = any(size.match(part) for part in parts)
    kept: list[str] = []
    for part in parts:
        lower = part.lower()
        is_version = sized and re.fullmatch(r"v\d+(\.\d+)*|\d{4,}", lower)
        only_size = (
            lower == "base" and size is _NAMED and not any(_NAMED.match(p) for p in parts if p.lower() != "base")
        )
        if lower in _packing() and not only_size:
            continue
        if is_version or (re.fullmatch(r"q\d(_\w+)?|iq\d\w*|w\d+a\d+|k|m|s|\d+k|\d+(\.\d+)?bpw", lower) and kept):
            continue
        kept.append(lower)
        if size.match(part):
            break
    return hyphenate("-".join(kept)) or "model"


def slug_for(model: str, hardware: str | None, workload: str) -> str:
    """`<family>-<size>-<hardware>-<workload>`, what is not known left out."""
    parts = [family_and_size(model)]
    parts += [hardware] if hardware and hardware not in parts[0].split("-") else []
    parts += [workload] if workload and workload not in parts[0] else []
    return hyphenate("-".join(parts))
