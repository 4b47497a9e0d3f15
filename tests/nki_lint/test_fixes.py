"""Every fix is proved by what the fixed kernel computes; code of the first beta is carried over as far as mechanics go."""

from __future__ import annotations

import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest

from vibeserve.nki import lint, simulate
from vibeserve.nki.running import load_kernel

HERE = Path(__file__).parent
CASES = tomllib.loads((HERE / "fixed.toml").read_text(encoding="utf-8"))
HEAD = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\nimport numpy as np\n\n\n"
SHAPE = (128, 64)


def before(case: dict[str, str]) -> str:
    """The whole file of a case."""
    if "before" in case:
        return case["before"].lstrip("\n")
    made = f"{case.get('decorator', '@nki.jit')}\ndef k({case.get('parameters', 'x')}):\n"
    body = f"out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n{case['body'].strip()}\nreturn out\n"
    return HEAD + made + textwrap.indent(body, "    ")


def errors(text: str) -> list[tuple[int, str]]:
    return [(item.line, item.rule) for item in lint.lint_text(text) if item.severity in ("error", "warn")]


def test_every_rule_with_a_fix_is_proved() -> None:
    assert set(CASES) == {rule.id for rule in lint.rules().values() if rule.fix}


@pytest.mark.parametrize("rule", CASES)
def test_the_fixed_kernel_computes_what_was_meant(rule: str, tmp_path: Path) -> None:
    case = CASES[rule]
    text = before(case)
    assert rule in {item.rule for item in lint.lint_text(text) if item.fixable}
    fixed = lint.fix_text(text)
    assert fixed.applied[rule] >= 1
    assert rule not in {item.rule for item in lint.lint_text(fixed.text)}
    assert lint.fix_text(fixed.text).text == fixed.text
    assert text.count("#") == fixed.text.count("#")
    if not case.get("runs", True):
        assert fixed.text == case["text"].lstrip("\n")
        return
    assert errors(fixed.text) == []
    path = tmp_path / "kernel.py"
    path.write_text(fixed.text, encoding="utf-8")
    kernel, _ = load_kernel(f"{path}:k")
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    wanted = eval(case["expects"], {"np": np, "x": x})
    np.testing.assert_allclose(simulate(kernel, lnc=case.get("lnc", 1))(x), wanted, rtol=2e-5, atol=2e-5)


def test_a_kernel_of_the_first_beta_runs_after_the_fixes_alone(tmp_path: Path) -> None:
    text = (HERE / "beta/softmax_project.py").read_text(encoding="utf-8")
    assert len(errors(text)) > 20
    fixed = lint.fix_text(text)
    assert errors(fixed.text) == []
    assert "# a tile of rows" in fixed.text
    path = tmp_path / "kernel.py"
    path.write_text(fixed.text, encoding="utf-8")
    kernel, _ = load_kernel(f"{path}:softmax_project")
    draw = np.random.default_rng(1)
    x, w = draw.standard_normal((256, 128), np.float32), draw.standard_normal((128, 512), np.float32)
    powers = np.exp(2 * x - 2 * x.max(1, keepdims=True))
    np.testing.assert_allclose(simulate(kernel)(x, w), powers / powers.sum(1, keepdims=True) @ w, rtol=1e-4, atol=1e-5)


def test_a_fix_imports_what_it_writes_and_tells_beforehand_what_it_will_reach(tmp_path: Path) -> None:
    text = (HERE / "beta/add_one.py").read_text(encoding="utf-8")
    assert "isa" not in text
    loads = [item for item in lint.lint_text(text) if item.rule == "B1-LOADSTORE"]
    assert len(loads) == 2
    assert all(item.fixable for item in loads)  # once the index arithmetic is gone
    fixed = lint.fix_text(text)
    assert fixed.text.splitlines()[2:5] == ["import nki.language as nl", "import nki", "import nki.isa as nisa"]
    assert lint.fix_text(fixed.text).text == fixed.text
    assert errors(fixed.text) == []
    path = tmp_path / "kernel.py"
    path.write_text(fixed.text, encoding="utf-8")
    kernel, _ = load_kernel(f"{path}:add_one")
    x = np.random.default_rng(2).standard_normal((256, 512), np.float32)
    np.testing.assert_array_equal(simulate(kernel)(x), x + 1)


