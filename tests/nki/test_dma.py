"""DMA: order and casts, gather and scatter by index tensors, run-time offsets, transposes, addition."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import simulate

SKIP = nisa.oob_mode.skip


def new(shape, dtype="float32", buffer=nl.sbuf):
    return nl.ndarray(shape, dtype=getattr(nl, dtype) if isinstance(dtype, str) else dtype, buffer=buffer)


def out_of(tile):
    made = new(tile.shape, tile.dtype, nl.shared_hbm)
    nisa.dma_copy(made, tile)
    return made


@given(
    st.sampled_from([((4, 6), (4, 6)), ((4, 6), (2, 12)), ((24,), (24, 1)), ((2, 3, 4), (6, 4))]),
    st.sampled_from([np.float32, ml_dtypes.bfloat16, np.int32]),
)
def test_copies_by_count_and_order(shapes, kind):
    a = np.random.default_rng(0).integers(-9, 9, shapes[0]).astype(np.float32)

    def kernel(x):
        tile, out = new(shapes[1], np.dtype(kind)), new(shapes[1], np.dtype(kind), nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=out, src=tile)
        return out

    got = simulate(kernel)(a)
    assert got.dtype == kind
    np.testing.assert_array_equal(got.astype(np.float32), a.reshape(shapes[1]))


@given(st.integers(1, 32), st.integers(0, 40))
def test_gather_and_scatter_rows(parts, seed):
    draw = np.random.default_rng(seed)
    table, rows = (
        draw.standard_normal((40, 6)).astype(np.float32),
        draw.permutation(40)[:parts].astype(np.int32)[:, None],
    )

    def kernel(x, index):
        where, tile = new((parts, 1), "int32"), new((parts, 3))
        nisa.dma_copy(where, index)
        nisa.dma_copy(
            dst=tile,
            src=x.ap(
                pattern=[[6, parts], [1, 3]], offset=2, vector_offset=where.ap([[1, parts], [1, 1]]), indirect_dim=0
            ),
        )
        out = new((40, 3), buffer=nl.shared_hbm)
        zero = nl.zeros((40, 3), dtype=nl.float32)
        nisa.dma_copy(out, zero)
        nisa.dma_copy(dst=out.ap([[3, parts], [1, 3]], vector_offset=where), src=tile)
        return out_of(tile), out

    got, scattered = simulate(kernel)(table, rows)
    expected = table[rows[:, 0], 2:5]
    np.testing.assert_array_equal(got, expected)
    full = np.zeros((40, 3), np.float32)
    full[rows[:, 0]] = expected
    np.testing.assert_array_equal(scattered, full)


def test_out_of_range_rows_are_skipped_or_refused(rejected):
    table, index = (
        np.arange(20, dtype=np.float32).reshape(10, 2),
        np.array([[3], [-1], [10], [0], [-1000000]], np.int32),
    )

    def body(x, i, mode):
        tile = nl.full((5, 2), 7.0, dtype=nl.float32)
        where = new((5, 1), "int32")
        nisa.dma_copy(where, i)
        nisa.dma_copy(dst=tile, src=x.vector_select(0, where), oob_mode=mode)
        return tile

    got = simulate(lambda x, i: out_of(body(x, i, SKIP)))(table, index)
    np.testing.assert_array_equal(got, [[6, 7], [7, 7], [7, 7], [0, 1], [7, 7]])
    hbm = lambda x, i: body(out_of(x), i, nisa.oob_mode.error)  # noqa: E731
    rejected("NCC_EVRF056", hbm, table, index)


def test_scatter_skips_rows_out_of_range():
    index = np.array([[1], [-1], [9]], np.int32)

    def kernel(x, i):
        where, tile = new((3, 1), "int32"), new((3, 2))
        nisa.dma_copy(where, i)
        nisa.dma_copy(tile, x)
        out = new((4, 2), buffer=nl.shared_hbm)
        nisa.dma_copy(out, nl.zeros((4, 2), dtype=nl.float32))
        nisa.dma_copy(out.ap([[2, 3], [1, 2]], vector_offset=where), tile, oob_mode=SKIP)
        return out

    got = simulate(kernel)(np.ones((3, 2), np.float32), index)
    np.testing.assert_array_equal(got, [[0, 0], [1, 1], [0, 0], [0, 0]])


def test_scalar_offset_is_read_when_the_instruction_runs():
    a = np.arange(32, dtype=np.float32).reshape(8, 4)

    def kernel(x):
        at, out = nl.zeros((1, 1), dtype=nl.int32), new((8, 4), buffer=nl.shared_hbm)
        for i in range(8):
            tile = new((1, 4))
            nisa.dma_copy(tile, x.ap([[4, 1], [1, 4]], scalar_offset=at, indirect_dim=0))
            nisa.dma_copy(out[7 - i : 8 - i, :], tile)
            nisa.tensor_scalar(at, at, nl.add, 1)
        return out

    np.testing.assert_array_equal(simulate(kernel)(a), a[::-1])


def test_scalar_offset_along_an_inner_dimension_and_on_chip():
    a = np.arange(4 * 3 * 5, dtype=np.float32).reshape(4, 3, 5)

    def kernel(x):
        tile = new((4, 3, 5))
        nisa.dma_copy(tile, x)
        at = nl.full((1, 1), 2, dtype=nl.int32)
        picked = new((4, 5))
        nisa.tensor_copy(picked, tile.ap([[15, 4], [1, 5]], scalar_offset=at, indirect_dim=1))
        selected = new((4, 5))
        nisa.tensor_copy(selected, tile.select(1, at))
        return out_of(picked), out_of(selected)

    for got in simulate(kernel)(a):
        np.testing.assert_array_equal(got, a[:, 2])


def test_skip_drops_a_whole_transfer():
    def kernel(x):
        tile = nl.full((1, 4), 5.0, dtype=nl.float32)
        at = nl.full((1, 1), 8, dtype=nl.int32)
        nisa.dma_copy(tile, x.select(0, at).reshape((1, 4)), oob_mode=SKIP)
        return out_of(tile)

    np.testing.assert_array_equal(simulate(kernel)(np.zeros((8, 4), np.float32)), [[5, 5, 5, 5]])


@pytest.mark.parametrize(("shape", "order"), [((5, 7), (1, 0)), ((2, 3, 5), (2, 1, 0)), ((2, 3, 4, 5), (3, 1, 2, 0))])
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_dma_transpose(shape, order, kind):
    a = np.random.default_rng(0).standard_normal(shape).astype(kind)

    def kernel(x):
        tile = new(tuple(shape[i] for i in order), x.dtype)
        nisa.dma_transpose(dst=tile, src=x)
        return out_of(tile)

    np.testing.assert_array_equal(simulate(kernel)(a), a.transpose(order))


def test_dma_transpose_of_gathered_rows():
    a = np.random.default_rng(0).standard_normal((50, 8)).astype(ml_dtypes.bfloat16)
    index = np.random.default_rng(1).integers(0, 50, (16, 1)).astype(np.uint32)

    def kernel(x, i):
        where, tile = new((16, 1), "uint32"), new((8, 16), "bfloat16")
        nisa.dma_copy(where, i)
        nisa.dma_transpose(tile, x.ap([[8, 16], [1, 8]], vector_offset=where))
        return out_of(tile)

    np.testing.assert_array_equal(simulate(kernel)(a, index), a[index[:, 0]].T)


def test_dma_compute_adds_in_float32_and_modifies_rows():
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((6, 4)).astype(ml_dtypes.bfloat16) for _ in range(2))
    index = np.array([[4], [1]], np.int32)

    def kernel(x, y, i):
        total = new((6, 4))
        nisa.dma_compute(total, [x, y, x], nl.add)
        out = out_of(total)
        where = new((2, 1), "int32")
        nisa.dma_copy(where, i)
        rows = out.ap([[4, 2], [1, 4]], vector_offset=where)
        nisa.dma_compute(rows, [rows, total[0:2, :]], reduce_op=nl.add)
        return out

    f = lambda v: v.astype(np.float32)  # noqa: E731
    expected = f(a) + f(b) + f(a)
    first = expected[0:2].copy()
    expected[[4, 1]] += first
    np.testing.assert_allclose(simulate(kernel)(a, b, index), expected, rtol=1e-6)


HW, SW = nisa.dge_mode.hwdge, nisa.dge_mode.swdge


def hbm(shape=(4, 8), dtype="float32"):
    made = new(shape, dtype, nl.hbm)
    nisa.dma_copy(made, nl.zeros(shape, dtype=getattr(nl, dtype)))
    return made


def psum(shape):
    made = new(shape, buffer=nl.psum)
    nisa.memset(made, 0.0)
    return made


def index(parts=4):
    return nl.zeros((parts, 1), dtype=nl.int32)


REJECTED = [
    ("B2-PSUM-DMA", "trn2", lambda x: nisa.dma_copy(x, psum((4, 8)))),
    ("S-ELEMENTS", "trn2", lambda x: nisa.dma_copy(x, hbm((4, 7)))),
    ("B2-HWDGE-TYPE", "trn2", lambda x: nisa.dma_copy(x, hbm(dtype="bfloat16"), dge_mode=HW)),
    ("S-HWDGE-V2", "trn1", lambda x: nisa.dma_copy(x, hbm(), dge_mode=HW)),
    ("S-HWDGE-V2", "trn2", lambda x: nisa.dma_copy(x, hbm(), priority=1)),
    ("S-VOFF", "trn2", lambda x: nisa.dma_copy(x, hbm().vector_select(0, index()), dge_mode=HW)),
    ("S-VOFF", "trn2", lambda x: hbm().ap([[8, 4], [1, 8]], vector_offset=index(), scalar_offset=index(1))),
    ("S-VOFF", "trn2", lambda x: x.ap([[8, 4], [1, 8]], vector_offset=index())),
    ("S-VOFF", "trn2", lambda x: hbm().ap([[8, 4], [1, 8]], vector_offset=index(), indirect_dim=1)),
    ("S-ENGINE", "trn2", lambda x: nisa.dma_copy(x, hbm(), engine=nisa.engine.sync)),
    ("B2-INT-ENUM", "trn2", lambda x: nisa.dma_copy(x, hbm(), dge_mode=2)),
    ("B2-RMW", "trn2", lambda x: nisa.dma_copy(x, hbm(), dst_rmw_op=nl.add)),
    ("B2-UNIQUE", "trn2", lambda x: nisa.dma_copy(x, hbm(), unique_indices=True)),
    ("NCC_EVRF056", "trn2", lambda x: nisa.dma_copy(x[0:1, :], hbm().select(0, nl.full((1, 1), 4, dtype=nl.int32)))),
    ("S-DTYPE", "trn2", lambda x: nisa.dma_transpose(new((8, 4), "bfloat16"), x)),
    ("V4-DMAT-RANK", "trn2", lambda x: nisa.dma_transpose(new((4, 8)), x)),
    ("V4-DMAT-RANK", "trn2", lambda x: nisa.dma_transpose(new((8, 4)), x, axes=(0, 1))),
    ("S-DMAT-SHAPE", "trn2", lambda x: nisa.dma_transpose(new((8, 4)), hbm(), dge_mode=HW)),
    ("S-DMAT-DGE", "trn2", lambda x: nisa.dma_transpose(new((8, 4)), hbm(), dge_mode=SW)),
    ("V4-OOBSKIP", "trn2", lambda x: nisa.dma_transpose(new((8, 4)), hbm(), oob_mode=SKIP)),
    ("NKI-OPERAND", "trn2", lambda x: nisa.dma_compute(x, [], nl.add)),
    ("NKI-OPERAND", "trn2", lambda x: nisa.dma_compute(x, [hbm()] * 17, nl.add)),
    ("B2-DMACOMPUTE-ORDER", "trn2", lambda x: nisa.dma_compute(x, [hbm()], [1.0], nl.add)),
    ("NKI-OPERAND", "trn2", lambda x: nisa.dma_compute(x, [hbm()], nl.add, scales=[2.0])),
    ("V4-OOBSKIP", "trn2", lambda x: nisa.dma_compute(x, [hbm()], nl.add, oob_mode=SKIP)),
    ("S-DTYPE", "trn3", lambda x: nisa.dma_copy(new((4, 8)), hbm(dtype="uint32").view(nl.float8_e4m3fn_x4))),
    ("V6-PARTITION", "trn2", lambda x: nisa.dma_copy(new((129, 1)), hbm((129, 1)))),
]  # fmt: skip


@pytest.mark.parametrize(("code", "target", "body"), REJECTED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REJECTED)])
def test_rejected(rejected, code, target, body):
    rejected(code, body, np.ones((4, 8), np.float32), target=target)
