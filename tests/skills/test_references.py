"""What skills carry: made references, and every file that the specification's skills name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vibeserve.mcp import skills as room
from vibeserve.nki.running import load_kernel, make_input
from vibeserve.nki.timing import timed

# Where the specification's own skills begin, and what those are called here.
SECTIONS = {
    "neuron-nki-debugging",
    "neuron-nki-docs",
    "neuron-nki-profiling",
    "neuron-nki-profile-querying",
    "neuron-nki-writing",
}
NAMED = re.compile(r"(?:references|scripts|examples)/[\w./-]+\.(?:md|py)")
MENTIONED = re.compile(r"(?<![\w/$-])(?:docs|examples/(?:kernels|roofline)|skills)/[\w./-]+\.(?:md|py|toml)\b")
# Named in passing, as examples of what others hold.
ELSEWHERE = ("references/programming/", "references/models/", "examples/model-serving/", "references/cuda-graph")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("skills")
    room.install(folder)
    return folder


def test_links_resolve(installed: Path) -> None:
    for page in installed.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target and page.parent.parent.name in SECTIONS | {page.parent.parent.name}:
                assert (page.parent / target).exists() or "references/schema" in str(page), f"{page}: {target}"


def test_files_that_an_installed_skill_names_are_installed(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a home of its own: each file that a skill's page names lies beside it. The project's own pages among them (docs/) speak
    of the project's folders, and are left out."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("skills", "install", "--agent", "claude")
    assert code == 0, err
    skills = tmp_path / ".claude/skills"
    missing, seen = [], 0
    for page in sorted(skills.rglob("*.md")):
        root = skills / page.relative_to(skills).parts[0]
        if page.parent == root / "docs":
            continue
        for name in MENTIONED.findall(page.read_text(encoding="utf-8")):
            seen += 1
            if not any((folder / name).exists() for folder in (page.parent, root, skills.parent)):
                missing.append(f"{page.relative_to(skills)}: {name}")
    assert seen > 10
    assert missing == []
    assert (skills / "roofline/docs/roofline.md").is_file()


def test_installing_twice_changes_nothing_and_an_edit_is_kept(installed: Path) -> None:
    again = room.install(installed)
    assert again["written"] == []
    edited = installed / "neuron-nki-docs" / "references" / "indices" / "symbol-lookup.md"
    edited.write_text("mine")
    kept = room.install(installed)
    assert kept["kept"] == ["neuron-nki-docs/references/indices/symbol-lookup.md"]
    assert edited.read_text() == "mine"
    edited.unlink()
    room.install(installed)


def test_every_symbol_code_and_table_has_its_row(installed: Path) -> None:
    from vibeserve import knowledge
    from vibeserve.profiles.schema import tables

    lookup = (installed / "neuron-nki-docs/references/indices/symbol-lookup.md").read_text()
    assert all(f"`{symbol.short}`" in lookup for symbol in knowledge.symbols().values())
    codes = (installed / "neuron-nki-debugging/references/compiler-error-codes.md").read_text()
    assert all(f"`{code}`" in codes for code in knowledge.errors())
    assert {path.stem for path in (installed / "neuron-nki-profile-querying/references/schema").iterdir()} == set(
        tables()
    )


def test_what_the_specification_names_is_there(installed: Path, spec_dir: Path) -> None:
    [file] = spec_dir.glob("001_*.txt")
    text = file.read_text(encoding="utf-8")
    text = (
        text[: text.index("This skill bundles the curated reference material")] + text[text.index("Profile Querying") :]
    )
    named = {name for name in NAMED.findall(text) if not name.startswith(ELSEWHERE)}
    assert len(named) > 15
    missing = [name for name in sorted(named) if not list(installed.glob(f"*/{name}"))]
    assert missing == []


@pytest.mark.parametrize(
    ("example", "inputs"),
    [
        ("simple_matmul", {"lhs_t": [200, 150], "rhs": [200, 600]}),
        ("associative_scan", {"decay": [70, 700], "x": [70, 700]}),
    ],
)
def test_the_examples_run(installed: Path, example: str, inputs: dict[str, list[int]]) -> None:
    kernel, _ = load_kernel(f"{installed / 'neuron-nki-writing/examples' / f'{example}.py'}:{example}")
    arrays = {name: make_input(name, {"shape": shape, "dtype": "float32"}) for name, shape in inputs.items()}
    result, run = timed(kernel, kwargs=arrays, target="trn2", lnc=1)
    assert result.size
    assert run.latency_s > 0


def test_the_profiling_scripts_run(installed: Path, tmp_path: Path) -> None:
    folder = installed / "neuron-nki-profiling"
    kernel = Path(__file__).parents[1] / "nki_timing" / "kernels.py"
    argv = [
        sys.executable,
        str(folder / "examples/basic-profiling-workflow.py"),
        f"{kernel}:copy_through",
        "x=128x512:float32",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "bottleneck: " in done.stdout
    argv = [sys.executable, str(folder / "scripts/identify-neffs.py"), str(tmp_path / "nothing")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "error:" in done.stderr


def test_json_of_the_install(cli, tmp_path: Path) -> None:
    code, out, _ = cli("skills", "install", "--dest", tmp_path / "here", "--json")
    assert code == 0
    assert any(name.endswith("references/api-translation.md") for name in json.loads(out)["written"])
