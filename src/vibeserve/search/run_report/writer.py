"""The whole report: its sections in reading order, as HTML and as Markdown, written beside the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vibeserve.base.files import DiskFiles, Files, write_text
from vibeserve.report import Pill, Section, markdown, page
from vibeserve.search.run_report import ablations, agents, explained, found, limit, load, rounds
from vibeserve.search.run_report.materials import Materials, gather
from vibeserve.search.run_report.words import improved, moment

HTML = "report.html"
MARKDOWN = "report.md"


def run_sections(document: dict[str, Any], materials: Materials | None = None) -> list[Section]:
    """The report's sections, from the answer down to the evidence."""
    materials = materials or Materials()
    plots = [plot for plot in (rounds.values(document), load.curve(document, materials)) if plot is not None]
    parts = [
        found.found(document, plots),
        found.how_to_run(document),
        found.asked(document),
        rounds.floor(document),
        rounds.history(document),
        agents.agents(document),
        found.confirmed(document),
        load.under_load(document, materials),
        ablations.ablations(materials.ablations),
        limit.limit(document),
        explained.explained(document, materials),
        found.notes(document),
    ]
    return [part for part in parts if part is not None]


def report_html(document: dict[str, Any], materials: Materials | None = None) -> str:
    """The report as one self-contained HTML page."""
    pill = Pill("improved", "good") if improved(document) else Pill(str(document.get("state") or "unfinished"), "plain")
    return page(
        found.headline(document),
        run_sections(document, materials),
        eyebrow=_eyebrow(document),
        subtitle=_subtitle(document),
        pill=pill,
        footer=f"Report of run `{document['run']}`, written by vibeserve from its run store. Every figure says where it comes from.",
    )


def report_markdown(document: dict[str, Any], materials: Materials | None = None) -> str:
    """The same report as Markdown."""
    return markdown(found.headline(document), run_sections(document, materials), subtitle=_subtitle(document))


def write_report(
    document: dict[str, Any], directory: Path, *, html: Path | None = None, files: Files | None = None
) -> tuple[Path, Path]:
    """Write report.html (or `html`) and report.md for the run in `directory`; returns both paths."""
    files = files or DiskFiles()
    materials = gather(document, directory)
    page_path = html or directory / HTML
    text_path = page_path.with_suffix(".md") if html else directory / MARKDOWN
    write_text(files, page_path, report_html(document, materials))
    write_text(files, text_path, report_markdown(document, materials))
    return page_path, text_path


def _eyebrow(document: dict[str, Any]) -> str:
    words = [f"Run `{document['run']}`"]
    if document.get("started"):
        words.append(moment(document["started"]))
    return " · ".join(words)


def _subtitle(document: dict[str, Any]) -> str:
    device = (document.get("device") or {}).get("device") or ""
    metric = document["metric"]
    asked = f"The goal: {'more' if metric['direction'] == 'higher' else 'less'} `{metric['name']}`"
    return f"{asked}, on {device}." if device else f"{asked}."
