"""Statements of the language's rules that no other test takes up, each as a small kernel."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve import nki
from vibeserve.base.errors import InputError
from vibeserve.nki import KernelError, simulate

f32 = np.float32
X = np.arange(32 * 8, dtype=f32).reshape(32, 8)
SMALL = (X % 7).astype(f32)
GRAM = SMALL.T @ SMALL


def load(x: Any) -> Any:
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    return tile


def store(tile: Any) -> Any:
    if tile.buffer is nl.psum:
        tile = nl.copy(tile)
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def run(body: Callable[..., Any], *arrays: Any, target: str = "trn2", **options: Any) -> Any:
    return simulate(lambda xs: body(*xs), target=target, **options)(arrays)


def same(got: Any, wanted: Any) -> None:
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


def into(dtype: Any, move: Callable[..., Any]) -> Callable[[Any], Any]:
    def body(x: Any) -> Any:
        tile = nl.ndarray(x.shape, dtype)
        move(tile, x if move is nisa.dma_copy else load(x))
        return store(tile)

    return body


# -- casts -----------------------------------------------------------------------------------------------------------

CASTS = [
    (nl.uint8, [-3, 2.5, 3.5, 300, 0.5, 1.2], [0, 2, 4, 255, 0, 1]),
    (nl.int8, [127.5, -128.5, -129, 2.5, -2.5, 1e10], [127, -128, -128, 2, -2, 127]),
    (nl.uint16, [65535.5, -1, 0.5, 1.5, 7e4, 3], [65535, 0, 0, 2, 65535, 3]),
    (nl.int32, [2147483648.0, -3e9, 0.5, -1.5, 16777216, 3], [2147483647, -2147483648, 0, -2, 16777216, 3]),
    (nl.uint32, [4294967296.0, -1, 2.5, 3.5, 5e9, 3], [4294967295, 0, 2, 4, 4294967295, 3]),
]


@pytest.mark.parametrize("move", [nisa.dma_copy, nisa.tensor_copy], ids=["dma", "engine"])
@pytest.mark.parametrize(("dtype", "values", "wanted"), CASTS, ids=[str(row[0]) for row in CASTS])
def test_floats_to_integers_round_to_even_and_saturate(dtype: Any, values: Any, wanted: Any, move: Any) -> None:
    same(run(into(dtype, move), np.array([values], f32)), [wanted])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3", "float8_e5m2", "float8_e4m3fn"])
def test_floats_to_low_precision_go_past_the_range_as_the_format_does(name: str) -> None:
    values = np.array([[239, 248, 448, 464, 1e6, -1e9, -3.4028235e38, np.nan, 0.0009765625]], f32)

    def body(x: Any) -> Any:
        tile = nl.ndarray(x.shape, getattr(nl, name))
        nisa.tensor_copy(tile, load(x))
        return store(nl.copy(tile, dtype=nl.float32))

    with np.errstate(all="ignore"):
        wanted = values.astype(getattr(ml_dtypes, name)).astype(f32)
    same(run(body, values, target="trn3"), wanted)


def test_right_shift_of_signed_integers_is_logical() -> None:
    def body(x: Any) -> Any:
        out = nl.ndarray(x.shape, nl.int32)
        nisa.tensor_scalar(out, load(x), nl.right_shift, 4)
        return store(out)

    same(run(body, np.array([[-1, 256]], np.int32)), [[0x0FFFFFFF, 16]])


@pytest.mark.parametrize("dtype", [nl.float32, nl.uint8, nl.uint32])
def test_comparisons_write_one_and_zero(dtype: Any) -> None:
    def body(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype)
        nisa.tensor_scalar(out, load(x), nl.greater, 3.0)
        return store(out)

    same(run(body, np.array([[1, 3, 4]], f32)), [[0, 0, 1]])


def test_masked_softmax_keeps_minus_infinity() -> None:
    def body(x: Any) -> Any:
        tile = load(x)
        least = nl.ndarray((2, 1), nl.float32)
        nisa.tensor_reduce(least, nl.maximum, tile, axis=1)
        negated = nl.ndarray((2, 1), nl.float32)
        nisa.tensor_scalar(negated, least, nl.multiply, -1.0)
        nisa.activation(tile, nl.exp, tile, bias=negated)
        return store(tile), store(least)

    values = np.array([[-np.inf, 5, -3.4028235e38], [-np.inf, -np.inf, 2]], f32)
    weights, least = run(body, values)
    same(weights, [[0, 1, 0], [0, 0, 1]])
    same(least, [[5], [2]])


# -- PSUM ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "factor"),
    [((None, None), 2), ((False, True), 2), ((True, False), 1), ((None, False, None), 2), ((None, True), 2)],
)
def test_accumulate_by_flag(flags: tuple[Any, ...], factor: int) -> None:
    def body(x: Any) -> Any:
        tile, psum = load(x), nl.ndarray((8, 8), nl.float32, buffer=nl.psum)
        for flag in flags:
            nisa.nc_matmul(psum, tile, tile, **({} if flag is None else {"accumulate": flag}))
        return store(psum)

    same(run(body, SMALL), factor * GRAM)


@pytest.mark.parametrize("given", [nl.zeros, None], ids=["zeros", "memset"])
def test_cleared_psum_stays_zero_where_no_product_comes(given: Any) -> None:
    def body(x: Any) -> Any:
        tile = load(x)
        psum = (given or nl.ndarray)((8, 8), nl.float32, buffer=nl.psum)
        if given is None:
            nisa.memset(psum, 0.0)
        nisa.nc_matmul(psum[:, 0:4], tile, tile[:, 0:4], accumulate=True)
        return store(psum)

    wanted = GRAM.copy()
    wanted[:, 4:] = 0
    same(run(body, SMALL), wanted)


def test_slices_of_a_bank_start_their_own_sums() -> None:
    def body(x: Any) -> Any:
        tile, psum = load(x), nl.ndarray((8, 8), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum[:, 0:4], tile, tile[:, 0:4])
        nisa.nc_matmul(psum, tile, tile)
        return store(psum)

    wanted = GRAM.copy()
    wanted[:, :4] *= 2
    same(run(body, SMALL), wanted)


def test_matmul_operands_may_be_strided_repeated_or_of_three_dimensions() -> None:
    def body(x: Any) -> Any:
        tile = load(x)
        strided = nl.ndarray((4, 8), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(strided, tile[:, 0:8:2], tile)
        repeated = nl.ndarray((8, 4), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(repeated, tile, tile[:, 0:1].broadcast(1, 4))
        deep = nl.ndarray((8, 2, 4), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(deep, tile, tile.reshape((32, 2, 4)))
        return store(strided), store(repeated), store(deep)

    strided, repeated, deep = run(body, SMALL)
    same(strided, GRAM[::2])
    same(repeated, np.repeat(GRAM[:, :1], 4, 1))
    same(deep, GRAM.reshape(8, 2, 4))


# -- copies and views ------------------------------------------------------------------------------------------------


def test_dma_matches_by_count_and_order() -> None:
    def body(x: Any) -> Any:
        column, row = nl.ndarray((128, 1), nl.float32), nl.ndarray((1, 1), nl.float32)
        nisa.dma_copy(column, x.ap([[1, 128]], offset=2))
        nisa.dma_copy(row, x[0])
        nisa.dma_copy(x, x)  # a fence
        return store(column), store(row)

    column, row = run(body, np.arange(200, dtype=f32))
    same(column, np.arange(2, 130, dtype=f32)[:, None])
    same(row, [[0]])


def test_an_instruction_reads_all_before_it_writes() -> None:
    def body(x: Any) -> Any:
        tile = load(x)
        nisa.tensor_tensor(tile[:, 1:8], tile[:, 0:7], tile[:, 1:8], nl.add)
        return store(tile)

    wanted = X.copy()
    wanted[:, 1:] = X[:, :7] + X[:, 1:]
    same(run(body, X), wanted)


def test_negative_positions_count_from_the_end() -> None:
    def body(x: Any) -> Any:
        tile = load(x)
        return store(tile[-1:, -3:-1]), store(tile[:, -2])

    corner, column = run(body, X)
    same(corner, X[-1:, -3:-1])
    same(column, X[:, -2:-1])


def test_a_run_time_offset_adds_to_the_static_one_and_ap_counts_in_its_own_dtype() -> None:
    def body(x: Any) -> Any:
        index, rows = nl.full((1, 1), 1, nl.int32), nl.ndarray((4, 8), nl.float32)
        nisa.dma_copy(rows, x.ap([[8, 4], [1, 8]], offset=8, scalar_offset=index, indirect_dim=0))
        return store(rows), store(load(x).ap([[16, 4], [1, 2]], offset=2, dtype=nl.bfloat16))

    rows, halves = run(body, X)
    same(rows, X[2:6])
    same(halves, X[:4].view(ml_dtypes.bfloat16)[:, 2:4].astype(f32))


@pytest.mark.parametrize("mode", [nisa.oob_mode.skip, nisa.oob_mode.error])
def test_row_numbers_out_of_range(mode: Any) -> None:
    def body(x: Any, numbers: Any) -> Any:
        rows = nl.full((4, 8), -1.0, nl.float32)
        nisa.dma_copy(rows, x.ap([[8, 4], [1, 8]], vector_offset=load(numbers)), oob_mode=mode)
        return store(rows)

    numbers = np.array([[-1000000], [5], [32], [31]], np.int32)
    if mode is nisa.oob_mode.error:
        with pytest.raises(KernelError, match="NCC_EVRF056"):
            run(body, X, numbers)
        return
    wanted = np.full((4, 8), -1, f32)
    wanted[1], wanted[3] = X[5], X[31]
    same(run(body, X, numbers), wanted)


def test_ap_keeps_the_offset_of_its_view_and_replaces_an_earlier_pattern() -> None:
    def body(x: Any) -> Any:
        tile = load(x)
        part = tile[:, 2:8]
        return (
            store(part.ap([[8, 32], [2, 3]])),
            store(part.ap([[8, 32], [2, 3]], offset=0)),
            store(tile.ap([[8, 32], [4, 2]], offset=1).ap([[8, 32], [1, 2]])),
        )

    kept, zero, replaced = run(body, X)
    same(kept, X[:, 2:8:2])
    same(zero, X[:, 2:8:2])
    same(replaced, X[:, 1:3])


def test_hbm_views_move_rows_and_columns() -> None:
    def body(x: Any) -> Any:
        turned, rows = nl.ndarray((8, 32), nl.float32), nl.ndarray((32, 8), nl.float32)
        nisa.dma_copy(turned, x.permute((1, 0)))
        nisa.dma_copy(rows, x[0:1].broadcast(0, 32))
        return store(turned), store(rows), store(load(x).rearrange(("p", ("a", "b")), ("p", "b", "a"), {"a": 2}))

    turned, rows, split = run(body, X)
    same(turned, X.T)
    same(rows, np.repeat(X[:1], 32, 0))
    same(split, X.reshape(32, 2, 4).transpose(0, 2, 1))


def test_bits_of_floats_are_masked_as_integers() -> None:
    def body(x: Any) -> Any:
        out = nl.ndarray((32, 8), nl.int32)
        nisa.tensor_scalar(out, load(x).view(nl.int32), nl.bitwise_and, 0x7FFFFFFF)
        return store(out.view(nl.float32))

    same(run(body, -X), X)


def test_slices_by_register() -> None:
    def body(x: Any) -> Any:
        tile, out = load(x), nl.zeros((32, 8), nl.float32)
        nl.fori_loop(0, 8, lambda i: nisa.tensor_copy(out[:, nl.ds(i, 1)], tile[:, nl.ds(i, 1)]) and None)
        return store(tile[:, nl.ds(nisa.register_alloc(2), 3)]), store(out)

    part, copied = run(body, X)
    same(part, X[:, 2:5])
    same(copied, X)


def test_shuffle_leaves_lanes_of_255() -> None:
    def body(x: Any) -> Any:
        out = nl.full((32, 8), 9.0, nl.float32)
        nisa.nc_stream_shuffle(out, load(x), [255] * 16 + [3] * 16)
        return store(out)

    wanted = np.full((32, 8), 9, f32)
    wanted[16:] = X[3]
    same(run(body, X), wanted)


# -- tensors in Python -----------------------------------------------------------------------------------------------


def test_tensors_compare_with_none_and_buffers_with_buffers() -> None:
    def body(x: Any) -> Any:
        tile = load(x)
        assert (tile == None) is False  # noqa: E711
        assert (tile != None) is True  # noqa: E711
        assert tile.buffer in (nl.sbuf, nl.psum)
        assert nl.hbm == nl.private_hbm
        assert (nl.program_id(0), nl.num_programs(0), nl.program_ndim()) == (0, 1, 0)
        assert nl.transpose(tile).buffer is nl.psum
        assert nl.copy(nl.transpose(tile)).buffer is nl.sbuf
        return store(tile)

    same(run(body, X), X)


def test_constants(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", X)

    def body(x: Any) -> Any:
        constant = nl.shared_constant(str(tmp_path / "c.npy"))
        assert constant.buffer is nl.shared_hbm
        return store(load(constant)), store(nl.shared_identity_matrix(4, nl.float32))

    constant, identity = run(body, X)
    same(constant, X)
    same(identity, np.eye(4))


def test_registers_bound_loops_and_end_them() -> None:
    def body(x: Any) -> Any:
        count, left = nl.zeros((1, 2), nl.float32), nl.full((1, 1), 3, nl.int32)
        for _ in nl.dynamic_range(0, nisa.register_alloc(4)):
            nisa.tensor_scalar(count[:, 0:1], count[:, 0:1], nl.add, 1.0)
        register = nisa.register_alloc(0)
        nisa.register_load(register, left)
        while register:
            nisa.tensor_scalar(count[:, 1:2], count[:, 1:2], nl.add, 1.0)
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            nisa.register_load(register, left)
        return store(count)

    same(run(body, X), [[4, 3]])


# -- dynamic loops ---------------------------------------------------------------------------------------------------


def test_a_tensor_of_a_loop_body_ends_with_its_pass() -> None:
    def used(x: Any, later: Callable[[list[Any], Any], Any]) -> Any:
        made: list[Any] = []
        total = nl.zeros((32, 8), nl.float32)

        def body(i: Any) -> None:
            if made:
                later(made, total)
            tile = load(x)
            nisa.tensor_tensor(total, total, tile, nl.add)
            nl.shared_identity_matrix(8, nl.float32)  # a constant is not the body's
            made.append(tile)

        nl.fori_loop(0, 2, body)
        later(made, total)
        return store(total)

    same(run(lambda x: used(x, lambda made, total: None), X), 2 * X)
    for later in (
        lambda made, total: nisa.tensor_copy(total, made[0]),
        lambda made, total: nisa.memset(made[0], 0.0),
        lambda made, total: store(made[0]),
    ):
        with pytest.raises(KernelError, match="V6-LOOPTENSOR"):
            run(lambda x, later=later: used(x, later), X)


def test_instruction_names_are_unique_in_a_loop_body() -> None:
    def body(x: Any, names: tuple[str, str]) -> Any:
        tile = load(x)

        def step(i: Any) -> None:
            for name in names:
                nisa.tensor_scalar(tile, tile, nl.add, 1.0, name=name)

        nl.fori_loop(0, 2, step)
        return store(tile)

    same(run(lambda x: body(x, ("a", "b")), X), X + 4)
    with pytest.raises(KernelError, match="V6-LOOPNAMES"):
        run(lambda x: body(x, ("a", "a")), X)


def test_no_dynamic_loop_inside_no_reorder() -> None:
    def body(x: Any) -> None:
        with nl.no_reorder():
            nl.fori_loop(0, 4, lambda i: None)

    with pytest.raises(KernelError, match="V6-NOREORDER-DYN"):
        run(body, X)


# -- accumulators ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [nisa.reduce_cmd.idle, nisa.reduce_cmd.reduce])
def test_an_accumulator_that_nothing_set_is_reported(command: Any) -> None:
    def body(x: Any) -> Any:
        tile, total = load(x), nl.ndarray((32, 1), nl.float32)
        nisa.activation(tile, nl.square, tile, reduce_op=nl.add, reduce_res=total, reduce_cmd=command)
        return store(total)

    made = simulate(body)
    made(X)
    assert [finding.kind for finding in made.findings] == ["stale-accumulator"]
    with pytest.raises(KernelError, match="reset_reduce"):
        run(body, X, strict=True)


def test_a_dump_of_stride_zero_and_the_accumulator() -> None:
    def body(x: Any) -> Any:
        dump, total = nl.ndarray((32, 1), nl.float32), nl.ndarray((32, 1), nl.float32)
        nisa.activation(
            dump.ap([[1, 32], [0, 8]]), nl.square, load(x), reduce_op=nl.add, reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
        return store(total)

    made = simulate(body)
    same(made(X), (X * X).sum(1, keepdims=True))
    assert not made.findings


# -- Python, engines, options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allowed", [False, True])
def test_column_tiles_of_one_psum_tile(allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: Any) -> Any:
        tile, psum = load(x), nl.ndarray((64, 8), nl.float32, buffer=nl.psum)
        for at in range(2):
            rows = tile[0:32]
            nisa.nc_matmul(psum[32 * at : 32 * at + 8], rows, rows, tile_position=(0, 32 * at), tile_size=(32, 32))
        total = nl.ndarray((8, 8), nl.float32)
        nisa.tensor_tensor(total, psum[0:8], psum[32:40], nl.add)
        return store(total)

    if allowed:
        monkeypatch.setenv("NKI_ALLOW", "S-BOTH-PSUM")
        same(run(body, SMALL), 2 * GRAM)
    else:
        with pytest.raises(KernelError, match="S-BOTH-PSUM"):
            run(body, SMALL)


def test_rules_that_are_let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: Any) -> Any:
        tile, out = load(x), nl.zeros((8, 8), nl.float32)
        nisa.tensor_copy(out[0:4], tile[5:9])
        return store(out)

    for _ in range(2):  # what was let pass once is refused again without the option
        monkeypatch.delenv("NKI_ALLOW", raising=False)
        with pytest.raises(KernelError, match="S-PSTART"):
            run(body, X)
        monkeypatch.setenv("NKI_ALLOW", "S-PSTART, S-BOTH-PSUM")
        same(run(body, X)[:4], X[5:9])
    monkeypatch.setenv("NKI_ALLOW", "S-DTYPE")
    with pytest.raises(InputError, match="S-DTYPE"):
        run(body, X)


@pytest.mark.parametrize("shape", [(32,), (32, 1)])
def test_results_of_reductions_may_have_one_dimension(shape: tuple[int, ...]) -> None:
    def body(x: Any) -> Any:
        tile, total, out = load(x), nl.ndarray(shape, nl.float32), nl.ndarray((32, 8), nl.float32)
        nisa.activation_reduce(out, nl.square, tile, nl.add, total)
        summed = nl.ndarray(shape, nl.float32)
        nisa.tensor_reduce(summed, nl.add, tile, axis=1)
        return store(total), store(summed), store(nl.sum(tile.reshape((32, 2, 4)), axis=[1, 2]))

    squares, summed, listed = run(body, X)
    same(squares.reshape(-1), (X * X).sum(1))
    same(summed.reshape(-1), X.sum(1))
    same(listed.reshape(-1), X.sum(1))


def test_kernels_inside_of_kernels() -> None:
    @nki.jit(mode="trace", debug_kernel=True)
    def doubled(tile: Any) -> Any:
        out = nl.ndarray(tile.shape, tile.dtype)
        nisa.tensor_tensor(out, tile, tile, nl.add)
        return out

    @nki.jit(mode="auto", show_compiler_tb=True, experimental_flags="")
    def outer(x: Any) -> Any:
        return store(doubled(doubled(load(x))))

    same(outer(X), 4 * X)


def test_a_grid_of_an_inner_call_is_advised_against() -> None:
    @nki.jit
    def inner(tile: Any) -> Any:
        return tile

    run = simulate(lambda x: store(inner[2](load(x))), strict=True)
    same(run(X), X)
    assert [finding.kind for finding in run.findings] == ["launch-grid"]
    run = simulate(lambda x: store(inner[2](load(x))), lnc=2, strict=True)
    same(run(X), X)
    assert not run.findings


class Mode(enum.Enum):
    FIRST = "first"
    SECOND = "second"


@dataclasses.dataclass
class Settings(nl.NKIObject):  # type: ignore[misc, name-defined]
    mode: Mode
    factors: tuple[float, ...]
    bias: Any = None


class Tiles(nl.NKIObject):  # type: ignore[misc, name-defined]
    """A class whose methods allocate."""

    def __init__(self, count: int):
        self.rows = [[nl.ndarray((32, 8), nl.float32, name=f"tile_{i}_{j}") for j in range(count)] for i in range(2)]

    def fill(self, x: Any) -> Any:
        for i, row in enumerate(self.rows):
            for j, tile in enumerate(row):
                nisa.dma_copy(tile, x)
                nisa.tensor_scalar(tile, tile, nl.add, float(10 * i + j))
        return self


def test_python_in_kernels() -> None:
    scale = 2.0

    def early(tile: Any, flag: Any = None) -> Any:
        if flag is None or flag == None:  # noqa: E711
            return tile
        return nl.add(tile, 1.0)

    def body(x: Any, settings: Any, text: str = "kept") -> Any:
        tiles = Tiles(count=2).fill(x)
        times = {0: 1.0, 1: scale}
        total = nl.zeros((32, 8), nl.float32)
        scaled = lambda tile, by: nisa.tensor_scalar(tile, tile, nl.multiply, by)  # noqa: E731
        for i in nl.affine_range(2):
            for j in nl.static_range(2):
                tile = early(tiles.rows[i][j])
                scaled(tile, times[i % 2])
                nisa.tensor_tensor(total, total, tile, nl.add)
        count = 3
        while count > 1:
            nisa.tensor_scalar(total, total, nl.add, 1.0)
            count -= 1
        first, *rest = settings.factors
        assert f"{text} {first:.1f} {min(8, 32 - 3 * 8)} {math.ceil(7 / 2)}" == "kept 0.5 8 4"
        assert settings.bias is None
        chosen = first if settings.mode == Mode.FIRST else rest[0]
        nisa.tensor_scalar(total, total, nl.multiply, chosen)
        return store(total)

    wanted = (X + (X + 1)) + scale * ((X + 10) + (X + 11)) + 2
    for mode, factor in ((Mode.FIRST, 0.5), (Mode.SECOND, 0.25)):
        got = simulate(body)(X, Settings(mode, (0.5, 0.25)))
        same(got, factor * wanted)


def test_what_executes_changes_no_value() -> None:
    engines = [nisa.engine.unknown, nisa.engine.vector, nisa.engine.gpsimd]

    def body(x: Any) -> Any:
        results = []
        for engine in [*engines, nisa.engine.scalar]:
            out = nl.ndarray(x.shape, nl.bfloat16)
            nisa.tensor_copy(out, load(x), engine=engine)
            results.append(store(out))
        for engine in engines:
            out = nl.ndarray(x.shape, nl.bfloat16)
            nisa.tensor_tensor(out, load(x), load(x), nl.multiply, engine=engine)
            results.append(store(out))
        for mode in (nisa.dge_mode.unknown, nisa.dge_mode.swdge, nisa.dge_mode.none, nisa.dge_mode.hwdge):
            tile = nl.ndarray(x.shape, x.dtype)
            nisa.dma_copy(tile, x, dge_mode=mode)
            results.append(store(tile))
        for engine in (nisa.engine.sync, nisa.engine.scalar):
            tile = nl.ndarray(x.shape, x.dtype)
            nisa.dma_copy(tile, x, dge_mode=nisa.dge_mode.hwdge, engine=engine)
            results.append(store(tile))
        return tuple(results)

    results = run(body, X)
    for group in (results[:4], results[4:7], results[7:]):
        for got in group[1:]:
            same(got, group[0])


def test_aliases_of_engines_and_the_reset_of_an_accumulator() -> None:
    assert (nisa.tensor_engine, nisa.vector_engine, nisa.scalar_engine, nisa.gpsimd_engine, nisa.unknown_engine) == (
        nisa.engine.tensor, nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd, nisa.engine.unknown,
    )  # fmt: skip

    def body(x: Any) -> Any:
        tile, total = load(x).__getitem__((slice(None), slice(0, 4))), nl.ndarray((32, 1), nl.float32)
        out = nl.ndarray((32, 4), nl.float32)
        nisa.activation(out, nl.copy, tile, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce)
        nisa.activation(out, nl.copy, tile, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset)
        nisa.activation(out, nl.copy, tile, reduce_op=nl.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reduce)
        return store(total)

    same(run(body, X, strict=True).reshape(-1), X[:, :4].sum(1))


STATEMENTS = tomllib.loads((Path(__file__).parent / "statements.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_each_statement_has_tests(statement: str) -> None:
    assert STATEMENTS[statement]
    for where in STATEMENTS[statement]:
        module, _, test = where.partition(".")
        assert callable(getattr(importlib.import_module(f"tests.nki.{module}"), test))
