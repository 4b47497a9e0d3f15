"""Which processes a server is made of, what they listen on, whom they talk to, and which files they have open.

Looked up by the framework in /proc while the server runs, from the port that it answers on; nothing is asked of it.
"""

from __future__ import annotations

import ipaddress
import os
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from vibeserve.judge.result import ProbeResult
from vibeserve.targets.types import Bundle

NAME = "processes"


@dataclass(frozen=True)
class Seen:
    """One process of the server. `memory_bytes`: resident. `talks_to`: addresses of others it is connected with."""

    pid: int
    name: str
    memory_bytes: int
    listens: tuple[int, ...]
    talks_to: tuple[str, ...]
    files: tuple[str, ...]


def look(bundle: Bundle, url: str) -> ProbeResult:
    """Fails where a process of the server has a file of the evaluator open, or is connected with another machine."""
    parts = urllib.parse.urlsplit(url)
    heads = holders(parts.port or 80)
    if not heads:
        return ProbeResult(NAME, None, "not run: the system does not tell which process answers at this address")
    if os.getpid() in {head.pid for head in heads}:
        return ProbeResult(NAME, None, "not run: the server is a part of this very process")
    found = [seen for process in family(heads) if (seen := seen_of(process)) is not None]
    return judged(found, forbidden(bundle))


def judged(found: list[Seen], guarded: Iterable[Path]) -> ProbeResult:
    """What these processes may have open and whom they may talk to."""
    ports = sorted({port for seen in found for port in seen.listens})
    memory_bytes, files = sum(seen.memory_bytes for seen in found), sum(len(seen.files) for seen in found)
    document = {
        "processes": len(found),
        "memory_bytes": memory_bytes,
        "ports": ports,
        "files": files,
    }
    roots = list(guarded)
    for seen in found:
        opened = [path for path in seen.files if any(Path(path).is_relative_to(root) for root in roots)]
        if opened:
            return ProbeResult(NAME, False, f"process {seen.pid} ({seen.name}) has {opened[0]} open", document)
        if seen.talks_to:
            return ProbeResult(NAME, False, f"process {seen.pid} ({seen.name}) talks to {seen.talks_to[0]}", document)
    detail = (
        f"{len(found)} processes, {memory_bytes / 1e6:.0f} MB, {files} files open, "
        f"listening on {', '.join(map(str, ports)) or 'nothing'}"
    )
    return ProbeResult(NAME, True, detail, document)


def forbidden(bundle: Bundle) -> list[Path]:
    """Directories of the evaluator that no candidate is given."""
    return [place.resolve() for place in (bundle.checker, bundle.benchmark)]


def holders(port: int) -> list[psutil.Process]:
    """The processes that listen on a port of this machine; empty where the system does not tell."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return []
    pids = {c.pid for c in connections if c.status == psutil.CONN_LISTEN and _port(c.laddr) == port and c.pid}
    return [psutil.Process(pid) for pid in sorted(pids) if psutil.pid_exists(pid)]


def family(heads: list[psutil.Process]) -> list[psutil.Process]:
    """These processes and all that came of them."""
    found: dict[int, psutil.Process] = {}
    for head in heads:
        try:
            found |= {process.pid: process for process in (head, *head.children(recursive=True))}
        except psutil.Error:
            continue
    return list(found.values())


def seen_of(process: psutil.Process) -> Seen | None:
    """What can be read of a process; None where it is gone, or not ours to look into."""
    try:
        connections = process.net_connections(kind="inet")
        return Seen(
            process.pid,
            process.name(),
            process.memory_info().rss,
            tuple(sorted({_port(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN})),
            tuple(sorted({c.raddr[0] for c in connections if c.raddr and not _here(c.raddr[0])})),
            tuple(sorted({file.path for file in process.open_files()})),
        )
    except (psutil.Error, OSError):
        return None


def _port(address: Any) -> int:
    """Of an address as psutil gives it, which is empty where there is none."""
    return int(address[1]) if address else 0


def _here(address: str) -> bool:
    """Whether an address is this machine's loopback."""
    host: Any = ipaddress.ip_address(address)
    mapped = getattr(host, "ipv4_mapped", None)
    return bool((mapped or host).is_loopback)
