"""Launches: arguments and results, grids, two cores, ranks, targets, reports, limits."""

from __future__ import annotations

import enum
import inspect
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

import vibeserve.nki.collectives as ncc
import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, jit, simulate, simulate_ranks
from vibeserve.nki.objects import NKIObject
from vibeserve.nki.observe import CountObserver, Observer


def new(shape, dtype=nl.float32, buffer=nl.sbuf, **options):
    return nl.ndarray(shape, dtype=dtype, buffer=buffer, **options)


@jit
def double(x):
    """Twice x."""
    tile, out = new(x.shape, x.dtype), new(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(out, tile)
    return out


def test_kernels_look_like_their_functions():
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice x."
    assert list(inspect.signature(double).parameters) == ["x"]
    assert "tensor_scalar" in inspect.getsource(double)


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8])
def test_results_have_the_dtype_of_the_tensor(kind):
    got = double(np.ones((4, 3), kind))
    assert got.dtype == kind
    assert (got.astype(np.float32) == 2).all()


def test_torch_in_torch_out():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        got = double(torch.ones((4, 3), dtype=dtype))
        assert got.dtype is dtype
        assert (got == 2).all()
    assert (double(torch.arange(6.0).reshape(2, 3).T) == 2 * torch.arange(6.0).reshape(2, 3).T).all()


def test_arguments_written_by_the_kernel_are_updated_in_place():
    @jit
    def add_into(a, b):
        x, y = new(a.shape), new(b.shape)
        nisa.dma_copy(x, a)
        nisa.dma_copy(y, b)
        nisa.tensor_tensor(x, x, y, nl.add)
        nisa.dma_copy(a, x)
        return a

    a, b = np.ones((2, 4), np.float32), np.ones((2, 4), np.float32)
    assert add_into(a, b) is a
    assert (a == 2).all()
    base = np.zeros((4, 4), np.float32)
    add_into(base[:, ::2].T, np.ones((2, 4), np.float32))
    assert base.sum() == 8


class Mode(enum.Enum):
    FAST = 1


@dataclass
class Config(NKIObject):
    weight: object
    mode: Mode
    scale: float = 3.0


class Plain(NKIObject):
    first: int
    second: int = 5


def test_dataclasses_enums_tuples_and_closures_pass_through():
    seen = []

    def kernel(x, config, pair, dtype, name="n", flag=None):
        seen.append((config.mode == Mode.FAST, pair[1], dtype == nl.bfloat16, name, flag is None, x == None))  # noqa: E711
        weight = new(config.weight.shape)
        nisa.dma_copy(weight, config.weight)

        def scaled(value):
            return value * config.scale

        nisa.tensor_scalar(weight, weight, nl.multiply, scaled(2.0))
        out = new(weight.shape, buffer=nl.shared_hbm)
        nisa.dma_copy(out, weight)
        return [out, {"twice": out}]

    config = Config(np.ones((2, 2), np.float32), Mode.FAST)
    result = simulate(kernel)(np.zeros((1, 1), np.float32), config, (1, "two"), np.dtype(ml_dtypes.bfloat16))
    assert (result[0] == 6).all()
    assert (result[1]["twice"] == 6).all()
    assert seen == [(True, "two", True, "n", True, False)]
    assert isinstance(config.weight, np.ndarray)
    made = Plain(1)
    assert (made.first, made.second) == (1, 5)
    with pytest.raises(TypeError, match="lacks first"):
        Plain()


def test_dtypes_and_buffers_compare_and_hash():
    table = {nl.bfloat16: 1, nl.float32: 2, nl.sbuf: 3, nl.hbm: 4}
    assert table[np.dtype(ml_dtypes.bfloat16)] == 1
    assert table[np.dtype(np.float32)] == 2
    assert table[nl.private_hbm] == 4
    assert nl.float32 == np.float32
    assert nl.bfloat16 == "bfloat16"
    assert nl.tfloat32 != nl.float32
    assert np.zeros(2, dtype=nl.bfloat16).dtype == ml_dtypes.bfloat16
    assert np.dtype(nl.float8_e4m3).itemsize == 1
    assert np.ones(3).astype(nl.int32).dtype == np.int32
    assert str(nl.float8_e5m2) == "float8_e5m2"


