"""Two running servers against each other: windows of load in pairs, and the verdict over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from vibeserve.base.clock import Clock, SystemClock
from vibeserve.base.errors import InputError
from vibeserve.base.files import Files
from vibeserve.base.processes import ProcessRunner
from vibeserve.base.randomness import derive_seed, stream
from vibeserve.measure.errors import KilledError, RunError, killed_from_outside
from vibeserve.measure.gates import BenchResult, run_benchmark
from vibeserve.measure.noise import Load, LoadWatch, own_cpu_s, usual
from vibeserve.measure.servers import Server, at_rest, wait_until_idle
from vibeserve.measure.statistics import FOUND, GAIN, MIN_PAIRS, paired_ratio, pairs_needed, screen_rejects
from vibeserve.targets.types import Bundle

DEFAULT_PAIRS = 8  # finds a gain of 5 % in more than 80 % of cases on the recorded noise of a quiet virtual machine
MOST_PAIRS = 20  # where the first are noisier than that; enough for pairs that spread by up to 6.6 %
DEFAULT_WINDOW_S = 15.0
SCREEN_PAIRS = 2
SCREEN_WINDOW_S = 5.0

Side = Literal["a", "b"]


@dataclass(frozen=True)
class Window:
    """One window of load on one server: what was measured, and what the machine did meanwhile."""

    pair: int
    side: Side
    seed: int
    result: BenchResult
    load: Load
    retried: bool = False


@dataclass(frozen=True)
class Comparison:
    """How many times better b is than a. `ci95` None: there are no pairs. `noisy`: a window stayed disturbed.

    `notes` says in words what was seen of the machine; `windows` has every window in the order in which it ran; `first`
    are the pairs whose spread, `log_sd`, the interval rests on (`paired_ratio`).
    """

    ratio: float
    ci95: tuple[float, float] | None
    pairs: int
    values_a: tuple[float, ...]
    values_b: tuple[float, ...]
    noisy: bool
    notes: tuple[str, ...] = ()
    windows: tuple[Window, ...] = ()
    first: int = 0
    log_sd: float = 0.0

    @property
    def better(self) -> bool:
        """Whether b is better for certain."""
        return self.ci95 is not None and self.ci95[0] > 1.0


SAME = Comparison(1.0, None, 0, (), (), False)


def order_of(pairs: int, seed: int) -> list[tuple[Side, Side]]:
    """Which server of each pair goes first: blocks A B · B A or B A · A B, each drawn by chance from the seed.

    Within a block both are first once, so that a machine that drifts charges neither side.
    """
    chance = stream(seed, "order")
    order: list[tuple[Side, Side]] = []
    while len(order) < pairs:
        block: list[tuple[Side, Side]] = [("a", "b"), ("b", "a")]
        order += block if chance.random() < 0.5 else block[::-1]
    return order[:pairs]


def pair_seed(seed: int, pair: int) -> int:
    """The seed of the prompts of one pair: the same for both of its windows, and of no other pair."""
    return derive_seed(seed, "pair", pair) % 2**31


def measure_window(
    bundle: Bundle,
    model_dir: Path,
    server: Server,
    others: Sequence[Server] = (),
    *,
    seed: int,
    window_s: float,
    output: Path,
    extra_args: Sequence[str] = (),
    runner: ProcessRunner | None = None,
    clock: Clock | None = None,
    files: Files | None = None,
    watch: Callable[[Callable[[], float | None]], LoadWatch] = LoadWatch,
    group: str = "",
) -> tuple[BenchResult, Load]:
    """One window of load on `server` while `others` stand still, with what disturbed the machine (`noisy`).

    It begins when the server has finished with what was cut off before. Raises RunError where the server died in it, or
    gave no value; KilledError where the server or the benchmark was killed from outside.
    """
    finished_cpu_s = 0.0

    def ours() -> float | None:
        used = [member.cpu_s() for member in (server, *others)]
        return None if any(value is None for value in used) else own_cpu_s() + finished_cpu_s + sum(map(_known, used))

    server.require_alive()
    with at_rest(others):
        wait_until_idle(server, clock or SystemClock())
        looking = watch(ours)
        result = run_benchmark(
            bundle,
            server.url,
            model_dir,
            seed=seed,
            window_s=window_s,
            extra_args=extra_args,
            output=output,
            runner=runner,
            clock=clock,
            files=files,
            group=group,
        )
        finished_cpu_s += result.cpu_s
        load = looking.stop()
    result = replace(result, noisy=tuple(load.disturbances()))
    server.require_alive()
    if killed_from_outside(result.exit_code):
        raise KilledError(f"{server.url}: {result.detail}", hint="what was measured is lost; measure it again")
    if result.value is None:
        raise RunError(f"{server.url}: {result.detail}", hint=f"read {output.with_suffix('.log')}")
    if result.value <= 0:
        raise RunError(
            f"{server.url}: {bundle.metric.name} is {result.value:g}: nothing was measured in {window_s:g} s",
            hint="a longer window, or a machine with less other work",
        )
    return result, load


def compare(
    bundle: Bundle,
    model_dir: Path,
    a: Server,
    b: Server,
    *,
    pairs: int = DEFAULT_PAIRS,
    most: int | None = None,
    window_s: float = DEFAULT_WINDOW_S,
    seed: int,
    clock: Clock | None = None,
    output_dir: Path,
    extra_args: Sequence[str] = (),
    runner: ProcessRunner | None = None,
    files: Files | None = None,
    watch: Callable[[Callable[[], float | None]], LoadWatch] = LoadWatch,
    on_window: Callable[[Window], None] = lambda window: None,
    group: str = "",
) -> Comparison:
    """Measure `a` and `b` in pairs of windows and say how many times better `b` is, with its 95 % interval.

    Both windows of a pair have the same prompts and follow each other; which goes first is balanced (`order_of`). A
    window that something outside disturbed is run again, once, before its value is looked at: a retry never depends on
    the result. With `most`, the spread of these pairs says how many more are measured, up to so many in all, to find a
    gain of 5 % in 80 % of cases. `on_window` is called after each window, for progress and for the record.

    Raises InputError for fewer pairs than 5, RunError where a server fails.
    """
    if pairs < MIN_PAIRS:
        raise InputError(f"{pairs} pairs are too few for an interval", hint=f"measure at least {MIN_PAIRS}")
    windows: list[Window] = []
    servers: dict[Side, Server] = {"a": a, "b": b}
    wanted = pairs
    for pair, sides in enumerate(order_of(max(pairs, most or 0), seed)):
        if pair == pairs:
            wanted = pairs_needed(verdict(windows, bundle).log_sd, pairs)
        if pair >= wanted:
            break
        for side in sides:
            other = servers["b" if side == "a" else "a"]
            for attempt in (1, 2):
                result, load = measure_window(
                    bundle,
                    model_dir,
                    servers[side],
                    [other] if other is not servers[side] else [],
                    seed=pair_seed(seed, pair),
                    window_s=window_s,
                    output=output_dir / f"pair-{pair + 1:02d}-{side}{'' if attempt == 1 else '-again'}.json",
                    extra_args=extra_args,
                    runner=runner,
                    clock=clock or SystemClock(),
                    files=files,
                    watch=watch,
                    group=group,
                )
                disturbed = load.disturbances(usual([window.load.speed for window in windows]))
                if not disturbed or attempt == 2:
                    break
            result = replace(result, noisy=tuple(disturbed))
            windows.append(Window(pair, side, pair_seed(seed, pair), result, load, retried=attempt == 2))
            on_window(windows[-1])
    return verdict(windows, bundle, first=pairs)


def verdict(windows: Sequence[Window], bundle: Bundle, first: int | None = None) -> Comparison:
    """The comparison that complete pairs of windows make (at least 5), in whatever order they were measured.

    `first`: so many pairs told by their spread how many there are.
    """
    values = {(window.pair, window.side): _known(window.result.value) for window in windows}
    both = sorted({pair for pair, _ in values if (pair, "a") in values and (pair, "b") in values})
    values_a = tuple(values[pair, "a"] for pair in both)
    values_b = tuple(values[pair, "b"] for pair in both)
    first = min(first or len(both), len(both))
    ratio = paired_ratio(values_a, values_b, bundle.metric.direction, first=first)
    notes = []
    if len(both) > first:
        needed = pairs_needed(ratio.log_sd, first)
        enough = "" if needed <= len(both) else f" (the noise asks for {needed})"
        notes.append(
            f"the first {first} pairs spread by {ratio.log_sd:.1%}, so there are {len(both)}: a gain of {GAIN - 1:.0%} is to"
            f" be found in {FOUND:.0%} of cases{enough}"
        )
    again = sum(window.retried for window in windows)
    if again:
        notes.append(f"{again} of {len(windows)} windows were measured again, because something disturbed them")
    for window in windows:
        for words in window.result.noisy:
            notes.append(f"pair {window.pair + 1}, {window.side}: {words}, also when it was measured again")
    noisy = any(window.result.noisy for window in windows)
    return Comparison(
        ratio.ratio,
        (ratio.low, ratio.high),
        ratio.pairs,
        values_a,
        values_b,
        noisy,
        tuple(notes),
        tuple(windows),
        first,
        ratio.log_sd,
    )


def screen(
    bundle: Bundle,
    model_dir: Path,
    a: Server,
    b: Server,
    *,
    seed: int,
    output_dir: Path,
    pairs: int = SCREEN_PAIRS,
    window_s: float = SCREEN_WINDOW_S,
    extra_args: Sequence[str] = (),
    runner: ProcessRunner | None = None,
    clock: Clock | None = None,
    files: Files | None = None,
    group: str = "",
) -> tuple[bool, str]:
    """A cheap look before a comparison: (goes on, why). It may only reject, and its windows count nowhere else."""
    values: dict[Side, list[float]] = {"a": [], "b": []}
    servers: dict[Side, Server] = {"a": a, "b": b}
    for pair, sides in enumerate(order_of(pairs, derive_seed(seed, "screen"))):
        for side in sides:
            result, _ = measure_window(
                bundle,
                model_dir,
                servers[side],
                [servers["b" if side == "a" else "a"]],
                seed=pair_seed(derive_seed(seed, "screen"), pair),
                window_s=window_s,
                output=output_dir / f"screen-{pair + 1}-{side}.json",
                extra_args=extra_args,
                runner=runner,
                clock=clock,
                files=files,
                group=group,
            )
            values[side].append(_known(result.value))
    rejected = screen_rejects(values["a"], values["b"], bundle.metric.direction)
    ratios = [bundle.metric.better(b, a) for a, b in zip(values["a"], values["b"], strict=True)]
    seen = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    return not rejected, f"{'clearly slower' if rejected else 'worth measuring'}: {seen} times the incumbent"


def _known(value: float | None) -> float:
    assert value is not None
    return value
