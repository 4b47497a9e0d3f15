"""The names of agents, as `--agent` takes them: playbook, claude, codex, gemini, opencode, acp:CMD, openai:MODEL."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from vibeserve.base.errors import InputError

CLIS = ("claude", "codex", "gemini", "opencode")
FORMS = ("playbook", *(f"{name}[:MODEL]" for name in CLIS), "acp:COMMAND", "openai:MODEL")


@dataclass(frozen=True)
class AgentName:
    """A name taken apart: `kind` is playbook, one of the command lines, acp or openai; `rest` its model or command."""

    kind: str
    rest: str = ""


def parse_agent(text: str) -> AgentName:
    """Take a name apart. Raises InputError for one that there is not."""
    kind, colon, rest = text.strip().partition(":")
    known = f"known: {', '.join(FORMS)}"
    if kind in ("acp", "openai"):
        if not rest.strip():
            what = "a command" if kind == "acp" else "a model"
            raise InputError(f"--agent {kind} needs {what}", hint=known)
        if kind == "acp":
            command_of(rest)
        return AgentName(kind, rest.strip())
    if kind in CLIS and (rest.strip() or not colon):
        return AgentName(kind, rest.strip())
    if text.strip() == "playbook":
        return AgentName("playbook")
    raise InputError(f"unknown agent {text!r}", hint=known)


def command_of(text: str) -> list[str]:
    """The words of a command line. Raises InputError for one that is none."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(
            f"--agent acp: {text!r} is no command line: {error}", hint="quote it as a shell would"
        ) from error
