"""Every command that the documentation names exists, with its options; every link and picture leads somewhere."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from vibeserve.base.errors import MissingError
from vibeserve.cli.main import command
from vibeserve.cli.verbs import GROUPS, VERBS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "skills").rglob("*.md"),
    ]
)
PAGES = [page for page in PAGES if "/reference/model/" not in str(page)]
SHELL = re.compile(r"```(?:sh|bash|console|shell)\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[\w.-]+)?\)")
CODE = re.compile(r"```.*?```|``.*?``|`[^`\n]*`", re.DOTALL)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def _commands(text: str) -> list[list[str]]:
    """The words of each `vibeserve` command in the page's shell blocks; lines that end in a backslash are joined."""
    found = []
    for block in SHELL.findall(text):
        for raw in block.replace("\\\n", " ").splitlines():
            line = raw.strip().removeprefix("$ ").split(" # ")[0].replace("…", "X")
            match = re.search(r"(?:^|\$\(|[|;&] *)(?:\.venv/bin/)?vibeserve +(.*)", line)
            if match:
                found.append(_words(match[1]))
    return found


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words = []
    for word in lexer:
        if word == "--" or set(word) <= set("|;&<>()"):
            break  # what follows goes to another program
        words.append(word)
    return words


def _verb(words: list[str]) -> str | None:
    """The verb that a command begins with; the form without one is optimize."""
    if not words or words[0].startswith("-"):
        return "optimize" if any(word in ("--ref", "--acc-checker", "--bench") for word in words) else ""
    two = " ".join(words[:2])
    return next((name for name in (two, words[0]) if name in VERBS or name in GROUPS), None)


@cache
def _options(verb: str) -> frozenset[str] | None:
    """Every option of a verb; None where its module is not there."""
    group = command()
    for word in verb.split():
        try:
            group = group.get_command(None, word)
        except MissingError:
            return None
    return frozenset(name for parameter in group.params for name in (*parameter.opts, *parameter.secondary_opts))


@pytest.mark.parametrize("name", NAMES)
def test_commands_exist_with_their_options(name: str) -> None:
    wrong = []
    for words in _commands((ROOT / name).read_text(encoding="utf-8")):
        verb = _verb(words)
        if verb is None:
            wrong.append(f"no such verb: vibeserve {' '.join(words)}")
        elif verb in VERBS and (known := _options(verb)) is not None:
            given = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
            unknown = given - known - {"--help", "--debug"}
            wrong += [f"vibeserve {verb} has no {option}" for option in sorted(unknown)]
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    links = [
        link
        for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
        if not link.startswith(("http", "mailto:"))
    ]
    assert [link for link in links if not (page.parent / link).exists()] == []
