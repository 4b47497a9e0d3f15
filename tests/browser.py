"""Pages in a real browser: what it says, what it asks for, how wide it is, and what axe-core finds.

Needs Debian's chromium and the npm package axe-core (put in the user's cache once); where either cannot be had, the
test that asks for it says "not run".
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

AXE_VERSION = "4.14.1"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-default-apps", "--disable-sync", "--no-first-run"]  # fmt: skip
PHONE = 360
DESK = 1280


@dataclass(frozen=True)
class Seen:
    """What the browser saw on one page at one width."""

    console: list[str]
    requests: list[str]
    overflow_px: float
    too_wide: list[str]
    smallest_text_px: float
    axe: list[str] = field(default_factory=list)


@dataclass
class Browser:
    """A running browser."""

    driver: Any

    @contextlib.contextmanager
    def open(self, url: str, width: int = DESK, scheme: str = "light", *, offline: bool = True) -> Iterator[Any]:
        """A playwright page at `url`; with `offline` it has no network at all."""
        context = self.driver.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=offline
        )
        try:
            page = context.new_page()
            page.set_default_timeout(10_000)
            page.goto(url)
            yield page
        finally:
            context.close()

    def look(
        self, url: str, width: int = DESK, scheme: str = "light", *, axe: bool = False, offline: bool = True
    ) -> Seen:
        """Open the page and report; `axe` adds the serious and critical findings of axe-core, everything unfolded."""
        context = self.driver.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=offline, bypass_csp=axe
        )
        try:
            page = context.new_page()
            console: list[str] = []
            requests: list[str] = []
            page.on("console", lambda message: console.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: console.append(f"error: {error}"))
            page.on("request", lambda request: requests.append(request.url))
            page.goto(url)
            page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
            page.wait_for_timeout(50)
            overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            found = _axe_findings(page) if axe else []
            return Seen(console, requests, overflow, page.evaluate(_TOO_WIDE), page.evaluate(_SMALLEST_TEXT), found)
        finally:
            context.close()


# Elements that reach past the page's edge and are not inside something that scrolls on its own.
_TOO_WIDE = """() => [...document.querySelectorAll('main *')].filter((element) => {
  if (element.closest('svg') && element.tagName !== 'svg') return false;
  const box = element.getBoundingClientRect();
  if (!box.width || box.right <= innerWidth + 1) return false;
  for (let at = element.parentElement; at; at = at.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(at).overflowX)) return false;
  return true;
}).slice(0, 5).map((element) => `${element.tagName}.${element.className} ${element.textContent.slice(0, 60)}`)"""

# The size at which chart text is drawn on the screen, and of all other text.
_SMALLEST_TEXT = """() => Math.min(...[...document.querySelectorAll('main p, main td, main th, main li, svg text')].filter(
  (element) => element.getBoundingClientRect().width > 0 && element.textContent.trim()
).map((element) => {
  const size = parseFloat(getComputedStyle(element).fontSize);
  const drawing = element.closest('svg');
  return drawing ? size * drawing.getBoundingClientRect().width / drawing.viewBox.baseVal.width : size;
}))"""


def _axe_findings(page: Any) -> list[str]:
    page.add_script_tag(content=_axe_source())
    result = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{item['id']} ({item['impact']}): {item['help']}: {node['target']} {node['html'][:120]}"
        for item in result["violations"]
        if item["impact"] in ("serious", "critical")
        for node in item["nodes"][:3]
    ]


@cache
def _axe_source() -> str:
    root = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vibeserve-tests" / f"axe-core-{AXE_VERSION}"
    )
    script = root / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("not run: axe-core needs npm")
        root.mkdir(parents=True, exist_ok=True)
        command = [
            npm,
            "install",
            "--prefix",
            str(root),
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            f"axe-core@{AXE_VERSION}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode or not script.is_file():
            pytest.skip(f"not run: axe-core could not be installed: {done.stderr.strip()[-200:]}")
    return script.read_text(encoding="utf-8")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Debian's chromium through playwright; the test is not run where there is none."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("not run: chromium is not installed (Debian package chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        driver = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        try:
            yield Browser(driver)
        finally:
            driver.close()
