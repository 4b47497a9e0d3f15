"""The helpers that compute with trace-time values: tiles, sizes, enums, checks, the single file."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.nki import KernelError, lib, simulate
from vibeserve.nki import language as nl
from vibeserve.nki.lib.single import source


@given(st.integers(0, 5000), st.integers(1, 700), st.integers(1, 300))
def test_tiles_cover_the_dimension_once(size: int, tile: int, subtile: int) -> None:
    covered = [
        position
        for outer in lib.TiledRange(size, tile)
        for inner in lib.TiledRange(outer, subtile)
        for position in range(inner.start_offset, inner.end_offset)
    ]
    assert covered == list(range(size))
    for outer in lib.TiledRange(size, tile):
        assert outer.size == outer.end_offset - outer.start_offset <= tile
        assert outer.start_offset == outer.index * tile
        inner = lib.TiledRange(outer, subtile)
        assert [part.index for part in inner] == list(range(len(inner)))
        assert all(part.size == subtile for part in inner[:-1])


@given(st.integers(1, 3000), st.integers(1, 500), st.integers(1, 200))
def test_tile_info_agrees_with_tiled_range(size: int, tile: int, subtile: int) -> None:
    info = lib.TiledDimInfo.build_with_subtiling(size, tile, subtile)
    tiles = lib.TiledRange(size, tile)
    assert list(info.get_tile_indices()) == [t.index for t in tiles]
    for t in tiles:
        parts = lib.TiledRange(t, subtile)
        assert info.get_tile_bound(t.index) == t.size
        assert info.get_actual_subtile_num(t.index) == len(parts)
        for part in parts:
            assert info.get_subtile_start(t.index, part.index) == part.start_offset
            assert info.get_local_subtile_start(part.index) == part.start_offset - t.start_offset
            assert info.get_subtile_bound(t.index, part.index) == part.size
    assert info.is_subtiled()
    assert not lib.TiledDimInfo.build(size, tile).is_subtiled()


@given(st.integers(0, 10**6), st.integers(1, 4096))
def test_alignment(n: int, d: int) -> None:
    assert lib.div_ceil(n, d) == -(-n // d)
    assert lib.get_ceil_aligned_size(n, d) - d < n <= lib.get_ceil_aligned_size(n, d)
    assert lib.get_floor_aligned_size(n, d) <= n < lib.get_floor_aligned_size(n, d) + d


def test_reduce_folds_from_the_left() -> None:
    assert lib.reduce(lambda a, b: a - b, [10, 3, 2]) == 5
    assert lib.reduce(lambda a, b: a - b, [3, 2], 1) == -4
    with pytest.raises(AssertionError, match="reduce of nothing"):
        lib.reduce(lambda a, b: a, [])


@pytest.mark.parametrize(
    "call",
    [
        lambda: lib.TiledRange(10, 0),
        lambda: lib.TiledRange(-1, 4),
        lambda: lib.TiledDimInfo.build(10, 5, lib.TiledDimInfo.build(4, 2)),
        lambda: lib.TiledDimInfo.build(10, 5).get_subtile_start(0, 0),
        lambda: lib.get_max_positive_value_for_dtype(nl.float32),
        lambda: lib.resolve_dtype_to_nki("float99"),
    ],
)
def test_misuse_is_refused(call) -> None:
    with pytest.raises(AssertionError) as caught:
        call()
    assert str(caught.value).startswith("[INTERNAL_ERROR] [NCC_INKI016] Kernel validation exception: ")


def test_kernel_assert_names_the_kernels_line() -> None:
    def kernel(x):
        lib.kernel_assert(x.shape[0] == 4, f"x has {x.shape[0]} rows")
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        return out

    with pytest.raises(KernelError, match=r"\[INTERNAL_ERROR\] \[NCC_INKI016\] .* x has 3 rows") as caught:
        simulate(kernel)(np.zeros((3, 2), np.float32))
    assert caught.value.code == "NCC_INKI016"
    assert caught.value.place.file == __file__


def test_facts_of_types() -> None:
    assert lib.get_max_positive_value_for_dtype(nl.float8_e4m3) == 240.0
    assert lib.get_max_positive_value_for_dtype(nl.float8_e5m2) == 57344.0
    assert lib.resolve_dtype_to_nki("torch.bfloat16") is nl.bfloat16
    assert lib.resolve_dtype_to_nki(np.dtype("float16")) is nl.float16
    assert lib.get_nl_act_fn_from_type(lib.ActFnType.SiLU) is nl.silu
    assert lib.is_rms_normalization(lib.NormType.RMS_NORM_SKIP_GAMMA)
    assert not lib.normalization_uses_weights(lib.NormType.RMS_NORM_SKIP_GAMMA)
    assert lib.is_hbm_buffer(nl.shared_hbm)
    assert not lib.is_hbm_buffer(nl.sbuf)


def test_logger_prints_from_its_level_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    logger = lib.get_logger("mlp")
    logger.info("quiet")
    logger.warning("loud")
    monkeypatch.setenv("NKI_LIB_LOG_LEVEL", "debug")
    logger.debug("detail")
    assert capsys.readouterr().err == "[mlp] warning: loud\n[mlp] debug: detail\n"


@pytest.mark.parametrize("lnc", [1, 2])
def test_sharding(lnc: int) -> None:
    seen = []

    def kernel(x):
        seen.append((lib.get_verified_program_sharding_info("k", (0, 1), 2), lib.shard_bounds(300, 128)))
        return nl.zeros((1, 1), dtype=nl.float32, buffer=nl.shared_hbm)

    simulate(kernel, lnc=lnc)(np.zeros(1, np.float32))
    if lnc == 1:
        assert seen[0][0][1:] == (1, 0)
        assert seen[0][1] == (0, 300)
    else:
        assert sorted(seen) == [((1, 2, 0), (0, 256)), ((1, 2, 1), (256, 300))]


def test_nkilib_names_are_these() -> None:
    from vibeserve.nki.shim.nkilib import MODULES

    for sources in MODULES.values():
        for name in sources:
            importlib.import_module(name)
    code = (
        "from vibeserve.nki.shim.finder import install; install(force=True)\n"
        "from nkilib.core.utils.kernel_assert import kernel_assert\n"
        "from nkilib.core.utils.kernel_helpers import div_ceil, get_verified_program_sharding_info, PSUM_BANK_SIZE\n"
        "from nkilib.core.utils.tensor_view import TensorView\n"
        "from nkilib.core.utils.allocator import SbufManager, BufferManager, sizeinbytes, create_auto_alloc_manager\n"
        "from nkilib.core.utils.common_types import QuantizationType, NormType, ActFnType, QKVOutputLayout\n"
        "from nkilib.core.utils.stream_shuffle_broadcast import stream_shuffle_broadcast\n"
        "from nkilib.core.utils.tiled_range import TiledRange, TiledRangeIterator\n"
        "from nkilib.core.utils.tile_info import TiledDimInfo\n"
        "from nkilib.core.utils.logging import get_logger\n"
        "from nkilib.core.utils.interleave_copy import interleave_copy\n"
        "from nkilib.core.utils.tp_broadcast import tp_broadcast\n"
        "from nkilib.core.utils.cross_partition_copy import cross_partition_copy\n"
        "print(div_ceil(7, 2), PSUM_BANK_SIZE, [t.size for t in TiledRange(5, 2)])\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (out.stdout, out.stderr) == ("4 2048 [2, 2, 1]\n", "")


def test_single_file_stands_alone(tmp_path) -> None:
    text = source()
    assert "vibeserve.nki.lib." not in text.split('"""', 2)[2]
    (tmp_path / "nki_lib.py").write_text(text)
    names = [name for name in lib.__all__ if name not in ("dequantize_rows",)]
    code = (
        "from vibeserve.nki.shim.finder import install; install(force=True)\n"
        "import numpy as np, nki, nki.language as nl, nki.isa as nisa\n"
        f"from nki_lib import {', '.join(names)}, dequantize_rows\n"
        "@nki.jit\n"
        "def double(x):\n"
        "    kernel_assert(len(x.shape) == 2, 'rank')\n"
        "    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"
        "    for rows in TiledRange(x.shape[0], 128):\n"
        "        tile = nl.ndarray((rows.size, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)\n"
        "        nisa.dma_copy(dst=tile, src=x[rows.start_offset:rows.end_offset])\n"
        "        interleave_copy(tile, tile, scale=2.0, index=rows.index)\n"
        "        nisa.dma_copy(dst=out[rows.start_offset:rows.end_offset], src=tile)\n"
        "    return out\n"
        "x = np.arange(600, dtype=np.float32).reshape(300, 2)\n"
        "assert (double(x) == 2 * x).all()\n"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (out.returncode, out.stderr) == (0, "")
