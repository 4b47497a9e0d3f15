"""Text with three marks (`code`, **strong**, [words](link)) as pieces, and which links are safe to follow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_MARK = re.compile(r"`([^`\n]+)`|\*\*([^*\n]+)\*\*|\[([^\]\n]+)\]\(([^)\s]+)\)")
_SAFE = re.compile(r"^(https?://|#|\.{0,2}/|[\w.-]+(/|$|\?|#|\.))", re.ASCII)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text of one kind; `href` only for a link."""

    kind: Literal["plain", "code", "strong", "link"]
    text: str
    href: str = ""


def pieces(text: str) -> list[Piece]:
    """`text` split at its marks; a link that leads anywhere unsafe stays plain text."""
    found: list[Piece] = []
    position = 0
    for match in _MARK.finditer(text):
        if match.start() > position:
            found.append(Piece("plain", text[position : match.start()]))
        code, strong, words, href = match.groups()
        if code is not None:
            found.append(Piece("code", code))
        elif strong is not None:
            found.append(Piece("strong", strong))
        elif safe(href):
            found.append(Piece("link", words, href))
        else:
            found.append(Piece("plain", match.group(0)))
        position = match.end()
    if position < len(text):
        found.append(Piece("plain", text[position:]))
    return found


def safe(href: str) -> bool:
    """Whether `href` is an anchor, a relative path or http(s): nothing that runs."""
    return bool(_SAFE.match(href)) and not re.match(r"^[\w+.-]+:(?!//)", href) and not href.startswith("//")
