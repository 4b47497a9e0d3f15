"""Bubblewrap around an agent: it sees its work, a home of its own, the toolchain read-only, and nothing else.

It gets no other run, no evaluator, no user's home, and no process but its own; all of it dies with the one that started
it. The network is there only where the box says so.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from vibeserve.agents.desk import Box

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
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


class Bubblewrap:
    """The sandbox of Linux. Use `here()` to see whether it runs on this machine."""

    name = "bubblewrap"

    def wrap(self, argv: Sequence[str], box: Box) -> tuple[str, ...]:
        """`argv` under bwrap, in `box.work`."""
        line = ["bwrap", "--die-with-parent", "--new-session", "--unshare-user-try", "--unshare-ipc", "--unshare-pid"]
        line += ["--unshare-uts", "--unshare-cgroup-try", *([] if box.network else ["--unshare-net"])]
        line += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]
        for name in _SYSTEM:
            path = Path(name)
            if path.is_symlink():
                line += ["--symlink", str(path.readlink()), name]
            elif path.is_dir():
                line += ["--ro-bind", name, name]
        for name in _ETC:
            line += ["--ro-bind-try", str(Path("/etc", name).resolve()), f"/etc/{name}"]
        for path in _outermost([Path(sys.prefix), Path(sys.base_prefix), *box.readable]):
            line += ["--ro-bind-try", str(path), str(path)]
        home, work = str(box.home.resolve()), str(box.work.resolve())
        line += ["--bind", home, home, "--setenv", "HOME", home]
        line += ["--bind" if box.writes else "--ro-bind", work, work, "--chdir", work, "--"]
        return (*line, *argv)


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """The paths that lie in none of the others and not in the system's; the root is never among them."""
    known = sorted({path.absolute() for path in paths if path.absolute() != Path("/")})
    kept: list[Path] = []
    for path in known:
        if not any(path.is_relative_to(other) for other in [*kept, Path("/usr")]):
            kept.append(path)
    return kept


@functools.cache
def here() -> Bubblewrap | None:
    """Bubblewrap where it runs on this machine (some containers forbid it), else None."""
    if shutil.which("bwrap") is None:
        return None
    argv = Bubblewrap().wrap(["true"], Box(Path("/usr"), False, Path("/usr")))
    try:
        done = subprocess.run(argv, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Bubblewrap() if done.returncode == 0 else None
