"""What is reported rather than refused: once a line, an error under `strict` where the device would fail, else advice."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
import vibeserve.nki.shim  # noqa: F401
from vibeserve.nki import KernelError, simulate

X = np.arange(32.0, dtype=np.float32).reshape(4, 8) + 1


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_QUIET", "1")


def kinds(kernel: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    made = simulate(kernel, **options)
    made(*args)
    return [finding.kind for finding in made.findings]


def returns_x(x: Any, extra: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ([1, 2], "B2-LISTARG"), ({1: "a"}, "B1-DICT-KEY"), (1 << 32, "L-VALUES"), (-(1 << 31) - 1, "L-VALUES"), ({1}, "L-VALUES"),
        (1j, "L-VALUES"), (b"x", "L-VALUES"), ((1 << 40,), "L-VALUES"),
    ],
)  # fmt: skip
def test_arguments_that_a_build_refuses(value: Any, code: str) -> None:
    assert kinds(returns_x, X, value) == ["device-refuses"]
    with pytest.raises(KernelError) as caught:
        simulate(returns_x, strict=True)(X, value)
    assert caught.value.code == code
    assert caught.value.place.file == __file__


@pytest.mark.parametrize(
    "value", [None, True, 3, (1 << 32) - 1, -(1 << 31), 2.5, "text", (1, "a"), {"key": 1}, nl.float32]
)
def test_arguments_that_a_build_takes(value: Any) -> None:
    assert kinds(returns_x, X, value, strict=True) == []


def test_members_of_enumerations_have_no_order_but_generations() -> None:
    for member in (nisa.engine.vector, nisa.dge_mode.none, nl.sbuf):
        assert member == member  # noqa: PLR0124
        assert member != nisa.oob_mode.skip
        with pytest.raises(TypeError):
            member < member  # noqa: B015, PLR0124
        with pytest.raises(TypeError):
            member + 1
    assert nisa.nc_version.gen3 >= nisa.nc_version.gen2


@pytest.mark.parametrize(
    ("view", "advised"),
    [
        (lambda t: t[:, 0:8:2], True), (lambda t: t.reshape((4, 2, 4)).permute((0, 2, 1)), True),
        (lambda t: t.ap([[8, 4], [2, 3]]), True), (lambda t: t[:, 0:1].broadcast(1, 4), True), (lambda t: t, False),
        (lambda t: t[:, 2:6], False), (lambda t: t[1:3], False), (lambda t: t.reshape((4, 2, 4))[:, 1, 1:3], False),
    ],
)  # fmt: skip
def test_a_pattern_on_a_view_with_steps(view: Callable[[Any], Any], advised: bool) -> None:
    def kernel(x: Any) -> None:
        view(nl.load(x)).ap([[8, 1], [1, 2]])

    assert kinds(kernel, X, strict=True) == (["ap-on-a-view"] if advised else [])


def test_a_grid_other_than_the_lnc_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: Any) -> Any:
        return x

    assert kinds(kernel, X, lnc=2) == []
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert kinds(kernel, X, lnc=2) == []
    assert kinds(kernel, X) == []
    assert kinds(kernel, X, lnc=1, strict=True) == ["launch-grid"]


RANGES = {"log": 0.0, "sin": 4.0, "arctan": 2.0, "sqrt": -1.0, "rsqrt": 0.0, "reciprocal": 2.0**-50}


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("instruction", ["activation", "activation_reduce", "activate2"])
def test_functions_outside_of_their_range(name: str, instruction: str) -> None:
    extra = {
        "activation": {},
        "activation_reduce": {"reduce_op": nl.add, "reduce_res": None},
        "activate2": {"imm0": 0.0, "imm1": 0.0, "op0": nl.bypass, "op1": nl.bypass},
    }[instruction]

    def kernel(x: Any) -> None:
        tile = nl.load(x)
        getattr(nisa, instruction)(dst=nl.ndarray(x.shape, nl.float32), data=tile, op=getattr(nl, name), **extra)

    inside = np.full((2, 2), 1.0, np.float32)
    assert kinds(kernel, inside, target="trn3") == []
    inside[1, 1] = RANGES[name]
    assert kinds(kernel, inside, target="trn3") == ["activation-range"]


@pytest.mark.parametrize(("target", "advised"), [("trn1", True), ("trn2", True), ("trn3", False)])
def test_accumulating_onto_what_a_memset_filled(target: str, advised: bool) -> None:
    def kernel(x: Any) -> Any:
        tile, total = nl.load(x), nl.zeros((8, 8), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(total, tile, tile, accumulate=True)
        out = nl.ndarray((8, 8), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(total))
        return out

    assert kinds(kernel, X, target=target, strict=True) == (["undefined-accumulate"] if advised else [])
    np.testing.assert_allclose(simulate(kernel, target=target)(X), X.T @ X)


@pytest.mark.parametrize(("valid", "free", "advised"), [(16, 16, False), (None, 16, True), (8, 16, True)])
def test_gathers_whose_destination_holds_other_than_their_product(valid: Any, free: int, advised: bool) -> None:
    def kernel(x: Any) -> None:
        tile, index = nl.zeros((16, 8), nl.float32), nl.zeros((16, 1), nl.uint16)
        nisa.local_gather(nl.zeros((16, free), nl.float32), tile, index, 1, valid)

    assert kinds(kernel, X, strict=True) == (["gather-arguments"] if advised else [])


@pytest.mark.parametrize("transpose", [nisa.nc_transpose, None], ids=["transpose", "matmul"])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_transposed_bytes_land_in_slots_of_two(transpose: Any, target: str) -> None:
    """The upper byte of each slot is 0, also where the memory held something."""

    def kernel(x: Any) -> Any:
        tile = nl.load(x)
        slots = nl.ndarray((8, 4, 2), nl.float8_e5m2, buffer=nl.psum)
        nisa.memset(slots, 3.0)
        if transpose is not None:
            transpose(slots[:, :, 0], tile)
        else:
            identity = nl.shared_identity_matrix(4, nl.float8_e5m2)
            nisa.nc_matmul(slots[:, :, 0], tile, identity, is_transpose=True)
        out = nl.ndarray((8, 4, 2), nl.float8_e5m2, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(slots))
        return out

    data = X.astype(ml_dtypes.float8_e5m2)
    got = simulate(kernel, target=target)(data).astype(np.float32)
    np.testing.assert_array_equal(got[:, :, 0], data.T.astype(np.float32))
    np.testing.assert_array_equal(got[:, :, 1], 0)


def test_rows_of_a_transpose_come_by_columns_of_numbers() -> None:
    table = np.arange(300 * 16, dtype=np.int16).reshape(300, 16)
    numbers = np.random.default_rng(3).integers(0, 300, (128, 2)).astype(np.uint32)

    def kernel(table: Any, numbers: Any) -> Any:
        index, tile = nl.load(numbers), nl.ndarray((16, 256), nl.int16)
        nisa.dma_transpose(tile, table.ap([[16, 256], [1, 16]], vector_offset=index))
        out = nl.ndarray((16, 256), nl.int16, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    np.testing.assert_array_equal(simulate(kernel)(table, numbers), table[numbers.T.reshape(-1)].T)


def test_a_guarded_import_of_a_device_library_finds_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "asks_for_a_device.py").write_text(
        "try:\n    import torch_neuronx\n    device = True\nexcept ImportError:\n    device = False\n"
    )
    (tmp_path / "imports_without_need.py").write_text("import torch_neuronx\n")
    for name in ("torch_neuronx", "asks_for_a_device", "imports_without_need"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert importlib.import_module("asks_for_a_device").device is False
    importlib.import_module("imports_without_need")


def looped(x: Any, how: str) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    tile = nl.ndarray((2, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[2 * me : 2 * me + 2])

    def twice(index: Any) -> None:
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        for _ in nl.dynamic_range(1):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=0.0)

    if how == "one core" and me == 0:
        nl.fori_loop(0, 1, twice)
    elif how == "other passes":
        nl.fori_loop(0, me + 1, twice)
    elif how == "other loops":
        if me:
            nl.fori_loop(0, 1, twice)
        else:
            nl.fori_loop(0, 1, twice)
    nisa.dma_copy(dst=out[2 * me : 2 * me + 2], src=tile)
    return out


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no loop", None), ("other passes", None), ("one core", "of core 0 that core 1 does not have"),
        ("other loops", "of core 0 where core 1 has the one at"),
    ],
)  # fmt: skip
def test_cores_have_the_same_dynamic_loops(how: str, said: str | None) -> None:
    made = simulate(looped, lnc=2)
    factors = {"no loop": (1, 1), "other passes": (2, 4), "one core": (2, 1), "other loops": (2, 2)}[how]
    np.testing.assert_array_equal(made(X, how), X * np.repeat(factors, 2)[:, None])
    assert [finding.kind for finding in made.findings] == ["core-flow"] * bool(said)
    if said is None:
        simulate(looped, lnc=2, strict=True)(X, how)
        return
    assert said in made.findings[0].message
    with pytest.raises(KernelError) as caught:
        simulate(looped, lnc=2, strict=True)(X, how)
    assert caught.value.code == "NCC_IXGM002"
    assert (caught.value.place.file, caught.value.place.function) == (__file__, "looped")
