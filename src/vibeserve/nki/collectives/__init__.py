"""`nki.collectives`: exchange among ranks. Several ranks run in one process: `nki.simulate_ranks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vibeserve.nki import access
from vibeserve.nki.context import Core, current_core
from vibeserve.nki.errors import KernelError
from vibeserve.nki.instruction import instruction
from vibeserve.nki.isa.reductions import reduction_named
from vibeserve.nki.ops import Op, apply
from vibeserve.nki.registers import VirtualRegister
from vibeserve.nki.tensor import NkiTensor

__all__ = [
    "ReplicaGroup", "all_gather", "all_gather_v", "all_reduce", "all_to_all", "all_to_all_v", "collective_permute",
    "collective_permute_implicit", "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce", "rank_id", "reduce_scatter",
]  # fmt: skip


@dataclass(frozen=True)
class ReplicaGroup:
    """Disjoint lists of ranks; each list exchanges among itself."""

    ranks: Any

    def __init__(self, ranks: Any):
        try:
            groups = tuple(tuple(int(rank) for rank in group) for group in ranks)
        except (TypeError, ValueError):
            raise KernelError(
                f"ReplicaGroup({ranks!r})",
                code="NKI-COLLECTIVE",
                rule="lists of ranks",
                fix="ncc.ReplicaGroup([[0, 1]])",
            ) from None
        flat = [rank for group in groups for rank in group]
        if len(set(flat)) != len(flat):
            raise KernelError(f"ReplicaGroup({ranks!r})", code="NKI-COLLECTIVE", rule="disjoint lists of ranks")
        object.__setattr__(self, "ranks", groups)

    def of(self, rank: int) -> tuple[int, ...]:
        """The list that `rank` is in."""
        for group in self.ranks:
            if rank in group:
                return group  # type: ignore[no-any-return]
        raise KernelError(f"rank {rank} is in no list of {self!r}", code="NKI-COLLECTIVE")

    def __iter__(self) -> Any:
        return iter([list(group) for group in self.ranks])

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, index: int) -> list[int]:
        return list(self.ranks[index])


def _exchange(core: Core, group: tuple[int, ...], payload: Any, what: str) -> list[Any]:
    """What each rank of the group brought, in the group's order."""
    session = core.session
    if max(group) >= session.ranks:
        raise KernelError(
            f"{what} among ranks {list(group)}, of which {session.ranks} run", code="NKI-COLLECTIVE",
            fix="nki.simulate_ranks(kernel, ranks=N)(per-rank arguments)",
        )  # fmt: skip
    local = core.index % session.cores_per_rank
    parties = [rank * session.cores_per_rank + local for rank in group]
    key = (what, group, local, core.occurrence((what, group)))
    brought = core.meet(key, payload, parties, f"ncc.{what}")
    return [brought[party] for party in parties]


def _values(tensors: Any) -> list[np.ndarray]:
    return [np.array(access.read(tensor)) for tensor in tensors]


def _put(tensor: NkiTensor, values: np.ndarray) -> None:
    access.write(tensor, values)
    access.mark(tensor)


def _combine(op: Any, parts: list[np.ndarray]) -> np.ndarray:
    kind = reduction_named(op)
    wide = np.int64 if parts[0].dtype.kind in "iu" else np.float32
    total: np.ndarray = parts[0].astype(wide)
    for part in parts[1:]:
        total = apply(kind, total, part.astype(wide))
    return total.astype(parts[0].dtype) if wide is np.int64 else total


@instruction
def all_reduce(
    core: Core, srcs: Any, dsts: Any, replica_group: ReplicaGroup, op: Op, priority: Any = None, name: Any = None
) -> None:
    """Each dst = op over the ranks of src."""
    brought = _exchange(core, replica_group.of(core.rank), _values(srcs), "all_reduce")
    for at, dst in enumerate(dsts):
        _put(dst, _combine(op, [parts[at] for parts in brought]))


@instruction
def all_gather(
    core: Core,
    srcs: Any,
    dsts: Any,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: Any = None,
    name: Any = None,
) -> None:
    """Each dst = the ranks' src concatenated along collective_dim."""
    brought = _exchange(core, replica_group.of(core.rank), _values(srcs), "all_gather")
    for at, dst in enumerate(dsts):
        _put(dst, np.concatenate([parts[at] for parts in brought], axis=collective_dim))


@instruction
def reduce_scatter(
    core: Core,
    srcs: Any,
    dsts: Any,
    replica_group: ReplicaGroup,
    collective_dim: int,
    op: Op,
    priority: Any = None,
    name: Any = None,
) -> None:
    """Each dst = this rank's part, along collective_dim, of op over the ranks of src."""
    group = replica_group.of(core.rank)
    brought = _exchange(core, group, _values(srcs), "reduce_scatter")
    for at, dst in enumerate(dsts):
        total = _combine(op, [parts[at] for parts in brought])
        _put(dst, np.split(total, len(group), axis=collective_dim)[group.index(core.rank)])


@instruction
def all_to_all(
    core: Core,
    srcs: Any,
    dsts: Any,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: Any = None,
    name: Any = None,
) -> None:
    """Part j of this rank's src goes to rank j; dst is what came, in rank order."""
    group = replica_group.of(core.rank)
    brought = _exchange(core, group, _values(srcs), "all_to_all")
    mine = group.index(core.rank)
    for at, dst in enumerate(dsts):
        parts = [np.split(parts[at], len(group), axis=collective_dim)[mine] for parts in brought]
        _put(dst, np.concatenate(parts, axis=collective_dim))


