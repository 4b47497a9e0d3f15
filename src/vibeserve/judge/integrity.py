"""What no candidate may change: the evaluator's files, the model's weights, the environment of the benchmark.

Digests are taken before anything runs and compared around every gate. A file is read again only where its size, times or
inode have changed since it was read last: a change that keeps all of those needs more rights than a candidate has.

The environment of checker and benchmark (standard library and installed packages, tens of thousands of files) goes by
size, times and inode alone: whatever writes a file there shows. Bytecode is looked at apart, since Python itself writes it:
what is new or changed must be what its source compiles to.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from vibeserve.targets.types import Bundle

_LEFT_OUT = (".git",)
_CHUNK = 1 << 22
_COMPILE_S = 30.0
# Run apart, with nothing of the environment imported: bytecode that nobody vouches for is read there, not here.
_COMPILES_TO = """
import marshal, pathlib, sys
source, bytecode = map(pathlib.Path, sys.argv[1:])
held = marshal.loads(bytecode.read_bytes()[16:])
sys.exit(0 if held == compile(source.read_bytes(), held.co_filename, "exec", dont_inherit=True) else 1)
"""


class Integrity:
    """Digests by name for one bundle and model."""

    def __init__(self, bundle: Bundle, model_dir: Path):
        self._roots = {
            "accuracy_checker": bundle.checker,
            "benchmark": bundle.benchmark,
            "reference": bundle.reference,
            "model": model_dir,
        }
        self._bundle_file = bundle.path / "bundle.toml" if bundle.path else None
        self._known: dict[Path, tuple[tuple[int, ...], str]] = {}
        self._bytecode: dict[Path, tuple[int, ...]] | None = None
        self._vouched: dict[Path, tuple[int, ...]] = {}

    def digests(self) -> dict[str, str]:
        """Every part's digest now. A file that cannot be read has the error's name for a digest."""
        found: dict[str, str] = {}
        bytecode: dict[Path, tuple[str, tuple[int, ...]]] = {}
        for name, root in self._roots.items():
            # reference/model is a link to the model, which is looked at by its own name.
            for path in _files(root, skip=("model", "draft_model") if name == "reference" else ()):
                key = f"{name}/{path.relative_to(root).as_posix()}"
                if path.suffix != ".pyc":
                    found[key] = self._digest(path)
                elif (state := _state(path)) is not None:
                    bytecode[path] = (key, state)
        if self._bundle_file is not None and self._bundle_file.is_file():
            found["bundle.toml"] = self._digest(self._bundle_file)
        for label, root in environment_roots():
            packages, compiled = _states(root, label)
            found |= packages
            bytecode |= compiled
        return found | environment() | self._strange(bytecode)

    def _strange(self, bytecode: dict[Path, tuple[str, tuple[int, ...]]]) -> dict[str, str]:
        """Digests of the bytecode that came or changed since the first look and is not what its source compiles to."""
        if self._bytecode is None:
            self._bytecode = {path: state for path, (_, state) in bytecode.items()}
            return {}
        found = {}
        for path, (name, state) in bytecode.items():
            if state == self._bytecode.get(path) or state == self._vouched.get(path):
                continue
            if is_compiled_source(path):
                self._vouched[path] = state
            else:
                found[name] = self._digest(path)
        return found

    def _digest(self, path: Path) -> str:
        try:
            stat = path.stat()
            state = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            known = self._known.get(path)
            if known is not None and known[0] == state:
                return known[1]
            digest = _sha256(path)
        except OSError as error:
            return f"unreadable: {error.strerror or error}"
        self._known[path] = (state, digest)
        return digest


def _files(root: Path, skip: tuple[str, ...]) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = sorted(
            name for name in names if name not in _LEFT_OUT and not (Path(folder) == root and name in skip)
        )
        for name in sorted(files):
            if not (Path(folder) == root and name in skip) and not name.endswith(".lock"):
                yield Path(folder) / name


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def environment_roots() -> list[tuple[str, Path]]:
    """What checker and benchmark import from: (name, directory)."""
    paths = sysconfig.get_paths()
    places = {"packages": paths["purelib"], "platform-packages": paths["platlib"], "stdlib": paths["stdlib"]}
    found: dict[Path, str] = {}
    for name, place in places.items():
        found.setdefault(Path(place).resolve(), name)
    return [(name, path) for path, name in found.items() if path.is_dir()]


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _states(root: Path, label: str) -> tuple[dict[str, str], dict[Path, tuple[str, tuple[int, ...]]]]:
    """(a digest of the states of all files below each entry of `root`, the bytecode files with names and states)."""
    parts: dict[str, list[str]] = {}
    bytecode: dict[Path, tuple[str, tuple[int, ...]]] = {}
    nested = {str(path) for _, path in environment_roots()} - {str(root)}
    if label == "stdlib":  # what a virtual environment does not import from the interpreter that it was made of
        nested |= {str(root / name) for name in ("site-packages", "dist-packages", "test")}
    folders = [(str(root), "", "")]
    while folders:
        folder, inside, top = folders.pop()
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                relative = f"{inside}/{entry.name}" if inside else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.path not in nested:
                        folders.append((entry.path, relative, top or entry.name))
                    continue
                stat = entry.stat(follow_symlinks=False)
                state = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
                if relative.endswith(".pyc"):
                    bytecode[Path(entry.path)] = (f"environment/{label}/{relative}", state)
                else:
                    parts.setdefault(top or entry.name, []).append(f"{relative} {state}")
    digests = {
        f"environment/{label}/{name}": hashlib.sha256("\n".join(lines).encode()).hexdigest()
        for name, lines in parts.items()
    }
    return digests, bytecode


def is_compiled_source(path: Path) -> bool:
    """Whether a bytecode file holds what Python makes of the source beside it, now."""
    name = path.name.partition(".")[0] + ".py"
    source = (path.parent.parent if path.parent.name == "__pycache__" else path.parent) / name
    if path.parent.name != "__pycache__" or not source.is_file():
        return False
    command = [sys.executable, "-I", "-S", "-c", _COMPILES_TO, str(source), str(path)]
    try:
        return subprocess.run(command, capture_output=True, timeout=_COMPILE_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def environment() -> dict[str, str]:
    """The interpreter, the packages by version, and every file that Python runs by itself when it starts."""
    folder = Path(sysconfig.get_paths()["purelib"])
    names = sorted(f"{entry.name}=={entry.version}" for entry in metadata.distributions())
    found = {"environment/packages": hashlib.sha256("\n".join(names).encode()).hexdigest()}
    try:
        stat = Path(sys.executable).resolve().stat()
        found["environment/python"] = f"{stat.st_size} {stat.st_mtime_ns}"
    except OSError as error:
        found["environment/python"] = f"unreadable: {error.strerror or error}"
    for pattern in ("*.pth", "sitecustomize.py", "usercustomize.py"):
        for path in sorted(folder.glob(pattern)):
            found[f"environment/{path.name}"] = _sha256(path)
    return found
