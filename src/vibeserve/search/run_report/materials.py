"""What a report needs beside the run's document: diffs from the workspace, and each request from the benchmark's JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vibeserve.report.svg import Request

_GIT_TIMEOUT_S = 30
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@dataclass(frozen=True)
class Materials:
    """Diffs by candidate (why there is none: `missing`), and the requests of windows by (candidate, pair)."""

    diffs: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[tuple[str, int], tuple[Request, ...]] = field(default_factory=dict)


def gather(document: dict[str, Any], directory: Path) -> Materials:
    """Read the diffs and records that `document` refers to under the run's `directory`."""
    diffs: dict[str, str] = {}
    missing: dict[str, str] = {}
    commits = {entry["candidate"]: entry.get("commit") for entry in document["rounds"]}
    for entry in document["rounds"]:
        name, commit = entry["candidate"], entry.get("commit")
        if not commit:
            missing[name] = "the reference lies in the bundle" if entry["round"] == 0 else "nothing was built"
            continue
        parent = commits.get(entry.get("parent")) or _EMPTY_TREE
        try:
            diffs[name] = _diff(directory / "workspace", parent, commit)
        except (OSError, subprocess.SubprocessError) as error:
            missing[name] = f"the workspace could not be read: {error}"
    requests = {}
    for window in document.get("final_pairs", []):
        found = _requests(directory, window.get("document") or "")
        if found:
            requests[(window["candidate"], window["pair"])] = found
    return Materials(diffs, missing, requests)


def _diff(workspace: Path, parent: str, commit: str) -> str:
    """Changed files between two commits; parts copied from the engine as they are count as added files without text."""
    command = [
        "git",
        "-c",
        "core.quotepath=off",
        "diff",
        "--no-color",
        "--no-ext-diff",
        "--find-renames",
        parent,
        commit,
    ]
    done = subprocess.run(
        command, cwd=workspace, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True, errors="replace"
    )
    return done.stdout


def _requests(directory: Path, name: str) -> tuple[Request, ...]:
    """The requests that a window's JSON records; empty where the benchmark wrote none."""
    path = directory / name
    if not name or not path.is_file() or not path.resolve().is_relative_to(directory.resolve()):
        return ()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    records = document.get("records") if isinstance(document, dict) else None
    if not isinstance(records, list):
        return ()
    found = [_request(record) for record in records if isinstance(record, dict)]
    kept = [request for request in found if request is not None]
    first = min((request.start_s for request in kept), default=0.0)
    return tuple(Request(r.start_s - first, r.ttft_s, r.latency_s, r.tip) for r in kept)


def _request(record: dict[str, Any]) -> Request | None:
    start = _number(record, "scheduled_s", "start_s", "due_s", "sent_s")
    if start is None or record.get("warmup"):
        return None
    failed = bool(record.get("error")) or record.get("ok") is False
    latency = None if failed else _number(record, "latency_s")
    return Request(start, _number(record, "ttft_s"), latency)


def _number(record: dict[str, Any], *names: str) -> float | None:
    for name in names:
        value = record.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None
