"""Each rule finds its bad examples and leaves the good ones alone; ignores, versions, formats, odd files."""

import json
import subprocess
import sys
import sysconfig
import textwrap
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.base.errors import InputError
from vibeserve.nki import lint

EXAMPLES = tomllib.loads((Path(__file__).parent / "examples.toml").read_text(encoding="utf-8"))
HEAD = """import math
import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
import numpy as np
import torch


@nki.jit
def k(a, b, n=3, kw=None):
    t = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    u = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    v = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    c = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    p = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    out = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.shared_hbm)
"""
CASES = [(rule, kind, text) for rule, entry in EXAMPLES.items() for kind in ("bad", "good") for text in entry[kind]]


def whole(text):
    is_file = text.startswith(("import ", "from "))
    return text if is_file else HEAD + textwrap.indent(text, "    ") + "\n"


def test_every_rule_names_a_check_that_there_is():
    from vibeserve.nki.lint.rules import CHECKS

    named = {rule.check for rule in lint.rules().values() if rule.check}
    assert named == set(CHECKS)


def test_every_rule_has_examples():
    assert set(EXAMPLES) == set(lint.rules())
    for rule, entry in EXAMPLES.items():
        assert len(entry["bad"]) >= 3, rule
        assert len(entry["good"]) >= 3, rule


def test_every_rule_of_the_language_is_a_lint_rule_or_accounted_for():
    from vibeserve.knowledge import catalogue
    from vibeserve.nki.lint.rules import accounted

    simulator = Path(lint.__file__).parents[1]
    said = "".join(
        path.read_text(encoding="utf-8") for path in sorted(simulator.rglob("*.py")) if "lint" not in path.parts
    )
    said += "".join(path.read_text(encoding="utf-8") for path in sorted((simulator / "data").rglob("*.toml")))
    known = {code: entry for code, entry in catalogue.errors().items() if entry.area == "rule"}
    of_the_language = {code for code, entry in known.items() if entry.category != "rule: simulator"}
    assert len(of_the_language) > 140
    assert of_the_language == set(lint.rules()) | set(accounted())
    assert not set(lint.rules()) & set(accounted())
    for name, entry in accounted().items():
        assert len(entry.reason) > 30, name
        assert bool(entry.by) != bool(entry.seen_by), name
        assert set(entry.by) <= set(lint.rules()), name
        assert entry.seen_by in ("", "simulator"), name
        assert not entry.seen_by or f'"{name}"' in said, name


@pytest.mark.parametrize(
    ("rule", "kind", "text"), CASES, ids=[f"{rule}-{kind}-{i}" for i, (rule, kind, _) in enumerate(CASES)]
)
def test_examples(rule, kind, text):
    version = EXAMPLES[rule].get("version", "0.4")
    found = lint.lint_text(whole(text), options=lint.Options(version=version))
    assert [item for item in found if item.rule == "SYNTAX"] == []
    assert (rule in {item.rule for item in found}) == (kind == "bad")


@pytest.mark.parametrize("text", [text for _, kind, text in CASES if kind == "bad"])
def test_fixing_twice_changes_nothing_more(text):
    once = lint.fix_text(whole(text))
    compile(once.text, "x", "exec")
    assert lint.fix_text(once.text).text == once.text


def test_ignores():
    text = whole("print(a)  # nki: ignore[L-PRINT]\nprint(b)  # nki: ignore\nprint(n)  # nki: ignore[B2-IS]\n")
    assert [item.line for item in lint.lint_text(text) if item.rule == "L-PRINT"] == [len(HEAD.splitlines()) + 3]


def test_severity_follows_the_version():
    text = "import neuronxcc.nki as nki\n"

    def severity(version):
        return [
            item.severity
            for item in lint.lint_text(text, options=lint.Options(version=version))
            if item.rule == "B1-IMPORT"
        ]

    assert [severity(version) for version in ("0.1", "0.2", "0.4", "0.6")] == [[], ["warn"], ["error"], ["error"]]


