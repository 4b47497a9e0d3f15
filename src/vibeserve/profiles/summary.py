"""Whole-profile metrics under the device tool's own names, computed from the tables where the profile has no Summary.

Times are seconds, sizes bytes. Every `*_percent` is a fraction in 0..1, as in the tool's own output. Formulas stand beside
each metric in data/tables.yaml (table Summary).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vibeserve.profiles import intervals
from vibeserve.profiles.profile import Profile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
_QUEUE_KINDS = {
    "static": ("instruction", "input", "output", "data"),
    "software_dynamic": ("software_dynamic",),
    "hardware_dynamic": ("hardware_dynamic",),
}
_QUEUE_GROUPS = {group: f"queue_type IN {(*kinds, '')!r}" for group, kinds in _QUEUE_KINDS.items()}
MATMULS = "('MATMUL', 'MATMUL_MX')"
# FLOPs of a MATMUL row: 2·K·M·N; the second rescaled to bf16 speed where the profile says so.
RAW_FLOPS = "coalesce(raw_flops, 2 * tensor_elements, 0)"
ADJUSTED_FLOPS = "coalesce(adjusted_flops, raw_flops, 2 * tensor_elements, 0)"
_SETUP = (
    "('EVENT_SEMAPHORE','EVENT_SEMAPHORE_RANGE_CLEAR','NOP','SET_ORDERING_MODE','NOTIFY','COMPARE_BRANCH','DRAIN','WRITE',"
    "'TENSOR_LOAD','MODIFY_POOL_CONFIG')"
)


def metrics(profile: Profile) -> dict[str, Any]:
    """The profile's metrics: its Summary table where it has one, what the tables give otherwise; `latency` is in ms."""
    stored = {key: value for key, value in profile.first("Summary").items() if value is not None}
    found = stored if stored.get("total_time") else {**compute(profile), **stored}
    total = found.get("total_time")
    return {"latency": total * 1e3 if total else None, **found}


def compute(profile: Profile) -> dict[str, Any]:
    """The metrics that the tables can give. What cannot be known is left out, never guessed."""
    out: dict[str, Any] = {}
    metadata = profile.first("Metadata")
    for part in (_instruction_metrics, _dma_metrics, _tensor_metrics):
        out.update(part(profile))
    out["event_count"] = profile.rows("SemaphoreUpdate") or None
    if out["event_count"] is not None:
        out["trace_count"] = sum(profile.rows(name) for name in ("Instruction", "SemaphoreUpdate", "DmaPacket"))
    out["total_time"] = total_time_s(profile)
    out.update(_active_times(profile))
    _ratios(out, metadata)
    return {key: value for key, value in out.items() if value is not None}


def total_time_s(profile: Profile) -> float | None:
    """Run time in seconds: what Metadata says, else from the first to the last timed row."""
    metadata = profile.first("Metadata")
    if metadata.get("last_hw_timestamp"):
        return float(metadata["last_hw_timestamp"] - (metadata.get("first_hw_timestamp") or 0)) / 1e9
    spans = [profile.spans(name) for name in ("Instruction", "DmaPacket") if profile.rows(name)]
    if not spans:
        return None
    return (max(int(ends.max()) for _, ends in spans) - min(int(starts.min()) for starts, _ in spans)) / 1e9


