"""What a server did while it was loaded: the cores and memory that it took, and what its own counters gained.

For understanding, never for scoring: asking costs the server a little, so a window that is watched is not compared.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

from vibeserve.base.errors import InputError
from vibeserve.measure.launch import RunningServer

PHASES = "engine_seconds_total"


@dataclass(frozen=True)
class ServerProfile:
    """One watched window. `cores` is CPU time over wall time, of all processes of the server; memory is resident.

    `gained` is what each counter of `/metrics` rose by, `gauges` the highest value that each gauge was seen with; both
    by name and labels as they are written there (`engine_seconds_total{phase="linear"}`). Empty where the server has no
    such page, which `note` says.
    """

    seconds: float
    cores: float
    memory_peak_bytes: int
    samples: int
    gained: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def phases(self) -> dict[str, float]:
        """Shares of the engine's time by phase, the idle one included; empty where it does not say."""
        seconds = {
            name[len(PHASES) + len('{phase="') : -len('"}')]: value
            for name, value in self.gained.items()
            if name.startswith(PHASES + '{phase="')
        }
        whole = sum(seconds.values())
        return {name: value / whole for name, value in seconds.items()} if whole > 0 else {}


class Watching:
    """`with Watching(server) as watching: …load…` and then `watching.profile`."""

    def __init__(self, server: RunningServer, every_s: float = 0.5):
        self._server, self._every_s = server, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._memory, self._samples = 0, 0
        self._gauges: dict[str, float] = {}
        self._profile: ServerProfile | None = None

    def __enter__(self) -> Watching:
        self._before = read_metrics(self._server.url)
        self._begin_s, self._begin_cpu_s = time.monotonic(), self._server.cpu_s()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        seconds = time.monotonic() - self._begin_s
        cpu_s = self._server.cpu_s() - self._begin_cpu_s
        self._over.set()
        self._thread.join()
        after = read_metrics(self._server.url)
        self._profile = ServerProfile(
            seconds=seconds,
            cores=cpu_s / seconds,
            memory_peak_bytes=self._memory,
            samples=self._samples,
            gained={
                name: value - self._before.values.get(name, 0.0)
                for name, value in after.values.items()
                if name.partition("{")[0] not in after.gauges
            },
            gauges=self._gauges,
            note=after.problem,
        )

    def _sample(self) -> None:
        while True:
            self._memory = max(self._memory, self._server.process.memory_bytes())
            page = read_metrics(self._server.url)
            for name, value in page.values.items():
                if name.partition("{")[0] in page.gauges:
                    self._gauges[name] = max(value, self._gauges.get(name, value))
            self._samples += 1
            if self._over.wait(self._every_s):
                return

    @property
    def profile(self) -> ServerProfile:
        """What was seen. Raises InputError before the block is left."""
        if self._profile is None:
            raise InputError("the window is still watched")
        return self._profile


@dataclass(frozen=True)
class MetricsPage:
    """The samples of a `/metrics` page by name and labels, which of the names are gauges, and why there are none."""

    values: Mapping[str, float] = field(default_factory=dict)
    gauges: frozenset[str] = frozenset()
    problem: str = ""


def read_metrics(url: str, timeout_s: float = 5.0) -> MetricsPage:
    """Fetch and read `url`/metrics; a server without one, or one that answers something else, gives an empty page."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=timeout_s) as answer:
            text = answer.read(4_000_000).decode("utf-8", errors="replace")
    except (OSError, ValueError) as error:
        return MetricsPage(problem=f"{url}/metrics: {error}")
    page = parse_metrics(text)
    return page if page.values else MetricsPage(problem=f"{url}/metrics has no samples")


def parse_metrics(text: str) -> MetricsPage:
    """The text format of Prometheus 0.0.4; lines that are none of it are passed over, and so are non-finite values."""
    values: dict[str, float] = {}
    gauges = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, _, kind = line[len("# TYPE ") :].strip().partition(" ")
            if kind == "gauge":
                gauges.add(name)
            continue
        if not line.strip() or line.startswith("#"):
            continue
        head, brace, rest = line.partition("{")
        if brace:
            labels, closing, tail = rest.rpartition("}")
            if not closing:
                continue
            head, words = f"{head}{{{labels}}}", tail.split()
        else:
            head, *words = line.split()
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            continue
        if value - value == 0:
            values[head] = value
    return MetricsPage(values, frozenset(gauges))
