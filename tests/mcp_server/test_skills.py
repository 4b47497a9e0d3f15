"""Skills: listed, installed, updated, uninstalled; a user's edits are never touched."""

import json

import pytest

from vibeserve.base.errors import InputError
from vibeserve.mcp import skills as room


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "packaged"
    for name in ("alpha", "beta"):
        (folder / name / "references").mkdir(parents=True)
        (folder / name / "SKILL.md").write_text(
            f"---\nname: {name}\ndescription: Use it for {name}.\n---\n\n# {name}\n"
        )
        (folder / name / "references" / "more.md").write_text("more\n")
        (folder / name / "repos").mkdir()
        (folder / name / "repos" / "clone.txt").write_text("not for agents")
    return folder


def test_install_update_and_uninstall(source, tmp_path):
    dest = tmp_path / "project" / ".claude" / "skills"
    done = room.install(dest, source=source)
    assert done["written"] == ["alpha/SKILL.md", "alpha/references/more.md", "beta/SKILL.md", "beta/references/more.md"]
    assert not (dest / "alpha" / "repos").exists()
    assert room.install(dest, source=source)["written"] == []
    (dest / "alpha" / "SKILL.md").write_text("mine")
    (source / "alpha" / "SKILL.md").write_text("---\nname: alpha\ndescription: Newer.\n---\n")
    (source / "beta" / "SKILL.md").write_text("---\nname: beta\ndescription: Newer.\n---\n")
    (source / "beta" / "references" / "more.md").unlink()
    done = room.install(dest, source=source)
    assert (done["written"], done["kept"], done["removed"]) == (
        ["beta/SKILL.md"],
        ["alpha/SKILL.md"],
        ["beta/references/more.md"],
    )
    assert (dest / "alpha" / "SKILL.md").read_text() == "mine"
    done = room.uninstall(dest)
    assert done["kept"] == ["alpha/SKILL.md"]
    assert [path.name for path in dest.rglob("*") if path.is_file()] == ["SKILL.md"]


def test_a_file_that_was_there_before_is_kept(source, tmp_path):
    dest = tmp_path / "skills"
    (dest / "alpha").mkdir(parents=True)
    (dest / "alpha" / "SKILL.md").write_text("somebody's own")
    assert room.install(dest, source=source)["kept"] == ["alpha/SKILL.md"]
    room.uninstall(dest)
    assert (dest / "alpha" / "SKILL.md").read_text() == "somebody's own"


def test_one_skill(source, tmp_path):
    assert room.install(tmp_path / "d", ("beta",), source)["skills"] == ["beta"]
    with pytest.raises(InputError, match="no skill 'gamma'"):
        room.install(tmp_path / "d", ("gamma",), source)
    with pytest.raises(InputError, match="'alpha' is not installed"):
        room.uninstall(tmp_path / "d", ("alpha",))


def test_bad_front_matter_is_said(source):
    (source / "alpha" / "SKILL.md").write_text("# no front matter\n")
    with pytest.raises(InputError, match="front matter needs 'name: alpha'"):
        room.skills(source)


def test_a_damaged_manifest_is_said(source, tmp_path):
    dest = tmp_path / "d"
    room.install(dest, source=source)
    (dest / room.MANIFEST).write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        room.install(dest, source=source)


def test_packaged_skills_follow_the_open_format():
    found = room.skills()
    assert found
    for skill in found:
        text = (skill.path / "SKILL.md").read_text(encoding="utf-8")
        assert len(skill.description) <= 1024, skill.name
        assert len(text.splitlines()) <= 500, skill.name
        assert skill.name == skill.name.lower()
        assert len(skill.name) <= 64


def test_cli(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = cli("skills", "list", "--json")
    assert code == 0
    assert {"name", "description", "path"} <= set(json.loads(out)["skills"][0])
    for agent, place in room.PLACES.items():
        assert cli("skills", "install", "--agent", agent)[0] == 0
        assert list((tmp_path / place).glob("*/SKILL.md"))
        assert cli("skills", "uninstall", "--agent", agent)[0] == 0
        assert not list((tmp_path / place).glob("*"))
    assert cli("skills", "uninstall")[0] == 2
    assert cli("skills", "install", "--agent", "nobody")[0] == 2


def test_front_matter_that_is_not_yaml_is_named(source):
    (source / "beta" / "SKILL.md").write_text("---\nname: beta\ndescription: Use it: now.\n---\n")
    with pytest.raises(InputError, match=r"beta.SKILL\.md: front matter is not YAML: .*column"):
        room.skills(source)
