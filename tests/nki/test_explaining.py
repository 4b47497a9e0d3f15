"""Errors of Python inside of a kernel: the kernel's own, a wrong argument, or a fault of the simulator."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, explaining, simulate
from vibeserve.nki.errors import SimulatorFaultError
from vibeserve.nki.instruction import REGISTRY
from vibeserve.nki.lib import SbufManager


def run(body: Any) -> Any:
    def kernel(x: Any) -> None:
        body(nl.load(x))

    return simulate(kernel)(np.ones((32, 8), np.float32))


@pytest.mark.parametrize("line", ["nki.benchmark", "nki.baremetal(t)", "nki.compiler.driver.run"])
def test_a_name_that_the_vendors_modules_lack_is_no_fault_of_the_simulator(line: str) -> None:
    import nki

    with pytest.raises(AttributeError, match=r"gone|not simulated yet") as caught:
        run(lambda t: eval(line, {"nki": nki, "t": t}))
    assert not isinstance(caught.value, SimulatorFaultError)


def test_an_import_that_the_vendors_modules_lack_is_no_fault_of_the_simulator() -> None:
    def body(t: Any) -> None:
        from neuronxcc.nki.compiler import sb_mod  # noqa: F401

    with pytest.raises(ImportError, match="address=") as caught:
        run(body)
    assert not isinstance(caught.value, SimulatorFaultError)


def test_a_call_of_the_old_form_is_told_where_dst_goes() -> None:
    with pytest.raises(KernelError, match="dst comes first"):
        run(lambda t: nisa.tensor_tensor(t, t, nl.add))


def broken(_: Any) -> Any:
    return int("no number")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (lambda t: t.reshape(nl.add), "among sizes"),
        (lambda t: t.expand_dim("1"), "dim is"),
        (lambda t: t.reshape((32, 8 / 2, 2)), "divide with //"),
        (lambda t: t.reshape([[32, 8]]), "among sizes"),
        (lambda t: t.permute(None), "among sizes"),
        (lambda t: t.reshape_dim(1, (4.0, 2)), "divide with //"),
        (lambda t: t.reshape_dim(1, None), "a tuple"),
        (lambda t: t.vector_select(0, None), "vector_select by None"),
        (lambda t: nl.all(t, axis=[[1]]), "axis="),
        (lambda t: nl.shared_identity_matrix(True), "shared_identity_matrix"),
        (lambda t: nl.sum(t, axis="free"), "axis"),
        (lambda t: nl.load("x"), "nl.load of"),
        (nl.add, r"nl.add\(\) missing 1 required"),
        (lambda t: nl.exp(t, mask=None), "B1-MASK"),
        (lambda t: t.view(shape=(4,)), r"tensor.view\(\) missing 1 required"),
        (lambda t: t.view(kind=nl.int32), r"tensor.view\(\) got an unexpected"),
        (lambda t: t.reshape_dim(1, 4), "a tuple"),
        (lambda t: t.rearrange(1, ("a", "b")), "src_pattern is"),
        (nl.affine_range, "loop bound"),
        (lambda t: nl.program_id(None), "grid axis"),
        (lambda t: nl.expand_dims(t, (1,)), "axis"),
        (lambda t: nl.matmul(t, 1.0, transpose_x=True), "nl.matmul of"),
        (lambda t: nl.exp(np.ones(3)), "of ndarray"),
        (lambda t: nl.fori_loop(0, 2, lambda: None), "lambda"),
        (lambda t: nl.full((4, 4), object(), nl.float32), "fill_value|value"),
        (lambda t: t[object()], "used as an index"),
        (lambda t: SbufManager(0, 4096).open_scope("outer"), "interleave_degree is"),
    ],
)
def test_a_wrong_argument_is_the_kernels(body: Any, says: str) -> None:
    with pytest.raises(KernelError, match=says) as caught:
        run(body)
    assert caught.value.place.file == __file__
    assert "simulator fault" not in str(caught.value)


def planted(line: str) -> Any:
    """An instruction's body that fails, as a part of the simulator."""
    scope: dict[str, Any] = {"np": np}
    exec(compile(f"def body(core, *args):\n    {line}\n", "<nki planted>", "exec"), scope)
    return scope["body"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("int('no number')", ValueError),
        ("args[0].dtype + 1", TypeError),
        ("{}['absent']", KeyError),
        ("core.absent", AttributeError),
        ("1 // 0", ZeroDivisionError),
        ("assert False", AssertionError),
        ("np.concatenate([np.ones(2), np.ones((2, 2))])", ValueError),
        ("np.broadcast_shapes((2, 3), (4,))", ValueError),  # fails in a Python frame of NumPy
    ],
)
def test_a_fault_of_the_simulator_is_told_apart(line: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTRY["tensor_copy"], "body", planted(line))
    with pytest.raises(SimulatorFaultError, match=rf"simulator fault in nisa.tensor_copy: {kind.__name__}") as caught:
        run(lambda t: nisa.tensor_copy(t, t))
    fault = caught.value
    assert not isinstance(fault, KernelError)
    assert isinstance(fault.__cause__, kind)
    assert fault.place.file == __file__
    assert "dst=sbuf float32[32, 8]" in str(fault)


def test_the_kernels_own_errors_pass() -> None:
    class OwnError(Exception):
        pass

    def own(t: Any) -> None:
        raise OwnError("mine")

    with pytest.raises(OwnError):
        run(own)
    with pytest.raises(ValueError, match="invalid literal"):
        run(broken)
    with pytest.raises(ZeroDivisionError):
        run(lambda t: nl.fori_loop(0, 2, lambda i: 1 // 0))
    with pytest.raises(AttributeError, match="it is gone"):
        run(lambda t: nl.arange)


def load(x: Any) -> Any:
    """A helper of the kernel's own under a name of the language."""
    return nl.load(x)


def test_a_helper_with_a_name_of_the_language_is_the_kernels() -> None:
    with pytest.raises(TypeError, match=r"load\(\) got an unexpected keyword argument 'tile'"):
        run(lambda t: load(t, tile=1))  # type: ignore[call-arg]
    with pytest.raises(KernelError, match="B1-MASK"):
        run(lambda t: nl.load(t, mask=None))  # type: ignore[call-arg]


def test_each_parameter_of_the_table_exists() -> None:
    text = (Path(explaining.__file__).parent / "data" / "kinds.toml").read_text(encoding="utf-8")
    listed = [name for names in tomllib.loads(text).values() for name in names]
    known = {name for spec in REGISTRY.values() for name in spec.params}
    for value in (
        *vars(nl).values(),
        *vars(type(nl.add)).values(),
        *vars(nl.NkiTensor).values(),
        *vars(SbufManager).values(),
    ):
        try:
            known |= set(inspect.signature(value).parameters)
        except (TypeError, ValueError):
            continue
    import vibeserve.nki.collectives as ncc

    for value in vars(ncc).values():
        if inspect.isfunction(value):
            known |= set(inspect.signature(value).parameters)
    assert len(listed) == len(set(listed))
    assert set(listed) <= known