def both(x):
    i, n = nl.program_id(0), nl.num_programs(0)
    rows = x.shape[0] // n
    out = new(x.shape, x.dtype, nl.shared_hbm)
    tile = new((rows, x.shape[1]), x.dtype)
    nisa.dma_copy(tile, x[i * rows : (i + 1) * rows])
    nisa.tensor_scalar(tile, tile, nl.add, float(10 * i))
    nisa.dma_copy(out[nl.ds(i * rows, rows)], tile)
    return out


def test_two_cores_share_the_output():
    a = np.zeros((4, 3), np.float32)
    np.testing.assert_array_equal(jit(both)[2](a)[:, 0], [0, 0, 10, 10])
    np.testing.assert_array_equal(jit(both)(a)[:, 0], [0, 0, 0, 0])
    np.testing.assert_array_equal(simulate(both, lnc=2)(a)[:, 0], [0, 0, 10, 10])


def test_the_grid_is_visible():
    seen = []

    def kernel(x):
        seen.append((nl.program_id(0), nl.num_programs(), nl.program_ndim(), x.buffer))
        return double.func(x)

    simulate(kernel)(np.ones((1, 1), np.float32))
    simulate(kernel, lnc=2)(np.ones((1, 1), np.float32))
    assert seen == [(0, 1, 0, nl.hbm), (0, 2, 1, nl.shared_hbm), (1, 2, 1, nl.shared_hbm)]


def exchange(x):
    i = nl.program_id(0)
    mine, other = new((2, 3)), new((2, 3))
    nisa.dma_copy(mine, x[2 * i : 2 * i + 2])
    nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - i, recv_from_rank=1 - i, pipe_id=0)
    nisa.tensor_tensor(mine, mine, other, nl.add)
    out = new((2, 3), buffer=nl.shared_hbm)
    shared = new((2, 3), buffer=nl.shared_hbm, name="mailbox")
    if i == 0:
        nisa.dma_copy(shared, mine)
    nisa.core_barrier(shared, (0, 1))
    if i == 1:
        back = new((2, 3))
        nisa.dma_copy(back, shared)
        nisa.dma_copy(out, back)
    return out


def test_sendrecv_and_barrier():
    a = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(simulate(exchange, lnc=2, strict=True)(a), a[:2] + a[2:])


