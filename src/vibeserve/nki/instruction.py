"""The dispatcher: what happens around every instruction.

An instruction is a function `body(core, dst, src, ...)` under `@instruction`. Its entry in `data/instructions.toml` says
which parameters are read and written, the engines, the first generation, and the rules on operands. The decorator makes
the public function (same name and signature without `core`), which, in this order: finds the running core, counts the
instruction, checks the rules (once for each combination of shapes, strides, dtypes, options and target), looks for reads
of memory that nobody wrote, runs the body, notes what was written, and tells the observers.
"""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from vibeserve.nki import access, overlaps, races
from vibeserve.nki.context import Core, _local, current_core
from vibeserve.nki.errors import KernelError
from vibeserve.nki.memory import EMPTY, FULL, GONE
from vibeserve.nki.registers import VirtualRegister
from vibeserve.nki.tensor import NkiTensor

REGISTRY: dict[str, Spec] = {}
_CACHE_LIMIT = 200_000


class NkiInstruction(msgspec.Struct, eq=False, gc=False):
    """What an instruction returns: a handle for ordering. Its result is in `dst`."""

    opcode: str
    core: int
    sequence: int
    name: str | None
    loops: tuple[int, ...] = ()

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Say that this instruction runs after `producers`; the values here are in program order anyway."""
        for producer in producers:
            if not isinstance(producer, NkiInstruction):
                raise KernelError(f"depends_on({producer!r})", code="V6-DEPENDS", rule="producers are instructions")
            if producer.loops != self.loops:
                raise KernelError(
                    f"{self!r} depends on {producer!r} across the boundary of a dynamic loop",
                    code="V6-DEPENDS",
                    rule="both are in the same pass of the same loop body",
                )
            current_core("depends_on").session.edges.append((self.sequence, producer.sequence))
        return self

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise _not_data(self.opcode)

    def __getitem__(self, key: Any) -> Any:
        raise _not_data(self.opcode)

    def __repr__(self) -> str:
        return f"NkiInstruction({self.opcode} #{self.sequence})"


def _not_data(opcode: str) -> KernelError:
    return KernelError(
        f"the return value of nisa.{opcode} used as data",
        code="B1-RESULT",
        rule="instructions write their dst operand and return a handle",
        fix=f"allocate dst with nl.ndarray and call nisa.{opcode}(dst=..., ...)",
    )


class Spec:
    """One instruction: its body and signature, and its entry in the data file (read when it first runs)."""

    def __init__(self, body: Callable[..., Any]):
        self.body = body
        self.name = body.__name__
        parameters = list(inspect.signature(body).parameters.values())[1:]
        self.params = tuple(parameter.name for parameter in parameters)
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self.checked: dict[Any, str] = {}
        self.at_name = self.params.index("name") if "name" in self.params else -1
        self.loaded = False
        self.control = False
        self.entry: dict[str, Any] = {}
        self.reads: tuple[int, ...] = ()
        self.writes: tuple[int, ...] = ()
        self.sparse: tuple[int, ...] = ()

    def load(self) -> None:
        """Read the entry in the data file."""
        self.entry = entries()[self.name]
        self.reads = tuple(self.params.index(name) for name in self.entry.get("reads", ()))
        self.writes = tuple(self.params.index(name) for name in self.entry.get("writes", ()))
        self.sparse = tuple(self.params.index(name) for name in self.entry.get("sparse", ()))
        self.control = bool(self.entry.get("control"))
        self.loaded = True


@functools.cache
def entries() -> dict[str, Any]:
    """The instructions' data: name to reads, writes, engines, generations, rules."""
    found: dict[str, Any] = {}
    for path in sorted((Path(__file__).parent / "data" / "instructions").glob("*.toml")):
        found |= tomllib.loads(path.read_text(encoding="utf-8"))
    return found


def instruction(body: Callable[..., Any]) -> Callable[..., Any]:
    """Make the public function of an instruction out of its body (see the module)."""
    spec = Spec(body)
    REGISTRY[spec.name] = spec
    names = {f"_d_{name}": value for name, value in spec.defaults.items()}
    arguments = ", ".join(f"{name}=_d_{name}" if name in spec.defaults else name for name in spec.params)
    source = f"def {spec.name}({arguments}):\n    return _dispatch(_spec, ({', '.join(spec.params)},))\n"
    scope: dict[str, Any] = {"_dispatch": dispatch, "_spec": spec, **names}
    exec(compile(source, f"<nki {spec.name}>", "exec"), scope)
    public: Callable[..., Any] = scope[spec.name]
    public.__doc__ = body.__doc__
    public.__module__ = "nki.isa"
    public.__qualname__ = spec.name
    return public


