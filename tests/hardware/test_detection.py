"""This machine: measured once, kept with its noise, measured again when asked."""

import json
import subprocess

import pytest

from vibeserve.base.errors import MissingError
from vibeserve.hardware import detect, detect_higher, get, is_measured
from vibeserve.hardware.detection import noise_of


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path))


SAMPLES = {
    "threads": 2,
    "bandwidth": {"samples": [30e9, 31e9, 32e9], "with": "a probe"},
    "peaks": {
        "float32": {"samples": [1e11, 1.1e11, 1.4e11], "with": "another"},
        "int8": {"reason": "this build has no int8 product"},
    },
}


def test_median_and_spread():
    noise = noise_of([2.0, 1.0, 4.0])
    assert (noise.median, noise.lowest, noise.highest, noise.n) == (2.0, 1.0, 4.0, 3)
    assert noise.spread == 1.5


def test_measured_once_then_kept():
    calls = []

    def probe():
        calls.append(1)
        return SAMPLES

    assert not is_measured()
    machine = detect(probe=probe)
    assert is_measured()
    again = detect(probe=probe)
    assert len(calls) == 1
    assert machine == again
    assert machine.name == "cpu"
    assert machine.bandwidth_bytes_per_s == 31e9
    assert machine.peaks == {"float32": 1.1e11}
    assert machine.about["not_measured"] == {"int8": "this build has no int8 product"}
    noise = machine.used("peaks.float32").noise
    assert noise is not None
    assert noise.n == 3
    detect(refresh=True, probe=probe)
    assert len(calls) == 2


def test_of_each_rate_the_higher_of_both_measurements_is_kept():
    first = detect(probe=lambda: SAMPLES)
    quick = {
        "bandwidth": {"samples": [29e9], "with": "a probe, later"},
        "peaks": {"float32": {"samples": [2e11], "with": "later"}, "int8": {"samples": [3e11], "with": "later"}},
    }
    machine = detect_higher(probe=lambda: quick)
    assert machine.bandwidth_bytes_per_s == first.bandwidth_bytes_per_s == 31e9
    assert machine.used("bandwidth_bytes_per_s").source.startswith("a probe, ")
    assert machine.peaks == {"float32": 2e11, "int8": 3e11}
    assert detect().peaks == machine.peaks
    slow = {"bandwidth": {"samples": [1e9], "with": "slow"}, "peaks": {"float32": {"reason": "broken"}}}
    again = detect_higher(probe=lambda: slow)
    assert (again.bandwidth_bytes_per_s, again.peaks) == (31e9, {"float32": 2e11, "int8": 3e11})


def test_a_machine_never_measured_is_measured():
    assert detect_higher(probe=lambda: SAMPLES).peaks == detect().peaks == {"float32": 1.1e11}


def test_a_damaged_cache_is_measured_again(tmp_path):
    detect(probe=lambda: SAMPLES)
    (kept,) = (tmp_path / "hardware").glob("*.json")
    kept.write_text("{")
    assert not is_measured()
    assert detect(probe=lambda: SAMPLES).bandwidth_bytes_per_s == 31e9


def test_cpu_is_this_machine(monkeypatch):
    monkeypatch.setattr("vibeserve.hardware.detection.run_probes", lambda: SAMPLES)
    assert get("this") == get("cpu")


def test_a_probe_that_fails_says_why(monkeypatch):
    def fail(*args, **kwargs):
        raise subprocess.CalledProcessError(1, "python", stderr="Traceback\nImportError: no numpy here\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(MissingError, match="no numpy here"):
        detect()


def test_the_probes_in_small(monkeypatch):
    from vibeserve.hardware import probes

    monkeypatch.setattr(probes, "_READ_FLOOR_BYTES", 1 << 20)
    monkeypatch.setattr(probes, "last_level_cache_bytes", lambda: 1 << 17)
    monkeypatch.setattr(probes, "_SIZES", {"float32": 32, "float64": 32})
    monkeypatch.setattr(probes, "ROUNDS", 1)
    assert probes.usable_cpus() >= 1
    found = {"bandwidth": probes.memory_bandwidth(2), **probes.numpy_peaks(1)}
    assert set(found) == {"bandwidth", "float32", "float64"}
    for probe in found.values():
        assert len(probe["samples"]) == probes.REPEATS
        assert min(probe["samples"]) > 1e6
        assert "threads" in probe["with"]


@pytest.mark.slow
def test_the_probes_measure_this_machine_for_real(cli):
    code, out, err = cli("hardware", "detect", "--json")
    assert code == 0
    assert "measuring" in err
    found = json.loads(out)
    assert found["name"] == "cpu"
    assert found["bandwidth_bytes_per_s"] > 1e8
    assert found["peaks"]["float32"] > 1e8
    noise = found["sources"]["bandwidth_bytes_per_s"][0]["noise"]
    assert noise["lowest"] <= noise["median"] <= noise["highest"]
    code, out, err = cli("hardware", "detect")
    assert (code, err) == (0, "")
    assert "median of 9" in out


def test_machines_on_the_command_line(cli):
    code, out, _ = cli("hardware", "trn2", "--json")
    document = json.loads(out)
    assert code == 0
    assert {"name", "generation", "peaks", "bandwidth_bytes_per_s", "memory_bytes", "sources"} <= set(document)
    code, out, _ = cli("hardware")
    assert code == 0
    assert "apple-m4-max" in out
    code, out, _ = cli("hardware", "--json")
    assert len(json.loads(out)["machines"]) > 20
    code, out, err = cli("hardware", "trn9")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == "error: unknown machine 'trn9'"


def test_noise_is_named(cli, monkeypatch):
    wild = {**SAMPLES, "bandwidth": {"samples": [1e9, 30e9, 32e9], "with": "a probe"}}
    monkeypatch.setattr("vibeserve.hardware.detection.run_probes", lambda: wild)
    code, out, _ = cli("hardware", "detect")
    assert code == 0
    assert "noisy: bandwidth_bytes_per_s; the machine was busy" in out
    assert "not measured: int8: this build has no int8 product" in out


def test_a_busy_round_is_done_again(monkeypatch):
    """Rounds until one is calm; the quickest counts."""
    from vibeserve.hardware import probes

    clock = iter([0.0, 1.0, *(0, 9, 0, 1, 0, 5), 0.0, 1.0, *(0, 2, 0, 2, 0, 2)])
    monkeypatch.setattr(probes.time, "perf_counter", lambda: float(next(clock)))
    assert probes._seconds(lambda: None, repeats=3) == [2.0, 2.0, 2.0]


def test_the_compiled_probe_and_the_highest_of_both(monkeypatch):
    import shutil

    from vibeserve.hardware import probes

    monkeypatch.setattr(probes, "ROUNDS", 1)
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("not run: no C compiler")
    found = probes.compiled_peaks(1)
    assert set(found) == {"float32", "float64"}
    assert all(len(row["samples"]) == probes.REPEATS and min(row["samples"]) > 1e8 for row in found.values())
    library = {"float32": {"samples": [1.0], "with": "slow"}, "int8": {"reason": "none"}}
    assert probes.highest(library, found)["float32"] is found["float32"]
    assert probes.highest(found, library)["float32"] is found["float32"]
    assert probes.highest(library, {"int8": {"samples": [2.0], "with": "x"}})["int8"]["samples"] == [2.0]
    monkeypatch.setattr(probes.shutil, "which", lambda name: None)
    assert probes.compiled_peaks(1) == {}
