"""Every text bundle of the CPU, as a search sees it: the playbook finds what pays from the evidence, and says why not the rest.

The laboratory is a table: a technique is kept where it was measured to pay on that workload. What a round would measure of
the server is told as it was recorded on two cores.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.agents.test_policy import BATCHED, CHAT, MACHINE

from vibeserve.agents import Fact, Goal, Proposal, SearchState, Stop, Tried
from vibeserve.agents.playbook import Playbook
from vibeserve.agents.playbook.builder import engine_toml
from vibeserve.agents.playbook.policy import expectation
from vibeserve.agents.playbook.technique import Technique, techniques
from vibeserve.targets import read_bundle

COMPILED = BATCHED | {"feature.compiled_kernels": 1.0, "share.other": 0.05}
MOST_ROUNDS = 6
EXAMPLES = Path(__file__).parents[2] / "examples" / "model-serving"


@dataclass(frozen=True)
class Case:
    """A bundle: its goal, what its benchmark tells, which techniques pay, and which must be found or closed."""

    goal: Goal
    workload: dict[str, float]
    pays: frozenset[str]
    wanted: frozenset[str]
    closed: dict[str, str]


def goal(**changes: Any) -> Goal:
    return dataclasses.replace(CHAT, **changes)


def workload(prompt: float, output: float, **more: float) -> dict[str, float]:
    told = {"prompt_tokens": prompt, "output_tokens": output, "shared_prefix_tokens": 0.0} | more
    return {f"workload.{name}": value for name, value in told.items()}


FLOOR = frozenset({"continuous-batching", "single-stream-engine", "compiled-kernels"})
CASES = {
    "code edits": Case(
        goal(slug="code-edit"),
        workload(220, 192, concurrency=1, predicted_share=1.0),
        FLOOR | {"predicted-outputs"},
        frozenset({"single-stream-engine", "compiled-kernels", "predicted-outputs"}),
        {"prefix-cache": "share no prefix", "latency-targets": "does nothing for output_tokens_per_s",
         "learned-drafts": "say themselves what to expect"},
    ),
    "shared prefixes": Case(
        goal(slug="prefix-caching", api="openai-completions"),
        workload(64, 64, concurrency=8, shared_prefix_tokens=1024),
        FLOOR | {"prefix-cache"},
        frozenset({"continuous-batching", "compiled-kernels", "prefix-cache"}),
        {"predicted-outputs": "carry no prediction", "ngram-speculation": "rows already",
         "learned-drafts": "no step is idle", "swap-preemption": "memory enough"},
    ),
    "JSON": Case(
        goal(slug="json", modality="text/schema -> structured text", metric="p50_latency_s", unit="s", direction="lower"),
        {},
        FLOOR | {"jump-forward"},
        frozenset({"jump-forward", "compiled-kernels"}),
        {"continuous-batching": "for text -> text", "predicted-outputs": "for text -> text"},
    ),
    "latency targets": Case(
        goal(slug="chat-slo", metric="goodput", unit="requests/s"),
        workload(64, 48, rate=8.0, slo_ttft_s=1.5, slo_tpot_s=0.08),
        FLOOR | {"latency-targets"},
        frozenset({"continuous-batching", "compiled-kernels", "latency-targets"}),
        {"predicted-outputs": "carry no prediction", "paced-prefill": "no workload.long_prompt_tokens"},
    ),
    "long context": Case(
        goal(slug="long-context"),
        workload(64, 64, concurrency=4, long_prompt_tokens=7936),
        FLOOR | {"paced-prefill", "chunked-prefill"},
        frozenset({"continuous-batching", "compiled-kernels", "paced-prefill"}),
        {"latency-targets": "does nothing for output_tokens_per_s", "predicted-outputs": "carry no prediction"},
    ),
    "plain chat": Case(
        goal(),
        workload(64, 64, concurrency=16),
        FLOOR,
        frozenset({"continuous-batching", "compiled-kernels"}),
        {"predicted-outputs": "carry no prediction", "prefix-cache": "share no prefix", "ngram-speculation": "rows already",
         "jump-forward": "for text/schema", "latency-targets": "does nothing for", "paced-prefill": "no workload.long"},
    ),
}  # fmt: skip


def search(case: Case, rounds: int) -> tuple[SearchState, Stop | None, list[Proposal]]:
    """The playbook's own rounds, as the laboratory's table settles them."""
    machine = {name: value for name, value in MACHINE.items() if not name.startswith("workload.")}
    told = machine | case.workload
    state = SearchState(
        goal=case.goal, seed=1, round=1, rounds_left=rounds, elapsed_s=0.0, budget_left_s=None, round_cost_s=None,
        incumbent="c0", incumbent_value=10.0, in_place=(), settings={},
        evidence={name: Fact(value, "", "measured") for name, value in told.items()},
    )  # fmt: skip
    proposals: list[Proposal] = []
    for number in range(1, rounds + 1):
        proposal = Playbook().propose(state)
        if isinstance(proposal, Stop):
            return state, proposal, proposals
        proposals.append(proposal)
        kept = set(proposal.techniques) <= case.pays
        after = (*state.in_place, *proposal.techniques)
        seen = COMPILED if "compiled-kernels" in after else BATCHED
        tried = Tried(
            round=number, candidate=f"c{number}", parent=state.incumbent, added=proposal.techniques, techniques=after,
            settings=proposal.settings, verdict="kept" if kept else "not-better", reason="so", value=10.0 * number,
            ratio=2.0 if kept else 0.98, ci95=None,
        )  # fmt: skip
        changes: dict[str, Any] = {}
        if kept:
            changes = {
                "incumbent": f"c{number}", "incumbent_value": 10.0 * number, "in_place": after,
                "settings": proposal.settings,
                "evidence": {name: Fact(value, "", "measured") for name, value in (told | seen | case.workload).items()},
            }  # fmt: skip
        state = dataclasses.replace(
            state, round=number + 1, rounds_left=rounds - number, history=(*state.history, tried), **changes
        )
    return state, None, proposals


@pytest.mark.parametrize("name", CASES)
def test_what_pays_is_found_within_six_rounds(name: str) -> None:
    case = CASES[name]
    state, _, proposals = search(case, MOST_ROUNDS)
    assert case.wanted <= set(state.in_place), [proposal.techniques for proposal in proposals]
    for proposal in proposals:
        assert "{" not in proposal.hypothesis


FLAGS = {"--prompt-len": "prompt_tokens", "--max-tokens": "output_tokens", "--shared-prefix": "shared_prefix_tokens"}


@pytest.mark.parametrize(
    ("name", "bundle"),
    [("shared prefixes", "prefix-caching"), ("latency targets", "chat-slo"), ("long context", "long-context")],
)
def test_the_workload_is_what_the_bundles_benchmark_tells(name: str, bundle: str) -> None:
    told = list(read_bundle(EXAMPLES / f"smollm2-135m-cpu-{bundle}").benchmark_args)
    given = {flag: float(told[told.index(flag) + 1]) for flag in FLAGS if flag in told}
    assert len(given) >= 2
    for flag, value in given.items():
        assert CASES[name].workload[f"workload.{FLAGS[flag]}"] == value, flag


@pytest.mark.parametrize("technique", techniques(), ids=lambda technique: technique.name)
@pytest.mark.parametrize("name", CASES)
def test_what_is_expected_has_a_value(name: str, technique: Technique) -> None:
    told = MACHINE | COMPILED | CASES[name].workload
    evidence = {name: Fact(value, "", "measured") for name, value in told.items()}
    value, _, source = expectation(technique, evidence)
    assert "has no value here" not in source
    assert value > 0


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_apply_is_closed_with_its_reason(name: str) -> None:
    case = CASES[name]
    _, _, proposals = search(case, MOST_ROUNDS)
    said = {other["technique"]: other["why"] for other in proposals[-1].not_others}
    for technique, why in case.closed.items():
        assert why in said[technique], (technique, said[technique])
        assert all(technique not in proposal.techniques for proposal in proposals)


@pytest.mark.parametrize("name", CASES)
def test_what_was_tried_in_vain_is_told_with_its_round(name: str) -> None:
    state, stop, _ = search(CASES[name], 20)
    assert stop is not None
    failed = [tried for tried in state.history if tried.verdict != "kept"]
    said = {other["technique"]: (other["state"], other["why"]) for other in stop.not_others}
    for tried in failed:
        (technique,) = tried.added
        assert said[technique][0] in ("tried", "closed"), technique


def test_latency_targets_are_the_bundles_own() -> None:
    state, _, _ = search(CASES["latency targets"], MOST_ROUNDS)
    assert (state.settings["ttft_target_ms"], state.settings["tpot_target_ms"]) == (1500, 80)


def test_what_gives_way_is_set_aside_where_the_counters_say_so() -> None:
    crowded = CASES["shared prefixes"]
    crowded = dataclasses.replace(
        crowded,
        workload=crowded.workload | {"engine.preemptions": 12.0},
        pays=crowded.pays | {"swap-preemption"},
    )
    state, _, proposals = search(crowded, MOST_ROUNDS)
    assert "swap-preemption" in state.in_place, [proposal.techniques for proposal in proposals]
    assert state.settings["swap_memory_bytes"] > 0
    after = next(one for one in proposals if "swap-preemption" in one.techniques)
    assert "12 requests gave way" in after.hypothesis


def test_a_stream_of_many_requests_may_be_sent_in_larger_pieces() -> None:
    chat = CASES["plain chat"]
    _, _, proposals = search(dataclasses.replace(chat, pays=chat.pays | {"chunked-prefill"}), 20)
    (tried, *_) = [one for one in proposals if one.techniques == ("stream-interval",)]
    assert tried.settings["http.stream_interval"] in (2, 4)
    assert "[http]\nstream_interval = " in engine_toml(tried.settings)


def test_a_family_that_the_engine_lacks_has_knobs_of_its_own() -> None:
    other = dataclasses.replace(
        CASES["plain chat"],
        goal=goal(architecture="OlmoHybridForCausalLM", dtypes=("float32", "bfloat16")),
        pays=frozenset({"transformers-batching", "transformers-bfloat16"}),
    )
    state, _, proposals = search(other, 20)
    assert {"transformers-batching", "transformers-bfloat16"} <= set(state.in_place)
    assert all(one.techniques != ("transformers-prefix-cache",) for one in proposals), "no prefix is shared"
    shapes = [one.settings for one in proposals if one.techniques == ("transformers-shape",)]
    assert shapes
    assert all(one["transformers.batching"] in ("continuous", "static") for one in shapes)


def test_a_family_that_the_engine_lacks_shares_prefixes_too() -> None:
    other = dataclasses.replace(
        CASES["shared prefixes"],
        goal=goal(architecture="OlmoHybridForCausalLM"),
        pays=frozenset({"transformers-batching", "transformers-prefix-cache"}),
    )
    state, _, proposals = search(other, MOST_ROUNDS)
    assert {"transformers-batching", "transformers-prefix-cache"} <= set(state.in_place)
    tried = next(one for one in proposals if "transformers-prefix-cache" in one.techniques)
    assert tried.expected_ratio == pytest.approx(1 + 1024 / 128)
    assert "64 tokens of their own after 1024 that all share" in tried.hypothesis
    assert "[transformers]\nprefix_cache = true" in engine_toml(tried.settings)