def test_host_code_is_no_kernel_code():
    text = "import nki\nimport numpy as np\ndef host(x):\n    print(x)\n    return x is None\n"
    assert lint.lint_text(text) == []


def test_helpers_called_from_kernels_are_kernel_code():
    text = "import nki\nimport nki.language as nl\ndef helper(x):\n    y = nl.tile_size.pmax\n    print(y)\n@nki.jit\ndef k(a):\n    helper(a)\n"
    assert [item.rule for item in lint.lint_text(text)] == ["L-PRINT"]


def test_aliases_are_followed():
    text = "import nki.language as lang\nfrom nki import isa\nimport nki as kernels\n@kernels.jit\ndef k(a):\n    i = lang.arange(3)\n    isa.tensor_copy(src=a)\n"
    assert {item.rule for item in lint.lint_text(text)} == {"B1-ARANGE", "B1-DST-FIRST"}


def test_a_file_without_kernels_is_left_alone():
    assert lint.lint_text("import numpy as np\nx = np.arange(3)\nassert x is x\n") == []


def test_fixes_keep_comments_and_formatting():
    text = (
        "from neuronxcc import nki\nimport neuronxcc.nki.language as nl\n\n\n"
        "@nki.jit(\n    platform_target='trn2',  # the chip\n)\ndef k(\n    a,  # input\n    s=[1, 2],\n):\n"
        "    for i in nl.affine_range(4):  # tiles\n        if a is  None:\n            pass\n"
    )
    fixed = lint.fix_text(text)
    assert fixed.text == (
        "import nki\nimport nki.language as nl\n\n\n"
        "@nki.jit(\n      # the chip\n)\ndef k(\n    a,  # input\n    s=(1, 2),\n):\n"
        "    for i in range(4):  # tiles\n        if a == None:\n            pass\n"
    )
    assert fixed.applied == {"B1-IMPORT": 2, "B2-PLATFORM": 1, "B2-LISTARG": 1, "V6-RANGEALIAS": 1, "B2-IS": 1}


def test_what_cannot_be_parsed_is_never_changed():
    text = "import nki\ndef k(:\n    x is None\n"
    assert lint.fix_text(text).text == text
    assert [item.rule for item in lint.lint_text(text)] == ["SYNTAX"]


@given(st.text(max_size=300))
def test_no_text_crashes(text):
    lint.lint_text(text)
    lint.lint_text("import nki\n" + text)
    fixed = lint.fix_text("import nki\n" + text)
    assert isinstance(fixed.text, str)


def test_the_standard_library_crashes_nothing_and_alarms_nobody():
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted([*folder.glob("*.py"), *(folder / "json").glob("*.py"), *(folder / "asyncio").glob("*.py")])[:200]
    assert len(files) == 200
    assert lint.lint_paths(files) == []
    for path in files[:60]:
        text = "import nki\n" + path.read_text(encoding="utf-8", errors="replace").replace(
            "from __future__", "# from __future__"
        )
        lint.lint_text(text)


def test_cli(cli, tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(whole("if b is None:\n    print(b)"))
    code, out, _ = cli("nki", "lint", path, "--json")
    assert code == 1
    found = json.loads(out)["findings"]
    assert set(found[0]) == {"file", "line", "column", "rule", "severity", "message", "instead", "fixable"}
    code, out, _ = cli("nki", "lint", path, "--format", "sarif")
    log = json.loads(out)
    assert log["version"] == "2.1.0"
    assert log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] > 1
    code, out, _ = cli("nki", "lint", path, "--format", "github")
    assert out.startswith("::")
    before = path.read_text()
    code, out, _ = cli("nki", "lint", path, "--diff")
    assert "+    if b == None:" in out
    assert path.read_text() == before
    code, _, err = cli("nki", "lint", path, "--fix", "--ignore", "L-*", "--ignore", "C-*")
    assert "B2-IS × 1" in err
    assert "b == None" in path.read_text()
    assert code == 0
    assert cli("nki", "lint", tmp_path / "missing.py")[0] == 2
    assert cli("nki", "lint", path, "--nki-version", "9.9")[0] == 2
    assert cli("nki", "lint", path, "--format", "xml")[0] == 2


