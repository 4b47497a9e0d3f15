"""Every page that we make, in a real browser: silent, offline, readable on a phone, and free of serious axe findings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser import DESK, PHONE, Browser, browser
from tests.profiles.made import matmul_profile
from tests.report.sample_run import sample_directory, sample_document
from tests.report.sample_sections import every_block

from vibeserve import profiles
from vibeserve.cli import main
from vibeserve.profiles import pages as profile_pages
from vibeserve.report import page
from vibeserve.search.run_report import write_report

SMALLEST_READABLE_PX = 10.5


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by name: every block of the report room, a finished run, a run that has hardly begun."""
    folder = tmp_path_factory.mktemp("pages")
    made = {"blocks": folder / "blocks.html"}
    made["blocks"].write_text(
        page("Every block", every_block(), subtitle="of every kind", footer="the end"), encoding="utf-8"
    )
    whole = sample_document()
    made["roofline"] = folder / "roofline.html"
    assert main.run(["roofline", "vjepa2-mlp", "--target", "trn2", "--lnc", "2", "--html", str(made["roofline"])]) == 0
    profile = matmul_profile()
    made["profile"] = folder / "profile.html"
    made["profile"].write_text(profile_pages.html(profile, profiles.analyze(profile)), encoding="utf-8")
    made["run"], _ = write_report(whole, sample_directory(folder / "run", whole))
    young = sample_document(0) | {"state": "running", "final_pairs": [], "curve": [], "floor": [], "stopped": None}
    young |= {
        "best": {"candidate": None, "value": None, "commit": None},
        "limit": {"value": None, "value_reason": "not known", "fraction": None, "argument": "not known"},
    }
    young["improvement"] = {"ratio": None, "ratio_reason": "the final comparison has not run", "ci95": None, "pairs": 0}
    made["young run"], _ = write_report(young, folder / "young")
    return made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with browser() as running:
        yield running


NAMES = ["blocks", "run", "young run", "roofline", "profile"]


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("blocks", "light"),
        ("blocks", "dark"),
        ("run", "light"),
        ("young run", "dark"),
        ("roofline", "light"),
        ("profile", "light"),
    ],
)
def test_on_a_desk(pages: dict[str, Path], chromium: Browser, name: str, scheme: str) -> None:
    seen = chromium.look(pages[name].as_uri(), DESK, scheme, axe=True)
    assert seen.axe == []
    assert seen.overflow_px <= 0


@pytest.mark.parametrize("name", NAMES)
def test_on_a_phone(pages: dict[str, Path], chromium: Browser, name: str) -> None:
    seen = chromium.look(pages[name].as_uri(), PHONE)
    assert seen.console == []
    assert seen.requests == [pages[name].as_uri()], "a page asks for nothing but itself"
    assert seen.overflow_px <= 0, seen.too_wide
    assert seen.too_wide == []
    assert seen.smallest_text_px >= SMALLEST_READABLE_PX


def test_axe_on_a_phone(pages: dict[str, Path], chromium: Browser) -> None:
    assert chromium.look(pages["run"].as_uri(), PHONE, axe=True).axe == []


def test_hovering_a_mark_shows_its_values(pages: dict[str, Path], chromium: Browser) -> None:
    with chromium.open(pages["run"].as_uri()) as view:
        mark = view.locator("svg circle[data-tip]:visible").first
        mark.scroll_into_view_if_needed()  # scrolling hides the tip, so it must be over before the pointer comes
        view.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        mark.hover()
        tip = view.locator("#tip")
        tip.wait_for(state="visible", timeout=5000)
        assert "tokens/s" in tip.inner_text()
        view.keyboard.press("Escape")
        assert not tip.is_visible()


def test_a_click_on_a_head_sorts_by_number_and_back(pages: dict[str, Path], chromium: Browser) -> None:
    with chromium.open(pages["blocks"].as_uri()) as view:
        table = view.locator("table.sortable", has=view.locator("caption", has_text="Sorted by a click")).first
        head = table.locator("th button", has_text="value")
        column = table.locator("tbody tr td:nth-child(2)")
        head.click()
        assert column.all_inner_texts() == ["9.5", "80", "700", "–"], "numbers, not letters; what is missing last"
        assert table.locator("th[aria-sort=ascending]").count() == 1
        head.click()
        assert column.all_inner_texts() == ["700", "80", "9.5", "–"]


def test_a_link_to_a_folded_round_opens_it(pages: dict[str, Path], chromium: Browser) -> None:
    with chromium.open(f"{pages['run'].as_uri()}#round-3") as view:
        assert view.locator("#round-3").evaluate("fold => fold.open")
        view.locator("a[href='#round-2']").first.click()
        assert view.locator("#round-2").evaluate("fold => fold.open")


def test_nothing_that_a_candidate_wrote_runs(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(
        page(
            "<script>document.title = 'taken'</script>",
            every_block(
                "<img src=x onerror=\"document.title='taken'\"></script><script>document.title='taken'</script>"
            ),
        ),
        encoding="utf-8",
    )
    with chromium.open(path.as_uri()) as view:
        assert view.title() == "<script>document.title = 'taken'</script>"
        assert view.locator("img").count() == 0
        inside = "() => { const s = document.createElement('script'); s.textContent = 'window.taken = 1'; document.body.append(s); return window.taken === undefined; }"
        assert view.evaluate(inside), "the policy lets no script run but the page's own"
