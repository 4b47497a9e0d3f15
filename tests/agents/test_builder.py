"""Candidates that the playbook builds: whole, settled, and free of everything that they do not bring along."""

from __future__ import annotations

import ast
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from vibeserve.agents import Proposal
from vibeserve.agents.playbook.builder import build, closure, engine_builds, engine_toml, parts
from vibeserve.agents.playbook.technique import techniques
from vibeserve.base.errors import InputError

ENGINE = Path(str(files("vibeserve.engine")))


def proposal(*names: str, **settings: Any) -> Proposal:
    return Proposal(("t",), "t", "c0", "h", "e", None, "f", settings=settings, parts=names)


def test_every_file_of_the_engine_is_in_a_part() -> None:
    listed = {name for part in parts().values() for name in part.files}
    there = {
        str(path.relative_to(ENGINE))
        for path in ENGINE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "parts.toml"
    }
    assert listed == there


def imported(path: Path) -> list[tuple[int, str]]:
    """(level, module) of every import of a file."""
    tree = ast.parse(path.read_text())
    found = [(0, alias.name) for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    found += [(node.level, node.module or "") for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return found


@pytest.mark.parametrize(
    "chosen", [("core", "http", "torch_backend"), ("core", "http", "compiled_backend"), ("transformers", "http")]
)
def test_a_candidate_brings_along_what_it_imports_at_its_start(tmp_path: Path, chosen: tuple[str, ...]) -> None:
    build(tmp_path, proposal(*chosen))
    optional = {
        "torch_backend",
        "compiled_backend",
        "prefix_tree",
        "speculation",
        "constraints",
        "transformers_core",
        "pacing",
        "admission",
        "swap",
        "prefix_store",
        "learned_drafts",
    }
    for path in (tmp_path / "engine").rglob("*.py"):
        for level, module in imported(path):
            assert not module.startswith("vibeserve")
            if level:
                base = path.parent
                for _ in range(level - 1):
                    base = base.parent
                target = base.joinpath(*module.split(".")) if module else base
                there = target.with_suffix(".py").is_file() or target.is_dir()
                assert there or module.split(".")[-1] in optional, f"{path.name} imports {'.' * level}{module}"


def test_files_settings_and_requirements(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text("the parent's")
    edit = build(
        tmp_path, proposal("core", "http", "torch_backend", max_batch=16, chunked_prefill=False, dtype="float32")
    )
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"candidate.toml", "engine.toml", "engine", "server.py", "requirements.txt"}
    assert tomllib.loads((tmp_path / "engine.toml").read_text()) == {
        "engine": {"max_batch": 16, "chunked_prefill": False, "dtype": "float32"}
    }
    assert tomllib.loads((tmp_path / "candidate.toml").read_text())["start"] == ["python", "server.py"]
    lines = (tmp_path / "requirements.txt").read_text().splitlines()
    assert all("==" in line and "+" not in line for line in lines)
    assert any(line.startswith("torch==") for line in lines)
    assert "max_batch = 16" in edit.summary


def test_a_parents_parts_stay(tmp_path: Path) -> None:
    build(tmp_path, proposal("core", "http", "torch_backend"))
    build(tmp_path, proposal("compiled_backend"))
    assert (tmp_path / "engine" / "torch_backend.py").is_file()
    assert (tmp_path / "engine" / "native" / "kernels.cpp").is_file()


def test_the_same_proposal_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        build(tmp_path / name, proposal("core", "http", "compiled_backend", threads=2))
    assert [path.read_bytes() for path in sorted((tmp_path / "one").rglob("*")) if path.is_file()] == [
        path.read_bytes() for path in sorted((tmp_path / "two").rglob("*")) if path.is_file()
    ]


def test_a_part_that_there_is_not() -> None:
    with pytest.raises(InputError, match="no part 'warp'"):
        closure(["warp"])


def test_families() -> None:
    assert engine_builds("LlamaForCausalLM")
    assert not engine_builds("OlmoHybridForCausalLM")


def test_techniques_set_what_the_engine_knows() -> None:
    from vibeserve.engine.http.settings import http_settings_from
    from vibeserve.engine.settings import Settings, settings_from
    from vibeserve.engine.transformers_core import transformers_settings_from

    tables = {"engine": settings_from, "http": http_settings_from, "transformers": transformers_settings_from}
    for technique in techniques():
        for table, own in tomllib.loads(engine_toml(dict(technique.changes.settings))).items():
            assert tables[table](own), technique.name
        known = set(Settings().to_dict())
        assert set(technique.changes.computed) <= known
        for knob in technique.knobs:
            table, _, name = knob.setting.rpartition(".")
            if not table:
                assert name in known
            for value in knob.choices if table else ():
                assert tables[table]({name: value})
        closure(technique.changes.parts)
