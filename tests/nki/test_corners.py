"""Instructions that kernels seldom use, against NumPy statements of their formulas, and reads of part of a tile."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, simulate, simulate_ranks
from vibeserve.nki import collectives as ncc

F32 = np.float32
TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
UNPACKED = {"float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn, "float8_e5m2_x4": ml_dtypes.float8_e5m2}


def new(shape, dtype="float32"):
    return nl.ndarray(shape, dtype=getattr(nl, dtype), buffer=nl.sbuf)


def values(seed, *shape, kind=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


# -- microscaled products ------------------------------------------------------------------------------------------------


def unpacked(bits, name):
    """[K, F] packed elements as [K, F, 4] float32, by a way of its own."""
    if name == "float4_e2m1fn_x4":
        table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F32)
        nibbles = (bits.astype(np.uint32)[..., None] >> np.array([0, 4, 8, 12], np.uint32)) & 15
        return np.where(nibbles & 8, -table[nibbles & 7], table[nibbles & 7])
    raw = (bits[..., None] >> np.array([0, 8, 16, 24], np.uint32)).astype(np.uint8)
    return np.nan_to_num(raw.view(UNPACKED[name]).astype(F32), nan=0, posinf=0, neginf=0)


def packed(rng, name, parts, free):
    """Random packed elements without NaN or infinity."""
    if name == "float4_e2m1fn_x4":
        return rng.integers(0, 1 << 16, (parts, free)).astype(np.uint16)
    lanes = rng.standard_normal((parts, free, 4)).astype(UNPACKED[name]).view(np.uint8).astype(np.uint32)
    return (lanes << np.array([0, 8, 16, 24], np.uint32)).sum(-1, dtype=np.uint32)


@given(
    st.sampled_from([32, 64, 96, 128]),
    st.sampled_from(["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"]),
    st.sampled_from(["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"]),
    st.sampled_from(["uint8", "float8_e8m0fnu"]),
    st.sampled_from([0, 4, 8, 12]),
    st.integers(0, 99),
)
def test_microscaled_product(parts, left, right, scale_type, shift, seed):
    rng = np.random.default_rng(seed)
    a, b = packed(rng, left, parts, 6), packed(rng, right, parts, 10)
    exponents = [rng.integers(120, 134, (parts // 8, n)).astype(np.uint8) for n in (6, 10)]
    places = [32 * (i // 4) + i % 4 for i in range(parts // 8)]

    def kernel(a, b, sa, sb):
        operands = []
        for data, scale, name in ((a, sa, left), (b, sb, right)):
            tile, scales = new(data.shape, name), new((128, data.shape[1]), scale_type)
            nisa.dma_copy(tile, data.view(getattr(nl, name)))
            for row, place in enumerate(places):
                nisa.dma_copy(scales[shift + place : shift + place + 1], scale[row : row + 1].view(scales.dtype))
            operands += [tile, scales[shift : min(shift + max(parts, 32), 128)]]
        out = nl.ndarray((6, 10), dtype=nl.float32, buffer=nl.psum)
        for _ in range(2):
            nisa.nc_matmul_mx(out, operands[0], operands[2], operands[1], operands[3])
        result = nl.ndarray((6, 10), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(result, nl.copy(out))
        return result

    got = simulate(kernel, target="trn3", strict=True)(a, b, *exponents)
    scaled = [
        unpacked(bits, name) * np.exp2(np.repeat(e.astype(F32) - 127, 8, axis=0))[:, :, None]
        for bits, name, e in ((a, left, exponents[0]), (b, right, exponents[1]))
    ]
    expected = 2 * np.einsum("kmq,knq->mn", *scaled)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_quantised_scales_need_no_filling():
    x = values(0, 128, 64, kind=ml_dtypes.bfloat16)

    def kernel(x):
        tile, data, scale = nl.load(x), new((128, 16), "float8_e4m3fn_x4"), new((128, 16), "uint8")
        nisa.quantize_mx(data, tile, scale)
        out = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(out, data, data, scale, scale)
        result = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(result, nl.copy(out))
        return result

    f = x.astype(F32).reshape(128, 16, 4)
    expected = np.einsum("kmq,knq->mn", f, f)
    got = simulate(kernel, target="trn3", strict=True)(x)
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("instruction", ["shuffle", "nonzero", "scales"])
def test_a_sparse_read_of_what_was_not_written_is_reported(instruction):
    def kernel(x):
        if instruction == "shuffle":
            tile = new((32, 4))
            nisa.memset(tile[0:1], 0.0)
            nisa.nc_stream_shuffle(new((32, 4)), tile, [0] * 32)  # reads what was written
            nisa.nc_stream_shuffle(new((32, 4)), tile, [0] * 31 + [1])
        elif instruction == "nonzero":
            tile = new((32, 4), "int32")
            nisa.memset(tile[0:1], 0)
            nisa.nonzero_with_count(new((32, 5), "int32"), tile)
        else:
            data, scale = new((32, 4), "float8_e4m3fn_x4"), new((32, 4), "uint8")
            nisa.memset(data, 0)
            nisa.memset(scale[0:3], 127)
            nisa.nc_matmul_mx(nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.psum), data, data, scale, scale)

    with pytest.raises(KernelError) as caught:
        simulate(kernel, target="trn3", strict=True)(np.zeros(1, F32))
    assert caught.value.code == "NCC_ISIM074"
    assert caught.value.place.line > 100


# -- selecting and replacing ----------------------------------------------------------------------------------------------


@given(st.integers(1, 64), st.integers(8, 40), st.booleans(), st.integers(0, 99))
def test_match_replace(evaluate, parts, free, indices, seed):
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 6, (parts, free)).astype(F32)
    wanted = rng.integers(0, 7, (parts, 8)).astype(F32)

    def body(x, v):
        out, where = new(x.shape), new((parts, 8), "uint32")
        if indices:
            nisa.nc_match_replace8(dst=out, data=x, vals=v, imm=-9.0, dst_idx=where)
            return out, where
        nisa.nc_match_replace8(dst=out, data=x, vals=v, imm=-9.0)
        return out, out

    expected, places = a.copy(), np.full((parts, 8), 0xFFFFFFFF, np.uint32)
    for p in range(parts):
        gone = set()
        for k in range(7, -1, -1):
            hits = [i for i in range(free) if a[p, i] == wanted[p, k] and i not in gone]
            if hits:
                gone.add(hits[0])
                expected[p, hits[0]], places[p, k] = -9, hits[0]
    got, where = evaluate(body, a, wanted)
    np.testing.assert_array_equal(got, expected)
    if indices:
        np.testing.assert_array_equal(where, places)


@given(
    st.integers(1, 128), st.integers(1, 30), st.sampled_from(list(TYPES)), st.sampled_from(["uint8", "int8", "uint16", "int16"]),
    st.booleans(), st.booleans(), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_select_reduce(evaluate, parts, free, kind, mask_kind, reverse, column, psum, seed):
    rng = np.random.default_rng(seed)
    a, mask = values(seed, parts, free, kind=TYPES[kind]), rng.integers(-1, 2, (parts, free)).astype(mask_kind)
    other = values(seed + 1, parts, 1)

    def body(x, m, o):
        out, top = new(x.shape, kind), new((parts, 1))
        source = x
        if psum:
            source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.psum)
            nisa.tensor_copy(source, x)
        nisa.select_reduce(
            dst=out, predicate=m, on_true=source, on_false=o if column else -2.5, reduce_res=top,
            reduce_cmd=nisa.reduce_cmd.reset_reduce, reverse_pred=reverse,
        )  # fmt: skip
        nisa.select_reduce(
            out,
            m,
            source,
            o if column else -2.5,
            reduce_res=top,
            reduce_cmd=nisa.reduce_cmd.reduce,
            reverse_pred=reverse,
        )
        return out, top

    chosen = (mask != 0) ^ reverse
    picked = np.where(chosen, a.astype(F32), other if column else F32(-2.5)).astype(F32)
    got, top = evaluate(body, a, mask, other)
    np.testing.assert_array_equal(got.astype(F32), picked.astype(TYPES[kind]).astype(F32))
    np.testing.assert_array_equal(top, picked.max(axis=1, keepdims=True))


OPS = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "greater": lambda x, y: (x > y).astype(F32), "equal": lambda x, y: (x == y).astype(F32),
}  # fmt: skip


@given(
    st.integers(1, 128), st.integers(1, 24), st.sampled_from(list(OPS)), st.sampled_from(list(OPS)), st.booleans(), st.booleans(),
    st.booleans(), st.sampled_from(list(TYPES)), st.integers(0, 99),
)  # fmt: skip
def test_scalar_tensor_tensor(evaluate, parts, free, first, second, reverse0, reverse1, column, kind, seed):
    a, b, c = values(seed, parts, free, kind=TYPES[kind]), values(seed + 1, parts, free), values(seed + 2, parts, 1)

    def body(x, y, s):
        out = new((parts, 1, free), kind)
        nisa.scalar_tensor_tensor(
            dst=out, data=x, op0=getattr(nl, first), operand0=s if column else 0.75, op1=getattr(nl, second), operand1=y,
            reverse0=reverse0, reverse1=reverse1,
        )  # fmt: skip
        return out

    x, s = a.astype(F32), c if column else F32(0.75)
    x = OPS[first](s, x) if reverse0 else OPS[first](x, s)
    x = OPS[second](b, x) if reverse1 else OPS[second](x, b)
    got = evaluate(body, a, b, c).reshape(parts, free)
    np.testing.assert_array_equal(got.astype(F32), x.astype(F32).astype(TYPES[kind]).astype(F32))


@given(
    st.integers(1, 128), st.integers(1, 4), st.integers(1, 9), st.integers(-3, 3), st.integers(-3, 3), st.integers(-9, 9), st.integers(-2, 2),
    st.sampled_from(["greater", "less_equal", "greater_equal", "less", "equal", "not_equal"]), st.sampled_from(list(TYPES)),
)  # fmt: skip
def test_affine_select_over_two_dimensions(evaluate, parts, outer, inner, s0, s1, offset, multiplier, op, kind):
    a = values(3, parts, outer, inner, kind=TYPES[kind])

    def body(x):
        nisa.affine_select(
            dst=x, pattern=[[s0, outer], [s1, inner]], offset=offset, channel_multiplier=multiplier, on_true_tile=x,
            on_false_value=-7, cmp_op=getattr(nl, op),
        )  # fmt: skip
        return x

    p, i, j = np.ogrid[:parts, :outer, :inner]
    line = offset + multiplier * p + s0 * i + s1 * j
    chosen = getattr(np, op)(line, 0)
    np.testing.assert_array_equal(evaluate(body, a).astype(F32), np.where(chosen, a.astype(F32), F32(-7)))


# -- random state ----------------------------------------------------------------------------------------------------------


def xorwow(state, count):
    """[P, count] uint32 of Marsaglia's xorwow, written out word by word; state [P, 6]."""
    out = np.empty((state.shape[0], count), np.uint32)
    for p, row in enumerate(state):
        x, y, z, w, v, d = (int(word) for word in row)
        for i in range(count):
            t = x ^ (x >> 2)
            x, y, z, w = y, z, w, v
            v = (v ^ (v << 4) ^ t ^ (t << 1)) & 0xFFFFFFFF
            d = (d + 362437) & 0xFFFFFFFF
            out[p, i] = (v + d) & 0xFFFFFFFF
    return out


