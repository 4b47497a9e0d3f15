"""The top of the report: what was found, how to run it, what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.base.units import duration
from vibeserve.report import (
    Block,
    Bullets,
    Callout,
    Card,
    Cards,
    Code,
    Column,
    Columns,
    Definitions,
    Details,
    Mono,
    Plot,
    Section,
    Table,
    Text,
    svg,
)
from vibeserve.report.numbers import show
from vibeserve.search.run_report.words import (
    as_text,
    entry_of,
    improved,
    measured,
    metric_words,
    moment,
    noise_pill,
    provenance,
    title_of,
)

_LIMIT = "FLOPs and bytes of the workload over this machine's measured peak and bandwidth"
#: A share of the limit above this says that the limit is wrong, not that the server is a wonder.
_IMPOSSIBLE = 1.05
_DEVICE = {
    "cpu_model": "Processor",
    "cpu_features": "Vector instructions",
    "cores_physical": "Physical cores",
    "cores_logical": "Logical cores",
    "cores_usable": "Cores that may be used",
    "memory_gib": "Memory in GiB",
    "hypervisor": "Virtual machine",
    "governor": "Frequency governor",
    "python": "Python",
    "threads": "Thread settings",
}
_CUT = "at least: windows ended before its slowest requests did"
_SHARE = {"higher": "best ÷ limit", "lower": "limit ÷ best"}
_BETTER = {"higher": "higher is better", "lower": "lower is better"}


def headline(document: dict[str, Any]) -> str:
    """The report's title: the answer in one line."""
    ratio = document["improvement"].get("ratio")
    if ratio and improved(document):
        return f"{document['bundle']}: {show(ratio, '×', 3)} the reference server"
    if document.get("state") == "running":
        return f"{document['bundle']}: a run in progress"
    if document.get("state") == "interrupted":
        return f"{document['bundle']}: an interrupted run"
    if document.get("state") == "failed":
        return f"{document['bundle']}: the run failed"
    return f"{document['bundle']}: no better server than the reference was found"


def found(document: dict[str, Any], plots: Sequence[Block] = ()) -> Section:
    """The headline figures, `plots` beside each other, and what to know."""
    metric, improvement = document["metric"], document["improvement"]
    unit = metric["unit"]
    ratio = improvement.get("ratio")
    source = (
        f"{improvement.get('pairs') or 0} fresh pairs of the bundle's benchmark, Student's t on the paired log ratios"
    )
    interval = improvement.get("ci95")
    best, base = (_CUT if document[side].get("at_least") else "" for side in ("best", "baseline"))
    cards = [
        Card(
            f"{metric_words(metric)}, best server against the reference".capitalize(),
            measured(ratio, "×", source) if improvement.get("pairs") else ("1×" if ratio else None),
            note=_bounded(metric, bool(best), bool(base))
            if interval
            else improvement.get("reason") or improvement.get("ratio_reason") or "",
            interval=(interval[0], interval[1]) if interval else None,
            tone="good" if improved(document) else "plain",
        ),
        Card(
            f"Best: {document['best'].get('candidate') or 'none yet'}",
            measured(document["best"].get("value"), unit, f"the bundle's benchmark; {_BETTER[metric['direction']]}"),
            note=best,
        ),
        Card(
            "Reference server",
            measured(document["baseline"].get("value"), unit, document["baseline"].get("source") or "round 0"),
            note=base,
        ),
        *_limit_cards(document),
    ]
    blocks: list[Block] = [Cards(cards, headline=True), *_notices(document), Text(_summary(document))]
    if plots:
        blocks.append(Columns(plots) if len(plots) > 1 else plots[0])
    if rows := _chain(document):
        columns: list[Column | str] = [
            "Round",
            Column("What is in place", wrap=True),
            Column("Against the one before", unit="×", align="right"),
            Column("Interval", align="right"),
        ]
        blocks.append(Table(columns, rows, caption="What the best server is made of", sortable=False))
    return Section("What was found", blocks, anchor="found")


def _bounded(metric: dict[str, Any], best: bool, base: bool) -> str:
    """What lower bounds of the two values say about their ratio."""
    if metric["direction"] == "lower" and base and not best:
        return "or more: the reference's value is a lower bound"
    return "values are lower bounds: longer windows (--budget) say more" if best or base else ""


