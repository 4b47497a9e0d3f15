"""DMA: how a copy is cut into packets, which engines carry them, and which queue starts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vibeserve.nki.observe import Operand
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
    says that all 16 engines do the same; `own` are ps of work on a DMA engine of its own (gpsimd's), `hbm` those of its
    bytes at the bandwidth that all cores share."""

    trigger: str
    software: bool
    load: bool
    engines: tuple[tuple[int, int, int], ...]
    bytes: int
    packet_bytes: int
    even: bool
    hbm: int
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


def transfer(op: Plan, params: Params) -> Transfer:
    """Cut a DMA instruction into packets. SBUF partition p is engine p // 8; between HBM and HBM all engines share."""
    trigger, software = trigger_of(op)
    hbm = round((op.hbm_read + op.hbm_write) * 1000 / params["machine.hbm_bytes_per_ns"])
    if _by_gpsimd(op):
        size = next(o.nbytes for o in op.operands if o.role == "src")
        own = round(size * 1000 / params["dma.gpsimd_bytes_per_ns"])
        return Transfer(trigger, software, True, (), size, size, False, hbm, own)
    load = not op.hbm_write
    operands = [o for o in op.operands if "index" not in o.role]
    moved = max((o.nbytes for o in operands), default=0)
    on_chip = next((o for o in operands if o.region in ("sbuf", "psum")), None)
    count = _packets(operands, software, load, params)
    efficiency = 1.0
    if op.opcode == "dma_transpose":
        efficiency = params["dma.transpose_efficiency"]
    elif op.opcode == "dma_compute":
        efficiency = params["dma.arithmetic_efficiency"]
    stall = params["dma.load_stall" if load else "dma.store_stall"]
    fixed = params["dma.packet_ns" if load or not software else "dma.software_store_packet_ns"]
    packet_ps = 1000 * (fixed + moved / count / params["dma.bytes_per_ns"]) * stall / efficiency
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
    return Transfer(trigger, software, load, engines, moved, max(1, moved // count), even, hbm)


def _packets(operands: Sequence[Operand], software: bool, load: bool, params: Params) -> int:
    """The packets of a transfer: one for each contiguous run of either side (a cast changes their bytes, not their number).
    Software descriptors cut runs over their limit, and for a load join what an engine finds contiguous in HBM, up to it."""
    if not operands:
        return 1
    runs = max(-(-o.nbytes // max(1, o.contiguous_bytes())) for o in operands)
    if not software:
        return max(1, runs)
    limit, moved = int(params["dma.software_packet_bytes"]), max(o.nbytes for o in operands)
    source = next((o for o in operands if not o.write and o.region.endswith("hbm")), None)
    target = next((o for o in operands if o.region in ("sbuf", "psum")), None)
    if load and source is not None and target is not None and not source.indirect and not target.indirect:
        each = PARTITIONS // int(params["dma.engines"]) * target.nbytes // target.shape[0]
        return max(1, -(-source.nbytes // min(limit, each, source.contiguous_bytes())))
    return max(1, runs, -(-moved // limit))
