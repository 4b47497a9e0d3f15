"""Every fenced command of every skill is run as it stands, in a workspace that holds what the skill speaks of."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.test_optimize_engine import tiny  # noqa: F401 - a fixture
from tests.profiles import made

from vibeserve import profiles
from vibeserve.mcp import skills as room

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^ *```sh([^\n]*)\n(.*?)^ *```$", re.S | re.M)
SKILLS = {skill.name: skill for skill in room.skills()}
# Words of a skill that stand for the user's own, and what they are in the workspace.
OWN = {"BUNDLE": "bundle"}
# What a command ends with where that is not 0, by its first words: a verdict, a question, or what this machine lacks.
ENDS = {
    "vibeserve nki doctor": {0, 1, 3},
    "vibeserve init": {2},
    "vibeserve nki lint": {0, 1},
}

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def add_rows(x, y):
    a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    b = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=b, src=y)
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=a)
    return out
"""


def commands(name: str, device: bool = False) -> list[str]:
    """The fenced commands of a skill, continued lines joined: those for any machine, or those for the device."""
    found = []
    for kind, text in BLOCK.findall(SKILLS[name].path.joinpath("SKILL.md").read_text(encoding="utf-8")):
        if ("device" in kind) == device:
            lines = re.sub(r"\\\n\s*", "", text).splitlines()
            found += [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return found


def run(command: str, folder: Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    words = [OWN.get(word, word) for word in shlex.split(command)]
    assert words[0] == "vibeserve", command
    environment = {**os.environ, "VIBESERVE_DATA_PATH": str(folder / "profiles"), "HOME": str(folder)}
    argv = [sys.executable, "-m", "vibeserve.cli.main", *words[1:]]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=timeout_s, cwd=folder, env=environment, check=False
    )
    expected = next((ends for start, ends in ENDS.items() if command.startswith(start)), {0})
    assert done.returncode in expected, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, command
    if "--json" in words:
        json.loads(done.stdout)
    return done


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "kernel.py").write_text(KERNEL)
    profiles.save(made.matmul_profile(), "mm", data_path=tmp_path / "profiles")
    profiles.save(made.synthetic(400, 300), "mm2", data_path=tmp_path / "profiles")
    return tmp_path


@pytest.mark.parametrize(
    "name", ["roofline", "neuron-nki-debugging", "neuron-nki-docs", "neuron-nki-profile-querying", "vs-init"]
)
def test_commands_run_as_they_stand(name, workspace):
    ran = [command for command in commands(name) if "--ref" not in command]
    assert ran
    for command in ran:
        run(command, workspace)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.slow
def test_the_commands_of_optimize_in_order(tiny, tmp_path):  # noqa: F811 - the fixture
    tiny.rename(tmp_path / "bundle")
    ran = commands("vibeserve-optimize")
    assert len(ran) == 7
    for command in ran:
        run(command, tmp_path, 900)
    assert (tmp_path / "page.html").read_text().startswith("<!")
    assert (tmp_path / "my-server" / "server.py").is_file()


@pytest.mark.parametrize("name", SKILLS)
def test_inline_commands_exist(name):
    """Commands inside a sentence are verbs that the command line has."""
    from vibeserve.cli import verbs

    text = SKILLS[name].path.joinpath("SKILL.md").read_text(encoding="utf-8")
    found = re.findall(r"`vibeserve ([a-z][^`]*)`", text)
    for words in found:
        assert any(words == verb or words.startswith(f"{verb} ") for verb in verbs.VERBS), words


@pytest.mark.parametrize("name", SKILLS)
def test_links_and_related_skills_exist(name):
    path = SKILLS[name].path
    text = path.joinpath("SKILL.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (path / target).exists(), target
    for other in re.findall(r"`(neuron-nki-[a-z-]+|vs-init|serving-systems|vibeserve-optimize)`", text):
        assert other in SKILLS, other
    for page in re.findall(r"\bdocs/[a-z-]+\.md\b", text):
        assert (ROOT / page).is_file(), page
