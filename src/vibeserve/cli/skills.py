"""`vibeserve skills list|install|uninstall`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vibeserve.cli.output import JsonFlag, note, print_json, print_table
from vibeserve.mcp import skills as room

Agent = Annotated[str, typer.Option("--agent", help=f"One of {', '.join(room.PLACES)}: decides the folder.")]
Dest = Annotated[Path | None, typer.Option("--dest", help="Another folder.")]
Names = Annotated[list[str] | None, typer.Argument(help="Which skills; all where left out.")]


def list_skills(as_json: JsonFlag = False) -> None:
    """List the agent skills."""
    found = room.skills()
    if as_json:
        print_json(
            {"skills": [{"name": item.name, "description": item.description, "path": str(item.path)} for item in found]}
        )
    else:
        print_table(["skill", "for"], [[item.name, item.description] for item in found])


def install(names: Names = None, agent: Agent = "claude", dest: Dest = None, as_json: JsonFlag = False) -> None:
    """Install or update the skills for a coding agent. A file that you have changed is never overwritten."""
    _show(room.install(room.destination(agent, dest), tuple(names or ())), as_json)


def uninstall(names: Names = None, agent: Agent = "claude", dest: Dest = None, as_json: JsonFlag = False) -> None:
    """Remove installed skills, but for files that you have changed."""
    _show(room.uninstall(room.destination(agent, dest), tuple(names or ())), as_json)


def _show(done: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    counts = ", ".join(
        f"{len(done[key])} {key}" for key in ("written", "unchanged", "removed", "kept") if done.get(key)
    )
    note(f"{done['dest']}: {counts or 'nothing to do'}")
    for name in done.get("kept", []):
        note(f"kept as it is, for it was changed here: {name}")
