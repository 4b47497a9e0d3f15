"""A server's counters as facts."""

from __future__ import annotations

import pytest

from vibeserve.measure.profile import ServerProfile
from vibeserve.search.counters import facts_of


def profile(**gained: float) -> ServerProfile:
    names = {
        "linear": 'engine_seconds_total{phase="linear"}',
        "attention": 'engine_seconds_total{phase="attention"}',
        "idle": 'engine_seconds_total{phase="idle"}',
        "steps": "engine_steps_total",
        "rows": "engine_batch_rows_total",
        "prefill": "engine_prefill_tokens_total",
        "decode": "engine_decode_tokens_total",
        "prompt": "engine_prompt_tokens_total",
        "hits": "engine_prefix_hit_tokens_total",
        "admitted": "engine_admitted_total",
        "wait": "engine_queue_wait_seconds_total",
        "proposed": "engine_proposed_tokens_total",
        "accepted": "engine_accepted_tokens_total",
        "forced": "engine_forced_tokens_total",
        "output": "engine_output_tokens_total",
    }
    gauges = {"engine_max_batch": 16.0, 'engine_feature_active{feature="compiled_kernels"}': 1.0}
    return ServerProfile(4.0, 1.5, 10**9, 8, {names[name]: value for name, value in gained.items()}, gauges)


def test_shares_are_of_busy_time() -> None:
    facts = facts_of(profile(linear=2.0, attention=1.0, idle=1.0))
    assert facts["share.linear"].value == pytest.approx(2 / 3)
    assert facts["share.attention"].value == pytest.approx(1 / 3)
    assert facts["share.idle"].value == 0.25
    assert all(fact.provenance == "measured" for fact in facts.values())


def test_batch_and_tokens() -> None:
    facts = facts_of(profile(steps=10, rows=120, prefill=64, decode=192, prompt=128, hits=64, admitted=4, wait=2.0))
    assert facts["batch.rows_per_step"].value == 12
    assert facts["batch.occupancy"].value == 0.75
    assert facts["share.prefill_tokens"].value == 0.25
    assert facts["prefix.hit_share"].value == 0.5
    assert facts["queue.wait_s"].value == 0.5
    assert facts["feature.compiled_kernels"].value == 1
    assert facts["server.cores"].value == 1.5


def test_drafts() -> None:
    facts = facts_of(profile(proposed=40, accepted=30, forced=50, output=200))
    assert facts["draft.accepted_share"].value == 0.75
    assert facts["draft.forced_share"].value == 0.25
    assert "draft.accepted_share" not in facts_of(profile(proposed=0, accepted=0, output=5))


def test_a_server_without_counters_has_none() -> None:
    facts = facts_of(ServerProfile(4.0, 1.0, 10, 3, note="no such page"))
    assert set(facts) == {"server.cores", "server.memory_peak_bytes"}
    assert set(facts_of(profile(steps=0, idle=4.0))) & {"batch.rows_per_step", "share.linear"} == set()
