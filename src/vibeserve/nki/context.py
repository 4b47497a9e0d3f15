"""The running kernel: a `Session` for a launch, and a `Core` for each program of its grid.

Each core runs the kernel's Python body in a thread of its own; one runs at a time (see `cores`), so what they share
needs no locks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vibeserve.nki import overlaps
from vibeserve.nki.dtypes import DType
from vibeserve.nki.errors import BudgetError, KernelError, Place, kernel_place
from vibeserve.nki.memory import GONE, MemoryRegion, Storage, new_storage
from vibeserve.nki.targets import Target

_local = threading.local()

DEFAULT_BUDGET = 50_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something reported that the device would not refuse: an uninitialised read, a race, undefined accumulation."""

    kind: str
    message: str
    place: Place
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f" ({self.detail})" if self.detail else "")


@dataclass
class Session:
    """One launch: target, options, and what all cores share."""

    target: Target
    grid: tuple[int, ...] = ()
    strict: bool = False
    precise: bool = True
    budget: int = DEFAULT_BUDGET
    observers: tuple[Any, ...] = ()
    ranks: int = 1
    cores_per_rank: int = 1
    findings: list[Finding] = field(default_factory=list)
    quiet: bool = False
    shape_only: bool = False
    allowed: frozenset[str] = frozenset()  # rules that are let pass
    allow_spill: bool = False
    quick: Callable[..., Any] | None = None  # takes instructions over from the dispatcher, where nothing is computed
    edges: list[tuple[int, int]] = field(default_factory=list)  # (later, earlier) sequence numbers, as asked for
    allocated: int = 0
    rooms: dict[Any, Any] = field(
        default_factory=dict
    )  # what was asked of nl.ndarray, to what that came to when checked
    sequence: int = 0
    shared: dict[Any, Any] = field(default_factory=dict)
    constants: dict[Any, Any] = field(default_factory=dict)
    _seen: set[Any] = field(default_factory=set)
    form: Any = None  # what the outcome of rules depends on, beside the operands

    def __post_init__(self) -> None:
        self.form = (self.target.number, self.cores_per_rank, self.allowed)

    def report(
        self, kind: str, message: str, *, detail: str = "", code: str = "NKI-REPORT", fix: str = "", soft: bool = False,
        place: Place | None = None,
    ) -> None:  # fmt: skip
        """Report a finding once for each kernel line; under `strict` it is an error, unless it is only advice (`soft`)."""
        place = place or kernel_place()
        if self.strict and not soft:
            raise KernelError(message, code=code, rule=detail, fix=fix, place=place)
        key = (kind, place.file, place.line, detail)
        if key in self._seen:
            return
        self._seen.add(key)
        finding = Finding(kind, message, place, detail)
        self.findings.append(finding)
        if not self.quiet and not os.environ.get("NKI_QUIET"):
            print(f"nki: {finding}", file=sys.stderr)