def _instruction_metrics(profile: Profile) -> dict[str, Any]:
    if not profile.rows("Instruction"):
        return {}
    out: dict[str, Any] = {}
    with profile.connect(["Instruction"]) as db:
        row = db.execute(
            f"""SELECT sum(CASE WHEN opcode IN {MATMULS} THEN {RAW_FLOPS} END) AS hardware_flops,
              sum(CASE WHEN opcode IN {MATMULS} AND tensor_instruction_type = 'TRANSPOSE' THEN {RAW_FLOPS} END) AS transpose_flops,
              sum(adjusted_flops) AS adjusted_hardware_flops, sum(adjusted_flops_transpose) AS adjusted_transpose_flops,
              sum(hbm_read_bytes) AS hbm_read_bytes, sum(hbm_write_bytes) AS hbm_write_bytes,
              sum(sbuf_read_bytes) AS sbuf_read_bytes, sum(sbuf_write_bytes) AS sbuf_write_bytes,
              sum(psum_read_bytes) AS psum_read_bytes, sum(psum_write_bytes) AS psum_write_bytes,
              sum(spill_save_bytes) AS spill_save_bytes, sum(spill_reload_bytes) AS spill_reload_bytes,
              sum(psum_read_sbuf_write_bytes) AS psum_read_sbuf_write_bytes,
              count(*) FILTER (psum_read_sbuf_write_bytes > 0) AS psum_read_sbuf_write_count,
              count(*) FILTER (opcode IN {MATMULS}) AS matmul_instruction_count,
              count(*) FILTER (opcode IN ('ACTIVATE', 'ACTIVATE_QUANTIZE')) AS activate_instruction_count,
              sum(duration_ns) FILTER (opcode IN ('ACTIVATE', 'ACTIVATE_QUANTIZE')) / 1e9 AS activate_instruction_time,
              (max(end_ts) FILTER (opcode NOT IN {_SETUP}) - min(start_ts) FILTER (opcode NOT IN {_SETUP})) / 1e9
                AS total_exec_time
            FROM Instruction"""
        )
        names = [item[0] for item in row.description or []]
        out.update(zip(names, row.fetchone() or (), strict=True))
        per_engine = db.execute(
            """SELECT lower(engine), count(*), sum(duration_ns) FILTER (opcode <> 'EVENT_SEMAPHORE') / 1e9
            FROM Instruction GROUP BY 1"""
        ).fetchall()
    counts = {engine: (count, time) for engine, count, time in per_engine}
    for engine in ENGINES:
        count, time = counts.get(engine, (0, 0.0))
        out[f"{engine}_engine_instruction_count"] = count
        out[f"{engine}_engine_instruction_time"] = time or 0.0
    for key in ("spill_save_bytes", "spill_reload_bytes", "transpose_flops", "hardware_flops"):
        out[key] = out[key] or 0
    return out


def _dma_metrics(profile: Profile) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if profile.rows("DmaPacket"):
        with profile.connect(["DmaPacket"]) as db:
            rows = db.execute(
                "SELECT queue_type, count(*), sum(transfer_bytes), sum(duration_ns) FROM DmaPacket GROUP BY 1"
            ).fetchall()
        packets = sum(row[1] for row in rows)
        size = sum(row[2] or 0 for row in rows)
        out["dma_packet_time"] = sum(row[3] or 0 for row in rows) / 1e9
        for group, kinds in _QUEUE_KINDS.items():
            count = sum(row[1] for row in rows if row[0] in kinds)
            moved = sum(row[2] or 0 for row in rows if row[0] in kinds)
            out[f"{group}_dma_packet_count"] = count
            out[f"{group}_dma_size"] = moved
            out[f"{group}_dma_packet_percent"] = count / packets
            out[f"{group}_dma_size_percent"] = moved / size if size else None
        out["dynamic_dma_packet_percent"] = (
            out["software_dynamic_dma_packet_percent"] + out["hardware_dynamic_dma_packet_percent"]
        )
        dynamic = out["software_dynamic_dma_size"] + out["hardware_dynamic_dma_size"]
        out["dynamic_dma_size_percent"] = dynamic / size if size else None
    if profile.rows("DmaPacketAggregated"):
        with profile.connect(["DmaPacketAggregated"]) as db:
            row = db.execute(
                "SELECT count(*), sum(transfer_bytes), sum(duration_ns) FROM DmaPacketAggregated"
            ).fetchone()
        count, size, lasted = row or (0, 0, 0)
        out["dma_transfer_count"] = count
        out["dma_transfer_total_bytes"] = int(size or 0)
        out["dma_transfer_time"] = (lasted or 0) / 1e9
        out["dma_transfer_average_bytes"] = (size or 0) / count if count else 0.0
    return out


def _tensor_metrics(profile: Profile) -> dict[str, Any]:
    rows = profile.table("TensorInfo", ["type", "size"]).to_pylist()
    if not rows:
        return {}

    def total(*kinds: str) -> int:
        return sum(row["size"] or 0 for row in rows if row["type"] in kinds)

    return {
        "inputs_and_weights_size_bytes": total("IN", "WEIGHT"),
        "inputs_outputs_weights_size_bytes": total("IN", "OUT", "WEIGHT"),
        "weight_size_bytes": total("WEIGHT"),
    }


