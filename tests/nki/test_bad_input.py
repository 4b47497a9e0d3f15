"""Kernels and inputs that cannot work: a clear message, the right exit code, no hang, and nothing that looks like a result."""

from __future__ import annotations

import json
import pdb  # noqa: T100
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, simulate

HEAD = "import nki\nimport numpy as np\nimport nki.language as nl, nki.isa as nisa\n\n\n@nki.jit\n"
ADD = f"{HEAD}def k(x, n=1):\n    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n    nl.store(out, nl.load(x))\n    return out\n"
AFTER_A_STORE = """    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    nisa.memset(nl.load(x), 'no')
    return out
"""
KERNELS = {
    "a loop of instructions": ("    tile = nl.load(x)\n    while True:\n        nisa.memset(tile, 0.0)\n", 10, "stopped after"),
    "a loop of Python": ("    i = 0\n    while True:\n        i += 1\n", (8, 9, 10), "no instruction for"),
    "recursion": ("    return k(x)\n", 8, "recursion"),
    "a missing import": ("    import not_there_at_all\n    return x\n", 8, "No module named 'not_there_at_all'"),
    "an error of its own": ("    return x.shape[0] // 0\n", 8, "ZeroDivisionError"),
    "more HBM than there is": ("    nl.zeros((1 << 40,), nl.float32, buffer=nl.hbm)\n", 8, "bytes of HBM"),
    "more SBUF than there is": ("    nl.zeros((128, 1 << 28), nl.float32)\n", 8, "in a partition of sbuf"),
    "an error after a store": (AFTER_A_STORE, 10, "value='no'"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_BUDGET", "2000")
    monkeypatch.setenv("NKI_STALL_S", "0.2")


@pytest.mark.parametrize("what", KERNELS)
@pytest.mark.parametrize("lnc", ["1", "2"])
def test_a_kernel_that_cannot_work(cli: Callable[..., Any], tmp_path: Path, what: str, lnc: str) -> None:
    body, lines, text = KERNELS[what]
    file = tmp_path / "kernel.py"
    file.write_text(f"{HEAD}def k(x):\n{body}")
    code, out, err = cli("nki", "simulate", f"{file}:k", "--input", "x=4x4:float32", "--lnc", lnc, "--json")
    assert code == 1, err
    assert text in err + out
    assert "Traceback" not in err
    assert any(f"kernel.py:{line}" in err + out for line in ([lines] if isinstance(lines, int) else lines)), err + out
    assert "outputs" not in out


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("x=0x4:float32", "positive sizes"), ("x=4x4:object", "unknown dtype"), ("x=99999999x9999999:float32", "bytes"),
        ("x=4x-4:float32", "positive sizes"), ("x", "NAME="), ("=4", "NAME="), ("x=axb:float32", "shape"),
    ],
)  # fmt: skip
def test_an_input_that_cannot_be_made(cli: Callable[..., Any], tmp_path: Path, given: str, text: str) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(ADD)
    code, out, err = cli("nki", "simulate", f"{file}:k", "--input", given, "--json")
    assert code == 2, err
    assert text in err + out
    assert set(json.loads(out)) == {"error"}


@pytest.mark.parametrize(
    ("source", "code", "text"),
    [
        ("import not_there_at_all\n" + ADD, 2, "No module named 'not_there_at_all'"),
        ("def k(x:\n", 2, "kernel.py:1: 'def k(x:'"),
        (ADD.replace("def k(x, n=1)", "def k(x, y)"), 1, "missing a required argument: 'y'"),
        (ADD.replace("def k(x, n=1)", "def k(z)"), 1, "'z'"),
    ],
)
def test_a_file_that_does_not_fit(cli: Callable[..., Any], tmp_path: Path, source: str, code: int, text: str) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(source)
    got, out, err = cli("nki", "simulate", f"{file}:k", "--input", "x=4x4:float32")
    assert got == code, err
    assert text in err
    assert "Traceback" not in err
    assert not out


