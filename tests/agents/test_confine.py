"""What an agent sees: by asking programs that run in its sandbox."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vibeserve.agents import confine
from vibeserve.agents.desk import Box

SANDBOX = confine.here()
pytestmark = pytest.mark.skipif(SANDBOX is None, reason="not run: bubblewrap does not run here")


def inside(box: Box, script: str) -> str:
    assert SANDBOX is not None
    done = subprocess.run(SANDBOX.wrap(["/bin/sh", "-c", script], box), capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.fixture
def box(tmp_path: Path) -> Box:
    for name in ("work", "home", "notes", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.txt").write_text(name)
    return Box(tmp_path / "work", True, tmp_path / "home", (tmp_path / "notes",))


def test_it_sees_its_work_its_home_and_its_notes_and_no_more(box: Box, tmp_path: Path) -> None:
    seen = inside(box, f"cat {tmp_path}/*/file.txt; pwd; echo $HOME; ls /root /home 2>&1 | head; id -u")
    assert seen.startswith("homenoteswork")
    assert f"{box.work}\n{box.home}\n" in seen
    assert "other" not in seen
    assert not Path.home().exists() or "No such file" in seen or ".ssh" not in seen


def test_it_writes_in_its_work_and_its_home_alone(box: Box, tmp_path: Path) -> None:
    said = inside(box, f"echo a > made; echo b > $HOME/made; echo c > {tmp_path}/notes/made; echo d > /usr/made")
    assert (box.work / "made").read_text() == "a\n"
    assert (box.home / "made").read_text() == "b\n"
    assert said.count("Read-only file system") == 2
    reader = Box(box.work, False, box.home)
    assert "Read-only file system" in inside(reader, "echo a > made")


def test_the_network_is_there_only_where_it_is_given(box: Box) -> None:
    script = "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' ' | sort | tr '\\n' ' '"
    assert inside(box, script).split() == ["lo"]
    with_network = Box(box.work, True, box.home, network=True)
    outside = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert inside(with_network, script) == outside


def test_it_sees_no_process_but_its_own(box: Box) -> None:
    assert len([word for word in inside(box, "ls /proc").split() if word.isdigit()]) <= 4


def test_a_programs_package_comes_along(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "node_modules" / "@maker" / "agent"
    (package / "dist").mkdir(parents=True)
    (package / "package.json").write_text("{}")
    (package / "dist" / "index.js").write_text("")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "agent").symlink_to(package / "dist" / "index.js")
    assert confine.places_of(tmp_path / "bin" / "agent") == (tmp_path / "bin", package)
    (package / "package.json").unlink()
    assert confine.places_of(tmp_path / "bin" / "agent") == (tmp_path / "bin", package / "dist")
