"""A conversation with the official client for each tool: success, bad input, a call given up, the largest answers; progress,
resources, many calls at once, and arguments made at random from each tool's own schema."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client, StdioServerParameters
from tests.profiles import made

from vibeserve import profiles
from vibeserve.mcp.server import build
from vibeserve.mcp.workspace import MOST_CHARACTERS

ROOT = Path(__file__).parents[2]
KERNEL = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def noisy(x):
    print("{not the protocol}")
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def long(x):
    for _ in range(40000):
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
    return x
"""
INPUT = {"x": {"shape": [128, 64], "dtype": "float32"}}
ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t"
# Each tool: arguments that work and a key of their answer, arguments that do not and a word of the error, and arguments
# whose answer would be the largest, or a call that takes long.
TOOLS: dict[str, tuple[dict[str, Any], str, dict[str, Any], str, dict[str, Any]]] = {
    "docs_search": ({"query": "transpose"}, "summary", {"query": "x", "limit": 99}, "limit", {"query": "nki tensor dma", "limit": 30}),
    "docs_error": ({"code": "EVRF001"}, "fix", {"code": "X" * 101}, "code", {"code": "NCC_EVRF009"}),
    "roofline": ({"op": "matmul"}, "variants", {"op": "matmul", "lnc": 7}, "7", {"op": "llama-decode-layer", "target": "h100"}),
    "bundle_validate": ({"bundle": "bundle"}, "checks", {"bundle": "../x"}, "outside the workspace", {"bundle": "bundle"}),
    "run_show": ({"run": "r1"}, "metric", {"run": "r1:nosuch"}, "nosuch", {"run": "r1"}),
    "lint": ({"paths": ["kernel.py"]}, "findings", {"paths": ["kernel.py"], "nki_version": "9"}, "9", {"paths": ["old.py"]}),
    "simulate": ({"file": "kernel.py", "kernel": "noisy", "inputs": INPUT}, "outputs", {"file": "kernel.py", "kernel": "nosuch"}, "nosuch", {"file": "kernel.py", "kernel": "long", "inputs": INPUT}),
    "profile_sql": ({"name": "mine", "query": "SELECT 1 AS n"}, "data", {"name": "mine", "query": "DROP TABLE x"}, "SELECT", {"name": "mine", "query": "SELECT repeat('y', 3000) AS t FROM range(3000)"}),
    "profile_bounds": ({"name": "mine"}, "bounds", {"name": "x/y"}, "not a profile name", {"name": "mine"}),
    "investigate": ({"name": "mine"}, "investigations", {"name": "mine", "cursor": 999}, "no such page", {"name": "mine"}),
}  # fmt: skip
SLOW = {"simulate": TOOLS["simulate"][4], "profile_sql": {"name": "mine", "query": ENDLESS}}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Any:
    base = tmp_path_factory.mktemp("mcp")
    folder = base / "work"
    (folder / "runs/r1").mkdir(parents=True)
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "old.py").write_text("import neuronxcc.nki as nki\n" * 400)
    shutil.copytree(ROOT / "examples/model-serving/smollm2-135m-cpu-chat", folder / "bundle")
    shutil.copy(ROOT / "tests/search/data/run-v1.db", folder / "runs/r1/run.db")
    (folder / "runs/r1/report.md").write_text("# Run r1\n\nkept: 3\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIBESERVE_CACHE_DIR", str(base / "cache"))
        patch.setenv("VIBESERVE_DATA_PATH", str(base / "data"))
        profiles.save(made.matmul_profile(), "mine")
        yield folder


