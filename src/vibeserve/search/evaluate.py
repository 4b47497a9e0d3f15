"""Every gate on a candidate that somebody made by hand: started, checked, probed, and measured against another."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vibeserve.base.clock import Clock, SystemClock
from vibeserve.base.errors import CheckError
from vibeserve.base.processes import ProcessRunner
from vibeserve.base.randomness import derive_seed
from vibeserve.judge import Integrity, probe
from vibeserve.measure import (
    DEFAULT_PAIRS,
    DEFAULT_WINDOW_S,
    MIN_PAIRS,
    MOST_PAIRS,
    Comparison,
    RunError,
    RunningServer,
    StartError,
    Window,
    compare,
    launch,
    measure_window,
    quiet_now,
    read_candidate,
    reference_candidate,
    run_checker,
    unseen,
)
from vibeserve.measure.sandbox import Sandbox, choose
from vibeserve.search.lives import GATE, LOOKS, lost
from vibeserve.search.plan import SHORTEST_WINDOW_S
from vibeserve.search.verdict import improvement
from vibeserve.targets import Bundle

BUDGET_S = 300.0
#: What a window costs beside itself, where the other server is the slow reference, which has to finish first.
OVERHEAD_S = 5.0


@dataclass(frozen=True)
class GateOutcome:
    """One gate; `ok` None: it was not run, and `detail` says why."""

    name: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class Evaluation:
    """What became of a candidate. `value` is its median over the pairs; `verdict` is one of a run's."""

    candidate: str
    verdict: str
    reason: str
    gates: tuple[GateOutcome, ...]
    value: float | None = None
    comparison: Comparison | None = None
    sandbox: str = ""

    @property
    def rejected(self) -> bool:
        """Rejected by a gate, or failed; being no better is neither."""
        return self.verdict not in ("kept", "not-better")

    def document(self) -> dict[str, Any]:
        """The JSON of `evaluate`."""
        better = self.comparison
        improvement = None
        if better is not None:
            improvement = {"ratio": better.ratio, "ci95": better.ci95, "pairs": better.pairs}
        document = {
            "candidate": self.candidate,
            "verdict": self.verdict,
            "reason": self.reason,
            "gates": [vars(gate) for gate in self.gates],
            "value": self.value,
            "improvement": improvement,
            "sandbox": self.sandbox,
        }
        if better is None:
            return document | {"value_reason": self.reason, "improvement_reason": self.reason}
        return document | {"noisy": better.noisy, "notes": list(better.notes)}


@dataclass
class _Course:
    """A candidate on its way through the gates."""

    bundle: Bundle
    model_dir: Path
    seed: int
    output_dir: Path
    told: Callable[[str], None]
    runner: ProcessRunner | None
    sandbox: Sandbox
    clock: Clock
    candidate: Path
    reference: Path
    gates: list[GateOutcome] = field(default_factory=list)

    def note(self, name: str, ok: bool | None, detail: str) -> None:
        """Record a gate, and say it."""
        self.gates.append(GateOutcome(name, ok, detail))
        self.told(f"{name}: {'ok' if ok else 'not run' if ok is None else 'FAILED'}: {detail}")

    def start(self, directory: Path, name: str) -> RunningServer:
        """Launch a server. Raises StartError."""
        log_dir = self.output_dir / name
        return launch(directory, self.model_dir, log_dir=log_dir, runner=self.runner, sandbox=self.sandbox)


