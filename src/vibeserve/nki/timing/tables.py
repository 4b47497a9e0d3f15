"""The schedule as the tables of a profile: what a simulator can know, with the kernel's line on every row.

Columns that only a device or a compiler knows are null; docs/timing.md lists them. Times are whole ns
from the profile's start, the device's start-up before the first instruction included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vibeserve.nki.observe import Operand
from vibeserve.nki.timing import dma_tables, link_tables
from vibeserve.nki.timing.cost import compute
from vibeserve.nki.timing.ops import Op, free_elements, is_transpose, opcode_of, role
from vibeserve.nki.timing.run import Timed
from vibeserve.nki.timing.spilling import RELOAD, SAVE, kind_of
from vibeserve.nki.timing.transfers import PARTITIONS
from vibeserve.profiles import schema
from vibeserve.profiles.profile import Profile

if TYPE_CHECKING:
    import pyarrow as pa

_ENGINES = {"tensor": "Tensor", "vector": "Vector", "scalar": "Scalar", "gpsimd": "GpSimd", "sync": "Sync"}


def profile(timed: Timed, name: str) -> Profile:
    """The profile of a timed run."""
    start_ns = round(timed.params["overhead_ns.start"])
    loads = {index: (begin, end) for index, begin, end in timed.schedule.tables}
    rows: list[dict[str, Any]] = []
    for op in timed.ops:
        if op.index in loads:
            rows.append(_table_load(op, *loads[op.index], start_ns))
        rows.extend(_rows(op, timed, start_ns))
    keys = list(dict.fromkeys(key for row in rows for key in row))
    tables = {
        "Instruction": schema.build("Instruction", {k: [r.get(k) for r in rows] for k in keys}, rows=len(rows)),
        "DmaPacket": dma_tables.packets(timed, start_ns),
        "DmaPacketAggregated": dma_tables.transfers(timed, start_ns),
        "DmaQueuesInfo": dma_tables.queues(timed),
        "Flow": link_tables.flow(timed),
        "SemaphoreUpdate": link_tables.semaphores(timed, start_ns),
        "TensorInfo": _tensors(timed),
        "Throttle": _throttle(timed, start_ns),
        "Warning": schema.build(
            "Warning", {"message": ["simulated; not verified on hardware"], "category": ["simulation"]}, rows=1
        ),
        "Metadata": schema.build("Metadata", _metadata(timed, name), rows=1),
    }
    return Profile(name, tables, None, {"source": "simulator", "provenance": "simulated"})


def _ns(ps: int, start_ns: int) -> int:
    return ps // 1000 + start_ns


def _location(op: Op) -> str | None:
    return f"{op.place.file}:{op.place.line}" if op.place.line else None


def _partition_bytes(op: Op, region: str, write: bool) -> int:
    """Bytes of one partition, as the device tool counts the engines' rows."""
    return sum(free_elements(o) * o.itemsize for o in op.operands if o.region == region and o.write == write)


def _base(op: Op, timed: Timed, start_ns: int) -> dict[str, Any]:
    trigger = timed.schedule.moved[op.index].plan.trigger if op.index in timed.schedule.moved else op.engine
    start, end = _ns(op.start, start_ns), _ns(op.end, start_ns)
    return {
        "start_ts": start,
        "end_ts": end,
        "duration_ns": end - start,
        "engine": _ENGINES.get(trigger, "Sync"),
        "pcore_idx": op.core,
        "opcode": opcode_of(op),
        "operands": _operands(op),
        "id": op.index * 2 + 1,
        "pc": op.index,
        "bir_id": f"sg{op.core:04d}:{op.index}",
        "kernel_instruction_name": op.name,
        "evt_wait_time_ns": op.wait // 1000,
        "bir_debug_info_source_location": _location(op),
        "nki_source_location": _location(op),
        "hbm_read_bytes": op.hbm_read,
        "hbm_write_bytes": op.hbm_write,
        "sbuf_read_bytes": _partition_bytes(op, "sbuf", False),
        "sbuf_write_bytes": _partition_bytes(op, "sbuf", True),
        "psum_read_bytes": _partition_bytes(op, "psum", False),
        "psum_write_bytes": _partition_bytes(op, "psum", True),
        "spill_save_bytes": op.hbm_write if kind_of(op.plan) == SAVE else 0,
        "spill_reload_bytes": op.hbm_read if kind_of(op.plan) == RELOAD else 0,
    }


