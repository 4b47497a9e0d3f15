"""A profile as a Perfetto trace: engines, DMA queues, semaphores and counters as tracks, source lines as arguments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError, MissingError
from vibeserve.base.files import DiskFiles
from vibeserve.profiles.profile import Profile

_INSTRUCTIONS = """SELECT start_ts, end_ts, engine, coalesce(timeline_track, engine) AS track, opcode, operands,
  bir_debug_info_source_location AS source, evt_wait_time_ns, coalesce(pcore_idx, 0) AS core FROM Instruction ORDER BY start_ts, id"""
_TRANSFERS = """SELECT start_ts, end_ts, coalesce(queue_name, 'DMA') AS track, variable, transfer_bytes, source, dest,
  coalesce(pcore_idx, 0) AS core FROM DmaPacketAggregated ORDER BY start_ts, id"""
_PACKETS = """SELECT start_ts, end_ts, 'DMA engine ' || coalesce(CAST(engine_idx AS VARCHAR), queue_type, '?') AS track,
  queue_type, transfer_bytes, coalesce(pcore_idx, 0) AS core FROM DmaPacket ORDER BY start_ts, id"""
_SEMAPHORES = "SELECT timestamp, id, value FROM SemaphoreUpdate ORDER BY timestamp"
_COUNTERS = (
    ("DMA throughput (B/s)", "DmaUsage", "current_throughput"),
    ("HBM throughput (B/s)", "HbmUsage", "current_throughput"),
    ("SBUF in use", "SbufUsage", "avg_util_percent"),
    ("PSUM in use", "PsumUsage", "avg_util_percent"),
)


def write_trace(profile: Profile, path: Path) -> int:
    """Write a Perfetto trace file (open it at ui.perfetto.dev, or offline); returns the number of events.

    Raises MissingError without the `perfetto` package, InputError where the profile has no timed row.
    """
    try:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError:
        raise MissingError("the perfetto package is not installed", hint="pip install perfetto") from None
    builder = TraceProtoBuilder()
    writer = _Writer(builder)
    for row in _rows(profile, "Instruction", _INSTRUCTIONS):
        writer.slice(f"core {row['core']}", row["track"], row["opcode"], row)
    table, text = (
        ("DmaPacketAggregated", _TRANSFERS) if profile.rows("DmaPacketAggregated") else ("DmaPacket", _PACKETS)
    )
    for row in _rows(profile, table, text):
        writer.slice(
            f"core {row['core']}", row["track"], str(row.get("variable") or row.get("queue_type") or "DMA"), row
        )
    for row in _rows(profile, "SemaphoreUpdate", _SEMAPHORES):
        writer.counter(f"semaphore {row['id']}", row["timestamp"], float(row["value"]))
    for title, name, column in _COUNTERS:
        for row in _rows(profile, name, f"SELECT timestamp, {column} AS value FROM {name} ORDER BY timestamp"):
            if row["value"] is not None:
                writer.counter(title, row["timestamp"], float(row["value"]))
    if not writer.events:
        raise InputError(
            f"profile '{profile.name}' has no timed row: no timeline", hint="capture it with a device profile"
        )
    DiskFiles().write_bytes(path, builder.serialize())
    return writer.events


def _rows(profile: Profile, name: str, text: str) -> Iterator[dict[str, Any]]:
    if not profile.rows(name):
        return
    with profile.connect([name]) as db:
        cursor = db.execute(text)
        columns = [item[0] for item in cursor.description or []]
        while batch := cursor.fetchmany(10_000):
            for row in batch:
                yield dict(zip(columns, row, strict=True))


class _Writer:
    """Tracks by name, and the packets on them. Slices of one track may overlap (engines pipeline): each gets a lane."""

    def __init__(self, builder: Any):
        self._builder = builder
        self._tracks: dict[tuple[str, ...], int] = {}
        self._lanes: dict[tuple[str, str], list[int]] = {}
        self.events = 0

    def slice(self, group: str, track: str, name: str, row: dict[str, Any]) -> None:
        """One box from start_ts to end_ts, its other columns as arguments."""
        lanes = self._lanes.setdefault((group, track), [])
        lane = next((index for index, free in enumerate(lanes) if free <= row["start_ts"]), len(lanes))
        if lane == len(lanes):
            lanes.append(0)
        lanes[lane] = max(row["end_ts"], row["start_ts"])
        parent = self._track((group,))
        uuid = self._track((group, f"{track}" if lane == 0 else f"{track} (overlap {lane})"), parent)
        packet = self._packet(row["start_ts"], uuid, "TYPE_SLICE_BEGIN")
        packet.track_event.name = name
        for key, value in row.items():
            if key not in ("start_ts", "end_ts", "track", "core", "opcode") and value not in (None, ""):
                argument = packet.track_event.debug_annotations.add()
                argument.name = key
                if isinstance(value, int):
                    argument.int_value = value
                else:
                    argument.string_value = str(value)
        self._packet(max(row["end_ts"], row["start_ts"]), uuid, "TYPE_SLICE_END")
        self.events += 1

    def counter(self, name: str, timestamp: int, value: float) -> None:
        """One value of a counter track."""
        packet = self._packet(timestamp, self._track(("counter", name), counter=True), "TYPE_COUNTER")
        packet.track_event.double_counter_value = value
        self.events += 1

    def _packet(self, timestamp: int, uuid: int, kind: str) -> Any:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

        packet = self._builder.add_packet()
        packet.timestamp = timestamp
        packet.trusted_packet_sequence_id = 1
        packet.track_event.type = getattr(TrackEvent, kind)
        packet.track_event.track_uuid = uuid
        return packet

    def _track(self, key: tuple[str, ...], parent: int | None = None, counter: bool = False) -> int:
        if key not in self._tracks:
            self._tracks[key] = len(self._tracks) + 1
            packet = self._builder.add_packet()
            packet.track_descriptor.uuid = self._tracks[key]
            packet.track_descriptor.name = key[-1]
            if parent is not None:
                packet.track_descriptor.parent_uuid = parent
            if counter:
                packet.track_descriptor.counter.SetInParent()
        return self._tracks[key]
