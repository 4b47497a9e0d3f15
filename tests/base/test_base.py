"""Clock, randomness, files, JSON, units."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.base import jsonio, randomness, units
from vibeserve.base.clock import LogicalClock
from vibeserve.base.files import DiskFiles, write_json


def test_logical_clock_moves_only_when_told():
    clock = LogicalClock()
    before = clock.now()
    clock.sleep(2.5)
    assert clock.monotonic_s() == 2.5
    assert (clock.now() - before).total_seconds() == 2.5
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1)


def test_streams_are_independent_of_each_other():
    assert randomness.stream(1, "a").random() == randomness.stream(1, "a").random()
    assert randomness.stream(1, "a").random() != randomness.stream(1, "b").random()
    assert randomness.stream(1, "a").random() != randomness.stream(2, "a").random()
    assert randomness.derive_seed(7, "prompts", 3) == 3947091540967328649


def test_write_is_whole_or_not_at_all(tmp_path: Path):
    files = DiskFiles()
    target = tmp_path / "deep" / "x.json"
    write_json(files, target, {"a": 1})
    with pytest.raises(ValueError, match="finite"):
        write_json(files, target, {"a": math.nan})
    assert json.loads(target.read_text()) == {"a": 1}
    assert [path.name for path in target.parent.iterdir()] == ["x.json"]


def test_json_knows_our_values(tmp_path: Path):
    @dataclass(frozen=True)
    class Point:
        x: float
        where: Path

    text = jsonio.dumps({"p": Point(1.5, Path("a/b")), "s": {3, 1}}, indent=None)
    assert json.loads(text) == {"p": {"x": 1.5, "where": "a/b"}, "s": [1, 3]}


@given(st.floats())
def test_no_number_that_is_not_finite_is_ever_written(value):
    if math.isfinite(value):
        assert json.loads(jsonio.dumps(value)) == value
    else:
        with pytest.raises(ValueError, match="finite"):
            jsonio.dumps(value)
        assert jsonio.finite(value, "no data") == (None, "no data")


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("90s", 90), ("1.5h", 5400), ("250ms", 0.25), ("12", 12)])
def test_durations(text, seconds):
    assert units.parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-3s", "ten", "inf", "nan"])
def test_bad_durations(text):
    with pytest.raises(ValueError, match="not a time span"):
        units.parse_duration_s(text)


def test_figures_for_people():
    assert units.si(41943040, "B") == "41.94 MB"
    assert units.si(157.2864e12, "FLOP/s") == "157.3 TFLOP/s"
    assert units.duration(218.453e-6) == "218.5 µs"
    assert units.duration(0) == "0 s"
