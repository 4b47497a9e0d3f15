"""Pairs of windows: order, seeds, disturbances, and a verdict whatever the direction."""

import itertools
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.base.clock import LogicalClock
from vibeserve.base.errors import InputError
from vibeserve.base.scripted import Script, ScriptedRunner
from vibeserve.measure.compare import compare, measure_window, order_of, pair_seed, screen
from vibeserve.measure.errors import RunError
from vibeserve.measure.launch import launch
from vibeserve.measure.noise import CpuTimes, LoadWatch
from vibeserve.measure.servers import ExternalServer, wait_until_idle
from vibeserve.targets.types import Metric


class StillServer:
    """A server of which only the address matters."""

    def __init__(self, url: str):
        self.url = url
        self.acts: list[str] = []

    def require_alive(self) -> None:
        self.acts.append("alive")

    def cpu_s(self) -> float:
        return 0.0

    def pause(self) -> None:
        self.acts.append("pause")

    def resume(self) -> None:
        self.acts.append("resume")


def quiet_watch(ours):
    return LoadWatch(ours, times=lambda: CpuTimes(0.0, 0.0), speed=lambda: 1e6)


def scripted(values, document=None):
    """A runner whose benchmarks write the next value for the address that they are given."""

    def play(command):
        words = dict(itertools.pairwise(command.argv))
        value = next(values[words["--url"]])
        written = {"output_tokens_per_s": value, "seed": words["--seed"]} | (document or {})
        return Script(runs_for_s=1.0, files={Path(words["--output-json"]): json.dumps(written)})

    return ScriptedRunner(play, LogicalClock())


def run(bundle, tmp_path, values_a, values_b, **changes):
    runner = scripted({"http://a": iter(values_a), "http://b": iter(values_b)})
    seen: list = []
    options = {
        "pairs": 5,
        "window_s": 1.0,
        "seed": 7,
        "output_dir": tmp_path,
        "runner": runner,
        "clock": runner.clock,
        "watch": quiet_watch,
        "on_window": seen.append,
    }
    a, b = StillServer("http://a"), StillServer("http://b")
    result = compare(bundle, tmp_path, a, b, **(options | changes))
    return result, seen, a, b


def test_better_is_above_one_whatever_the_direction(bundle, tmp_path):
    result, *_ = run(bundle, tmp_path, [100.0] * 5, [110.0, 111, 110, 109, 110])
    assert result.ratio == pytest.approx(1.1, rel=0.01)
    assert result.better
    assert result.pairs == 5
    slower = replace(bundle, metric=Metric("output_tokens_per_s", "s", "lower"))
    result, *_ = run(slower, tmp_path, [100.0] * 5, [110.0, 111, 110, 109, 110])
    assert result.ratio == pytest.approx(1 / 1.1, rel=0.01)
    assert not result.better


def test_both_windows_of_a_pair_have_its_prompts_and_the_other_server_rests(bundle, tmp_path):
    result, seen, a, _ = run(bundle, tmp_path, [1.0] * 6, [1.0] * 6, pairs=6)
    by_pair = {}
    for window in seen:
        by_pair.setdefault(window.pair, {})[window.side] = window.result.document["seed"]
    assert len(by_pair) == 6
    assert all(seeds["a"] == seeds["b"] == str(pair_seed(7, pair)) for pair, seeds in by_pair.items())
    assert len({seeds["a"] for seeds in by_pair.values()}) == 6
    assert a.acts.count("pause") == a.acts.count("resume") == 6
    assert tuple(result.windows) == tuple(seen)
    assert json.loads((tmp_path / "pair-01-a.json").read_text())["output_tokens_per_s"] == 1.0


def test_the_first_pairs_say_by_their_spread_how_many_there_are(bundle, tmp_path):
    noisy = [100.0, 110, 92, 105, 97, 103, 100, 95, 108, 99, 101, 94]
    result, seen, *_ = run(bundle, tmp_path, [100.0] * 12, noisy, most=12)
    assert (result.pairs, result.first, len(seen)) == (12, 5, 24)
    assert result.notes == (
        "the first 5 pairs spread by 6.9%, so there are 12: a gain of 5% is to be found in 80% of cases (the noise asks for 28)",
    )
    calm, *_ = run(bundle, tmp_path, [100.0] * 5, [101.0, 100, 99, 101, 100], most=12)
    assert (calm.pairs, calm.first, calm.notes) == (5, 5, ())
    fixed, *_ = run(bundle, tmp_path, [100.0] * 7, noisy[:7], pairs=7)
    assert (fixed.pairs, fixed.first, fixed.notes) == (7, 7, ())


@given(st.integers(1, 40), st.integers())
def test_the_order_is_balanced_and_drawn_by_the_seed(pairs, seed):
    order = order_of(pairs, seed)
    assert len(order) == pairs
    assert order == order_of(pairs, seed)
    first = [sides[0] for sides in order]
    assert abs(first.count("a") - first.count("b")) <= 1
    assert all({*sides} == {"a", "b"} for sides in order)


def test_orders_differ_between_seeds():
    assert len({tuple(order_of(8, seed)) for seed in range(40)}) > 5


def test_a_disturbed_window_is_measured_again_once_before_its_value_is_looked_at(bundle, tmp_path):
    busy = itertools.cycle([0.0, 3.0, 0.0, 0.0])  # every other window sees a busy neighbour

    def watch(ours):
        return LoadWatch(ours, times=lambda: CpuTimes(next(busy), 0.0), speed=lambda: 1e6, monotonic_s=_ticks())

    result, seen, *_ = run(bundle, tmp_path, [5.0, 1.0] * 5, [5.0, 1.0] * 5, watch=watch)
    assert all(window.retried for window in seen)
    assert result.values_a == result.values_b == (1.0,) * 5
    assert not result.noisy
    assert result.notes == ("10 of 10 windows were measured again, because something disturbed them",)


