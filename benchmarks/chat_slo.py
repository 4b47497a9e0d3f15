"""Chat under latency targets: goodput of one engine as plain continuous batching, and with the targets known to it.

Both serve the same arrivals (Poisson, or bursts of eight) in real time, one after the other, in an order that changes; no
HTTP. A request is good when its first token came within the TTFT target and the others within the TPOT target on average;
one that is refused is not good. The rates are shares of what the plain engine serves when it is kept full.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

from benchmarks._engine import Course, core_of, model_dir, percentile, prompt, run_all, spread, take
from benchmarks.rows import Row

TTFT_S, TPOT_S = 1.0, 0.1
SECONDS = 24.0
BURST = 8
ROUNDS = 6
PROMPT, ANSWER = (32, 384), (16, 96)
TARGETS = {"chunked_prefill": True, "ttft_target_ms": int(1000 * TTFT_S), "tpot_target_ms": int(1000 * TPOT_S)}


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals at a share of the full engine's rate; in bursts or one by one."""

    name: str
    share: float
    bursts: bool
    target: float | None


LOADS = (
    Load("Poisson, 0.6 of capacity", 0.6, False, None),
    Load("Poisson, 2 times the capacity", 2.0, False, 1.5),
    Load("bursts, 2 times the capacity", 2.0, True, 1.5),
)


def requests(generator: random.Random, count: int) -> list[Any]:
    """Questions of all lengths, with answers of a length that is known to nobody but the client."""
    from vibeserve.engine.types import Request, SamplingParams

    made = []
    for number in range(count):
        params = SamplingParams(temperature=0.0, max_tokens=generator.randint(*ANSWER), ignore_eos=True)
        made.append((f"r{number}", prompt(generator, generator.randint(*PROMPT)), params))
    return [Request(*one) for one in made]


def arrivals(generator: random.Random, rate: float, bursts: bool) -> list[float]:
    """Seconds at which requests come."""
    found, now = [], 0.0
    while True:
        now += generator.expovariate(rate / BURST if bursts else rate)
        if now >= SECONDS:
            return found
        found += [now] * (BURST if bursts else 1)


def serve(core: Any, seed: int, rate: float, bursts: bool) -> list[Course]:
    """The course of every request that came; what has no first token well after the target is given up."""
    from dataclasses import replace

    from vibeserve.engine.errors import OverloadedError

    generator = random.Random(seed)
    due = arrivals(generator, rate, bursts)
    asked = requests(generator, len(due))
    began = perf_counter()
    courses: dict[str, Course] = {}
    waiting = list(zip(due, asked, strict=True))
    end = SECONDS + TTFT_S + ANSWER[1] * TPOT_S
    while (waiting or core.has_work()) and perf_counter() - began < end:
        while waiting and waiting[0][0] <= perf_counter() - began:
            at, request = waiting.pop(0)
            course = courses[request.id] = Course(began + at)
            try:
                core.welcome(request)
                core.add(replace(request, arrival=began + at))
            except OverloadedError:
                course.refused = True
        if core.has_work():
            take(core, courses)
        elif waiting:
            sleep(max(0.0, waiting[0][0] - (perf_counter() - began)))
    core.abort_all()
    core.rest()
    return list(courses.values())


def good(course: Course) -> bool:
    """Whether a request was served within both targets."""
    if not course.ended or course.ttft_s is None:
        return False
    return course.ttft_s <= TTFT_S and (course.tpot_s or 0.0) <= TPOT_S


def capacity(core: Any) -> float:
    """Requests a second of an engine that is kept full."""
    asked = requests(random.Random(0), 48)
    run_all(core, asked[:8])
    return 40 / run_all(core, asked[8:])[0]


def rows() -> list[Row]:
    """Ratios of goodput; targets are for the lower end of each interval."""
    from vibeserve.base.errors import VibeServeError

    try:
        model = model_dir()
    except VibeServeError as error:
        return [Row("goodput", 1.5, None, "x", "higher", f"not run: {error}")]
    plain = core_of(model)
    aware = core_of(model, plain.backend, **TARGETS)
    full = capacity(plain)
    found = [Row("capacity of the plain engine", None, full, "req/s", "higher", f"TTFT {TTFT_S} s, TPOT {TPOT_S} s")]
    for load in LOADS:
        found += compare({"plain": plain, "aware": aware}, load, full * load.share)
    plain.close()
    return found


def compare(cores: dict[str, Any], load: Load, rate: float) -> list[Row]:
    """Rounds of both engines over the same arrivals."""
    generator = random.Random(load.name)
    ratios: list[float] = []
    courses: dict[str, list[Course]] = {name: [] for name in cores}
    for number in range(ROUNDS):
        counted: dict[str, float] = {}
        for name in generator.sample(list(cores), len(cores)):
            served = serve(cores[name], number, rate, load.bursts)
            courses[name] += served
            counted[name] = sum(map(good, served))
        # Half a request more on both sides: a goodput of none has a ratio too.
        ratios.append((counted["aware"] + 0.5) / (counted["plain"] + 0.5))
    mean, low, high = spread(ratios)
    note = f"mean {mean:.2f}, 95 % {low:.2f}-{high:.2f}, {ROUNDS} rounds; the figure is the lower end"
    found = [Row(f"{load.name}: goodput over plain", load.target, low, "x", "higher", note)]
    for name, all_of_them in courses.items():
        found.append(_told(f"{load.name}: {name}", all_of_them))
    return found


def _told(name: str, courses: list[Course]) -> Row:
    begun = [course.ttft_s for course in courses if course.ttft_s is not None]
    tpots = [course.tpot_s for course in courses if course.tpot_s is not None]
    rate = sum(map(good, courses)) / (SECONDS * ROUNDS)
    share = 100 * sum(course.refused for course in courses) / max(1, len(courses))
    late = 100 * sum(not good(course) and not course.refused for course in courses) / max(1, len(courses))
    note = f"of {len(courses) / (SECONDS * ROUNDS):.1f} offered; {share:.0f} % refused, {late:.0f} % late"
    if begun and tpots:
        note += f"; p95 TTFT {percentile(begun, 0.95):.2f} s, TPOT {1e3 * percentile(tpots, 0.95):.0f} ms"
    return Row(name, None, rate, "good/s", "higher", note)