def _limit_cards(document: dict[str, Any]) -> list[Card]:
    limit = document["limit"]
    unit = document["metric"]["unit"]
    value, fraction = limit.get("value"), limit.get("fraction")
    known = provenance(limit.get("provenance") or Provenance.COUNTED)
    if value is None:
        return [Card("Physical limit", None, note=limit.get("value_reason") or limit.get("argument") or "not known")]
    return [
        Card("Physical limit of this machine", Quantity(float(value), unit, known, _LIMIT)),
        Card(
            "Share of the limit that is reached",
            None
            if fraction is None
            else Quantity(fraction * 100, "%", Provenance.COUNTED, _SHARE[document["metric"]["direction"]]),
            note="" if fraction is not None else "no best value yet",
        ),
    ]


def _notices(document: dict[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    if document.get("state") in ("running", "interrupted"):
        text = f"This run is {document['state']}; the figures are those that stand so far. `vibeserve resume {document['run']}` goes on with it."
        blocks.append(Callout(text, title="Not finished", tone="warn"))
    if document.get("state") == "failed":
        blocks.append(
            Callout(document.get("state_reason") or "no reason was recorded", title="The run failed", tone="bad")
        )
    if (document.get("request") or {}).get("here"):
        text = "The bundle names another machine as its target; this run measured here all the same (`--here`)."
        blocks.append(Callout(text, title="Not the target machine", tone="warn"))
    sandbox = str((document.get("environment") or {}).get("sandbox") or "")
    if sandbox.startswith("none"):
        text = f"Sandbox: {sandbox}. `--require-sandbox` refuses such a run."
        blocks.append(Callout(text, title="Candidates were not isolated", tone="warn"))
    if (document["limit"].get("fraction") or 0.0) > _IMPOSSIBLE:
        text = (
            "More than the limit was measured, which cannot be: the machine's peak or bandwidth was measured too low, as "
            "happens while other programs run. `vibeserve hardware detect --refresh` on a quiet machine measures them again."
        )
        blocks.append(Callout(text, title="The limit is too low", tone="warn"))
    noisy = [row for row in windows(document) if row.get("noisy")]
    if noisy:
        text = f"{len(noisy)} of {len(windows(document))} windows were measured on a noisy machine (the first: {noisy[0]['noisy']}). Noise widens the interval; a verdict already counts it."
        blocks.append(Callout(text, title="Noise", tone="warn"))
    return blocks


def windows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every window of load of the run."""
    rows = [row for entry in document["rounds"] for row in entry.get("measurements", [])]
    return rows + list(document.get("final_pairs") or []) + list(document.get("curve") or [])


def _summary(document: dict[str, Any]) -> str:
    rounds = [entry for entry in document["rounds"] if entry["round"] > 0]
    kept = sum(entry.get("verdict") == "kept" for entry in rounds)
    words = f"{len(rounds)} round{'s' if len(rounds) != 1 else ''} after the reference, {kept} kept"
    if document.get("elapsed_s"):
        words += f", {minutes(document['elapsed_s'])} of work"
    stopped = document.get("stopped")
    if stopped:
        words += f". The search ended because {stopped.get('reason', '')}"
    return f"{words}."


def minutes(seconds: float) -> str:
    """A span in minutes and seconds, as people say it."""
    if seconds < 60:
        return duration(seconds, 3)
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def _chain(document: dict[str, Any]) -> list[list[Any]]:
    """The kept rounds that lead to the best candidate, from the reference on."""
    chain: list[dict[str, Any]] = []
    entry = entry_of(document, document["best"].get("candidate"))
    while entry is not None and entry["round"] > 0 and entry not in chain:
        chain.append(entry)
        entry = entry_of(document, entry.get("parent"))
    rows = []
    for entry in reversed(chain):
        interval = entry.get("ci95")
        shown = f"{show(interval[0], '×', 3)} to {show(interval[1], '×', 3)}" if interval else "–"
        rows.append([f"[{entry['round']}](#round-{entry['round']})", title_of(entry), entry.get("ratio"), shown])
    return rows


def how_to_run(document: dict[str, Any]) -> Section:
    """Commands for the result."""
    run, best = document["run"], document["best"].get("candidate")
    if best is None:
        return Section("How to run it", [Text("There is no result yet.", muted=True)], anchor="run-it")
    commands = (
        f"# the best server, on http://127.0.0.1:8000\nvibeserve serve {run}\n"
        f"# measure it yourself\nvibeserve bench {document['bundle']} --url http://127.0.0.1:8000\n"
        f"# a directory that runs without vibeserve\nvibeserve export {run} my-server\n"
        f"# every figure of this page, for programs\nvibeserve show {run} --json"
    )
    start = (
        f"vibeserve materialize {document['bundle']}   # prints MODEL, the directory of the weights\n"
        "cd my-server && pip install -r requirements.txt\npython server.py --model-dir MODEL --host 127.0.0.1 --port 8000"
    )
    blocks: list[Block] = [
        Code(commands, "sh", title="With vibeserve"),
        Code(start, "sh", title="On its own, from the exported directory"),
    ]
    return Section("How to run it", blocks, anchor="run-it")


def asked(document: dict[str, Any]) -> Section:
    """What was asked: bundle, goal, workload, accuracy, budget."""
    request = document.get("request") or {}
    goal, metric = request.get("goal") or {}, document["metric"]
    plan = request.get("plan") or {}
    items: list[tuple[str, Any]] = [
        ("Bundle", Mono(document["bundle"])),
        ("Metric", f"`{metric['name']}` in {metric['unit']}, {_BETTER[metric['direction']]}"),
        ("API", as_text(goal.get("api") or request.get("api"))),
        ("Modality", as_text(goal.get("modality"))),
        ("Architecture", as_text(goal.get("architecture"))),
        ("Target hardware", as_text(goal.get("hardware") or "this machine")),
        ("Candidates may compute in", as_text(goal.get("dtypes"))),
        ("Workload", _workload(document, goal)),
        ("Agent", as_text(request.get("agent"))),
        ("Budget", minutes(request["budget_s"]) if request.get("budget_s") else "no limit of time"),
        ("Rounds at most", as_text(request.get("rounds") or "as many as pay")),
        ("Seed", as_text(request.get("seed"))),
        ("Started", moment(document.get("started"))),
    ]
    blocks: list[Block] = [Definitions([(name, value) for name, value in items if value != "–"])]
    if plan.get("pairs"):
        text = (
            f"A round compares its candidate with the best so far in {plan['pairs']} pairs of {show(plan.get('window_s'), 's')} windows; "
            f"the result is measured again on {plan.get('final_pairs')} fresh pairs of {show(plan.get('final_window_s'), 's')}. "
            "A pair runs both servers on the same prompts, in balanced order. Kept means that the whole 95 % interval of the ratio is above 1."
        )
        blocks.append(Text(text))
    if goal.get("objective"):
        blocks.append(Details("The objective as it was written", [Code(str(goal["objective"]), "markdown")]))
    return Section("What was asked", blocks, anchor="asked")


def _workload(document: dict[str, Any], goal: dict[str, Any]) -> str:
    """Tokens of a request and requests at once, as the benchmark's first window told them."""
    facts = document.get("facts") or {}
    words = [
        f"{facts[f'workload.{name}']['value']:g} {label}"
        for name, label in (
            ("prompt_tokens", "prompt tokens"),
            ("output_tokens", "output tokens"),
            ("shared_prefix_tokens", "shared tokens before the prompt"),
            ("concurrency", "requests at once"),
            ("rate", "requests/s"),
        )
        if facts.get(f"workload.{name}", {}).get("value")
    ]
    return ", ".join([*words, *(goal.get("workload_features") or [])]) or "–"


def confirmed(document: dict[str, Any]) -> Section | None:
    """The final pairs, each with both values, and their ratios."""
    pairs: dict[int, dict[str, dict[str, Any]]] = {}
    for row in document.get("final_pairs") or []:
        pairs.setdefault(row["pair"], {})[row["candidate"]] = row
    best, base = document["best"].get("candidate"), document["baseline"]["candidate"]
    rows, points = [], []
    for number, sides in sorted(pairs.items()):
        one, other = sides.get(best, {}), sides.get(base, {})
        value, against = one.get("value"), other.get("value")
        ratio = None
        if value and against:
            ratio = value / against if document["metric"]["direction"] == "higher" else against / value
            points.append(svg.Interval(f"pair {number + 1}", ratio))
        first = "best" if one.get("place") == 0 else "reference"
        noise = noise_pill(one.get("noisy"), other.get("noisy"))
        rows.append([number + 1, first, value, against, ratio, noise])
    if not rows:
        return None
    unit = document["metric"]["unit"]
    source = "the bundle's benchmark, one window a side"
    columns = [
        Column("Pair"),
        Column("Ran first"),
        Column("Best", unit, provenance=Provenance.MEASURED, source=source),
        Column("Reference", unit, provenance=Provenance.MEASURED, source=source),
        Column("Ratio", "×"),
        Column("Machine"),
    ]
    blocks: list[Block] = [Table(columns, rows, caption="Fresh pairs of the best server and the reference")]
    interval = document["improvement"].get("ci95")
    if points and interval:
        together = svg.Interval(
            "all pairs",
            document["improvement"]["ratio"],
            interval[0],
            interval[1],
            tone="good" if interval[0] > 1 else "plain",
        )
        axis = svg.Axis("times better than the reference", "×", zero=False)
        chart = svg.intervals("Each pair's ratio, and all of them with the interval", [*points, together], axis=axis)
        blocks.insert(0, Plot(chart, provenance=Provenance.MEASURED, source=source, data=False))
    return Section(
        "The final comparison",
        blocks,
        anchor="confirmed",
        lead="A search that tried many candidates favours lucky ones, so the best is measured again against the reference, on prompts that no round has used.",
    )


def _device_word(name: str) -> str:
    return _DEVICE.get(name) or name.replace("_", " ").capitalize()


def notes(document: dict[str, Any]) -> Section:
    """The machine, the environment, noise and isolation."""
    device = document.get("device") or {}
    items: list[tuple[str, Any]] = []
    for name, value in device.items():
        if isinstance(value, dict):
            shown = {key: inner for key, inner in value.items() if inner is not None}
            items.append((_device_word(name), as_text(shown)))
        else:
            items.append((_device_word(name), as_text(value)))
    blocks: list[Block] = [Definitions(items)]
    all_windows = windows(document)
    noisy = [row for row in all_windows if row.get("noisy")]
    failed = sum(int(row.get("failed") or 0) for row in all_windows)
    said = [
        f"{len(all_windows)} windows of load were measured; {len(noisy)} of them on a machine that was seen to be noisy; {failed} requests failed.",
        *(f"{row['candidate']}, {row['kind']}: {row['noisy']}" for row in noisy[:12]),
    ]
    sandbox = (document.get("environment") or {}).get("sandbox") or (document.get("request") or {}).get("sandbox")
    said.append(
        f"Isolation of candidates: {as_text(sandbox)}"
        if sandbox
        else "Candidates ran as processes in a group of their own with a clean environment; no further isolation was recorded for this run."
    )
    calibration = (document.get("facts") or {}).get("client.overhead_p99_s") or (document.get("facts") or {}).get(
        "client.overhead_s"
    )
    if calibration:
        said.append(
            f"The load client's own overhead, measured against a fake server: {show(calibration['value'], 's')}."
        )
    said.extend(_broken_off(document))
    blocks.append(Bullets(said))
    facts = document.get("facts") or {}
    if facts:
        rows = [[Mono(name), _fact(fact)] for name, fact in sorted(facts.items())]
        blocks.append(Details(f"{len(rows)} facts of machine, model and workload", [Table(["Fact", "Value"], rows)]))
    environment = {k: v for k, v in (document.get("environment") or {}).items() if k != "sandbox"}
    if environment:
        rows = [[Mono(str(key)), as_text(value)] for key, value in environment.items()]
        blocks.append(
            Details("The environment, as resume compares it", [Table(["Part", Column("Value", wrap=True)], rows)])
        )
    return Section("Machine, noise and isolation", blocks, anchor="machine")


def _broken_off(document: dict[str, Any]) -> list[str]:
    """Kills on the way: of the run's own process, and of what it measures."""
    said = []
    sessions = [row.get("how") for row in document.get("sessions") or []]
    if len(sessions) > 1:
        ended = ", ".join(str(how) for how in sessions[:-1])
        said.append(
            f"{len(sessions)} processes worked on this run, one after the other; the earlier ones ended so: {ended}."
        )
    again = [row["text"] for row in document.get("events") or [] if row.get("kind") == "again"]
    if again:
        said.append(f"Broken off by a kill from outside, and done once more: {len(again)}; the first: {again[0]}.")
    return said


def _fact(fact: dict[str, Any]) -> Quantity | str:
    return Quantity(
        float(fact["value"]), fact.get("unit") or "", provenance(fact.get("provenance")), fact.get("source") or ""
    )