@given(
    st.sampled_from([("gpsimd", "trn2"), ("gpsimd", "trn3"), ("vector", "trn3")]),
    st.integers(1, 128),
    st.integers(0, 99),
)
def test_a_state_that_is_set_is_drawn_from_and_got_back(evaluate, where, parts, seed):
    engine, target = where
    words = 24 if engine == "vector" else 6
    state = np.random.default_rng(seed).integers(1, 1 << 32, (parts, words), dtype=np.uint64).astype(np.uint32)
    chosen = getattr(nisa.engine, engine)

    def body(s):
        back, drawn = new((parts, words), "uint32"), new((parts, 5), "uint32")
        nisa.rand_set_state(src_seeds=s, engine=chosen)
        nisa.rand_get_state(dst=back, engine=chosen)
        nisa.rng(dst=drawn, engine=chosen)
        return back, drawn

    back, drawn = evaluate(body, state, target=target)
    np.testing.assert_array_equal(back, state)
    np.testing.assert_array_equal(drawn, xorwow(state[:, :6], 5))


@given(st.sampled_from(["int32", "uint32", "float32"]), st.sampled_from(["trn1", "trn2", "trn3"]), st.integers(1, 1000))
def test_a_seed_starts_the_same_stream_again(evaluate, kind, target, seed):
    seeds = np.array([[seed], [seed + 1]]).astype(kind)

    def body(s):
        drawn = [new((16, 9), name) for name in ("uint32", "uint32", "int8", "uint32")]
        nisa.set_rng_seed(s[0:1])
        nisa.rng(drawn[0])
        nisa.rng(drawn[1])
        nisa.set_rng_seed(s[0:1])
        nisa.rng(drawn[2])
        other = new((1, 1), kind)
        nisa.dma_copy(other, s[1:2])
        nisa.set_rng_seed(other)
        nisa.rng(drawn[3])
        return tuple(drawn)

    first, second, narrow, other = evaluate(body, seeds, target=target)
    np.testing.assert_array_equal(narrow.view(np.uint8), (first & 0xFF).astype(np.uint8))
    assert (first != second).any()
    assert (first != other).any()
    assert abs(np.unpackbits(first.view(np.uint8)).mean() - 0.5) < 0.05


