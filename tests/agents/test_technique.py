"""The playbook's data: every file is sound, and what is wrong in one is said with its name."""

from __future__ import annotations

import string
from importlib.resources import files

import pytest

from vibeserve.agents.conditions import names_in
from vibeserve.agents.playbook.technique import DataError, floor_items, parse, techniques

GOOD = files("vibeserve.agents.playbook").joinpath("techniques", "continuous-batching.toml").read_text()
#: What formulas and sentences may name: what the laboratory tells, by its first word.
FAMILIES = (
    "workload",
    "machine",
    "model",
    "share",
    "batch",
    "queue",
    "prefix",
    "feature",
    "engine",
    "limit",
    "server",
    "draft",
)


def test_all_are_read() -> None:
    names = [technique.name for technique in techniques()]
    assert {
        "continuous-batching",
        "compiled-kernels",
        "prefix-cache",
        "chunked-prefill",
        "bfloat16",
        "torch-compile",
    } <= set(names)
    assert names == sorted(names)


def test_each_can_be_seen_at_work_or_is_tuning() -> None:
    for technique in techniques():
        assert technique.activation or technique.kind == "tuning", technique.name
        assert technique.hypothesis.strip()
        assert technique.falsification.strip()
        assert technique.expects.source.strip()
        assert technique.expects.otherwise > 1


def test_formulas_and_sentences_name_what_can_be_known() -> None:
    for technique in techniques():
        sentences = [name for _, name, _, _ in string.Formatter().parse(technique.hypothesis) if name]
        formulas = names_in(technique.expects.ratio)
        conditions = [when.fact for when in (*technique.applies.when, *technique.activation)]
        for name in (*sentences, *formulas, *conditions):
            assert name == "expected" or name.partition(".")[0] in FAMILIES, f"{technique.name}: {name}"


def test_the_floor_of_each_hardware() -> None:
    floors: dict[str, list[str]] = {}
    for item in floor_items():
        floors.setdefault(item.hardware, []).append(item.name)
    assert floors == {
        "cpu": ["continuous batching", "fused attention", "static decode shapes", "packed weights"],
        "nvidia": ["continuous batching", "fused attention", "CUDA graphs"],
        "trainium": [
            "static-shape buckets",
            "persistent compile cache",
            "BF16",
            "on-device sampling",
            "continuous batching over static buffers",
            "device-resident KV cache",
            "NKI flash attention",
        ],
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("title =", "tittle ="), "tittle"),
        (('kind = "floor"', 'kind = "roof"'), "roof"),
        (('op = ">="', 'op = "~"'), "unknown comparison '~'"),
        (('ratio = "', 'ratio = "import os; '), "not a formula"),
        (("value = 2", 'value = "two"'), "Expected `float`"),
        (("[changes]", "[changes"), "Expected"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(change: tuple[str, str], said: str) -> None:
    with pytest.raises(DataError, match=r"^bad\.toml: ") as caught:
        parse(GOOD.replace(*change, 1), "bad.toml")
    assert said in str(caught.value)


def test_a_knob_needs_a_range() -> None:
    knob = '\n[[knobs]]\nsetting = "threads"\n'
    with pytest.raises(DataError, match="needs either choices, or low and high"):
        parse(GOOD + knob, "bad.toml")
    with pytest.raises(DataError, match="a tuning technique needs knobs"):
        parse(GOOD.replace('kind = "floor"', 'kind = "tuning"'), "bad.toml")
