"""Agent skills: what there is, and copying them to where a coding agent looks for them.

What was installed is written into a manifest beside the skills, with the hash of every file, so that an update or an
uninstall never touches a file that the user has changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import DiskFiles, Files, write_json
from vibeserve.base.paths import packaged

# Where each agent looks, from the project's folder.
PLACES = {
    "claude": ".claude/skills",
    "codex": ".agents/skills",
    "gemini": ".gemini/skills",
    "cursor": ".cursor/skills",
    "opencode": ".opencode/skills",
    "generic": "skills",
}
MANIFEST = ".vibeserve-skills.json"
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.S)


@dataclass(frozen=True, slots=True)
class Skill:
    """A packaged skill."""

    name: str
    description: str
    path: Path


def skills(source: Path | None = None) -> list[Skill]:
    """Every packaged skill, by name. Raises InputError for one without the front matter that an agent needs."""
    found = []
    for path in sorted((source or packaged("skills")).glob("*/SKILL.md")):
        front = _FRONT.match(path.read_text(encoding="utf-8"))
        fields = _fields(path, front.group(1)) if front else {}
        if fields.get("name") != path.parent.name or not fields.get("description"):
            raise InputError(
                f"{path}: front matter needs 'name: {path.parent.name}' and a description", hint="mend the skill"
            )
        found.append(Skill(fields["name"], fields["description"], path.parent))
    return found


def _fields(path: Path, text: str) -> dict[str, str]:
    import yaml

    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(
            f"{path}: front matter is not YAML: {' '.join(str(error).split())}",
            hint="quote a value that has ': ' in it",
        ) from error
    return {str(key): str(value) for key, value in loaded.items()} if isinstance(loaded, dict) else {}


def destination(agent: str, dest: Path | None) -> Path:
    """Where an agent's skills go: `dest`, else its place below the present folder."""
    if agent not in PLACES:
        raise InputError(f"unknown agent '{agent}'", hint=f"one of {', '.join(PLACES)}")
    return dest if dest is not None else Path(PLACES[agent])


def install(
    folder: Path, only: tuple[str, ...] = (), source: Path | None = None, files: Files | None = None
) -> dict[str, Any]:
    """Copy skills into `folder`; files that the user has changed since are kept and named. Returns what was done."""
    files = files or DiskFiles()
    from vibeserve.mcp.references import generated, named_files

    chosen = _chosen(skills(source), only)
    manifest = _manifest(folder)
    done: dict[str, list[str]] = {"written": [], "unchanged": [], "kept": [], "removed": []}
    for skill in chosen:
        wanted = {
            str(Path(skill.name) / path.relative_to(skill.path)): path
            for path in sorted(skill.path.rglob("*"))
            if _ships(path, skill.path)
        }
        contents = {name: origin.read_bytes() for name, origin in wanted.items()}
        for path, data in (generated(skill.name) if source is None else {}).items():
            contents.setdefault(f"{skill.name}/{path}", data)
        for path, data in (named_files(contents.values()) if source is None else {}).items():
            contents.setdefault(f"{skill.name}/{path}", data)
        for name, data in contents.items():
            _place(files, folder / name, name, data, manifest, done)
        for name in [name for name in manifest if name.startswith(f"{skill.name}/") and name not in contents]:
            _take_away(files, folder, name, manifest, done)
    write_json(files, folder / MANIFEST, {"files": dict(sorted(manifest.items()))})
    return {"dest": str(folder), "skills": [skill.name for skill in chosen], **done}


def uninstall(folder: Path, only: tuple[str, ...] = (), files: Files | None = None) -> dict[str, Any]:
    """Remove what was installed, but for files that the user has changed. Raises InputError where nothing was."""
    files = files or DiskFiles()
    manifest = _manifest(folder)
    if not manifest:
        raise InputError(
            f"no skills were installed in {folder}", hint="name the agent or --dest that they were installed for"
        )
    names = sorted({name.partition("/")[0] for name in manifest})
    unknown = [name for name in only if name not in names]
    if unknown:
        raise InputError(f"skill '{unknown[0]}' is not installed in {folder}", hint=f"there are {', '.join(names)}")
    done: dict[str, list[str]] = {"removed": [], "kept": []}
    for name in list(manifest):
        if not only or name.partition("/")[0] in only:
            _take_away(files, folder, name, manifest, done)
    if manifest:
        write_json(files, folder / MANIFEST, {"files": manifest})
    else:
        files.remove(folder / MANIFEST)
    return {"dest": str(folder), **done}


def _chosen(found: list[Skill], only: tuple[str, ...]) -> list[Skill]:
    known = {skill.name: skill for skill in found}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise InputError(f"no skill '{unknown[0]}'", hint=f"there are {', '.join(known)}")
    return [known[name] for name in only] if only else found


def _ships(path: Path, root: Path) -> bool:
    """Files but caches, and no source clones (`repos/`)."""
    parts = path.relative_to(root).parts
    return path.is_file() and not any(part in ("repos", "__pycache__") or part.startswith(".") for part in parts)


def _manifest(folder: Path) -> dict[str, str]:
    path = folder / MANIFEST
    if not path.is_file():
        return {}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))["files"]
        return {str(name): str(value) for name, value in held.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path} is damaged", hint="remove it, then install again: files there are kept") from None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _place(
    files: Files, path: Path, name: str, data: bytes, manifest: dict[str, str], done: dict[str, list[str]]
) -> None:
    present = _hash(path.read_bytes()) if path.is_file() else None
    if present == _hash(data):
        done["unchanged"].append(name)
    elif present is not None and present != manifest.get(name):
        done["kept"].append(name)  # the user's own edit, or a file that we did not write
        return
    else:
        files.write_bytes(path, data)
        done["written"].append(name)
    manifest[name] = _hash(data)


def _take_away(files: Files, folder: Path, name: str, manifest: dict[str, str], done: dict[str, list[str]]) -> None:
    path = folder / name
    if path.is_file() and _hash(path.read_bytes()) != manifest[name]:
        done["kept"].append(name)
    else:
        files.remove(path)
        done["removed"].append(name)
        for parent in path.parents:
            if parent == folder or not parent.is_dir() or any(parent.iterdir()):
                break
            parent.rmdir()
    del manifest[name]
