"""The stretch of time that an analysis looks at, on one physical core, with the rows inside it.

Times are merged and clipped to the window; bytes and FLOPs are counted whole, by where their row starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vibeserve.base.errors import InputError
from vibeserve.profiles import intervals, summary
from vibeserve.profiles.profile import Profile

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    from numpy.typing import NDArray

# Packets of the kernel itself: no instruction fetch or collectives, no 4-byte semaphore writes.
KERNEL_PACKETS = "coalesce(queue_type, 'unknown') <> 'instruction' AND transfer_bytes > 4"


@dataclass(frozen=True, slots=True)
class Window:
    """[start_ns, end_ns) on core `pcore` (None: the profile knows no cores), and what it was taken from."""

    start_ns: int
    end_ns: int
    pcore: int | None
    source: str
    whole: bool

    @property
    def total_ns(self) -> int:
        """Its length in ns."""
        return self.end_ns - self.start_ns

    @property
    def pair(self) -> tuple[int, int]:
        """(start, end) in ns."""
        return self.start_ns, self.end_ns

    def on_core(self, table: str = "") -> str:
        """SQL: the row is on this core."""
        if self.pcore is None:
            return "true"
        column = f"{table}.pcore_idx" if table else "pcore_idx"
        return f"coalesce({column}, 0) = {self.pcore}"

    def starts_in(self, table: str = "") -> str:
        """SQL: the row is on this core and starts in the window."""
        column = f"{table}.start_ts" if table else "start_ts"
        return f"{self.on_core(table)} AND {column} >= {self.start_ns} AND {column} < {self.end_ns}"


def choose(profile: Profile, window: tuple[int, int] | None = None, pcore: int | None = None) -> Window:
    """The window to look at: the caller's, else from the first to the last kernel DMA packet, else aggregated transfers,
    else the whole run. With several cores in the profile and none named, the busiest is taken.

    Raises InputError for an empty or backward window, an unknown core, and a profile without any timed row.
    """
    cores = _cores(profile)
    if pcore is not None and cores and pcore not in cores:
        raise InputError(f"profile '{profile.name}' has no physical core {pcore}", hint=f"it has {sorted(cores)}")
    core = pcore if pcore is not None else (max(cores, key=lambda key: cores[key]) if len(cores) > 1 else None)
    if window is not None:
        if window[0] >= window[1]:
            raise InputError(f"an empty window: {window[0]} to {window[1]} ns", hint="give --window START:END in ns")
        return Window(*window, core, "given", whole=False)
    held = Window(0, 0, core, "", whole=True)
    for table, condition, source in (
        ("DmaPacket", KERNEL_PACKETS, "first to last kernel DMA packet"),
        ("DmaPacketAggregated", "true", "first to last aggregated DMA transfer"),
        ("Instruction", "true", "first to last instruction"),
    ):
        if not profile.rows(table):
            continue
        with profile.connect([table]) as db:
            row = db.execute(
                f"SELECT min(start_ts), max(end_ts) FROM {table} WHERE {condition} AND {held.on_core()}"
            ).fetchone()
        if row and row[0] is not None and row[1] > row[0]:
            return Window(row[0], row[1], core, source, whole=True)
    total = profile.number("Summary", "total_time")
    if total:
        return Window(0, round(total * 1e9), core, "Summary.total_time", whole=True)
    raise InputError(
        f"profile '{profile.name}' has no instruction, DMA packet or run time: nothing to measure",
        hint="capture again with NEURON_RT_INSPECT_DEVICE_PROFILE=1",
    )


def _cores(profile: Profile) -> dict[int, int]:
    """How many rows each physical core has, in the table that tells."""
    for table in ("Instruction", "DmaPacket", "ActiveTime"):
        if profile.rows(table) and "pcore_idx" in profile.columns_of(table):
            busy = (
                "opcode IN ('MATMUL','LDWEIGHTS','ACTIVATE','TENSOR_TENSOR','DMA_DIRECT2D')"
                if table == "Instruction"
                else "true"
            )
            with profile.connect([table]) as db:
                rows = db.execute(
                    f"SELECT pcore_idx, count(*) FILTER ({busy}) FROM {table} WHERE pcore_idx IS NOT NULL GROUP BY 1"
                ).fetchall()
            if rows:
                return {int(core): int(count) for core, count in rows}
    return {}


@contextmanager
def database(profile: Profile, *names: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with these tables as views; a missing one is an empty view with the schema's columns."""
    with profile.connect(names) as connection:
        yield connection


def engine_active_ns(profile: Profile, window: Window) -> dict[str, int]:
    """Merged busy time of each engine within the window, in ns."""
    spans = summary.active_spans(profile, window.on_core())
    return {engine: intervals.union_ns(*span, window.pair) for engine, span in spans.items()}


def dma_spans(profile: Profile, window: Window) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and end of every DMA packet on the core, instruction fetch included (its busy time is the engine's too)."""
    return profile.spans("DmaPacket", window.on_core())
