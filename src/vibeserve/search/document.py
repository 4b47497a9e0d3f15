"""A run as one JSON document: what `optimize --json` and `show --json` print, and what reports are made of.

The keys of the contract are always there; a number that cannot be had is None with `<key>_reason` beside it. Every
measured number in it comes from a row of the run store, so it can be traced to the window that it was taken in.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from vibeserve.search.agents_document import account, agents_document
from vibeserve.search.context import BASELINE, RATES_AGAIN, WHOLE_RUN
from vibeserve.search.store import CandidateRow, DecisionRow, RunView
from vibeserve.search.windows import cut_short

REPORT = "report.html"


def document(view: RunView) -> dict[str, Any]:
    """The whole run; works at any moment of it, finished or not."""
    run = view.run()
    decisions = view.decisions()
    final = next((row for row in decisions if row.kind == "final"), None)
    goal = run.request["goal"]
    rounds = [_round(view, row, decisions) for row in view.candidates()]
    bounds = _lower_bounds(view, goal["metric"], final)
    best = _best(view, decisions, final)
    best["at_least"] = best["candidate"] in bounds
    report = view.directory / REPORT
    stopped = _stop(view)
    return {
        "run": run.name,
        "bundle": run.bundle,
        "state": run.state,
        "state_reason": run.reason,
        "started": run.started,
        "elapsed_s": view.elapsed_s(),
        "device": run.device,
        "metric": {"name": goal["metric"], "unit": goal["unit"], "direction": goal["direction"]},
        "baseline": _baseline(decisions, final, view) | {"at_least": BASELINE in bounds},
        "best": best,
        "improvement": _improvement(final),
        "limit": _limit(view, best["value"], goal["direction"]),
        "rounds": rounds,
        "stopped": stopped,
        "floor": _floor(view),
        "curve": _curve(view),
        "final_pairs": [_measurement(row) for row in view.measurements() if row.kind == "final"],
        "request": run.request,
        "environment": run.environment,
        "facts": _facts(view),
        "events": view.events(),
        "sessions": view.sessions(),
        "agents": agents_document(view),
        "report": str(report) if report.is_file() else None,
    }


def candidate_document(view: RunView, candidate: str) -> dict[str, Any]:
    """One candidate: its round's entry with the run's name, metric and device. Raises KeyError for an unknown one."""
    whole = document(view)
    entry = next((row for row in whole["rounds"] if row["candidate"] == candidate), None)
    if entry is None:
        raise KeyError(candidate)
    return {key: whole[key] for key in ("run", "bundle", "device", "metric", "limit")} | entry


def _round(view: RunView, row: CandidateRow, decisions: list[DecisionRow]) -> dict[str, Any]:
    decision = next((entry for entry in decisions if entry.candidate == row.id and entry.kind == "round"), None)
    hypothesis = next((entry for entry in view.hypotheses() if entry.round == row.round), None)
    entry: dict[str, Any] = {
        "round": row.round,
        "candidate": row.id,
        "parent": row.parent,
        "technique": ", ".join(hypothesis.techniques) if hypothesis else "reference",
        "hypothesis": hypothesis.hypothesis
        if hypothesis
        else "the bundle's reference: what every candidate is held against",
        "verdict": decision.verdict if decision else None,
        "reason": decision.reason if decision else "in progress",
        "value": decision.value if decision else None,
        "evidence": {name: fact for name, fact in _evidence(view, row.id).items() if not name.startswith("curve.")},
        "ratio": decision.ratio if decision else None,
        "ci95": _interval(decision),
        "pairs": decision.pairs if decision else 0,
        "against": decision.against if decision else None,
        "commit": row.commit,
        "techniques": list(row.techniques),
        "settings": row.settings,
        "summary": row.summary,
        "at_s": row.at_s,
        "decided_at_s": decision.at_s if decision else None,
        "gates": [
            {"name": gate.name, "ok": gate.ok, "detail": gate.detail, "document": gate.document, "at_s": gate.at_s}
            for gate in view.gates(row.id)
        ],
        "measurements": [
            _measurement(taken)
            for taken in view.measurements()
            if taken.round == row.round and taken.kind in _OF_A_ROUND
        ],
    }
    if hypothesis:
        kept = ("title", "expected_effect", "expected_ratio", "falsification", "activation", "why", "not_others")
        entry |= {name: getattr(hypothesis, name) for name in kept}
        entry |= {"proposed_by": hypothesis.proposed_by, "hypothesis_state": hypothesis.state}
    if entry["value"] is None:
        entry["value_reason"] = entry["reason"]
    return entry


_OF_A_ROUND = ("baseline", "screen", "pair", "restart")


def _measurement(row: Any) -> dict[str, Any]:
    names = ("candidate", "kind", "pair", "place", "value", "unit", "window_s", "seed", "failed", "noisy", "reason")
    return {name: getattr(row, name) for name in names} | {
        "document": row.document,
        "at_s": row.at_s,
        "provenance": row.provenance,
    }


def _interval(decision: DecisionRow | None) -> list[float] | None:
    if decision is None or decision.ci_low is None or decision.ci_high is None:
        return None
    return [decision.ci_low, decision.ci_high]


def _evidence(view: RunView, candidate: str) -> dict[str, Any]:
    return {
        row.name: {"value": row.value, "unit": row.unit, "provenance": row.provenance, "source": row.source}
        for row in view.evidence(candidate)
    }


def _facts(view: RunView) -> dict[str, Any]:
    """Machine and model, and the workload and its limit, which the first window told; rates measured again count."""
    first = _evidence(view, BASELINE)
    told = {name: fact for name, fact in first.items() if name.startswith(("workload.", "limit.", "client."))}
    return _evidence(view, WHOLE_RUN) | told | _evidence(view, RATES_AGAIN)


def _lower_bounds(view: RunView, metric: str, final: DecisionRow | None) -> frozenset[str]:
    """The candidates whose value is a lower bound: windows of their final pairs, else of their rounds, cut it short."""
    kinds = ("final",) if final is not None and final.pairs else _OF_A_ROUND
    rows = [row for row in view.measurements() if row.kind in kinds]
    return cut_short(view.directory, ((row.candidate, row.document) for row in rows), metric)


def _best(view: RunView, decisions: list[DecisionRow], final: DecisionRow | None) -> dict[str, Any]:
    kept = [row for row in decisions if row.kind == "round" and row.verdict == "kept"]
    chosen = final or (kept[-1] if kept else None)
    if chosen is None:
        return {"candidate": None, "value": None, "value_reason": "nothing has been measured yet", "commit": None}
    commit = next((row.commit for row in view.candidates() if row.id == chosen.candidate), None)
    return {"candidate": chosen.candidate, "value": chosen.value, "commit": commit}


def _baseline(decisions: list[DecisionRow], final: DecisionRow | None, view: RunView) -> dict[str, Any]:
    first = next((row.value for row in decisions if row.candidate == BASELINE and row.kind == "round"), None)
    value, source = first, "round 0"
    if final is not None and final.candidate != BASELINE and final.value is not None and final.ratio:
        # The values beside a ratio are those of its own pairs, so that one is the quotient of the others.
        direction = view.run().request["goal"]["direction"]
        value = final.value / final.ratio if direction == "higher" else final.value * final.ratio
        source = f"geometric mean of the {final.pairs} final pairs"
    entry = {"candidate": BASELINE, "value": value, "source": source, "round_0_value": first}
    return entry if value is not None else entry | {"value_reason": "the reference has not been measured yet"}


def _improvement(final: DecisionRow | None) -> dict[str, Any]:
    if final is None:
        reason = "the final comparison has not run"
        return {"ratio": None, "ratio_reason": reason, "ci95": None, "pairs": 0, "verdict": None, "reason": reason}
    return {
        "ratio": final.ratio,
        "ci95": _interval(final),
        "pairs": final.pairs,
        "verdict": final.verdict,
        "reason": final.reason,
    }


def _limit(view: RunView, best: float | None, direction: str) -> dict[str, Any]:
    limit = _facts(view).get("limit.value")
    if limit is None:
        reason = "no physical limit is known for this metric on this machine"
        return {"value": None, "value_reason": reason, "fraction": None, "argument": reason}
    fraction = None
    if best:
        fraction = best / limit["value"] if direction == "higher" else limit["value"] / best
    entry = {
        "value": limit["value"],
        "fraction": fraction,
        "argument": limit["source"],
        "provenance": limit["provenance"],
    }
    first = _evidence(view, BASELINE).get("limit.value", limit)["value"]
    if first != limit["value"]:
        entry["first_value"] = first
    if fraction is not None and fraction > 1:
        entry["note"] = (
            "the best server is faster than this, so the machine's rates were measured too low; "
            "'vibeserve hardware detect' measures them again"
        )
    elif first != limit["value"]:
        entry["note"] = (
            f"the machine's rates were measured again at the end, since the best server was faster than the {first:.4g} "
            "that those measured first allow"
        )
    return entry


def _stop(view: RunView) -> dict[str, Any] | None:
    for row in reversed(view.steps()):
        if row["key"].endswith("/propose"):
            return view.step(row["key"]).get("stop")
    return None


def _floor(view: RunView) -> list[dict[str, Any]]:
    for row in reversed(view.steps()):
        if row["key"].endswith("/propose"):
            return list(view.step(row["key"])["floor"])
    return []


def _curve(view: RunView) -> list[dict[str, Any]]:
    points = []
    for row in view.measurements():
        if row.kind != "curve":
            continue
        prefix = f"curve.{row.pair}."
        facts = {
            name.removeprefix(prefix): fact
            for name, fact in _evidence(view, row.candidate).items()
            if name.startswith(prefix)
        }
        points.append(_measurement(row) | {"concurrency": row.pair, "facts": facts})
    return points


def summary(whole: dict[str, Any]) -> list[str]:
    """The run in five lines, for people; a sixth for what coding agents used."""
    metric, best, improvement = whole["metric"], whole["best"], whole["improvement"]
    unit = metric["unit"]
    lines = [f"run        {whole['run']} ({whole['bundle']}), {whole['elapsed_s']:.0f} s, {whole['state']}"]
    lines.append(f"reference  {_least(whole['baseline'])} {unit} {metric['name']} ({metric['direction']} is better)")
    lines.append(f"best       {_least(best)} {unit}, candidate {best['candidate']}")
    interval = improvement["ci95"]
    if interval:
        words = f"{improvement['ratio']:.3g}× better, 95 % interval {interval[0]:.3g} to {interval[1]:.3g}, {improvement['pairs']} fresh pairs"
    else:
        words = improvement["reason"]
    lines.append(f"better by  {words}")
    limit = whole["limit"]
    if limit["fraction"] is not None:
        shown = f"best is at {limit['fraction']:.0%} of it"
        if "note" in limit:
            shown += f" ({limit['note']})"
        lines.append(f"limit      {_number(limit['value'])} {unit}; {shown}")
    else:
        lines.append(f"limit      {limit['argument']}")
    if whole["agents"]["calls"]:
        lines.append(f"agents     {account(whole['agents']['total'])}")
    return lines


def _least(entry: dict[str, Any]) -> str:
    """The value, and whether it is a lower bound: windows ended before its slowest requests did."""
    return f"{'at least ' if entry['at_least'] else ''}{_number(entry['value'])}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def as_json(row: Any) -> Any:
    """A row as plain values (for tests and dumps)."""
    return json.loads(json.dumps(dataclasses.asdict(row), default=list))
