"""Every claim with a number, in every skill and reference of ours, says where it comes from: in its paragraph, or for a whole section
or page in the section's or the page's own first lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "skills").rglob("*.md"))
UNITS = (
    "µs|ms|ns|%|KiB|MiB|GiB|GB|MB|KB|B/ns|GB/s|GFLOP|GFLOPS|TFLOPS|FLOPs a byte|cycles|banks|partitions|columns|elements|bytes|B|rows|"
    "queues|engines|times as|times faster"
)
NUMBER = r"(?<![\w.-])(?:\d[\d.,]*(?:e[+-]?\d+)?|two|three|four|eight|sixteen)"
CLAIM = re.compile(rf"{NUMBER}\s?(?:{UNITS})(?![\w])|{NUMBER} × {NUMBER}")
# What counts as naming a source: how the figure was had, a page, a file of ours, or the command that prints it.
SOURCE = re.compile(
    r"\b(?:measured|simulated|simulator|documented|counted|specification)\b|(?:docs|examples|skills|references|scripts)/[\w./-]+|"
    r"`vibeserve (?:docs|nki|profile|roofline|hardware|optimize|show|init)\b|\btable `[\w-]+`"
)
FENCE = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", re.M | re.S)


def sections(text: str) -> list[tuple[str, list[str]]]:
    """(heading, paragraphs) of a page without front matter and code; the first heading holds what precedes any."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
    text = FENCE.sub("", text)
    parts = re.split(r"^(#+ .*)$", text, flags=re.M)
    pairs = [("", parts[0]), *zip(parts[1::2], parts[2::2], strict=True)]
    return [(heading, [item for item in re.split(r"\n\s*\n", body) if item.strip()]) for heading, body in pairs]


def unfounded(text: str) -> list[str]:
    """Claims whose paragraph, section and page name no source."""
    found = sections(text)
    first = " ".join(paragraph for heading, body in found[:2] for paragraph in body)
    whole_page = bool(re.search(r"[Ff]igures (?:are|come)\b", first) and SOURCE.search(first))
    missing = []
    for heading, paragraphs in found:
        whole_section = any(re.search(r"[Ff]igures\b", item) and SOURCE.search(item) for item in paragraphs)
        for paragraph in paragraphs:
            items = (
                [paragraph]
                if paragraph.lstrip().startswith("|")
                else re.split(r"\n(?=[ \t]*(?:[-*]|\d+\.) )", paragraph)
            )
            for item in items:
                claim = CLAIM.search(item)
                if claim and not (whole_page or whole_section or SOURCE.search(item) or SOURCE.search(heading)):
                    missing.append(f"{claim.group(0)}: {' '.join(item.split())[:160]}")
    return missing


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT / "skills")) for path in PAGES])
def test_every_claim_with_a_number_names_its_source(page: Path) -> None:
    assert unfounded(page.read_text(encoding="utf-8")) == []


def test_the_check_sees_a_claim_without_a_source() -> None:
    assert unfounded("# X\n\nA load takes 2 µs.\n") == ["2 µs: A load takes 2 µs."]
    assert unfounded("# X\n\n- wide: 512 columns (measured)\n- narrow: 64 columns\n") == [
        "64 columns: - narrow: 64 columns"
    ]
    assert unfounded("# X\n\nA load takes 2 µs (docs/timing.md).\n") == []
    assert unfounded("# X\n\nFigures are simulated.\n\n## Y\n\nIt takes 2 µs.\n") == []
    assert unfounded("# X\n\n```\n2 µs\n```\n\nStep 3 of 5.\n") == []


def test_files_that_are_named_exist() -> None:
    for page in PAGES:
        for name in re.findall(
            r"(?<![\w/])((?:docs|examples|skills)/[\w./-]+\.(?:md|py|toml))", page.read_text(encoding="utf-8")
        ):
            assert (ROOT / name).exists() or (page.parent / name).exists() or (page.parent.parent / name).exists(), (
                f"{page}: {name}"
            )
