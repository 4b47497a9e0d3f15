"""Order between the cores of a grid on HBM: races, and reads of transfers that nothing waits for.

Cores run one after the other between barriers, so a race never changes values from run to run here; on the device it
would. Each shared storage keeps two bits an element for each core (has written, has read) since the last barrier on it.
A barrier orders the tensor that it is given; to another one it orders only what instructions lead to: that the barrier
waits for the transfer into it, and the access for the barrier, by tensors in common or by order asked for.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vibeserve.nki import access
from vibeserve.nki.errors import Place, kernel_place
from vibeserve.nki.memory import MemoryRegion, Storage
from vibeserve.nki.registers import VirtualRegister
from vibeserve.nki.tensor import NkiTensor

if TYPE_CHECKING:
    from vibeserve.nki.context import Core, Session

LOOKS_BACK = 100_000  # instructions of a core that are kept to see what waits for what
_MOST_ACCESSES = 4_096  # of a storage since its last barrier
_MOST_DOUBTS = 256
MEETINGS = ("core_barrier", "sendrecv")  # they put themselves into the log


class Entry(NamedTuple):
    """An instruction in a core's log: the storages that it reads and writes, and what else orders it."""

    sequence: int  # of the later core, where both met
    own: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    block: int | None  # of nl.no_reorder
    meeting: Any  # a barrier or an exchange of both cores


class Access(NamedTuple):
    """An access of a core to a shared storage: between which elements, and on which line."""

    slot: int
    write: bool
    sequence: int
    low: int
    high: int
    place: Place


class Doubt(NamedTuple):
    """Two accesses with a barrier on another tensor between: whether it orders them is seen when all ran."""

    storage: Storage
    before: Access
    after: Access
    other: str


def tracked(storage: Storage) -> bool:
    """Whether cores of a grid share this storage."""
    return storage.external or storage.region is MemoryRegion.shared_hbm


def before_write(core: Core, tensor: NkiTensor) -> np.ndarray | None:
    """What another core wrote there since the last barrier (writing the same again is no race); None where none did."""
    marks = tensor.storage.conflicts
    if marks is None:
        return None
    slot = core.index % core.session.cores_per_rank
    found = _over(tensor, marks)[0]
    if found is None or not (found & np.uint8(0x0F & ~(1 << slot))).any():
        return None
    return np.array(access.gather(tensor, skip=True)[0])


def note(core: Core, tensor: NkiTensor, *, write: bool, before: np.ndarray | None = None) -> None:
    """Note an access of `core`, and report it where another core's access since the last barrier conflicts."""
    storage = tensor.storage
    if not tracked(storage):
        return
    session = core.session
    slot = core.index % session.cores_per_rank
    if slot > 3:
        return
    if storage.conflicts is None:
        storage.conflicts = np.zeros(storage.count, np.uint8)
        storage.accesses = []
        session.shared.setdefault("tracked", []).append((core.rank, storage))
    marks, numbers = _over(tensor, storage.conflicts)
    if marks is None:
        return
    mine = np.uint8((1 if write else 16) << slot)
    others = np.uint8((0xFF if write else 0x0F) & ~(17 << slot))
    if before is not None and np.array_equal(
        before.view(np.uint8), np.array(access.gather(tensor, skip=True)[0]).view(np.uint8)
    ):
        others &= np.uint8(0xF0)
    low, high = (0, storage.count) if tensor.rows is not None else _elements(tensor)
    here = Access(slot, write, session.sequence, low, high, kernel_place())
    if (marks & others).any():
        session.report(
            "race",
            f"two cores touch {storage.label()} with no barrier between",
            detail=f"core {slot} {'writes' if write else 'reads'} {tensor!r}",
            code="NKI-RACE",
            fix="nisa.core_barrier(tensor, (0, 1)) between the write and the other core's access",
        )
    elif storage.behind is not None and (_over(tensor, storage.behind[0])[0] & others).any():  # type: ignore[operator]
        _doubt(session, storage, here)
    if numbers is None:
        marks |= mine
    else:
        whole, _, _ = access.table(tensor, storage.conflicts.view(np.int8), 1)
        whole.view(np.uint8)[numbers] |= mine
    if len(storage.accesses) < _MOST_ACCESSES:
        storage.accesses.append(here)
    if write and core.log is None:
        for each in session.shared["cores"]:
            each.log = deque(maxlen=LOOKS_BACK)


def _elements(tensor: NkiTensor) -> tuple[int, int]:
    low, high = tensor.extent()
    size, own = tensor.dtype.itemsize, tensor.storage.dtype.itemsize
    return low * size // own, -(-high * size // own)


