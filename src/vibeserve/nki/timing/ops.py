"""What the model schedules: the instructions of one run, each with its engine, its places in memory, and its work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vibeserve.nki.context import Core, Session
from vibeserve.nki.errors import Place
from vibeserve.nki.memory import Storage
from vibeserve.nki.observe import Observer, Operand, Record


class Box(NamedTuple):
    """[row, row_end) × [low, high) of a storage: partitions × bytes on chip, rows × bytes of a row in HBM."""

    row: int
    row_end: int
    low: int
    high: int

    def overlaps(self, other: Box) -> bool:
        """Whether they have a byte in common."""
        return self.row < other.row_end and other.row < self.row_end and self.low < other.high and other.low < self.high

    def covers(self, other: Box) -> bool:
        """Whether all of `other` is inside."""
        return (
            self.row <= other.row
            and self.row_end >= other.row_end
            and self.low <= other.low
            and self.high >= other.high
        )


class Access(NamedTuple):
    """One operand of an instruction: storage, place in it, whether it is written."""

    storage: int
    box: Box
    write: bool


@dataclass(slots=True)
class Op:
    """One instruction. `deps` are filled in by the dependency pass; times (ps) by the scheduler."""

    index: int
    core: int
    engine: str
    opcode: str
    record: Record
    accesses: tuple[Access, ...]
    flops: int = 0
    transpose_flops: int = 0
    hbm_read: int = 0
    hbm_write: int = 0
    deps: list[int] = field(default_factory=list)
    start: int = 0
    end: int = 0
    done: int = 0
    wait: int = 0

    @property
    def place(self) -> Place:
        """The kernel's line."""
        return self.record.place

    def form(self) -> tuple[object, ...]:
        """What its cost depends on: two ops of one form cost the same."""
        record = self.record
        operands = [
            (
                o.role,
                o.region,
                o.dtype,
                o.shape,
                o.strides,
                o.dynamic,
                o.indirect,
                o.region == "sbuf" and o.partitions[0],
            )
            for o in record.operands
        ]
        return (record.opcode, record.engine, *operands, *[(key, str(value)) for key, value in record.params.items()])


@dataclass(slots=True)
class Tile:
    """An allocation on chip: bytes that it takes in each partition, and its line."""

    core: int
    region: str
    bytes: int
    name: str
    place: Place
    fixed: bool


class Recorder(Observer):
    """Collects the ops of one launch."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.tiles: dict[int, Tile] = {}
        self.rows: dict[int, int] = {}
        self.hbm: dict[int, Operand] = {}
        self.hbm_sizes: dict[int, int] = {}
        self.session: Session | None = None

    def started(self, session: Session) -> None:
        self.__init__()  # type: ignore[misc]
        self.session = session

    def allocated(self, core: Core, storage: Storage) -> None:
        if storage.region.on_chip:
            self.tiles[storage.number] = Tile(
                core.index,
                storage.region.value,
                storage.bytes_per_partition,
                storage.label(),
                storage.place,
                storage.address is not None,
            )

    def instruction(self, record: Record) -> None:
        accesses = tuple(Access(o.storage, self._box(o), o.write) for o in record.operands)
        op = Op(len(self.ops), record.core, record.engine, record.opcode, record, accesses)
        count(op)
        self.ops.append(op)

    def _box(self, operand: Operand) -> Box:
        low, high = operand.byte_range
        if operand.region in ("sbuf", "psum"):
            first, last = operand.partitions
            return Box(first, last, low, high)
        if operand.storage not in self.hbm:
            self.hbm[operand.storage] = operand
        self.hbm_sizes[operand.storage] = max(self.hbm_sizes.get(operand.storage, 0), high)
        pitch = self.rows.get(operand.storage)
        if pitch is None:
            pitch = self.rows[operand.storage] = _pitch(operand)
        return _rows(operand, pitch, low, high)


def _pitch(operand: Operand) -> int:
    """Bytes from one row to the next of an HBM tensor, by the first access to it: the widest stride over the innermost."""
    strides = [stride for size, stride in zip(operand.shape, operand.strides, strict=True) if size > 1 and stride > 1]
    return (min(strides) if strides else 0) * operand.itemsize


def _rows(operand: Operand, pitch: int, low: int, high: int) -> Box:
    """The rows and columns of an access, where it stays within columns; else every column of its rows."""
    if not pitch:
        return Box(0, 1, low, high)
    column, row = low % pitch, low // pitch
    wide = tall = 0
    for size, stride in zip(operand.shape, operand.strides, strict=True):
        if size > 1:
            reach = (size - 1) * stride * operand.itemsize
            if stride * operand.itemsize % pitch == 0:
                tall += reach // pitch
            else:
                wide += reach
    if column + wide + operand.itemsize <= pitch:
        return Box(row, row + tall + 1, column, column + wide + operand.itemsize)
    return Box(low // pitch, -(-high // pitch), 0, pitch)


def role(op: Op, name: str) -> Operand | None:
    """The operand of that role, or None."""
    for operand in op.record.operands:
        if operand.role == name:
            return operand
    return None


def free_elements(operand: Operand | None) -> int:
    """Elements in each partition (N of the formulas); 0 for None."""
    return operand.elements // operand.shape[0] if operand is not None else 0


def is_transpose(op: Op) -> bool:
    """Whether a Tensor Engine instruction only moves data."""
    return op.opcode == "nc_transpose" or bool(op.record.params.get("is_transpose"))


def count(op: Op) -> None:
    """Fill in the FLOPs of a matmul (2·K·M·N; a transpose of [P, F] is 2·P·P·F, counted apart) and the HBM bytes of a DMA."""
    if op.engine == "tensor":
        _count_matmul(op)
    for operand in op.record.operands:
        if operand.region.endswith("hbm") and "index" not in operand.role:
            if operand.write:
                op.hbm_write += operand.nbytes
            else:
                op.hbm_read += operand.nbytes


def _count_matmul(op: Op) -> None:
    stationary, moving = role(op, "stationary"), role(op, "moving")
    if stationary is not None and moving is not None:
        flops = 2 * stationary.shape[0] * free_elements(stationary) * free_elements(moving)
        if op.opcode == "nc_matmul_mx":
            flops *= 4
        if is_transpose(op):
            op.transpose_flops = flops
        else:
            op.flops = flops
    elif op.opcode == "nc_transpose":
        data = role(op, "data")
        if data is not None:
            op.transpose_flops = 2 * data.shape[0] * data.elements


def opcode_of(op: Op) -> str:
    """The device tool's name for the instruction."""
    special: dict[str, str] = {
        "nc_matmul": "MATMUL", "nc_matmul_mx": "MATMUL_MX", "activation": "ACTIVATE", "activation_reduce": "ACTIVATE",
        "activate2": "ACTIVATE", "tensor_copy": "COPY", "dma_copy": "DMA_DIRECT2D",
    }  # fmt: skip
    if op.opcode == "nc_transpose":
        return "MATMUL" if op.engine == "tensor" else "TRANSPOSE"
    if op.opcode == "tensor_copy":
        source, target = role(op, "src"), role(op, "dst")
        return "CAST" if source and target and source.dtype != target.dtype else "COPY"
    return special.get(op.opcode, "DMA_DIRECT2D" if op.engine == "dma" else op.opcode.upper())


def describe(value: Any) -> str:
    """An option as text: enums and functions by their names."""
    return str(getattr(value, "name", None) or getattr(value, "__name__", None) or value)
