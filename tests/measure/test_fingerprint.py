"""What makes two measurements comparable; which cores are whose."""

import json

from hypothesis import given
from hypothesis import strategies as st

from vibeserve.base.jsonio import dumps
from vibeserve.measure.cpus import plan_cpus
from vibeserve.measure.fingerprint import explain_difference, fingerprint


def test_it_survives_json_and_is_equal_to_itself():
    taken = fingerprint()
    stored = json.loads(dumps(taken))
    assert explain_difference(stored, fingerprint()) == []
    assert taken.cores_usable >= 1
    assert taken.cpu_model in taken.device


def test_differences_are_explained(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    stored = json.loads(dumps(fingerprint()))
    stored["cores_usable"] = 64
    stored["packages"]["torch"] = "1.0"
    stored["threads"]["OMP_NUM_THREADS"] = None
    stored["accelerators"] = ["NVIDIA H100, 550.1"]
    stored["device"] = "another line"
    now = json.loads(dumps(fingerprint()))
    lines = explain_difference(stored, now)
    assert lines[0] == f"cores_usable: was 64, is {now['cores_usable']}"
    assert "accelerators: was NVIDIA H100, 550.1, is none" in lines or now["accelerators"]
    assert any(line.startswith("packages.torch: was 1.0, is ") for line in lines)
    assert "threads.OMP_NUM_THREADS: was not set, is 3" in lines
    assert len(lines) == 4


@given(st.frozensets(st.integers(0, 255), min_size=1, max_size=64))
def test_the_client_has_a_core_of_its_own_from_four_on(cpus):
    plan = plan_cpus(cpus)
    if len(cpus) < 4:
        assert plan.server is plan.client is None
    else:
        assert plan.server is not None
        assert plan.client is not None
        assert plan.server | plan.client == cpus
        assert len(plan.client) == 1
        assert not plan.server & plan.client
