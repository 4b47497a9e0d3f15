"""What a candidate sees while it runs: its own directory, the model and the toolchain, and no network.

Three walls, the best that works here is taken: bubblewrap (Linux), sandbox-exec (macOS), none. Which one it was is part
of a run's environment and stands in its report: a candidate that ran behind no wall is not called isolated.

Behind bubblewrap a server has a network of its own with nothing in it but itself; the load client reaches it through a
relay (`vibeserve.measure.sandbox_relay`), the same for every server that is measured.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from vibeserve.base.errors import MissingError
from vibeserve.base.paths import cache_dir
from vibeserve.measure import in_process, sandbox_relay

#: Of the system's configuration only what loaders, locales and name look-ups need: never accounts or keys.
_ETC = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "passwd",
    "group",
    "nsswitch.conf",
    "hosts",
    "localtime",
    "ssl",
    "fonts",
    "mime.types",
    "OpenCL",
    "vulkan",
)
_DEVICES = ("/dev/nvidia*", "/dev/neuron*", "/dev/kfd", "/dev/dri", "/dev/accel*")
_TOOLCHAINS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store")
_SCRATCH_BYTES = 8 << 30
_TRIAL_S = 20.0
#: Where compiled kernels of one candidate are kept from start to start.
KERNEL_CACHE = "VIBESERVE_KERNEL_CACHE"
_SOURCE_BYTES = 1 << 20


@dataclass(frozen=True)
class Room:
    """What one server is given. `candidate_dir` is its own to write in; `model_dir` it may read."""

    candidate_dir: Path
    model_dir: Path
    host: str
    port: int


class Sandbox(Protocol):
    """Walls around one server.

    `name` goes into the run's record. `isolated`: whether other files and the network are out of reach. `relayed`: whether
    the server listens in a network of its own, so that only the relay has the port that clients use.
    """

    @property
    def name(self) -> str: ...

    @property
    def isolated(self) -> bool: ...

    @property
    def relayed(self) -> bool: ...

    def wrap(self, argv: tuple[str, ...], room: Room) -> tuple[str, ...]:
        """The command that runs `argv` behind these walls."""
        ...

    def variables(self, room: Room) -> dict[str, str]:
        """What the server's environment has in addition."""
        ...


@dataclass(frozen=True)
class NoSandbox:
    """No walls. `reason` says why, for the record."""

    reason: str
    isolated: bool = False
    relayed: bool = False

    @property
    def name(self) -> str:
        """For the record."""
        return f"none ({self.reason}): candidates could read other files and use the network"

    def wrap(self, argv: tuple[str, ...], room: Room) -> tuple[str, ...]:
        """As it is."""
        del room
        return argv

    def variables(self, room: Room) -> dict[str, str]:
        """Nothing."""
        del room
        return {}


