"""Collectives against NumPy statements: ranks, groups, element types, memories, several tensors in a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, simulate_ranks
from vibeserve.nki import collectives as ncc

DTYPES = [np.float32, ml_dtypes.bfloat16, np.int32, np.uint8]
OPS: dict[str, Callable[..., Any]] = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}
dtypes, ranks, seeds = st.sampled_from(DTYPES), st.integers(1, 4), st.integers(0, 999)
targets = st.sampled_from(["trn2", "trn3"])


def inputs(seed: int, count: int, *shape: int, dtype: Any = np.float32) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 50, shape).astype(dtype) for _ in range(count)]


def own(x: Any, memory: str = "hbm") -> Any:
    """A copy of an argument that a collective may send."""
    tensor = nl.ndarray(x.shape, x.dtype, buffer=getattr(nl, memory))
    nisa.dma_copy(tensor, x)
    return tensor


def out(shape: tuple[int, ...], dtype: Any, memory: str = "shared_hbm") -> Any:
    return nl.ndarray(shape, dtype, buffer=getattr(nl, memory))


def returned(tensor: Any) -> Any:
    if tensor.buffer is nl.shared_hbm:
        return tensor
    result = out(tensor.shape, tensor.dtype)
    nisa.dma_copy(result, tensor)
    return result


def run(kernel: Callable[..., Any], rows: list[Any], target: str = "trn2", lnc: int = 1) -> list[Any]:
    return simulate_ranks(kernel, ranks=len(rows), lnc=lnc, target=target)(rows)


def reduced(op: str, arrays: list[np.ndarray]) -> np.ndarray:
    """op over the ranks, in float32 or whole numbers, as the element type of the inputs."""
    wide = np.float32 if arrays[0].dtype.kind not in "iu" else np.int64
    total = arrays[0].astype(wide)
    for array in arrays[1:]:
        total = OPS[op](total, array.astype(wide))
    return total.astype(arrays[0].dtype)


def equal(got: Any, wanted: np.ndarray) -> None:
    assert np.asarray(got).dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(got).astype(np.float64), wanted.astype(np.float64))


@settings(max_examples=25)
@given(ranks, dtypes, st.sampled_from(list(OPS)), st.sampled_from(["hbm", "sbuf"]), targets, seeds)
def test_all_reduce(count: int, dtype: Any, op: str, memory: str, target: str, seed: int) -> None:
    def kernel(x: Any) -> Any:
        result = out(x.shape, x.dtype, "shared_hbm" if memory == "hbm" else "sbuf")
        group = ncc.ReplicaGroup([list(range(count))])
        ncc.all_reduce(srcs=[own(x, memory)], dsts=[result], replica_group=group, op=getattr(nl, op))
        return returned(result)

    arrays = inputs(seed, count, 4, 6, dtype=dtype)
    for got in run(kernel, [(a,) for a in arrays], target):
        equal(got, reduced(op, arrays))


@settings(max_examples=25)
@given(ranks, dtypes, st.sampled_from([("hbm", 0), ("sbuf", 0), ("sbuf", 1)]), targets, seeds)
def test_all_gather(count: int, dtype: Any, where: tuple[str, int], target: str, seed: int) -> None:
    memory, dim = where

    def kernel(x: Any) -> Any:
        shape = (x.shape[0] * count, x.shape[1]) if dim == 0 else (x.shape[0], x.shape[1] * count)
        result = out(shape, x.dtype, "shared_hbm" if memory == "hbm" else "sbuf")
        ncc.all_gather([own(x, memory)], [result], ncc.ReplicaGroup([list(range(count))]), dim)
        return returned(result)

    arrays = inputs(seed, count, 4, 6, dtype=dtype)
    for got in run(kernel, [(a,) for a in arrays], target):
        equal(got, np.concatenate(arrays, axis=dim))


@settings(max_examples=25)
@given(ranks, dtypes, st.sampled_from(list(OPS)), targets, seeds)
def test_reduce_scatter(count: int, dtype: Any, op: str, target: str, seed: int) -> None:
    def kernel(x: Any) -> Any:
        result = out((2, 5), x.dtype)
        ncc.reduce_scatter([own(x)], [result], ncc.ReplicaGroup([list(range(count))]), 0, getattr(nl, op))
        return result

    arrays = inputs(seed, count, 2 * count, 5, dtype=dtype)
    for rank, got in enumerate(run(kernel, [(a,) for a in arrays], target)):
        equal(got, reduced(op, arrays)[2 * rank : 2 * rank + 2])


@settings(max_examples=25)
@given(ranks, dtypes, targets, seeds)
def test_all_to_all(count: int, dtype: Any, target: str, seed: int) -> None:
    def kernel(x: Any) -> Any:
        result = out(x.shape, x.dtype)
        ncc.all_to_all([own(x)], [result], ncc.ReplicaGroup([list(range(count))]), 0)
        return result

    arrays = inputs(seed, count, 3 * count, 2, dtype=dtype)
    for rank, got in enumerate(run(kernel, [(a,) for a in arrays], target)):
        equal(got, np.concatenate([a[3 * rank : 3 * rank + 3] for a in arrays]))


@settings(max_examples=25)
@given(ranks, dtypes, st.booleans(), st.data())
def test_all_gather_v(count: int, dtype: Any, known: bool, data: Any) -> None:
    slot = 8
    counts = [data.draw(st.integers(0, slot)) for _ in range(count)]
    starts = [data.draw(st.integers(0, 20 - n)) for n in counts]

    def kernel(x: Any, table: Any) -> Any:
        result, numbers = out((slot * count,), x.dtype), out(table.shape, nl.uint32)
        nisa.dma_copy(numbers, table)
        nisa.dma_copy(result, x[0:1].broadcast(0, slot * count))
        ncc.all_gather_v(
            [own(x)], [result], ncc.ReplicaGroup([list(range(count))]), metadata_tensor=numbers, recv_counts_known=known
        )
        return result, numbers

    arrays = inputs(3, count, 20, dtype=dtype)
    tables = [np.zeros((3, count), np.uint32) for _ in range(count)]
    for table, n, start in zip(tables, counts, starts, strict=True):
        table[0, 0], table[1, 0] = n, start
    for rank, (got, numbers) in enumerate(run(kernel, list(zip(arrays, tables, strict=True)))):
        wanted = np.full(slot * count, arrays[rank][0])
        for sender in range(count):
            begin = starts[sender]
            wanted[slot * sender : slot * sender + counts[sender]] = arrays[sender][begin : begin + counts[sender]]
        equal(got, wanted)
        np.testing.assert_array_equal(numbers[2], np.zeros(count) if known else counts)


@settings(max_examples=25)
@given(ranks, dtypes, st.booleans(), st.data())
def test_all_to_all_v(count: int, dtype: Any, displaced: bool, data: Any) -> None:
    counts = np.array([[data.draw(st.integers(0, 4)) for _ in range(count)] for _ in range(count)])
    starts = np.array([[data.draw(st.integers(0, 12)) for _ in range(count)] for _ in range(count)])
    places = np.array([[4 * (count - 1 - sender) for sender in range(count)] for _ in range(count)])

    def kernel(x: Any, table: Any) -> Any:
        result, numbers = out((4 * count,), x.dtype), out(table.shape, nl.uint32)
        nisa.dma_copy(numbers, table)
        nisa.dma_copy(result, x[0:1].broadcast(0, 4 * count))
        group = ncc.ReplicaGroup([list(range(count))])
        ncc.all_to_all_v([own(x)], [result], group, numbers, has_rdispls=displaced)
        return result, numbers

    arrays = inputs(5, count, 16, dtype=dtype)
    tables = [
        np.stack([counts[rank], starts[rank], np.zeros(count), places[rank]]).astype(np.uint32) for rank in range(count)
    ]
    for rank, (got, numbers) in enumerate(run(kernel, list(zip(arrays, tables, strict=True)))):
        wanted = np.full(4 * count, arrays[rank][0])
        for sender in range(count):
            n, begin = counts[sender, rank], starts[sender, rank]
            at = places[rank, sender] if displaced else 4 * sender
            wanted[at : at + n] = arrays[sender][begin : begin + n]
        equal(got, wanted)
        np.testing.assert_array_equal(numbers[2], counts[:, rank])


@settings(max_examples=25)
@given(st.integers(1, 4), dtypes, st.data())
def test_collective_permute(count: int, dtype: Any, data: Any) -> None:
    to = data.draw(st.permutations(range(count)))
    pairs = [(source, target) for source, target in enumerate(to) if data.draw(st.booleans())]

    def kernel(x: Any, before: Any) -> Any:
        result = out(x.shape, x.dtype)
        nisa.dma_copy(result, before)
        ncc.collective_permute([own(x)], [result], pairs)
        return result

    arrays, before = inputs(1, count, 4, 3, dtype=dtype), inputs(2, count, 4, 3, dtype=dtype)
    came = {target: arrays[source] for source, target in pairs}
    for rank, got in enumerate(run(kernel, list(zip(arrays, before, strict=True)))):
        equal(got, came.get(rank, before[rank]))


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 4), dtypes, st.sampled_from([None, *OPS]), seeds)
def test_ring_shifts(count: int, channels: int, dtype: Any, op: str | None, seed: int) -> None:
    def kernel(pairs: Any) -> Any:
        group = ncc.ReplicaGroup([list(range(count))])
        first, second = [own(a) for a, _ in pairs], [own(b) for _, b in pairs]
        results = [out(a.shape, a.dtype) for a, _ in pairs]
        ids = list(range(channels))
        if op is None:
            ncc.collective_permute_implicit([[a] for a in first], [[r] for r in results], group, channel_ids=ids)
        else:
            ncc.collective_permute_implicit_reduce(first, second, results, group, getattr(nl, op), channel_ids=ids)
        whose = [
            ncc.collective_permute_implicit_current_processing_rank_id(iteration_id=step, replica_group=group)
            for step in range(count + 1)
        ]
        numbers = out((1, count + 2), nl.int32)
        for at, register in enumerate([*whose, ncc.rank_id()]):
            nisa.register_store(numbers[:, at : at + 1], register)
        return (*results, numbers)

    a, b = inputs(seed, count * channels, 4, 3, dtype=dtype), inputs(seed + 1, count * channels, 4, 3, dtype=dtype)
    rows = [tuple(zip(a[r * channels :][:channels], b[r * channels :][:channels], strict=True)) for r in range(count)]
    for rank, (*results, numbers) in enumerate(run(kernel, [(row,) for row in rows])):
        before = rows[(rank - 1) % count]
        for got, pair in zip(results, before, strict=True):
            equal(got, pair[0] if op is None else reduced(op, list(pair)))
        assert numbers[0].tolist() == [*[(rank - step) % count for step in range(count + 1)], rank]


def test_groups_exchange_among_themselves_and_calls_may_hold_several_tensors() -> None:
    groups = ncc.ReplicaGroup([[0, 2], [3, 1]])
    assert len(groups) == 2
    assert list(groups) == [[0, 2], [3, 1]]
    assert groups[1] == [3, 1]

    def kernel(x: Any, y: Any) -> Any:
        results = [out((2, 2), t.dtype) for t in (x, y)]
        ncc.all_gather([own(x), own(y)], results, groups, 0)
        return tuple(results)

    arrays = [(np.full((1, 2), r, np.float32), np.full((1, 2), 10 * r, np.int32)) for r in range(4)]
    for rank, (x, y) in enumerate(run(kernel, arrays)):
        order = [0, 2] if rank in (0, 2) else [3, 1]
        assert x[:, 0].tolist() == order
        assert y[:, 0].tolist() == [10 * r for r in order]


def test_two_cores_of_each_rank() -> None:
    def kernel(x: Any) -> Any:
        total = out(x.shape, x.dtype)
        mine = out(x.shape, x.dtype, "private_hbm")
        nisa.dma_copy(mine, x)
        ncc.all_reduce([mine], [total], ncc.ReplicaGroup([[0, 1]]), nl.add)
        return total

    arrays = inputs(4, 2, 2, 2)
    for got in run(kernel, [(a,) for a in arrays], lnc=2):
        equal(got, arrays[0] + arrays[1])


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([[0, 1], [1]], "disjoint"),
        ([[0], [1, 2]], "equally many"),
        ([[0, 5]], "simulate_ranks"),
        ([[1, 2]], "in no list"),
    ],
)
def test_groups_that_do_not_fit(groups: Any, said: str) -> None:
    def kernel(x: Any) -> Any:
        result = out(x.shape, x.dtype)
        ncc.all_reduce([own(x)], [result], ncc.ReplicaGroup(groups), nl.add)
        return result

    with pytest.raises(KernelError, match=said):
        run(kernel, [(a,) for a in inputs(0, 3, 2, 2)])