def test_a_machine_that_stays_noisy_is_said(bundle, tmp_path):
    busy = itertools.cycle([0.0, 3.0])

    def watch(ours):
        return LoadWatch(ours, times=lambda: CpuTimes(next(busy), 0.0), speed=lambda: 1e6, monotonic_s=_ticks())

    result, *_ = run(bundle, tmp_path, [1.0] * 20, [1.0] * 20, watch=watch)
    assert result.noisy
    said = re.compile(
        r"pair 1, a: other processes used (3.00|2.9\d) cores, also when it was measured again"
    )  # less our own
    assert any(said.fullmatch(note) for note in result.notes), result.notes


def _ticks():
    ticks = itertools.count()
    return lambda: float(next(ticks))


def test_too_few_pairs(bundle, tmp_path):
    with pytest.raises(InputError, match="4 pairs are too few"):
        run(bundle, tmp_path, [1.0] * 5, [1.0] * 5, pairs=4)


def test_a_window_without_a_value_is_an_error_that_says_why(bundle, tmp_path):
    runner = scripted({"http://a": iter([1.0])}, {"failed": 3, "requests": 9})
    with pytest.raises(RunError, match="http://a: 3 of 9 requests failed"):
        measure_window(
            bundle,
            tmp_path,
            StillServer("http://a"),
            seed=1,
            window_s=1,
            output=tmp_path / "w.json",
            runner=runner,
            clock=runner.clock,
            watch=quiet_watch,
        )


def test_a_window_in_which_nothing_came_is_an_error(bundle, tmp_path):
    with pytest.raises(RunError, match="output_tokens_per_s is 0: nothing was measured in 1 s"):
        run(bundle, tmp_path, [0.0] * 10, [1.0] * 10)


def test_a_screen_may_only_reject(bundle, tmp_path):
    for values_b, goes_on in (([50.0, 50.0], False), ([50.0, 100.0], True), ([500.0, 500.0], True)):
        runner = scripted({"http://a": iter([100.0] * 2), "http://b": iter(values_b)})
        servers = StillServer("http://a"), StillServer("http://b")
        going, why = screen(bundle, tmp_path, *servers, seed=1, output_dir=tmp_path, runner=runner, clock=runner.clock)
        assert going == goes_on
        assert f"{values_b[0] / 100:.3f}" in why


def test_two_real_servers_and_one_that_dies_under_load(bundle, candidate, tmp_path, monkeypatch):
    monkeypatch.setattr("vibeserve.measure.noise.Load.disturbances", lambda *_: [])  # other tests may run beside this
    with (
        launch(candidate("a", ttft_s=0.02), tmp_path, log_dir=tmp_path / "la") as a,
        launch(candidate("b", ttft_s=0.01), tmp_path, log_dir=tmp_path / "lb") as b,
    ):
        result = compare(bundle, tmp_path, a, b, window_s=0.4, pairs=5, seed=1, output_dir=tmp_path / "windows")
        assert result.ratio > 1.0
        assert all(window.load.seconds > 0.4 for window in result.windows)
        paused = ExternalServer(b.url)
        paused.require_alive()
        assert paused.cpu_s() in (None, pytest.approx(b.cpu_s(), abs=0.5))
    with (
        launch(candidate("c"), tmp_path, log_dir=tmp_path / "lc") as a,
        launch(candidate("d", fault="die", after=2), tmp_path, log_dir=tmp_path / "ld") as b,
        pytest.raises(RunError, match="the server died: exit code 9 \\(scripted death\\)"),
    ):
        compare(bundle, tmp_path, a, b, window_s=0.4, seed=1, output_dir=tmp_path / "windows")


def test_an_address_that_is_none(tmp_path):
    for bad in ("localhost:8000", "https://x", "http://", "http://x:port"):
        with pytest.raises(InputError, match="not the address of a server"):
            ExternalServer(bad)
    with pytest.raises(RunError, match="no server answers at"):
        ExternalServer("http://127.0.0.1:1").require_alive()


def test_load_watch_sees_a_busy_neighbour_and_not_ourselves():
    child = os.fork()
    if child == 0:
        while True:
            pass
    try:
        watch = LoadWatch(lambda: 0.0)
        time.sleep(0.5)
        load = watch.stop()
        assert load.others_cores is not None
        assert load.others_cores > 0.3
        assert any("other processes used" in words for words in load.disturbances())
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert LoadWatch(lambda: None).stop().others_cores is None


class WorkingServer(StillServer):
    """It uses one core for so many seconds of the clock."""

    def __init__(self, clock, seconds):
        super().__init__("http://a")
        self.clock, self.seconds = clock, seconds

    def cpu_s(self):
        return min(self.clock.monotonic_s(), self.seconds)


def test_a_window_begins_when_the_server_has_finished_what_was_before():
    clock = LogicalClock()
    assert wait_until_idle(WorkingServer(clock, 3.0), clock)
    assert 3.0 <= clock.monotonic_s() <= 3.5
    assert not wait_until_idle(WorkingServer(clock, 1e9), clock, limit_s=5.0)
    assert clock.monotonic_s() <= 9.0
    unknown = StillServer("http://a")
    unknown.cpu_s = lambda: None
    assert wait_until_idle(unknown, clock)
