"""Tiles that a kernel puts at the same bytes: one memory, and a report where one is read after another was written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vibeserve.nki.collectives as ncc
import vibeserve.nki.language as nl
from vibeserve.nki import isa as nisa
from vibeserve.nki import simulate, simulate_ranks
from vibeserve.nki.errors import KernelError

F32 = np.float32


def stored(tile):
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


def placed(shape, at, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype=dtype, buffer=buffer, address=at)


def run(body, **options):
    made = simulate(body, **options)
    return made(np.arange(128 * 8, dtype=F32).reshape(128, 8)), made.findings


def test_a_tile_that_was_written_over_holds_what_was_written_and_the_read_is_reported():
    def body(x):
        first, second = placed((128, 8), (0, 1024)), placed((128, 8), (0, 1040))
        nisa.dma_copy(first, x)
        nisa.memset(second, -1.0)
        return stored(first)

    got, (finding,) = run(body)
    want = np.arange(128 * 8, dtype=F32).reshape(128, 8)
    want[:, 4:] = -1
    np.testing.assert_array_equal(got, want)
    assert (finding.kind, finding.place.file, finding.place.function) == ("overlapping-tiles", __file__, "stored")
    with pytest.raises(KernelError, match="NKI-OVERLAP"):
        run(body, strict=True)


def test_what_is_read_beside_the_shared_bytes_or_written_anew_is_no_report():
    def body(x):
        first, second = placed((128, 8), (0, 1024)), placed((128, 8), (0, 1040))
        nisa.dma_copy(first, x)
        nisa.memset(second, -1.0)
        nisa.tensor_copy(first[:, 4:8], first[:, 0:4])  # the shared half again, from the other half
        return stored(first)

    got, findings = run(body, strict=True)
    assert not findings
    np.testing.assert_array_equal(got[:, 4:], got[:, :4])


def test_banks_that_rotate_are_no_report():
    def body(x):
        out = nl.ndarray((4, 128, 8), dtype=nl.float32, buffer=nl.shared_hbm)
        tiles = []
        for at in range(4):
            tiles.append(placed((128, 8), (0, at % 2 * 2048)))
            nisa.dma_copy(tiles[-1], x)
            nisa.tensor_scalar(tiles[-1], tiles[-1], nl.add, float(at))
            nisa.dma_copy(out[at], tiles[-1])
        return out

    got, findings = run(body, strict=True)
    assert not findings
    np.testing.assert_array_equal(got[3] - got[0], np.full((128, 8), 3, F32))


def test_bytes_are_seen_through_a_tile_of_another_type():
    def body(x):
        floats, words = placed((128, 8), (0, 0)), placed((128, 8), (0, 0), nl.uint32)
        nisa.dma_copy(floats, x)
        return stored(words)

    got, findings = run(body)
    np.testing.assert_array_equal(got.view(F32), np.arange(128 * 8, dtype=F32).reshape(128, 8))
    assert [finding.kind for finding in findings] == ["overlapping-tiles"]


def test_a_new_tile_starts_afresh_at_an_old_place():
    def body(x):
        first = placed((128, 8), (0, 0))
        nisa.dma_copy(first, x)
        return stored(placed((128, 8), (0, 0)))

    got, findings = run(body)
    assert np.isnan(got).all()
    assert findings[0].kind == "uninitialised-read"


def test_an_old_tile_whose_bytes_were_all_taken_is_read_and_written_again():
    def body(x):
        tiles = []
        for value in (1, 2, 3):
            tiles.append(placed((128, 8), (0, 0)))
            nisa.memset(tiles[-1], value)
        seen = stored(tiles[0])  # the third tile's
        nisa.memset(tiles[0][:, 0:2], 9)
        return seen, stored(tiles[2]), stored(tiles[0]), stored(tiles[1])

    got, findings = run(body)
    assert (got[0] == 3).all()
    for values in got[1:]:
        assert (values[:, :2] == 9).all()
        assert (values[:, 2:] == 3).all()
    assert "tensor #4, at the same address, was written last" in findings[0].message


def test_a_collective_writes_over_another_tile():
    def kernel(x):
        mine, old = nl.load(x), placed((128, 8), (0, 0))
        nisa.memset(old, 5)
        new = placed((128, 8), (0, 0))
        ncc.all_reduce(srcs=[mine], dsts=[new], replica_group=ncc.ReplicaGroup([[0, 1]]), op=nl.add)
        return stored(old)

    x = np.ones((128, 8), F32)
    for got in simulate_ranks(kernel, ranks=2)([(x,), (x,)]):
        assert (got == 2).all()


def test_a_sum_on_a_bank_that_another_tile_took():
    def body(x):
        first = placed((8, 8), (0, 2048), buffer=nl.psum)
        tile = nl.load(x)
        nisa.nc_matmul(first, tile, tile)
        second = placed((8, 8), (0, 2048), buffer=nl.psum)
        nisa.nc_matmul(second, tile, tile)
        nisa.nc_matmul(first, tile, tile)
        return stored(nl.copy(first))

    _, findings = run(body)
    assert "overlapping-tiles" in [finding.kind for finding in findings]


@settings(max_examples=40)
@given(data=st.data())
def test_one_memory(data):
    """Tiles at drawn places, written and read in a drawn order: what NumPy has in one array of bytes."""
    tiles = [
        (data.draw(st.sampled_from((0, 32))), 4 * data.draw(st.integers(0, 6)), data.draw(st.sampled_from((32, 64))),
         data.draw(st.integers(1, 6)), data.draw(st.sampled_from(("float32", "uint16"))))
        for _ in range(3)
    ]  # fmt: skip
    steps = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 99)), min_size=1, max_size=6))
    sizes = {"float32": 4, "uint16": 2}
    memory = np.zeros((128, 64), np.uint8)

    def window(tile):
        partition, byte, parts, free, dtype = tile
        return memory[partition : partition + parts, byte : byte + free * sizes[dtype]]

    def body(x):
        made = [
            placed((parts, free), (partition, byte), getattr(nl, dtype))
            for partition, byte, parts, free, dtype in tiles
        ]
        for tile in made:
            nisa.memset(tile, 0)
        for which, value in steps:
            column = value % tiles[which][3]
            nisa.memset(made[which][:, column : column + 1], value)
        return tuple(stored(tile) for tile in made)

    for which, value in steps:
        size, column = sizes[tiles[which][4]], value % tiles[which][3]
        bits = np.array([value], tiles[which][4]).view(np.uint8)
        window(tiles[which])[:, column * size : (column + 1) * size] = bits
    got, _ = run(body)
    for tile, values in zip(tiles, got, strict=True):
        np.testing.assert_array_equal(np.ascontiguousarray(values).view(np.uint8), window(tile))
