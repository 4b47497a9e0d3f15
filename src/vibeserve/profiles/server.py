"""The profiles over HTTP on loopback: the device tool's search API, and pages for people with a JSON twin each.

The API answers `GET /api/v1/health` and `POST /api/v1/db/<profile>/_search` with `databaseExplorerQuery`, `tableSchema` and
`listDbFiles`. A profile is looked up at each request, so what is ingested later is served without a restart.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vibeserve.base.errors import InputError
from vibeserve.profiles import schema, sql, store, ui
from vibeserve.profiles.profile import parquet_files
from vibeserve.profiles.web import ApiError, guards, handlers, json_response

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MAX_BODY_BYTES = 1 << 20
_STATUS = {"query-refused": 400, "query-failed": 400, "query-timeout": 408, "query-memory": 413}


def search(data_path: Path | str | None, name: str, request: Any, limits: sql.Limits | None = None) -> dict[str, Any]:
    """Answer one `_search` request (the decoded JSON body). Raises ApiError."""
    if not isinstance(request, dict):
        raise ApiError(400, "bad-request", "the body must be a JSON object")
    kind = request.get("type")
    try:
        profile = store.open_profile(name, data_path)
    except InputError as error:
        raise ApiError(404, "no-such-profile", error.message) from None
    if kind == "listDbFiles":
        names = profile.table_names()
        files = parquet_files(profile.directory) if profile.directory else {}
        return {"data": names, "files": [path.name for parts in files.values() for path in parts]}
    if kind == "tableSchema":
        table = _text(request, "tableName")
        try:
            found = sql.describe(profile, table)["tables"][0]
        except InputError as error:
            raise ApiError(404, "no-such-table", error.message) from None
        known = schema.tables().get(found["name"])
        rows = [{**column, "format": None, "required": bool(column["required"])} for column in found["columns"]]
        return {"tableName": found["name"], "description": known.about if known else "", "data": rows}
    if kind == "databaseExplorerQuery":
        text, main_table = _text(request, "query"), request.get("tableName")
        if main_table is not None and str(main_table).lower() not in {item.lower() for item in profile.table_names()}:
            raise ApiError(404, "no-such-table", f"profile '{name}' has no table '{main_table}'")
        try:
            answer = sql.query(profile, text, limits).document()
        except InputError as error:
            raise ApiError(_STATUS.get(error.code, 400), error.code, error.message) from None
        return _big_as_text(answer) if request.get("bigintAsString") is True else answer
    raise ApiError(400, "unknown-type", f"unknown type {kind!r}: use databaseExplorerQuery, tableSchema or listDbFiles")


def _text(request: dict[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ApiError(400, "bad-request", f"'{key}' must be a non-empty string")
    return value


def _big_as_text(value: Any) -> Any:
    """Integers beyond 2^53 as text, for readers whose numbers are doubles."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return str(value) if abs(value) > 2**53 else value
    if isinstance(value, list):
        return [_big_as_text(item) for item in value]
    if isinstance(value, dict):
        return {key: _big_as_text(item) for key, item in value.items()}
    return value


def api(data_path: Path | str | None, limits: sql.Limits | None = None) -> Starlette:
    """The search API as an ASGI application."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.routing import Route

    async def health(request: Request) -> Response:
        return json_response(
            {"status": "healthy", "server": "vibeserve", "data_path": str(store.root(data_path).parents[1])}
        )

    async def on_search(request: Request) -> Response:
        body = await _body(request)
        name = request.path_params["name"]
        return json_response(await run_in_threadpool(search, data_path, name, body, limits))

    async def profiles(request: Request) -> Response:
        if "x-user-id" not in request.headers:
            raise ApiError(400, "bad-request", "x-user-id header is missing")
        found = await run_in_threadpool(store.list_profiles, data_path)
        rows = [{"profile_name": item["name"], "type": "device", "status": "PROCESSED", **item} for item in found]
        return json_response({"data": rows})

    routes = [
        Route("/api/v1/health", health),
        Route("/api/v1/db/{name}/_search", on_search, methods=["POST"]),
        Route("/api/v1/profiles/search", profiles),
    ]
    return Starlette(routes=routes, exception_handlers=handlers(), middleware=guards())


async def _body(request: Request) -> Any:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise ApiError(413, "too-large", f"the body is larger than {MAX_BODY_BYTES} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ApiError(400, "bad-json", "the body is not JSON") from None


async def serve(
    data_path: Path | str | None, api_port: int, ui_port: int | None, on_ready: Callable[[int, int | None], None]
) -> None:
    """Serve the API, and the pages where `ui_port` is given, on loopback until interrupted (port 0: any free one).

    Raises InputError where a port is taken, saying what runs there.
    """
    import asyncio

    apps = [(api(data_path), api_port)] + ([(ui.site(data_path), ui_port)] if ui_port is not None else [])
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(_listening(app, port)) for app, port in apps]
        ports = [server.servers[0].sockets[0].getsockname()[1] for server in servers]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _stop, servers)
        on_ready(ports[0], ports[1] if len(ports) > 1 else None)
        await asyncio.gather(*(server.main_loop() for server in servers))


def _stop(servers: list[Any]) -> None:
    for server in servers:
        server.should_exit = True


@contextlib.asynccontextmanager
async def _listening(app: Any, port: int) -> AsyncIterator[Any]:
    import uvicorn

    listening = bind(port)
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=3)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listening])
    try:
        yield server
    finally:
        await server.shutdown(sockets=[listening])


def bind(port: int) -> Any:
    """A socket on loopback. Raises InputError where the port is taken, saying what answers there."""
    import socket

    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise InputError(
            f"port {port} is taken: {who_listens(port)} ({error.strerror})", hint="use it, or choose another port"
        ) from None
    return listening


def who_listens(port: int) -> str:
    """What runs on a port of this machine, as far as it tells."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/api/v1/health")
        text = connection.getresponse().read(10_000).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return "a program that does not speak HTTP"
    finally:
        connection.close()
    if "healthy" not in text:
        return "another HTTP server"
    with contextlib.suppress(ValueError):
        path = json.loads(text).get("data_path")
        if path:
            return f"a profile server of vibeserve on {path}: it serves what is ingested there without a restart"
    return "a profile server (neuron-explorer or alike)"
