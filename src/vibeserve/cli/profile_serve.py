"""`vibeserve profile serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from vibeserve.cli.output import JsonFlag, note, print_json
from vibeserve.cli.profile_store import DataPath


def serve(
    data_path: DataPath = None,
    api_server_port: Annotated[
        int, typer.Option("--api-server-port", help="Port of the SQL API; 0 takes a free one.", min=0, max=65535)
    ] = 3002,
    port: Annotated[int, typer.Option("--port", "-p", help="Port of the pages.", min=0, max=65535)] = 3001,
    disable_ui: Annotated[bool, typer.Option("--disable-ui", help="The API alone, no pages.")] = False,
    json: JsonFlag = False,
) -> None:
    """Serve every profile of the store on loopback: SQL over HTTP, and pages. New profiles need no restart."""
    import asyncio

    from vibeserve.profiles.server import serve as run

    def ready(api_port: int, ui_port: int | None) -> None:
        if json:
            print_json({"api": f"http://localhost:{api_port}", "ui": ui_port and f"http://localhost:{ui_port}"})
        note(f"API at http://localhost:{api_port}/api/v1/health")
        if ui_port is not None:
            note(f"View a list of profiles at http://localhost:{ui_port}/")
        note("ctrl-c to exit")

    asyncio.run(run(data_path, api_server_port, None if disable_ui else port, ready))
