"""The run store: what is written is read back, old and foreign files are refused, a reader never waits."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.base.errors import InputError
from vibeserve.search.store import (
    CandidateRow,
    DecisionRow,
    EvidenceRow,
    GateRow,
    HypothesisRow,
    MeasurementRow,
    RunRow,
    RunStore,
    RunView,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore(tmp_path) as opened:
        yield opened


text = st.text(max_size=20)
number = st.floats(allow_nan=False, allow_infinity=False)
settings = st.dictionaries(text, st.one_of(st.integers(-(2**40), 2**40), text, st.booleans()), max_size=3)


def run_row(**changes: Any) -> RunRow:
    values: dict[str, Any] = {
        "name": "r",
        "state": "running",
        "reason": "",
        "bundle": "b",
        "request": {"seed": 1},
        "environment": {"cpu": "x"},
        "device": {},
        "started": "2026-01-01T00:00:00+00:00",
        "seed": 1,
    }
    return RunRow(**(values | changes))


def rows(data: Any) -> list[Any]:
    return [
        HypothesisRow(
            1, (data.draw(text),), data.draw(text), "c0", data.draw(text), "e", data.draw(st.none() | number), "f",
            ({"fact": "x", "op": ">=", "value": 1.0},), data.draw(settings), "why", ({"technique": "t"},), "agent",
        ),
        CandidateRow("c1", 1, "c0", "abc", None, (data.draw(text),), data.draw(settings), data.draw(text), data.draw(number)),
        GateRow(1, "c1", "check", data.draw(st.sampled_from([True, False, None])), data.draw(text), data.draw(settings)),
        MeasurementRow(1, "c1", "pair", 0, 1, "m", "u", data.draw(st.none() | number), 5.0, 7, document=data.draw(text)),
        EvidenceRow("c1", data.draw(text), data.draw(number), "s", "measured", data.draw(text)),
        DecisionRow(1, "round", "c1", "c0", "kept", data.draw(text), None, 2.0, None, 3.0, 5, 1.0),
    ]  # fmt: skip


@given(st.data())
def test_every_row_is_read_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    written = rows(data)
    with RunStore(tmp_path_factory.mktemp("run")) as store:
        write_and_read(store, written)


def write_and_read(store: RunStore, written: list[Any]) -> None:
    with store.record("one") as recorder:
        recorder.step({"a": [1, None]}, began_s=0.0, took_s=2.5)
        for row in written:
            recorder.add(row)
    read = [
        *store.hypotheses(), *store.candidates(), *store.gates("c1"), *store.measurements("c1"), *store.evidence("c1"),
        *store.decisions(),
    ]  # fmt: skip
    assert read == written
    assert store.step("one") == {"a": [1, None]}
    assert store.elapsed_s() == 2.5


def test_a_step_is_there_once_and_wholly(tmp_path: Path, store: RunStore) -> None:
    def broken() -> None:
        with store.record("one") as recorder:
            recorder.step(1, began_s=0.0, took_s=1.0)
            recorder.add(EvidenceRow("c0", "x", 1.0, "", "measured"))
            recorder.add(EvidenceRow("c0", "x", 2.0, "", "measured"))

    with pytest.raises(sqlite3.IntegrityError):
        broken()
    assert store.steps() == []
    assert store.evidence("c0") == []
    with store.record("one") as recorder:
        recorder.step(1, began_s=0.0, took_s=1.0)
    with pytest.raises(sqlite3.IntegrityError), store.record("one") as recorder:
        recorder.step(2, began_s=0.0, took_s=1.0)
    assert store.step("one") == 1


def test_a_number_that_is_not_finite_is_never_written(tmp_path: Path, store: RunStore) -> None:
    with pytest.raises(ValueError, match="not a finite number"), store.record("one") as recorder:
        recorder.step({"x": float("nan")}, began_s=0.0, took_s=1.0)
    with pytest.raises(sqlite3.IntegrityError), store.record("two") as recorder:
        recorder.add(EvidenceRow("c0", "x", float("nan"), "", "measured"))


def test_one_writer_many_readers(tmp_path: Path, store: RunStore) -> None:
    store.begin(run_row())
    with pytest.raises(InputError, match="is being written by process"):
        RunStore(tmp_path)
    with store.record("open") as recorder:
        recorder.step(1, began_s=0.0, took_s=1.0)
        with RunView(tmp_path) as view:  # in the middle of a transaction: it sees what was committed before
            assert view.run().name == "r"
            assert view.steps() == []
    store.close()
    RunStore(tmp_path).close()


def test_begin_twice_changes_nothing(tmp_path: Path, store: RunStore) -> None:
    store.begin(run_row())
    store.begin(run_row(seed=2))
    assert store.run().seed == 1


def test_what_is_no_store_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with pytest.raises(InputError, match="no run store"):
        RunView(tmp_path)
    path.write_bytes(b"this is not a database at all, but long enough to look like one" * 20)
    for kind in (RunView, RunStore):
        with pytest.raises(InputError, match="no run store"):
            kind(tmp_path)
    assert path.read_bytes().startswith(b"this is not a database")
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    with pytest.raises(InputError, match="it holds other tables"):
        RunStore(tmp_path)


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    RunStore(tmp_path).close()
    database = sqlite3.connect(tmp_path / "run.db")
    database.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    database.commit()
    database.close()
    for kind in (RunView, RunStore):
        with pytest.raises(InputError, match="store version 99"):
            kind(tmp_path)


def test_sessions_tell_how_each_process_ended(tmp_path: Path, store: RunStore) -> None:
    store.open_session(1, "then")
    second = store.open_session(2, "later")
    store.close_session(second, "now", "finished")
    assert [(row["pid"], row["how"]) for row in store.sessions()] == [(1, "killed"), (2, "finished")]


@pytest.mark.parametrize("version", [1])
def test_stores_of_every_version_are_read(tmp_path: Path, version: int) -> None:
    from vibeserve.search import document

    shutil.copy(Path(__file__).parent / "data" / f"run-v{version}.db", tmp_path / "run.db")
    with RunView(tmp_path) as view:
        whole = document(view)
    assert whole["state"] == "finished"
    assert [entry["verdict"] for entry in whole["rounds"]] == ["kept", "kept"]
    assert whole["improvement"]["pairs"] == 5


def call_values(**changes: Any) -> dict[str, Any]:
    values = {
        "round": 1, "task": "design", "role": "designer", "agent": "claude", "sandbox": "none", "started": "then",
        "transcript": "agents/r1",
    }  # fmt: skip
    return values | changes


def test_a_call_is_there_before_its_program_starts_and_closed_once(tmp_path: Path, store: RunStore) -> None:
    first = store.open_call(call_values())
    with RunView(tmp_path) as view:
        assert [(row.state, row.attempt, row.took_s) for row in view.calls()] == [("running", 1, None)]
    answer = {"title": "batch", "expected_ratio": 9.5}
    store.close_call(first, {"state": "answered", "took_s": 2.0, "input_tokens": 5, "cost_usd": 0.1}, answer)
    with pytest.raises(LookupError, match="not running"):
        store.close_call(first, {"state": "failed"}, None)
    second = store.open_call(call_values())
    with RunView(tmp_path) as view:
        assert [(row.id, row.attempt, row.state) for row in view.calls()] == [
            (first, 1, "answered"),
            (second, 2, "running"),
        ]
        assert view.calls()[0].reply == answer
        assert {row.name: row.value for row in view.claims()} == answer
        assert {row.provenance for row in view.claims()} == {"claimed"}
    store.open_session(7, "later")
    assert store.calls()[1].state == "killed"


def test_an_old_store_is_upgraded_by_its_writer_and_left_alone_by_a_reader(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "data" / "run-v1.db", tmp_path / "run.db")
    with RunView(tmp_path) as view:
        before = [view.hypotheses(), view.decisions(), view.steps()]
        assert view.calls() == view.claims() == []
    with RunStore(tmp_path) as store:
        assert [store.hypotheses(), store.decisions(), store.steps()] == before
        assert store.open_call(call_values()) == 1
    with RunView(tmp_path) as view:
        assert [view.hypotheses(), view.decisions(), view.steps()] == before
        assert len(view.calls()) == 1


@pytest.mark.parametrize("name", ["what?mode=rwc", "a#b", "p%41", "a b"])
def test_a_run_may_lie_in_a_directory_of_any_name(tmp_path: Path, name: str) -> None:
    """SQLite reads `?`, `#` and `%` in an address as its own."""
    with RunStore(tmp_path / name):
        pass
    with RunView(tmp_path / name) as view:
        assert view.candidates() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
