"""DMA: how a copy is cut into packets, which engines carry them, and which queue starts it."""

from __future__ import annotations

from dataclasses import dataclass

from vibeserve.nki.timing.ops import Op, Plan, describe
from vibeserve.nki.timing.params import Params

QUEUES = {
    "sync": "qSyncDynamicHW",
    "scalar": "qScalarDynamicHW",
    "gpsimd": "qGpSimdDynamic",
    "vector": "qVectorDynamicHW",
    "tensor": "qTensorDynamicHW",
}
PARTITIONS = 128


@dataclass(frozen=True, slots=True)
class Transfer:
    """One DMA instruction: for each engine that takes part its packets and ps of work; bytes in all and of a packet; `even`
    says that all 16 engines do the same; `own` are ps of work on a DMA engine of its own (gpsimd's)."""

    trigger: str
    software: bool
    load: bool
    engines: tuple[tuple[int, int, int], ...]
    bytes: int
    packet_bytes: int
    even: bool
    own: int = 0


def is_dma(op: Op | Plan) -> bool:
    """Whether the instruction moves data by the DMA engines."""
    return op.engine == "dma"


def _by_gpsimd(op: Op | Plan) -> bool:
    """Whether gpsimd's own DMA moves it (an exchange between cores that asks for it)."""
    return op.opcode == "sendrecv" and describe(op.params.get("dma_engine", "")) == "gpsimd_dma"


def trigger_of(op: Op | Plan) -> tuple[str, bool]:
    """(engine that starts it, whether by software descriptors): as asked for; else sync for loads, scalar for stores, and
    gpsimd where rows are chosen by an index."""
    mode = describe(op.params.get("dge_mode", ""))
    if _by_gpsimd(op) or mode == "swdge" or any(operand.indirect for operand in op.operands):
        return "gpsimd", True
    asked = describe(op.params.get("engine", ""))
    if asked in QUEUES:
        return asked, asked == "gpsimd"
    return ("scalar" if op.hbm_write else "sync"), False


def transfer(op: Op | Plan, params: Params) -> Transfer:
    """Cut a DMA instruction into packets. SBUF partition p is engine p // 8; between HBM and HBM all engines share."""
    trigger, software = trigger_of(op)
    if _by_gpsimd(op):
        size = next(o.nbytes for o in op.operands if o.role == "src")
        return Transfer(
            trigger, software, True, (), size, size, False, round(size * 1000 / params["dma.gpsimd_bytes_per_ns"])
        )
    load = not op.hbm_write
    operands = [o for o in op.operands if "index" not in o.role]
    moved = max((o.nbytes for o in operands), default=0)
    run = min((o.contiguous_bytes() for o in operands), default=0) or 1
    on_chip = next((o for o in operands if o.region in ("sbuf", "psum")), None)
    count = max(1, -(-moved // run))
    if software:
        limit = int(params["dma.software_packet_bytes"])
        run = min(limit, moved // count * max(1, limit // max(1, run))) if on_chip is None else min(limit, run)
        count = max(1, -(-moved // max(1, run)))
    efficiency = 1.0
    if op.opcode == "dma_transpose":
        efficiency = params["dma.transpose_efficiency"]
    elif op.opcode == "dma_compute":
        efficiency = params["dma.arithmetic_efficiency"]
    stall = params["dma.load_stall" if load else "dma.store_stall"]
    packet_ps = 1000 * (params["dma.packet_ns"] + moved / count / params["dma.bytes_per_ns"]) * stall / efficiency
    total = int(params["dma.engines"])
    if on_chip is None:
        shares = [(engine, count // total + (engine < count % total)) for engine in range(total)]
    else:
        first, last = on_chip.partitions
        each = PARTITIONS // total
        rows = [0] * total
        for partition in range(first, last):
            rows[partition // each % total] += 1
        per_row = count / max(1, last - first)
        shares = [(engine, max(1, round(taken * per_row))) for engine, taken in enumerate(rows) if taken]
    engines = tuple((engine, packets, round(packets * packet_ps)) for engine, packets in shares if packets)
    even = len(engines) == total and len({work for _, _, work in engines}) == 1
    return Transfer(trigger, software, load, engines, moved, max(1, moved // count), even)
