"""What a server's own counters gained over a watched window, as facts that the playbook can lean on."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vibeserve.agents.agent import Fact
from vibeserve.base.provenance import Provenance
from vibeserve.measure.profile import ServerProfile

_SOURCE = "the server's /metrics, gained over a window that is not scored"
_FEATURE = re.compile(r'engine_feature_active\{feature="(.+)"\}')
_PHASE = re.compile(r'engine_seconds_total\{phase="(.+)"\}')


def facts_of(profile: ServerProfile) -> dict[str, Fact]:
    """Shares, means and features; only what the server reports. Cores and memory are our own measurement."""
    watched = "processes of the server, watched over a window that is not scored"
    facts = {
        "server.cores": Fact(profile.cores, "cores", Provenance.MEASURED.value, watched),
        "server.memory_peak_bytes": Fact(profile.memory_peak_bytes, "B", Provenance.MEASURED.value, watched),
    }
    facts |= _phases(profile.gained) | _batch(profile.gained, profile.gauges) | _tokens(profile.gained)
    for name, value in profile.gauges.items():
        if match := _FEATURE.fullmatch(name):
            facts[f"feature.{match[1]}"] = _fact(value, "")
    return facts


def _fact(value: float, unit: str) -> Fact:
    return Fact(value, unit, Provenance.MEASURED.value, _SOURCE)


def _phases(gained: Mapping[str, float]) -> dict[str, Fact]:
    phases = {match[1]: max(0.0, value) for name, value in gained.items() if (match := _PHASE.fullmatch(name))}
    whole = sum(phases.values())
    busy = whole - phases.get("idle", 0.0)
    if busy <= 0:
        return {}
    facts = {f"share.{phase}": _fact(value / busy, "") for phase, value in phases.items() if phase != "idle"}
    return facts | {"share.idle": _fact(phases.get("idle", 0.0) / whole, "")}


def _batch(gained: Mapping[str, float], gauges: Mapping[str, float]) -> dict[str, Fact]:
    steps = gained.get("engine_steps_total", 0.0)
    if steps <= 0:
        return {}
    rows = gained.get("engine_batch_rows_total", 0.0) / steps
    facts = {"engine.steps": _fact(steps, "steps"), "batch.rows_per_step": _fact(rows, "sequences")}
    if places := gauges.get("engine_max_batch"):
        facts["batch.occupancy"] = _fact(rows / places, "")
    if (admitted := gained.get("engine_admitted_total", 0.0)) > 0:
        facts["queue.wait_s"] = _fact(gained.get("engine_queue_wait_seconds_total", 0.0) / admitted, "s")
    return facts


def _tokens(gained: Mapping[str, float]) -> dict[str, Fact]:
    prefill, decode = gained.get("engine_prefill_tokens_total", 0.0), gained.get("engine_decode_tokens_total", 0.0)
    facts = {}
    if prefill + decode > 0:
        facts["share.prefill_tokens"] = _fact(prefill / (prefill + decode), "")
    if (prompt := gained.get("engine_prompt_tokens_total", 0.0)) > 0:
        facts["prefix.hit_share"] = _fact(gained.get("engine_prefix_hit_tokens_total", 0.0) / prompt, "")
    if (proposed := gained.get("engine_proposed_tokens_total", 0.0)) > 0:
        facts["draft.accepted_share"] = _fact(gained.get("engine_accepted_tokens_total", 0.0) / proposed, "")
    if (answered := gained.get("engine_output_tokens_total", 0.0)) > 0 and "engine_forced_tokens_total" in gained:
        facts["draft.forced_share"] = _fact(gained["engine_forced_tokens_total"] / answered, "")
    if "engine_preemptions_total" in gained:
        facts["engine.preemptions"] = _fact(gained["engine_preemptions_total"], "")
    return facts
