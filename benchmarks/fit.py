"""Fit the timing model's unsure constants to the public measurements, half of them held out.

python -m benchmarks.fit [--seed N] [--all] [--leave-one-out] [--cases WORD ...]

Only constants marked inferred or guess may move, each by a factor with a prior around what the data files say, so that one
measurement does not decide; none belongs to a kernel. The cases of each generation are split in two by a seed: the
constants are fitted on one half, and the errors of both are printed. `--leave-one-out` fits on all of a generation's cases
but one, for each in turn, and prints the error of the one left out. `--all` fits on every case, which is how a value comes
into a data file (by hand, with its mark).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.timing import CASES, Case, made_inputs

FACTORS = (0.7, 0.85, 0.95, 1.05, 1.15, 1.4)
FRACTIONS = ("tensor_cycles.load_hidden", "tensor_warmup.up_if_busy_over", "tensor_warmup.down_if_busy_under")
STEPS = (-0.2, -0.1, -0.05, 0.05, 0.1, 0.2)
WIDTHS = {"inferred": 0.4, "guess": 0.8}  # of the priors: the logarithm of a factor, or the step of a fraction
PRIOR = 0.0004  # what one width costs, in squared relative error
ENGINES = 0.3  # what the squared error of an engine's busy time counts beside the latency's
LEAST_EFFECT = 0.003
PASSES = 2
GENERATIONS = (("trn1", 2), ("trn2", 3))


@dataclass
class Recorded:
    """A case whose instructions were recorded once, to be scheduled by other constants."""

    case: Case
    run: Any

    def errors(self, params: Any) -> list[float]:
        """(simulated - measured) / measured of the latency and of each engine's busy time that was printed; program order."""
        from vibeserve.nki.timing import run
        from vibeserve.nki.timing.schedule import Machine, Scheduler

        machine = Machine(self.run.schedule.program, params, self.run.target.number)
        self.run.schedule = Scheduler(machine).run()
        busy = run.busy_s(self.run) if self.case.engines else {}
        engines = [busy[name] / value - 1 for name, value in self.case.engines.items()]
        latency = self.run.latency_s
        if self.case.latency_s is not None:
            return [latency / self.case.latency_s - 1, *engines]
        assert self.case.total_s is not None
        ends = (params["overhead_ns.start"] + params["overhead_ns.end"]) * 1e-9
        return [(latency + ends) / self.case.total_s - 1, *engines]

    def error(self, params: Any) -> float:
        """That of the latency."""
        return self.errors(params)[0]


def recorded(case: Case) -> Recorded:
    """Run a case without its arithmetic and keep what it did."""
    from vibeserve.nki.timing import run

    kernel, inputs = made_inputs(case)
    _, timed = run.timed(kernel, kwargs=inputs, target=case.target, lnc=1, shape_only=True)
    return Recorded(case, timed)