def evaluate(
    bundle: Bundle,
    candidate: Path,
    model_dir: Path,
    *,
    output_dir: Path,
    seed: int,
    pairs: int | None = None,
    window_s: float | None = None,
    budget_s: float | None = None,
    against: Path | None = None,
    trust_remote_code: bool = False,
    told: Callable[[str], None] = lambda text: None,
    runner: ProcessRunner | None = None,
    clock: Clock | None = None,
    require_sandbox: bool = False,
) -> Evaluation:
    """Put a candidate's directory through every gate; it is measured against `against`, else against the reference.

    The gates: start, check, the judge's probes (with the reference as their oracle), integrity (nothing of the evaluator
    or the model has changed), pairs of windows, and a window of a new life for who has won them. `output_dir` gets every log and document. What is given of `pairs`
    and `window_s` stands; what is left out follows from what the gates have left of `budget_s` (`spend`). Without a
    budget it is planned for five minutes, and noisy pairs may add to their number (`compare`).

    Raises InputError for a candidate that cannot be read, CheckError where the *other* server fails: that says nothing
    about the candidate, MissingError where `require_sandbox` and no sandbox works here.
    """
    read_candidate(candidate)
    sandbox = choose(require_sandbox)
    told(f"sandbox: {sandbox.name}")
    reference = reference_candidate(bundle, trust_remote_code=trust_remote_code)
    clock = clock or SystemClock()
    course = _Course(bundle, model_dir, seed, output_dir, told, runner, sandbox, clock, candidate, reference)
    begin_s = clock.monotonic_s()
    for words in quiet_now().disturbances():
        told(f"the machine is not quiet: {words}")
    integrity = Integrity(bundle, model_dir)
    before = integrity.digests()

    def ended(verdict: str, reason: str, comparison: Comparison | None = None) -> Evaluation:
        value = statistics.median(comparison.values_b) if comparison else None
        return Evaluation(str(candidate), verdict, reason, tuple(course.gates), value, comparison, sandbox.name)

    with ExitStack() as running:
        try:
            server = running.enter_context(course.start(candidate, "candidate"))
        except StartError as failure:
            course.note("start", False, failure.message)
            return ended("failed-start", failure.message)
        course.note("start", True, f"ready after {server.ready_s:.1f} s")
        try:
            rejected = _check(course, server)
            probes_begin_s = course.clock.monotonic_s()
            rejected = rejected or _probe(course, [server])
            if rejected is not None:
                return ended(*rejected)
            probe_s = course.clock.monotonic_s() - probes_begin_s
            changed = _changed(before, integrity.digests())
            course.note("integrity", not changed, changed or f"{len(before)} digests as they were")
            if changed:
                return ended("rejected-integrity", changed)
            other = running.enter_context(_other(course, against or reference))
            gates_s = course.clock.monotonic_s() - begin_s + probe_s + server.ready_s
            count, window_s = spend((budget_s or BUDGET_S) - gates_s, pairs, window_s)
            most = count if pairs is not None else most_pairs(budget_s and budget_s - gates_s, window_s)
            comparison = _measure(course, other, server, count, most, window_s)
            if caught := _afterwards(course, server, other, comparison, min(window_s, SHORTEST_WINDOW_S), running):
                return ended(*caught)
        except RunError as failure:
            course.note("run", False, failure.message)
            return ended("failed-run", failure.message)
        changed = _changed(before, integrity.digests())
    if changed:
        course.note("integrity", False, f"during the measurement: {changed}")
        return ended("rejected-integrity", changed)
    words = _in_words(comparison, "the other" if against else "the reference")
    course.note("measure", comparison.better, words)
    return ended("kept" if comparison.better else "not-better", words, comparison)


def _in_words(comparison: Comparison, other: str) -> str:
    if comparison.ci95 is None:
        return f"{comparison.ratio:.4g} times {other} (no interval)"
    low, high = comparison.ci95
    words = f"{comparison.ratio:.4g} times {other} (95 %: {low:.4g} to {high:.4g})"
    return f"{words}; {unseen(low, high, comparison.first)}" if low <= 1.0 <= high else words


def spend(left_s: float, pairs: int | None = None, window_s: float | None = None) -> tuple[int, float]:
    """(pairs, seconds of a window) that `left_s` buys. The default pairs with windows of 15 s, or down to 4 s; where even
    those take longer, the fewest pairs that make an interval. What is given stands."""
    if window_s is None:

        def bought(count: int) -> float:
            return left_s / (2 * count + 1) - OVERHEAD_S  # one more: a winner's new life

        if pairs is None:
            pairs = DEFAULT_PAIRS if bought(DEFAULT_PAIRS) >= SHORTEST_WINDOW_S else MIN_PAIRS
        return pairs, round(min(DEFAULT_WINDOW_S, max(SHORTEST_WINDOW_S, bought(pairs))), 1)
    if pairs is None:
        enough = (2 * DEFAULT_PAIRS + 1) * (window_s + OVERHEAD_S) <= left_s
        pairs = DEFAULT_PAIRS if enough else MIN_PAIRS
    return pairs, window_s


def most_pairs(left_s: float | None, window_s: float) -> int:
    """How far noisy pairs may add to their number: as far as `left_s` goes, None without end, and never above 20."""
    if left_s is None:
        return MOST_PAIRS
    return min(MOST_PAIRS, int((left_s / (window_s + OVERHEAD_S) - 1) / 2))


def _check(course: _Course, server: RunningServer) -> tuple[str, str] | None:
    """(verdict, reason) where the checker does not pass."""
    output = course.output_dir / "check.json"
    course.told(f"running {course.bundle.checker_script.name} …")
    result = run_checker(
        course.bundle, server.url, course.model_dir, output=output, seed=course.seed, runner=course.runner
    )
    server.require_alive()
    course.note("check", result.ok if result.ran else None, result.detail)
    if not result.ran:
        return "failed-run", f"the checker could not be run: {result.detail}"
    return None if result.ok else ("rejected-accuracy", result.detail)


