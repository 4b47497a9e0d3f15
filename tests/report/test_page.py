"""Pages, their Markdown and terminal twins: complete, self-contained, escaped, and each figure with its source."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.report.sample_sections import every_block

from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.report import (
    Card,
    Cards,
    Code,
    Column,
    Details,
    Diff,
    Mono,
    Section,
    Source,
    SourceLine,
    Table,
    Text,
    markdown,
    page,
    terminal_text,
)
from vibeserve.report.cells import align_of, diff_counts, diff_lines
from vibeserve.report.figures import figures_of
from vibeserve.report.inline import pieces, safe
from vibeserve.report.numbers import exact, parts, plain, show
from vibeserve.report.sections import anchor_of
from vibeserve.report.source_view import cost_classes, shown_lines

HOSTILE = "<img src=x onerror=alert(1)>'\"&"
VOID = {"meta", "link", "br", "input", "img", "hr"}


class _Outline(HTMLParser):
    """Tags that do not close, ids, and links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.hrefs: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.hrefs += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def _outline(html: str) -> _Outline:
    outline = _Outline()
    outline.feed(html)
    return outline


def test_a_page_is_well_formed_and_reaches_nothing_outside() -> None:
    outline = _outline(page("Title", every_block()))
    assert (outline.open, outline.wrong) == ([], [])
    assert len(outline.ids) == len(set(outline.ids))
    assert all(href.startswith(("#", "data:")) for href in outline.hrefs)
    anchors = [href[1:] for href in outline.hrefs if href.startswith("#")]
    assert set(anchors) - {"x"} <= set(outline.ids)


def test_everything_given_is_escaped() -> None:
    html = page(HOSTILE, every_block(HOSTILE), subtitle=HOSTILE, eyebrow=HOSTILE, footer=HOSTILE)
    outline = _outline(html)
    assert "img" not in outline.tags
    assert outline.tags.count("script") == 1
    assert not any(href.startswith("javascript") for href in outline.hrefs)


def test_the_policy_names_the_script_by_its_hash_and_forbids_the_rest() -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page("t", []))
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "sha256-" in policy[1]
    assert "unsafe-inline" not in policy[1].split("style-src")[0]
    assert "form-action &#39;none&#39;" in policy[1]
    assert "form-action &#39;self&#39;" in page("t", [], online=True)


def test_each_figure_says_how_it_is_known() -> None:
    sections = [
        Section("One", [Cards([Card("Speed", Quantity(1234.5, "tokens/s", Provenance.MEASURED, "bench, 5 pairs"))])]),
        Section("Two", [Details("in", [Table([Column("n", provenance=Provenance.COUNTED, source="by dims")], [[1]], caption="Counts")])]),
    ]  # fmt: skip
    html = page("t", sections)
    assert html.count("bench, 5 pairs") >= 2, "beside the figure, and in the last section"
    assert "Where the figures come from" in html
    known = figures_of(sections)
    assert [(item.figure, item.provenance) for item in known] == [
        ("Speed", Provenance.MEASURED),
        ("Counts: n", Provenance.COUNTED),
    ]
    assert "Where the figures come from" not in page("t", sections, sources=False)
    assert "measured: bench, 5 pairs" in markdown("t", sections)


def test_markdown_has_all_that_the_page_has() -> None:
    text = markdown("Title", every_block(), subtitle="sub")
    for piece in (
        "# Title",
        "sub",
        "## Blocks",
        "| name | value |",
        "```sh\nvibeserve serve",
        "```diff",
        "> **title** text",
        "**Engines**",
        "- CPU: a CPU",
        "### A part of it",
    ):
        assert piece in text, piece
    assert "| c | 700 | – | ▁█▅ |" in text


def test_markdown_escapes_and_fences_what_it_is_given() -> None:
    text = markdown(
        "t",
        [
            Section(
                "s",
                [
                    Text("a | b <i>*x* a_b _c_"),
                    Text("# no heading"),
                    Code("```\nfence"),
                    Table(["c"], [["x|y"], [Mono("p|q")]]),
                ],
            )
        ],
    )
    assert "a \\| b \\<i>\\*x\\* a_b \\_c\\_" in text
    assert "\n\\# no heading" in text
    assert "````\n```\nfence\n````" in text
    assert "| x\\|y |" in text
    assert "| `p\\|q` |" in text


