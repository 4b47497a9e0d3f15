"""One round: a proposal, the candidate built from it, its gates, its pairs, and the verdict."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vibeserve.agents.agent import Proposal, Stop
from vibeserve.agents.conditions import Condition, holds
from vibeserve.base.errors import CheckError, VibeServeError
from vibeserve.measure import KilledError, RunError, StartError, unseen
from vibeserve.search.baseline import up
from vibeserve.search.context import BASELINE, Run, facts_of, round_cost_s, state_of
from vibeserve.search.drafts import as_proposal, queued, show_incumbent, unpaid
from vibeserve.search.journal import Step
from vibeserve.search.killed import once_more
from vibeserve.search.lab import Window
from vibeserve.search.lives import outlasts
from vibeserve.search.loads import Load, measurement
from vibeserve.search.pairs import LONGER, Match, measure_pairs
from vibeserve.search.store import CandidateRow, DecisionRow, EvidenceRow, GateRow, HypothesisRow
from vibeserve.search.verdict import SCREEN_REJECTS_BELOW, Comparison, improvement, in_words

#: Marks the probes of a candidate that won: a server may behave only as long as it is looked at.
AFTER = " after its pairs"


@dataclass(frozen=True)
class Finding:
    """How a round ended: the verdict with its reason, and the comparison where it came to one."""

    verdict: str
    reason: str
    value: float | None = None
    comparison: Comparison | None = None
    tampered: bool = False


@dataclass(frozen=True)
class Trial:
    """A candidate on its way through a round."""

    number: int
    candidate: str
    incumbent: str
    commit: str | None
    proposal: Proposal
    problem: str = ""


def propose(run: Run, number: int) -> Proposal | None:
    """The next proposal, or None where the search ends; why it ends is recorded."""
    answer = run.journal.once(f"r{number}/propose", lambda step: _propose(run, step, number))
    if "stop" in answer:
        return None
    return as_proposal(answer["proposal"])


def _propose(run: Run, step: Step, number: int) -> dict[str, Any]:
    state = state_of(run, number)
    answer: Proposal | tuple[Proposal, ...] | Stop | None = _spent(run, number)
    waiting = queued(run, number)
    if answer is None and waiting is not None:
        answer = unpaid(run, number)
    if answer is None and waiting is not None:
        step.hypothesis_state(number, "in progress")
        step.event("propose", f"round {number}: {waiting.title} (proposed beside round {number - 1})")
        return {"proposal": dataclasses.asdict(waiting), "floor": run.agent.floor(state)}
    if answer is None:
        show_incumbent(run, number)
        answer = run.agent.propose(state)
    if isinstance(answer, Stop):
        step.event("stop", f"no further round: {answer.reason}")
        return {"stop": dataclasses.asdict(answer), "floor": run.agent.floor(state)}
    proposals = answer if isinstance(answer, tuple) else (answer,)
    fields = {field.name for field in dataclasses.fields(HypothesisRow)}
    for place, proposal in enumerate(proposals):
        values = {name: value for name, value in vars(proposal).items() if name in fields}
        values["state"] = "todo" if place else "in progress"
        step.add(HypothesisRow(round=number + place, proposed_by=run.agent.name, **values))
        step.event("propose", f"round {number + place}: {proposal.title}. {proposal.hypothesis}")
    first, *more = (dataclasses.asdict(proposal) for proposal in proposals)
    return {"proposal": first, "floor": run.agent.floor(state), **({"more": more} if more else {})}


def _spent(run: Run, number: int) -> Stop | None:
    plan = run.plan
    if plan.rounds is not None and number > plan.rounds:
        return Stop("rounds", f"all {plan.rounds} rounds are done")
    if plan.budget_s is not None:
        needed_s = round_cost_s(run) + (plan.final_cost_s if number > 1 else 0.0)
        left_s = plan.budget_s - run.journal.elapsed_s
        # The first round is always tried: a budget that buys none would be no search at all.
        if number > 1 and left_s < needed_s:
            left = f"{left_s:.0f} s are" if left_s > 0 else "nothing is"
            expected = f"a round and the final comparison are expected to take {needed_s:.0f} s"
            return Stop("budget", f"{left} left of the budget; {expected}")
    return None


def build(run: Run, number: int, proposal: Proposal) -> Trial:
    """The candidate's commit; a proposal that cannot be built is a trial with a problem."""
    built = run.journal.once(f"r{number}/build", lambda step: _build(run, step, number, proposal))
    return Trial(number, f"c{number}", built["incumbent"], built["commit"], proposal, built["problem"])