# -- cores and ranks -------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 128), st.integers(1, 16), st.sampled_from(list(TYPES)), st.booleans(), st.integers(0, 3),
    st.sampled_from(["trn2", "trn3"]),
)  # fmt: skip
def test_sendrecv(parts, free, kind, gpsimd, pipes, target):
    a = values(5, 2, parts, free, kind=TYPES[kind])

    def kernel(x):
        me = nl.program_id(0)
        mine, theirs = nl.load(x[me]), new((parts, free), kind)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        how = nisa.dma_engine.gpsimd_dma if gpsimd else nisa.dma_engine.dma
        for pipe in range(pipes + 1):
            nisa.sendrecv(
                src=mine, dst=theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=pipe, dma_engine=how
            )
            mine, theirs = theirs, mine
        nisa.dma_copy(out[me], mine)
        return out

    got = simulate(kernel, target=target, lnc=2)(a)
    np.testing.assert_array_equal(got, a if pipes % 2 else a[::-1])


def test_a_core_that_sends_alone_is_told():
    def kernel(x):
        tile = nl.load(x)
        if nl.program_id(0) == 0:
            nisa.sendrecv(tile, tile, 1, 1, 0)

    with pytest.raises(KernelError, match="sendrecv"):
        simulate(kernel, lnc=2)(np.zeros((4, 4), F32))


