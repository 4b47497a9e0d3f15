"""What the server has is documented: routes, fields, settings, metrics."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from vibeserve.engine.http.app import App
from vibeserve.engine.http.metrics import GAUGES, TOTALS, HttpCounters, render
from vibeserve.engine.http.schema import HARMLESS, ChatRequest, CompletionRequest
from vibeserve.engine.http.settings import HttpSettings

PAGE = Path(__file__).parents[2] / "docs" / "engine.md"
NEEDLESS = {
    "model",
    "prompt",
    "messages",
    "functions",
    "function_call",
    "tool_choice",
    "modalities",
    "audio",
    "web_search_options",
}


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_setting_with_its_default(page):
    for entry in fields(HttpSettings):
        shown = "the directory's name" if entry.name == "model_name" else entry.default
        assert f"| `{entry.name}` | {shown} |" in page


def test_every_field_of_a_request(page):
    for name in {*CompletionRequest.__struct_fields__, *ChatRequest.__struct_fields__, *HARMLESS} - NEEDLESS:
        assert f"`{name}`" in page, name


def test_every_metric(page):
    names = {name for name, _ in (*TOTALS.values(), *GAUGES.values())}
    text = render(None, HttpCounters(), ready=False).decode()
    names |= {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    for name in names:
        assert name in page, name


def test_every_route(page):
    app = App(lambda on_step: (_ for _ in ()).throw(AssertionError), HttpSettings())  # type: ignore[arg-type]
    for path in app._routes:
        assert path in page
