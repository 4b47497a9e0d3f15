"""Bubblewrap around an agent: it sees its work, a home of its own, the toolchain read-only, and nothing else.

It gets no other run, no evaluator, no user's home, and no process but its own; all of it dies with the one that started
it. The network is there only where the box says so. (`vibeserve.measure.sandbox` has the walls of a candidate's server,
which never has a network, and says whether bubblewrap works here.)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import vibeserve
from vibeserve.agents.desk import Box
from vibeserve.measure.sandbox import Bubblewrap as Walls
from vibeserve.measure.sandbox import choose, interpreter_roots

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store")
_ETC = (
    "passwd",
    "group",
    "nsswitch.conf",
    "hosts",
    "resolv.conf",
    "ssl",
    "ca-certificates",
    "alternatives",
    "ld.so.cache",
)
_SCRATCH_BYTES = 4 << 30


class Bubblewrap:
    """The sandbox of Linux, by the `program` bwrap. Use `here()` to see whether it runs on this machine."""

    def __init__(self, program: str, name: str):
        self._program = program
        self.name = name

    def wrap(self, argv: Sequence[str], box: Box) -> tuple[str, ...]:
        """`argv` under bwrap, in `box.work`."""
        line = [self._program, "--unshare-all", *(["--share-net"] if box.network else []), "--die-with-parent"]
        line += ["--new-session", "--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev"]
        line += ["--size", str(_SCRATCH_BYTES), "--tmpfs", "/tmp"]
        for name in _SYSTEM:
            if os.path.islink(name):
                line += ["--symlink", os.readlink(name), name]
            elif os.path.isdir(name):
                line += ["--ro-bind", name, name]
        for name in _ETC:
            line += ["--ro-bind-try", str(Path("/etc", name).resolve()), f"/etc/{name}"]
        roots = interpreter_roots()
        for path in roots:
            line += ["--ro-bind", str(path), str(path)]
        package = Path(vibeserve.__file__).resolve().parent
        if any(package.is_relative_to(root) for root in roots):
            line += ["--tmpfs", str(package)]  # an installed vibeserve has the packaged bundles' evaluators beside it
        for path in dict.fromkeys(box.readable):
            if not any(path.is_relative_to(name) for name in _SYSTEM):
                line += ["--ro-bind-try", str(path), str(path)]
        for path in box.hidden:
            line += ["--tmpfs", str(path)]
        home, work = str(box.home.resolve()), str(box.work.resolve())
        line += ["--bind", home, home, "--setenv", "HOME", home, "--setenv", "TMPDIR", "/tmp"]
        line += ["--bind" if box.writes else "--ro-bind", work, work, "--chdir", work, "--"]
        return (*line, *argv)


def places_of(program: Path) -> tuple[Path, ...]:
    """What a program needs of its own installation: where it lies, and the package that its link leads into.

    A package of npm is the nearest directory above with a package.json: what it imports lies in it.
    """
    real = program.resolve()
    package = next((above for above in real.parents if (above / "package.json").is_file()), real.parent)
    return tuple(dict.fromkeys((program.parent, package)))


def here() -> Bubblewrap | None:
    """Bubblewrap where it runs on this machine (some containers forbid it), else None."""
    walls = choose()
    return Bubblewrap(walls.program, walls.name) if isinstance(walls, Walls) else None
