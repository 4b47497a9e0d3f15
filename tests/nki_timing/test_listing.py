"""The list schedule finds what a compiler does from kernels written tile after tile; times are worked out on paper."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vibeserve.nki import running
from vibeserve.nki.timing import document, run

HERE = Path(__file__).parent
ATTENTION = HERE.parents[1] / "benchmarks" / "timing_kernels" / "attention.py"
TOTALS = {  # µs of the device for the attention kernels, by name and dtype
    ("fused_plain", "bfloat16"): 36.351,
    ("fused_plain", "float32"): 38.091,
    ("baseline_plain", "bfloat16"): 54.276,
}


def listed(name: str, *args: Any) -> run.Timed:
    made, _ = running.load_kernel(f"{HERE / 'kernels.py'}:{name}")
    return run.timed(made, args, target="trn2", mode="list")[1]


def attention(name: str, dtype: str, mode: str = "list") -> run.Timed:
    made, _ = running.load_kernel(f"{ATTENTION}:{name}")
    inputs = [running.make_input(which, {"shape": [128, 512], "dtype": dtype}) for which in "qkv"]
    return run.timed(made, inputs, target="trn2", mode=mode, shape_only=True)[1]


def ps(cycles: float, clock_ghz: float) -> int:
    return round(cycles * 1000 / clock_ghz)


def test_steps_of_independent_tiles_overlap() -> None:
    found = listed("chains", np.zeros((128, 1024), np.float32))
    acts = sorted((op for op in found.ops if op.engine == "scalar"), key=lambda op: op.start)
    first, second = ([op for op in acts if (op.index < 14) == half] for half in (True, False))
    assert [op.index for op in acts] == [op.index for pair in zip(first, second, strict=True) for op in pair]
    # the busier engine never waits: N + gap of an activation that reads SBUF
    assert {later.end - earlier.end for earlier, later in pairwise(acts[2:])} <= {
        ps(512, 1.2) + ps(182 + 40, 1.2) + off for off in (-1, 0, 1)
    }
    chain = found.ops[1].start  # alone, each pair of instructions of a chain takes both of their latencies
    pair = ps(256 + 148, 0.96) + 35_000 + ps(512 + 352, 1.2) + 36_000
    assert found.ops[13].start - chain < 7 * pair  # both chains of six in the time of little more than one


def test_copies_go_to_scalar_and_vector_in_turn() -> None:
    x = running.make_input("x", {"shape": [128, 512], "dtype": "bfloat16"})
    found = listed("tile_after_tile", x)
    copies = [op for op in found.ops if op.opcode == "tensor_copy"]
    products = [op for op in found.ops if op.opcode == "nc_matmul"]
    assert found.schedule.order == "list"
    assert [op.engine for op in copies] == ["scalar", "vector"] * 3
    assert copies[0].start == products[0].end + 35_000
    assert copies[0].end - copies[0].start == pytest.approx(ps(512 + 191, 1.2), abs=1)
    assert copies[1].start == products[1].end + 36_000
    assert copies[1].end - copies[1].start == pytest.approx(ps(512 + 152, 0.96), abs=1)


@pytest.mark.parametrize(("dtype", "products"), [("bfloat16", 4 + 16), ("float32", 4 + 16)])
def test_transposes_share_a_copy_in_attention_from_tile_to_tile(dtype: str, products: int) -> None:
    program, made = attention("fused_plain", dtype, "program"), attention("fused_plain", dtype)
    assert made.schedule.order == "list"
    written, shared = (
        [op for op in one.ops if op.opcode == "tensor_copy"] for one in (program, made)
    )  # values, and the weights of four query tiles, in four pieces each
    assert [op.operands[0].shape for op in written] == [(128, 128)] * products
    assert [op.operands[0].shape for op in shared] == [(128, 512)] * (products // 4)
    for copy in shared:
        sources = {operand.storage for operand in copy.operands if not operand.write}
        assert len(sources) == 4
        turned = [op for op in made.ops if op.opcode == "nc_transpose" and op.operands[0].storage in sources]
        assert [op.done <= copy.start for op in turned] == [True] * 4
    for key in ("flops", "transpose_flops", "hbm_read_bytes", "hbm_write_bytes"):
        assert document(made)[key] == document(program)[key]


def test_each_step_comes_for_all_query_tiles_before_the_next() -> None:
    found = attention("fused_plain", "bfloat16")
    tops = [op for op in found.ops if op.opcode == "tensor_reduce"][::2]
    powers = [op for op in found.ops if op.opcode == "activation"]
    scores = [op for op in found.ops if op.opcode == "nc_matmul" and op.operands[0].shape == (128, 512)]
    for step, later in ((scores, tops), (tops, powers)):
        assert len(step) == len(later) == 4
        assert all(one.end <= after.start for one, after in zip(step, later, strict=True))
    assert max(op.start for op in scores) < min(op.end for op in powers)
    assert max(op.start for op in tops) < min(op.end for op in powers) + ps(512 + 61, 0.96)


@pytest.mark.parametrize(("name", "dtype"), list(TOTALS))
def test_attention_from_tile_to_tile_comes_within_a_tenth_of_the_device(name: str, dtype: str) -> None:
    total = document(attention(name, dtype))["total_time_s"] * 1e6
    assert total == pytest.approx(TOTALS[name, dtype], rel=0.1)
