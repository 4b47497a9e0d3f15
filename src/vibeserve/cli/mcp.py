"""`vibeserve mcp`."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

import typer

from vibeserve.base.errors import InputError
from vibeserve.cli.output import JsonFlag, note, print_json


def mcp(
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="[[HOST:]PORT]", help="Serve over HTTP on loopback instead of stdio (default: 8765)."
        ),
    ] = None,
    workspace: Annotated[
        Path, typer.Option("--workspace", help="The folder that paths may not leave (default: here).")
    ] = Path(),
    json: JsonFlag = False,
) -> None:
    """Serve the tools to a coding agent over the Model Context Protocol.

    --json prints the address as a JSON document, with --http; over stdio, stdout is the protocol's alone.
    """
    if not workspace.is_dir():
        raise InputError(f"no such directory: {workspace}", hint="give --workspace DIR")
    address = parse_address(http) if http is not None else None
    from vibeserve.mcp.server import serve

    if address is not None:
        if json:
            print_json({"url": f"http://{address[0]}:{address[1]}/mcp", "workspace": str(workspace.resolve())})
        note(f"http://{address[0]}:{address[1]}/mcp, workspace {workspace.resolve()}; ctrl-c to exit")
    serve(workspace, address)


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of 'PORT' or 'HOST:PORT'. Raises InputError for a host that is not this machine's own."""
    host, colon, number = text.rpartition(":")
    host = host.strip("[]") if colon else "127.0.0.1"
    if not (number.isascii() and number.isdigit()) or int(number[:6]) > 65535:
        raise InputError(f"not a port: {text!r}", hint="--http 8765 or --http 127.0.0.1:8765")
    if host != "localhost":
        try:
            local = ipaddress.ip_address(host).is_loopback
        except ValueError:
            local = False
        if not local:
            raise InputError(f"{host} is no loopback address", hint="the tools are served to this machine alone")
    return host, int(number)