def _metadata(tensor: NkiTensor, ranks: int) -> np.ndarray:
    return np.array(access.read(tensor)).reshape(-1, ranks).astype(np.int64)


def _store_counts(tensor: NkiTensor, table: np.ndarray, known: bool) -> None:
    if not known:
        _put(tensor, table.astype(np.uint32))


@instruction
def all_gather_v(
    core: Core,
    srcs: Any,
    dsts: Any,
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: Any = None,
    name: Any = None,
) -> None:
    """Each rank's src[displ : displ + count] into its slot (dst.size / ranks elements) of every dst."""
    group = replica_group.of(core.rank)
    table = _metadata(metadata_tensor, len(group))
    flat = np.array(access.read(srcs[0])).reshape(-1)
    count, start = int(table[0, 0]), int(table[1, 0])
    brought = _exchange(core, group, flat[start : start + count], "all_gather_v")
    out = np.array(access.read(dsts[0])).reshape(-1)
    slot = out.size // len(group)
    for at, part in enumerate(brought):
        if part.size > slot:
            raise KernelError(f"all_gather_v: {part.size} elements for a slot of {slot}", code="NKI-COLLECTIVE")
        out[at * slot : at * slot + part.size] = part
        table[2, at] = part.size
    _put(dsts[0], out)
    _store_counts(metadata_tensor, table, recv_counts_known)


@instruction
def all_to_all_v(
    core: Core,
    srcs: Any,
    dsts: Any,
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: Any = None,
    name: Any = None,
) -> None:
    """src[send_displs[j] : + send_counts[j]] goes to rank j; what comes from rank r lands at its displacement in dst."""
    group = replica_group.of(core.rank)
    table = _metadata(metadata_tensor, len(group))
    flat = np.array(access.read(srcs[0])).reshape(-1)
    parcels = [flat[table[1, j] : table[1, j] + table[0, j]] for j in range(len(group))]
    brought = _exchange(core, group, parcels, "all_to_all_v")
    mine = group.index(core.rank)
    out = np.array(access.read(dsts[0])).reshape(-1)
    slot = out.size // len(group)
    for at, parcels_of in enumerate(brought):
        part = parcels_of[mine]
        start = int(table[3, at]) if has_rdispls else at * slot
        if start + part.size > out.size:
            raise KernelError(f"all_to_all_v: {part.size} elements at {start} leave dst", code="NKI-COLLECTIVE")
        out[start : start + part.size] = part
        table[2, at] = part.size
    _put(dsts[0], out)
    _store_counts(metadata_tensor, table, recv_counts_known)


@instruction
def collective_permute(
    core: Core, srcs: Any, dsts: Any, source_target_pairs: Any, priority: Any = None, name: Any = None
) -> None:
    """Each (source, target) pair sends src of one rank into dst of the other."""
    everyone = tuple(range(core.session.ranks))
    brought = _exchange(core, everyone, _values(srcs), "collective_permute")
    for source, target in source_target_pairs:
        if target == core.rank:
            _put(dsts[0], brought[source][0])


@instruction
def collective_permute_implicit(
    core: Core,
    srcs_by_channel: Any,
    dsts_by_channel: Any,
    replica_group: ReplicaGroup,
    channel_ids: Any = (0,),
    priority: Any = None,
    name: Any = None,
) -> None:
    """A ring shift: send to the successor in the group, receive from the predecessor; one tensor a channel."""
    group = replica_group.of(core.rank)
    brought = _exchange(core, group, _values(_flat(srcs_by_channel)), "collective_permute_implicit")
    before = brought[group.index(core.rank) - 1]
    for dst, values in zip(_flat(dsts_by_channel), before, strict=True):
        _put(dst, values)


@instruction
def collective_permute_implicit_reduce(
    core: Core,
    srcs0_by_channel: Any,
    srcs1_by_channel: Any,
    dsts_by_channel: Any,
    replica_group: ReplicaGroup,
    op: Op,
    channel_ids: Any = (0,),
    priority: Any = None,
    name: Any = None,
) -> None:
    """Send op(src0, src1) to the successor, receive the predecessor's."""
    group = replica_group.of(core.rank)
    pairs = zip(_values(_flat(srcs0_by_channel)), _values(_flat(srcs1_by_channel)), strict=True)
    brought = _exchange(core, group, [_combine(op, [a, b]) for a, b in pairs], "collective_permute_implicit_reduce")
    before = brought[group.index(core.rank) - 1]
    for dst, values in zip(_flat(dsts_by_channel), before, strict=True):
        _put(dst, values)


def _flat(channels: Any) -> list[NkiTensor]:
    found: list[NkiTensor] = []
    for item in channels:
        found.extend(item if isinstance(item, list | tuple) else [item])
    return found


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int, replica_group: ReplicaGroup, channel_id: int = 0, name: Any = None
) -> VirtualRegister:
    """A register with the rank whose data is here after `iteration_id` ring shifts."""
    core = current_core("ncc.collective_permute_implicit_current_processing_rank_id")
    if not isinstance(replica_group, ReplicaGroup) or not isinstance(iteration_id, int | np.integer):
        raise KernelError(
            f"iteration_id={iteration_id!r}, replica_group={replica_group!r}", code="NKI-COLLECTIVE",
            rule="an int and a ReplicaGroup",
        )  # fmt: skip
    group = replica_group.of(core.rank)
    return VirtualRegister(group[(group.index(core.rank) - int(iteration_id)) % len(group)])


def rank_id(name: Any = None) -> VirtualRegister:
    """A register with this rank's number."""
    return VirtualRegister(current_core("ncc.rank_id").rank)
