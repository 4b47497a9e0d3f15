"""The likely line of a message in the kernel's own source: a kernel for each code, with its guilty line marked."""

from __future__ import annotations

import json
import textwrap
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve import knowledge
from vibeserve.base.errors import InputError
from vibeserve.nki import lint
from vibeserve.nki.lint.likely import FINDERS, codes

CASES = tomllib.loads((Path(__file__).parent / "likely_cases.toml").read_text(encoding="utf-8"))
HEAD = "import nki\nimport nki.collectives as ncc\nimport nki.isa as nisa\nimport nki.language as nl\n\n\n@nki.jit\ndef k(x, w):\n"


def source(body: str) -> str:
    body = body.lstrip("\n")
    return body if body.startswith(("import ", "def ")) else HEAD + textwrap.indent(body, "    ")


def marked(text: str) -> int:
    [line] = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
    return line


def test_the_data_names_what_there_is() -> None:
    assert len(CASES) >= 30
    known = {*knowledge.errors(), *(item.id for item in knowledge.signatures())}
    assert set(codes()) <= known
    assert set(CASES) <= set(codes())
    for code, entry in codes().items():
        assert entry.get("rules") or entry.get("names") or entry.get("find"), code
        assert set(entry.get("rules", ())) <= set(lint.rules()), code
        assert not {"names", "find"} & set(entry) or entry["why"], code
    named = {entry["find"] for entry in codes().values() if "find" in entry}
    assert named <= set(FINDERS)


@pytest.mark.parametrize("code", CASES)
def test_the_likely_line(code: str, tmp_path: Path, cli) -> None:  # type: ignore[no-untyped-def]
    text = source(CASES[code]["body"])
    path = tmp_path / "kernel.py"
    path.write_text(text, encoding="utf-8")
    status, out, _ = cli("nki", "explain", CASES[code]["log"], "--kernel", path, "--json")
    assert status == 0
    match = next(item for item in json.loads(out)["matches"] if item["code"] == code)
    assert match["likely"], code
    assert match["likely"][0]["line"] == marked(text), match["likely"]
    assert match["line"] == marked(text)
    assert match["file"] == str(path)
    assert match["likely"][0]["why"]
    assert len(match["likely"]) <= 5


def test_a_line_that_the_log_names_is_kept(tmp_path: Path, cli) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "kernel.py"
    path.write_text(source(CASES["NCC_EVRF051"]["body"]), encoding="utf-8")
    log = f'  File "{path}", line 3, in k\n[NCC_EVRF051] data type F8E4M3FN is not supported'
    match = json.loads(cli("nki", "explain", log, "--kernel", path, "--json")[1])["matches"][0]
    assert match["line"] == 3
    assert match["likely"][0]["line"] != 3


def test_a_kernel_that_has_nothing_of_it(tmp_path: Path, cli) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "kernel.py"
    path.write_text(source("nisa.dma_copy(dst=w, src=x)\n"), encoding="utf-8")
    status, out, _ = cli("nki", "explain", "[NCC_EVRF051] fp8", "--kernel", path)
    assert status == 0
    assert f"no line of {path} fits it" in out
    path.write_text("def k(:\n")
    assert cli("nki", "explain", "[NCC_EVRF051] fp8", "--kernel", path)[0] == 2
    with pytest.raises(InputError, match="not Python"):
        lint.likely("NCC_EVRF051", "", "def k(:\n", "k.py")


def test_a_size_that_is_not_written_out_may_be_the_large_one() -> None:
    body = """
rows, columns = x.shape
total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
t = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)  # here
nisa.dma_copy(dst=t, src=x)
"""
    text = source(body)
    assert lint.likely("NCC_IGCA046", "[GCA046] some infinite-cost nodes remain", text, "k.py")[0].line == marked(text)


def test_without_an_entry_the_named_instruction_is_found() -> None:
    text = source("nisa.dma_copy(dst=w, src=x)\nnisa.tensor_copy(dst=w, src=w)\n")
    [place] = lint.likely("NRT_FAILURE", "tensor_copy failed", text, "k.py")
    assert place.text == "nisa.tensor_copy(dst=w, src=w)"


@given(st.sampled_from(sorted(codes())), st.text(max_size=80), st.sampled_from(sorted(CASES)))
def test_no_message_crashes(code: str, message: str, other: str) -> None:
    for place in lint.likely(code, message, source(CASES[other]["body"]), "k.py"):
        assert place.line >= 1
