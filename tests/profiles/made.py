"""Profiles made by hand, with answers worked out on paper, and a bigger synthetic one."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.profiles import schema
from vibeserve.profiles.profile import Profile

# One trn2 core: 435 GB/s of DMA, 128 × 128 × 2 × 2.4 GHz = 78.6432 TFLOP/s.
METADATA = {
    "profile_schema_version": ["7.4.0"],
    "ntff_version": [6],
    "num_physical_cores": [1],
    "vnc_enabled": [False],
    "first_hw_timestamp": [0],
    "last_hw_timestamp": [13000],
    "first_ts": [""],
    "last_ts": [""],
    "dma_ddr_bandwidth": [435e9],
    "num_dma_engines_per_neuroncore": [16],
    "hbm_ddr_bandwidth": [716e9],
    "tensor_engine_num_rows": [128],
    "tensor_engine_num_cols": [128],
    "tensor_engine_clock_freq": [2.4],
    "neuroncore_clock_freq": [1.2],
    "ticks_per_nanosec": [1000],
    "is_simulation": [False],
}


def packets(*rows: tuple[int, int, int, str]) -> Any:
    """DmaPacket from (start, end, bytes, queue type)."""
    return schema.build(
        "DmaPacket",
        {
            "start_ts": [row[0] for row in rows],
            "end_ts": [row[1] for row in rows],
            "duration_ns": [row[1] - row[0] for row in rows],
            "id": list(range(len(rows))),
            "packet_idx": [0] * len(rows),
            "packet_aggregation_id": list(range(len(rows))),
            "read_bytes": [row[2] for row in rows],
            "write_bytes": [row[2] for row in rows],
            "transfer_bytes": [row[2] for row in rows],
            "throughput": [row[2] / max(1, row[1] - row[0]) * 1e9 for row in rows],
            "queue_type": [row[3] for row in rows],
            "crc": [0] * len(rows),
        },
        rows=len(rows),
    )


def active(*rows: tuple[str, int, int]) -> Any:
    """ActiveTime from (engine, start, end)."""
    return schema.build(
        "ActiveTime",
        {
            "engine": [row[0] for row in rows],
            "start_ts": [row[1] for row in rows],
            "end_ts": [row[2] for row in rows],
            "pcore_idx": [0] * len(rows),
            "duration_ns": [row[2] - row[1] for row in rows],
        },
        rows=len(rows),
    )


def tensors(*rows: tuple[str, str, int]) -> Any:
    """TensorInfo from (name, type, bytes)."""
    return schema.build(
        "TensorInfo",
        {"variable_name": [row[0] for row in rows], "type": [row[1] for row in rows], "size": [row[2] for row in rows]},
        rows=len(rows),
    )


def instruction(**values: Any) -> dict[str, Any]:
    """One Instruction row with what must be there."""
    row = {
        "start_ts": 0,
        "end_ts": 100,
        "engine": "Tensor",
        "opcode": "MATMUL",
        "operands": "",
        "id": 0,
        "pc": 0,
        "bir_id": "sg0000:1",
        "evt_wait_time_ns": 0,
        **values,
    }
    row["duration_ns"] = row["end_ts"] - row["start_ts"]
    return row


def instructions(rows: list[dict[str, Any]]) -> Any:
    """The Instruction table."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return schema.build("Instruction", {key: [row.get(key) for row in rows] for key in keys}, rows=len(rows))


def matmul(
    start: int, k: int, m: int, n: int, kind: str = "REGULAR", line: int | None = None, **more: Any
) -> dict[str, Any]:
    """A MATMUL row of a K × M × N tile."""
    return instruction(
        start_ts=start,
        end_ts=start + 264,
        operands=f"S[5] (Tensor)++@complete acc_flags=3 src=bfloat16@0x1000[1,0,0][{n},1,1] dst=0x2000000[1,0,0][{n},1,1] {k}*{m} ",
        tensor_instruction_type=kind,
        tensor_elements=k * m * n,
        raw_flops=2 * k * m * n,
        adjusted_flops=2 * k * m * n,
        bir_debug_info_source_location=f"/src/kernel.py:{line}" if line else None,
        **more,
    )


