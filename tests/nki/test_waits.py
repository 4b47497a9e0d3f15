"""Reads of transfers that nothing waits for: what a barrier orders, what leads through it, and what is reported."""

from __future__ import annotations

import numpy as np
import pytest

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, races, simulate

X = np.arange(16, dtype=np.float32).reshape(4, 4)


def new(buffer=nl.sbuf, shape=(4, 4), dtype=nl.float32, name=""):
    return nl.ndarray(shape, dtype=dtype, buffer=buffer, name=name)


def shared(name, shape=(4, 4)):
    return new(nl.shared_hbm, shape, name=name)


def exchange(x, how):
    """Core 0 writes `data` and `flag`, core 1 reads `data` after a barrier on `flag`; `how` says what orders more."""
    out, flag, data = shared("out"), shared("flag"), shared("data")
    t, u = new(), new()
    first = nl.program_id(0) == 0
    if first:
        nisa.dma_copy(t, x)
        stored = nisa.dma_copy(data, t)
        if how == "tensors on both cores":
            nisa.dma_copy(u, data)
        nisa.dma_copy(flag, u if how == "tensors on both cores" else t)
    if how == "a barrier on it":
        nisa.core_barrier(data, (0, 1))
    barrier = nisa.core_barrier(flag, (0, 1))
    if how in ("edges", "an edge of the writer") and first:
        barrier.depends_on(stored)
    if not first:
        if how.startswith("tensors"):
            nisa.dma_copy(t, flag)
        read = nisa.dma_copy(t, data)
        if how in ("edges", "an edge of the reader"):
            read.depends_on(barrier)
        nisa.dma_copy(out, t)
    return out


def in_order(x):
    out, flag, data, t = shared("out"), shared("flag"), shared("data"), new()
    with nl.no_reorder():
        if nl.program_id(0) == 0:
            nisa.dma_copy(t, x)
            nisa.dma_copy(data, t)
        nisa.core_barrier(flag, (0, 1))
        if nl.program_id(0) == 1:
            nisa.dma_copy(t, data)
            nisa.dma_copy(out, t)
    return out


def through_an_index(x):
    """Core 1 takes the row that the ordered tensor names, so its read waits for the barrier."""
    out, flag, data, t, u, at = shared("out"), shared("flag"), shared("data"), new(), new(), nisa.register_alloc()
    if nl.program_id(0) == 0:
        nisa.dma_copy(t, x)
        nisa.dma_copy(data, t)
        nisa.dma_copy(u, data)
        nisa.tensor_scalar(u, u, nl.multiply, 0.0)
        nisa.dma_copy(flag, u)
    nisa.core_barrier(flag, (0, 1))
    if nl.program_id(0) == 1:
        row, which = new(shape=(1, 4)), new(shape=(1, 4))
        nisa.dma_copy(which, flag[0:1])
        whole = new(shape=(1, 1), dtype=nl.int32)
        nisa.tensor_copy(whole, which[:, 0:1])
        nisa.register_load(at, whole)
        nisa.dma_copy(row, data.ap([[4, 1], [1, 4]], scalar_offset=at, indirect_dim=0))
        for i in range(4):
            nisa.dma_copy(out[i : i + 1], row)
    return out


def by_sendrecv(x):
    """The tile that is sent comes from the tensor that was stored, and what is received is overwritten by the read."""
    out, data, t, u, v = shared("out"), shared("data"), new(), new(), new()
    core = nl.program_id(0)
    nisa.memset(u, 0.0)
    if core == 0:
        nisa.dma_copy(t, x)
        nisa.dma_copy(data, t)
        nisa.dma_copy(u, data)
    nisa.sendrecv(u, v, 1 - core, 1 - core, 0)
    nisa.core_barrier(out, (0, 1))
    if core == 1:
        nisa.dma_copy(v, data)
        nisa.dma_copy(out, v)
    return out


UNORDERED = ("no more", "tensors on one core", "an edge of the writer", "an edge of the reader")


@pytest.mark.parametrize("how", UNORDERED)
def test_a_barrier_on_another_tensor_leaves_the_transfer_in_flight(how, capsys):
    run = simulate(exchange, lnc=2)
    np.testing.assert_array_equal(run(X, how), X)
    (found,) = run.findings
    assert found.kind == "unwaited-read"
    assert found.place.function == "exchange"
    assert "core 1 reads 'data' and nothing waits for the transfer into it" in found.message
    assert "the barrier between orders 'flag' alone" in found.detail
    assert "nothing waits for the transfer" in capsys.readouterr().err
    with pytest.raises(KernelError) as caught:
        simulate(exchange, lnc=2, strict=True)(X, how)
    assert caught.value.code == "NKI-UNWAITED"
    assert caught.value.place == found.place


@pytest.mark.parametrize("how", ["a barrier on it", "tensors on both cores", "edges"])
def test_what_waits_is_no_report(how):
    np.testing.assert_array_equal(simulate(exchange, lnc=2, strict=True)(X, how), X)


def test_program_order_on_both_cores_waits():
    np.testing.assert_array_equal(simulate(in_order, lnc=2, strict=True)(X), X)


def test_an_index_out_of_the_ordered_tensor_waits():
    np.testing.assert_array_equal(simulate(through_an_index, lnc=2, strict=True)(X), np.tile(X[0], (4, 1)))


