"""`vibeserve nki neffs|capture`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vibeserve import profiles
from vibeserve.cli.output import JsonFlag, note, print_json


def neffs(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DIR…] [KERNEL]", help="Output directories; a last word that is none is a kernel."),
    ] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="Print the path of this kernel's NEFF alone.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Tell NKI kernels from XLA graphs among the NEFFs of a run; with a kernel's name print its path alone."""
    words = list(arguments or ["./output"])
    if kernel is None and len(words) > 1 and not Path(words[-1]).is_dir():
        kernel = words.pop()
    found = profiles.identify([Path(word) for word in words], kernel)
    if as_json:
        print_json({"neffs": [item.document() for item in found]})
        return
    if kernel is not None:
        print(found[0].neff)
        if found[0].note:
            note(f"{found[0].neff.name}: {found[0].note}")
        return
    for item in found:
        print("\n".join(item.lines()))
        if item.note:
            note(f"{item.neff.name}: {item.note}")


def capture(
    neff: Annotated[Path, typer.Argument(help="The kernel's NEFF, or the simulated profile in its place.")],
    profiles_dir: Annotated[Path, typer.Option("--profiles-dir", help="Where run_NNN folders lie.")] = Path("profiles"),
    as_json: JsonFlag = False,
) -> None:
    """Capture a profile on the device into the next profiles/run_NNN, skipping the warm-up execution."""
    from vibeserve.profiles.capture import capture as run

    done = run(neff, profiles_dir)
    if as_json:
        print_json(
            {
                "folder": str(done.folder), "neff": str(done.neff), "ntff": str(done.ntff) if done.ntff else None,
                "metrics": done.metrics,
            }
        )  # fmt: skip
    elif done.ntff is None:
        note(
            f"simulated, nothing ran on a device: the profile's tables are in {done.folder}; take them in with "
            f"'vibeserve profile ingest {done.folder} --display-name NAME'"
        )
    else:
        note(
            f"captured {done.ntff}; take it in with 'vibeserve profile ingest -n {done.neff} -s {done.ntff} --display-name NAME'"
        )
