"""Measuring all peers in turns, and comparing what was found."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.serving.peer import BUNDLE, HERE, Peer
from benchmarks.serving.weights import model_folder


@dataclass(frozen=True)
class Load:
    """A closed loop: `concurrency` requests of `prompt` tokens (after `shared` that all begin with) and `answer` tokens.

    `requests` None: a window; else exactly so many, and the time of them all. With a `bundle` the load is that bundle's own
    benchmark with its own arguments and `more`, and `metric` is the figure that counts. Long prompts need a window of
    at least `least_window_s`, so that some answer ends in it.
    """

    name: str
    concurrency: int
    prompt: int = 64
    answer: int = 64
    shared: int = 0
    requests: int | None = None
    bundle: str = ""
    more: tuple[str, ...] = ()
    metric: str = "output_tokens_per_s"
    unit: str = "tokens/s"
    lower: bool = False
    windowed: bool = True
    least_window_s: float = 0.0


LOADS = (
    Load("1 at once", 1),
    Load("8 at once", 8),
    Load("16 at once", 16),
    Load("16 at once, 1,024 shared", 16, prompt=64, shared=1024, requests=32),
)
WORKLOADS = (
    Load("code-edits", 1, bundle="smollm2-135m-cpu-code-edit"),
    Load("shared-prefix", 8, bundle="smollm2-135m-cpu-prefix-caching", least_window_s=24.0),
    Load(
        "json",
        1,
        bundle="smollm2-135m-cpu-json",
        more=("--num-requests", "12"),
        metric="p50_latency_s",
        unit="s",
        lower=True,
        windowed=False,
    ),
    Load(
        "chat-slo",
        0,
        bundle="smollm2-135m-cpu-chat-slo",
        more=("--duration", "20"),
        metric="goodput",
        unit="requests/s",
        windowed=False,
    ),
    Load("long-context", 4, bundle="smollm2-135m-cpu-long-context", least_window_s=24.0),
)
"""What the workload says and a general server may or may not use: each peer is set up for it as well as it can be."""


@dataclass(frozen=True)
class Cell:
    """One load on one server in one pass. `error` says why there is no figure, or what failed."""

    peer: str
    load: str
    number: int
    output_tokens_per_s: float | None
    ttft_p50_s: float | None = None
    failed: int = 0
    error: str = ""
    requests: int = 0
    lower: bool = False

    @property
    def credited(self) -> float | None:
        """Output tokens/s with failed requests counted as if they had been answered in full: never too low for a peer."""
        if self.output_tokens_per_s is None or not self.failed or self.lower:
            return self.output_tokens_per_s
        done = self.requests - self.failed
        return self.output_tokens_per_s * self.requests / done if done > 0 else None


@dataclass(frozen=True)
class Versus:
    """Ours over the best other: the median over the passes, the lowest and the highest."""

    other: str
    ratio: float
    low: float
    high: float


def measure(
    peers: Sequence[Peer],
    passes: int,
    window_s: float,
    seed: int,
    each: Callable[[Cell], None] = lambda cell: None,
    loads: Sequence[Load] = LOADS,
) -> list[Cell]:
    """Every peer and load in every pass; the order of the peers turns."""
    found = []
    for number in range(passes):
        turned = [*peers[number % len(peers) :], *peers[: number % len(peers)]]
        for peer in turned:
            for ready, own in _set_up(peer, loads):
                for cell in _visit(ready, number, window_s, seed + number, own):
                    each(cell)
                    found.append(cell)
    return found


def _set_up(peer: Peer, loads: Sequence[Load]) -> list[tuple[Peer, list[Load]]]:
    """The loads of a pass by what the peer is set up for: one start of the server each."""
    found: dict[str, tuple[Peer, list[Load]]] = {}
    for load in loads:
        ready = peer.for_load(load.name)
        found.setdefault(ready.load, (ready, []))[1].append(load)
    return list(found.values())


def _visit(peer: Peer, number: int, window_s: float, seed: int, loads: Sequence[Load]) -> list[Cell]:
    """Start one server, give it every load, end it."""
    from vibeserve.base.errors import VibeServeError
    from vibeserve.measure import launch

    with tempfile.TemporaryDirectory(prefix="vibeserve-peer-") as name:
        folder = Path(name)
        try:
            with (
                peer.candidate(folder) as directory,
                launch(directory, model_folder(), log_dir=folder / "log") as server,
            ):
                return [_cell(peer, load, number, server.url, window_s, seed, folder) for load in loads]
        except VibeServeError as error:
            return [Cell(peer.name, load.name, number, None, error=error.message) for load in loads]


def _cell(peer: Peer, load: Load, number: int, url: str, window_s: float, seed: int, folder: Path) -> Cell:
    from vibeserve.targets import read_bundle

    output = folder / "bench.json"
    output.unlink(missing_ok=True)
    client = [] if peer.says_done else [str(HERE / "lenient_client.py")]
    bundle = read_bundle(load.bundle or BUNDLE)
    command = [sys.executable, *client, str(bundle.benchmark_script)]
    command += ["--url", url, "--output-json", str(output)]
    command += ["--model-dir", str(model_folder()), "--seed", str(seed), "--fresh-share", "0", "--calibrate", "0"]
    if load.bundle:
        command += [*bundle.benchmark_args, *load.more]
    else:
        command += ["--concurrency", str(load.concurrency), "--prompt-len", str(load.prompt)]
        command += ["--max-tokens", str(load.answer), "--shared-prefix", str(load.shared)]
    if load.requests is not None:
        command += ["--num-requests", str(load.requests)]
    elif load.windowed:
        command += ["--window", str(max(window_s, load.least_window_s))]
    if name := peer.asked_name():
        command += ["--model", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if not output.exists():
        return Cell(peer.name, load.name, number, None, error=_first_line(done.stderr) or f"exit {done.returncode}")
    document = json.loads(output.read_text(encoding="utf-8"))
    failed = int(document.get("failed") or 0)
    why = "" if document[load.metric] is not None else str(document.get(f"{load.metric}_reason") or "no figure")
    if failed:
        why = f"{failed} of {document['requests']} requests failed: {document.get('failures')}"
    return Cell(
        peer.name,
        load.name,
        number,
        document[load.metric],
        (document.get("ttft_s") or {}).get("p50"),
        failed,
        why,
        int(document["requests"]),
        load.lower,
    )


def _first_line(text: str) -> str:
    """The first line that says something, without 'error: '."""
    return next((line.removeprefix("error: ") for line in text.splitlines() if line.strip()), "")


def values(cells: Sequence[Cell], peer: str, load: str) -> dict[int, float]:
    """Output tokens/s by pass, of the passes that have them; failed requests are credited in full."""
    found = {}
    for cell in cells:
        if cell.peer == peer and cell.load == load and (value := cell.credited) is not None:
            found[cell.number] = value
    return found


def failures(cells: Sequence[Cell], peer: str, load: str) -> tuple[int, int]:
    """Requests that failed, and all."""
    own = [cell for cell in cells if cell.peer == peer and cell.load == load]
    return sum(cell.failed for cell in own), sum(cell.requests for cell in own)


def best_other(cells: Sequence[Cell], peers: Mapping[str, Peer], kind: str, load: str) -> Versus | None:
    """Ours of this precision over the best of the others with the same; None where one side is missing."""
    ours = next((values(cells, name, load) for name, peer in peers.items() if peer.ours and peer.kind == kind), {})
    others = {name: values(cells, name, load) for name, peer in peers.items() if not peer.ours and peer.kind == kind}
    measured = {name: found for name, found in others.items() if found}
    if not ours or not measured:
        return None
    lower = any(cell.lower for cell in cells if cell.load == load)
    best = (min if lower else max)(measured, key=lambda name: median(measured[name].values()))
    both = [(ours[number], measured[best][number]) for number in ours if measured[best].get(number)]
    ratios = [other / mine if lower else mine / other for mine, other in both if mine]
    return Versus(best, median(ratios), min(ratios), max(ratios)) if ratios else None