def test_cores_that_wait_for_ever_are_told():
    def kernel(x):
        out = new(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(out, x)
        if nl.program_id(0) == 0:
            nisa.core_barrier(out, (0, 1))
        return out

    with pytest.raises(KernelError, match=r"core 0 waits in nisa\.core_barrier") as caught:
        simulate(kernel, lnc=2)(np.ones((1, 1), np.float32))
    assert caught.value.code == "NCC_IXLV002"
    assert caught.value.place.file == __file__


def test_races_between_cores_are_found():
    def kernel(x, ordered):
        out = new((1, 4), buffer=nl.shared_hbm)
        shared = new((1, 4), buffer=nl.shared_hbm)
        tile = new((1, 4))
        if nl.program_id(0) == 0:
            nisa.dma_copy(tile, x)
            nisa.dma_copy(shared, tile)
        if ordered:
            nisa.core_barrier(shared, (0, 1))
        if nl.program_id(0) == 1:
            nisa.dma_copy(tile, shared)
            nisa.dma_copy(out, tile)
        return out

    a = np.ones((1, 4), np.float32)
    with pytest.raises(KernelError) as caught:
        simulate(kernel, lnc=2, strict=True)(a, False)
    assert caught.value.code == "NKI-RACE"
    run = simulate(kernel, lnc=2, strict=True)
    np.testing.assert_array_equal(run(a, True), a)


def test_both_cores_may_write_the_same_values():
    assert (simulate(double, lnc=2, strict=True)(np.ones((2, 2), np.float32)) == 2).all()


def test_collectives_among_ranks():
    group = ncc.ReplicaGroup([[0, 1, 2]])

    def kernel(x):
        own = new(x.shape, buffer=nl.hbm)
        nisa.dma_copy(own, x)
        total, parts = new(x.shape, buffer=nl.shared_hbm), new((6, 4), buffer=nl.shared_hbm)
        ncc.all_reduce(srcs=[own], dsts=[total], replica_group=group, op=nl.add)
        ncc.all_gather(srcs=[own], dsts=[parts], replica_group=group, collective_dim=0)
        ring = new(x.shape, buffer=nl.shared_hbm)
        ncc.collective_permute_implicit([own], [ring], group)
        whose = new((1, 1), nl.int32)
        nisa.register_store(whose, ncc.collective_permute_implicit_current_processing_rank_id(1, group))
        rank, held = new((1, 1), nl.int32, nl.shared_hbm), new((1, 1), nl.int32, nl.shared_hbm)
        nisa.register_store(rank, ncc.rank_id())
        nisa.dma_copy(held, whose)
        tile, columns = new((2, 4)), new((2, 12))
        nisa.dma_copy(tile, x)
        ncc.all_gather(srcs=[tile], dsts=[columns], replica_group=group, collective_dim=1)
        wide = new((2, 12), buffer=nl.shared_hbm)
        nisa.dma_copy(wide, columns)
        return total, parts, ring, rank, held, wide

    inputs = [np.full((2, 4), float(rank + 1), np.float32) for rank in range(3)]
    results = simulate_ranks(kernel, ranks=3)([(a,) for a in inputs])
    for rank, (total, parts, ring, own, held, wide) in enumerate(results):
        assert (total == 6).all()
        np.testing.assert_array_equal(parts, np.concatenate(inputs))
        np.testing.assert_array_equal(ring, inputs[rank - 1])
        assert own[0, 0] == rank
        assert held[0, 0] == (rank - 1) % 3
        np.testing.assert_array_equal(wide, np.concatenate(inputs, axis=1))


def test_more_collectives():
    group = ncc.ReplicaGroup([[0, 1]])

    def kernel(x, counts):
        own = new(x.shape, buffer=nl.hbm)
        nisa.dma_copy(own, x)
        half, swapped, one = (
            new((2, 4), buffer=nl.shared_hbm),
            new((4, 4), buffer=nl.shared_hbm),
            new((4, 4), buffer=nl.shared_hbm),
        )
        ncc.reduce_scatter([own], [half], group, 0, nl.maximum)
        ncc.all_to_all([own], [swapped], group, 0)
        nisa.dma_copy(one, own)
        ncc.collective_permute([own], [one], [(0, 1)])
        table = new((4, 2), nl.uint32, nl.hbm)
        nisa.dma_copy(table, counts)
        ragged = new((16,), buffer=nl.shared_hbm)
        nisa.dma_copy(ragged, own.reshape((16,)))
        ncc.all_to_all_v([own], [ragged], group, table)
        return half, swapped, one, ragged

    a, b = np.arange(16, dtype=np.float32).reshape(4, 4), np.arange(16, 32, dtype=np.float32).reshape(4, 4)
    counts = [
        np.array([[1, 2], [0, 1], [0, 0], [0, 0]], np.uint32),
        np.array([[3, 1], [4, 0], [0, 0], [0, 0]], np.uint32),
    ]
    first, second = simulate_ranks(kernel, ranks=2)([(a, counts[0]), (b, counts[1])])
    np.testing.assert_array_equal(first[0], b[:2])
    np.testing.assert_array_equal(second[0], b[2:])
    np.testing.assert_array_equal(first[1], np.concatenate([a[:2], b[:2]]))
    np.testing.assert_array_equal(second[2], a)
    np.testing.assert_array_equal(first[2], a)
    np.testing.assert_array_equal(first[3][:1], a.reshape(-1)[:1])
    np.testing.assert_array_equal(first[3][8:11], b.reshape(-1)[4:7])
    np.testing.assert_array_equal(second[3][:2], a.reshape(-1)[1:3])


def test_registers_and_dynamic_loops():
    def kernel(x, counts):
        count = nisa.register_alloc()
        tile = new((1, 1), nl.int32)
        nisa.dma_copy(tile, counts)
        nisa.register_load(count, tile)
        out = new(x.shape, buffer=nl.shared_hbm)
        nisa.dma_copy(out, nl.zeros(x.shape, dtype=nl.float32))

        def body(i):
            row = new((1, x.shape[1]))
            nisa.dma_copy(row, x[i])
            nisa.dma_copy(out.ap([[x.shape[1], 1], [1, x.shape[1]]], scalar_offset=i), row)

        nl.fori_loop(0, count, body)
        for i in nl.dynamic_range(count, 6, 2):
            nisa.dma_copy(out[nl.ds(i, 1)], nl.full((1, 3), 9.0, dtype=nl.float32))
        left = nisa.register_alloc(2)
        turns = nl.zeros((1, 1), dtype=nl.int32)
        while left:
            nisa.tensor_scalar(turns, turns, nl.add, 1)
            smaller = new((1, 1), nl.int32)
            nisa.register_store(smaller, left)
            nisa.tensor_scalar(smaller, smaller, nl.subtract, 1)
            nisa.register_load(left, smaller)
        seen = new((1, 1), nl.int32, nl.shared_hbm)
        nisa.dma_copy(seen, turns)
        return out, seen

    a = np.arange(24, dtype=np.float32).reshape(8, 3)
    out, turns = simulate(kernel)(a, np.array([[3]], np.int32))
    expected = np.zeros_like(a)
    expected[:3] = a[:3]
    expected[[3, 5]] = 9
    np.testing.assert_array_equal(out, expected)
    assert turns[0, 0] == 2


def test_the_target_is_read_at_each_call(monkeypatch):
    seen = []

    def kernel(x):
        seen.append(
            (nisa.get_nc_version() == nisa.nc_version.gen2, int(nisa.get_nc_version()), nl.tile_size.sbuf_fmax_bytes)
        )
        return double.func(x)

    a = np.ones((1, 1), np.float32)
    for name in ("trn1", "gen3", "trn3"):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", name)
        simulate(kernel)(a)
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE")
    monkeypatch.setenv("NEURON_CC_FLAGS", "--target trn1 --lnc 1")
    simulate(kernel)(a)
    simulate(kernel, target="trn3")(a)
    assert seen == [(True, 2, 180224), (False, 3, 212984), (False, 4, 245752), (True, 2, 180224), (False, 4, 245752)]


def test_precise_off_keeps_float32(monkeypatch):
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    a = np.array([[1.0 / 3]], np.float32)

    def kernel(x):
        low, out = new((1, 1), nl.bfloat16), new((1, 1), nl.float32, nl.shared_hbm)
        nisa.dma_copy(low, x)
        nisa.dma_copy(out, low)
        return out

    assert simulate(kernel)(a)[0, 0] == a[0, 0]
    monkeypatch.setenv("NKI_PRECISE_FP", "1")
    assert simulate(kernel)(a)[0, 0] == np.float32(a.astype(ml_dtypes.bfloat16)[0, 0])


def unread(x):
    tile, out = new(x.shape), new(x.shape, buffer=nl.shared_hbm)
    nisa.dma_copy(tile[0:2], x[0:2])
    nisa.tensor_copy(tile, tile)
    nisa.dma_copy(out, tile)
    return out


def test_uninitialised_reads_are_reported_and_poisoned(capsys):
    run = simulate(unread)
    got = run(np.ones((4, 2), np.float32))
    assert (got[:2] == 1).all()
    assert np.isnan(got[2:]).all()
    assert run.findings[0].kind == "uninitialised-read"
    assert "allocated at" in run.findings[0].detail
    assert run.findings[0].place.file == __file__
    assert "reads" in capsys.readouterr().err
    with pytest.raises(KernelError) as caught:
        simulate(unread, strict=True)(np.ones((4, 2), np.float32))
    assert caught.value.code == "NCC_ISIM074"


def test_integers_are_poisoned_with_a_sentinel():
    def kernel(x):
        tile, out = new((1, 2), nl.int32), new((1, 2), nl.int32, nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    np.testing.assert_array_equal(simulate(kernel)(np.ones((1, 1), np.float32)), [[4, 4]])


def endless(x):
    tile = new((1, 1))
    while True:
        nisa.memset(tile, 0.0)


def recursive(x):
    return recursive(x)


def keyword_only(x, *, n=1):
    return x


def no_store(x):
    return new(x.shape, buffer=nl.shared_hbm)


def too_many_tiles(x):
    tiles = [nl.zeros((128, 16384), dtype=nl.float32) for _ in range(4)]
    for tile in tiles:
        nisa.tensor_copy(tile[:, 0:1], tile[:, 1:2])
    return x


def dead_tiles_are_reused(x):
    tiles = []
    for _ in range(8):
        tiles.append(nl.zeros((128, 16384), dtype=nl.float32))
    return x


A = np.ones((2, 2), np.float32)
LAUNCHES = [
    ("NKI-BUDGET", endless, (A,), {"budget": 100}),
    ("NKI-RECURSION", recursive, (A,), {}),
    ("B2-KWONLY", keyword_only, (A,), {}),
    ("NKI-ARGUMENTS", double, (A, A), {}),
    ("NKI-ARGUMENTS", double, (), {}),
    ("B2-LISTARG", lambda x: x[0], ([A],), {}),
    ("NCC_ESPP004", double, (np.ones((2, 2)),), {}),
    ("NCC_ESPP004", double, (np.array([[object()]]),), {}),
    ("NCC_EVRF004", double, (np.ones((2, 2), np.complex64),), {}),
    ("NKI-SHAPE", double, (np.ones((0, 2), np.float32),), {}),
    ("NCC_EARG001", double, (A,), {"target": "trn1", "lnc": 2}),
    ("NCC_EARG001", double, (A,), {"lnc": 4}),
    ("NCC_IGCA090", no_store, (A,), {}),
    ("B2-OUT-HBM", lambda x: nl.zeros((2, 2), dtype=nl.float32), (A,), {}),
    ("NCC_IGCA035", too_many_tiles, (A,), {}),
    ("NKI-KERNEL", 3, (A,), {}),
    ("NCC_EARG001", lambda x: nisa.core_barrier(x, (0, 1)), (A,), {}),
]


@pytest.mark.parametrize(
    ("code", "kernel", "args", "options"), LAUNCHES, ids=[f"{i}-{row[0]}" for i, row in enumerate(LAUNCHES)]
)
def test_refused(code, kernel, args, options):
    with pytest.raises(KernelError) as caught:
        simulate(kernel, **options)(*args)
    assert caught.value.code == code, str(caught.value)


def test_tiles_that_are_dead_make_room():
    simulate(dead_tiles_are_reused)(A)


def test_a_loop_without_instructions_is_stopped(monkeypatch):
    monkeypatch.setenv("NKI_STALL_S", "0.3")

    def kernel(x):
        while True:
            pass

    with pytest.raises(KernelError) as caught:
        simulate(kernel)(A)
    assert caught.value.code == "NKI-STALLED"


def test_outside_of_a_kernel():
    with pytest.raises(KernelError) as caught:
        nl.ndarray((2, 2), dtype=nl.float32)
    assert caught.value.code == "NKI-OUTSIDE"
    assert nl.program_id(0) == 0
    with pytest.raises(KernelError) as caught:
        jit(platform_target="trn2")
    assert caught.value.code == "B2-PLATFORM"


def test_python_errors_of_a_kernel_stay_themselves():
    def kernel(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        simulate(kernel)(A)


def test_observers_see_each_instruction():
    class Watch(Observer):
        def __init__(self):
            self.records = []

        def instruction(self, record):
            self.records.append(record)

    watch, count = Watch(), CountObserver()
    simulate(double, observers=(watch, count))(np.ones((4, 3), np.float32))
    assert count.opcodes == {"dma_copy": 2, "tensor_scalar": 1}
    first, middle, last = watch.records
    assert (first.engine, middle.engine, last.opcode) == ("dma", "vector", "dma_copy")
    assert [(o.role, o.write, o.region) for o in middle.operands] == [("dst", True, "sbuf"), ("data", False, "sbuf")]
    assert middle.operands[0].byte_range == (0, 12)
    assert middle.operands[0].partitions == (0, 4)
    assert first.operands[1].nbytes == 48
    assert middle.place.file == __file__
    assert middle.params["op0"] is nl.multiply


def test_shape_only_runs_no_arithmetic():
    count = CountObserver()
    got = simulate(double, observers=(count,), shape_only=True)(np.ones((4, 3), np.float32))
    assert got.shape == (4, 3)
    assert count.opcodes["tensor_scalar"] == 1
