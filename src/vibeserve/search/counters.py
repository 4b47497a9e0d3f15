"""A server's own counters (`/metrics`, Prometheus text) as facts: what they gained over a window of load."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping

from vibeserve.agents.agent import Fact
from vibeserve.base.provenance import Provenance

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SOURCE = "the server's /metrics, gained over a window that is not scored"
Counters = Mapping[str, float]


def scrape(url: str, timeout_s: float = 10.0) -> dict[str, float]:
    """The samples of `url`/metrics by name and labels (`engine_seconds_total{phase=linear}`); {} where it has none."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=timeout_s) as answer:
            text = answer.read(4_000_000).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return {}
    return parse(text)


def parse(text: str) -> dict[str, float]:
    """Samples of the exposition format; a line that is none is passed over."""
    samples = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line.strip())
        if match is None:
            continue
        labels = ",".join(f"{name}={value}" for name, value in sorted(_LABEL.findall(match[2] or "")))
        try:
            samples[f"{match[1]}{{{labels}}}" if labels else match[1]] = float(match[3])
        except ValueError:
            continue
    return samples


def facts_between(before: Counters, after: Counters) -> dict[str, Fact]:
    """Shares, means and features from two scrapes around a window; only what the server reports."""
    gained = {name: value - before.get(name, 0.0) for name, value in after.items()}
    facts = _phases(gained) | _batch(gained, after) | _tokens(gained)
    for name, value in after.items():
        if match := re.fullmatch(r"engine_feature_active\{feature=(.+)\}", name):
            facts[f"feature.{match[1]}"] = _fact(value, "")
    return facts


def _fact(value: float, unit: str) -> Fact:
    return Fact(value, unit, Provenance.MEASURED.value, _SOURCE)


def _phases(gained: Counters) -> dict[str, Fact]:
    phases = {}
    for name, value in gained.items():
        if match := re.fullmatch(r"engine_seconds_total\{phase=(.+)\}", name):
            phases[match[1]] = max(0.0, value)
    whole = sum(phases.values())
    busy = whole - phases.get("idle", 0.0)
    if busy <= 0:
        return {}
    facts = {f"share.{phase}": _fact(value / busy, "") for phase, value in phases.items() if phase != "idle"}
    return facts | {"share.idle": _fact(phases.get("idle", 0.0) / whole, "")}


def _batch(gained: Counters, after: Counters) -> dict[str, Fact]:
    steps = gained.get("engine_steps_total", 0.0)
    if steps <= 0:
        return {}
    rows = gained.get("engine_batch_rows_total", 0.0) / steps
    facts = {"engine.steps": _fact(steps, "steps"), "batch.rows_per_step": _fact(rows, "sequences")}
    if places := after.get("engine_max_batch"):
        facts["batch.occupancy"] = _fact(rows / places, "")
    if (admitted := gained.get("engine_admitted_total", 0.0)) > 0:
        facts["queue.wait_s"] = _fact(gained.get("engine_queue_wait_seconds_total", 0.0) / admitted, "s")
    return facts


def _tokens(gained: Counters) -> dict[str, Fact]:
    prefill, decode = gained.get("engine_prefill_tokens_total", 0.0), gained.get("engine_decode_tokens_total", 0.0)
    facts = {}
    if prefill + decode > 0:
        facts["share.prefill_tokens"] = _fact(prefill / (prefill + decode), "")
    if (prompt := gained.get("engine_prompt_tokens_total", 0.0)) > 0:
        facts["prefix.hit_share"] = _fact(gained.get("engine_prefix_hit_tokens_total", 0.0) / prompt, "")
    if "engine_preemptions_total" in gained:
        facts["engine.preemptions"] = _fact(gained["engine_preemptions_total"], "")
    return facts