def test_the_terminal_shows_the_short_form() -> None:
    text = terminal_text(every_block())
    assert "Ratio : 12.43× (95 % interval 11.9× to 12.97×) [measured]" in text
    assert "deeper" not in text
    assert "deeper" in terminal_text(every_block(), details=True)
    assert "\x1b[" not in text, "no colour where the output is no terminal"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (218.5e-6, "s", "218.5 µs"), (41943040, "B", "41.94 MB"), (157.2864e12, "FLOP/s", "157.3 TFLOP/s"), (12.4321, "×", "12.43×"),
        (1234.5, "tokens/s", "1,234 tokens/s"), (302.14, "tokens/s", "302.1 tokens/s"), (35.5, "%", "35.5 %"), (None, "s", "–"), (float("nan"), "", "–"),
        (2048, "", "2,048"), (0.0, "", "0"), (1e-9, "", "1e-09"),
    ],
)  # fmt: skip
def test_show(value: float | None, unit: str, text: str) -> None:
    assert show(value, unit) == text


def test_numbers_in_full_and_in_parts() -> None:
    assert exact(34359738368, "FLOP") == "34,359,738,368 FLOP"
    assert exact(0.1 + 0.2) == "0.30000000000000004"
    assert parts(302.14, "tokens/s") == ("302.1", "tokens/s")
    assert parts(12.4, "×") == ("12.4×", "")
    assert plain(99999.5) in ("99,999", "100,000")


@pytest.mark.parametrize(
    "href", ["#x", "report.md", "../a/b.html", "./x", "/api", "https://example.org/x", "a.html?x=1"]
)
def test_links_that_are_followed(href: str) -> None:
    assert safe(href)


@pytest.mark.parametrize(
    "href",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "data:text/html,x",
        "//evil.example",
        "vbscript:x",
        "file:///etc/passwd",
        " javascript:x",
    ],
)
def test_links_that_are_not(href: str) -> None:
    assert not safe(href)
    assert "<a href" not in page("t", [Section("s", [Text(f"[x]({href})")])], contents=False).split("<main")[1]


def test_inline_marks() -> None:
    kinds = [(piece.kind, piece.text) for piece in pieces("a `b` **c** [d](#e) 2*3*4")]
    assert kinds == [
        ("plain", "a "),
        ("code", "b"),
        ("plain", " "),
        ("strong", "c"),
        ("plain", " "),
        ("link", "d"),
        ("plain", " 2*3*4"),
    ]


def test_diffs_are_coloured_counted_and_cut() -> None:
    diff = Diff("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n+c\n d", max_lines=7)
    assert [kind for kind, _ in diff_lines(diff)] == ["file", "file", "file", "hunk", "del", "add", "add", "hunk"]
    assert list(diff_lines(diff))[-1][1] == "… 1 more lines, not shown"
    assert diff_counts(diff) == (2, 1)


def test_source_shows_costly_lines_with_some_around() -> None:
    lines = [SourceLine(i, str(i), (3.0 if i == 10 else 1.0 if i == 20 else None,)) for i in range(1, 31)]
    source = Source("x.py", lines, [("time", "s")], context=1)
    assert [line.number if line else None for line in shown_lines(source)] == [None, 9, 10, 11, None, 19, 20, 21, None]
    assert cost_classes(source) == {10: "h5", 20: "h2"}
    assert len(shown_lines(Source("x.py", lines, [("time", "s")], context=None))) == 30
    assert cost_classes(Source("x.py", [SourceLine(1, "a", (None,))], [("time", "s")])) == {}


def test_anchors() -> None:
    assert anchor_of(Section("What was found?", [])) == "what-was-found"
    assert anchor_of(Section("…", [])) == "section"


def test_columns_of_figures_stand_on_the_right() -> None:
    rows: list[list[Any]] = [["a", 1, "52.7%", "1.5 µs", "2 of 3", True], ["b", None, "–", "3 GB/s", "4", False]]
    assert [align_of(Column(""), rows, i) for i in range(6)] == ["left", "right", "right", "right", "left", "left"]
    assert align_of(Column("", align="left"), rows, 1) == "left"
