"""What a reference alone would not show: published values, ranks, and kernels that must be refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vibeserve.nki import KernelError, running, simulate, simulate_ranks
from vibeserve.nki import isa as nisa
from vibeserve.nki import language as nl

EXAMPLES = Path(__file__).parents[2] / "examples" / "kernels"


def kernel(slug: str, name: str) -> Any:
    return running.load_kernel(f"{EXAMPLES / slug / 'kernel.py'}:{name}")[0]


def test_philox_gives_the_published_words() -> None:
    made = kernel("philox", "philox")
    zeros = simulate(made)(np.zeros((4, 1, 1), np.uint32))
    assert [hex(word) for word in zeros.ravel()] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    ones = simulate(made)(np.full((4, 1, 1), 0xFFFFFFFF, np.uint32), key0=0xFFFFFFFF, key1=0xFFFFFFFF)
    assert [hex(word) for word in ones.ravel()] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


@pytest.mark.parametrize("name", ["all_reduce_sum", "all_gather_rows", "gather_columns", "row_of_rank"])
@pytest.mark.parametrize(("ranks", "lnc"), [(2, 1), (2, 2), (4, 1), (8, 1)])
def test_collectives_between_ranks(name: str, ranks: int, lnc: int) -> None:
    spec = importlib.util.spec_from_file_location("reference_collectives", EXAMPLES / "collectives" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    rows = ranks if name == "row_of_rank" else 128
    xs = [np.random.default_rng(rank).standard_normal((rows, 96)).astype(np.float32) for rank in range(ranks)]
    results = simulate_ranks(kernel("collectives", name), ranks=ranks, lnc=lnc)([(x, ranks) for x in xs])
    for result, wanted in zip(results, reference.of_ranks(name, xs), strict=True):
        assert np.allclose(result, wanted, rtol=1e-5, atol=1e-5)


def test_more_than_128_partitions_are_refused() -> None:
    def exp_too_tall(x: Any) -> Any:
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.activation(dst=tile, op=nl.exp, data=tile)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    with pytest.raises(KernelError, match="128"):
        simulate(exp_too_tall)(np.zeros((256, 16), np.float32))


def test_one_process_runs_one_shape_after_the_other() -> None:
    made = kernel("elementwise-add", "add")
    for shape in ((128, 512), (128, 256)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        assert (simulate(made)(x, x) == 2 * x).all()


@pytest.mark.parametrize(
    ("slug", "name", "inputs", "text"),
    [
        ("vjepa2-mlp", "fused_mlp", [(8, 100), (100, 128), (128,), (128, 100), (100,)], "width 100 and hidden 128"),
        ("vjepa2-mlp", "fused_mlp", [(8, 128), (128, 256), (255,), (256, 128), (128,)], r"b1 has shape \(255,\)"),
        ("tiled-matmul", "matmul_blocked_all", [(8, 4), (9, 4)], "K differs"),
        ("softmax", "softmax", [(2, 3, 4)], "3 dimensions"),
        ("flash-attention", "flash_attention", [(1, 200, 8), (1, 200, 8), (1, 8, 200)], "head size 200"),
        ("moe-routing", "router_topk", [(8, 128), (128, 4), (4,)], "4 experts"),
        ("average-pooling", "average_pooling", [(2, 5, 6)], "5 x 6 in patches of 2"),
    ],
)
def test_wrong_shapes_are_refused(slug: str, name: str, inputs: list[tuple[int, ...]], text: str) -> None:
    with pytest.raises(KernelError, match=text) as caught:
        simulate(kernel(slug, name))(*[np.zeros(shape, np.float32) for shape in inputs])
    assert caught.value.code == "NCC_INKI016"
    assert caught.value.place.file.endswith("kernel.py")


def test_scattered_rows_land_in_their_slots() -> None:
    cache = np.zeros((10, 4), np.float32)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4) + 1
    result = simulate(kernel("cache-write", "cache_scatter"))(cache, rows, np.array([[7], [-1], [2]], np.int32))
    assert (result[7] == rows[0]).all()
    assert (result[2] == rows[2]).all()
    assert result.sum() == rows[0].sum() + rows[2].sum()
