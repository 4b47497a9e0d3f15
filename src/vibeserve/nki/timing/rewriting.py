"""What a compiler changes before it orders instructions: transposes share a copy out of PSUM, copies may go to either engine.

The list schedule works on a rewritten copy of what was recorded; counts of FLOPs and HBM bytes stay as they were.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from vibeserve.nki.timing.ops import Plan, describe, free_elements, is_transpose
from vibeserve.nki.timing.recorder import Recorder

BANK_BYTES = 2048
_FAR = 64


@dataclass(slots=True)
class _Group:
    """Copies that may become one: their indices, plan, destination, and the PSUM tiles that they read."""

    indices: list[int]
    plan: Plan
    target: int
    offset: int
    sources: list[int]

    @property
    def columns(self) -> int:
        return free_elements(self.plan.operands[0])


def share_copies(recorder: Recorder) -> Recorder:
    """A copy of a recorded run in which neighbouring copies of transposes out of PSUM, into neighbouring columns of one
    tile, are one copy (of a PSUM bank at most)."""
    groups = [group for group in _groups(recorder) if len(group.indices) > 1]
    made = copy.copy(recorder)
    made.forms = list(recorder.forms)
    gone: set[int] = set()
    replaced: dict[int, tuple[Plan, tuple[int, ...]]] = {}
    wider: dict[tuple[Plan, int], Plan] = {}
    for group in groups:
        *others, last = group.indices
        gone.update(others)
        key = (group.plan, len(group.indices))
        if key not in wider:
            wider[key] = _wide(made, group)
        places = recorder.locations[group.indices[0]][:2]
        for index in group.indices:
            places += recorder.locations[index][2:4]
        replaced[last] = (wider[key], places)
    kept = [index for index in range(len(recorder.plans)) if index not in gone]
    made.plans = [replaced[index][0] if index in replaced else recorder.plans[index] for index in kept]
    made.locations = [replaced[index][1] if index in replaced else recorder.locations[index] for index in kept]
    made.cores = [recorder.cores[index] for index in kept]
    made.sites = [recorder.sites[index] for index in kept]
    where = {old: new for new, old in enumerate(kept)}
    for group in groups:
        where.update(dict.fromkeys(group.indices, where[group.indices[-1]]))
    made.names = {where[index]: name for index, name in recorder.names.items()}
    made.edges = [(where[later], where[earlier]) for later, earlier in recorder.edges if where[later] != where[earlier]]
    made.last_use = {}
    for index, places in enumerate(made.locations):
        for storage in places[::2]:
            made.last_use[storage] = index
    return made


def _wide(made: Recorder, group: _Group) -> Plan:
    """The plan of one copy for a whole group: one wide destination, all its sources."""
    count = len(group.indices)
    target, source = group.plan.operands
    target = replace(target, shape=(target.shape[0], count * group.columns), strides=(target.strides[0], 1))
    sources = [replace(source, role="src" if i == 0 else f"src{i}") for i in range(count)]
    return made.make(group.plan.opcode, group.plan.engine, (target, *sources), group.plan.params)


def _groups(recorder: Recorder) -> list[_Group]:
    found: list[_Group] = []
    turned: dict[int, int] = {}  # PSUM tile: the transposes that wrote it; -1 where anything else did
    open_groups: dict[int, _Group] = {}
    for index, (plan, places) in enumerate(zip(recorder.plans, recorder.locations, strict=True)):
        copies = _may_share(plan) and turned.get(places[2]) == 1
        if copies:
            target, offset, source = places[0], places[1], places[2]
            group = open_groups.get(target)
            size = free_elements(plan.operands[1]) * plan.operands[1].itemsize
            if (
                group is not None
                and group.plan is plan
                and offset == group.offset + len(group.indices) * group.columns
                and (len(group.indices) + 1) * size <= BANK_BYTES
                and index - group.indices[-1] <= _FAR
                and source not in group.sources
            ):
                group.indices.append(index)
                group.sources.append(source)
            else:
                open_groups[target] = _Group([index], plan, target, offset, [source])
                found.append(open_groups[target])
            turned[source] = -1
            continue
        moves = plan.engine == "tensor" and is_transpose(plan)
        for at, operand in enumerate(plan.operands):
            storage = places[2 * at]
            open_groups.pop(storage, None)
            if operand.region == "psum":
                turned[storage] = (
                    turned.get(storage, 0) + 1 if moves and operand.write and turned.get(storage) != -1 else -1
                )
    return found


def _may_share(plan: Plan) -> bool:
    """Whether a plan is a plain two-dimensional copy from a PSUM tile to SBUF."""
    if plan.opcode != "tensor_copy" or len(plan.operands) != 2:
        return False
    target, source = plan.operands
    return (
        target.region == "sbuf"
        and source.region == "psum"
        and len(target.shape) == 2
        and target.strides[-1] == 1
        and not (target.dynamic or target.indirect or source.dynamic or source.indirect)
    )


def either_engine(plan: Plan) -> bool:
    """Whether a copy may go to the scalar or the vector engine: the kernel named none."""
    asked: Any = describe(plan.params.get("engine", "unknown"))
    return plan.opcode == "tensor_copy" and asked == "unknown" and plan.engine in ("vector", "scalar")
