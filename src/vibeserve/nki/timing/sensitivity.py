"""What the unsure constants are worth: the latency when each is halved and doubled."""

from __future__ import annotations

from typing import Any

from vibeserve.nki.timing.params import Params
from vibeserve.nki.timing.run import Timed, schedule


def sensitivities(run: Timed) -> list[dict[str, Any]]:
    """For each inferred or guessed constant that changes the latency: its value, mark, and the relative change of the
    latency when it is halved and doubled; the one that matters most first. The run's own schedule is restored after."""
    base = run.schedule.latency_ps
    if not base:
        return []
    found = []
    for name in run.params.unsure():
        value = run.params[name]
        halved, doubled = (_latency(run, run.params.changed(name, value * factor)) / base - 1 for factor in (0.5, 2.0))
        if halved or doubled:
            found.append(
                {
                    "constant": name,
                    "value": value,
                    "mark": run.params.constants[name].mark,
                    "halved": halved,
                    "doubled": doubled,
                }
            )
    run.schedule = schedule(run.recorder, run.params, run.mode)
    return sorted(found, key=lambda row: -max(abs(row["halved"]), abs(row["doubled"])))


def _latency(run: Timed, params: Params) -> int:
    return schedule(run.recorder, params, run.mode).latency_ps
