"""TensorView against NumPy's views; SbufManager's addresses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vibeserve.nki import isa as nisa
from vibeserve.nki import language as nl
from vibeserve.nki import lib, simulate


def _chain(draw: Any, array: np.ndarray) -> list[tuple[str, tuple[Any, ...]]]:
    steps: list[tuple[str, tuple[Any, ...]]] = []
    for _ in range(draw(st.integers(1, 4))):
        rank = array.ndim
        dim = draw(st.integers(0, rank - 1))
        kind = draw(st.sampled_from(["slice", "permute", "split", "expand", "select"]))
        if kind == "slice":
            start = draw(st.integers(0, array.shape[dim] - 1))
            end = draw(st.integers(start + 1, array.shape[dim]))
            step = draw(st.integers(1, 3))
            index = [slice(None)] * rank
            index[dim] = slice(start, end, step)
            array, call = array[tuple(index)], ("slice", (dim, start, end, step))
        elif kind == "permute":
            order = tuple(draw(st.permutations(range(rank))))
            array, call = array.transpose(order), ("permute", (order,))
        elif kind == "split" and array.shape[dim] % 2 == 0 and rank < 5:
            shape = (*array.shape[:dim], 2, array.shape[dim] // 2, *array.shape[dim + 1 :])
            array, call = array.reshape(shape), ("reshape_dim", (dim, (2, -1)))
        elif kind == "expand" and rank < 5:
            size = draw(st.integers(1, 3))
            array = np.repeat(np.expand_dims(array, dim), size, dim)
            steps.append(("expand_dim", (dim,)))
            call = ("broadcast", (dim, size))
        elif kind == "select" and rank > 1:
            at = draw(st.integers(0, array.shape[dim] - 1))
            array, call = np.take(array, at, dim), ("select", (dim, at))
        else:
            continue
        steps.append(call)
    return steps


@settings(max_examples=60)
@given(st.data())
def test_chains_in_hbm_are_numpys(data: Any) -> None:
    x = np.arange(6 * 8 * 4, dtype=np.float32).reshape(6, 8, 4)
    steps = _chain(data.draw, x)
    expected = x
    for name, arguments in steps:
        if name == "slice":
            dim, start, end, step = arguments
            expected = expected[(slice(None),) * dim + (slice(start, end, step),)]
        elif name == "permute":
            expected = expected.transpose(*arguments)
        elif name == "reshape_dim":
            dim = arguments[0]
            expected = expected.reshape(*expected.shape[:dim], 2, expected.shape[dim] // 2, *expected.shape[dim + 1 :])
        elif name == "expand_dim":
            expected = np.expand_dims(expected, *arguments)
        elif name == "broadcast":
            expected = np.repeat(expected, arguments[1], arguments[0])
        else:
            expected = np.take(expected, arguments[1], arguments[0])

    def kernel(t):
        view = lib.TensorView(t)
        for name, arguments in steps:
            view = getattr(view, name)(*arguments)
        assert view.shape == expected.shape
        assert view.get_dim() == expected.ndim
        out = nl.ndarray(view.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=view.get_view())
        return out

    assert (simulate(kernel)(x) == expected).all()


def test_views_in_sbuf_and_their_facts() -> None:
    def kernel(t):
        tile = nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=t)
        view = lib.TensorView(tile)
        assert view.is_sbuf()
        assert not view.is_hbm()
        assert lib.TensorView(t).is_hbm()
        assert not view.has_dynamic_access()
        assert view.strides == (12, 1)
        assert lib.TensorView.get_trivial_strides((2, 3, 4)) == (12, 4, 1)
        turned = view.reshape_dim(1, (3, 4)).permute((0, 2, 1))
        assert lib.TensorView(turned).base_tensor is tile
        copied = nl.ndarray((t.shape[0], 4, 3), dtype=t.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copied, src=turned.get_view())
        named = view.rearrange(("p", ("a", "b")), ("p", "b", "a"), {"a": 3})
        assert named.shape == (t.shape[0], 4, 3)
        assert turned.flatten_dims(0, 0).expand_dim(1).squeeze_dim(1).shape == turned.shape
        out = nl.ndarray(copied.shape, dtype=t.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=copied)
        return out

    x = np.arange(120, dtype=np.float32).reshape(10, 12)
    assert (simulate(kernel)(x) == x.reshape(10, 3, 4).transpose(0, 2, 1)).all()


@pytest.mark.parametrize(
    "misuse",
    [
        lambda v: v.slice(1, 3, 3),
        lambda v: v.slice(2, 0, 1),
        lambda v: v.broadcast(1, 4),
        lambda v: v.squeeze_dim(1),
        lambda v: v.permute((0, 0)),
        lambda v: v.permute((1, 0)),
        lambda v: v.reshape_dim(1, (5, 2)),
        lambda v: v.reshape((3, 5)),
    ],
)
def test_views_refuse(misuse: Any) -> None:
    def kernel(t):
        tile = nl.zeros(t.shape, dtype=t.dtype, buffer=nl.sbuf)
        misuse(lib.TensorView(tile))

    with pytest.raises(AssertionError):
        simulate(kernel)(np.zeros((8, 12), np.float32))


def _places(body: Any) -> Any:
    seen = []

    def kernel(x):
        manager = lib.SbufManager(1024, 65536)
        seen.append(body(manager))
        return nl.zeros((1, 1), dtype=nl.float32, buffer=nl.shared_hbm)

    simulate(kernel)(np.zeros(1, np.float32))
    return seen[0]


def test_stack_heap_and_scopes() -> None:
    def body(manager):
        first = manager.alloc_stack((128, 100), nl.bfloat16, name="first")
        manager.open_scope(name="inner")
        second = manager.alloc((64, 10, 4), nl.float32, base_partition=64)
        top = manager.alloc_heap((128, 256), nl.float32, name="kept")
        places = [tile.address for tile in (first, second, top)]
        report = manager.report()
        manager.close_scope()
        third = manager.alloc_stack((128, 1), nl.uint8)
        manager.pop_heap()
        return places, third.address, report, manager.get_used_space(), manager.get_free_space(), manager.peak

    places, third, report, used, free, peak = _places(body)
    assert places == [(0, 1024), (64, 1248), (0, 65536 - 1024)]
    assert third == (0, 1248)
    assert (used, free) == (225, 65536 - 1024 - 225)
    assert peak == 224 + 160 + 1024
    assert re.search(r"scope inner from 1224.*\n.*tile \[64, 10, 4\] at 1248", report)
    assert "heap kept [128, 256] at 64512" in report


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_sections_rotate(degree: int) -> None:
    def body(manager):
        manager.open_scope(interleave_degree=degree)
        places = []
        for _ in range(7):
            places.append(manager.alloc_stack((128, 16), nl.float32).address[1])
            manager.increment_section()
        return places

    assert _places(body) == [1024 + 64 * (step % degree) for step in range(7)]


def test_no_room_says_what_lies_where() -> None:
    def body(manager):
        manager.open_scope(name="loop")
        manager.alloc_stack((128, 60000), nl.uint8, name="weights")
        with pytest.raises(AssertionError, match=r"no SBUF for x \[128, 4096\] of 8192 bytes[\s\S]*weights"):
            manager.alloc_stack((128, 4096), nl.bfloat16, name="x")
        for misuse in (manager.pop_heap, lambda: manager.open_scope(0)):
            with pytest.raises(AssertionError):
                misuse()
        manager.close_scope()
        for misuse in (manager.close_scope, manager.increment_section):
            with pytest.raises(AssertionError):
                misuse()
        manager.align_stack_curr_addr(512)
        return manager.get_stack_curr_addr(), manager.get_heap_curr_addr(), manager.get_total_space()

    assert _places(body) == (1024, 65536, 64512)


def test_automatic_places() -> None:
    def body(_):
        manager = lib.create_auto_alloc_manager()
        manager.set_name_prefix("mlp.")
        tile = manager.alloc((128, 8), nl.float32, name="x")
        return tile.address, tile.name, manager.get_name_prefix()

    assert _places(body) == (None, "mlp.x", "mlp.")