def _table_load(op: Op, begin: int, end: int, start_ns: int) -> dict[str, Any]:
    """The Instruction row of the function table that an activation needs."""
    return {
        "start_ts": _ns(begin, start_ns),
        "end_ts": _ns(end, start_ns),
        "duration_ns": _ns(end, start_ns) - _ns(begin, start_ns),
        "engine": "Scalar",
        "pcore_idx": op.core,
        "opcode": "ACT_TABLE_LOAD",
        "operands": "",
        "id": op.index * 2,
        "pc": op.index,
        "bir_id": f"sg{op.core:04d}:{op.index}-table",
        "bir_debug_info_source_location": _location(op),
        "nki_source_location": _location(op),
    }


def _rows(op: Op, timed: Timed, start_ns: int) -> list[dict[str, Any]]:
    """The Instruction rows of an op: one, or a weight load and a product."""
    row = _base(op, timed, start_ns)
    if op.index in timed.schedule.moved:
        row["dma_trigger_start_ts"], row["dma_trigger_end_ts"] = row["start_ts"], row["end_ts"]
        row["dma_wait_time_ns"] = (timed.schedule.moved[op.index].first - op.end) // 1000
        return [row]
    if row["psum_read_bytes"] and row["sbuf_write_bytes"]:
        row["psum_read_sbuf_write_bytes"] = row["psum_read_bytes"]
    if row["opcode"] == "ACTIVATE":
        act = op.params.get("op")
        row["scalar_activation_fn"] = str(getattr(act, "name", None) or getattr(act, "__name__", None) or act)
    if op.engine == "vector":
        row["performance_mode"] = {2: "2x", 4: "4x"}.get(compute(op.plan, timed.params, timed.target.number).speed)
    if op.engine != "tensor":
        return [row]
    flops = op.flops + op.transpose_flops
    doubled = 2 if not is_transpose(op) and (m := role(op, "moving")) is not None and m.dtype == "float32" else 1
    kind = "TRANSPOSE" if is_transpose(op) else "REGULAR"
    row |= {
        "tensor_instruction_type": kind,
        "tensor_elements": flops // 2,
        "raw_flops": flops * doubled,
        "adjusted_flops": flops * doubled,
        "flops_transpose": op.transpose_flops,
        "tensor_elements_transpose": op.transpose_flops // 2,
    }
    stationary = role(op, "stationary")
    if stationary is None:
        return [row]
    load_ns = max(1, round(free_elements(stationary) / 4 / timed.params["clock_ghz.tensor"]))
    load = _base(op, timed, start_ns) | {
        "opcode": "LDWEIGHTS",
        "id": op.index * 2,
        "end_ts": row["start_ts"] + load_ns,
        "duration_ns": load_ns,
        "operands": f"src={_pattern(stationary)} {_tile(stationary)} ",
        "tensor_instruction_type": kind,
        "psum_write_bytes": 0,
    }
    return [load, row]


def _pattern(operand: Operand) -> str:
    """dtype@address[strides][counts] as the device tool prints an access; PSUM begins at 0x2000000."""
    low, _ = operand.byte_range
    base = 0x2000000 if operand.region == "psum" else 0
    dims = list(zip(operand.shape, operand.strides, strict=True))[1:][::-1] or [(1, 1)]
    strides = ",".join(str(stride) for _, stride in dims)
    counts = ",".join(str(size) for size, _ in dims)
    return f"{operand.dtype}@{base + low:#x}[{strides}][{counts}]"


def _tile(operand: Operand) -> str:
    return f"{operand.shape[0]}*{free_elements(operand)}"


def _operands(op: Op) -> str:
    stationary, moving = role(op, "stationary"), role(op, "moving")
    parts = [f"{'dst' if o.write else 'src'}={_pattern(o)}" for o in op.operands if o is not stationary]
    if stationary is not None and moving is not None:
        return " ".join(["acc_flags=3", *sorted(parts, reverse=True), _tile(stationary)]) + " "
    data = role(op, "data")
    if op.engine == "tensor" and data is not None:  # a transpose: data against an identity of its partitions
        return " ".join(["acc_flags=3", *sorted(parts, reverse=True), f"{data.shape[0]}*{data.shape[0]}"]) + " "
    return " ".join(parts)


