"""Matrix products, PSUM accumulation, transposes and microscaling against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki.dtypes import pack_x4, round_tf32, unpack_x4

PAIRS = [
    (np.float32, np.float32), (ml_dtypes.bfloat16, ml_dtypes.bfloat16), (np.float16, ml_dtypes.bfloat16),
    (ml_dtypes.float8_e4m3, ml_dtypes.bfloat16), (ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3),
]  # fmt: skip


def f32(x):
    return x.astype(np.float32)


def psum(shape, dtype="float32"):
    return nl.ndarray(shape, dtype=getattr(nl, dtype), buffer=nl.psum)


@given(st.integers(1, 128), st.integers(1, 128), st.integers(1, 96), st.sampled_from(PAIRS), st.integers(0, 99))
def test_nc_matmul(evaluate, k, m, n, kinds, seed):
    draw = np.random.default_rng(seed)
    a, b = draw.standard_normal((k, m)).astype(kinds[0]), draw.standard_normal((k, n)).astype(kinds[1])

    def body(x, y):
        out = psum((m, n))
        nisa.nc_matmul(dst=out, stationary=x, moving=y)
        return out

    np.testing.assert_allclose(evaluate(body, a, b), f32(a).T @ f32(b), rtol=1e-4, atol=1e-4)


def test_accumulation_is_per_element(evaluate, rng):
    a, b = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((16, 12)).astype(np.float32)

    def body(x, y):
        out = psum((8, 12))
        nisa.memset(out, 5.0)
        nisa.nc_matmul(out[:, 0:6], x, y[:, 0:6])
        nisa.nc_matmul(out[:, 3:9], x, y[:, 3:9])
        return out

    product = a.T @ b
    expected = np.full((8, 12), 5.0, np.float32)
    expected[:, 0:9] = product[:, 0:9]
    expected[:, 3:6] *= 2
    np.testing.assert_allclose(evaluate(body, a, b), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("flags", "factor"),
    [((None, None), 2), ((False, True), 2), ((True, True), 2), ((None, False), 1), ((True, None), 2)],
)
def test_accumulate_flag(evaluate, rng, flags, factor):
    a, b = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((16, 12)).astype(np.float32)

    def body(x, y):
        out = nl.zeros((8, 12), dtype=nl.float32, buffer=nl.psum)
        for flag in flags:
            nisa.nc_matmul(out, x, y, accumulate=flag)
        return out

    np.testing.assert_allclose(evaluate(body, a, b), factor * (a.T @ b), rtol=1e-5)


def test_new_allocation_starts_afresh_at_the_same_address(evaluate, rng):
    a, b = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((16, 12)).astype(np.float32)

    def body(x, y):
        for _ in range(3):
            out = nl.ndarray((8, 12), dtype=nl.float32, buffer=nl.psum, address=(0, 2048))
            nisa.nc_matmul(out, x, y)
        return out

    np.testing.assert_allclose(evaluate(body, a, b), a.T @ b, rtol=1e-5)


def test_accumulate_onto_nothing_is_reported(rejected, rng):
    a = rng.standard_normal((16, 8)).astype(np.float32)
    rejected("S-ACCUM-FIRST", lambda x: nisa.nc_matmul(psum((8, 8)), x, x, accumulate=True), a, strict=True)


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_transposes_are_bit_exact(evaluate, rng, kind):
    a = (rng.standard_normal((48, 100)) * 1e4).astype(kind)
    a[3, 5] = np.inf

    def body(x):
        out = nl.ndarray((100, 48), dtype=x.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=out, data=x)
        mode = nl.ndarray((100, 48), dtype=x.dtype, buffer=nl.psum)
        nisa.nc_matmul(mode, stationary=x, moving=nl.shared_identity_matrix(48, dtype=x.dtype), is_transpose=True)
        return out, mode

    for got in evaluate(body, a):
        np.testing.assert_array_equal(got, a.T)


def test_small_transpose_on_the_vector_engine(evaluate, rng):
    a = rng.standard_normal((32, 20)).astype(np.float32)

    def body(x):
        out = nl.ndarray((20, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.nc_transpose(out, x)
        return out

    np.testing.assert_array_equal(evaluate(body, a), a.T)


def test_tf32_rounds_operands_to_ten_mantissa_bits(evaluate, rng):
    a, b = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((16, 12)).astype(np.float32)

    def body(x, y):
        out = psum((8, 12))
        nisa.nc_matmul(out, x.view(nl.tfloat32), y.view(nl.tfloat32))
        return out

    np.testing.assert_allclose(evaluate(body, a, b), round_tf32(a).T @ round_tf32(b), rtol=1e-5, atol=1e-6)
    assert np.all(round_tf32(a).view(np.uint32) & 0x1FFF == 0)


def test_double_row(evaluate, rng):
    a, b = (rng.standard_normal((32, 2, n)).astype(ml_dtypes.float8_e4m3) for n in (16, 24))

    def body(x, y):
        out = psum((16, 24))
        nisa.nc_matmul(out, x, y, perf_mode=nisa.matmul_perf_mode.double_row)
        return out

    expected = np.einsum("krm,krn->mn", f32(a), f32(b))
    np.testing.assert_allclose(evaluate(body, a, b), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", [32, 64, 128])
@pytest.mark.parametrize("name", ["float8_e4m3fn_x4", "float8_e5m2_x4"])
def test_quantise_and_multiply_microscaled(evaluate, rng, parts, name):
    a, b = (rng.standard_normal((parts, 4 * n)).astype(ml_dtypes.bfloat16) for n in (16, 24))
    x4 = getattr(nl, name)
    rows = parts if parts > 32 else parts // 8

    def quantised(tile):
        width = tile.shape[1] // 4
        data = nl.ndarray((parts, width), dtype=x4, buffer=nl.sbuf)
        scale = nl.ndarray((rows, width), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.memset(scale, 0)
        nisa.quantize_mx(dst=data, src=tile, dst_scale=scale)
        return data, scale

    def body(x, y):
        (dx, sx), (dy, sy) = quantised(x), quantised(y)
        out = psum((16, 24))
        nisa.nc_matmul_mx(dst=out, stationary=dx, moving=dy, stationary_scale=sx, moving_scale=sy)
        return out, dx, sx

    got, data, scale = evaluate(body, a, b, target="trn3")
    largest = 8 if "e4m3" in name else 15
    groups = f32(a).reshape(parts // 8, 8, 16, 4)
    exponent = np.floor(np.log2(np.abs(groups).max(axis=(1, 3)))) - (largest - 1)
    places = [i if parts <= 32 else 32 * (i // 4) + i % 4 for i in range(parts // 8)]
    np.testing.assert_array_equal(scale[places], exponent + 127)
    back = unpack_x4(data, x4) * np.repeat(np.exp2(exponent), 8, axis=0)[:, :, None]
    np.testing.assert_allclose(back.reshape(parts, 64), f32(a), atol=0.2, rtol=0.2)
    expected = np.einsum("kmq,knq->mn", f32(a).reshape(parts, 16, 4), f32(b).reshape(parts, 24, 4))
    assert np.abs(got - expected).max() / np.abs(expected).max() < 0.12


@given(st.sampled_from([nl.float8_e4m3fn_x4, nl.float8_e5m2_x4, nl.float4_e2m1fn_x4]), st.integers(0, 50))
def test_packing_turns_back(dtype, seed):
    values = np.random.default_rng(seed).choice([0.5, -1.0, 2.0, 4.0, 6.0, -3.0], (3, 5, 4)).astype(np.float32)
    np.testing.assert_array_equal(unpack_x4(pack_x4(values, dtype), dtype), values)


BF, F8, F8N = nl.bfloat16, nl.float8_e4m3, nl.float8_e4m3fn


def tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    made = nl.ndarray(shape, dtype=dtype, buffer=buffer)
    nisa.memset(made, 0)
    return made


REJECTED = [
    ("S-SPACE", "trn2", lambda: nisa.nc_matmul(tile((8, 8)), tile((8, 8)), tile((8, 8)))),
    ("S-SPACE", "trn2", lambda: nisa.nc_matmul(psum((8, 8)), psum((8, 8)), tile((8, 8)))),
    ("S-MM-LAYOUT", "trn2", lambda: nisa.nc_matmul(psum((8, 8)), tile((8, 8)), tile((16, 8)))),
    ("S-MM-SIZE", "trn2", lambda: nisa.nc_matmul(psum((128, 8)), tile((8, 129)), tile((8, 8)))),
    ("S-MM-SIZE", "trn2", lambda: nisa.nc_matmul(psum((8, 513)), tile((8, 8)), tile((8, 513)))),
    ("S-MM-LAYOUT", "trn2", lambda: nisa.nc_matmul(psum((8, 9)), tile((8, 8)), tile((8, 8)))),
    ("S-MM-INT", "trn2", lambda: nisa.nc_matmul(psum((8, 8)), tile((8, 8), nl.int32), tile((8, 8)))),
    ("S-MM-MIX", "trn2", lambda: nisa.nc_matmul(psum((8, 8)), tile((8, 8)), tile((8, 8), BF))),
    ("S-MM-DST32", "trn2", lambda: nisa.nc_matmul(psum((8, 8), "bfloat16"), tile((8, 8), BF), tile((8, 8), BF))),
    ("NCC_EVRF051", "trn2", lambda: nisa.nc_matmul(psum((8, 8)), tile((8, 8), F8N), tile((8, 8), F8N))),
    ("V4-FP8MIX", "trn3", lambda: nisa.nc_matmul(psum((8, 8)), tile((8, 8), F8N), tile((8, 8), F8))),
    ("S-MM-DOUBLE", "trn2", lambda: nisa.nc_matmul(psum((8, 8)), tile((8, 16), BF), tile((8, 16), BF), perf_mode=nisa.matmul_perf_mode.double_row)),
    ("S-MM-TILE", "trn2", lambda: nisa.nc_matmul(psum((8, 8)), tile((8, 8)), tile((8, 8)), tile_position=(0, 0))),
    ("S-MM-TILE", "trn2", lambda: nisa.nc_matmul(psum((8, 8)), tile((8, 8)), tile((8, 8)), tile_position=(16, 0), tile_size=(32, 32))),
    ("S-PSUM-BANK", "trn2", lambda: nisa.nc_matmul(psum((8, 1024))[:, 256:768], tile((8, 8)), tile((8, 512)))),
    ("S-GENERATION", "trn2", lambda: nisa.quantize_mx(tile((32, 4), nl.float8_e4m3fn_x4), tile((32, 16), BF), tile((4, 4), nl.uint8))),
    ("S-DTYPE", "trn3", lambda: nisa.quantize_mx(tile((32, 4), nl.float8_e4m3fn_x4), tile((32, 16)), tile((4, 4), nl.uint8))),
    ("S-SIZE", "trn3", lambda: nisa.quantize_mx(tile((16, 4), nl.float8_e4m3fn_x4), tile((16, 16), BF), tile((2, 4), nl.uint8))),
    ("S-DTYPE", "trn2", lambda: nisa.nc_transpose(psum((8, 8)), tile((8, 8), BF))),
    ("S-SPACE", "trn2", lambda: nisa.nc_transpose(tile((64, 64)), tile((64, 64)))),
    ("S-SIZE", "trn2", lambda: nisa.nc_transpose(tile((64, 64)), tile((64, 64)), engine=nisa.engine.vector)),
    ("S-ELEMENTS", "trn2", lambda: nisa.nc_transpose(psum((8, 9)), tile((8, 8)))),
    ("B1-PSUM-ADDR", "trn2", lambda: nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.psum, address=(0, 100))),
    ("B1-PSUMFLAG", "trn2", lambda: nisa.nc_matmul(psum((8, 8)), tile((8, 8)), tile((8, 8)), psumAccumulateFlag=1)),
    ("NCC_IBIR229", "trn2", lambda: psum((8, 5000))),
]  # fmt: skip


@pytest.mark.parametrize(("code", "target", "body"), REJECTED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REJECTED)])
def test_rejected(rejected, code, target, body):
    rejected(code, lambda x: body(), np.zeros((1, 1), np.float32), target=target)


def test_trn1_transpose_multiplies_so_that_nan_spreads(evaluate):
    a = np.ones((4, 4), np.float32)
    a[1, 2] = np.nan

    def body(x):
        out = psum((4, 4))
        nisa.nc_transpose(out, x)
        return out

    assert np.isnan(evaluate(body, a, target="trn1")).all()
    assert np.isnan(evaluate(body, a, target="trn2")).sum() == 1


def test_wide_moving_operand_on_trn3(evaluate, rng):
    a, b = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((16, 1024)).astype(np.float32)

    def body(x, y):
        out = psum((8, 1024))
        nisa.nc_matmul(out, x, y)
        return out

    np.testing.assert_allclose(evaluate(body, a, b, target="trn3"), a.T @ b, rtol=1e-4, atol=1e-5)


def test_adding_to_a_sum_that_was_read_is_reported(rng):
    from vibeserve.nki import simulate

    a = rng.standard_normal((16, 8)).astype(np.float32)

    def kernel(x):
        tile_ = nl.load(x)
        out, copied = psum((8, 8)), nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.sbuf)
        for _ in range(2):
            nisa.nc_matmul(out, tile_, tile_)
            nisa.tensor_copy(copied, out)
        result = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(result, copied)
        return result

    run = simulate(kernel, strict=True)
    np.testing.assert_allclose(run(a), 2 * (a.T @ a), rtol=1e-5)
    assert [finding.kind for finding in run.findings] == ["stale-accumulate"]


def test_matmul_through_an_index_on_trn3(evaluate, rng):
    """Operands gathered and the result scattered along the free dimension, by groups of 32 partitions."""
    a, b = (rng.standard_normal((64, 40)).astype(ml_dtypes.bfloat16) for _ in range(2))
    picks = rng.integers(0, 40, (64, 1)).astype(np.uint16)
    places = np.concatenate([rng.permutation(50)[:32] for _ in range(1)]).astype(np.uint16).reshape(32, 1)

    def body(x, y, i, j):
        out = psum((32, 50))
        nisa.memset(out, 7.0)
        for _ in range(2):
            nisa.nc_matmul(out.indirect(j, 32), x.indirect(i, 32), y[:, 0:32])
        return out

    gathered = np.empty((64, 32), np.float32)
    for p in range(64):
        for e in range(32):
            gathered[p, e] = a[p, picks[32 * (p // 32) + e, 0]]
    expected = np.full((32, 50), 7, np.float32)
    expected[:, places[:, 0]] = 2 * (gathered.T @ b[:, :32].astype(np.float32))
    np.testing.assert_allclose(evaluate(body, a, b, picks, places, target="trn3"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "flags", [(0, 1), (False, True), (np.bool_(False), np.bool_(True)), (np.int64(0), np.int64(1))]
)
def test_accumulate_takes_any_truth_value(evaluate, rng, flags):
    a, b = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((16, 12)).astype(np.float32)

    def body(x, y):
        out = psum((8, 12))
        for flag in (*flags, *flags):
            nisa.nc_matmul(out, x, y, accumulate=flag)
        return out

    np.testing.assert_allclose(evaluate(body, a, b), 2 * (a.T @ b), rtol=1e-5, atol=1e-5)