def doubled(x: Any) -> Any:
    tile = nl.load(x)
    nisa.tensor_tensor(tile, tile, tile, nl.add)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T, lambda a: a[::2], lambda a: a[:, ::-1], lambda a: np.broadcast_to(a[:1], a.shape),
        np.asfortranarray, lambda a: a[1:-1, 2:5],
    ],
)  # fmt: skip
def test_arrays_that_are_not_contiguous(view: Callable[[Any], Any]) -> None:
    array = view(np.arange(64, dtype=np.float32).reshape(8, 8))
    np.testing.assert_array_equal(simulate(doubled)(array), 2 * array)


@pytest.mark.parametrize("kind", [">f4", ">i4", ">u2", ">f2"])
def test_arrays_of_the_other_byte_order(kind: str) -> None:
    """Converted on the way in; what the kernel writes into such an argument is there, in that order."""
    array = np.arange(32, dtype=kind).reshape(4, 8)
    np.testing.assert_array_equal(simulate(doubled)(array), 2 * np.arange(32).reshape(4, 8))

    def in_place(x: Any) -> Any:
        tile = nl.load(x)
        nisa.tensor_scalar(tile, tile, nl.add, 1)
        nl.store(x, tile)
        return x

    def constant(x: Any) -> Any:
        return doubled(nl.shared_constant(np.arange(6, dtype=kind).reshape(2, 3)))

    assert simulate(in_place)(array) is array
    np.testing.assert_array_equal(array, 1 + np.arange(32).reshape(4, 8))
    assert array.dtype == np.dtype(kind)
    np.testing.assert_array_equal(simulate(constant)(array), 2 * np.arange(6).reshape(2, 3))


@pytest.mark.parametrize(
    ("array", "code"),
    [
        (np.zeros((0, 4), np.float32), "NKI-SHAPE"), (np.array([[object()]]), "NCC_ESPP004"), (np.array([["text"]]), "NCC_ESPP004"),
        (np.zeros((2, 2), "datetime64[s]"), "NCC_ESPP004"), (np.zeros((2, 2), np.complex64), "NCC_EVRF004"),
        (np.zeros((2, 2), ml_dtypes.float8_e4m3fnuz), "NCC_EVRF005"), (np.zeros((2, 2), ml_dtypes.float8_e4m3b11fnuz), "NCC_EVRF005"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_numbers(array: np.ndarray, code: str) -> None:
    with pytest.raises(KernelError) as caught:
        simulate(doubled)(array)
    assert caught.value.code == code
    assert caught.value.place.file == __file__


def test_memory_that_runs_out_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError("Unable to allocate 9 TiB")

    def kernel(x: Any) -> Any:
        tile = nl.load(x)
        nisa.tensor_copy(tile, tile)
        return x

    monkeypatch.setattr("vibeserve.nki.access.array", full)
    with pytest.raises(KernelError, match="memory does not hold") as caught:
        simulate(kernel)(np.ones((4, 4), np.float32))
    assert caught.value.code == "NCC_EOOM001"
    assert caught.value.place.file == __file__


def test_what_a_failing_kernel_wrote_does_not_reach_copies_of_its_arguments() -> None:
    """An argument that had to be copied keeps its values where the kernel fails."""

    def kernel(x: Any) -> None:
        tile = nl.zeros(x.shape, x.dtype)
        nl.store(x, tile)
        nisa.memset(tile, "no")

    array = np.ones((4, 8), np.float32)[:, ::2]
    with pytest.raises(KernelError):
        simulate(kernel)(array)
    assert (array == 1).all()


def test_a_kernel_at_the_prompt_of_a_debugger_is_not_stopped() -> None:
    class Slow(pdb.Pdb):
        def interaction(self, *_: Any, **__: Any) -> None:
            time.sleep(0.5)
            self.set_continue()

    def kernel(x: Any) -> Any:
        Slow(nosigint=True).set_trace()
        return doubled(x)

    before = sys.gettrace()
    try:
        got = simulate(kernel)(np.ones((2, 2), np.float32))
    finally:
        sys.settrace(before)
    assert (got == 2).all()