class Core:
    """One program of the grid: its ids, its memories, its random state, its accumulators."""

    __slots__ = (
        "accumulators", "coordinates", "count", "index", "lives", "log", "loop_depth", "loop_names", "loop_sites",
        "loop_tensors", "loops", "occurrences",
        "peaks", "placed", "rank", "rng", "scheduler", "session",
    )  # fmt: skip

    def __init__(self, session: Session, index: int, rank: int, coordinates: tuple[int, ...], scheduler: Any = None):
        self.session = session
        self.index = index
        self.rank = rank
        self.coordinates = coordinates
        self.scheduler = scheduler
        self.count = 0
        self.lives: list[list[Any]] = []
        self.peaks: dict[MemoryRegion, tuple[int, int]] | None = None  # what `capacity` made of the lives
        self.placed: Any = None  # the tiles with addresses of their own: see `overlaps`
        self.occurrences: dict[Any, int] = {}
        self.accumulators: dict[str, Any] = {}
        self.rng: dict[str, Any] = {}
        self.log: Any = None  # its instructions since it first wrote what cores share: see `races`
        self.loop_depth = 0
        self.loop_sites: list[Place] = []  # the dynamic loops that stand in no other, as they came
        self.loops: tuple[int, ...] = ()  # the passes of loop bodies that it is in, each by a number of its own
        self.loop_names: set[str] | None = None  # of the instructions in this pass of a loop body
        self.loop_tensors: list[Storage] | None = None  # made in this pass of a loop body

    def spend(self) -> None:
        """Count one instruction or allocation against the budget."""
        self.count += 1
        if self.count > self.session.budget:
            raise BudgetError(
                f"stopped after {self.session.budget:,} instructions",
                code="NKI-BUDGET",
                rule="a kernel ends",
                fix="look for a loop whose condition never changes; NKI_BUDGET=N raises the limit",
            )

    def enter_loop(self) -> None:
        """A dynamic loop begins, however often it will run."""
        if not self.loop_depth:
            self.loop_sites.append(kernel_place())

    @contextlib.contextmanager
    def loop_body(self) -> Iterator[None]:
        """One pass of a dynamic loop's body: its tensors end with it, its instruction names are unique."""
        names, tensors, loops = self.loop_names, self.loop_tensors, self.loops
        self.loop_names, self.loop_tensors = set(), []
        self.loops = (*loops, self.occurrence("loop body"))
        try:
            yield
        finally:
            for storage in self.loop_tensors:
                storage.state = GONE
            self.loop_names, self.loop_tensors, self.loops = names, tensors, loops

    def note_name(self, opcode: str, name: Any) -> None:
        """Refuse the second instruction of one name in a loop body."""
        assert self.loop_names is not None
        if str(name) in self.loop_names:
            raise KernelError(
                f"nisa.{opcode}: the name {str(name)!r} is taken in this loop body",
                code="V6-LOOPNAMES",
                rule="instruction names are unique within the body of a dynamic loop",
            )
        self.loop_names.add(str(name))

    def meet(self, key: Any, payload: Any, parties: Iterable[int], what: str) -> dict[int, Any]:
        """Wait until all `parties` (core numbers over all ranks) have come to `key`; returns what each brought."""
        if self.scheduler is None:
            return {self.index: payload}
        found: dict[int, Any] = self.scheduler.meet(self, key, payload, tuple(parties), what)
        return found

    def occurrence(self, key: Any) -> int:
        """How often this core has asked for `key` before (0 the first time)."""
        count = self.occurrences.get(key, 0)
        self.occurrences[key] = count + 1
        return count


def core_or_none() -> Core | None:
    """The core that runs in this thread, if one does."""
    return getattr(_local, "core", None)


def current_core(what: str) -> Core:
    """The core that runs in this thread; a KernelError names `what` where no kernel runs."""
    core: Core | None = getattr(_local, "core", None)
    if core is None:
        raise KernelError(
            f"{what} outside of a kernel",
            code="NKI-OUTSIDE",
            fix="call it in a function run by nki.jit or nki.simulate",
        )
    return core


def running(core: Core | None, body: Callable[[], Any]) -> Any:
    """Run `body` with `core` as this thread's core."""
    before = getattr(_local, "core", None)
    _local.core = core
    try:
        return body()
    finally:
        _local.core = before


def allocate(
    core: Core,
    shape: tuple[int, ...],
    dtype: DType,
    region: MemoryRegion,
    *,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> Storage:
    """A new storage for `core`; shared HBM that the other core of the grid allocated at the same place is found again."""
    core.spend()
    session = core.session
    place = kernel_place(3)  # its caller is not the kernel
    if region is MemoryRegion.shared_hbm and len(session.grid) and session.cores_per_rank > 1:
        base: Any = ("name", name) if name else ("line", place.file, place.line)
        key: Any = (core.rank, base, shape, dtype.name)
        key = (*key, core.occurrence(key))
        found = session.shared.get(key)
        if found is None:
            found = session.shared[key] = _new(core, shape, dtype, region, name, address, place)
        return found
    return _new(core, shape, dtype, region, name, address, place)


def _new(
    core: Core,
    shape: tuple[int, ...],
    dtype: DType,
    region: MemoryRegion,
    name: str,
    address: tuple[int, int] | None,
    place: Place,
) -> Storage:
    session = core.session
    storage = new_storage(region, dtype, shape, name=name, place=place, address=address, inflate=not session.precise)
    session.allocated += 1
    storage.number = session.allocated
    storage.core = core.index
    if core.loop_tensors is not None:
        core.loop_tensors.append(storage)
    if region.on_chip:
        at = session.sequence
        storage.life = [at, at, storage.free * dtype.itemsize, region, name or session.allocated, place, address]
        core.lives.append(storage.life)
        if address is not None and session.precise:
            overlaps.place(core, storage)
    for observer in session.observers:
        observer.allocated(core, storage)
    return storage
