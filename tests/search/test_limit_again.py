"""The laboratory counts the limit again from rates measured again: for the same workload, and with the facts of the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.measure.test_limits import FACTS, MACHINE

from vibeserve.agents.agent import Fact
from vibeserve.hardware import Machine
from vibeserve.measure.limits import Workload
from vibeserve.search.bench import Bench
from vibeserve.search.fixed import fixed_facts, limit_facts
from vibeserve.search.proofs import Proofs
from vibeserve.targets import read_bundle

MINI = Path(__file__).parents[1] / "measure" / "data" / "mini"
TOLD = {"prompt_tokens": 3.0, "output_tokens": 4.0, "concurrency": 2.0, "shared_prefix_tokens": 8.0}
FASTER = replace(MACHINE, peaks={"float32": 2e7}, bandwidth_bytes_per_s=3e6)


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    def make(again: Machine | None, model: Any = FACTS) -> Bench:
        return Bench(
            read_bundle(MINI), tmp_path, model=model, machine=MACHINE, directory=tmp_path,
            fixed=lambda machine: fixed_facts(machine, FACTS, ("float32",), 2), again=lambda: again, group="g",
            proofs=Proofs(tmp_path, {}),
        )  # fmt: skip

    return make


def known() -> dict[str, Fact]:
    return {f"workload.{name}": Fact(value, "", "measured") for name, value in TOLD.items()}


def test_both_the_limit_and_the_machine_are_told_anew(bench: Any) -> None:
    bundle, work = read_bundle(MINI), Workload.from_document({"workload": TOLD})
    assert work.prompt_tokens == 11, "the shared prefix comes before the prompt"
    before = limit_facts(bundle, MACHINE, FACTS, work)
    found = bench(FASTER).limit_again(known() | {"limit.value": Fact(1.0, "", "hand-counted")})
    assert found == fixed_facts(FASTER, FACTS, ("float32",), 2) | limit_facts(bundle, FASTER, FACTS, work)
    assert 2 * before["limit.value"].value <= found["limit.value"].value <= 3 * before["limit.value"].value
    assert found["machine.bandwidth_bytes_per_s"].value == 3e6
    assert not any(name.startswith("workload.") for name in found)


def test_where_the_machine_cannot_be_measured_nothing_changes(bench: Any) -> None:
    assert bench(None).limit_again(known()) == {}
    assert bench(FASTER, model=None).limit_again(known()) == {}