@pytest.fixture(autouse=True)
def _data(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of the module's workspace, whatever other fixtures set."""
    monkeypatch.setenv("VIBESERVE_DATA_PATH", str(workspace.parent / "data"))
    monkeypatch.setenv("VIBESERVE_CACHE_DIR", str(workspace.parent / "cache"))


def converse(workspace: Path, talk: Callable[[Any], Any]) -> Any:
    async def run() -> Any:
        async with Client(build(workspace)) as client:
            return await talk(client)

    return anyio.run(run)


def read(result: Any) -> tuple[bool, Any]:
    text = "\n".join(item.text for item in result.content)
    assert "Traceback" not in text
    try:
        return bool(result.is_error), json.loads(text)
    except ValueError:
        return bool(result.is_error), text


def test_the_table_holds_every_tool(workspace: Path) -> None:
    async def talk(client: Any) -> Any:
        return (await client.list_tools()).tools

    assert {tool.name for tool in converse(workspace, talk)} == set(TOOLS)


@pytest.mark.parametrize("name", TOOLS)
def test_success_bad_input_and_a_call_given_up(workspace: Path, name: str) -> None:
    good, key, bad, word, _ = TOOLS[name]

    async def talk(client: Any) -> Any:
        first = await client.call_tool(name, good)
        wrong = await client.call_tool(name, bad)
        with anyio.move_on_after(0.02 if name not in SLOW else 0.3) as scope:
            await client.call_tool(name, SLOW.get(name, good))
        given_up = scope.cancelled_caught
        return first, wrong, given_up, await client.call_tool("docs_error", {"code": "EVRF001"})

    first, wrong, given_up, after = converse(workspace, talk)
    is_error, document = read(first)
    assert not is_error, document
    assert key in document
    is_error, text = read(wrong)
    assert is_error
    assert word in str(text)
    assert given_up or name not in SLOW
    assert read(after)[1]["code"] == "NCC_EVRF001"


@pytest.mark.parametrize("name", [name for name in TOOLS if name != "simulate"])
def test_the_largest_answers_are_bounded_and_go_on_in_pages(workspace: Path, name: str) -> None:
    arguments = TOOLS[name][4]

    async def talk(client: Any) -> Any:
        return await client.call_tool(name, arguments)

    result = converse(workspace, talk)
    is_error, document = read(result)
    assert not is_error
    assert len("\n".join(item.text for item in result.content)) <= MOST_CHARACTERS * 1.5
    if name in ("lint", "profile_sql"):
        assert document["next_cursor"] > 0


def test_lookups_are_answered_while_long_calls_fill_their_threads(workspace: Path) -> None:
    """Sixteen calls at once: twelve that take long, four lookups. The lookups end while the others still run."""

    async def talk(client: Any) -> Any:
        ended: list[str] = []
        async with anyio.create_task_group() as group:

            async def long() -> None:
                await client.call_tool("simulate", SLOW["simulate"])
                ended.append("long")

            async def lookup(number: int) -> None:
                await client.call_tool("docs_search", {"query": f"tile {number}"})
                ended.append("lookup")
                if ended.count("lookup") == 4:
                    group.cancel_scope.cancel()

            for _ in range(12):
                group.start_soon(long)
            for number in range(4):
                group.start_soon(lookup, number)
        return ended

    assert converse(workspace, talk) == ["lookup"] * 4


def workers() -> list[int]:
    """The processes of long calls that this process has started and that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            command = (status.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and "vibeserve.mcp.worker" in command and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


async def given_up(client: Any, name: str, arguments: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The workers of a call before it is given up, and those that are left ten seconds after."""
    seen: list[int] = []
    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, name, arguments)
        while not seen:
            await anyio.sleep(0.01)
            seen = workers()
        group.cancel_scope.cancel()
    for _ in range(200):
        if not workers():
            break
        await anyio.sleep(0.05)
    return seen, workers()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="not run: no /proc")
def test_a_simulation_that_is_given_up_ends(workspace: Path) -> None:
    async def talk(client: Any) -> Any:
        return *await given_up(client, "simulate", SLOW["simulate"]), await client.call_tool(
            "simulate", TOOLS["simulate"][0]
        )

    during, after, again = converse(workspace, talk)
    assert len(during) == 1
    assert after == []
    assert not read(again)[0]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="not run: no /proc")
@pytest.mark.parametrize("name", ["investigate", "profile_bounds"])
def test_an_analysis_that_is_given_up_ends(workspace: Path, name: str) -> None:
    during, after = converse(workspace, lambda client: given_up(client, name, {"name": "mine"}))
    assert len(during) == 1
    assert after == []