def test_configuration(tmp_path, cli):
    (tmp_path / "pyproject.toml").write_text('[tool.vibeserve.lint]\nnki-version = "0.2"\nignore = ["L-*"]\n')
    path = tmp_path / "k.py"
    path.write_text(whole("x = nl.load(a)\nprint(x)"))
    rules = {item.rule: item.severity for item in lint.lint_paths([path])}
    assert rules["B1-LOADSTORE"] == "error"
    assert "L-PRINT" not in rules
    (tmp_path / "pyproject.toml").write_text("[tool.vibeserve.lint]\nselct = []\n")
    with pytest.raises(InputError, match="unknown key 'selct'"):
        lint.lint_paths([path])


@pytest.mark.parametrize("folder", ["examples/kernels", "src/vibeserve/nki/lib", "skills"])
def test_no_false_alarm_on_our_own_kernels_in_any_version(folder):
    files = sorted((Path(__file__).parents[2] / folder).rglob("*.py"))
    files = [path for path in files if "beta" not in path.name]
    for version in ("0.4", "0.5", "0.6"):
        found = lint.lint_paths(files, lint.Options(version=version))
        assert [item for item in found if item.severity in ("error", "warn")] == [], version


def test_not_utf8(tmp_path):
    path = tmp_path / "k.py"
    path.write_bytes(b"import nki\n\xff\xfe")
    assert [item.rule for item in lint.lint_paths([path])] == ["SYNTAX"]


def test_no_false_alarm_on_our_own_kernels():
    kernels = sorted((Path(__file__).parents[2] / "examples" / "kernels").rglob("*.py"))
    alarms = [item for item in lint.lint_paths(kernels) if item.severity in ("error", "warn")]
    assert alarms == []


def test_runs_as_a_command(tmp_path):
    path = tmp_path / "k.py"
    path.write_text("import nki\n")
    done = subprocess.run(
        [sys.executable, "-m", "vibeserve.cli.main", "nki", "lint", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


BROKEN = st.sampled_from(sorted({text for _, _, text in CASES}))


@given(BROKEN, st.data())
def test_no_broken_kernel_crashes(text, data):
    """Kernels cut, with a stretch taken out, or with another's text put in at some place."""
    source = whole(text)
    start = data.draw(st.integers(0, len(source)))
    end = data.draw(st.integers(start, min(len(source), start + 60)))
    made = source[:start] + data.draw(st.one_of(st.just(""), BROKEN, st.text(max_size=8))) + source[end:]
    assert isinstance(lint.lint_text(made), list)
    assert isinstance(lint.fix_text(made).text, str)


@pytest.mark.parametrize("words", [("--select", "p-*"), ("--select", "P-PSUM-DTPYE"), ("--ignore", "")])
def test_a_rule_that_there_is_none_of_is_refused(cli, tmp_path, words):
    (tmp_path / "kernel.py").write_text(HEAD)
    code, _, err = cli("nki", "lint", tmp_path, *words)
    assert (code, err.splitlines()[0]) == (2, f"error: no lint rule is called '{words[1]}'")
    (tmp_path / "pyproject.toml").write_text(f'[tool.vibeserve.lint]\n{words[0][2:]} = ["{words[1]}"]\n')
    assert cli("nki", "lint", tmp_path)[0] == 2


def test_a_list_of_rules_is_a_list(cli, tmp_path):
    (tmp_path / "kernel.py").write_text(HEAD)
    (tmp_path / "pyproject.toml").write_text('[tool.vibeserve.lint]\nselect = "P-*"\n')
    code, _, err = cli("nki", "lint", tmp_path)
    assert code == 2
    assert "'select' in [tool.vibeserve.lint] is no list of rules" in err


def test_a_directory_without_python_has_not_been_checked(cli, tmp_path):
    code, _, err = cli("nki", "lint", tmp_path)
    assert (code, err.splitlines()[0]) == (2, f"error: no Python file in {tmp_path}")
