"""Time: what a kernel would cost on the device, as a schedule of engines and DMA queues, and a profile of it.

`simulate_timed` runs a kernel and gives the figures of `nki simulate --timing`; `profile` gives (outputs, Profile). How
it is laid out: `params` the constants (data/timing/*.toml), `ops` what a run did, `deps` what waits for what, `cost` and
`transfers` what each instruction takes, `schedule` the events, `run` the whole and its sums, `tables` the profile, `card`
the page for a person, `sensitivity` what the guesses are worth. Everything here is simulated, not verified on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vibeserve.nki.timing.run import Timed, document, timed
from vibeserve.nki.timing.run import schedule as scheduled
from vibeserve.nki.timing.schedule import LIST, PROGRAM

if TYPE_CHECKING:
    from vibeserve.profiles.profile import Profile

__all__ = ["Timed", "document", "profile", "save_profile", "simulate_timed", "timed"]


def profile(kernel: Any, target: str | None = None, lnc: int | None = None, **options: Any) -> Any:
    """A callable that runs `kernel` on arrays and returns (outputs, Profile).

    `target` is trn1, trn2 or trn3, `lnc` 1 or 2; `options` are those of `timed` (mode, shape_only, override).
    """

    def call(*args: Any, **kwargs: Any) -> tuple[Any, Profile]:
        from vibeserve.nki.timing import tables

        outputs, run = timed(kernel, args, kwargs, target=target, lnc=lnc, **options)
        return outputs, tables.profile(run, run.kernel)

    return call


def save_profile(run: Timed, name: str, data_path: Path | None = None, note: str = "") -> Path:
    """Put the run's profile into the store as `name`; returns its folder."""
    from vibeserve import profiles
    from vibeserve.nki.timing import tables

    stored = profiles.save(tables.profile(run, name), name, data_path=data_path, source="simulator", note=note)
    assert stored.directory is not None
    return stored.directory


def simulate_timed(
    kernel: Any,
    arguments: Mapping[str, Any],
    *,
    target: str | None = None,
    lnc: int | None = None,
    profile: str | None = None,
    data_path: Path | None = None,
    note: str = "",
    sensitivity: bool = False,
    **options: Any,
) -> tuple[dict[str, Any], Any]:
    """Run a kernel by keyword arguments: (the figures of `nki simulate --timing`, its result).

    `profile` names the profile to save, `note` says what changed; `sensitivity` adds what each unsure constant changes.
    """
    result, run = timed(kernel, (), arguments, target=target, lnc=lnc, **options)
    found = document(run)
    found["profile"] = profile
    if profile is not None:
        found["profile_path"] = str(save_profile(run, profile, data_path, note))
    if sensitivity:
        from vibeserve.nki.timing.sensitivity import sensitivities

        found["sensitivity"] = sensitivities(run)
    from vibeserve.nki.timing.card import advice, lines_of_interest, roofline

    other = LIST if run.mode == PROGRAM else PROGRAM
    schedules = {run.mode: run.schedule, other: scheduled(run.recorder, run.params, other)}
    found["latency_s_by_schedule"] = {mode: schedules[mode].latency_ps * 1e-12 for mode in (PROGRAM, LIST)}
    found["list_keeps_program_order"] = schedules[LIST].order == PROGRAM
    found["roofline"] = roofline(run, found)
    found["lines"] = lines_of_interest(run)
    found["advice"] = advice(run, found)
    return found, result
