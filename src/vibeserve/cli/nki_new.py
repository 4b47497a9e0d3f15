"""`vibeserve nki new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vibeserve.cli.output import JsonFlag, note, print_json


def new(
    slug: Annotated[str, typer.Argument(help="Name of the kernel, as my-kernel.")],
    kind: Annotated[
        str, typer.Option("--from", help="elementwise, reduction, matmul, softmax, norm, scan or attention.")
    ],
    dest: Annotated[Path, typer.Option(help="Where the directory is made.")] = Path(),
    utilities: Annotated[
        str | None,
        typer.Option(help="paste (into the kernel file) or import (from nkilib); import where nkilib is installed."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a kernel: kernel, NumPy reference, inputs, test, hand count and device script, which pass as made."""
    from vibeserve.nki.scaffold import new as make

    files = make(slug, kind, dest, utilities=utilities)
    folder, name = files[0].parent, slug.replace("-", "_")
    following = [f"vibeserve nki simulate {folder / 'kernel.py'}:{name} --timing", f"pytest {folder}"]
    if as_json:
        print_json(
            {"slug": slug, "from": kind, "path": str(folder), "files": [f.name for f in files], "next": following}
        )
        return
    for path in files:
        print(path)
    note("next: " + "; ".join(following))