@dataclass(frozen=True)
class Bubblewrap:
    """Linux namespaces: files, processes, network and the rest. `program` is bwrap, `version` what it says it is."""

    program: str
    version: str = ""
    isolated: bool = True
    relayed: bool = True

    @property
    def name(self) -> str:
        """For the record."""
        return f"bubblewrap {self.version}".strip()

    def wrap(self, argv: tuple[str, ...], room: Room) -> tuple[str, ...]:
        """Listen outside, make the room, start the server in it with the relay at its side."""
        relay = str(Path(sandbox_relay.__file__).resolve())
        python = (sys.executable, "-I", "-S", relay)
        inside = (*python, "inside", str(room.port), "--", *argv)
        walls = (self.program, *self.walls(argv, room), "--", *inside)
        return (*python, "outside", room.host, str(room.port), "--", *walls)

    def walls(self, argv: tuple[str, ...], room: Room) -> tuple[str, ...]:
        """bwrap's options."""
        words = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        words += ["--proc", "/proc", "--dev", "/dev", "--size", str(_SCRATCH_BYTES), "--tmpfs", "/tmp"]
        for path in _TOOLCHAINS:
            if os.path.islink(path):
                words += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                words += ["--ro-bind", path, path]
        for name in _ETC:
            words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        found = [device for pattern in _DEVICES for device in sorted(glob.glob(pattern))]
        for device in found:
            words += ["--dev-bind-try", device, device]
        if found:  # a driver finds its devices there
            words += ["--ro-bind-try", "/sys", "/sys"]
        for root in (*interpreter_roots(), *_program_roots(argv)):
            words += ["--ro-bind", str(root), str(root)]
        for package in _own_package():  # an installed vibeserve has the packaged bundles' evaluators beside it
            words += ["--tmpfs", str(package)]
        for script in (sandbox_relay.__file__, in_process.__file__):
            words += ["--ro-bind", str(Path(script).resolve()), str(Path(script).resolve())]
        for weights in model_paths(room.model_dir):
            words += ["--ro-bind", str(weights), str(weights)]
        kernels = str(_kernel_cache(room.candidate_dir))
        words += ["--bind", kernels, kernels]
        candidate = str(room.candidate_dir)
        words += ["--bind", candidate, candidate, "--chdir", candidate]
        return tuple(words)

    def variables(self, room: Room) -> dict[str, str]:
        """A home that is empty and goes with the server, and its own kernel cache."""
        return {
            "HOME": "/tmp",
            "TMPDIR": "/tmp",
            "XDG_CACHE_HOME": "/tmp/.cache",
            KERNEL_CACHE: str(_kernel_cache(room.candidate_dir)),
        }


@dataclass(frozen=True)
class Seatbelt:
    """macOS's sandbox-exec. There is one network: the server may listen and answer on the loopback, and nothing else."""

    program: str = "/usr/bin/sandbox-exec"
    isolated: bool = True
    relayed: bool = False

    @property
    def name(self) -> str:
        """For the record."""
        return "sandbox-exec"

    def wrap(self, argv: tuple[str, ...], room: Room) -> tuple[str, ...]:
        """With the profile as text."""
        return (self.program, "-p", self.profile(argv, room), *argv)

    def profile(self, argv: tuple[str, ...], room: Room) -> str:
        """The profile, in sandbox-exec's language."""
        system = ("/usr", "/bin", "/sbin", "/System", "/Library", "/opt", "/dev", "/private/etc/ssl", "/private/var/db")
        own = [str(Path(script).resolve()) for script in (in_process.__file__,)]
        roots = [
            *map(str, interpreter_roots()),
            *map(str, _program_roots(argv)),
            *map(str, model_paths(room.model_dir)),
        ]
        writable = [str(room.candidate_dir), str(_kernel_cache(room.candidate_dir))]
        lines = [
            "(version 1)",
            "(deny default)",
            '(import "system.sb")',
            "(allow process-fork)",
            "(allow process-exec)",
            "(allow sysctl-read)",
            "(allow signal (target same-sandbox))",
            "(allow iokit-open)",
            "(allow file-read-metadata)",
            _allow("file-read*", (*system, *roots, *writable)),
            *(f'(deny file-read* (subpath "{_quoted(str(path))}"))' for path in _own_package()),
            *(f'(allow file-read* (literal "{_quoted(path)}"))' for path in own),
            _allow("file-write*", writable),
            '(allow file-write* (literal "/dev/null"))',
            f'(allow network-bind (local ip "localhost:{room.port}"))',
            f'(allow network-inbound (local ip "localhost:{room.port}"))',
        ]
        return "\n".join(lines) + "\n"

    def variables(self, room: Room) -> dict[str, str]:
        """Home and scratch are the candidate's own directories."""
        kernels = str(_kernel_cache(room.candidate_dir))
        return {"HOME": kernels, "TMPDIR": kernels, KERNEL_CACHE: kernels}


def _allow(what: str, paths: Iterable[str]) -> str:
    inner = " ".join(f'(subpath "{_quoted(path)}")' for path in dict.fromkeys(paths))
    return f"(allow {what} {inner})"


def _quoted(path: str) -> str:
    return path.replace("\\", "\\\\").replace('"', '\\"')


