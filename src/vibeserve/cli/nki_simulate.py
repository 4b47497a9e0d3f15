"""`vibeserve nki simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vibeserve.base.errors import CheckError, MissingError
from vibeserve.cli.output import MOST_SEED, JsonFlag, note, print_json, print_table
from vibeserve.cli.profile_store import DataPath


def simulate(
    kernel: Annotated[str, typer.Argument(help="FILE:KERNEL.")],
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="NAME=2048x1024:bfloat16, or NAME=3; repeats.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="trn1, trn2 or trn3.")] = None,
    lnc: Annotated[int | None, typer.Option(min=1, max=2, help="Cores of the launch: 1 or 2.")] = None,
    timing: Annotated[bool, typer.Option("--timing", help="Time it on the device's model.")] = False,
    profile: Annotated[str | None, typer.Option(help="Save a profile under this name.")] = None,
    changed: Annotated[str, typer.Option("--note", help="With --profile: what changed, for the tracking table.")] = "",
    data_path: DataPath = None,
    schedule: Annotated[
        str, typer.Option(help="program: each engine in program order; list: independent instructions may pass.")
    ] = "program",
    shape_only: Annotated[
        bool, typer.Option("--shape-only", help="Leave the arithmetic out: for big shapes. The values mean nothing.")
    ] = False,
    allow_spill: Annotated[
        bool, typer.Option("--allow-spill", help="Tiles that do not fit into SBUF go to HBM and back, in the profile.")
    ] = False,
    timing_params: Annotated[
        Path | None, typer.Option("--timing-params", help="A TOML file of constants that take the places of ours.")
    ] = None,
    sensitivity: Annotated[bool, typer.Option("--sensitivity", help="Say what each unsure constant is worth.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Reports (uninitialised reads, races) fail.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print one line for each instruction on stderr.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of the made inputs.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Run one kernel on made inputs; inputs.toml beside the file gives defaults."""
    from vibeserve.nki.errors import KernelError, NotSimulatedError
    from vibeserve.nki.running import simulate_case

    model: dict[str, Any] = {}
    if timing or profile:
        model = {
            "mode": schedule, "shape_only": shape_only, "override": timing_params, "data_path": data_path,
            "sensitivity": sensitivity, "allow_spill": allow_spill, "note": changed,
        }  # fmt: skip
    try:
        report = simulate_case(
            kernel,
            inputs or [],
            target=target,
            lnc=lnc,
            strict=strict,
            trace=trace,
            seed=seed,
            timing=timing,
            profile=profile,
            **model,
        )
    except NotSimulatedError as error:
        raise MissingError(
            f"not simulated yet: {error.name} (at {error.place})", hint="see docs/nki-coverage.md"
        ) from None
    except KernelError as error:
        text = f"{error.message} [{error.code}] at {error.place}" + (
            f"; operands: {error.operands}" if error.operands else ""
        )
        hint = "; ".join(part for part in (error.rule, error.fix) if part)
        raise CheckError(text, hint=hint, code=error.code) from error
    if shape_only and report.get("shape_only") is False:
        note("addresses or loops of this kernel depend on data: it was run in full")
    _show(report, json)


def _show(report: dict[str, Any], json: bool) -> None:
    if json:
        print_json(report)
        return
    print_table(
        ("output", "shape", "dtype"), [(i, list(o["shape"]), o["dtype"]) for i, o in enumerate(report["outputs"])]
    )
    if "latency_s" in report:
        from vibeserve.nki.timing.card import text

        for line in text(report):
            print(line)
    note(f"{report['kernel']} on {report['target']}, LNC {report['lnc']}: {report['instructions']} instructions")
    for finding in report["findings"]:
        note(f"{finding['file']}:{finding['line']}: {finding['message']}")