def test_an_exchange_leads_from_core_to_core():
    np.testing.assert_array_equal(simulate(by_sendrecv, lnc=2, strict=True)(X), X)


def test_a_write_after_a_read_that_nothing_orders():
    def kernel(x):
        out, flag, data, t = shared("out"), shared("flag"), shared("data"), new()
        if nl.program_id(0) == 0:
            nisa.dma_copy(t, x)
            nisa.dma_copy(data, t)
        nisa.core_barrier(data, (0, 1))
        if nl.program_id(0) == 0:
            nisa.dma_copy(t, data)
            nisa.dma_copy(out, t)
        nisa.core_barrier(flag, (0, 1))
        if nl.program_id(0) == 1:
            nisa.memset(t, 1.0)
            nisa.dma_copy(data, t)
        return out

    run = simulate(kernel, lnc=2)
    run(X)
    assert [found.kind for found in run.findings] == ["race"]
    assert "reads it" in run.findings[0].detail


INDEX = np.array([[4], [5], [6], [7]], np.int32)


@pytest.mark.parametrize("ordered", [False, True])
def test_rows_through_an_index_and_other_dtypes_are_seen(ordered):
    def scattered(x, index):
        out, data, t, at = shared("out"), shared("data", (8, 4)), new(), new(shape=(4, 1), dtype=nl.int32)
        if nl.program_id(0) == 0:
            nisa.dma_copy(t, x)
            nisa.dma_copy(at, index)
            nisa.dma_copy(data.ap([[4, 4], [1, 4]], vector_offset=at, indirect_dim=0), t)
        if ordered:
            nisa.core_barrier(data, (0, 1))
        if nl.program_id(0) == 1:
            nisa.dma_copy(t, data[4:8])
            nisa.dma_copy(out, t)
        return out

    def as_bits(x):
        out, data, t, u = shared("out"), shared("data"), new(), new(shape=(4, 8), dtype=nl.bfloat16)
        if nl.program_id(0) == 0:
            nisa.dma_copy(t, x)
            nisa.dma_copy(data, t)
        if ordered:
            nisa.core_barrier(data, (0, 1))
        if nl.program_id(0) == 1:
            nisa.dma_copy(u, data.view(nl.bfloat16))
            nisa.dma_copy(out.view(nl.bfloat16), u)
        return out

    for kernel, arguments in ((scattered, (X, INDEX)), (as_bits, (X,))):
        run = simulate(kernel, lnc=2)
        np.testing.assert_array_equal(run(*arguments), X)
        assert [found.kind for found in run.findings] == ([] if ordered else ["race"])


def test_rows_that_the_other_core_did_not_write_are_no_race():
    def kernel(x, index):
        data, t, at = shared("data", (8, 4)), new(), new(shape=(4, 1), dtype=nl.int32)
        nisa.dma_copy(t, x)
        if nl.program_id(0) == 0:
            nisa.dma_copy(at, index)
            nisa.dma_copy(data.ap([[4, 4], [1, 4]], vector_offset=at, indirect_dim=0), t)
        else:
            nisa.dma_copy(data[0:4], t)
        return data

    np.testing.assert_array_equal(simulate(kernel, lnc=2, strict=True)(X, INDEX), np.concatenate([X, X]))


def test_what_is_too_long_ago_is_not_guessed_at(monkeypatch):
    monkeypatch.setattr(races, "LOOKS_BACK", 2)
    run = simulate(exchange, lnc=2)
    run(X, "no more")
    assert run.findings == []


def moved(a, b):
    """The first two rows of `a` are doubled; then `b` is read."""
    t, u, out = new(shape=(2, 4)), new(), shared("out")
    nisa.dma_copy(t, a[0:2])
    nisa.tensor_scalar(t, t, nl.multiply, 2.0)
    nisa.dma_copy(a[0:2], t)
    nisa.dma_copy(u, b)
    nisa.dma_copy(out, u)
    return out


def test_an_array_that_two_arguments_are():
    array = X.copy()
    run = simulate(moved)
    np.testing.assert_array_equal(run(array, array), np.concatenate([2 * X[:2], X[2:]]))
    (found,) = run.findings
    assert found.kind == "unwaited-read"
    assert "'b' is read where 'a', an argument in the same memory, was written" in found.message
    with pytest.raises(KernelError) as caught:
        simulate(moved, strict=True)(array, array)
    assert caught.value.code == "NKI-UNWAITED"
    simulate(moved, strict=True)(X.copy(), X.copy())


def test_views_of_one_array():
    whole = np.zeros((8, 4), np.float32)
    run = simulate(moved)
    run(whole[0:4], whole[1:5])
    assert [found.kind for found in run.findings] == ["unwaited-read"]
    run(whole[0:4], whole[4:8])
    assert run.findings == []
    run(whole[0:4], whole[2:6])
    assert run.findings == []  # the rows that were written are not among those read


def test_an_array_twice_that_is_only_read():
    def product(a, b):
        t, u, out = new(), new(), shared("out")
        nisa.dma_copy(t, a)
        nisa.dma_copy(u, b)
        nisa.tensor_tensor(t, t, u, nl.multiply)
        nisa.dma_copy(out, t)
        return out

    np.testing.assert_array_equal(simulate(product, strict=True)(X, X), X * X)
