"""What the playbook proposes from recorded evidence, and what it says of everything else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from vibeserve.agents import Fact, Goal, Proposal, SearchState, Stop, Tried
from vibeserve.agents.playbook import Playbook

CHAT = Goal(
    slug="chat",
    modality="text -> text",
    api="openai-chat",
    metric="output_tokens_per_s",
    unit="tokens/s",
    direction="higher",
    hardware="cpu",
    hardware_kind="cpu",
    dtypes=("float32",),
    architecture="LlamaForCausalLM",
)
# As measured on two cores with a 135M model, 16 requests at once, 64 prompt and 64 output tokens.
MACHINE = {
    "machine.cores": 2.0,
    "machine.bandwidth_bytes_per_s": 48e9,
    "machine.flops_per_s": 228e9,
    "model.weight_bytes": 538e6,
    "model.flops_per_token": 269e6,
    "workload.concurrency": 16.0,
    "workload.prompt_tokens": 64.0,
    "workload.output_tokens": 64.0,
    "workload.shared_prefix_tokens": 0.0,
}
BATCHED = {
    "share.linear": 0.72,
    "share.attention": 0.15,
    "share.sampling": 0.03,
    "share.other": 0.1,
    "share.prefill_tokens": 0.5,
    "batch.rows_per_step": 14.5,
    "feature.grouped_attention": 1.0,
}


def facts(**values: float) -> dict[str, Fact]:
    return {name.replace("__", "."): Fact(value, "", "measured") for name, value in values.items()}


def state(**changes: Any) -> SearchState:
    evidence = {name: Fact(value, "", "measured") for name, value in (MACHINE | changes.pop("evidence", {})).items()}
    base = SearchState(
        goal=changes.pop("goal", CHAT),
        seed=1,
        round=1,
        rounds_left=None,
        elapsed_s=60.0,
        budget_left_s=None,
        round_cost_s=100.0,
        incumbent="c0",
        incumbent_value=23.0,
        in_place=(),
        settings={},
        evidence=evidence,
    )
    return dataclasses.replace(base, **changes)


def tried(number: int, added: tuple[str, ...], verdict: str = "kept", **rest: Any) -> Tried:
    values = {"techniques": added, "settings": {}, "value": 100.0, "ratio": 2.0 if verdict == "kept" else 0.9}
    values |= rest
    return Tried(
        round=number,
        candidate=f"c{number}",
        parent="c0",
        added=added,
        verdict=verdict,
        reason="so",
        ci95=None,
        **values,
    )


def propose(**changes: Any) -> Proposal:
    answer = Playbook().propose(state(**changes))
    assert isinstance(answer, Proposal), answer
    return answer


def reasons(answer: Proposal | Stop) -> dict[str, str]:
    return {other["technique"]: other["why"] for other in answer.not_others}


def test_first_the_largest_gain_batching() -> None:
    proposal = propose()
    assert proposal.techniques == ("continuous-batching",)
    assert proposal.settings["max_batch"] == 16
    assert proposal.expected_ratio == pytest.approx(4.75, rel=0.01)  # half of bandwidth- to compute-bound
    assert "16 at once" in proposal.hypothesis
    assert "{" not in proposal.hypothesis


@pytest.mark.parametrize("few", [{"budget_left_s": 230.0}, {"budget_left_s": 499.0}, {"rounds_left": 4}])
def test_few_rounds_put_the_floor_together(few: dict[str, Any]) -> None:
    assert propose(budget_left_s=500.0).techniques == propose(rounds_left=5).techniques == ("continuous-batching",)
    proposal = propose(**few)
    assert proposal.techniques == ("continuous-batching", "compiled-kernels")
    assert proposal.settings["backend"] == "compiled"
    assert {"core", "http", "compiled_backend"} <= set(proposal.parts)
    assert "the budget buys few rounds" in proposal.why
    assert {condition["fact"] for condition in proposal.activation} == {
        "batch.rows_per_step",
        "feature.compiled_kernels",
    }


def test_a_floor_that_failed_together_is_tried_in_parts() -> None:
    failed = tried(1, ("continuous-batching", "compiled-kernels"), "failed-start")
    proposal = propose(budget_left_s=230.0, round=2, history=(failed,))
    assert proposal.techniques == ("continuous-batching",)
    then = tried(2, ("continuous-batching",), settings={"max_batch": 16, "backend": "torch"})
    after = propose(
        round=3, history=(failed, then), in_place=("continuous-batching",), incumbent="c2", evidence=BATCHED
    )
    assert after.techniques == ("compiled-kernels",)


def test_then_the_phases_decide() -> None:
    kept = tried(1, ("continuous-batching",))
    proposal = propose(in_place=("continuous-batching",), incumbent="c1", history=(kept,), round=2, evidence=BATCHED)
    assert proposal.techniques == ("compiled-kernels",)
    assert "72% of the engine's time is in linear layers" in proposal.hypothesis
    said = reasons(proposal)
    assert said["bfloat16"] == "the bundle allows float32 only, not bfloat16"
    assert said["prefix-cache"].startswith("the workload's prompts share no prefix")
    assert "on two cores or fewer" in said["threads"]
    assert said["continuous-batching"] == "since round 1"


def test_a_bundle_that_allows_bfloat16_gets_it_proposed() -> None:
    goal = dataclasses.replace(CHAT, dtypes=("float32", "bfloat16"))
    both = ("continuous-batching", "compiled-kernels")
    proposal = propose(goal=goal, in_place=both, incumbent="c2", evidence=BATCHED, round=3)
    assert proposal.techniques == ("bfloat16",)
    assert proposal.settings["dtype"] == "bfloat16"


def test_a_shared_prefix_is_worth_a_cache() -> None:
    evidence = BATCHED | {"workload.shared_prefix_tokens": 1024.0, "workload.prompt_tokens": 22.0}
    both = ("continuous-batching", "compiled-kernels")
    proposal = propose(in_place=both, incumbent="c2", evidence=evidence, round=3)
    assert proposal.techniques == ("prefix-cache",)
    assert proposal.expected_ratio == pytest.approx(1110 / 86)


def test_one_request_at_a_time_is_not_batched() -> None:
    proposal = propose(evidence={"workload.concurrency": 1.0})
    assert proposal.techniques == ("single-stream-engine",)
    assert reasons(proposal)["continuous-batching"].startswith("one request at a time by contract")


def test_an_architecture_that_nothing_builds_is_named() -> None:
    goal = dataclasses.replace(CHAT, architecture="OlmoHybridForCausalLM", modality="text -> image")
    answer = Playbook().propose(state(goal=goal))
    assert isinstance(answer, Stop)
    assert "OlmoHybridForCausalLM" in answer.reason


def test_tuning_asks_for_values_that_were_not_tried() -> None:
    in_place = ("continuous-batching", "compiled-kernels", "chunked-prefill")
    base = {"max_batch": 16, "max_batch_tokens": 256, "backend": "compiled"}
    seen: list[tuple[int, int]] = [(16, 256)]
    history: tuple[Tried, ...] = ()
    for number in range(3, 6):
        proposal = propose(
            in_place=in_place, incumbent="c2", settings=base, evidence=BATCHED, round=number, history=history
        )
        assert proposal.techniques == ("batch-shape",)
        values = (proposal.settings["max_batch"], proposal.settings["max_batch_tokens"])
        assert values not in seen
        assert 8 <= values[0] <= 32
        seen.append(values)
        history += (tried(number, ("batch-shape",), "not-better", settings=proposal.settings),)
    after = propose(in_place=in_place, incumbent="c2", settings=base, evidence=BATCHED, round=6, history=history)
    assert after.techniques == ("stream-interval",)
    history += (tried(6, ("stream-interval",), "not-better", settings=after.settings),)
    answer = Playbook().propose(
        state(in_place=in_place, incumbent="c2", settings=base, evidence=BATCHED, round=7, history=history)
    )
    assert isinstance(answer, Stop)


def test_the_same_state_gives_the_same_proposal() -> None:
    assert propose(evidence=BATCHED, in_place=("continuous-batching",)) == propose(
        evidence=BATCHED, in_place=("continuous-batching",)
    )


def test_a_plateau_ends_the_search() -> None:
    history = tuple(tried(number, (f"t{number}",), "not-better") for number in range(1, 5))
    answer = Playbook().propose(state(history=history, round=5))
    assert isinstance(answer, Stop)
    assert answer.kind == "plateau"


def test_back_to_an_earlier_candidate_where_that_promises_more() -> None:
    goal = dataclasses.replace(CHAT)
    history = (
        tried(1, ("continuous-batching",), value=100.0),
        tried(2, ("compiled-kernels",), value=101.0, techniques=("continuous-batching", "compiled-kernels")),
        tried(3, ("chunked-prefill",), "not-better"),
        tried(4, ("stream-interval",), "not-better"),
        tried(
            5,
            ("batch-shape",),
            "kept",
            value=102.0,
            techniques=("continuous-batching", "compiled-kernels", "batch-shape"),
        ),
        tried(6, ("batch-shape",), "not-better"),
        tried(7, ("batch-shape",), "not-better"),
    )
    proposal = propose(
        goal=goal,
        history=history,
        round=8,
        incumbent="c5",
        incumbent_value=102.0,
        in_place=("continuous-batching", "compiled-kernels", "batch-shape"),
        evidence=BATCHED | {"share.other": 0.4, "share.linear": 0.45},
    )
    assert proposal.techniques == ("torch-compile",)
    assert proposal.parent == "c1"
    assert "back to c1" in proposal.why


def test_the_floor_is_said_for_each_hardware() -> None:
    before = {entry["title"]: entry for entry in Playbook().floor(state())}
    assert {entry["state"] for entry in before.values()} == {"missing"}
    assert list(before) == ["continuous batching", "fused attention", "static decode shapes", "packed weights"]
    after = Playbook().floor(
        state(
            in_place=("continuous-batching",),
            evidence=BATCHED,
            history=(tried(2, ("compiled-kernels",), "failed-start"),),
        )
    )
    assert [entry["state"] for entry in after] == ["in place", "in place", "excused", "excused"]
    assert "failed-start" in after[2]["reason"]
    alone = Playbook().floor(state(evidence={"workload.concurrency": 1.0}))
    assert alone[0]["state"] == "excused"
    for kind, first in (("nvidia", "continuous batching"), ("trainium", "static-shape buckets")):
        there = Playbook().floor(state(goal=dataclasses.replace(CHAT, hardware_kind=kind)))
        assert there[0]["title"] == first
        assert {entry["state"] for entry in there} == {"not verified on hardware"}


def test_in_place_is_not_believed_against_the_counters() -> None:
    evidence = BATCHED | {"feature.compiled_kernels": 0.0}
    floor = Playbook().floor(state(in_place=("continuous-batching", "compiled-kernels"), evidence=evidence))
    assert floor[3]["state"] == "missing"
    assert "feature.compiled_kernels is 0" in floor[3]["reason"]
