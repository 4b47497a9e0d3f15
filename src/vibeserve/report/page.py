"""One HTML file from a report's sections: nothing is loaded from anywhere, so it opens from a disk with no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from vibeserve.report import cells
from vibeserve.report.chart import Chart, chart_css, palette_css
from vibeserve.report.figures import figures_of, figures_section
from vibeserve.report.sections import Block, Link, Pill, Section, anchor_of
from vibeserve.report.source_view import cost_classes, shown_lines


def page(
    title: str,
    sections: Sequence[Section],
    *,
    subtitle: str = "",
    eyebrow: str = "",
    pill: Pill | None = None,
    links: Sequence[Link] = (),
    contents: bool = True,
    sources: bool = True,
    footer: str = "",
    online: bool = False,
    language: str = "en",
) -> str:
    """The page as one self-contained HTML document.

    `eyebrow` is the small line over the title, `subtitle` the sentence under it, `links` lead to other pages.
    `contents` adds the list of sections, `sources` a last section that says where each figure comes from. A page that
    a server shows (`online`) may send its forms to that server; one in a file may reach nothing at all.
    """
    shown = list(sections)
    if sources and (known := figures_of(sections)):
        shown.append(figures_section(known))
    script = _asset("script.js")
    style = "\n".join((palette_css(), _asset("style.css"), chart_css()))
    template = _environment().get_template("page.html")
    return template.render(
        title=title,
        subtitle=subtitle,
        eyebrow=eyebrow,
        state=pill,
        links=links,
        sections=shown,
        contents=contents and len([s for s in shown if s.level == 2 and s.contents]) > 2,
        footer=footer,
        language=language,
        style=Markup(style),
        script=Markup(script),
        policy=_policy(script, style, online),
    )


def fragment(blocks: Sequence[Block]) -> str:
    """The HTML of `blocks` alone, to be put into a page that has the style."""
    return "".join(_render(block) for block in blocks)


def _policy(script: str, style: str, online: bool) -> str:
    """The content security policy: this script by its hash, this page's styles, and nothing from outside."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    own, none = (" 'self'" if online else ""), " 'none'"
    return (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; style-src 'unsafe-inline'; img-src data:{own}; "
        f"form-action{own or none}; base-uri 'none'"
    )


def _render(block: Block) -> Markup:
    template = _environment().get_template(f"blocks/{type(block).__name__.lower()}.html")
    return Markup(template.render(block=block))


def _chart(chart: Chart) -> Markup:
    return Markup(chart.wide)


def _chart_narrow(chart: Chart) -> Markup:
    return Markup(chart.narrow)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("vibeserve.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    helpers: dict[str, Any] = {
        "render": _render,
        "wide": _chart,
        "narrow": _chart_narrow,
        "anchor_of": anchor_of,
        "shown_lines": shown_lines,
        "cost_classes": cost_classes,
        **cells.HELPERS,
    }
    environment.globals.update(helpers)
    return environment


@cache
def _asset(name: str) -> str:
    return resources.files("vibeserve.report").joinpath("templates", name).read_text(encoding="utf-8")