def worked_example() -> Profile:
    """12 µs on one trn2 core; every bound and gap of it is worked out in `test_bounds.py`."""
    rows = [matmul(4000 + 100 * i, 128, 128, 512, line=20, id=i) for i in range(12)]
    rows += [matmul(7500 + 100 * i, 128, 128, 128, "TRANSPOSE", line=31, id=100 + i) for i in range(8)]
    return Profile(
        "worked",
        {
            "Metadata": schema.build("Metadata", METADATA),
            "DmaPacket": packets(
                (1000, 5000, 1_048_576, "hardware_dynamic"),
                (3000, 6000, 524_288, "hardware_dynamic"),
                (8000, 10000, 262_144, "hardware_dynamic"),
                (9500, 10500, 131_072, "hardware_dynamic"),
                (11800, 13000, 262_144, "hardware_dynamic"),
                (500, 1500, 4_096, "instruction"),
                (6000, 6010, 4, "hardware_dynamic"),
            ),
            "ActiveTime": active(
                ("tensor", 4000, 7000), ("tensor", 7500, 11000), ("vector", 6500, 9000), ("scalar", 9000, 11500)
            ),
            "TensorInfo": tensors(("x", "IN", 1_048_576), ("w", "IN", 262_144), ("y", "OUT", 262_144)),
            "Instruction": instructions(rows),
        },
    )


def synthetic(instruction_count: int, packet_count: int, seed: int = 0) -> Profile:
    """A big profile in the real form: engines in turn, 16 DMA engines, 40 source lines; made in columns."""
    import pyarrow as pa

    rng = np.random.default_rng(seed)
    index = np.arange(instruction_count, dtype=np.int64)
    starts = index * 50
    engines = pa.DictionaryArray.from_arrays(pa.array(index % 4, pa.int32()), ["Tensor", "Vector", "Scalar", "GpSimd"])
    opcodes = pa.DictionaryArray.from_arrays(
        pa.array(index % 4, pa.int32()), ["MATMUL", "TENSOR_TENSOR", "ACTIVATE", "COPY"]
    )
    lines = pa.DictionaryArray.from_arrays(
        pa.array(index % 40, pa.int32()), [f"/src/kernel.py:{i + 10}" for i in range(40)]
    )
    operands = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(instruction_count, np.int32)),
        ["acc_flags=3 src=bfloat16@0x1000[1,0,0][512,1,1] dst=0x2000000[1,0,0][512,1,1] 128*128 "],
    )
    is_matmul = index % 4 == 0
    flops = np.where(is_matmul, 2 * 128 * 128 * 512, 0)
    table = schema.build(
        "Instruction",
        {
            "start_ts": starts,
            "end_ts": starts + 180,
            "duration_ns": np.full(instruction_count, 180),
            "engine": engines,
            "opcode": opcodes,
            "operands": operands,
            "id": index,
            "pc": index,
            "bir_id": pa.DictionaryArray.from_arrays(pa.array(np.zeros(instruction_count, np.int32)), ["sg0000:1"]),
            "evt_wait_time_ns": rng.integers(0, 40, instruction_count),
            "raw_flops": flops,
            "adjusted_flops": flops,
            "tensor_elements": flops // 2,
            "bir_debug_info_source_location": lines,
            "hbm_read_bytes": np.where(index % 8 == 3, 65536, 0),
            "hbm_write_bytes": np.zeros(instruction_count, np.int64),
        },
    )
    total = int(instruction_count * 50)
    begin = np.sort(rng.integers(0, max(1, total - 3000), packet_count))
    length = rng.integers(100, 3000, packet_count)
    number = np.arange(packet_count, dtype=np.int64)
    dma = schema.build(
        "DmaPacket",
        {
            "start_ts": begin,
            "end_ts": begin + length,
            "duration_ns": length,
            "id": number,
            "packet_idx": number % 16,
            "packet_aggregation_id": number // 16,
            "read_bytes": np.full(packet_count, 4096),
            "write_bytes": np.full(packet_count, 4096),
            "transfer_bytes": np.full(packet_count, 4096),
            "throughput": 4096 / length * 1e9,
            "queue_type": pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(packet_count, np.int32)), ["hardware_dynamic"]
            ),
            "crc": np.zeros(packet_count, np.int64),
            "engine_idx": number % 16 + 64,
        },
    )
    return Profile(
        "synthetic",
        {
            "Instruction": table,
            "DmaPacket": dma,
            "Metadata": schema.build("Metadata", {**METADATA, "last_hw_timestamp": [total]}),
            "TensorInfo": tensors(("x", "IN", 1 << 28), ("y", "OUT", 1 << 26)),
        },
    )


