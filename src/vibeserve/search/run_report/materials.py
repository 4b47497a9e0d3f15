"""What a report needs beside the run's document: diffs from the workspace, and what the benchmark wrote of each window."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from vibeserve.report.svg import Request
from vibeserve.search.run_report.ablations import Ablation, read_ablations
from vibeserve.search.windows import read_window

_GIT_TIMEOUT_S = 30
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@dataclass(frozen=True)
class Level:
    """What a window of load came to: requests at once, and the benchmark's top-level figures by name.

    `at_least` names the figures that are lower bounds, since the window's end cut requests off.
    """

    candidate: str
    kind: str
    concurrency: int
    figures: Mapping[str, float]
    at_least: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Materials:
    """Diffs by candidate (why there is none: `missing`), requests of final windows by (candidate, pair), and levels."""

    diffs: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[tuple[str, int], tuple[Request, ...]] = field(default_factory=dict)
    cut_off: int = 0
    levels: Sequence[Level] = ()
    ablations: tuple[Ablation, ...] = ()


def gather(document: dict[str, Any], directory: Path) -> Materials:
    """Read the diffs and records that `document` refers to under the run's `directory`."""
    diffs, missing = _diffs(document, directory)
    requests: dict[tuple[str, int], tuple[Request, ...]] = {}
    levels: list[Level] = []
    cut_off = 0
    for window in [*(document.get("final_pairs") or []), *(document.get("curve") or [])]:
        written = read_window(directory, window.get("document") or "")
        if written is None:
            continue
        if window["kind"] == "final" and (records := _records(written)):
            requests[(window["candidate"], window["pair"])] = _requests(records)
            cut_off += sum(record.get("state") == "cut off" for record in records)
        if level := _level(window, written):
            levels.append(level)
    shown = {key: found for key, found in requests.items() if found}
    return Materials(diffs, missing, shown, cut_off, levels, read_ablations(directory))


def _diffs(document: dict[str, Any], directory: Path) -> tuple[dict[str, str], dict[str, str]]:
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
    return diffs, missing


def _diff(workspace: Path, parent: str, commit: str) -> str:
    command = ["git", "-c", "core.quotepath=off", "diff", "--no-color", "--no-ext-diff", "--find-renames"]
    done = subprocess.run(
        [*command, parent, commit],
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=_GIT_TIMEOUT_S,
        check=True,
        errors="replace",
    )
    return done.stdout


def _level(window: dict[str, Any], written: dict[str, Any]) -> Level | None:
    workload = written.get("workload")
    at_once = window.get("concurrency") or (workload.get("concurrency") if isinstance(workload, dict) else None)
    if not isinstance(at_once, int):
        return None
    figures = {name: float(value) for name, value in written.items() if _is_number(value)}
    at_least = frozenset(name for name in figures if written.get(f"{name}_is_lower_bound"))
    return Level(window["candidate"], window["kind"], at_once, figures, at_least)


def _records(written: dict[str, Any]) -> list[dict[str, Any]]:
    records = written.get("per_request")
    return [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []


def _requests(records: Sequence[dict[str, Any]]) -> tuple[Request, ...]:
    """Each request that ended inside its window or failed; those that the window's end cut off have no latency."""
    kept = []
    for record in records:
        start = record.get("scheduled_s")
        failed = record.get("state") == "failed" or bool(record.get("error"))
        latency = record.get("latency_s")
        if not _is_number(start) or not (failed or _is_number(latency)):
            continue
        first = record.get("ttft_s")
        ended = None if failed or not _is_number(latency) else float(latency)
        kept.append(Request(float(start), float(first) if _is_number(first) else None, ended))
    begin = min((request.start_s for request in kept), default=0.0)
    return tuple(Request(request.start_s - begin, request.ttft_s, request.latency_s) for request in kept)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
