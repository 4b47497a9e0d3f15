"""Guides and tables: what they name exists, their facts agree with the other rooms', and questions lead to them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from vibeserve import knowledge
from vibeserve.knowledge import catalogue, tables
from vibeserve.knowledge.index import Index

ROOT = Path(__file__).parents[2]
GUIDES = knowledge.guides()
# Lines of the specification that stand between a heading and a table that did not come with it.
HEADING = re.compile(r"[A-Z0-9][^=]{0,69}")
# Headings with nothing of their own: what follows is a heading below them.
PARENTS = {
    "VS Init", "Standard Debugging Workflow", "Error Resolution", "Quick API Reference", "Common Query Examples", "Complete Profiling Workflow",
    "Step-by-Step Workflow", "Translation Workflow", "Most Common APIs",
}  # fmt: skip
# What precedes a list, code or a sentence without a table between.
SAMPLE = "Current platform: !neuron-ls | head -3"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIBESERVE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return Index.standard()


def empty_headings(text: str) -> list[str]:
    """Headings, and sentences that end in a colon, with nothing before the next heading."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]

    def heading(part: str) -> bool:
        return bool(HEADING.fullmatch(part)) and not part.endswith((".", ",", ";", ":"))

    found = []
    for index, part in enumerate(parts[:-1]):
        introduces = "\n" not in part and part.endswith(":")
        after = parts[index + 1]
        colon_heading = after.endswith(":") and len(after) < 45 and HEADING.fullmatch(after)
        if (heading(part) or introduces) and part not in PARENTS and (heading(after) or (introduces and colon_heading)):
            sentence = introduces and len(part) > 60
            found.append(parts[index - 1] if sentence else part)
    return [item for item in found if item != SAMPLE and not item.startswith("Before compilation")]


def test_every_heading_of_the_specification_that_came_empty_has_its_table(spec_dir: Path) -> None:
    [file] = spec_dir.glob("001_*.txt")
    text = file.read_text(encoding="utf-8")
    wanted = set(empty_headings(text)) - {"Platform Detection"}
    # A sentence follows these in the specification, their table is missing all the same.
    wanted |= {"Platform Target Mapping", "Quick Reference", "Use When Pattern Matches", "Optimization tracking table:"}
    assert {
        "Hardware Generations",
        "Loop Types",
        "Query Type Routing",
        "Directory Guide",
        "Required settings:",
    } <= wanted
    assert all(heading in text for heading in wanted)
    missing = [heading for heading in sorted(wanted) if not list(tables.for_heading(heading))]
    assert missing == []


@pytest.mark.parametrize(
    ("question", "page"),
    [
        ("What is nisa.nc_matmul?", "symbol/nki.isa.nc_matmul"),
        ("What does NCC_EVRF001 mean?", "error/NCC_EVRF001"),
        ("How do I implement matrix multiplication?", "guide/tutorials/matrix-multiplication"),
        ("What's different in Trainium3?", "guide/hardware/trn3"),
        ("How do I profile my kernel?", "guide/profiling/profile-a-kernel"),
    ],
)
def test_the_sample_questions_of_the_specification(index: Index, spec_dir: Path, question: str, page: str) -> None:
    [file] = spec_dir.glob("001_*.txt")
    assert f'Query: "{question}"' in file.read_text(encoding="utf-8")
    answer = knowledge.answer(question, index)
    assert page in [item.id for item in answer.results[:2]]
    assert len(answer.summary) > 60
    folder = Path(knowledge.__file__).parents[1]
    assert all((folder / place.rpartition(":")[0]).is_file() for place in answer.references if ":" in place)


def test_there_is_a_guide_for_each_tutorial_kernel_and_generation(spec_dir: Path) -> None:
    [file] = spec_dir.glob("001_*.txt")
    named = {
        "average_pool2d": "average-pooling",
        "matrix_multiplication": "matrix-multiplication",
        "transpose2d": "transpose",
    }
    named |= {"mamba": "fused-mamba", "local_gather": "local-gather"}
    stems = {path.stem for path in GUIDES}
    shipped = re.findall(r"• (\w+)\.py —", file.read_text(encoding="utf-8"))
    assert len(shipped) == 5
    for name in shipped:
        assert any(word in name and page in stems for word, page in named.items()), name
    assert {"trn1", "trn2", "trn3", "profile-a-kernel"} <= stems