def _probe(
    course: _Course, lives: list[RunningServer], restart: Callable[[], str] | None = None
) -> tuple[str, str] | None:
    """(verdict, reason) where a probe fails; the reference runs meanwhile, for what only it can say.

    `lives`: the server under probe, last; `restart` puts another life of it there, and marks the probes after the load.
    """
    after = restart is not None
    course.told(f"probing{' again, with other prompts' if after else ''}, with the reference as oracle …")
    with _other(course, course.reference, "oracle") as oracle:
        found = probe(
            course.bundle,
            lives[-1].url,
            seed=course.seed + after,
            oracle_url=oracle.url,
            restart=restart,
            model_dir=course.model_dir,
        )
    lives[-1].require_alive()
    for one in found:
        course.note(f"probe {one.name}{' after the load' if after else ''}", one.ok, one.detail)
    failed = [f"{one.name}: {one.detail}" for one in found if one.ok is False]
    return ("rejected-integrity", "; ".join(failed)) if failed else None


def _afterwards(
    course: _Course,
    server: RunningServer,
    other: RunningServer,
    comparison: Comparison,
    window_s: float,
    running: ExitStack,
) -> tuple[str, str, Comparison | None] | None:
    """(verdict, reason, comparison where it counts) where probes after the load fail, or a winner's new life is slow.

    Other prompts, now that the gates are behind it: a server may behave only as long as it is looked at.
    """
    lives = [server]

    def restart() -> str:
        return _again(course, lives, running)

    if rejected := _probe(course, lives, restart):
        return (*rejected, None)
    if not comparison.better:
        return None
    if len(lives) == 1:
        restart()
    reason = _lost(course, lives[-1], other, comparison, window_s)
    return ("not-better", reason, comparison) if reason else None


def _again(course: _Course, lives: list[RunningServer], running: ExitStack) -> str:
    """Another life of the server: what it has kept from the one before shows. Raises RunError where it does not start."""
    lives[-1].stop()
    try:
        lives.append(running.enter_context(course.start(course.candidate, "candidate-restarted")))
    except StartError as failure:
        raise RunError(f"it did not start again: {failure.message}", hint=failure.hint) from failure
    return lives[-1].url


def _other(course: _Course, directory: Path, name: str = "against") -> RunningServer:
    """The server that the candidate is laid beside. Raises CheckError: its failure is no verdict on the candidate."""
    try:
        return course.start(directory, name)
    except StartError as failure:
        raise CheckError(f"the server to compare with did not start: {failure.message}", hint=failure.hint) from failure


def _measure(
    course: _Course, other: RunningServer, server: RunningServer, pairs: int, most: int, window_s: float
) -> Comparison:
    expected_s = 2 * pairs * (window_s + OVERHEAD_S)
    course.told(
        f"measuring {pairs} pairs of {window_s:g} s windows: about {expected_s:.0f} s, more where others disturb …"
    )
    count = f"{pairs} to {most}" if most > pairs else f"{pairs}"

    def told(window: Window) -> None:
        name = "candidate" if window.side == "b" else "the other"
        course.told(f"pair {window.pair + 1} of {count}: {name}: {window.result.value:.5g} {course.bundle.metric.unit}")

    try:
        return compare(
            course.bundle,
            course.model_dir,
            other,
            server,
            pairs=pairs,
            most=most,
            window_s=window_s,
            seed=course.seed,
            output_dir=course.output_dir / "windows",
            runner=course.runner,
            on_window=told,
        )
    except RunError as failure:
        if other.url in failure.message or other.failure() is not None:
            raise CheckError(f"the server to compare with failed: {failure.message}", hint=failure.hint) from failure
        raise


def _lost(course: _Course, server: RunningServer, other: RunningServer, comparison: Comparison, window_s: float) -> str:
    """Measure a winner's new life: why its gain is none there; empty where it stays. Raises RunError."""
    before, share, quiet = statistics.median(comparison.values_b), 0.0, 0
    for look in range(2 * LOOKS):
        result, _ = measure_window(
            course.bundle,
            course.model_dir,
            server,
            [other],
            seed=derive_seed(course.seed, GATE, look) % 2**31,
            window_s=window_s,
            output=course.output_dir / "windows" / f"{GATE}-{look + 1}.json",
            runner=course.runner,
        )
        if result.value is None:
            raise RunError(f"after a restart it has no value: {result.detail}")
        share = improvement(result.value, before, course.bundle.metric.direction)
        if not lost(result.value, before, course.bundle.metric.direction):
            course.note(GATE, True, f"started again, it has {share:.3g}× of the value of its pairs")
            return ""
        quiet += not result.noisy  # what other work disturbed rejects nothing
        if quiet == LOOKS:
            break
    if not quiet:
        course.note(GATE, None, f"every window after the restart was disturbed: {'; '.join(result.noisy)}")
        return ""
    reason = f"its gain does not outlast a restart: {share:.2g}× of the value of its pairs"
    course.note(GATE, False, reason)
    return reason


def _changed(before: dict[str, str], after: dict[str, str]) -> str:
    """What differs between two sets of digests, in words; empty where nothing does."""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return f"changed while it ran: {', '.join(names[:5])}" if names else ""
