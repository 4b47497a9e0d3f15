"""The page for a person: the lines that hold the kernel up, where it stands on the roofline, and what to try."""

from __future__ import annotations

from typing import Any

from vibeserve.nki.timing.run import Timed, peak_flops_per_s

_MANY_WAITS = 0.25
_FAR_FROM = 0.5  # a limit that is a smaller share of the latency does not hold the kernel up


def lines_of_interest(run: Timed, most: int = 8) -> list[dict[str, Any]]:
    """Kernel lines by the time that they keep an engine busy (seconds, summed over the cores), longest first."""
    recorder, made = run.schedule.recorder, run.schedule
    sums: dict[tuple[Any, str], list[float]] = {}
    for index, (site, plan) in enumerate(zip(recorder.sites, recorder.plans, strict=True)):
        moved = made.moved.get(index) if plan.engine == "dma" else None
        lasted = (moved.last - moved.first) if moved else (made.end[index] - made.start[index])
        row = sums.setdefault((site, plan.engine), [0.0, 0.0, 0, index])
        row[0] += lasted * 1e-12
        row[1] += made.wait[index] * 1e-12
        row[2] += 1
    found: dict[tuple[str, int, str], list[float]] = {}
    for (_, engine), (busy, waited, count, first) in sums.items():
        place = recorder.place(int(first))
        row = found.setdefault((place.file, place.line, engine), [0.0, 0.0, 0])
        row[0], row[1], row[2] = row[0] + busy, row[1] + waited, row[2] + count
    ordered = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))[:most]
    return [
        {"file": file, "line": line, "engine": engine, "busy_s": busy, "wait_s": waited, "count": int(count)}
        for (file, line, engine), (busy, waited, count) in ordered
    ]


def roofline(run: Timed, found: dict[str, Any]) -> dict[str, Any]:
    """Where the kernel stands: least seconds for its matmuls at the peak of the cores used and for its HBM bytes at the DMA
    engines' full rate, the intensity at which both are alike (FLOP/B), which of them binds, and its share of the latency."""
    engines = run.lnc * run.params["dma.engines"] * run.params["dma.bytes_per_ns"] * 1e9
    memory_rate = run.params["machine.hbm_bytes_per_ns"] * 1e9
    bandwidth = min(engines, memory_rate)
    peak = peak_flops_per_s(run)
    compute, memory = found["flops"] / peak, (found["hbm_read_bytes"] + found["hbm_write_bytes"]) / bandwidth
    least = max(compute, memory)
    return {
        "compute_s": compute,
        "memory_s": memory,
        "bandwidth_bytes_per_s": bandwidth,
        "bandwidth_is": (
            "what HBM gives two cores"
            if memory_rate < engines
            else "the DMA engines' rate, as in `profile bounds` (`vibeserve roofline`: a core's share of HBM)"
        ),
        "ridge": peak / bandwidth,
        "bound": "compute" if compute > memory else "memory",
        "share": least / found["latency_s"] if found["latency_s"] else None,
    }


def advice(run: Timed, found: dict[str, Any]) -> list[str]:
    """What the figures suggest, each with the figure it rests on; nothing where they suggest nothing."""
    said = []
    engines = {name: row["utilization"] for name, row in found["engines"].items()}
    busiest = max(engines, key=lambda name: engines[name])
    if engines[busiest] < 0.6 and found["latency_s"]:
        said.append(
            f"no engine is busy for more than {engines[busiest]:.0%} of the time ({busiest}): instructions wait for one "
            "another. Work on independent tiles between a load and its use, or use two buffers."
        )
    elif busiest != "tensor":
        said.append(
            f"the {busiest} engine is busy for {engines[busiest]:.0%} of the time: it is what bounds the kernel."
        )
    sizes = [(moved.plan.packet_bytes, moved.plan.bytes) for moved in run.schedule.moved.values() if moved.plan.bytes]
    total = sum(size for _, size in sizes)
    small = sum(size for packet, size in sizes if packet < 512)
    if total and small / total > _MANY_WAITS:
        said.append(
            f"{small / total:.0%} of the DMA bytes go in packets under 512 bytes, whose cost is mostly fixed: make the "
            "contiguous run longer (2 KiB or more)."
        )
    flops, transposes = found["flops"], found["transpose_flops"]
    if transposes > 0.1 * max(flops, 1):
        said.append(
            f"transposes are {transposes / (flops + transposes):.0%} of the Tensor Engine's work: load with dma_transpose, "
            "or keep the operand in the layout that the next matmul takes."
        )
    cold = any(plan.engine == "tensor" for plan in run.recorder.forms)
    if cold and not run.schedule.warm and run.params["clock_ghz.tensor_cold"] < run.params["clock_ghz.tensor"]:
        said.append(
            "the Tensor Engine never leaves half clock: it is not busy for a whole window of "
            f"{run.params['tensor_warmup.window_ns'] / 1000:.1f} µs."
        )
    return said


