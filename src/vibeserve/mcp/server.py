"""The MCP server: tools and resources on the official SDK, over stdio or loopback HTTP.

Every tool runs in a worker thread, so that the server stays responsive: lookups have threads of their own, which long work
cannot fill. A kernel is simulated, and a profile investigated, in a process of
its own, which ends when the call is given up. What goes wrong is one clean error, never a traceback. Nothing but the protocol is written to stdout: over stdio
the SDK keeps it for itself, and what a kernel prints goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.from_thread
import anyio.to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from pydantic import Field

import vibeserve
from vibeserve.base.errors import InputError, VibeServeError
from vibeserve.base.jsonio import dumps, plain
from vibeserve.mcp import tools
from vibeserve.mcp.worker import KNOWN, message_of
from vibeserve.mcp.workspace import MOST_CHARACTERS, Workspace

INSTRUCTIONS = (
    "Tools for NKI kernels and serving systems. Before writing a kernel: docs_search and docs_error. After writing one: lint, then "
    "simulate. To know the limit of an operation: roofline. To explain a slow kernel: profile_bounds, then investigate, and "
    "profile_sql for details. Paths are inside the workspace. Long answers come in pages: pass next_cursor as cursor."
)
_LOOKUPS, _LONG = 8, 4  # threads of quick and of long calls; as many processes
LONGEST_S = 600
ProfileName = Annotated[str, Field(description="A profile's name; see 'vibeserve profile list'.", max_length=200)]
Cursor = Annotated[int, Field(description="Where to go on: next_cursor of the answer before.", ge=0)]


def build(workspace: Path) -> MCPServer[Any]:
    """The server for a workspace folder."""
    held = Workspace(workspace.resolve())
    server: MCPServer[Any] = MCPServer(
        "vibeserve", version=vibeserve.__version__, instructions=INSTRUCTIONS, log_level="ERROR"
    )
    lookup = partial(_call, anyio.CapacityLimiter(_LOOKUPS))
    work = partial(_call, anyio.CapacityLimiter(_LONG))
    _knowledge_tools(server, lookup)
    processes = anyio.CapacityLimiter(_LONG)
    _kernel_tools(server, work, held, processes)
    _profile_tools(server, work, held, processes)
    _bundle_tools(server, work, held)
    _resources(server, held)
    return server


async def _call(
    limiter: anyio.CapacityLimiter, function: Callable[..., dict[str, Any]], *arguments: Any
) -> dict[str, Any]:
    """Run a tool in a thread; its known errors are the tool's answer."""

    def run() -> dict[str, Any]:
        result: dict[str, Any] = plain(function(*arguments))
        return result

    try:
        return await anyio.to_thread.run_sync(run, limiter=limiter, abandon_on_cancel=True)
    except (VibeServeError, *KNOWN) as error:
        raise ToolError(message_of(error)) from None


