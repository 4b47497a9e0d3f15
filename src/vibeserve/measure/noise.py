"""Whether the machine was ours while a window ran: what others computed, what the hypervisor took, how fast it went."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Above these a window counts as disturbed. Kernel threads and interrupts alone take a few hundredths of a core.
OTHERS_CORES = 0.15
STEAL_SHARE = 0.03
SLOWER = 0.75  # of the usual speed; a sibling thread that somebody uses takes as much
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


@dataclass(frozen=True, slots=True)
class Load:
    """What a window saw. `others_cores`: cores used by processes that are not ours (None: not known); `steal_share`:
    share of all core time that the hypervisor gave away; `speed`: loops per second of a fixed piece of work, before it.
    """

    seconds: float
    others_cores: float | None
    steal_share: float
    speed: float

    def disturbances(self, usual_speed: float | None = None) -> list[str]:
        """What disturbed it, in words; empty where nothing did. `usual_speed` is that of the other windows."""
        found = []
        if self.others_cores is not None and self.others_cores > OTHERS_CORES:
            found.append(f"other processes used {self.others_cores:.2f} cores")
        if self.steal_share > STEAL_SHARE:
            found.append(f"the hypervisor took {self.steal_share:.1%} of the cores")
        if usual_speed and self.speed < SLOWER * usual_speed:
            found.append(f"the cores ran at {self.speed / usual_speed:.0%} of their usual speed")
        return found


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Core seconds of the whole machine since it started."""

    busy_s: float
    steal_s: float


def machine_times() -> CpuTimes:
    """Core seconds spent and stolen so far, over all cores."""
    import psutil

    times = psutil.cpu_times()
    steal_s = getattr(times, "steal", 0.0)
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    guests_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # already in user and nice
    # The kernel counts in hundredths; a sum of floats may be less than one before it by their last digit.
    return CpuTimes(round(sum(times) - idle_s - steal_s - guests_s, 2), steal_s)


def core_speed(tries: int = 3) -> float:
    """Loops per second of a fixed piece of work (a few milliseconds): sees throttling, and a core that is shared."""
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        total = 0
        for number in range(50_000):
            total += number
        best = min(best, time.perf_counter() - start)
    return 50_000 / best


class LoadWatch:
    """Watches from its making to `stop`. `ours` returns the CPU seconds of our own processes, or None (not known)."""

    def __init__(
        self,
        ours: Callable[[], float | None],
        *,
        times: Callable[[], CpuTimes] = machine_times,
        monotonic_s: Callable[[], float] = time.monotonic,
        speed: Callable[[], float] = core_speed,
    ):
        self._ours, self._times, self._monotonic_s = ours, times, monotonic_s
        self._speed = speed()
        self._begin_s = monotonic_s()
        self._begin, self._begin_ours = times(), ours()

    def stop(self) -> Load:
        """What happened since."""
        seconds = max(1e-9, self._monotonic_s() - self._begin_s)
        end, end_ours = self._times(), self._ours()
        others = None
        if end_ours is not None and self._begin_ours is not None:
            others = max(0.0, (end.busy_s - self._begin.busy_s) - (end_ours - self._begin_ours)) / seconds
        steal_share = (end.steal_s - self._begin.steal_s) / (seconds * (os.cpu_count() or 1))
        return Load(seconds, others, max(0.0, steal_share), self._speed)


def own_cpu_s() -> float:
    """CPU seconds of this process alone: what it starts says its own when it ends."""
    times = os.times()
    return times.user + times.system


def usual(speeds: Sequence[float]) -> float | None:
    """The median speed; None of none."""
    if not speeds:
        return None
    ordered = sorted(speeds)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def quiet_now(seconds: float = 1.0) -> Load:
    """Look at the machine for a moment, before anything of ours runs."""
    watch = LoadWatch(own_cpu_s)
    time.sleep(seconds)
    return watch.stop()


def governor() -> str | None:
    """The frequency governor of the first core, where the system has one."""
    try:
        return _GOVERNOR.read_text(encoding="utf-8").strip()
    except OSError:
        return None