@pytest.mark.parametrize(("name", "combine"), [("add", np.add), ("maximum", np.maximum), ("minimum", np.minimum)])
def test_permute_with_a_reduction(name, combine):
    a = values(6, 4, 2, 8, 16)

    def kernel(x, y):
        group = ncc.ReplicaGroup([[0, 1, 2, 3]])
        here = [nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm) for _ in range(2)]
        for tensor, source in zip(here, (x, y), strict=True):
            nisa.dma_copy(tensor, source)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        ncc.collective_permute_implicit_reduce(
            srcs0_by_channel=[[here[0]]], srcs1_by_channel=[[here[1]]], dsts_by_channel=[[out]], replica_group=group,
            op=getattr(nl, name), channel_ids=[0],
        )  # fmt: skip
        return out

    got = simulate_ranks(kernel, ranks=4)([(pair[0], pair[1]) for pair in a])
    for rank in range(4):
        before = a[(rank - 1) % 4]
        np.testing.assert_array_equal(got[rank], combine(before[0], before[1]))


# -- the rest of the language ----------------------------------------------------------------------------------------------


def test_sizes_of_the_target():
    facts = (
        "pmax", "psum_fmax", "psum_bank_fmax", "psum_bank_fmax_bytes", "psum_num_banks", "gemm_stationary_fmax", "bn_stats_fmax",
        "psum_min_align", "sbuf_min_align", "sbuf_fmax_bytes", "sbuf_fmax", "sbuf_size_bytes", "total_available_sbuf_size",
    )  # fmt: skip
    seen = {}

    def kernel(x, name):
        seen[name] = [getattr(nl.tile_size, fact) for fact in facts]
        assert nl.tile_size.gemm_moving_fmax >= 512
        assert nisa.get_nc_sub_version() >= 0

    for name in ("trn1", "trn2", "trn3"):
        simulate(kernel, target=name)(np.zeros(1, F32), name)
    common = [128, 512, 512, 2048, 8, 128, 512, 4, 1]
    assert seen["trn1"] == [*common, 180224, 45056, 25165824, 180224]
    assert seen["trn2"] == [*common, 212984, 53246, 29360128, 212984]
    assert seen["trn3"] == [*common, 245752, 61438, 33554432, 245752]


