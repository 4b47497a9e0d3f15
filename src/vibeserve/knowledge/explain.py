"""What a pasted message, exception or log says: codes and known message shapes in it, each with its fix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from vibeserve.knowledge import catalogue

_CODE = re.compile(
    r"NCC_[EI][A-Z]{3}[0-9]{3}|(?<![A-Z0-9_])\[([A-Z]{3}[0-9]{3})\]|(?<![A-Z0-9_])([EI]?[A-Z]{3}[0-9]{3})(?![0-9A-Z])"
)
_RULE = re.compile(r"\[([A-Z][A-Z0-9]{0,3}(?:-[A-Z0-9]+)+)\]")  # as the simulator writes its rules
_STATUS = re.compile(r"\bNRT_[A-Z_]+\b|\berr_[a-z0-9_]+\b")
# The number that a call of the runtime answered with.
_NUMBER = re.compile(
    r"\b(?:nrt_\w+|NRT)\b.{0,80}?\b(?:status(?:[ _]?code)?|returned|ret|error(?:[ _]?code)?)[ =:]{1,3}(\d{1,4})\b", re.I
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)|([\w./-]+\.py):(\d+)')
_OURS = ("site-packages", "dist-packages", "/lib/python", "neuronxcc", "torch_xla", "<frozen", "<string>", "vibeserve/")


@dataclass(frozen=True, slots=True)
class Match:
    """One thing that the text says; `file` and `line` are the likely place in the user's source."""

    code: str
    title: str
    cause: tuple[str, ...]
    fix: tuple[str, ...]
    text: str
    at_line: int
    file: str | None = None
    line: int | None = None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "code": self.code,
            "title": self.title,
            "cause": list(self.cause),
            "fix": list(self.fix),
            "file": self.file,
            "line": self.line,
            "text": self.text,
            "text_line": self.at_line,
        }


def explain(text: str) -> list[Match]:
    """Every known code and message shape in the text, in the order of their first appearance, each once."""
    found: dict[str, Match] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        for code in _codes(line):
            entry = catalogue.errors().get(code)
            if entry is not None and code not in found:
                file, at = _place(lines, number)
                found[code] = Match(
                    code, entry.title, (entry.meaning, *entry.causes), entry.fixes, line.strip()[:400], number, file, at
                )
    for number, line in enumerate(lines, 1):
        for signature, pattern in _patterns():
            if signature.id not in found and pattern.search(line):
                file, at = _place(lines, number)
                found[signature.id] = Match(
                    signature.id,
                    signature.pattern,
                    (signature.meaning,),
                    (signature.fix,),
                    line.strip()[:400],
                    number,
                    file,
                    at,
                )
    return sorted(found.values(), key=lambda item: (item.at_line, not item.code.startswith("NCC")))


def _codes(line: str) -> list[str]:
    out = []
    for match in _CODE.finditer(line):
        text = match.group(1) or match.group(2) or match.group(0)
        candidates = [text] if text.startswith("NCC_") else [f"NCC_{text}", f"NCC_E{text}", f"NCC_I{text}"]
        out += [code for code in candidates if code in catalogue.errors()][:1]
    for match in _NUMBER.finditer(line):
        found = [entry.code for entry in catalogue.errors().values() if entry.number == int(match.group(1))]
        out += [code for code in found if code != "NRT_SUCCESS"]
    out += [name for name in _RULE.findall(line) if name in catalogue.errors()]
    return out + [name for name in _STATUS.findall(line) if name in catalogue.errors()]


@cache
def _patterns() -> tuple[tuple[catalogue.Signature, re.Pattern[str]], ...]:
    """Each message shape as a pattern: <x> and … stand for anything, spaces for any space."""
    out = []
    for signature in catalogue.signatures():
        text = signature.pattern.split(" (")[0].strip()
        ways = text.split(" / ")
        whole = [text] if any(len(way) < 12 for way in ways) else ways
        for way in (*whole, *signature.also):
            parts = [re.escape(part.strip()) for part in re.split(r"<[^<>]*>|\.\.\.|…", way)]
            words = [part for part in parts if part]
            if sum(len(part) for part in words) < 12:
                continue
            body = r".{0,120}?".join(re.sub(r"(\\ )+", r"\\s+", part) for part in words)
            out.append((signature, re.compile(body, re.I)))
    return tuple(out)


def _place(lines: list[str], number: int) -> tuple[str | None, int | None]:
    """The user's own source line nearest above the message (or just below it)."""
    for index in [*range(number - 1, max(-1, number - 40), -1), *range(number, min(len(lines), number + 5))]:
        for match in reversed(list(_FRAME.finditer(lines[index]))):
            file, at = match.group(1) or match.group(3), match.group(2) or match.group(4)
            if not any(part in file for part in _OURS):
                return file, int(at)
    return None, None
