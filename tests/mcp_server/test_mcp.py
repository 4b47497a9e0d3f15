"""The MCP server through the official client library: each tool, bad input, big answers, paths that lead outside."""

import json
import sys

import anyio
import pytest
from mcp import Client, StdioServerParameters
from tests.profiles import made

from vibeserve import profiles
from vibeserve.base.errors import InputError
from vibeserve.cli.mcp import parse_address
from vibeserve.mcp.server import build
from vibeserve.mcp.workspace import MOST_CHARACTERS, Workspace, page

KERNEL = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def double(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def refused(x):
    tile = nl.ndarray((256, 4), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0)
    return tile
"""
TOOLS = {
    "roofline", "docs_search", "docs_error", "bundle_validate", "run_show", "lint", "simulate", "profile_sql", "profile_bounds",
    "investigate",
}  # fmt: skip


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("VIBESERVE_DATA_PATH", str(tmp_path / "data"))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "old.py").write_text("import neuronxcc.nki as nki\n" * 300)
    profiles.save(made.matmul_profile(), "my-kernel")
    return folder


def talk(workspace, *calls):
    """The results of tool calls through a client in this process: (is_error, document or text)."""

    async def run():
        async with Client(build(workspace)) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return [_read(result) for result in anyio.run(run)]


def _read(result):
    text = result.content[0].text
    try:
        return bool(result.is_error), json.loads(text)
    except ValueError:
        return bool(result.is_error), text


def test_the_tools_are_described(workspace):
    async def run():
        async with Client(build(workspace)) as client:
            return (await client.list_tools()).tools

    tools = anyio.run(run)
    assert {tool.name for tool in tools} == TOOLS
    for tool in tools:
        assert len(tool.description) > 30, tool.name
        assert tool.input_schema["type"] == "object"


@pytest.mark.parametrize(
    ("name", "arguments", "key"),
    [
        ("docs_search", {"query": "transpose a tile"}, "results"),
        ("docs_error", {"code": "EVRF001"}, "fix"),
        ("roofline", {"op": "vjepa2-mlp", "target": "trn2", "lnc": 2, "set": {"R": 256}}, "variants"),
        ("lint", {"paths": ["kernel.py"]}, "findings"),
        (
            "simulate",
            {"file": "kernel.py", "kernel": "double", "inputs": {"x": {"shape": [128, 64], "dtype": "float32"}}},
            "outputs",
        ),
        (
            "profile_sql",
            {"name": "my-kernel", "query": "SELECT opcode, count(*) AS n FROM Instruction GROUP BY 1 ORDER BY 2 DESC"},
            "data",
        ),
        ("profile_bounds", {"name": "my-kernel"}, "bounds"),
        ("investigate", {"name": "my-kernel"}, "investigations"),
        ("bundle_validate", {"bundle": "nothing-here"}, "error"),
    ],
)
def test_each_tool_answers(workspace, name, arguments, key):
    is_error, document = talk(workspace, (name, arguments))[0]
    if key == "error":
        assert is_error
        return
    assert not is_error, document
    assert document[key]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("docs_error", {"code": "XYZ"}, "no error code 'XYZ'"),
        ("docs_search", {"query": " "}, "nothing to search for"),
        ("docs_search", {}, "query"),
        ("docs_search", {"query": 5}, "query"),
        ("roofline", {"op": "nosuch"}, "nosuch"),
        ("roofline", {"op": "vjepa2-mlp", "set": {"nodim": 3}}, "nodim"),
        ("lint", {"paths": []}, "paths"),
        ("lint", {"paths": ["missing.py"]}, "no such file"),
        ("lint", {"paths": ["kernel.py"], "cursor": 99}, "no such page"),
        ("lint", {"paths": ["../secret.py"]}, "outside the workspace"),
        ("lint", {"paths": ["/etc/passwd"]}, "outside the workspace"),
        ("simulate", {"file": "../x.py", "kernel": "k"}, "outside the workspace"),
        ("simulate", {"file": "kernel.py", "kernel": "x; import os"}, "kernel"),
        ("simulate", {"file": "kernel.py", "kernel": "refused", "inputs": {"x": {"shape": [4, 4]}}}, "128"),
        ("simulate", {"file": "kernel.py", "kernel": "double", "inputs": {"x": {"shape": [-4]}}}, "shape"),
        ("profile_sql", {"name": "my-kernel", "query": "COPY Instruction TO 'x'"}, "COPY is not a SELECT"),
        ("profile_sql", {"name": "../x", "query": "SELECT 1"}, "not a profile name"),
        ("profile_bounds", {"name": "nosuch"}, "no profile"),
        ("run_show", {"run": "nosuch"}, "nosuch"),
        ("run_show", {"run": "../../etc"}, "outside the workspace"),
    ],
)
def test_bad_input_is_one_clean_error(workspace, name, arguments, message):
    is_error, text = talk(workspace, (name, arguments))[0]
    assert is_error
    assert message in str(text)
    assert "Traceback" not in str(text)


def test_long_answers_come_in_pages_of_valid_json(workspace):
    seen, cursor, pages = [], 0, 0
    while cursor is not None:
        ((is_error, document),) = talk(workspace, ("lint", {"paths": ["old.py"], "cursor": cursor}))
        assert not is_error
        assert len(json.dumps(document)) <= MOST_CHARACTERS * 1.5
        seen += [item["line"] for item in document["findings"]]
        cursor, pages = document["next_cursor"], pages + 1
    assert seen == list(range(1, 301))
    assert pages > 1


def test_resources(workspace):
    async def run():
        async with Client(build(workspace)) as client:
            found = await client.read_resource("vibeserve://symbol/nisa.nc_matmul")
            error = await client.read_resource("vibeserve://error/EVRF001")
            return found.contents[0].text, error.contents[0].text

    symbol, error = anyio.run(run)
    assert symbol.startswith("# nisa.nc_matmul")
    assert error.startswith("# NCC_EVRF001")


def test_over_stdio_only_the_protocol_is_on_stdout(workspace):
    async def run():
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "vibeserve.cli.main", "mcp", "--workspace", str(workspace)]
        )
        async with Client(server, read_timeout_seconds=60) as client:
            tools = await client.list_tools()
            found = await client.call_tool("docs_error", {"code": "EVRF001"})
            return {tool.name for tool in tools.tools}, found

    names, found = anyio.run(run)
    assert names == TOOLS
    assert _read(found)[1]["code"] == "NCC_EVRF001"


def test_parallel_calls_are_all_answered(workspace):
    async def run():
        async with Client(build(workspace)) as client:
            answers = {}

            async def ask(number):
                result = await client.call_tool("profile_sql", {"name": "my-kernel", "query": f"SELECT {number} AS n"})
                answers[number] = json.loads(result.content[0].text)["data"][0]["n"]

            async with anyio.create_task_group() as group:
                for number in range(16):
                    group.start_soon(ask, number)
            return answers

    assert anyio.run(run) == {number: number for number in range(16)}


def test_a_cancelled_call_leaves_the_server_answering(workspace):
    async def run():
        async with Client(build(workspace)) as client:
            slow = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t"
            with anyio.move_on_after(0.3) as scope:
                await client.call_tool("profile_sql", {"name": "my-kernel", "query": slow})
            assert scope.cancelled_caught
            return await client.call_tool("docs_error", {"code": "EVRF001"})

    assert not _read(anyio.run(run))[0]


def test_paths_stay_inside(tmp_path):
    held = Workspace(tmp_path)
    assert held.path("a/../b.py") == tmp_path / "b.py"
    (tmp_path / "link").symlink_to("/etc")
    for bad in ("..", "../x", "/etc/passwd", "a/../../x", "link/passwd", "x\x00y"):
        with pytest.raises(InputError):
            held.path(bad)


def test_pages_hold_whole_items():
    items = [{"text": "x" * 4000, "n": n} for n in range(20)]
    first = page(items, 0, "items", {"a": 1})
    assert len(json.dumps(first)) <= MOST_CHARACTERS
    assert [item["n"] for item in first["items"]] == list(range(len(first["items"])))
    huge = page([{"text": "y" * 100_000}], 0, "items", {})
    assert "cut" in huge["items"][0]
    assert huge["next_cursor"] is None


@pytest.mark.parametrize(
    ("text", "address"), [("8765", ("127.0.0.1", 8765)), ("localhost:1", ("localhost", 1)), ("[::1]:9", ("::1", 9))]
)
def test_addresses(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["0.0.0.0:80", "10.0.0.1:80", "example.com:80", "x", "127.0.0.1:99999", ""])
def test_other_addresses_are_refused(text):
    with pytest.raises(InputError):
        parse_address(text)