def choose(require: bool = False) -> Sandbox:
    """The best wall that works on this machine. Raises MissingError where `require` and there is none."""
    found = _detect()
    if require and not found.isolated:
        raise MissingError(
            f"no sandbox works on this machine: {found.name}",
            hint="install bubblewrap (Debian: apt-get install bubblewrap); without --require-sandbox candidates run unwalled, and the report says so",
        )
    return found


@cache
def _detect() -> Sandbox:
    if sys.platform == "darwin":
        program = shutil.which("sandbox-exec")
        return Seatbelt(program) if program else NoSandbox("there is no sandbox-exec")
    if not sys.platform.startswith("linux"):
        return NoSandbox(f"no sandbox is known for {sys.platform}")
    program = shutil.which("bwrap")
    return NoSandbox("bubblewrap is not installed") if program is None else try_bubblewrap(program)


def try_bubblewrap(program: str) -> Sandbox:
    """Bubblewrap where it can make the namespaces that we need, here and now; otherwise why not."""
    base = [
        program,
        "--unshare-all",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
    ]
    try:
        version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_TRIAL_S, check=False)
        trial = [*base, "--dev", "/dev", "--size", "1048576", "--tmpfs", "/tmp", "--", "/bin/sh", "-c", "exit 0"]
        done = subprocess.run(trial, capture_output=True, text=True, timeout=_TRIAL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return NoSandbox(f"bubblewrap does not run: {error}")
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return NoSandbox(f"bubblewrap cannot make namespaces here: {said[-1] if said else done.returncode}")
    return Bubblewrap(program, version.stdout.strip().rpartition(" ")[2])


def interpreter_roots() -> list[Path]:
    """Where our interpreter, its standard library and the installed packages lie; none inside another."""
    places = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable), Path(sys.executable).resolve()]
    return _outermost(path for path in places if not _in_toolchain(path))


def _program_roots(argv: tuple[str, ...]) -> list[Path]:
    """The installation of a program that is named by its path: the directory above its `bin`, else its own file."""
    program = Path(shutil.which(argv[0]) or argv[0])
    roots = []
    for path in (program, program.resolve()):
        if path.is_absolute() and path.is_file() and not _in_toolchain(path):
            roots.append(path.parent.parent if path.parent.name == "bin" else path)
    covered = interpreter_roots()
    return [root for root in _outermost(roots) if not any(root.is_relative_to(known) for known in covered)]


def _in_toolchain(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in _TOOLCHAINS)


def _outermost(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in sorted(set(paths), key=lambda one: (len(one.parts), str(one))):
        if not any(path.is_relative_to(known) for known in found):
            found.append(path)
    return found


def _own_package() -> list[Path]:
    """This package's directory, where it lies in what a candidate sees."""
    package = Path(__file__).resolve().parents[1]
    return [package] if any(package.is_relative_to(root) for root in interpreter_roots()) else []


def model_paths(model_dir: Path) -> list[Path]:
    """The model's directory and every file that a link in it leads to."""
    found = [model_dir.absolute(), model_dir.resolve()]
    for folder, names, files in os.walk(model_dir):
        found += [Path(folder, name).resolve() for name in (*names, *files) if Path(folder, name).is_symlink()]
    return _outermost(path for path in found if path.exists())


def _kernel_cache(candidate_dir: Path) -> Path:
    """A directory of this candidate's very sources: what one has compiled, no other loads.

    It is begun with copies of what the user's own cache has: their names hold a digest of the sources.
    """
    digest = hashlib.sha256(str(candidate_dir).encode())
    for path in sorted(candidate_dir.rglob("*")):
        if path.is_file() and ".git" not in path.parts and path.stat().st_size <= _SOURCE_BYTES:
            digest.update(f"\0{path.relative_to(candidate_dir)}\0".encode() + path.read_bytes())
    directory = cache_dir() / "candidate-kernels" / digest.hexdigest()[:24]
    if not directory.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        for kernel in sorted((cache_dir() / "kernels").glob("*.so")):
            shutil.copy2(kernel, directory / kernel.name)
    return directory
