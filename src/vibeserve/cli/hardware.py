"""`vibeserve hardware`: list machines, describe one, measure this one."""

from __future__ import annotations

from typing import Annotated

import typer

from vibeserve.base.units import si
from vibeserve.cli.output import JsonFlag, note, print_json, print_table

_NOISY = 0.5


def hardware(
    name: Annotated[str, typer.Argument(help="A machine, or 'detect' to measure this one. Without it: all.")] = "",
    refresh: Annotated[bool, typer.Option(help="With 'detect': measure again.")] = False,
    json: JsonFlag = False,
) -> None:
    """Describe a machine, or measure this one (hardware detect).

    Peaks are dense and, like the bandwidth, those of the whole device. Each figure has its source; where sources
    differ, all are listed and the first is used.
    """
    from vibeserve import hardware as room

    if not name:
        _list(json)
        return
    if name == "detect" or name.lower() in room.THIS_MACHINE:
        if refresh or not room.is_measured():
            note("measuring this machine (about ten seconds) …")
        machine = room.detect(refresh=refresh)
    else:
        machine = room.get(name)
    if json:
        print_json(room.describe(machine))
        return
    print(f"{machine.title} ({machine.name}; {machine.vendor} {machine.generation})")
    rows = [
        (
            quantity,
            si(one.value, one.unit.replace("bytes", "B")),
            "used" if place == 0 else one.name,
            one.provenance,
            _source(one),
        )
        for quantity, figures in machine.figures.items()
        for place, one in enumerate(figures)
    ]
    print_table(["figure", "value", "", "how known", "source"], rows)
    if machine.lnc:
        counts = " or ".join(str(count) for count in machine.lnc)
        print(f"{machine.cores} cores; a kernel runs on {counts} of them (--lnc)")
    noisy = [name for name, found in machine.figures.items() if found[0].noise and found[0].noise.spread > _NOISY]
    if noisy:
        print(f"noisy: {', '.join(noisy)}; the machine was busy: 'vibeserve hardware detect --refresh' when it is idle")
    for dtype, reason in machine.about.get("not_measured", {}).items():
        print(f"not measured: {dtype}: {reason}")


def _source(figure: object) -> str:
    from vibeserve.hardware import Figure

    assert isinstance(figure, Figure)
    parts = [figure.source, figure.note]
    if figure.noise:
        noise = figure.noise
        parts.append(f"median of {noise.n}, spread {100 * noise.spread:.1f} %")
    return "; ".join(part for part in parts if part)


def _list(json: bool) -> None:
    from vibeserve import hardware as room

    found = room.machines()
    if json:
        print_json({"machines": [room.describe(machine) for machine in found.values()], "this": room.is_measured()})
        return
    rows = [
        (
            machine.name,
            machine.title,
            si(machine.peaks.get("bfloat16", machine.peaks.get("float16", 0.0)), "FLOP/s"),
            si(machine.bandwidth_bytes_per_s, "B/s"),
            si(machine.memory_bytes, "B"),
        )
        for machine in found.values()
    ]
    print_table(["name", "machine", "16-bit peak", "bandwidth", "memory"], rows)
    print("cpu is this machine: 'vibeserve hardware detect' measures it")