def _build(run: Run, step: Step, number: int, proposal: Proposal) -> dict[str, Any]:
    name, parent = f"c{number}", run.candidate(proposal.parent)
    worktree = run.workspace.checkout(parent.commit)
    commit, tree, summary, problem = None, None, "", ""
    if run.desk is not None:
        run.desk.round = number
    try:
        summary = run.agent.edit(proposal, worktree).summary
        message = f"Round {number}: {proposal.title}\n\n{proposal.hypothesis}"
        made = run.workspace.commit(name, message, run.when(), parent=parent.commit)
        commit, tree = made.commit, made.tree
        if tree == parent.tree:
            problem = "the change leaves the candidate as its parent was"
    except VibeServeError as error:
        problem = f"it could not be built: {error.message}"
    together = (
        *parent.techniques,
        *(technique for technique in proposal.techniques if technique not in parent.techniques),
    )
    step.add(CandidateRow(name, number, parent.id, commit, tree, together, proposal.settings, summary, 0.0))
    step.event("build", f"round {number}: {problem or summary}")
    return {"commit": commit, "problem": problem, "incumbent": run.incumbent()}


def examine(run: Run, number: int, trial: Trial, proposal: Proposal) -> Finding:
    """Through the gates in order; the first that fails ends the round."""
    del proposal
    if trial.problem:
        return Finding("failed-start", trial.problem)
    stages: tuple[Callable[[Run, Trial], Finding | None], ...] = (_start, _check, _probe, _screen, _intact, _compare)
    for stage in stages:
        try:
            finding = once_more(run, functools.partial(stage, run, trial), trial=trial.candidate)
        except RunError as failure:
            finding = Finding("failed-run", str(failure))
        if finding is not None:
            return finding
    raise AssertionError("the comparison always ends in a finding")


def _start(run: Run, trial: Trial) -> Finding | None:
    def work(step: Step) -> dict[str, Any]:
        try:
            server = run.servers.get(trial.candidate, trial.commit)
        except StartError as failure:
            step.add(GateRow(trial.number, trial.candidate, "start", False, str(failure)))
            return {"ok": False, "detail": str(failure)}
        detail = f"ready after {server.ready_s:.1f} s"
        step.add(GateRow(trial.number, trial.candidate, "start", True, detail, {"ready_s": server.ready_s}))
        step.event("start", f"round {trial.number}: {detail}")
        return {"ok": True, "detail": detail}

    started = run.journal.once(f"r{trial.number}/start", work)
    return None if started["ok"] else Finding("failed-start", started["detail"])


def _check(run: Run, trial: Trial) -> Finding | None:
    def work(step: Step) -> dict[str, Any]:
        server = run.servers.get(trial.candidate, trial.commit)
        seed = run.seed_of("check", trial.number)
        gate = run.lab.check(server, seed=seed, log=run.log(trial.candidate, "check.json"))
        step.add(GateRow(trial.number, trial.candidate, gate.name, gate.ok, gate.detail, gate.document))
        step.event("check", f"round {trial.number}: {gate.detail}")
        return {"ok": gate.ok, "detail": gate.detail}

    checked = run.journal.once(f"r{trial.number}/check", work, before=lambda: up(run, trial.candidate))
    if checked["ok"] is None:
        return Finding("failed-run", f"the checker could not be run: {checked['detail']}")
    return None if checked["ok"] else Finding("rejected-accuracy", checked["detail"])


