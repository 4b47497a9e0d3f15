"""What counts as a disturbance."""

from typing import NamedTuple

from vibeserve.measure.noise import Load, LoadWatch, core_speed, machine_times, own_cpu_s, quiet_now, usual


def test_each_disturbance_is_said_in_words():
    assert Load(1.0, 0.05, 0.0, 100.0).disturbances(100.0) == []
    assert Load(1.0, None, 0.0, 100.0).disturbances() == []
    found = Load(1.0, 1.5, 0.2, 70.0).disturbances(100.0)
    assert found == [
        "other processes used 1.50 cores",
        "the hypervisor took 20.0% of the cores",
        "the cores ran at 70% of their usual speed",
    ]
    assert Load(1.0, 0.0, 0.0, 130.0).disturbances(100.0) == []


def test_the_usual_speed_is_the_median():
    assert usual([]) is None
    assert usual([3.0, 1.0, 2.0]) == 2.0
    assert usual([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_our_own_work_is_no_disturbance():
    watch = LoadWatch(own_cpu_s)
    core_speed(200)
    load = watch.stop()
    assert load.others_cores is not None
    assert load.seconds > 0
    assert load.speed > 0


def test_core_seconds_are_in_the_hundredths_that_the_kernel_counts(monkeypatch):
    """The order of a sum of floats decides its last digit: two equal counts must be equal."""
    import psutil

    class Times(NamedTuple):
        user: float
        idle: float
        system: float

    seen = [Times(0.1, 5.0, 0.2), Times(0.1, 9.3, 0.2)]
    monkeypatch.setattr(psutil, "cpu_times", lambda: seen.pop(0))
    first, second = machine_times(), machine_times()
    assert first.busy_s == second.busy_s == 0.3


def test_the_machine_is_seen():
    before = machine_times()
    load = quiet_now(0.05)
    after = machine_times()
    assert after.busy_s >= before.busy_s
    assert after.steal_s >= before.steal_s
    assert load.seconds >= 0.05
