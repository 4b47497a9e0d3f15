"""Index patterns, selection, gathering, searching and shuffling against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl

FP32_MIN = -3.4028235e38


def new(shape, dtype="float32"):
    return nl.ndarray(shape, dtype=getattr(nl, dtype), buffer=nl.sbuf)


patterns = st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4)), min_size=1, max_size=4)


def affine(parts, pattern, offset, multiplier):
    grid = np.indices([count for _, count in pattern]).reshape(len(pattern), -1)
    line = sum(step * grid[i] for i, (step, _) in enumerate(pattern))
    return offset + multiplier * np.arange(parts)[:, None] + line


@given(
    st.integers(1, 128),
    patterns,
    st.integers(-50, 50),
    st.integers(-3, 3),
    st.sampled_from(["int32", "float32", "bfloat16"]),
)
def test_iota(evaluate, parts, pattern, offset, multiplier, dtype):
    expected = affine(parts, pattern, offset, multiplier)

    def body(_):
        out = new(expected.shape, dtype)
        nisa.iota(dst=out, pattern=[list(pair) for pair in pattern], offset=offset, channel_multiplier=multiplier)
        return out

    got = evaluate(body, np.zeros((1, 1), np.float32))
    kind = getattr(nl, dtype).dtype
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32).astype(kind).astype(np.float32))


@given(
    st.integers(1, 64),
    patterns,
    st.integers(-5, 5),
    st.integers(-2, 2),
    st.sampled_from(["greater_equal", "equal", "less", "not_equal"]),
)
def test_affine_select(evaluate, parts, pattern, offset, multiplier, op):
    values = affine(parts, pattern, offset, multiplier)
    a = np.random.default_rng(0).standard_normal(values.shape).astype(np.float32)

    def body(x):
        out = new(x.shape)
        nisa.affine_select(
            out,
            pattern=list(pattern),
            channel_multiplier=multiplier,
            on_true_tile=x,
            on_false_value=FP32_MIN,
            cmp_op=getattr(nl, op),
            offset=offset,
        )
        return out

    chosen = {"greater_equal": values >= 0, "equal": values == 0, "less": values < 0, "not_equal": values != 0}[op]
    np.testing.assert_array_equal(evaluate(body, a), np.where(chosen, a, np.float32(FP32_MIN)))


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_range_select(evaluate, rng, kind):
    a = rng.standard_normal((6, 20)).astype(kind)
    low, high = np.arange(6, dtype=np.float32)[:, None], np.arange(6, dtype=np.float32)[:, None] + 9

    def body(x, lo, hi):
        out, top = new(x.shape), new((6, 1))
        nisa.range_select(out, x, nl.greater_equal, nl.less, lo, hi, reduce_res=top, range_start=2)
        return out, top

    out, top = evaluate(body, a, low, high)
    position = np.arange(20) + 2
    expected = np.where((position >= low) & (position < high), a.astype(np.float32), np.float32(FP32_MIN))
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(top[:, 0], expected.max(axis=1))


def test_select_reduce(evaluate, rng):
    a, mask = rng.standard_normal((6, 9)).astype(np.float32), rng.integers(0, 2, (6, 9)).astype(np.uint8)

    def body(x, m):
        out, top = new(x.shape), new((6, 1))
        nisa.select_reduce(out, m, x, -2.0, reduce_res=top, reduce_cmd=nisa.reduce_cmd.reset_reduce, reverse_pred=True)
        return out, top

    out, top = evaluate(body, a, mask)
    np.testing.assert_array_equal(out, np.where(mask == 0, a, np.float32(-2)))
    np.testing.assert_array_equal(top[:, 0], out.max(axis=1))


def test_sequence_bounds(evaluate):
    ids = np.array([[1, 1, 2, 2, 2, 0, 0, 3]], np.int32)

    def body(x):
        out = new((1, 2, 8), "int32")
        nisa.sequence_bounds(out, x)
        return out

    got = evaluate(body, ids)
    np.testing.assert_array_equal(got[0], [[0, 0, 2, 2, 2, 8, 8, 7], [2, 2, 5, 5, 5, -1, -1, 8]])


@given(st.sampled_from([1, 2, 4]), st.integers(1, 8), st.integers(0, 40))
def test_local_gather(evaluate, per, count, seed):
    draw = np.random.default_rng(seed)
    a = draw.standard_normal((32, 24)).astype(np.float32)
    index = draw.integers(0, 24 - per, (32, 1)).astype(np.uint16)

    def body(x, i):
        out = new((32, count * per))
        nisa.local_gather(dst=out, src_buffer=x, index=i, num_elem_per_idx=per, num_valid_indices=count)
        return out

    expected = np.empty((32, count * per), np.float32)
    for p in range(32):
        picks = index[16 * (p // 16) : 16 * (p // 16) + 16].flatten(order="F")[:count]
        expected[p] = np.concatenate([a[p, pick : pick + per] for pick in picks])
    np.testing.assert_array_equal(evaluate(body, a, index), expected)


@given(st.integers(0, 40))
def test_nc_n_gather(evaluate, seed):
    draw = np.random.default_rng(seed)
    a, index = draw.standard_normal((8, 2, 5)).astype(np.float32), draw.integers(0, 10, (8, 7)).astype(np.uint32)

    def body(x, i):
        out = new((8, 7))
        nisa.nc_n_gather(out, x, i)
        return out

    np.testing.assert_array_equal(
        evaluate(body, a, index), np.take_along_axis(a.reshape(8, 10), index.astype(int), axis=1)
    )


@given(st.integers(8, 40), st.integers(0, 60))
def test_max8_find_index8_and_match_replace8(evaluate, n, seed):
    a = np.random.default_rng(seed).integers(0, 12, (5, n)).astype(np.float32)

    def body(x):
        top, where, out, at = new((5, 8)), new((5, 8), "uint32"), new(x.shape), new((5, 8), "uint32")
        nisa.max8(dst=top, src=x)
        nisa.nc_find_index8(dst=where, data=x, vals=top)
        nisa.nc_match_replace8(dst=out, data=x, vals=top, imm=-1.0, dst_idx=at)
        return top, where, out, at

    top, where, out, at = evaluate(body, a)
    np.testing.assert_array_equal(top, -np.sort(-a, axis=1)[:, :8])
    for p in range(5):
        seen: dict[float, int] = {}
        for k in range(8):
            hits = np.flatnonzero(a[p] == top[p, k])
            assert where[p, k] == hits[seen.get(top[p, k], 0)]
            seen[top[p, k]] = seen.get(top[p, k], 0) + 1
        assert (out[p] == -1).sum() == 8
        np.testing.assert_array_equal(a[p, at[p]], top[p])
        for value in set(top[p]):
            columns = at[p][top[p] == value]
            assert list(columns) == sorted(columns, reverse=True)


def test_find_index8_of_a_missing_value_is_all_ones(evaluate):
    a = np.arange(8, dtype=np.float32)[None]

    def body(x, v):
        wide, narrow = new((1, 8), "uint32"), new((1, 8), "uint16")
        nisa.nc_find_index8(wide, x, v)
        nisa.nc_find_index8(narrow, x, v)
        return wide, narrow

    wide, narrow = evaluate(body, a, np.full((1, 8), 99, np.float32))
    assert (wide == 0xFFFFFFFF).all()
    assert (narrow == 0xFFFF).all()


@given(st.sampled_from([32, 64, 96, 128]), st.lists(st.sampled_from([*range(32), 255]), min_size=32, max_size=32))
def test_nc_stream_shuffle(evaluate, parts, mask):
    a, b = (np.random.default_rng(i).standard_normal((parts, 3)).astype(np.float32) for i in range(2))

    def body(x, y):
        nisa.nc_stream_shuffle(dst=y, src=x, shuffle_mask=mask)
        return y

    expected = b.copy()
    for p in range(parts):
        lane = mask[p % 32]
        if lane != 255:
            expected[p] = a[32 * (p // 32) + lane]
    np.testing.assert_array_equal(evaluate(body, a, b), expected)


def test_shuffle_of_one_partition_broadcasts_it(evaluate, rng):
    a = rng.standard_normal((1, 5)).astype(np.float32)

    def body(x):
        out = new((32, 5))
        nisa.nc_stream_shuffle(dst=out, src=x, shuffle_mask=[0] * 32)
        return out

    np.testing.assert_array_equal(evaluate(body, a), np.repeat(a, 32, axis=0))


def test_nonzero_with_count(evaluate, rng):
    a = rng.integers(0, 2, (128, 12)).astype(np.int32)

    def body(x):
        out = nl.zeros((128, 13), dtype=nl.int32)
        nisa.nonzero_with_count(dst=out, src=x, index_offset=100, padding_val=-7)
        return out

    got = evaluate(body, a)
    for p in range(128):
        hits = np.flatnonzero(a[p])
        row = [*(hits + 100), *[-7] * (12 - hits.size), hits.size] if p % 16 == 0 else [0] * 13
        np.testing.assert_array_equal(got[p], row)


def test_topk_over_a_snake(evaluate, rng):
    a = rng.standard_normal((32, 4)).astype(ml_dtypes.bfloat16)

    def body(x):
        values, places = new((32, 5), "bfloat16"), new((32, 5), "uint32")
        nisa.topk(values, places, x, 60)
        return values, places

    values, places = evaluate(body, a)
    for group in range(2):
        snake = a[16 * group : 16 * group + 16].T.reshape(-1)[:60].astype(np.float32)
        best = np.sort(snake)[-5:]
        np.testing.assert_array_equal(values[16 * group].astype(np.float32), best)
        np.testing.assert_array_equal(snake[places[16 * group]], best)


@pytest.mark.parametrize("engine", ["vector", "scalar"])
def test_tensor_indirection_on_trn3(evaluate, rng, engine):
    a = rng.standard_normal((32, 10)).astype(np.float32)
    index = rng.integers(0, 10, (32, 2)).astype(np.uint16)

    def body(x, i):
        out = new((32, 20))
        nisa.tensor_copy(out, x.indirect(i, 20), engine=getattr(nisa.engine, engine))
        return out

    expected = np.empty((32, 20), np.float32)
    for p in range(32):
        for j in range(20):
            expected[p, j] = a[p, index[16 * (p // 16) + j % 16, j // 16]]
    np.testing.assert_array_equal(evaluate(body, a, index, target="trn3"), expected)


U32, U16 = "uint32", "uint16"
REJECTED = [
    ("S-ELEMENTS", lambda x: nisa.iota(new((4, 5)), [[1, 4]])),
    ("NCC_INLA001", lambda x: nisa.iota(new((4, 1)), [[1, 1]] * 5)),
    ("B1-AFFINE-PRED", lambda x: nisa.iota(new((4, 5)), 5)),
    ("B2-AFFINE-OFFSET", lambda x: nisa.affine_select(x, [[1, 20]], 0, x, x)),
    ("B2-RANGESEL", lambda x: nisa.range_select(x, x, nl.less, nl.less, x[:, 0:1], x[:, 0:1], on_false_value=0.0)),
    ("S-OP", lambda x: nisa.range_select(x, x, nl.not_equal, nl.less, x[:, 0:1], x[:, 0:1])),
    ("S-DTYPE", lambda x: nisa.nc_n_gather(new((32, 20)), x, new((32, 20), "int32"))),
    ("S-GATHER", lambda x: nisa.local_gather(new((32, 3)), x, nl.zeros((32, 1), dtype=nl.uint16), num_elem_per_idx=3)),
    ("S-SIZE", lambda x: nisa.local_gather(new((8, 16)), x[0:8, :], nl.zeros((8, 1), dtype=nl.uint16))),
    ("V6-GATHER-ARGS", lambda x: nisa.local_gather(new((32, 3)), x, nl.zeros((32, 1), dtype=nl.uint16))),
    ("S-SIZE", lambda x: nisa.max8(new((32, 8)), x[:, 0:7])),
    ("S-SIZE", lambda x: nisa.max8(new((32, 7)), x)),
    ("S-DTYPE", lambda x: nisa.nc_find_index8(new((32, 8), "int32"), x, x[:, 0:8])),
    ("S-SHUFFLE", lambda x: nisa.nc_stream_shuffle(x, x, [0] * 31)),
    ("S-SHUFFLE", lambda x: nisa.nc_stream_shuffle(x, x, [32] * 32)),
    ("S-ELEMENTS", lambda x: nisa.nonzero_with_count(new((32, 20), "int32"), x)),
    ("S-DTYPE", lambda x: nisa.topk(new((32, 4)), new((32, 4), U32), x, 16)),
    ("S-TI", lambda x: x.indirect(new((32, 1), U16))),
    ("S-DTYPE", lambda x: nisa.select_reduce(x, x, x, 0.0)),
    ("S-SIZE", lambda x: nisa.sequence_bounds(new((2, 2, 20)), x[0:2, :])),
]


@pytest.mark.parametrize(("code", "body"), REJECTED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REJECTED)])
def test_rejected(rejected, code, body):
    rejected(code, body, np.ones((32, 20), np.float32))


def test_generations(rejected):
    a = np.ones((32, 20), np.float32)
    rejected(
        "S-GENERATION", lambda x: nisa.range_select(x, x, nl.less, nl.less, x[:, 0:1], x[:, 0:1]), a, target="trn1"
    )
    rejected("S-GENERATION", lambda x: nisa.nonzero_with_count(new((32, 21), "int32"), x), a, target="trn1")