def halves(cases: Sequence[Case], seed: int) -> tuple[list[Case], list[Case]]:
    """(to fit, held out): of each target's cases, in seeded order, the larger half to fit."""
    import numpy as np

    generator = np.random.default_rng(seed)
    fit: list[Case] = []
    held: list[Case] = []
    for target in sorted({case.target for case in cases}):
        mine = [case for case in cases if case.target == target]
        order = [mine[int(i)] for i in generator.permutation(len(mine))]
        cut = -(-len(mine) // 2)
        fit += order[:cut]
        held += order[cut:]
    return fit, held


def loss(found: Sequence[Recorded], params: Any, start: Mapping[str, float]) -> float:
    """Mean squared error (an engine's busy time counts a part), and the price of leaving the data file's values."""
    errors = []
    for one in found:
        latency, *engines = one.errors(params)
        errors.append(latency**2 + ENGINES * sum(error**2 for error in engines))
    price = 0.0
    for name, value in start.items():
        if params[name] != value:
            apart = params[name] - value if name in FRACTIONS else math.log(params[name] / value)
            price += (apart / WIDTHS[params.constants[name].mark]) ** 2
    return sum(errors) / len(errors) + PRIOR * price


def fitted(found: Sequence[Recorded], params: Any) -> Any:
    """Constants of one generation that fit `found` better: a search along each unsure constant in turn."""
    start = {name: params[name] for name in params.unsure() if not name.startswith(("overhead_ns.", "machine."))}
    best = loss(found, params, start)
    base = [one.error(params) for one in found]
    names = []
    for name, value in start.items():
        other = min(1.0, value + 0.2) if name in FRACTIONS else value * 1.3
        changed = params.changed(name, other)
        if any(abs(one.error(changed) - error) > LEAST_EFFECT for one, error in zip(found, base, strict=True)):
            names.append(name)
    for _ in range(PASSES):
        before = best
        for name in names:
            value = params[name]
            trials = [value + step for step in STEPS] if name in FRACTIONS else [value * factor for factor in FACTORS]
            for trial in trials:
                if (name in FRACTIONS and not 0 <= trial <= 1) or (name.endswith("_stall") and trial < 1):
                    continue
                changed = params.changed(name, round(trial, 4))
                cost = loss(found, changed, start)
                if cost < best:
                    best, params = cost, changed
        if before - best < 1e-6:
            break
    return params


def leave_one_out(cases: Sequence[Case]) -> tuple[list[float], list[float]]:
    """(errors as the data files are, errors by constants fitted without the case) of each; printed as they come."""
    from vibeserve.nki.timing.params import load

    before: list[float] = []
    after: list[float] = []
    for target, generation in GENERATIONS:
        found = [recorded(case) for case in cases if case.target == target]
        params = load(generation)
        for left in found if len(found) > 1 else ():
            made = fitted([one for one in found if one is not left], params)
            before.append(left.error(params))
            after.append(left.error(made))
            print(f"{target} left out {left.case.name:48} {before[-1]:+7.1%} -> {after[-1]:+7.1%}", flush=True)
    return before, after


def mean(errors: Sequence[float]) -> str:
    """Mean absolute error as text."""
    return f"{sum(map(abs, errors)) / len(errors):.1%}" if errors else "-"


def main() -> int:
    """Fit and report."""
    from vibeserve.nki.timing.params import load

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    parser.add_argument("--target", choices=("trn1", "trn2"), help="this one alone")
    parser.add_argument("--all", action="store_true", help="fit on every case, hold none out")
    parser.add_argument("--leave-one-out", action="store_true", help="each case by constants fitted on the others")
    parser.add_argument(
        "--cases", nargs="+", default=[""], metavar="WORD", help="those with one of these in their names"
    )
    options = parser.parse_args()
    cases = [case for case in CASES if options.target in (None, case.target)]
    cases = [case for case in cases if any(word in case.name for word in options.cases)]
    if options.leave_one_out:
        before, after_ = leave_one_out(cases)
        print(f"mean absolute error of {len(after_)} cases, each left out: {mean(before)} -> {mean(after_)}")
        return 0
    chosen, held = (cases, []) if options.all else halves(cases, options.seed)
    sums: dict[str, list[float]] = {"fit before": [], "fit after": [], "held before": [], "held after": []}
    for target, generation in GENERATIONS:
        here = [recorded(case) for case in chosen if case.target == target]
        there = [recorded(case) for case in held if case.target == target]
        params = load(generation)
        after = fitted(here, params)
        for kind, ones in (("fit", here), ("held", there)):
            for one in ones:
                was, now = one.error(params), one.error(after)
                sums[f"{kind} before"].append(was)
                sums[f"{kind} after"].append(now)
                print(f"{target} {kind:4} {one.case.name:48} {was:+7.1%} -> {now:+7.1%}", flush=True)
        for name in params.unsure():
            if after[name] != params[name]:
                print(f"{target} {name} = {params[name]:g} -> {after[name]:g} ({params.constants[name].mark})")
    print(
        f"mean absolute error: fitted half {mean(sums['fit before'])} -> {mean(sums['fit after'])}, "
        f"held out {mean(sums['held before'])} -> {mean(sums['held after'])}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
