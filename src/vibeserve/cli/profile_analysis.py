"""`vibeserve profile bounds|investigate|analyze|compare|timeline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vibeserve import profiles
from vibeserve.base.errors import InputError
from vibeserve.base.files import DiskFiles, write_text
from vibeserve.cli.output import JsonFlag, note, print_json, print_table
from vibeserve.cli.profile_store import DataPath, Name

Window = Annotated[str | None, typer.Option("--window", metavar="START:END", help="Look at a part of the run, in ns.")]
Core = Annotated[int | None, typer.Option("--pcore", help="The physical core (default: the busiest).")]


def parse_window(text: str | None) -> tuple[int, int] | None:
    """(start, end) in ns from 'START:END'."""
    if text is None:
        return None
    start, colon, end = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return int(start), int(end)
    except ValueError:
        raise InputError(f"not a window: {text!r}", hint="--window START:END, two whole numbers of ns") from None


def bounds(
    name: Name, window: Window = None, pcore: Core = None, data_path: DataPath = None, as_json: JsonFlag = False
) -> None:
    """How fast the kernel could have been: memory, compute and pipeline bounds, and the gaps between them."""
    held = profiles.bounds(profiles.open(name, data_path), parse_window(window), pcore)
    if as_json:
        print_json(held.document())
        return
    for text in held.reading():
        print(text)
    gaps = {gap.lower: gap for gap in held.gaps}
    rows = [
        [
            bound.family,
            bound.name,
            "—" if bound.value_s is None else f"{bound.value_s * 1e6:.2f} µs",
            "—" if (gap := gaps[bound.name]).gap_s is None else f"{gap.gap_s * 1e6:.2f} µs ({gap.share or 0:.1%})",
            gap.meaning,
            bound.reason or bound.formula,
        ]
        for bound in held.bounds
    ]
    print_table(["family", "bound", "value", "gap before it", "the gap is", "formula"], rows)
    print_table(["engine", "active"], [[engine, f"{active * 1e6:.2f} µs"] for engine, active in held.engines.items()])
    for text in held.notes:
        print(f"mind: {text}")


def investigate(
    name: Name,
    names: Annotated[list[str] | None, typer.Argument(help="Which investigations; all where left out.")] = None,
    window: Window = None,
    pcore: Core = None,
    data_path: DataPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Find what costs time, down to the source line. What finds nothing, or cannot run, says so."""
    from vibeserve.profiles import pages

    found = profiles.investigate(profiles.open(name, data_path), names or (), parse_window(window), pcore)
    if as_json:
        print_json({"profile": name, "investigations": [item.document() for item in found]})
        return
    for item in found:
        state = "could not run" if not item.ran else "found" if item.found else "nothing found"
        print(f"{item.name}: {state}: {item.reason}")
        extra = pages.shown_details(item.lines)
        rows = [
            [
                f"  {line.file}:{line.line}" if line.file else "  no source line",
                line.count,
                "" if line.cost_s is None else f"{line.cost_s * 1e6:.2f} µs",
                *(pages.shown_detail(line.details.get(key)) for key in extra),
            ]
            for line in item.lines[:15]
        ]
        if rows:
            print_table(["  source line", "rows", "cost", *extra], rows)
        for text in item.notes:
            print(f"  note: {text}")


def analyze(
    name: Name,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a self-contained page.")] = None,
    window: Window = None,
    pcore: Core = None,
    data_path: DataPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Bounds, gaps, engines and findings in one report."""
    from vibeserve.profiles import pages
    from vibeserve.report import markdown as as_markdown
    from vibeserve.report import print_sections

    profile = profiles.open(name, data_path)
    analysis = profiles.analyze(profile, parse_window(window), pcore)
    if html is not None:
        write_text(DiskFiles(), html, pages.html(profile, analysis))
        note(f"wrote {html}")
    if as_json:
        print_json(analysis.document())
    elif markdown:
        print(as_markdown(f"Profile {name}", pages.sections(profile, analysis)))
    elif html is None:
        print_sections(pages.sections(profile, analysis))


def compare(
    a: Annotated[str, typer.Argument(help="The profile before.")],
    b: Annotated[str, typer.Argument(help="The profile after.")],
    data_path: DataPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Two profiles side by side: bounds, engines, findings, source lines."""
    document = profiles.compare(profiles.open(a, data_path), profiles.open(b, data_path))
    if as_json:
        print_json(document)
        return
    rows = [["total time", document["total_time_s"]]]
    rows += [[item["name"], item] for item in document["bounds"]]
    rows += [[f"{item['name']} active", item] for item in document["engines"]]
    print_table(
        ["", a, b, "ratio b/a"],
        [[label, _us(held["a"]), _us(held["b"]), _ratio(held["ratio"])] for label, held in rows],
    )
    print_table(
        ["investigation", "change", a, b],
        [
            [item["name"], item["change"], item["a"]["reason"], item["b"]["reason"]]
            for item in document["investigations"]
        ],
    )
    lines = document["lines"][:20]
    if lines:
        shown = [
            [
                f"{item['file']}:{item['line_a'] or '—'} → {item['line_b'] or '—'}",
                item["engine"],
                item["state"],
                _us((item["duration_s"]["b"] or 0.0) - (item["duration_s"]["a"] or 0.0)),
            ]
            for item in lines
        ]
        print_table(["source line", "engine", "", "change of summed durations"], shown)
        if document["lines_matched"] == "by number":
            note(
                "mind: lines are matched by their numbers: a profile holds no source text (its files could not be read)"
            )


def timeline(
    name: Name,
    output: Annotated[Path, typer.Option("-o", "--output", help="The Perfetto trace file to write.")],
    data_path: DataPath = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a Perfetto trace: engines, queues, semaphores, counters, source lines."""
    events = profiles.write_trace(profiles.open(name, data_path), output)
    if as_json:
        print_json({"profile": name, "file": str(output), "events": events})
    else:
        note(f"wrote {events} events to {output}: open it at ui.perfetto.dev")


def _us(seconds: float | None) -> str:
    return "—" if seconds is None else f"{seconds * 1e6:.2f} µs"


def _ratio(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"