def _probe(run: Run, trial: Trial, when: str = "") -> Finding | None:
    """The judge's probes. `when` marks a second time, with other prompts."""

    def work(step: Step) -> list[dict[str, Any]]:
        server = run.servers.get(trial.candidate, trial.commit)
        oracle = run.servers.get(BASELINE, None)
        gates = run.lab.probe(server, seed=run.seed_of(f"probe{when}", trial.number), oracle=oracle)
        for gate in gates:
            step.add(GateRow(trial.number, trial.candidate, f"{gate.name}{when}", gate.ok, gate.detail, gate.document))
        failed = [gate.name for gate in gates if gate.ok is False]
        ran = sum(gate.ok is not None for gate in gates)
        told = f"failed {', '.join(failed)}" if failed else "none failed"
        if gates and not ran:
            told = gates[0].detail
        step.event("probe", f"round {trial.number}: {ran} probes{when}, {told}")
        return [{"name": gate.name, "ok": gate.ok, "detail": gate.detail} for gate in gates]

    def before() -> None:
        up(run, trial.candidate)
        up(run, BASELINE)

    probes = run.journal.once(f"r{trial.number}/probe{when}", work, before=before)
    failed = [f"{probe['name']}{when}: {probe['detail']}" for probe in probes if probe["ok"] is False]
    return Finding("rejected-integrity", "; ".join(failed)) if failed else None


def _screen(run: Run, trial: Trial) -> Finding | None:
    """One window with the candidate's counters: activation, evidence, and a look that may only reject.

    A longer one follows where most requests still waited for their first token when it ended: that shows nothing yet.
    """

    def work(step: Step) -> dict[str, Any]:
        server = run.servers.get(trial.candidate, trial.commit)
        window, seed = Window(None), run.seed_of("screen", trial.number)
        for attempt, window_s in enumerate((run.plan.screen_s, LONGER * run.plan.screen_s)):
            log = run.log(trial.candidate, f"screen{'-longer' if attempt else ''}.json")
            try:
                window = run.lab.observe(server, seed=seed, window_s=window_s, log=log)
            except KilledError:
                raise
            except RunError as failure:
                window = Window(None, reason=str(failure))
            load = Load(trial.number, "screen", attempt, seed, window_s)
            step.add(measurement(run, load, trial.candidate, window))
            if window.waiting <= 0.5:
                break
        for name, fact in window.facts.items():
            step.add(EvidenceRow(trial.candidate, name, fact.value, fact.unit, fact.provenance, fact.source))
        return {"value": window.value, "reason": window.reason, "failed": window.failed}

    screened = run.journal.once(f"r{trial.number}/screen", work, before=lambda: up(run, trial.candidate))
    if screened["value"] is None:
        return Finding("failed-run", screened["reason"])
    if screened["failed"]:
        return Finding("failed-run", f"{screened['failed']} requests failed under load", screened["value"])
    if unseen := not_seen(run, trial):
        return Finding("failed-run", f"the technique was not at work: {unseen}", screened["value"])
    known = run.candidate(trial.incumbent)
    value = next(
        (row.value for row in run.store.decisions() if row.candidate == known.id and row.kind == "round"), None
    )
    if value:
        ratio = improvement(screened["value"], value, run.goal.direction)
        if ratio < SCREEN_REJECTS_BELOW:
            return Finding("not-better", f"a first window shows {ratio:.2g}× of {known.id}'s value", screened["value"])
    return None


def not_seen(run: Run, trial: Trial) -> str:
    """The first activation condition that the candidate's own counters do not show; empty where all hold."""
    facts = facts_of(run, trial.candidate)
    for table in trial.proposal.activation:
        condition = Condition(**table)
        if holds(condition, facts) is not True:
            seen = facts[condition.fact].value if condition.fact in facts else "not reported"
            return f"{condition.fact} should be {condition.op} {condition.value:g}, is {seen}"
    return ""


def _intact(run: Run, trial: Trial) -> Finding | None:
    return intact(run, trial.number, trial.candidate, "before its pairs")


def intact(run: Run, number: int, candidate: str, when: str) -> Finding | None:
    """What no candidate may change is as it was when the run began."""

    def work(step: Step) -> list[str]:
        known = run.store.step("integrity")
        found = run.lab.integrity()
        changed = sorted(name for name in known.keys() | found.keys() if known.get(name) != found.get(name))
        detail = (
            f"changed: {', '.join(changed)}"
            if changed
            else f"{len(known)} evaluator parts and the weights are unchanged"
        )
        step.add(GateRow(number, candidate, f"integrity {when}", not changed, detail))
        return changed

    changed = run.journal.once(f"r{number}/integrity {when}", work)
    if not changed:
        return None
    return Finding("rejected-integrity", f"evaluator changed: {', '.join(changed)}", tampered=True)