def _over(tensor: NkiTensor, marks: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The marks that a view covers: as a view of them, or (with an index) the rows taken, and their numbers.

    None where the view, moved at run time, leaves its tensor: the instruction refuses or skips it.
    """
    if tensor.rows is None:
        try:
            return tensor.storage.over(tensor, marks), None
        except (ValueError, TypeError):
            return None, None
    if tensor.dtype.itemsize != tensor.storage.dtype.itemsize:
        return marks, None
    whole, numbers, valid = access.table(tensor, marks.view(np.int8), 1)
    taken = numbers[valid]
    return whole.view(np.uint8)[taken], taken


class Aliases:
    """Storages of arguments that lie in the same memory, and where each was written."""

    def __init__(self, *storages: Storage):
        self.storages = list(storages)
        self.written: dict[int, list[tuple[np.ndarray, Place]]] = {}


def alias(storage: Storage, other: Storage) -> None:
    """Note that two arguments lie in the same memory, which the compiler does not know."""
    group = other.aliases or Aliases(other)
    group.storages.append(storage)
    for member in group.storages:
        member.aliases = group


def alias_written(tensor: NkiTensor) -> None:
    """Note a write through an argument that others lie in the memory of."""
    made = tensor.storage.aliases.written.setdefault(tensor.storage.number, [])
    if len(made) < _MOST_DOUBTS:
        made.append((_memory(tensor), kernel_place()))


def alias_read(core: Core, tensor: NkiTensor) -> None:
    """Report a read of what was written through another argument."""
    group = tensor.storage.aliases
    for number, made in group.written.items():
        if number == tensor.storage.number:
            continue
        for memory, place in made:
            if np.may_share_memory(memory, _memory(tensor)):
                name = next(storage.label() for storage in group.storages if storage.number == number)
                core.session.report(
                    "unwaited-read",
                    f"{tensor.storage.label()} is read where {name}, an argument in the same memory, was written: nothing waits for that",
                    detail=f"written at {place}", code="NKI-UNWAITED", fix="read it through the argument that was written, or pass a copy",
                )  # fmt: skip
                return


def _memory(tensor: NkiTensor) -> np.ndarray:
    return tensor.storage.data if tensor.rows is not None or tensor.moves else access.array(tensor)


def barrier(core: Core, tensor: NkiTensor, key: Any, own: int) -> None:
    """The cores of a rank have met at a barrier on `tensor`: accesses to it before and after are ordered."""
    storage = tensor.storage
    meeting(core, key, own, (storage.number,), (storage.number,))
    if storage.conflicts is not None:
        storage.conflicts[...] = 0
        storage.behind = None
        storage.accesses = []
    for rank, other in core.session.shared.get("tracked", ()):
        if rank != core.rank or other is storage or not other.conflicts.any():
            continue
        if other.behind is None:
            other.behind = (np.zeros_like(other.conflicts), storage.label())
        other.behind = (other.behind[0] | other.conflicts, storage.label())
        other.conflicts[...] = 0


def meeting(core: Core, key: Any, own: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
    """Both cores have met: one entry of both logs, under the number at which the later one came."""
    session = core.session
    at = session.shared.setdefault(("met", key), session.sequence)
    if core.log is not None:
        core.log.append(Entry(at, own, reads, writes, _block(core), key))


def logged(core: Core, sequence: int, reads: list[Any], writes: list[Any]) -> None:
    """Put an instruction into its core's log. A register that it is given counts as written."""
    taken: list[int] = []
    for tensor in reads:
        _storages(tensor, taken)
    put = [number for tensor in writes for number in _written(tensor, taken)]
    core.log.append(Entry(sequence, sequence, tuple(taken), tuple(put), _block(core), None))  # type: ignore[union-attr]


def _block(core: Core) -> int | None:
    return core.accumulators["no_reorder_since"] if core.accumulators.get("no_reorder") else None


def _storages(value: Any, into: list[int]) -> None:
    if isinstance(value, list | tuple):
        for item in value:
            _storages(item, into)
    elif type(value) is NkiTensor:
        into.append(value.storage.number)
        if value.rows is not None:
            into.append(value.rows.index.storage.number)
        if value.lanes is not None:
            into.append(value.lanes.index[0].storage.number)
        for move in value.moves:
            _storages(move.source, into)
    elif type(value) is VirtualRegister:
        into.append(-id(value))


def _written(value: Any, taken: list[int]) -> list[int]:
    """The storages that are written; the indexes of their views are read."""
    found: list[int] = []
    _storages(value, found)
    if type(value) is NkiTensor:
        taken.extend(found[1:])
        return found[:1]
    return found


def _doubt(session: Session, storage: Storage, here: Access) -> None:
    assert storage.behind is not None
    for before in reversed(storage.accesses):
        if before.slot == here.slot or not (before.write or here.write):
            continue
        if before.low < here.high and here.low < before.high:
            doubts = session.shared.setdefault("doubts", {})
            key = (storage.number, before.place, here.place)
            if len(doubts) < _MOST_DOUBTS:
                doubts.setdefault(key, Doubt(storage, before, here, storage.behind[1]))
            return


def compare_loops(session: Session, cores: list[Core]) -> None:
    """Report where two cores of one rank have other dynamic loops: the compiler wants the same blocks on both."""
    for first, other in pairwise(cores):
        if first.rank != other.rank:
            continue
        for mine, theirs in zip_longest(first.loop_sites, other.loop_sites):
            if mine == theirs:
                continue
            if mine is None or theirs is None:
                there, lacking = (first, other) if theirs is None else (other, first)
                what = f"a dynamic loop of core {there.index} that core {lacking.index} does not have"
            else:
                what = f"a dynamic loop of core {first.index} where core {other.index} has the one at {theirs}"
            session.report(
                "core-flow", what, detail="control flow is the same on all cores of a launch", code="NCC_IXGM002",
                fix="the same loops on every core; where one has less to do, a loop of no passes", place=mine or theirs,
            )  # fmt: skip
            break


def finish(session: Session, cores: list[Core]) -> None:
    """All cores have ended: report the accesses that nothing orders."""
    for doubt in session.shared.get("doubts", {}).values():
        before, after = doubt.before, doubt.after
        if _ordered(session, cores, doubt):
            continue
        who = f"core {before.slot} {'writes' if before.write else 'reads'} it at {before.place}"
        barrier = f"the barrier between orders {doubt.other} alone"
        fix = f"nisa.core_barrier on {doubt.storage.label()} as well, or instruction.depends_on(...) on both cores"
        if not after.write:
            session.report(
                "unwaited-read", f"core {after.slot} reads {doubt.storage.label()} and nothing waits for the transfer into it",
                detail=f"{who}; {barrier}", code="NKI-UNWAITED", fix=fix, place=after.place,
            )  # fmt: skip
        else:
            session.report(
                "race", f"core {after.slot} writes {doubt.storage.label()} and nothing orders it after the other core's access",
                detail=f"{who}; {barrier}", code="NKI-RACE", fix=fix, place=after.place,
            )  # fmt: skip


def _ordered(session: Session, cores: list[Core], doubt: Doubt) -> bool:
    """Whether the later access waits for the earlier one, through instructions of both cores and where they met."""
    step = session.cores_per_rank
    first = next(core.index for core in cores if core.log is not None and _holds(core, doubt.after)) // step * step
    logs = {slot: cores[first + slot].log or () for slot in (doubt.before.slot, doubt.after.slot)}
    for log in logs.values():
        if isinstance(log, deque) and len(log) == log.maxlen and log[0].sequence > doubt.before.sequence:
            return True  # too long ago to tell
    entries = sorted(
        ((entry.sequence, slot, entry) for slot, log in logs.items() for entry in log
         if doubt.before.sequence <= entry.sequence <= doubt.after.sequence),
        key=lambda item: (-item[0], item[2].meeting is None),
    )  # fmt: skip
    wanted = _Wanted(session)
    at = 0
    while at < len(entries):
        sequence = entries[at][0]
        group = [item for item in entries[at : at + 2] if item[0] == sequence]
        at += len(group)
        if sequence == doubt.after.sequence or any(wanted.has(slot, entry) for _, slot, entry in group):
            if sequence == doubt.before.sequence:
                return True
            for _, slot, entry in group:
                wanted.add(slot, entry)
    return False


def _holds(core: Core, access: Access) -> bool:
    return any(entry.sequence == access.sequence for entry in reversed(core.log or ()))


class _Wanted:
    """What the instructions that were found to come before wait for, core by core."""

    def __init__(self, session: Session):
        self.writers: set[tuple[int, int]] = set()  # (core, storage): whoever wrote it before comes before
        self.users: set[tuple[int, int]] = set()  # whoever read or wrote it
        self.blocks: set[tuple[int, int]] = set()
        self.numbers: set[int] = set()
        self.edges: dict[int, list[int]] = {}
        for later, earlier in session.edges:
            self.edges.setdefault(later, []).append(earlier)

    def has(self, slot: int, entry: Entry) -> bool:
        return (
            entry.own in self.numbers
            or (entry.block is not None and (slot, entry.block) in self.blocks)
            or any((slot, number) in self.writers for number in entry.writes)
            or any((slot, number) in self.users for number in (*entry.reads, *entry.writes))
        )

    def add(self, slot: int, entry: Entry) -> None:
        self.writers.update((slot, number) for number in entry.reads)
        self.users.update((slot, number) for number in entry.writes)
        if entry.block is not None:
            self.blocks.add((slot, entry.block))
        self.numbers.update(self.edges.get(entry.own, ()))
