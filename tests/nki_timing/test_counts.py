"""Counts of the shipped kernels: FLOPs and HBM bytes as counted by hand, and one schedule however they were recorded."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from vibeserve.nki import Observer, running
from vibeserve.nki.timing import document, run

EXAMPLES = Path(__file__).parents[2] / "examples" / "kernels"
ALL = [
    (file.parent.name, name)
    for file in sorted(EXAMPLES.glob("*/inputs.toml"))
    for name in tomllib.loads(file.read_text(encoding="utf-8"))
]
CUBE = 128**3
M4K = 2 * 4096 * 2048 * 1024


def timed(slug: str, name: str, **options: Any) -> run.Timed:
    made, path = running.load_kernel(f"{EXAMPLES / slug / 'kernel.py'}:{name}")
    case = running.default_case(path, name)
    inputs = {key: running.make_input(key, value) for key, value in case.inputs.items()}
    return run.timed(made, kwargs=inputs, target=case.target, lnc=case.lnc, shape_only=True, **options)[1]


# (folder, kernel, FLOPs of matmuls, of transposes, HBM bytes read, HBM bytes written), at inputs.toml's sizes. A transpose of
# [a, b] is a product with an identity: 2 a a b. What is spread over partitions is read once for each of them.
HAND = [
    ("softmax", "softmax", 0, 0, 2048 * 2048 * 2, 2048 * 2048 * 2),
    # gamma is spread over the partitions by a product with a column of ones
    ("rmsnorm", "rmsnorm", 2 * 1 * 128 * 4096, 0, (512 * 4096 + 4096) * 2, 512 * 4096 * 2),
    ("layernorm", "layernorm", 0, 0, (1024 * 4096 + 2 * 128 * 4096) * 4, 1024 * 4096 * 4),
    (
        "flash-attention", "flash_attention",  # query tile i of 16 meets i + 1 key tiles, by q k and by p v
        8 * sum(i + 1 for i in range(16)) * 2 * 2 * CUBE, 8 * sum(i + 1 for i in range(16)) * 2 * CUBE,
        3 * 8 * 128 * 2048 * 2, 8 * 128 * 2048 * 2 + 2 * 8 * 2048 * 4,
    ),
    (
        # of each group the query and 16 tiles of weights are turned, four rows each
        "decode-attention", "decode_attention", 8 * 2 * (2 * 128 * 4 * 2048), 8 * (1 + 16) * 2 * 4 * 4 * 128,
        2 * 8 * 128 * 2048 * 2 + 32 * 128 * 2 + 2 * 8 * 128 * 2 + (1 + 4) * 4, 32 * 128 * 2 + 2 * 8 * 128 * 2,
    ),
    (
        "gated-mlp", "gated_mlp", 3 * 2 * 512 * 1024 * 2816, 512 // 128 * 1024 // 128 * 2 * CUBE,
        2 * 3 * 1024 * 2816 * 2 + 512 * 1024 * 2, 512 * 1024 * 2,
    ),
    ("rope", "rope_columns", 0, 0, (128 + 64 + 64) * 4096 * 4, 128 * 4096 * 4),
    ("rope", "rope_heads", 0, 0, (2 * (32 + 8) + 2) * 512 * 128 * 2, 2 * (32 + 8) * 512 * 128 * 2),
    # each image loads the bias anew
    (
        "conv2d", "conv2d", 2 * 2 * 56 * 56 * 9 * 64 * 128, 0,
        2 * 64 * 56 * 56 * 2 + 9 * 64 * 128 * 2 + 2 * 128 * 4, 2 * 128 * 56 * 56 * 2,
    ),
    ("transpose", "transpose", 0, 16 * 16 * 2 * CUBE, 2048 * 2048 * 2, 2048 * 2048 * 2),
    ("average-pooling", "average_pooling", 0, 0, 64 * 32 * 48 * 2, 64 * 8 * 12 * 2),
    ("local-gather", "gather_by_group", 0, 0, 128 * 2048 * 4 + 128 * 8 * 2, 128 * 8 * 16 * 4 * 4),
    ("local-gather", "gather_by_partition", 0, 0, 128 * 2048 * 4 + 128 * 64 * 4, 128 * 64 * 4),
    ("associative-scan", "associative_scan", 0, 0, 2 * 256 * 4096 * 4, 256 * 4096 * 4),
    # b and c are spread over 128 partitions for each of 16 states, once for each of two tiles of channels
    (
        "mamba", "mamba_block", 0, 0,
        (3 * 256 * 2048 + 256 * (16 + 4 + 1 + 1) + 2 * 2 * 16 * 128 * 2048) * 4, 256 * 2048 * 4,
    ),
    (
        "moe-routing", "router_topk", 2 * 1024 * 3072 * 128, 8 * 24 * 2 * CUBE,
        1024 * 3072 * 2 + 2 * (3072 * 128 * 2 + 128 * 128 * 4), 2 * 1024 * 128 * 4 + 1024 * 8 * 4,
    ),
    ("adamw", "adamw", 0, 0, 4 * 1024 * 4096 * 4, 3 * 1024 * 4096 * 4),
    ("cumsum", "cumsum", 0, 0, 2048 * 2048 * 4, 2048 * 2048 * 4),
    ("rmsnorm-quant", "rmsnorm_quant", 0, 0, 1024 * 4096 * 2 + 2 * 128 * 4096 * 2, 1024 * 4096 + 1024 * 4),
    # each core streams both weights and loads both biases; b1 is turned as [32, 128]
    (
        "vjepa2-mlp", "fused_mlp", 2 * 2 * 2048 * 1024 * 4096, 16 * 8 * 2 * CUBE + 2 * 2 * 32 * 32 * 128,
        2048 * 1024 * 2 + 2 * (2 * 1024 * 4096 + 4096 + 1024) * 2, 2048 * 1024 * 2,
    ),
    # the intermediate crosses HBM four times: written, read, written with GELU, read; its transposes come on top
    (
        "vjepa2-mlp", "unfused_mlp", 2 * 2 * 2048 * 1024 * 4096, 16 * (8 + 32) * 2 * CUBE,
        2048 * 1024 * 2 + 2 * (2 * 1024 * 4096 + 4096 + 1024) * 2 + 2 * 2048 * 4096 * 2, (2048 * 1024 + 2 * 2048 * 4096) * 2,
    ),
    # M = 4096, N = 2048, K = 1024: A for each of 4 column tiles, B for each of 32 row tiles; then A once; B for 8 row blocks
    ("tiled-matmul", "matmul_loads_inside", M4K, 0, 2 * 1024 * (4096 * 4 + 2048 * 32), 4096 * 2048 * 2),
    ("tiled-matmul", "matmul_hoisted", M4K, 0, 2 * 1024 * (4096 + 2048 * 32), 4096 * 2048 * 2),
    ("tiled-matmul", "matmul_blocked_free", M4K, 0, 2 * 1024 * (4096 + 2048 * 8), 4096 * 2048 * 2),
    ("tiled-matmul", "matmul_blocked_all", 2 * 2048**3, 0, 2 * 2 * 2048**2, 2 * 2048**2),
    # five products for each of 36 pairs of tiles and 4 heads, two transposes
    (
        "attention-backward", "attention_backward", 4 * 36 * 5 * 2 * CUBE, 4 * 36 * 2 * 2 * CUBE,
        (3 * 4 + 2 * 2) * 128 * 1024 * 2 + 4 * 1024 * 4, (4 + 2 * 2) * 128 * 1024 * 2,
    ),
    # 16 tiles of v are turned beside the weights
    (
        "attention-two-pass", "attention_two_pass", 16 * 16 * 2 * 2 * CUBE, (16 * 16 + 16) * 2 * CUBE,
        3 * 128 * 2048 * 2, 128 * 2048 * 2,
    ),
    ("batched-strided-matmul", "batched_strided_matmul", 128 * 2 * CUBE, 0, 2 * CUBE * 2, CUBE * 2),
    ("complex-matmul", "complex_matmul", 4 * 2 * CUBE, 0, 4 * 128 * 128 * 4, 2 * 128 * 128 * 4),
    ("complex-matmul", "complex_multiply", 0, 0, 4 * 256 * 512 * 4, 2 * 256 * 512 * 4),
    # output channels are split over the cores: each loads all weights and all rows, and the bias of its channels for each item
    (
        "conv1d", "conv1d", 2 * 2 * 750 * 3 * 384 * 384, 0,
        2 * (3 * 384 * 384 * 2 + 2 * 384 * 1500 * 2) + 2 * 384 * 4, 2 * 384 * 750 * 2,
    ),
    # of each row the logits, the target's index and its logit
    ("cross-entropy", "cross_entropy", 0, 0, 512 * (32128 * 2 + 4 + 2), 2 * 512 * 4),
    # four blocks are not empty
    ("csr-matmul", "csr_matmul", 4 * 2 * 128 * 128 * 512, 0, 4 * 128 * (128 + 512) * 4, 256 * 512 * 4),
    ("depthwise-conv", "depthwise_conv", 0, 0, (8 * 512 * 2048 + 512 * 3) * 4, 8 * 512 * 2048 * 4),
    ("layernorm", "layernorm_by_sums", 0, 0, (1024 * 4096 + 2 * 128 * 4096) * 4, 1024 * 4096 * 4),
    ("mamba", "selective_scan", 0, 0, (2 * 256 * 2048 + 256 * 16 + 2 * 2 * 16 * 128 * 2048) * 4, 256 * 2048 * 4),
    # b anew for each of four row tiles
    ("matmul-fp32", "matmul_fp32", 2 * 512**3, 16 * 2 * CUBE, 5 * 512 * 512 * 4, 512 * 512 * 4),
    (
        "mx-matmul", "mx_matmul", 2 * 512 * 128 * 512, 0,  # four values in a uint32, and a scale for 32 of them
        (128 + 512) * (128 * 4 + 16), 128 * 512 * 4,
    ),
    ("nonzero-columns", "nonzero_columns", 0, 32 * 2 * CUBE, 4096 * 128 * 4, (4096 + 1) * 128 * 4),
    # columns are split over the cores: each normalises and turns all tokens; gamma and bias are spread over 32 of them
    (
        "norm-qkv", "norm_qkv", 2 * 32 * 4096 * 1536, 2 * 32 * 2 * 32 * 32 * 128,
        2 * 32 * 4096 * 2 + 4096 * 1536 * 2 + 32 * (2 * 4096 + 1536) * 2, 32 * 1536 * 2,
    ),
    # the values anew for each of ten column tiles
    (
        "output-projection", "output_projection", 2 * 512 * 1024 * 5120, 0,
        1024 * 5120 * 2 + 10 * 1024 * 512 * 2 + 128 * 5120 * 2, 512 * 5120 * 2,
    ),
    # the scales are spread over the partitions
    (
        "w8-matmul", "w8_matmul", 2 * 128 * 2048 * 4096, 16 * 2 * CUBE,
        128 * 2048 * 2 + 2048 * 4096 + 128 * 4096 * 4, 128 * 4096 * 2,
    ),
    ("associative-scan", "scan_sum", 0, 0, 2048 * 2048 * 4, 2048 * 2048 * 4),
    ("causal-mask", "causal_mask", 0, 0, 128 * 512 * 4, 128 * 512 * 4),
    ("elementwise-add", "add", 0, 0, 2 * 256 * 1024 * 2, 256 * 1024 * 2),
    ("elementwise-add", "add_in_place", 0, 0, 2 * 256 * 1024 * 2, 256 * 1024 * 2),
    ("exp-rows", "exp_rows", 0, 0, 300 * 512 * 4, 300 * 512 * 4),
    ("fold-rows", "fold", 0, 0, 4 * 25600 * 4, 4 * 25600 * 4),
    ("fold-rows", "unfold", 0, 0, 4 * 25600 * 4, 4 * 25600 * 4),
    ("partition-copy", "partition_copy", 0, 0, 2 * 128 * 8 * 4, 128 * 8 * 4),
    ("philox", "philox", 0, 0, 4 * 128 * 64 * 4, 4 * 128 * 64 * 4),
    ("sobol", "sobol", 0, 0, 128 * 16 * 4, 128 * 4096 * 4),
    ("views", "interleaved_heads", 0, 0, 128 * 1024 * 2, 128 * 1024 // 2 * 2),
    ("views", "outer_sum", 0, 0, 128 * (64 + 32) * 4, 128 * 64 * 32 * 4),
    ("views", "bytes_of", 0, 0, 128 * 512 * 4, 128 * 512 * 4),
    # a register's value from HBM is 4 bytes
    ("views", "select_expert", 0, 0, 128 * 512 * 2 + 4, 128 * 512 * 2),
    ("cache-write", "cache_write", 0, 0, 8 * 256 * 2 + 4, 8 * 256 * 2),
    ("cache-write", "cache_scatter", 0, 0, 256 * 2 + 4, 256 * 2),
    ("dynamic-add", "dynamic_add", 0, 0, 2 * 1024 * 2048 * 2 + 2 * 4, 1024 * 2048 * 2),  # on each of two cores
    # one rank: copied to where it may be sent from, exchanged, copied out
    ("collectives", "all_reduce_sum", 0, 0, 3 * 128 * 512 * 4, 3 * 128 * 512 * 4),
    ("collectives", "all_gather_rows", 0, 0, 3 * 128 * 512 * 4, 3 * 128 * 512 * 4),
    ("collectives", "gather_columns", 0, 0, 128 * 512 * 4, 128 * 512 * 4),  # the exchange is between tiles in SBUF
    ("collectives", "row_of_rank", 0, 0, 512 * 4, 512 * 4),
    # even and odd samples, turned, times two tables; the twiddles are spread over 128 partitions
    ("fft", "fft256", 2 * 2 * 2 * 64 * 128 * 128, 2 * 2 * 64 * 64 * 128, (64 * 256 + 2 * 128 * 128 + 2 * 128 * 128) * 4,
        2 * 64 * 256 * 4),
    # three products a token with a state of 128 x 128; q and k turned in chunks of 64; keys once more on one partition,
    # the decays spread over 128
    (
        "gated-delta-rule", "gated_delta_rule", 256 * 3 * 2 * 128 * 128, 2 * 4 * 2 * 64 * 64 * 128,
        (128 * 128 + (1 + 2 + 1) * 256 * 128 + 256 + 256 * 128) * 4, (256 * 128 + 128 * 128) * 4,
    ),
    (
        "gated-delta-rule", "gated_delta_step", 32 * 3 * 2 * 128 * 128, 2 * 2 * 32 * 32 * 128,
        (32 * 128 * 128 + (1 + 2 + 1) * 32 * 128 + 32 + 32 * 128) * 4, (32 * 128 + 32 * 128 * 128) * 4,
    ),
    # sums of squares times a square of ones; each core loads gamma (its half of it where the hidden dimension is split)
    ("rmsnorm-partitions", "rmsnorm_partitions", 2 * 128 * 128 * 512, 0, (512 * 4096 + 2 * 4096) * 2, 512 * 4096 * 2),
    (
        "rmsnorm-partitions", "rmsnorm_partitions_split", 2 * 2 * 128 * 128 * 64, 0,
        (64 * 8192 + 8192) * 2, 64 * 8192 * 2,
    ),
    # as router_topk; then the affinities of all experts as zeros, and eight of each token by their indices
    (
        "moe-routing", "router_topk_into", 2 * 256 * 3072 * 128, 2 * 24 * 2 * CUBE,
        256 * 3072 * 2 + 2 * (3072 * 128 * 2 + 128 * 128 * 4), 2 * 256 * 128 * 4 + 2 * 256 * 8 * 4,
    ),
    # places in the experts' lists by a product with a triangle of ones; zeros for 16 experts of 16 rows; 16 stores that name
    # a row for each token (those that are skipped are named too)
    (
        "moe-routing", "dispatch", 2 * 128 * 128 * 16, 0, 128 * 1024 * 2 + 128 * 16 * 4,
        16 * 16 * 1024 * 2 + 128 * 16 * 4 + 16 * 128 * 1024 * 2,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("slug", "name", "flops", "transposes", "read", "written"), HAND, ids=[row[1] for row in HAND])
def test_counts_as_counted_by_hand(slug: str, name: str, flops: int, transposes: int, read: int, written: int) -> None:
    found = document(timed(slug, name))
    assert (found["flops"], found["transpose_flops"]) == (flops, transposes)
    assert (found["hbm_read_bytes"], found["hbm_write_bytes"]) == (read, written)


def test_every_kernel_has_its_hand_count() -> None:
    assert sorted(row[:2] for row in HAND) == sorted(ALL)


class Each(Observer):
    """Looks at each instruction: the bytes of HBM operands of DMAs (those of one element from a register aside)."""

    def __init__(self) -> None:
        self.read = self.written = 0

    def instruction(self, record: Any) -> None:
        for operand in record.operands:
            if operand.region.endswith("hbm") and "index" not in operand.role:
                if operand.write:
                    self.written += operand.nbytes
                else:
                    self.read += operand.nbytes


FEW = (
    "adamw",
    "conv2d",
    "cumsum",
    "rmsnorm_quant",
    "select_expert",
    "dispatch",
    "mx_matmul",
    "complex_matmul",
    "fused_mlp",
)


@pytest.mark.parametrize(
    ("slug", "name"),
    [pytest.param(s, n, id=n, marks=() if n in FEW else pytest.mark.slow) for s, n in ALL],
)
def test_recorded_from_the_dispatcher_or_in_its_place_it_is_one_schedule(slug: str, name: str) -> None:
    each = Each()
    by_dispatcher = timed(slug, name, observers=(each,))
    if not by_dispatcher.shape_only:
        each.read = each.written = 0
        by_dispatcher = timed(slug, name, observers=(each,))
    in_its_place = timed(slug, name)
    assert in_its_place.schedule.start == by_dispatcher.schedule.start
    assert in_its_place.schedule.done == by_dispatcher.schedule.done
    figures = document(in_its_place)
    if in_its_place.shape_only:
        assert (figures["hbm_read_bytes"], figures["hbm_write_bytes"]) == (each.read, each.written)


def matmul(stage: str, depth: int, height: int, width: int, dtype: str) -> run.Timed:
    made, _ = running.load_kernel(f"{EXAMPLES / 'tiled-matmul' / 'kernel.py'}:matmul_{stage}")
    shapes = {"lhs_t": [depth, height], "rhs": [depth, width]}
    inputs = {name: running.make_input(name, {"shape": shape, "dtype": dtype}) for name, shape in shapes.items()}
    return run.timed(made, kwargs=inputs, target="trn2", shape_only=True)[1]


def test_each_stage_of_the_tiled_matmul_is_quicker_than_the_one_before() -> None:
    stages = ("loads_inside", "hoisted", "blocked_free", "blocked_all")
    times = [matmul(stage, 2048, 2048, 2048, "bfloat16").latency_s for stage in stages]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("sizes", [(2500, 2100, 600), (1024, 4096, 2100)])
def test_the_last_stage_takes_any_size(sizes: tuple[int, int, int]) -> None:
    depth, height, width = sizes
    assert document(matmul("blocked_all", *sizes, "float32"))["flops"] == 2 * depth * height * width
