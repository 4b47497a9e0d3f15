"""A winner as a directory that runs on its own: the server, the engine parts that it uses, and how to run it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import DiskFiles, Files, write_text
from vibeserve.search.document import candidate_document
from vibeserve.search.lookup import candidate_of, find
from vibeserve.search.request import Request
from vibeserve.search.store import RunView
from vibeserve.search.workspace import Workspace


def export(text: str, destination: Path, *, runs: Path | None = None, files: Files | None = None) -> dict[str, Any]:
    """Write RUN[:CANDIDATE] to `destination` (a new or empty directory). Raises InputError."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise InputError(f"{destination} is not empty", hint="name a directory that does not exist yet")
    found = find(text, runs)
    with RunView(found.directory) as view:
        name = candidate_of(view, found.candidate)
        entry = candidate_document(view, name)
        request = Request.from_dict(view.run().request)
    if entry["commit"] is None:
        raise InputError(f"{name} was never built: {entry['reason']}", hint="'vibeserve show' lists the candidates")
    destination = destination.absolute()
    # Into a directory that is there, file by file: whoever stands in it stays there.
    place = destination / ".partial" if destination.exists() else destination
    Workspace(found.directory / "workspace").export(entry["commit"], place)
    if place != destination:
        for child in list(place.iterdir()):
            child.rename(destination / child.name)
        place.rmdir()
    write_text(files or DiskFiles(), destination / "README.md", readme(entry, request))
    return {
        "run": found.directory.name,
        "candidate": name,
        "commit": entry["commit"],
        "path": str(destination),
        "files": sorted(str(path.relative_to(destination)) for path in destination.rglob("*") if path.is_file()),
    }


def readme(entry: dict[str, Any], request: Request) -> str:
    """How to run it, what it is, and what was measured."""
    metric, value = entry["metric"], entry["value"]
    measured = "not measured" if value is None else f"{value:.4g} {metric['unit']} {metric['name']}"
    what = entry["technique"] if entry["parent"] else "the bundle's reference server"
    named = request.bundle or request.ref
    return f"""# A server for {entry["bundle"]}

Made by `vibeserve optimize`, run {entry["run"]}, candidate {entry["candidate"]}: {what}.
It needs nothing of VibeServe: everything is in this directory and in `requirements.txt`.

## Run it

    pip install -r requirements.txt        # where that file is there
    python {" ".join(_start(entry))} --model-dir MODEL --host 127.0.0.1 --port 8000

MODEL is a directory with `config.json`, `*.safetensors` and the tokenizer; `vibeserve materialize {named}` prints one.

    curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
      -d '{{"prompt": "Once upon a time", "max_tokens": 32}}'

## What was measured

{measured}, on {entry["device"].get("device", "the machine of the run")}; verdict {entry["verdict"]}: {entry["reason"]}.
The settings are in `engine.toml`{"" if entry["parent"] else " of other candidates"}; commit {entry["commit"]}.
"""


def _start(entry: dict[str, Any]) -> list[str]:
    return ["server.py"] if entry["parent"] else ["reference.py"]


def open_candidate(
    what: str, *, runs_dir: Path | None = None, destination: Path, model_dir: Path | None = None
) -> tuple[Path, Path]:
    """(candidate directory, model directory) of RUN[:CANDIDATE], for `serve`: exactly the candidate's commit.

    Raises InputError for an unknown run or candidate, and what reading and materialising the bundle raise.
    """
    from vibeserve.search.world import bundle_of
    from vibeserve.targets import materialize

    found = find(what, runs_dir)
    with RunView(found.directory) as view:
        name = candidate_of(view, found.candidate)
        row = next(row for row in view.candidates() if row.id == name)
        request = Request.from_dict(view.run().request)
    if row.commit is None:
        raise InputError(f"{name} was never built", hint="'vibeserve show' lists the candidates")
    shutil.rmtree(destination, ignore_errors=True)
    Workspace(found.directory / "workspace").export(row.commit, destination)
    if model_dir is None:
        model_dir = materialize(bundle_of(request), trust_remote_code=request.trust_remote_code)
    return destination, model_dir