def test_iterators_are_ranges_of_ints():
    for iterator in (nl.affine_range, nl.sequential_range, nl.static_range):
        assert list(iterator(3)) == [0, 1, 2]
        assert list(iterator(1, 7, 2)) == [1, 3, 5]
        assert list(iterator(start=2, stop=4)) == [2, 3]
        assert all(type(i) is int for i in iterator(np.int64(2)))


def test_facts_of_views():
    def kernel(x):
        tile = nl.load(x)
        assert isinstance(tile, nl.NkiTensor)
        assert isinstance(tile.dtype, nl.DType)
        assert isinstance(tile.buffer, nl.MemoryRegion)
        assert tile.get_pattern() == [[12, 4], [1, 12]]
        part = tile[:, 2:10:2]
        assert part.get_pattern() == [[12, 4], [2, 4]]
        assert part.offset == 2
        assert part.strides == (12, 2)
        assert not part.is_contiguous()
        assert tile.is_contiguous()
        assert not tile.is_indirect()
        assert x.select(0, nisa.register_alloc(1)).is_indirect()
        assert tile.reinterpret_cast(nl.int16).shape == (4, 24)
        assert tile.view(nl.uint8).get_pattern() == [[48, 4], [1, 48]]
        assert isinstance(nisa.register_alloc(1), nisa.VirtualRegister)
        handle = nisa.tensor_copy(tile, tile, engine=nisa.vector_engine, name="copied")
        assert isinstance(handle, nisa.NkiInstruction)
        assert handle.name == "copied"

    simulate(kernel)(values(1, 4, 12))


@pytest.mark.parametrize("home", ["nki.language", "nki.experimental"])
def test_while_loop(home):
    import importlib

    import vibeserve.nki.shim  # noqa: F401

    while_loop = importlib.import_module(home).while_loop

    def kernel(n):
        count, total = nl.load(n), nl.zeros((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        out = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
        condition = nisa.register_alloc()
        nisa.register_load(condition, count)

        def body(_):
            nisa.tensor_tensor(total, total, count, nl.add)
            nisa.tensor_scalar(count, count, nl.subtract, 1)
            left = nisa.register_alloc()
            nisa.register_load(left, count)
            return left

        while_loop(condition, body)
        nl.store(out, total)
        return out

    for n in (0, 1, 5):
        assert simulate(kernel)(np.array([[n]], np.int32)) == n * (n + 1) // 2
