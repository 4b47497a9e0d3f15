"""Every fenced command of every skill is run as it stands, in a workspace that holds what the skill speaks of."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.e2e.test_optimize_engine import tiny  # noqa: F401 - a fixture
from tests.profiles import made

from vibeserve import profiles
from vibeserve.mcp import skills as room

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^ *```sh([^\n]*)\n(.*?)^ *```$", re.S | re.M)
FENCE = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.S | re.M)
PAGES = sorted((ROOT / "skills").rglob("*.md"))
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


# A device script as the skills mean it: the header that `vibeserve nki doctor --header` prints, then a kernel.
SCRIPT = """
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def my_kernel(x):
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=t)
    return out


x = np.ones((128, 512), np.float32)
assert np.array_equal(my_kernel(x), x)
"""
# What runs elsewhere: by the slow test below.
OPTIMIZE = "vibeserve-optimize"


def commands(name: str) -> list[str]:
    """The fenced commands of a skill for any machine, continued lines joined."""
    return [line for kind, lines in blocks(name) if "device" not in kind for line in lines]


def blocks(name: str) -> list[tuple[str, list[str]]]:
    """(what stands behind ```sh, the commands) of each block of commands on a skill's page."""
    found = []
    for kind, text in BLOCK.findall(SKILLS[name].path.joinpath("SKILL.md").read_text(encoding="utf-8")):
        lines = [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines()]
        found.append((kind.strip(), [line for line in lines if line and not line.startswith("#")]))
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


@pytest.mark.parametrize("name", [name for name in SKILLS if name != OPTIMIZE])
def test_commands_run_as_they_stand(name, workspace):
    ran = [command for command in commands(name) if "--ref" not in command]
    assert ran
    for command in ran:
        run(command, workspace)


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT / "skills")) for path in PAGES])
def test_every_fence_is_of_a_kind_that_is_looked_at(page):
    """Commands stand in ```sh (or ```sh device) on the page of a skill; code and its changes may be shown anywhere."""
    kinds = [kind.strip() for kind, _ in FENCE.findall(page.read_text(encoding="utf-8"))]
    allowed = {"sh", "sh device", "python"} if page.name == "SKILL.md" else {"python", "diff"}
    assert set(kinds) <= allowed
    for kind, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind.strip() == "python":
            ast.parse(textwrap.dedent(text).replace("return ", "yield "))


DEVICE = [(name, index) for name in SKILLS for index, (kind, _) in enumerate(blocks(name)) if kind == "device"]


@pytest.mark.parametrize(("name", "index"), DEVICE, ids=[f"{name}-{index}" for name, index in DEVICE])
def test_commands_for_the_device_run_on_the_simulator(name, index, workspace):
    """Each block as one shell script, `python` being `vibeserve nki run`. What needs the vendor's tool says so, and with which command."""
    venv = workspace / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "activate").write_text("")
    header = run("vibeserve nki doctor --header", workspace).stdout
    for script in ("my_script.py", "your_test_script.py"):
        (workspace / script).write_text(header + SCRIPT)
    (workspace / "kernel.neff").touch()
    (workspace / "profile_exec_2.ntff").touch()
    run("vibeserve nki new my-softmax --from softmax", workspace)
    verb = f"{shlex.quote(sys.executable)} -m vibeserve.cli.main"
    functions = f'vibeserve() {{ {verb} "$@"; }}\npython() {{ vibeserve nki run "$@"; }}\nset -e\n'
    lines = blocks(name)[index][1]
    environment = {
        **os.environ,
        "VIBESERVE_DATA_PATH": str(workspace / "profiles"),
        "HOME": str(workspace),
        "NKI_VENV_PATH": str(venv),
    }
    done = subprocess.run(
        ["bash", "-c", functions + "\n".join(lines)],
        capture_output=True, text=True, timeout=240, cwd=workspace, env=environment, check=False,
    )  # fmt: skip
    if any(" -n kernel.neff " in line for line in lines):
        assert done.returncode == 3
        assert (
            "hint: on the device's machine run: neuron-explorer view -n kernel.neff -s profile_exec_2.ntff"
            in done.stderr
        )
    else:
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_commands_of_optimize_in_order(tiny, tmp_path):  # noqa: F811 - the fixture
    tiny.rename(tmp_path / "bundle")
    ran = commands("vibeserve-optimize")
    assert len(ran) == 7
    for command in ran:
        run(command, tmp_path, 900)
    assert (tmp_path / "page.html").read_text().startswith("<!")
    assert (tmp_path / "my-server" / "server.py").is_file()
    [seed_form] = [command for command in commands("vs-init") if "--ref" in command]
    words = seed_form.replace("BUNDLE", "bundle")
    run(f"{words} --rounds 1 --budget 2m --json", tmp_path, 900)


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