def dispatch(spec: Spec, args: tuple[Any, ...]) -> NkiInstruction:
    """Run one instruction (see the module)."""
    core: Core | None = getattr(_local, "core", None)
    if core is None:
        current_core(f"nisa.{spec.name}")
    assert core is not None
    if not spec.loaded:
        spec.load()
    session = core.session
    if session.quick is not None and not spec.control:
        made: NkiInstruction = session.quick(core, spec, args)
        return made
    session.sequence = sequence = session.sequence + 1
    core.spend()
    key = (
        session.form,
        *[arg.key() if type(arg) is NkiTensor else _key(arg) for arg in args],
    )
    engine = spec.checked.get(key)
    if engine is None:
        from vibeserve.nki.rules import check

        engine = check(spec, session.target, args)
        if len(spec.checked) > _CACHE_LIMIT:
            spec.checked.clear()
        spec.checked[key] = engine
    shared = session.cores_per_rank > 1
    for at in spec.reads:
        value = args[at]
        if type(value) is NkiTensor:
            _before_read(core, spec, value, sequence, shared, at in spec.sparse)
        elif type(value) is list or type(value) is tuple:
            for item in value:
                if type(item) is NkiTensor:
                    _before_read(core, spec, item, sequence, shared)
    before = None
    for at in spec.writes:
        value = args[at]
        if type(value) is NkiTensor:
            _before_write(value, sequence)
            if shared and value.buffer.is_hbm:
                before = races.before_write(core, value)
    outcome = spec.body(core, *args) if not session.shape_only or spec.control else None
    if outcome is not SKIPPED:
        for at in spec.writes:
            value = args[at]
            if type(value) is NkiTensor:
                if value.storage.state != FULL:
                    access.mark(value)
                if value.storage.aliases is not None:
                    races.alias_written(value)
                if shared and value.buffer.is_hbm:
                    races.note(core, value, write=True, before=before)
            elif shared and (type(value) is list or type(value) is tuple):
                for item in value:
                    if type(item) is NkiTensor and item.buffer.is_hbm:
                        races.note(core, item, write=True)
    if core.placed is not None and not session.shape_only:
        for at in spec.writes:
            value = args[at]
            for item in value if type(value) is list or type(value) is tuple else (value,):
                if type(item) is NkiTensor and item.storage.overlap is not None:
                    overlaps.wrote(item)
    name = args[spec.at_name] if spec.at_name >= 0 else None
    if core.log is not None and spec.name not in races.MEETINGS:
        writes = [args[at] for at in spec.writes]
        if type(args[0]) is VirtualRegister:
            writes.append(args[0])
        races.logged(core, sequence, [args[at] for at in spec.reads], writes)
    if name is not None and core.loop_names is not None:
        core.note_name(spec.name, name)
    if session.observers:
        from vibeserve.nki.observe import notify

        notify(core, spec, args, engine, sequence, name)
    return NkiInstruction(spec.name, core.index, sequence, name, core.loops)


SKIPPED = object()  # what a body returns where it wrote nothing, or marked what it wrote itself


def unwritten_read(core: Core, opcode: str, tensor: NkiTensor) -> None:
    """Report that an instruction reads what nothing was written to, and make sure that it reads poison."""
    storage = tensor.storage
    storage.poison()
    core.session.report(
        "uninitialised-read",
        f"nisa.{opcode} reads {storage.label()} where nothing was written",
        detail=f"{tensor!r} allocated at {storage.place}",
        code="NCC_ISIM074",
        fix="write all of the tile first, or read only the part that was written",
    )


def check_rows(core: Core, opcode: str, tensor: NkiTensor, rows: Iterable[int]) -> None:
    """For a sparse read: report it where one of these partitions of the view was not written."""
    plain = tensor.lanes is None and tensor.rows is None
    if tensor.storage.state != FULL and plain and not all(access.written(tensor[int(row)]) for row in rows):
        unwritten_read(core, opcode, tensor)


def _before_read(core: Core, spec: Spec, tensor: NkiTensor, sequence: int, shared: bool, sparse: bool = False) -> None:
    """Note a read; `sparse` leaves it to the body to say whether what it takes was written."""
    storage = tensor.storage
    if storage.life is not None:
        storage.life[1] = sequence
    if storage.overlap is not None:
        overlaps.read(core, tensor)
    if storage.state != FULL and not sparse and not access.written(tensor):
        unwritten_read(core, spec.name, tensor)
    if storage.aliases is not None and storage.aliases.written:
        races.alias_read(core, tensor)
    if storage.sums is not None:
        if storage.taken is None:
            storage.taken = set()
        storage.taken.add((tensor.offset, tensor.shape, tensor.strides))
    if tensor.rows is not None:
        _before_read(core, spec, tensor.rows.index, sequence, shared)
    for move in tensor.moves:
        if type(move.source) is NkiTensor:
            _before_read(core, spec, move.source, sequence, shared)
    if tensor.lanes is not None:
        _before_read(core, spec, tensor.lanes.index[0], sequence, shared)
    if shared and tensor.buffer.is_hbm:
        races.note(core, tensor, write=False)


def _before_write(tensor: NkiTensor, sequence: int) -> None:
    storage = tensor.storage
    life = storage.life
    if storage.state == GONE:
        storage.refuse_gone()
    if life is not None:
        if storage.state == EMPTY:
            life[0] = sequence
        life[1] = sequence


def _key(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is int or kind is str:
        return value
    if kind is list or kind is tuple:
        return tuple(item.key() if type(item) is NkiTensor else _key(item) for item in value)
    if kind is NkiTensor:
        return value.key()
    if kind is float or kind is bool or isinstance(value, np.generic):
        return (kind, value)
    try:
        hash(value)
    except TypeError:
        return (kind, id(value))
    return value