@pytest.mark.parametrize("path", GUIDES, ids=[path.stem for path in GUIDES])
def test_what_a_guide_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert re.search(r"^Asked: ", text, re.M)
    for name in re.findall(r"`((?:examples|skills|docs)/[\w/.-]+)(?::(\w+))?`", text):
        assert (ROOT / name[0]).exists(), name
        assert not name[1] or f"def {name[1]}(" in (ROOT / name[0]).read_text(encoding="utf-8")
    for name in re.findall(r"`(n(?:isa|l|ki\.isa|ki\.language)\.[a-z_0-9]+)", text):
        known = knowledge.find_symbol(name)
        if known.kind == "removed" or name in ("nl.load", "nl.store"):
            assert "beta" in text, f"{name} is old: say so"
    for name in re.findall(r"\btables? `([\w-]+)`", text):
        assert name in {table.id for table in knowledge.all_tables()}, name
    for name in re.findall(r"kernels? `([\w-]+)`", text):
        assert (ROOT / "examples/kernels" / name).is_dir(), name
    for name in re.findall(r"note `([\w-]+)`", text):
        assert name in {note.stem for note in knowledge.serving_notes()}, name
    for verb in re.findall(r"`vibeserve ((?:nki|docs|profile|roofline)(?: [a-z]+)?)", text):
        from vibeserve.cli import verbs

        assert any(verb == known or known.startswith(verb) or verb.startswith(known) for known in verbs.VERBS), verb


def test_the_answer_warns_of_what_is_gone_and_of_generations(index: Index) -> None:
    assert any("gone" in text and "nl.ds" in text for text in knowledge.answer("nl.arange", index).warnings)
    assert any("v4 (trn3)" in text for text in knowledge.answer("nisa.nc_matmul_mx", index).warnings)
    assert any("deprecated" in text for text in knowledge.answer("nl.affine_range", index).warnings)
    assert knowledge.answer("nisa.tensor_tensor", index, 1).warnings == ()


def test_tables_hold_what_other_rooms_hold() -> None:
    facts = {item["id"]: item for item in catalogue.load("hardware.yaml")["facts"]}
    with (ROOT / "src/vibeserve/nki/data/generations.toml").open("rb") as file:
        generations = tomllib.load(file)
    for name, held in generations.items():
        assert facts["sbuf.usable_bytes_per_partition"][name] == held["sbuf_usable_per_partition"]
        assert facts["sbuf.bytes_per_partition"][name] == held["sbuf_per_partition"]
        assert facts["psum.bank_bytes_per_partition"][name] == held["psum_bank"]
        assert facts["tensor.row_tiles"][name] == sorted(held["row_tiles"], reverse=True)
        assert facts["lnc"][name] == held["lnc"]
        assert facts["device.hbm_capacity_gib"][name] == held["hbm_bytes"] >> 30
    from vibeserve import hardware

    for name, generation in (("trn1", "v2"), ("trn2", "v3"), ("trn3", "v4")):
        machine = hardware.get(name)
        assert facts["device.neuroncores"][generation] == machine.cores
        assert facts["device.hbm_bandwidth_gb_s"][generation] * 1e9 == machine.bandwidth_bytes_per_s


def test_tables_name_what_exists() -> None:
    import vibeserve.nki.lib as library
    from vibeserve.mcp import skills
    from vibeserve.profiles.schema import tables as profile_tables

    rows = {table.id: table.rows for table in knowledge.all_tables()}
    for table, column in (("utilities-always", 0), ("utilities-by-pattern", 1)):
        assert all(row[column] in library.__all__ for row in rows[table])
    assert all(row[0] in profile_tables()["Summary"].columns for row in rows["key-metrics"])
    assert {row[0] for row in rows["related-skills"]} == {skill.name for skill in skills.skills()}
    assert {row[0] for row in rows["directory-guide"]} >= {page.kind for page in knowledge.built_in()} - {"settings"}
    assert all((ROOT / row[0]).is_file() for row in rows["worked-examples"])
    ladder = (ROOT / "skills/neuron-nki-profiling/references/matmul-ladder.md").read_text(encoding="utf-8")
    assert all(f"| `{row[1]}` | {row[2]} | {row[3]} |" in ladder for row in rows["optimization-log"])


def test_a_table_that_would_be_empty_is_refused() -> None:
    entry = {
        "id": "x",
        "title": "x",
        "about": "x",
        "rows": {"file": "flags.yaml", "path": "targets"},
        "columns": {"a": "nothing"},
    }
    with pytest.raises(ValueError, match="nothing under"):
        tables._filled(entry, 0)


def test_tables_are_pages(index: Index) -> None:
    for table in knowledge.all_tables():
        page = index.page(f"table/{table.id}")
        assert page is not None
        assert "|---|" in page.body