def _compare(run: Run, trial: Trial) -> Finding | None:
    match = Match(
        trial.number, "pair", trial.candidate, trial.incumbent, run.plan.pairs, run.stretched_s(run.plan.window_s)
    )
    comparison = measure_pairs(run, match)
    if tampered := intact(run, trial.number, trial.candidate, "after its pairs"):
        return tampered
    words = f"{in_words(comparison)} of {trial.incumbent}"
    if comparison.better and (
        caught := _probe(run, trial, AFTER) or _answers(run, trial) or _again(run, trial, comparison)
    ):
        return dataclasses.replace(caught, value=comparison.value, comparison=comparison)
    if comparison.better:
        return Finding("kept", words, comparison.value, comparison)
    if comparison.worse or comparison.ci95 is None:
        return Finding("not-better", f"slower: {words}", comparison.value, comparison)
    hidden = unseen(*comparison.ci95, comparison.pairs)
    return Finding("not-better", f"the interval holds 1: {words}; {hidden}", comparison.value, comparison)


def _answers(run: Run, trial: Trial) -> Finding | None:
    """The answers that the benchmark sampled in the candidate's last window: what was fast has to be right."""

    def work(step: Step) -> dict[str, Any]:
        server = run.servers.get(trial.candidate, trial.commit)
        pairs = [
            row for row in run.store.measurements(trial.candidate) if (row.round, row.kind) == (trial.number, "pair")
        ]
        gate = run.lab.answers(server, pairs[-1].document, log=run.log(trial.candidate, "answers.json"))
        step.add(GateRow(trial.number, trial.candidate, gate.name, gate.ok, gate.detail, gate.document))
        step.event("check", f"round {trial.number}: answers under load: {gate.detail}")
        return {"ok": gate.ok, "detail": gate.detail}

    proved = run.journal.once(f"r{trial.number}/answers", work, before=lambda: up(run, trial.candidate))
    if proved["ok"] is False:
        return Finding("rejected-accuracy", f"answers under load: {proved['detail']}")
    return None


def _again(run: Run, trial: Trial, comparison: Comparison) -> Finding | None:
    """A new life has to show the gain too, before the candidate becomes the best."""
    reason = outlasts(run, trial.number, trial.candidate, comparison.value)
    return Finding("not-better", reason) if reason else None


def decide(run: Run, number: int, trial: Trial, finding: Finding) -> None:
    """Record the verdict and end the servers that are no longer needed."""

    def work(step: Step) -> dict[str, Any]:
        comparison = finding.comparison
        low, high = comparison.ci95 if comparison and comparison.ci95 else (None, None)
        step.add(
            DecisionRow(
                round=number,
                kind="round",
                candidate=trial.candidate,
                against=trial.incumbent,
                verdict=finding.verdict,
                reason=finding.reason,
                value=finding.value,
                ratio=comparison.ratio if comparison else None,
                ci_low=low,
                ci_high=high,
                pairs=comparison.pairs if comparison else 0,
                at_s=0.0,
            )
        )
        step.hypothesis_state(number, _hypothesis_state(finding), "" if finding.verdict == "kept" else finding.reason)
        step.event("decide", f"round {number}: {finding.verdict}: {finding.reason}")
        return {"verdict": finding.verdict}

    run.journal.once(f"r{number}/decide", work)
    run.servers.keep_only(BASELINE, run.incumbent())
    run.servers.drop_dead()  # a reference that has died is no fault of the next candidate
    if finding.tampered:
        raise CheckError(
            f"{trial.candidate} changed what it is measured with ({finding.reason}); the run ends here",
            hint="restore the bundle and the model, look at the candidate's diff, and start a new run",
        )


def _hypothesis_state(finding: Finding) -> str:
    if finding.verdict == "kept":
        return "proven"
    return "disproven" if finding.comparison is not None or finding.verdict == "not-better" else "abandoned"
