"""Recording a run: for each instruction its plan, its core, where its operands lie, and its line, in columns.

In a run without arithmetic (`shape_only`) the recorder takes an instruction over from the dispatcher: the rules are
checked once for each form, nothing is computed, and what is written counts as written whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vibeserve.nki import capacity
from vibeserve.nki.context import Core, Session
from vibeserve.nki.errors import KernelError, Place, kernel_place
from vibeserve.nki.instruction import NkiInstruction, Spec, _key
from vibeserve.nki.memory import FULL, Storage
from vibeserve.nki.observe import Observer, Operand, Record, described, operand
from vibeserve.nki.tensor import NkiTensor
from vibeserve.nki.timing.forms import reader
from vibeserve.nki.timing.ops import Ops, Plan, Tile, pitch_of

new_tile = tuple.__new__  # a Tile without the call of its own constructor: one is made for each tile of a run
_CALLS = 3  # from the recorder to the kernel's line: the recorder, the dispatcher, the instruction


class Recorder(Observer):
    """Collects the instructions of one launch (see the module). `locations[i]` are the storage and offset of each operand
    of instruction i, in the order of its plan's operands; `edges` the (later, earlier) instructions that were asked for."""

    def __init__(self, allow_spill: bool = False) -> None:
        self.allow_spill = allow_spill
        self.plans: list[Plan] = []
        self.cores: list[int] = []
        self.locations: list[tuple[int, ...]] = []
        self.sites: list[Place] = []
        self.names: dict[int, str] = {}
        self.edges: list[tuple[int, int]] = []
        self.known: dict[Any, Plan] = {}
        self.forms: list[Plan] = []
        self.extents: dict[Any, int] = {}
        self.tiles: dict[int, Tile] = {}
        self.storage_names: dict[int, str] = {}
        self.hbm_shapes: dict[int, tuple[int, ...]] = {}
        self.pitches: dict[int, int] = {}
        self.hbm: dict[int, Operand] = {}
        self.written_hbm: set[int] = set()
        self.ordered: dict[int, int] = {}
        self.peaks: dict[str, int] = {"sbuf": 0, "psum": 0}
        self.last_use: dict[int, int] | None = None  # by storage, where it is not what the tiles' lives say
        self.session: Session | None = None
        self.others: tuple[Observer, ...] = ()

    @property
    def ops(self) -> Ops:
        """The instructions, without times."""
        return Ops(self)

    def started(self, session: Session) -> None:
        """Begin anew; take the instructions over where there is no arithmetic and nobody else looks at each."""
        self.__init__(self.allow_spill)  # type: ignore[misc]
        self.session = session
        session.allow_spill = self.allow_spill
        self.others = tuple(observer for observer in session.observers if observer is not self)
        if session.shape_only and all(observer.counts_only for observer in self.others):
            session.quick = self._quick()

    def allocated(self, core: Core | None, storage: Storage) -> None:
        if storage.name:
            self.storage_names[storage.number] = storage.name
        if storage.life is not None:
            self.tiles[storage.number] = new_tile(Tile, (storage.core, storage.region.label, storage.life))
        else:
            self.hbm_shapes[storage.number] = storage.shape

    def instruction(self, record: Record) -> None:
        """Nothing: `dispatched` has it."""

    def dispatched(self, core: Core, spec: Spec, args: tuple[Any, ...], engine: str, name: str | None) -> None:
        """An instruction was run by the dispatcher."""
        form = reader(spec)(args, 0)
        if form is None:
            self._append_described(core, spec, args, engine)
        else:
            try:
                key = form[0]
                plan = self.known.get(key)
            except TypeError:
                key = _hashable(key)
                plan = self.known.get(key)
            if plan is None:
                plan = self.known[key] = self._plan(spec, args, engine)
            self._append(core, plan, form[1])
        if name is not None:
            self.names[len(self.plans) - 1] = str(name)

    def _quick(self) -> Callable[[Core, Spec, tuple[Any, ...]], NkiInstruction]:
        """The function that takes an instruction which is not computed. (A closure: it runs for every instruction.)"""
        session, known, names, written = self.session, self.known, self.names, self.written_hbm
        assert session is not None
        target = session.target
        readers: dict[Spec, Any] = {}
        add_plan, add_core, add_places, add_site = (
            self.plans.append, self.cores.append, self.locations.append, self.sites.append,
        )  # fmt: skip

        def quick(core: Core, spec: Spec, args: tuple[Any, ...]) -> NkiInstruction:
            session.sequence = sequence = session.sequence + 1
            core.count += 1
            if core.count > session.budget:
                core.spend()
            read = readers.get(spec)
            if read is None:
                read = readers[spec] = reader(spec, True)
            form = read(args, sequence)
            if form is None:
                return self._slowly(core, spec, args, sequence)
            key, places = form
            try:
                plan = known.get(key)
            except TypeError:
                key = _hashable(key)
                plan = known.get(key)
            if plan is None:
                from vibeserve.nki.rules import check

                plan = known[key] = self._plan(spec, args, check(spec, target, args))
            add_plan(plan)
            add_core(core.index)
            add_places(places)
            add_site(kernel_place(_CALLS))
            if plan.hbm_write:
                written.update(places[::2])
            name = args[spec.at_name] if spec.at_name >= 0 else None
            if name is not None:
                names[len(self.plans) - 1] = str(name)
            if core.accumulators:
                self._ordered(core)
            return NkiInstruction(spec.name, core.index, sequence, name, core.loops)

        return quick

    def _slowly(self, core: Core, spec: Spec, args: tuple[Any, ...], sequence: int) -> NkiInstruction:
        """The same for operands that move at run time or come in lists."""
        from vibeserve.nki.rules import check

        session = core.session
        key = ("slow", spec.name, *[_key(value) for value in args])
        engine = spec.checked.get(key)
        if engine is None:
            engine = spec.checked[key] = check(spec, session.target, args)
        for at in (*spec.reads, *spec.writes):
            for value in _tensors(args[at : at + 1]):
                storage = value.storage
                if storage.life is not None:
                    if at in spec.writes and not storage.state:
                        storage.life[0] = sequence
                    storage.life[1] = sequence
                if at in spec.writes:
                    storage.state = FULL
        self._append_described(core, spec, args, engine)
        name = args[spec.at_name] if spec.at_name >= 0 else None
        if name is not None:
            self.names[len(self.plans) - 1] = str(name)
        return NkiInstruction(spec.name, core.index, sequence, name, core.loops)

    def _append_described(self, core: Core, spec: Spec, args: tuple[Any, ...], engine: str) -> None:
        if core.session.shape_only:
            _refuse_data(spec, args)
        operands, params = described(spec, args)
        key = (
            spec.name, engine, *[(o.role, *self._form(o)) for o in operands],
            *[(name, _key(value)) for name, value in params.items()],
        )  # fmt: skip
        plan = self.known.get(key)
        if plan is None:
            plan = self.known[key] = self.make(spec.name, engine, tuple(operands), params)
        self._append(core, plan, tuple([n for o in operands for n in (o.storage, o.offset)]))

    def _append(self, core: Core, plan: Plan, places: tuple[int, ...]) -> None:
        self.plans.append(plan)
        self.cores.append(core.index)
        self.locations.append(places)
        self.sites.append(kernel_place())
        if plan.hbm_write:
            self.written_hbm.update(places[::2])
        if core.accumulators:
            self._ordered(core)

    def _ordered(self, core: Core) -> None:
        if core.accumulators.get("no_reorder"):
            index = len(self.plans) - 1
            before = self.ordered.get(core.index)
            if before is not None and before >= core.accumulators["no_reorder_since"]:
                self.edges.append((index, before))
            self.ordered[core.index] = index

    def _form(self, o: Operand) -> tuple[Any, ...]:
        on_chip = o.region in ("sbuf", "psum")
        where = o.offset * o.itemsize // o.free_bytes if on_chip else 0
        return (o.shape, o.strides, o.dtype, o.region, where, o.free_bytes, o.dynamic, o.indirect)

    def _plan(self, spec: Spec, args: tuple[Any, ...], engine: str) -> Plan:
        """The plan of a form that `reader` gave, with the operands in its order."""
        operands = []
        params: dict[str, Any] = {}
        for at in reader(spec).order:  # type: ignore[attr-defined]
            if type(args[at]) is NkiTensor:
                operands.append(operand(spec.params[at], args[at], at in spec.writes))
        for param, value in zip(spec.params, args, strict=True):
            if type(value) is not NkiTensor and param != "name" and value is not spec.defaults.get(param, Observer):
                params[param] = value
        return self.make(spec.name, engine, tuple(operands), params)

    def make(self, opcode: str, engine: str, operands: tuple[Operand, ...], params: dict[str, Any]) -> Plan:
        """A new plan."""
        extents = []
        for found in operands:
            extent = (found.shape, found.strides, found.itemsize, found.region)
            extents.append(self.extents.setdefault(extent, len(self.extents)))
        plan = Plan(len(self.forms), engine, opcode, operands, params, tuple(extents))
        self.forms.append(plan)
        return plan

    def pitch(self, found: Operand) -> int:
        """Bytes from row to row of an HBM tensor, by the first access to it that was asked for."""
        pitch = self.pitches.get(found.storage)
        if pitch is None:
            pitch = self.pitches[found.storage] = pitch_of(found)
        return pitch

    def place(self, index: int) -> Place:
        """The kernel's line of an instruction."""
        return self.sites[index]

    def finished(self, session: Session, cores: list[Core]) -> None:
        """Note the most that was alive at once; tell those who only count what was counted."""
        self.peaks = live_peaks(cores)
        if session.quick is not None:
            counts: dict[str, int] = {}
            for plan in self.plans:
                counts[plan.opcode] = counts.get(plan.opcode, 0) + 1
            for observer in self.others:
                observer.counted(counts)
        self.edges += [(later - 1, earlier - 1) for later, earlier in session.edges]


def live_peaks(cores: Sequence[Core]) -> dict[str, int]:
    """For sbuf and psum the most bytes of a partition alive at once (see `capacity`), on the core that needs most."""
    found = {"sbuf": 0, "psum": 0}
    for core in cores:
        for region, (peak, _) in capacity.peaks(core).items():
            found[region.value] = max(found[region.value], peak)
    return found


def _refuse_data(spec: Spec, args: tuple[Any, ...]) -> None:
    for value in _tensors(args):
        if any(type(move.source) is NkiTensor for move in value.moves):
            raise KernelError(
                f"nisa.{spec.name} at an address that depends on data", code="NKI-SHAPE-ONLY", rule="no values are computed",
                fix="run it in full",
            )  # fmt: skip


def _hashable(value: Any) -> Any:
    return tuple([_hashable(item) for item in value]) if isinstance(value, list | tuple) else value


def _tensors(args: Any) -> list[NkiTensor]:
    found: list[NkiTensor] = []
    for value in args:
        if type(value) is NkiTensor:
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(item for item in value if type(item) is NkiTensor)
    return found