def _tensors(timed: Timed) -> pa.Table:
    """HBM tensors: read before written are inputs, shared ones that are written outputs, others internal."""
    loads: dict[int, list[int]] = {}
    written: dict[int, bool] = {}
    firsts: dict[int, Operand] = {}
    extents: dict[int, int] = {}
    for op in timed.ops:
        for operand in op.operands if op.hbm_read or op.hbm_write else ():
            if not operand.region.endswith("hbm"):
                continue
            firsts.setdefault(operand.storage, operand)
            extents[operand.storage] = max(extents.get(operand.storage, 0), operand.byte_range[1])
            written.setdefault(operand.storage, operand.write)
            if not operand.write and op.engine == "dma":
                loads.setdefault(operand.storage, []).append(operand.nbytes)
    rows: list[dict[str, Any]] = []
    for storage, first_written in written.items():
        operand = firsts[storage]
        kind = "IN" if not first_written else "OUT" if operand.region == "shared_hbm" else "INTERNAL"
        sizes = loads.get(storage, [])
        shape = timed.recorder.hbm_shapes.get(storage)  # a spill's copy has none
        rows.append(
            {
                "variable_name": operand.name or f"hbm{storage}",
                "type": kind,
                "format": operand.dtype,
                "shape": None if shape is None else f"[{' '.join(map(str, shape))}]",
                "size": extents[storage],
                "load_to_sbuf_total_size_bytes": sum(sizes),
                "load_to_sbuf_dma_count": len(sizes),
                "load_to_sbuf_avg_size_bytes": sum(sizes) // len(sizes) if sizes else 0,
            }
        )
        if rows[-1]["size"]:
            rows[-1]["load_to_sbuf_repeat_factor"] = sum(sizes) / extents[storage]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return schema.build("TensorInfo", {k: [r.get(k) for r in rows] for k in keys}, rows=len(rows))


def _throttle(timed: Timed, start_ns: int) -> pa.Table:
    """The Tensor Engine's changes of clock: k of n = 8 of 8 at full clock, 4 of 8 at half."""
    changes = timed.schedule.warm
    end = timed.schedule.latency_ps
    lasted = [
        (next((later for later, core, _ in changes[i + 1 :] if core == changes[i][1]), end) - changes[i][0]) // 1000
        for i in range(len(changes))
    ]
    return schema.build(
        "Throttle",
        {
            "duration": lasted,
            "k": [8 if warm else 4 for _, _, warm in changes],
            "n": [8] * len(changes),
            "timestamp": [_ns(when, start_ns) for when, _, _ in changes],
            "type": ["0" if warm else "1" for _, _, warm in changes],
            "pcore_idx": [core for _, core, _ in changes],
        },
        rows=len(changes),
    )


def _metadata(timed: Timed, name: str) -> dict[str, list[Any]]:
    params = timed.params
    total = round(params["overhead_ns.start"] + timed.schedule.latency_ps / 1000 + params["overhead_ns.end"])
    return {
        "profile_schema_version": [schema.SCHEMA_VERSION],
        "ntff_version": [0],
        "num_physical_cores": [timed.lnc],
        "vnc_enabled": [timed.lnc > 1],
        "first_hw_timestamp": [0],
        "last_hw_timestamp": [total],
        "first_ts": [""],
        "last_ts": [""],
        "dma_ddr_bandwidth": [params["dma.bytes_per_ns"] * params["dma.engines"] * 1e9],
        "num_dma_engines_per_neuroncore": [int(params["dma.engines"])],
        "hbm_ddr_bandwidth": [params["machine.hbm_bytes_per_ns"] * 1e9],
        "tensor_engine_num_rows": [128],
        "tensor_engine_num_cols": [128],
        "vector_engine_num_channels": [PARTITIONS],
        "scalar_engine_num_channels": [PARTITIONS],
        "gpsimd_engine_num_channels": [PARTITIONS],
        "tensor_engine_clock_freq": [params["clock_ghz.tensor"]],
        "vector_engine_clock_freq": [params["clock_ghz.vector"]],
        "scalar_engine_clock_freq": [params["clock_ghz.scalar"]],
        "gpsimd_engine_clock_freq": [params["clock_ghz.gpsimd"]],
        "neuroncore_clock_freq": [params["clock_ghz.sync"]],
        "ticks_per_nanosec": [1000],
        "instance_type": [timed.target.name],
        "profile_name": [name],
        "is_simulation": [True],
    }