def matmul_profile() -> Profile:
    """A small matmul kernel with every table that people query: weight loads beside matmuls, loads and a store with lines."""
    rows: list[dict[str, Any]] = []
    edges: list[tuple[int, int]] = []
    moved: list[dict[str, Any]] = []
    number = 0
    for tile in range(4):
        start = 1000 + tile * 600
        for name, line in (("lhsT", 21), ("rhs", 22)):
            rows.append(
                instruction(
                    start_ts=start - 900, end_ts=start - 850, engine="Sync", opcode="DMA_DIRECT2D", id=number, operands="DMA",
                    hbm_read_bytes=32768, hbm_write_bytes=0, bir_debug_info_source_location=f"/src/matmul.py:{line}",
                )
            )  # fmt: skip
            moved.append(
                {
                    "start_ts": start - 840,
                    "end_ts": start - 300,
                    "variable": name,
                    "source": "[[INPUT]]",
                    "dest": "[SB]",
                }
            )
            edges.append((number, 10_000 + len(moved) - 1))
            number += 1
        shared = {"bir_id": f"sg0000:{tile}", "bir_debug_info_source_location": "/src/matmul.py:30"}
        rows.append(
            instruction(
                start_ts=start, end_ts=start + 105, opcode="LDWEIGHTS", id=number, tensor_instruction_type="REGULAR",
                operands="transpose_mode=DISABLED src=bfloat16@0x0[1,0,0][128,1,1] 128*128 ", **shared,
            )
        )  # fmt: skip
        rows.append(matmul(start + (60 if tile % 2 else 110), 128, 128, 512, id=number + 1) | shared)
        number += 2
    size = len(moved)
    aggregated = schema.build(
        "DmaPacketAggregated",
        {
            **{key: [row[key] for row in moved] for key in ("start_ts", "end_ts", "variable", "source", "dest")},
            "duration_ns": [row["end_ts"] - row["start_ts"] for row in moved],
            "id": [10_000 + i for i in range(size)],
            "transfer_bytes": [32768] * size,
            "write_num_sbuf_partitions": [128] * size,
            "queue_name": ["qSyncDynamicHW"] * size,
        },
        rows=size,
    )
    flow = schema.build(
        "Flow",
        {
            "in_id": [edge[0] for edge in edges],
            "out_id": [edge[1] for edge in edges],
            "in_table": ["Instruction"] * size,
            "out_table": ["DmaPacketAggregated"] * size,
            "dependency_type": ["DGE_TRIGGER"] * size,
        },
        rows=size,
    )
    return Profile(
        "my-kernel",
        {
            "Metadata": schema.build("Metadata", {**METADATA, "last_hw_timestamp": [4000]}),
            "Instruction": instructions(rows),
            "DmaPacket": packets(*((row["start_ts"], row["end_ts"], 32768, "hardware_dynamic") for row in moved)),
            "DmaPacketAggregated": aggregated,
            "Flow": flow,
            "TensorInfo": tensors(("lhsT", "IN", 65536), ("rhs", "IN", 131072), ("out", "OUT", 131072)),
        },
    )
