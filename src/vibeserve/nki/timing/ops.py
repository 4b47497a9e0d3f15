"""What the model schedules: the instructions of one run, each with its engine, its places in memory, and its work.

Instructions of one form (opcode, options, shapes, strides, dtypes, first partitions) share a `Plan`; an instruction adds
only which storages its operands are in and at which offsets. `Op` is an instruction as one object, made when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from vibeserve.nki.errors import Place
from vibeserve.nki.observe import Operand, Record

if TYPE_CHECKING:
    from vibeserve.nki.timing.recorder import Recorder
    from vibeserve.nki.timing.schedule import Schedule


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


@dataclass(slots=True, eq=False)
class Plan:
    """What instructions of one form have in common. `operands` are those of the first of them; `extents[i]` numbers the
    extent (shape, strides, item size) of operand i; `flops` and HBM bytes are of one instruction."""

    number: int
    engine: str
    opcode: str
    operands: tuple[Operand, ...]
    params: dict[str, Any]
    extents: tuple[int, ...]
    flops: int = 0
    transpose_flops: int = 0
    hbm_read: int = 0
    hbm_write: int = 0
    accesses: tuple[tuple[int, bool, bool], ...] = field(init=False)  # extent, whether it is a write, whether in HBM
    shapes: tuple[tuple[int, int, int, int] | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        count(self)
        self.accesses = tuple(
            (extent, o.write, o.region.endswith("hbm")) for extent, o in zip(self.extents, self.operands, strict=True)
        )
        self.shapes = tuple(_on_chip(o) for o in self.operands)


class Op:
    """One instruction of a run; times in ps are those of the schedule that it is taken from."""

    __slots__ = ("_schedule", "index", "plan", "recorder")

    def __init__(self, recorder: Recorder, index: int, schedule: Schedule | None = None):
        self.recorder, self.index, self._schedule = recorder, index, schedule
        self.plan = recorder.plans[index]

    def __getattr__(self, name: str) -> Any:
        """start, end, done and wait in ps of the schedule, deps (indices); and what the plan says."""
        if name in ("start", "end", "done", "wait", "deps"):
            return getattr(self._schedule, name)[self.index]
        return getattr(self.plan, name)

    @property
    def core(self) -> int:
        return self.recorder.cores[self.index]

    @property
    def place(self) -> Place:
        """The kernel's line."""
        return self.recorder.place(self.index)

    @property
    def name(self) -> str | None:
        return self.recorder.names.get(self.index)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The operands, in this instruction's own storages and offsets."""
        found = []
        places = self.recorder.locations[self.index]
        names = self.recorder.storage_names
        for at, operand in enumerate(self.plan.operands):
            storage, offset = places[2 * at], places[2 * at + 1]
            same = (operand.storage, operand.offset) == (storage, offset)
            name = names.get(storage, "")
            found.append(operand if same else replace(operand, storage=storage, offset=offset, name=name))
        return tuple(found)

    @property
    def record(self) -> Record:
        """The instruction as observers see it."""
        return Record(
            self.index + 1, self.core, self.plan.engine, self.plan.opcode, self.operands, self.plan.params, self.place,
            self.name, 0,
        )  # fmt: skip


class Ops(Sequence[Op]):
    """The instructions of a run in program order."""

    def __init__(self, recorder: Recorder, schedule: Schedule | None = None):
        self.recorder, self.schedule = recorder, schedule

    def __len__(self) -> int:
        return len(self.recorder.plans)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [Op(self.recorder, at, self.schedule) for at in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return Op(self.recorder, index % len(self), self.schedule)

    def __iter__(self) -> Iterator[Op]:
        return (Op(self.recorder, index, self.schedule) for index in range(len(self)))


class Tile(NamedTuple):
    """An allocation on chip. `life`: first and last use (sequence numbers), bytes of a partition, region, name or number,
    line, and its address where it has one of its own."""

    core: int
    region: str
    life: list[Any]

    @property
    def bytes(self) -> int:
        """Bytes that it takes in each partition."""
        found: int = self.life[2]
        return found

    @property
    def fixed(self) -> bool:
        """Whether the kernel chose its place."""
        return self.life[6] is not None


def _on_chip(operand: Operand) -> tuple[int, int, int, int] | None:
    """Of an operand on chip: partitions, bytes from the first to the last in each, item size, bytes of a partition."""
    if operand.region not in ("sbuf", "psum"):
        return None
    low, high = operand.byte_range
    return operand.shape[0], high - low, operand.itemsize, operand.free_bytes


def box_of(operand: Operand, pitch: int) -> Box:
    """The bytes of an operand; `pitch` are the bytes from row to row of its HBM tensor."""
    low, high = operand.byte_range
    if operand.region in ("sbuf", "psum"):
        first, last = operand.partitions
        return Box(first, last, low, high)
    return _rows(operand, pitch, low, high)


def pitch_of(operand: Operand) -> int:
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


def role(op: Op | Plan, name: str) -> Operand | None:
    """The operand of that role, or None."""
    for operand in op.operands:
        if operand.role == name:
            return operand
    return None


def free_elements(operand: Operand | None) -> int:
    """Elements in each partition (N of the formulas); 0 for None."""
    return operand.elements // operand.shape[0] if operand is not None else 0


def is_transpose(op: Op | Plan) -> bool:
    """Whether a Tensor Engine instruction only moves data."""
    return op.opcode == "nc_transpose" or bool(op.params.get("is_transpose"))


def rows_per_cycle(op: Op | Plan) -> int:
    """Rows of the contraction that a partition holds: 2 for `double_row` ([K, 2, M] and [K, 2, N]), else 1."""
    return 2 if describe(op.params.get("perf_mode", "")) == "double_row" else 1


def count(op: Plan) -> None:
    """Fill in the FLOPs of a matmul (2·K·M·N; a transpose of [P, F] is 2·P·P·F, counted apart) and the HBM bytes of a DMA."""
    if op.engine == "tensor":
        _count_matmul(op)
    for operand in op.operands:
        if operand.region.endswith("hbm") and "index" not in operand.role:
            if operand.write:
                op.hbm_write += operand.nbytes
            else:
                op.hbm_read += operand.nbytes


def _count_matmul(op: Plan) -> None:
    stationary, moving = role(op, "stationary"), role(op, "moving")
    if stationary is not None and moving is not None:
        flops = 2 * stationary.shape[0] * free_elements(stationary) * free_elements(moving)
        if op.opcode == "nc_matmul_mx":
            flops *= 4
        flops //= rows_per_cycle(op)  # both rows of a column are among the free elements, of each operand
        if is_transpose(op):
            op.transpose_flops = flops
        else:
            op.flops = flops
    elif op.opcode == "nc_transpose":
        data = role(op, "data")
        if data is not None:
            op.transpose_flops = 2 * data.shape[0] * data.elements


def opcode_of(op: Op | Plan) -> str:
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
