"""`vibeserve roofline`: count an operation by hand."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer

from vibeserve.cli.output import JsonFlag, note, print_json


def _packaged() -> str:
    """The packaged operations with their sizes, one a line, for the help."""
    from vibeserve.roofline.loader import packaged_operations

    rows = [
        f"  {name}: {', '.join(f'{size}={value}' for size, value in sizes.items())}"
        for name, (_, sizes) in packaged_operations().items()
    ]
    return "\n".join(["\b", "Packaged operations and their sizes (--set changes one):", *rows])


def roofline(
    op: Annotated[str, typer.Argument(help="An operation's TOML file, or the name of a packaged one.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a size: R=256. Repeats.")] = None,
    target: Annotated[str, typer.Option(help="The machine (see 'vibeserve hardware').")] = "",
    lnc: Annotated[int | None, typer.Option(help="Physical cores of one logical core (Neuron devices).")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant. Repeats.")] = None,
    dtype: Annotated[str, typer.Option(help="Compute in this data type instead.")] = "",
    peak: Annotated[str, typer.Option(help="Peak of the used cores in FLOP/s, or the name of another source.")] = "",
    bandwidth: Annotated[str, typer.Option(help="Their bandwidth in bytes/s, or the name of another source.")] = "",
    sweep: Annotated[str, typer.Option(help="Sweep a size: R=128:4096[:n].")] = "",
    measured: Annotated[str, typer.Option(help="A JSON file of summary metrics, or a profile's name.")] = "",
    data_path: Annotated[Path | None, typer.Option(help="Where the profiles lie.")] = None,
    symbols: Annotated[bool, typer.Option("--symbols", help="Closed forms by computer algebra.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write the roofline plot (SVG).")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the whole page as one HTML file.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    json: JsonFlag = False,
) -> None:
    """Count an operation by hand: FLOPs, bytes, intensity, time bounds, every step shown.

    vibeserve roofline vjepa2-mlp --target trn2 --lnc 2
    """
    from vibeserve import roofline as room

    analysis = room.analyze(
        op,
        sizes=room.parse_changes(set_ or []),
        target=target,
        lnc=lnc,
        variants=tuple(variant or ()),
        dtype=dtype,
        peak=room.parse_rate(peak, "--peak"),
        bandwidth=room.parse_rate(bandwidth, "--bandwidth"),
    )
    if measured:
        analysis = room.with_measured(analysis, measured, variant=variant[0] if variant else "", data_path=data_path)
    if sweep:
        analysis = room.with_sweep(analysis, sweep)
    if plot is not None:
        room.write(plot, room.svg_file(analysis))
        note(f"wrote {plot}")
    if html is not None:
        room.write(html, room.html(analysis))
        note(f"wrote {html}")
    document = room.closed_forms(analysis) if symbols else None
    if json:
        print_json(analysis.document() | ({"symbols": document} if document is not None else {}))
    elif markdown:
        print(room.markdown(analysis))
    else:
        room.show(analysis)
        if document is not None:
            room.show_closed_forms(document)


roofline.__doc__ = f"{inspect.cleandoc(roofline.__doc__ or '')}\n\n{_packaged()}"
