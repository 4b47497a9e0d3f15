"""Every example kernel against its NumPy reference, at small sizes and at sizes with remainders (cases.toml)."""

from __future__ import annotations

import importlib.util
import inspect
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vibeserve.nki import language as nl
from vibeserve.nki import running, simulate
from vibeserve.nki.kernel import Kernel

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "kernels"
TABLE: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "cases.toml").read_text())
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 5e-3}
SETTINGS = ("target", "lnc", "tolerance", "slow")


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"reference_{path.parent.name.replace('-', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _input(name: str, value: Any) -> Any:
    if isinstance(value, str):
        parsed = running.parse_input(f"{name}={value}")[1]
        if isinstance(parsed, str) and parsed.startswith("nl."):
            return getattr(nl, parsed[3:])
        value = parsed
    return running.make_input(name, value, seed=1)


def _cases() -> list[Any]:
    found = []
    for slug, kernels in TABLE.items():
        for kernel, cases in kernels.items():
            for number, case in enumerate(cases):
                marks = [pytest.mark.slow] if case.get("slow") else []
                found.append(pytest.param(slug, kernel, case, id=f"{slug}:{kernel}-{number}", marks=marks))
    return found


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


@pytest.mark.parametrize(("slug", "kernel", "case"), _cases())
def test_kernel_is_its_reference(slug: str, kernel: str, case: dict[str, Any]) -> None:
    made, _ = running.load_kernel(f"{EXAMPLES / slug / 'kernel.py'}:{kernel}")
    reference = _module(EXAMPLES / slug / "reference.py")
    inputs = {name: _input(name, value) for name, value in case.items() if name not in SETTINGS}
    prepare = getattr(reference, "prepare", None)
    if prepare is not None:
        inputs = prepare(kernel, inputs)
    golden = getattr(reference, kernel)
    known = inspect.signature(golden).parameters
    expected = _tuple(
        golden(**{k: v.copy() if isinstance(v, np.ndarray) else v for k, v in inputs.items() if k in known})
    )
    run = simulate(made, target=case.get("target", "trn2"), lnc=case.get("lnc", 1), strict=True)
    results = _tuple(run(**inputs))
    assert run.findings == []
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        name = str(result.dtype)
        got, want = np.asarray(result, np.float64), np.asarray(wanted, np.float64)
        tolerance = case.get("tolerance", TOLERANCE.get(name, 0.0))
        scale = np.abs(want[np.isfinite(want)]).max(initial=0.0)
        assert (np.isfinite(got) == np.isfinite(want)).all()
        error = np.abs(np.where(np.isfinite(want), got - want, 0)).max(initial=0.0)
        assert error <= tolerance * max(scale, 1e-30), f"error {error} of {scale}"


def test_every_kernel_has_cases_and_inputs() -> None:
    for folder in sorted(path.parent for path in EXAMPLES.glob("*/kernel.py")):
        module = running.load_file(folder / "kernel.py")
        names = {name for name, value in vars(module).items() if isinstance(value, Kernel)}
        inputs = tomllib.loads((folder / "inputs.toml").read_text())
        assert set(inputs) == names, folder.name
        assert set(TABLE[folder.name]) == names, folder.name
        assert (folder / "README.md").is_file(), folder.name
        for name in names:
            arguments = inspect.signature(vars(module)[name].func).parameters
            assert set(inputs[name]) - {"target", "lnc"} <= set(arguments), name
            text = inspect.getdoc(vars(module)[name].func) or ""
            for part in ("Args:", "Returns:"):
                assert part in text, f"{folder.name}:{name} lacks {part} in its docstring"


def test_examples_pass_the_lint(cli: Any) -> None:
    code, out, _ = cli("nki", "lint", EXAMPLES, "--json")
    assert code == 0, out