def test_a_lint_that_is_given_up_ends(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vibeserve.nki import lint as linting

    files = [workspace / "kernel.py"] * 5000
    monkeypatch.setattr(linting, "python_files", lambda paths: iter(files))
    linted: list[int] = []
    monkeypatch.setattr(linting, "lint_paths", lambda paths, options: [linted.append(1), time.sleep(0.002)][:0])

    async def talk(client: Any) -> Any:
        with anyio.move_on_after(0.3):
            await client.call_tool("lint", {"paths": ["kernel.py"]})
        await anyio.sleep(0.3)
        settled = len(linted)
        await anyio.sleep(0.3)
        return settled, len(linted)

    settled, later = converse(workspace, talk)
    assert 0 < settled == later < 5000


def test_a_process_that_ends_without_an_answer_is_one_clean_error(workspace: Path) -> None:
    (workspace / "dies.py").write_text("import os\nos._exit(7)\n")

    async def talk(client: Any) -> Any:
        return await client.call_tool("simulate", {"file": "dies.py", "kernel": "k"})

    is_error, text = read(converse(workspace, talk))
    assert is_error
    assert "ended without an answer, code 7" in text


def test_long_calls_report_progress(workspace: Path) -> None:
    heard: dict[str, list[float]] = {}

    async def talk(client: Any) -> None:
        for name in ("lint", "simulate", "investigate"):
            told: list[float] = []

            async def listen(done: float, total: float | None, message: str | None, told: list[float] = told) -> None:
                told.append(done / (total or 1))

            await client.call_tool(name, TOOLS[name][0], progress_callback=listen)
            heard[name] = told

    converse(workspace, talk)
    for name, told in heard.items():
        assert told[0] == 0, name
        assert told[-1] == 1, name
        assert told == sorted(told)


def test_resources(workspace: Path) -> None:
    async def talk(client: Any) -> Any:
        texts = {}
        for uri in (
            "symbol/nisa.nc_matmul",
            "error/EVRF001",
            "note/continuous-batching",
            "note/trn3",
            "notes",
            "run/r1",
        ):
            texts[uri] = (await client.read_resource(f"vibeserve://{uri}")).contents[0].text
        wrong = {}
        for uri in ("symbol/nosuch", "error/XYZ", "note/continuous-batchin", "run/nosuch", "run/..%2F..", "nothing/x"):
            with pytest.raises(Exception) as caught:
                await client.read_resource(f"vibeserve://{uri}")
            wrong[uri] = str(caught.value)
        return texts, wrong, await client.call_tool("docs_error", {"code": "EVRF001"})

    texts, wrong, after = converse(workspace, talk)
    assert texts["symbol/nisa.nc_matmul"].startswith("# nisa.nc_matmul")
    assert texts["note/continuous-batching"].startswith("# ")
    assert "Trainium3" in texts["note/trn3"]
    assert "- guide trn3: " in texts["notes"]
    assert texts["run/r1"].startswith("# Run r1")
    assert "did you mean continuous-batching" in wrong["note/continuous-batchin"]
    assert all("Traceback" not in text for text in wrong.values())
    assert not read(after)[0]


def test_what_a_kernel_prints_stays_out_of_the_protocol(workspace: Path) -> None:
    async def run() -> Any:
        argv = ["-m", "vibeserve.cli.main", "mcp", "--workspace", str(workspace)]
        async with Client(StdioServerParameters(command=sys.executable, args=argv), read_timeout_seconds=60) as client:
            return [await client.call_tool("simulate", TOOLS["simulate"][0]) for _ in range(2)]

    for result in anyio.run(run):
        assert not read(result)[0]


# ---- arguments from the schemas ------------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def fitting(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a schema's type: at its limits, and in it."""
    if "anyOf" in schema:
        return st.one_of([fitting(item) for item in schema["anyOf"]])
    match schema.get("type"):
        case "string":
            return st.text(max_size=30) | st.sampled_from(
                ["kernel.py", "noisy", "mine", "matmul", "r1", "..", "/", "\x00", "a" * 400, "trn2", "0.4"]
            )
        case "integer":
            return st.integers(schema.get("minimum", -5), schema.get("maximum", 2**31))
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "array":
            return st.lists(fitting(schema.get("items", {})), max_size=4)
        case "object":
            return st.dictionaries(st.sampled_from(["x", "n", "M", "shape"]), ANYTHING, max_size=3)
    return ANYTHING


@pytest.mark.parametrize("name", TOOLS)
def test_arguments_at_random_give_only_clean_errors(workspace: Path, name: str) -> None:
    async def describe(client: Any) -> Any:
        return next(tool for tool in (await client.list_tools()).tools if tool.name == name)

    schema = converse(workspace, describe).input_schema
    properties = schema["properties"]

    @settings(max_examples=6)
    @given(st.data())
    def fuzz(data: st.DataObject) -> None:
        calls = []
        for _ in range(4):
            chosen = {key: fitting(value) | ANYTHING for key, value in properties.items()}
            names = data.draw(st.lists(st.sampled_from(sorted(chosen)), unique=True))
            wanted = {*names, *schema.get("required", [])} if data.draw(st.booleans()) else set(names)
            calls.append({key: data.draw(chosen[key]) for key in sorted(wanted)})

        async def talk(client: Any) -> Any:
            return [await client.call_tool(name, arguments) for arguments in calls]

        for result in converse(workspace, talk):
            is_error, answer = read(result)
            assert not is_error or len(str(answer)) < 4000

    fuzz()