def _active_times(profile: Profile) -> dict[str, Any]:
    import numpy as np

    out: dict[str, Any] = {}
    merged: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for engine, span in active_spans(profile).items():
        merged.append(intervals.merge(*span))
        out[f"{engine}_engine_active_time"] = intervals.union_ns(*merged[-1]) / 1e9
    if profile.rows("DmaPacket"):
        merged.append(intervals.merge(*profile.spans("DmaPacket")))
        out["dma_active_time"] = intervals.union_ns(*merged[-1]) / 1e9
        for group, condition in _QUEUE_GROUPS.items():
            out[f"{group}_dma_active_time"] = intervals.union_ns(*profile.spans("DmaPacket", condition)) / 1e9
    starts, ends = (np.concatenate([span[side] for span in merged]) for side in (0, 1))
    out["total_active_time"] = intervals.union_ns(starts, ends) / 1e9
    return out


def active_spans(profile: Profile, core: str = "true") -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Busy spans (ns) of each engine, the five of a NeuronCore always among them: ActiveTime where there is one, else the
    Instruction rows that are no pure waits. `core` is an SQL condition on the physical core."""
    source = "ActiveTime" if profile.rows("ActiveTime") else "Instruction"
    condition = core if source == "ActiveTime" else f"opcode <> 'EVENT_SEMAPHORE' AND {core}"
    names = dict.fromkeys(ENGINES)
    if profile.rows(source):
        with profile.connect([source]) as db:
            held = db.execute(
                f"SELECT DISTINCT lower(engine) FROM {source} WHERE engine IS NOT NULL ORDER BY 1"
            ).fetchall()
        names |= dict.fromkeys(str(row[0]) for row in held)
    quoted = {name: name.replace("'", "''") for name in names}
    return {name: profile.spans(source, f"lower(engine) = '{quoted[name]}' AND {condition}") for name in names}


def _ratios(out: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Fill in the metrics that are quotients of others (in place)."""
    total, dma = out.get("total_time"), out.get("dma_active_time")
    for key in [name for name in out if name.endswith("_engine_active_time")] + [
        "dma_active_time",
        "total_active_time",
    ]:
        if total and out.get(key) is not None:
            out[f"{key}_percent"] = out[key] / total
    for group in ("static", "software_dynamic", "hardware_dynamic"):
        if dma and f"{group}_dma_active_time" in out:
            out[f"{group}_dma_active_time_percent"] = out[f"{group}_dma_active_time"] / dma
    if dma and "software_dynamic_dma_active_time_percent" in out:
        out["dynamic_dma_active_time_percent"] = (
            out["software_dynamic_dma_active_time_percent"] + out["hardware_dynamic_dma_active_time_percent"]
        )
    hbm = (out.get("hbm_read_bytes") or 0) + (out.get("hbm_write_bytes") or 0)
    flops = (out.get("hardware_flops") or 0) - (out.get("transpose_flops") or 0)
    if hbm:
        out["mm_arithmetic_intensity"] = flops / hbm
    peak = tensor_peak_flops_per_s(metadata)
    bandwidth, cores = metadata.get("hbm_ddr_bandwidth"), metadata.get("num_physical_cores") or 1
    if peak and bandwidth:
        out["peak_flops_bandwidth_ratio"] = peak / bandwidth
    if peak and total:
        out["hfu_estimated_percent"] = (out.get("hardware_flops") or 0) / (peak * cores * total)
        out["mfu_estimated_percent"] = out["mfu_inst_estimated_percent"] = flops / (peak * cores * total)
        if bandwidth and hbm:
            ceiling = min(1.0, flops / hbm / (peak * cores / bandwidth))
            out["mfu_max_achievable_estimated_percent"] = out["mfu_inst_max_achievable_estimated_percent"] = ceiling
    if bandwidth and total:
        out["mbu_estimated_percent"] = hbm / total / bandwidth
        if out.get("inputs_and_weights_size_bytes") is not None:
            out["mbu_min_read_util_percent"] = out["inputs_and_weights_size_bytes"] / total / bandwidth
    clock = metadata.get("neuroncore_clock_freq")
    if clock and total:
        out["neuroncore_cycle_count"] = round(total * clock * 1e9)
        if dma is not None:
            out["dma_active_cycles"] = round(dma * clock * 1e9)


def tensor_peak_flops_per_s(metadata: dict[str, Any]) -> float | None:
    """Peak of one physical core's Tensor Engine at bf16: rows · columns · 2 · clock (GHz) · 1e9, FLOP/s."""
    rows, cols = metadata.get("tensor_engine_num_rows"), metadata.get("tensor_engine_num_cols")
    clock = metadata.get("tensor_engine_clock_freq")
    return rows * cols * 2 * clock * 1e9 if rows and cols and clock else None
