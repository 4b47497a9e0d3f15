"""Watching a run: what each instruction was, for traces, timing and profiles. Costs nothing where nobody watches."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TextIO

from vibeserve.nki.context import Core, Session
from vibeserve.nki.errors import Place, kernel_place
from vibeserve.nki.instruction import Spec
from vibeserve.nki.memory import Storage
from vibeserve.nki.tensor import NkiTensor


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor operand as it stood when the instruction ran.

    `shape`, `strides` and `offset` are in elements of `itemsize` bytes from the start of storage `storage` (its number
    in the launch); on chip a partition is `free_bytes` long and `offset` includes partitions. `address` is a manual
    (partition, byte) place. `indirect` says that an index tensor chose rows or columns.
    """

    role: str
    write: bool
    storage: int
    name: str
    region: str
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    free_bytes: int
    address: tuple[int, int] | None
    dynamic: bool
    indirect: bool

    @property
    def elements(self) -> int:
        """Elements in all (repeats of stride-0 dimensions counted)."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def nbytes(self) -> int:
        """Bytes in all (repeats counted)."""
        return self.elements * self.itemsize

    @property
    def partitions(self) -> tuple[int, int]:
        """[first, last + 1) partitions of an on-chip operand."""
        first = self.offset * self.itemsize // self.free_bytes
        return first, first + self.shape[0]

    @property
    def byte_range(self) -> tuple[int, int]:
        """[low, high) bytes: within a partition on chip, from the storage's start in HBM."""
        if self.region in ("sbuf", "psum"):
            low = self.offset * self.itemsize % self.free_bytes
            dims = list(zip(self.shape, self.strides, strict=True))[1:]
        else:
            low = self.offset * self.itemsize
            dims = list(zip(self.shape, self.strides, strict=True))
        reach = sum((size - 1) * stride for size, stride in dims)
        return low, low + (reach + 1) * self.itemsize

    def contiguous_bytes(self) -> int:
        """Bytes of each contiguous run, innermost dimensions first (within a partition on chip)."""
        dims = list(zip(self.shape, self.strides, strict=True))
        if self.region in ("sbuf", "psum"):
            dims = dims[1:]
        run = 1
        for size, stride in reversed(dims):
            if size == 1:
                continue
            if stride != run:
                break
            run *= size
        return run * self.itemsize


@dataclass(frozen=True, slots=True)
class Record:
    """One instruction of one core: engine, opcode, operands, options, kernel line, dynamic-loop depth."""

    sequence: int
    core: int
    engine: str
    opcode: str
    operands: tuple[Operand, ...]
    params: dict[str, Any]
    place: Place
    name: str | None
    loop_depth: int


class Observer:
    """Base class of what watches a run; every method may be left out.

    One that has `counts_only` may be told of a run's instructions by `counted` alone.
    """

    counts_only = False

    def started(self, session: Session) -> None:
        """A launch begins."""

    def allocated(self, core: Core, storage: Storage) -> None:
        """A tensor was allocated."""

    def instruction(self, record: Record) -> None:
        """An instruction ran."""

    def dispatched(self, core: Core, spec: Spec, args: tuple[Any, ...], engine: str, name: str | None) -> None:
        """The same before a record is made of it; `instruction` is then not called where this is overridden."""

    def counted(self, opcodes: dict[str, int]) -> None:
        """How many instructions of each opcode ran, where they were not told one by one."""

    def finished(self, session: Session, cores: list[Core]) -> None:
        """A launch ended well."""


class TraceObserver(Observer):
    """Prints one line for each instruction."""

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream

    def instruction(self, record: Record) -> None:
        stream = self.stream or sys.stderr
        parts = " ".join(
            f"{operand.role}={operand.region}:{operand.name or operand.storage}{list(operand.shape)}{'!' if operand.write else ''}"
            for operand in record.operands
        )
        options = " ".join(f"{key}={value!r}" for key, value in record.params.items())
        print(
            f"#{record.sequence} core{record.core} {record.engine:<7}{record.opcode:<24}{parts} {options} {record.place}".rstrip(),
            file=stream,
        )


class CountObserver(Observer):
    """Counts instructions by opcode."""

    def __init__(self) -> None:
        self.opcodes: dict[str, int] = {}

    def instruction(self, record: Record) -> None:
        self.opcodes[record.opcode] = self.opcodes.get(record.opcode, 0) + 1


def operand(role: str, tensor: NkiTensor, write: bool) -> Operand:
    """What a tensor operand looks like now."""
    storage = tensor.storage
    return Operand(
        role, write, storage.number, tensor.name or storage.name, tensor.buffer.value, tensor.dtype.name,
        tensor.dtype.itemsize, tensor.shape, tensor.strides, tensor.start() if tensor.moves else tensor.offset,
        storage.free * storage.dtype.itemsize, storage.address, bool(tensor.moves),
        tensor.rows is not None or tensor.lanes is not None,
    )  # fmt: skip


def described(spec: Spec, args: tuple[Any, ...]) -> tuple[list[Operand], dict[str, Any]]:
    """The operands of an instruction, in the order of its parameters, and its other options."""
    operands: list[Operand] = []
    params: dict[str, Any] = {}
    for at, (param, value) in enumerate(zip(spec.params, args, strict=True)):
        write = at in spec.writes
        if isinstance(value, NkiTensor):
            operands.append(operand(param, value, write))
            if value.rows is not None:
                operands.append(operand(f"{param}.index", value.rows.index, False))
        elif isinstance(value, list | tuple) and value and isinstance(value[0], NkiTensor):
            operands.extend(operand(f"{param}[{i}]", item, write) for i, item in enumerate(value))
        elif param != "name" and value is not spec.defaults.get(param, Observer):
            params[param] = value
    return operands, params


def notify(core: Core, spec: Spec, args: tuple[Any, ...], engine: str, sequence: int, name: str | None) -> None:
    """Tell the session's observers about an instruction."""
    record = None
    for observer in core.session.observers:
        if type(observer).dispatched is not Observer.dispatched:
            observer.dispatched(core, spec, args, engine, name)
            continue
        if record is None:
            operands, params = described(spec, args)
            record = Record(
                sequence, core.index, engine, spec.name, tuple(operands), params, kernel_place(), name, core.loop_depth
            )
        observer.instruction(record)