BETA = """import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def k(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.load(a)
    nl.store(out, value=x)
    return out
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_a_byte_order_mark_stay(end: str, mark: str, tmp_path: Path, cli) -> None:
    path = tmp_path / "kernel.py"
    path.write_bytes((mark + BETA.replace("\n", end)).encode())
    cli("nki", "lint", str(path), "--fix")
    written = path.read_bytes().decode()
    assert written.startswith(mark + "import nki" + end)
    assert written.count("\n") == written.count(end)
    assert errors(written) == []


@pytest.mark.parametrize(
    "text",
    [
        "def make():\n" + textwrap.indent(BETA, "    ") + "    return k\n\n\nk = make()\n",
        BETA.replace(" as nki", "")
        .replace(" as nl", "")
        .replace("@nki", "@neuronxcc.nki")
        .replace("nl.", "neuronxcc.nki.language."),
        BETA.replace("import neuronxcc.nki as nki", "import os, neuronxcc.nki as nki"),
        BETA.replace("import neuronxcc.nki.language as nl", "from neuronxcc.nki import language as L").replace(
            "nl.", "L."
        ),
    ],
    ids=["in a function", "spelled in full", "two on a line", "other names"],
)
def test_imports_of_every_kind_are_carried_over(text: str, tmp_path: Path) -> None:
    fixed = lint.fix_text(text)
    assert errors(fixed.text) == []
    assert "neuronxcc" not in fixed.text
    assert lint.fix_text(fixed.text).text == fixed.text
    path = tmp_path / "kernel.py"
    path.write_text(fixed.text, encoding="utf-8")
    kernel, _ = load_kernel(f"{path}:k")
    x = np.random.default_rng(3).standard_normal((128, 64), np.float32)
    np.testing.assert_array_equal(simulate(kernel)(x), x)


def test_a_destination_is_asked_for_once() -> None:
    text = HEAD + "@nki.jit\ndef k(t):\n    y = nisa.activation(op=nl.exp, data=t)\n    return y\n"
    assert [rule for _, rule in errors(text)] == ["B1-RESULT"]


def test_what_is_left_of_a_masked_kernel_is_listed_by_line(tmp_path: Path) -> None:
    text = (HERE / "beta/masked_rows.py").read_text(encoding="utf-8")
    fixed = lint.fix_text(text)
    left = [item for item in lint.lint_text(fixed.text) if item.severity == "error"]
    assert {item.rule for item in left} == {"B1-ARANGE", "B1-MASK"}
    lines = fixed.text.splitlines()
    for item in left:
        assert "mask=" in lines[item.line - 1] or "nl.arange" in lines[item.line - 1]
        assert not item.fixable
        assert item.instead
    assert "neuronxcc" not in fixed.text
    assert "platform_target" not in fixed.text


@pytest.mark.parametrize(
    "body",
    [
        "y = x + nisa.tensor_copy(t)",  # not a statement of its own
        "t = nisa.tensor_reduce(op=nl.add, data=t, axis=1)",  # reads what it would allocate anew
        "y = nisa.tensor_reduce(op=nl.add, data=t, axis=[1, 2])",  # a shape that cannot be told
        "y = nisa.select(t)",  # an instruction that the table lacks
        "if n: y = nisa.tensor_copy(t)",  # no line of its own
        "i = nl.arange(4)[:, None]\ny = x[i * 2, 0:4]",  # a step
        "i = nl.arange(4)\nj = i + 1\ny = x[j]",  # used elsewhere than in an index
        "t = nl.load(x[0:4], mask=m)",
        "y = nl.load(x if n else w)",
    ],
)
def test_what_is_not_mechanical_is_left(body: str) -> None:
    text = HEAD + "@nki.jit\ndef k(x, t, n, m, w):\n" + textwrap.indent(body, "    ") + "\n"
    assert lint.fix_text(text).text == text