async def _apart(
    limiter: anyio.CapacityLimiter, held: Workspace, tool: str, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Run a tool in a process of its own, which is killed when the call is given up or takes longer than LONGEST_S."""
    request = dumps({"workspace": str(held.root), "tool": tool, "arguments": arguments}).encode()
    async with limiter:
        try:
            with anyio.fail_after(LONGEST_S):
                done = await anyio.run_process(
                    [sys.executable, "-m", "vibeserve.mcp.worker"], input=request, stderr=None, check=False
                )
        except TimeoutError:
            raise ToolError(
                f"{tool} took longer than {LONGEST_S} s and was ended: smaller inputs, or the command line"
            ) from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise ToolError(f"the process of {tool} ended without an answer, code {done.returncode}") from None
    if "error" in answer:
        raise ToolError(answer["error"])
    found: dict[str, Any] = answer["result"]
    return found


def _knowledge_tools(server: MCPServer[Any], call: Callable[..., Any]) -> None:
    @server.tool(
        description="Search the documentation: kernel language, error codes, flags, tasks. Use it before guessing an API or a limit."
    )
    async def docs_search(
        query: Annotated[str, Field(description="A question, a name or words.", max_length=500)],
        limit: Annotated[int, Field(ge=1, le=30)] = 8,
    ) -> dict[str, Any]:
        found: dict[str, Any] = await call(tools.docs_search, query, limit)
        return found

    @server.tool(
        description="What a compiler or runtime error code means and how to fix it (NCC_EVRF001, EVRF001, NRT_TIMEOUT, …)."
    )
    async def docs_error(code: Annotated[str, Field(max_length=100)]) -> dict[str, Any]:
        found: dict[str, Any] = await call(tools.docs_error, code)
        return found

    @server.tool(
        description="Count an operation by hand: FLOPs, bytes, intensity, time bounds, crossings, every step. Use it before writing a kernel."
    )
    async def roofline(
        op: Annotated[str, Field(description="A packaged operation (vjepa2-mlp, matmul, …).", max_length=200)],
        set: Annotated[dict[str, int] | None, Field(description="Sizes to change, such as {'R': 256}.")] = None,  # noqa: A002
        target: Annotated[str | None, Field(description="trn2, h100, …; see 'vibeserve hardware'.")] = None,
        lnc: Annotated[int | None, Field(description="Cores of a Trainium launch: 1 or 2.")] = None,
        cursor: Cursor = 0,
    ) -> dict[str, Any]:
        found: dict[str, Any] = await call(tools.roofline, op, set, target, lnc, cursor)
        return found


def _kernel_tools(
    server: MCPServer[Any], call: Callable[..., Any], held: Workspace, processes: anyio.CapacityLimiter
) -> None:
    @server.tool(
        description="Lint kernel files: what the language version refuses, what is slow. Use it after every edit of a kernel."
    )
    async def lint(
        context: Context,
        paths: Annotated[
            list[str], Field(description="Files or folders in the workspace.", min_length=1, max_length=200)
        ],
        cursor: Cursor = 0,
        nki_version: Annotated[str | None, Field(description="0.1 to 0.6; deduced where left out.")] = None,
    ) -> dict[str, Any]:
        found: dict[str, Any] = await call(tools.lint, held, paths, cursor, nki_version, _progress(context))
        return found

    @server.tool(
        description="Run a kernel on made inputs on the CPU simulator: outputs' shapes, findings, with timing an estimate. "
        "Use it after lint; a refused kernel answers with the rule, the line and the fix."
    )
    async def simulate(
        context: Context,
        file: Annotated[str, Field(description="Kernel file in the workspace.")],
        kernel: Annotated[str, Field(description="The kernel's name.", pattern=r"^[A-Za-z_]\w*$")],
        inputs: Annotated[
            dict[str, Any] | None, Field(description='{"x": {"shape": [128, 512], "dtype": "bfloat16"}, "n": 3}')
        ] = None,
        target: Annotated[str | None, Field(description="trn1, trn2 or trn3.")] = None,
        lnc: Annotated[int | None, Field(ge=1, le=2)] = None,
        timing: bool = False,
        cursor: Cursor = 0,
    ) -> dict[str, Any]:
        await context.report_progress(0, 1, "simulating")
        arguments = {
            "file": file,
            "kernel": kernel,
            "inputs": inputs,
            "target": target,
            "lnc": lnc,
            "timing": timing,
            "cursor": cursor,
        }
        found = await _apart(processes, held, "simulate", arguments)
        await context.report_progress(1, 1, "done")
        return found


def _profile_tools(
    server: MCPServer[Any], call: Callable[..., Any], held: Workspace, processes: anyio.CapacityLimiter
) -> None:
    @server.tool(
        description="One SELECT (DuckDB) over a profile's own tables. Use it for details after profile_bounds and investigate."
    )
    async def profile_sql(
        name: ProfileName,
        query: Annotated[str, Field(max_length=20_000)],
        cursor: Cursor = 0,
    ) -> dict[str, Any]:
        found: dict[str, Any] = await call(tools.profile_sql, name, query, cursor)
        return found

    @server.tool(
        description="How fast the profiled kernel could have been, the gaps and the bottleneck. Start here when a kernel is slow."
    )
    async def profile_bounds(name: ProfileName) -> dict[str, Any]:
        return await _apart(processes, held, "profile_bounds", {"name": name})

    @server.tool(description="Find what costs time in a profile, down to the source line. Use it after profile_bounds.")
    async def investigate(context: Context, name: ProfileName, cursor: Cursor = 0) -> dict[str, Any]:
        await context.report_progress(0, 1, "investigating")
        found = await _apart(processes, held, "investigate", {"name": name, "cursor": cursor})
        await context.report_progress(1, 1, "done")
        return found


def _bundle_tools(server: MCPServer[Any], call: Callable[..., Any], held: Workspace) -> None:
    @server.tool(description="Check that a bundle (a serving target) is complete and consistent.")
    async def bundle_validate(
        bundle: Annotated[
            str, Field(description="A folder in the workspace, or a packaged bundle's name.", max_length=300)
        ],
    ) -> dict[str, Any]:
        found: dict[str, Any] = await call(tools.bundle_validate, held, bundle)
        return found

    @server.tool(
        description="A run of the optimiser: baseline, best, improvement with interval, every round with its reason."
    )
    async def run_show(
        run: Annotated[
            str, Field(description="A run's folder in the workspace, or its name under runs/.", max_length=300)
        ],
        cursor: Cursor = 0,
    ) -> dict[str, Any]:
        found: dict[str, Any] = await call(tools.run_show, held, run, cursor)
        return found


def _resources(server: MCPServer[Any], held: Workspace) -> None:
    @server.resource(
        "vibeserve://symbol/{name}", description="A symbol's page, such as nisa.nc_matmul.", mime_type="text/markdown"
    )
    def symbol_page(name: str) -> str:
        return _clean(lambda: _page_text(f"symbol/{_knowledge().find_symbol(name).name}"))

    @server.resource("vibeserve://error/{code}", description="An error code's page.", mime_type="text/markdown")
    def error_page(code: str) -> str:
        return _clean(lambda: _page_text(f"error/{_knowledge().find_error(code).code}"))

    @server.resource(
        "vibeserve://note/{name}",
        description="A note on serving systems or a guide by its name: continuous-batching, matrix-multiplication, trn3, …",
        mime_type="text/markdown",
    )
    def note(name: str) -> str:
        return _clean(lambda: _note_text(name))

    @server.resource("vibeserve://notes", description="The names of all notes and guides.", mime_type="text/markdown")
    def notes() -> str:
        return "\n".join(f"- {kind} {page.rpartition('/')[2]}: {title}" for kind, page, title in _notes()) + "\n"

    @server.resource("vibeserve://run/{name}", description="A run's report in Markdown.", mime_type="text/markdown")
    def run_report(name: str) -> str:
        return _clean(lambda: _report_text(held, name))


def _progress(context: Context) -> Callable[[int, int, str], None]:
    """What a worker thread calls to report how far it is; it raises, and so ends the thread, once the call is given up."""

    def report(done: int, total: int, message: str) -> None:
        anyio.from_thread.check_cancelled()
        anyio.from_thread.run(context.report_progress, done, total, message)

    return report


def _clean(make: Callable[[], str]) -> str:
    """A resource's text; a known error as the protocol's own, in one line."""
    try:
        return make()
    except VibeServeError as error:
        raise ResourceError(f"{error.message}{f' — {error.hint}' if error.hint else ''}") from None


def _knowledge() -> Any:
    from vibeserve import knowledge

    return knowledge


def _notes() -> list[tuple[str, str, str]]:
    return [item for item in _knowledge().Index.standard().contents() if item[0] in ("note", "guide")]


def _note_text(name: str) -> str:
    known = {page.rpartition("/")[2]: page for _, page, _ in _notes()}
    if name not in known:
        raise InputError(
            f"no note or guide '{name}'", hint=_knowledge().near(name, list(known), "vibeserve://notes lists them")
        )
    return _page_text(known[name])


def _report_text(held: Workspace, name: str) -> str:
    path = held.path(f"runs/{name}/report.md")
    if not path.is_file():
        raise InputError(f"no report of run '{name}' below runs/", hint="'vibeserve report RUN' writes it")
    text = path.read_text(encoding="utf-8", errors="replace")
    return (
        text
        if len(text) <= MOST_CHARACTERS * 4
        else f"{text[: MOST_CHARACTERS * 4]}\n\n(cut; the whole report: {path})\n"
    )


def _page_text(page: str) -> str:
    found = _knowledge().Index.standard().page(page)
    if found is None:
        raise InputError(f"no page {page}", hint="search with docs_search")
    text: str = found.text()
    return text


def serve(workspace: Path, http: tuple[str, int] | None) -> None:
    """Serve over stdio, or over HTTP on a loopback address, until interrupted."""
    server = build(workspace)
    if http is None:
        server.run("stdio")
        return
    from mcp.server.transport_security import TransportSecuritySettings

    host, port = http
    names = [f"{name}:*" for name in ("127.0.0.1", "localhost", "[::1]")]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
    )
    server.run("streamable-http", host=host, port=port, transport_security=security)