def _spills(found: dict[str, Any]) -> list[str]:
    if not found.get("spill_save_bytes") and not found.get("spill_reload_bytes"):
        return []
    return [
        f"spills       {found['spill_save_bytes']:,} B saved, {found['spill_reload_bytes']:,} B loaded again (in the HBM bytes)"
    ]


def _position(found: dict[str, Any]) -> list[str]:
    place = found.get("roofline")
    if place is None:
        return []
    bound, ridge = place["bound"], place["ridge"]
    compute, memory = (f"{place[name] * 1e6:,.1f} µs" for name in ("compute_s", "memory_s"))
    rate = f"{place['bandwidth_bytes_per_s'] / 1e9:,.0f} GB/s, {place['bandwidth_is']}"
    work = f"at least {compute} of matmuls, {memory} of HBM bytes at {rate}"
    lines = [f"roofline     {bound}-bound (ridge {ridge:,.1f} FLOP/B): {work}"]
    if place["share"] is None:
        return lines
    used_by = {name: row["utilization"] for name, row in found["engines"].items() if name != "sync"}
    busiest = max(used_by, key=lambda name: used_by[name])
    used, limit = used_by[busiest], f"that limit is {place['share']:.0%} of the latency"
    limited = "tensor" if bound == "compute" else "dma"
    if place["share"] >= _FAR_FROM and (busiest == limited or used <= place["share"]):
        said = f"mostly that limit, {place['share']:.0%} of the latency; the busiest engine is {busiest}, {used:.0%} of the time"
    elif used >= _FAR_FROM:
        said = f"the {busiest} engine, busy for {used:.0%} of the time and waiting for the rest ({limit})"
    else:
        said = f"waiting (serialization): the busiest engine, {busiest}, works for {used:.0%} of the time ({limit})"
    return [*lines, f"held up by   {said}"]


def _schedules(found: dict[str, Any]) -> list[str]:
    both = found.get("latency_s_by_schedule")
    if both is None:
        return []
    kept = " (it keeps program order: its own order is slower)" if found.get("list_keeps_program_order") else ""
    return ["schedules    " + ", ".join(f"{mode} {latency * 1e6:,.1f} µs" for mode, latency in both.items()) + kept]


def _total(found: dict[str, Any]) -> list[str]:
    if "total_time_s" not in found:
        return []
    total, around = found["total_time_s"] * 1e6, (found["total_time_s"] - found["latency_s"]) * 1e6
    summary = f"{total:,.1f} µs in a profile's summary, with {around:,.1f} µs of start and end around it"
    return [f"total        {summary}; `profile bounds` counts from the first DMA packet to the last"]


def text(found: dict[str, Any]) -> list[str]:
    """The card as lines of text, from the document of `nki simulate --timing`."""
    share = found["mfu"]
    lines = [
        f"latency      {found['latency_s'] * 1e6:,.1f} µs (simulated; not verified on hardware; schedule: {found['schedule']})",
        *_total(found),
        *_schedules(found),
        f"work         {found['flops']:,} FLOP of matmuls, {found['transpose_flops']:,} of transposes",
        f"HBM          {found['hbm_read_bytes']:,} B read, {found['hbm_write_bytes']:,} B written",
        *_spills(found),
        f"intensity    {found['intensity']:,.1f} FLOP/B" if found["intensity"] is not None else "intensity    –",
        *_position(found),
        f"MFU          {share:.1%} of the bf16 peak of the cores used" if share is not None else "MFU          –",
        "engines      " + ", ".join(f"{name} {row['utilization']:.0%}" for name, row in found["engines"].items()),
        f"memory       SBUF {found['sbuf_peak_bytes_per_partition']:,} B a partition at most, PSUM {found['psum_peak_banks']} banks",
    ]
    for row in found.get("lines", [])[:5]:
        place = f"{row['file'].rpartition('/')[2]}:{row['line']}"
        lines.append(
            f"line         {place}: {row['engine']} {row['busy_s'] * 1e6:,.1f} µs in {row['count']} instructions"
        )
    lines.extend(f"try          {said}" for said in found.get("advice", []))
    for row in found.get("sensitivity", [])[:5]:
        lines.append(
            f"leans on     {row['constant']} ({row['mark']}): {row['halved'] * 100:+.1f} % halved, {row['doubled'] * 100:+.1f} % doubled"
        )
    return lines
