"""The DMA tables of a profile: packets, transfers, queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vibeserve.nki.observe import Operand
from vibeserve.nki.timing.link_tables import DMA_ID, semaphores_of
from vibeserve.nki.timing.ops import Op
from vibeserve.nki.timing.run import Timed
from vibeserve.nki.timing.spilling import RELOAD, SAVE, kind_of
from vibeserve.nki.timing.transfers import QUEUES
from vibeserve.profiles import schema

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_ENGINE = 64
PACKET_ROWS = 2_000_000  # more packets than this are summed up by transfer and engine


def packets(timed: Timed, start_ns: int) -> pa.Table:
    """One row per packet; one per transfer and engine where there would be more than two million."""
    import numpy as np

    moved = timed.schedule.moved
    spans = [(index, *span) for index, found in moved.items() for span in found.spans]
    total = sum(span[4] for span in spans)
    columns: dict[str, list[Any]] = {name: [] for name in ("start", "end", "bytes", "packet", "op", "engine")}
    for index, engine, begin, end, packets in spans:
        pieces = packets if total <= PACKET_ROWS else 1
        edges = np.linspace(begin, end, pieces + 1).astype(np.int64) // 1000 + start_ns
        columns["start"].extend(edges[:-1].tolist())
        columns["end"].extend(edges[1:].tolist())
        columns["bytes"].extend([moved[index].plan.packet_bytes * packets // pieces] * pieces)
        columns["packet"].extend(range(pieces))
        columns["op"].extend([index] * pieces)
        columns["engine"].extend([engine + _FIRST_ENGINE] * pieces)
    lasted = [max(0, end - start) for start, end in zip(columns["start"], columns["end"], strict=True)]
    plans = [moved[index].plan for index in columns["op"]]
    size = len(lasted)
    return schema.build(
        "DmaPacket",
        {
            "start_ts": columns["start"],
            "end_ts": columns["end"],
            "duration_ns": lasted,
            "pcore_idx": [timed.ops[index].core for index in columns["op"]],
            "id": list(range(size)),
            "packet_idx": columns["packet"],
            "packet_aggregation_id": [DMA_ID + index for index in columns["op"]],
            "engine_idx": columns["engine"],
            "read_bytes": columns["bytes"],
            "write_bytes": columns["bytes"],
            "transfer_bytes": columns["bytes"],
            "throughput": [b / max(1, t) * 1e9 for b, t in zip(columns["bytes"], lasted, strict=True)],
            "queue_type": ["software_dynamic" if plan.software else "hardware_dynamic" for plan in plans],
            "queue_name": [QUEUES[plan.trigger] for plan in plans],
            "queue_idx": [list(QUEUES).index(plan.trigger) for plan in plans],
            "variable": [_variable(timed.ops[index]) for index in columns["op"]],
            "crc": [0] * size,
        },
        rows=size,
    )


def _variable(op: Op) -> str:
    for operand in op.operands:
        if operand.region.endswith("hbm"):
            return operand.name or f"hbm{operand.storage}"
    return op.operands[0].name if op.operands else ""


def _side(op: Op, write: bool) -> Operand | None:
    return next((o for o in op.operands if o.write == write and "index" not in o.role), None)


def _space(operand: Operand | None) -> str:
    if operand is None:
        return "unknown"
    return {"sbuf": "[SB]", "psum": "[PSUM]"}.get(operand.region, "[OUTPUT]" if operand.write else "[INPUT]")


def transfers(timed: Timed, start_ns: int) -> pa.Table:
    """One row per transfer."""
    rows = []
    semaphores = semaphores_of(timed)
    for index, found in timed.schedule.moved.items():
        op, plan = timed.ops[index], found.plan
        source, target = _side(op, False), _side(op, True)
        start, end = found.first // 1000 + start_ns, found.last // 1000 + start_ns
        row: dict[str, Any] = {
            "start_ts": start,
            "end_ts": end,
            "duration_ns": end - start,
            "id": DMA_ID + index,
            "pcore_idx": op.core,
            "block_id": index,
            "queue_idx": list(QUEUES).index(plan.trigger),
            "queue_name": QUEUES[plan.trigger],
            "queue_type": "software_dynamic" if plan.software else "hardware_dynamic",
            "op": op.opcode,
            "variable": _variable(op),
            "read_bytes": plan.bytes,
            "write_bytes": plan.bytes,
            "transfer_bytes": plan.bytes,
            "throughput": plan.bytes / max(1, end - start) * 1e9,
            "source": f"[{'[VIRTUAL]' if kind_of(op.plan) == RELOAD else _space(source)}]",  # a nested list, unlike dest
            "dest": "[VIRTUAL]" if kind_of(op.plan) == SAVE else _space(target),
            "semaphore_id": semaphores[index][0],
            "is_transpose_mode": op.opcode == "dma_transpose",
            "trigger": index * 2 + 1,
        }
        for side, operand in (("read", source), ("write", target)):
            row |= _described(side, operand)
        rows.append(row)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return schema.build("DmaPacketAggregated", {k: [r.get(k) for r in rows] for k in keys}, rows=len(rows))


def _described(side: str, operand: Operand | None) -> dict[str, Any]:
    on_chip = operand is not None and operand.region in ("sbuf", "psum")
    first, last = operand.partitions if operand is not None and on_chip else (0, 0)
    return {
        f"{side}_sbuf_partitions": f"{first}-{last - 1}" if on_chip else "",
        f"{side}_num_sbuf_partitions": last - first,
        f"{side}_shape": str(list(operand.shape)) if operand else "",
        f"{side}_offset": str(operand.byte_range[0]) if operand else "",
        f"{side}_steps": str(list(operand.strides)) if operand else "",
    }


def queues(timed: Timed) -> pa.Table:
    """The queues that moved anything."""
    used = sorted({(timed.ops[i].core, m.plan.trigger, m.plan.software) for i, m in timed.schedule.moved.items()})
    return schema.build(
        "DmaQueuesInfo",
        {
            "name": [QUEUES[trigger] for _, trigger, _ in used],
            "type": ["software_dynamic" if software else "hardware_dynamic" for _, _, software in used],
            "pcore_idx": [core for core, _, _ in used],
            "idx": [list(QUEUES).index(trigger) for _, trigger, _ in used],
            "engine_idx": [-1] * len(used),
            "axi_port": [-1] * len(used),
            "dram_channel": [-1] * len(used),
        },
        rows=len(used),
    )
