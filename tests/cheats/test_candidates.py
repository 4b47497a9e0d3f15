"""Tricks with files, processes, clocks and the network come to nothing behind the walls, and change no figure."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from vibeserve.judge import Integrity
from vibeserve.measure import fake_server, launch, run_benchmark, run_checker, sandbox_relay
from vibeserve.measure.sandbox import Bubblewrap, choose
from vibeserve.targets import Bundle, Metric, ModelMeta

from .candidates import TRICKS, program

WALLS = choose()
pytestmark = pytest.mark.skipif(not isinstance(WALLS, Bubblewrap), reason=f"not run: {WALLS.name}")
MINI = Path(__file__).parents[1] / "measure" / "data" / "mini"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def bundle() -> Bundle:
    return Bundle(
        path=MINI,
        slug="mini",
        reference=MINI / "reference",
        checker=MINI / "accuracy_checker",
        benchmark=MINI / "benchmark",
        objective=None,
        metric=Metric("output_tokens_per_s", "tokens/s", "higher"),
        meta=ModelMeta("fake/fake"),
        checker_timeout_s=30.0,
        benchmark_timeout_s=30.0,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    return folder


@pytest.fixture
def start(tmp_path: Path, model: Path) -> Callable[..., Any]:
    """Start a candidate with a trick behind the walls; its directory is named by the trick."""

    def make(trick: str, **names: object) -> Any:
        directory = tmp_path / trick
        directory.mkdir()
        (directory / "fake_server.py").write_bytes(Path(fake_server.__file__).read_bytes())
        (directory / "server.py").write_text(program(trick, **names))
        (directory / "candidate.toml").write_text('start = ["python", "server.py"]\nready_timeout_s = 20\n')
        return launch(directory, model, log_dir=tmp_path / "logs", sandbox=WALLS)

    return make


def tried(tmp_path: Path, trick: str) -> dict[str, list[str]]:
    """What came of it: name → (done or failed, with what)."""
    found: dict[str, list[str]] = json.loads((tmp_path / trick / "tried.json").read_text())
    return found


def test_every_trick_is_here() -> None:
    source = Path(__file__).read_text()
    assert [name for name in TRICKS if f'"{name}"' not in source] == []


@pytest.mark.parametrize("trick", ["ReadsTheCheckersFiles", "ChangesTheModel"])
def test_files_are_out_of_reach(start: Any, bundle: Bundle, model: Path, tmp_path: Path, trick: str) -> None:
    integrity = Integrity(bundle, model)
    before = integrity.digests()
    with start(trick, BUNDLE=str(MINI), MODEL=str(model)):
        found = tried(tmp_path, trick)
    assert found
    assert {how for how, _ in found.values()} == {"failed"}, found
    assert integrity.digests() == before


def test_the_rival_lives(start: Any, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as rival:
        try:
            # In its own namespace a process of that number may be the cheat itself: any other is out of reach.
            with start("KillsItsRival", RIVAL=rival.pid):
                found = tried(tmp_path, "KillsItsRival")
            assert {how for how, _ in found.values()} == {"failed"}, found
            assert rival.poll() is None
        finally:
            rival.kill()


def test_the_benchmarks_output_is_the_benchmarks(start: Any, bundle: Bundle, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "windows" / "one.json"
    output.parent.mkdir()
    with start("OverwritesTheBenchmarksOutput", OUTPUT=str(output)) as server:
        result = run_benchmark(bundle, server.url, model, seed=1, window_s=0.5, output=output)
    assert result.value is not None
    assert result.value < 1e6
    assert tried(tmp_path, "OverwritesTheBenchmarksOutput")["write"][0] == "failed"


def test_the_clock_is_ours(start: Any, bundle: Bundle, model: Path, tmp_path: Path) -> None:
    begin_s = time.perf_counter()
    with start("PatchesTime") as server:
        assert run_checker(bundle, server.url, model, output=tmp_path / "check.json").ok
        result = run_benchmark(bundle, server.url, model, seed=1, window_s=0.5, output=tmp_path / "w.json")
    found = tried(tmp_path, "PatchesTime")
    assert {how for how, _ in found.values()} == {"failed"}, found
    assert result.value is not None
    tokens = result.value * 0.5
    assert tokens < 1e5 * (time.perf_counter() - begin_s)


def test_at_rest_nothing_of_it_works(start: Any, tmp_path: Path) -> None:
    ticks = tmp_path / "WorksWhileItRests" / "ticks"
    with start("WorksWhileItRests") as server:
        end_s = time.monotonic() + 20
        while not ticks.exists() and time.monotonic() < end_s:
            time.sleep(0.02)
        server.pause()
        before = ticks.stat().st_size
        time.sleep(0.3)
        assert ticks.stat().st_size == before
        server.resume()


def test_nobody_else_answers_for_it(start: Any, bundle: Bundle, model: Path, tmp_path: Path) -> None:
    del bundle
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "fake_server.py").write_bytes(Path(fake_server.__file__).read_bytes())
    (plain / "candidate.toml").write_text('start = ["python", "fake_server.py"]\nready_timeout_s = 20\n')
    with (
        launch(plain, model, log_dir=tmp_path / "logs", sandbox=WALLS) as reference,
        start("AsksTheReference", REFERENCE=reference.port),
    ):
        found = tried(tmp_path, "AsksTheReference")
    assert {how for how, _ in found.values()} == {"failed"}, found


def test_at_rest_what_left_its_group_rests_too(start: Any, tmp_path: Path) -> None:
    ticks = tmp_path / "SlowsItsRivalFromOutside" / "ticks"
    with start("SlowsItsRivalFromOutside") as server:
        grows(ticks)
        server.pause()
        time.sleep(0.05)  # what was being written when it was stopped
        before = ticks.stat().st_size
        time.sleep(0.3)
        assert ticks.stat().st_size == before
        server.resume()
        grows(ticks, before)
    before = ticks.stat().st_size
    time.sleep(0.3)
    assert ticks.stat().st_size == before


def grows(path: Path, before: int = 0) -> None:
    """Wait until a file is longer than it was."""
    end_s = time.monotonic() + 20
    while not path.exists() or path.stat().st_size <= before:
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_where_the_evaluator_writes_nothing_is_planted(start: Any, bundle: Bundle, model: Path, tmp_path: Path) -> None:
    windows = tmp_path / "windows"
    windows.mkdir()
    shared = Path(tempfile.mkdtemp(prefix="zoo-shared-"))
    mark, folders = f"zoo-{uuid.uuid4().hex}.pth", [windows, shared, Path(tempfile.gettempdir()), Path("/dev/shm")]
    try:
        names = {"FOLDERS": [str(folder) for folder in folders], "MARK": mark, "NAMES": [shared.name, "one.json"]}
        (windows / "one.json").write_text("{}")
        with start("WritesWhereTheEvaluatorDoes", **names) as server:
            assert run_benchmark(bundle, server.url, model, seed=1, window_s=0.3, output=windows / "one.json").ok
            found = tried(tmp_path, "WritesWhereTheEvaluatorDoes")
        assert len(found) == 2 * len(folders)
        assert {how for name, (how, _) in found.items() if name.startswith("list")} == {"failed"}, found
        assert [folder for folder in folders if (folder / mark).exists()] == []
    finally:
        shutil.rmtree(shared)


def test_in_proc_there_is_nobody_else(start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED_OF_THE_RUN", "4711")
    mark = f"zoo-{uuid.uuid4().hex}"
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", mark]) as rival:
        try:
            with start("SnoopsInProc", RIVAL=rival.pid, MARK=mark):
                found = tried(tmp_path, "SnoopsInProc")
            assert {how for how, _ in found.values()} == {"failed"}, found
            assert len(found) == 5
        finally:
            rival.kill()


def test_a_rival_keeps_its_turns_and_nobody_takes_more(start: Any, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as rival:
        try:
            seen = psutil.Process(rival.pid)
            before = seen.nice(), seen.cpu_affinity()
            with start("HindersItsRival", RIVAL=rival.pid):
                found = tried(tmp_path, "HindersItsRival")
            assert len(found) == 8
            assert [name for name, (how, _) in found.items() if how != "failed"] == [], found
            assert (seen.nice(), seen.cpu_affinity()) == before
            assert seen.status() != psutil.STATUS_STOPPED
        finally:
            rival.kill()


def test_nothing_of_it_is_loaded_elsewhere(start: Any, tmp_path: Path) -> None:
    mark = f"zoo-{uuid.uuid4().hex}"
    relay = Path(sandbox_relay.__file__).resolve()
    before = relay.read_bytes()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as rival:
        try:
            with start("LoadsItselfIntoOthers", RIVAL=rival.pid, MARK=mark, RELAY=str(relay)):
                found = tried(tmp_path, "LoadsItselfIntoOthers")
        finally:
            rival.kill()
    assert len(found) == 13
    # Some places are there in its own namespace alone, empty, and go with it: nobody else has ever seen them.
    inside = {name for name, (how, _) in found.items() if how == "done"}
    assert inside <= {"/etc/ld.so.preload", "/etc/environment", f"plant in {relay.parent}"}, found
    assert not (relay.parent / mark).exists()
    assert relay.read_bytes() == before
    assert [place for place in ("/etc/ld.so.preload", "/etc/environment") if mark in text_of(Path(place))] == []


def text_of(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def test_a_life_finds_nothing_of_the_one_before(start: Any, tmp_path: Path) -> None:
    mark = f"zoo-{uuid.uuid4().hex}"
    for life in ("one", "two"):
        with start("KeepsAnswersForItsNextLife", MARK=mark):
            found = tried(tmp_path, "KeepsAnswersForItsNextLife")
        assert {how for how, _ in found.values()} == {"failed"}, (life, found)
        assert len(found) >= 5  # its home may be one of the other places
        shutil.rmtree(tmp_path / "KeepsAnswersForItsNextLife")
