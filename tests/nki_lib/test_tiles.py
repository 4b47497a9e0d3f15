"""The helpers that run instructions, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vibeserve.nki import isa as nisa
from vibeserve.nki import language as nl
from vibeserve.nki import lib, simulate

BF16, F8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3


def load(x: Any, dtype: Any = None) -> Any:
    tile = nl.ndarray(x.shape, dtype=dtype or x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def store(tile: Any) -> Any:
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def new(shape: Any, dtype: Any = nl.float32) -> Any:
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("rows", [1, 31, 32, 65, 100, 128])
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32])
def test_stream_shuffle_broadcast(rows: int, dtype: Any) -> None:
    def kernel(x):
        tile, out = load(x), new((rows, x.shape[1]), x.dtype)
        lib.stream_shuffle_broadcast(tile, out)
        return store(out)

    x = (normal(1, 40) * 9).astype(dtype)
    assert (simulate(kernel)(x) == np.repeat(x, rows, 0)).all()


@pytest.mark.parametrize(("size", "rows"), [(128, 128), (64, 1), (7, 33)])
def test_tp_broadcast(size: int, rows: int) -> None:
    def kernel(x):
        out = new((rows, size))
        lib.tp_broadcast(load(x), out, src_offset=2)
        return store(out)

    x = normal(size, 3)
    assert (simulate(kernel)(x) == np.repeat(x[:, 2][None], rows, 0)).all()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("scale", "bias"), [(None, None), (2.0, None), (None, 3.0), (2.0, 3.0)])
def test_interleave_copy(index: int, scale: Any, bias: Any) -> None:
    def kernel(x):
        out = new(x.shape)
        lib.interleave_copy(out, load(x), scale=scale, bias=bias, index=index)
        return store(out)

    x = normal(70, 12)
    assert np.allclose(simulate(kernel)(x), x * (scale or 1) + (bias or 0), rtol=1e-6)


@settings(max_examples=40)
@given(st.integers(0, 96), st.integers(0, 96), st.integers(1, 64))
def test_cross_partition_copy(source: int, target: int, count: int) -> None:
    count = min(count, 128 - source, 128 - target)

    def kernel(x, y):
        src, dst = load(x), load(y)
        lib.cross_partition_copy(src, dst, source, target, count)
        return store(dst)

    x, y = normal(128, 8), normal(128, 8, seed=4)
    expected = y.copy()
    expected[target : target + count] = x[source : source + count]
    assert (simulate(kernel)(x, y) == expected).all()


@pytest.mark.parametrize("columns", [100, 512, 700])
def test_rows_broadcast_two_ways(columns: int) -> None:
    def kernel(x):
        first, second = new((128, columns)), new((128, columns))
        lib.broadcast_row(first, x)
        lib.broadcast_row_by_matmul(second, load(x.reshape((1, columns))))
        return store(first), store(second)

    x = normal(columns)
    first, second = simulate(kernel)(x)
    assert (first == x).all()
    assert (second == x).all()


@pytest.mark.parametrize(("rows", "columns"), [(300, 200), (128, 128), (5, 130)])
def test_load_transposed(rows: int, columns: int) -> None:
    def kernel(x):
        tiles = lib.div_ceil(columns, 128)
        out = nl.zeros((128, tiles, rows), dtype=x.dtype, buffer=nl.sbuf)
        lib.load_transposed(out, x)
        return store(out)

    x = normal(rows, columns, dtype=BF16)
    got = simulate(kernel)(x).astype(np.float32).transpose(1, 0, 2).reshape(-1, rows)
    assert (got[:columns] == x.T.astype(np.float32)).all()
    assert (got[columns:] == 0).all()


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 4058), st.integers(1, 32))
def test_fold_and_unfold(batch: int, length: int, fold: int) -> None:
    width = -(-length // fold)

    def kernel(x):
        tile = new((128, width + 3))
        lib.fold_rows(tile, x, fold, fill=-7.0)
        back = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        lib.unfold_rows(back, tile, fold)
        folded = new((batch * fold, width))
        nisa.tensor_copy(dst=folded, src=tile[0 : batch * fold, 0:width])
        return store(folded), back

    x = normal(batch, length)
    if width * fold == length:
        padded = x
    else:
        padded = np.full((batch, width * fold), -7.0, np.float32)
        padded[:, :length] = x
    folded, back = simulate(kernel)(x)
    assert (folded == padded.reshape(batch * fold, width)).all()
    assert (back == x).all()


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "tolerance"), [(128, 1000, np.float32, 1e-5), (50, 256, BF16, 2e-2)]
)
@pytest.mark.parametrize("weights", [False, True])
def test_norms(rows: int, width: int, dtype: Any, tolerance: float, weights: bool) -> None:
    def kernel(x, g, b):
        tile = load(x)
        gamma, beta = (new((rows, width)), new((rows, width))) if weights else (None, None)
        if weights:
            lib.broadcast_row(gamma, g)
            lib.broadcast_row(beta, b)
        first, second = new(x.shape, x.dtype), new(x.shape, x.dtype)
        lib.rms_norm_rows(first, tile, gamma, eps=1e-5)
        lib.layer_norm_rows(second, tile, gamma, beta, eps=1e-5)
        return store(first), store(second)

    x, g, b = (normal(rows, width) + 1).astype(dtype), normal(width), normal(width, seed=9)
    gamma, beta = (g, b) if weights else (1.0, 0.0)
    wide = x.astype(np.float32)
    rms = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * gamma
    norm = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * gamma + beta
    first, second = simulate(kernel)(x, g, b)
    assert np.allclose(first.astype(np.float32), rms, rtol=tolerance, atol=tolerance)
    assert np.allclose(second.astype(np.float32), norm, rtol=tolerance, atol=tolerance)


def test_quantise_rows_and_back() -> None:
    def kernel(x):
        tile, codes, scales, back = load(x), new(x.shape, nl.float8_e4m3), new((x.shape[0], 1)), new(x.shape)
        lib.quantize_rows(codes, scales, tile)
        lib.dequantize_rows(back, codes, scales)
        fixed = new(x.shape, nl.float8_e4m3)
        lib.quantize_static(fixed, tile, 0.01)
        return store(back), store(scales), store(fixed)

    x = normal(100, 64)
    x[3] = 0
    back, scales, fixed = simulate(kernel)(x)
    largest = np.abs(x).max(1, keepdims=True)
    assert np.allclose(scales[largest > 0], largest[largest > 0] / 240, rtol=1e-6)
    assert (np.abs(back - x) <= np.maximum(np.abs(x) / 16, largest / 240 * 2**-9) + 1e-7).all()
    assert (fixed.astype(np.float32) == np.clip(x * np.float32(100), -240, 240).astype(F8).astype(np.float32)).all()


@pytest.mark.parametrize(("tokens", "experts", "k"), [(128, 64, 8), (9, 8, 1), (100, 128, 4)])
def test_routing_and_permutation(tokens: int, experts: int, k: int) -> None:
    capacity = 6

    def kernel(x):
        scores = new(x.shape)
        lib.softmax_rows(scores, load(x))
        values, indices, mask = new((tokens, 8)), new((tokens, 8), nl.uint32), new(x.shape)
        lib.top_experts(values, indices, mask, scores, k)
        positions, rows = new(x.shape), new(x.shape, nl.int32)
        lib.expert_positions(positions, mask)
        lib.permutation_rows(rows, positions, mask, capacity)
        return store(scores), store(values), store(indices), store(mask), store(rows)

    x = normal(tokens, experts)
    scores, values, indices, mask, rows = simulate(kernel)(x)
    powers = np.exp(x - x.max(1, keepdims=True))
    softmax = powers / powers.sum(1, keepdims=True)
    assert np.allclose(scores, softmax, rtol=1e-5)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    assert (indices[:, :k] == order).all()
    assert (values[:, :k] == np.take_along_axis(scores, order, 1)).all()
    expected = np.zeros_like(scores)
    np.put_along_axis(expected, order, 1, 1)
    assert (mask == expected).all()
    place = np.cumsum(expected, 0) - expected
    wanted = np.where((expected > 0) & (place < capacity), np.arange(experts) * capacity + place, -1)
    assert (rows == wanted).all()
