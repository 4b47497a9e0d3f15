"""Rules of the collectives alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vibeserve.nki.rules import Call
from vibeserve.nki.tensor import NkiTensor


def _listed(call: Call, *names: str) -> list[NkiTensor]:
    found: list[NkiTensor] = []
    for name in names:
        value = call.args[name]
        if not isinstance(value, list | tuple) or not value:
            call.fail(f"{name}={value!r}", code="NKI-COLLECTIVE", rule="a list of tensors")
        for item in value:
            found.extend(item if isinstance(item, list | tuple) else [item])
    for tensor in found:
        if not isinstance(tensor, NkiTensor):
            call.fail(f"{tensor!r} among {' and '.join(names)}", code="NKI-COLLECTIVE", rule="tensors")
    return found


def _group_size(call: Call) -> int:
    """The number of ranks that exchange with this one."""
    from vibeserve.nki.collectives import ReplicaGroup
    from vibeserve.nki.context import current_core

    group = call.args["replica_group"]
    if not isinstance(group, ReplicaGroup):
        call.fail(
            f"replica_group={group!r}", code="NKI-COLLECTIVE", rule="a ReplicaGroup", fix="ncc.ReplicaGroup([[0, 1]])"
        )
    if len({len(ranks) for ranks in group.ranks}) > 1:
        call.fail(f"replica_group={group!r}", code="NKI-COLLECTIVE", rule="lists of equally many ranks")
    return len(group.of(current_core("replica_group").rank))


def collective_operands(call: Call) -> None:
    tensors = _listed(call, "srcs", "dsts")
    if len(call.args["srcs"]) != len(call.args["dsts"]):
        call.fail(
            f"{len(call.args['srcs'])} srcs and {len(call.args['dsts'])} dsts",
            code="NKI-COLLECTIVE",
            rule="a dst for each src",
        )
    if len({tensor.on_chip for tensor in tensors}) > 1 or any(tensor.buffer.value == "psum" for tensor in tensors):
        call.fail("tensors in different memories", code="NKI-COLLECTIVE", rule="all in HBM, or all in SBUF")
    if tensors[0].on_chip and len(call.args["srcs"]) > 1:
        call.fail("several SBUF tensors in a call", code="NKI-COLLECTIVE", rule="one; several only in HBM")
    _not_inputs(call, call.args["srcs"])


def _not_inputs(call: Call, sources: Any) -> None:
    for source in sources:
        if source.storage.external:
            call.fail(
                "a kernel input as source",
                code="NKI-COLLECTIVE",
                rule="sources are tensors of the kernel",
                fix="copy it with nisa.dma_copy first",
            )


def gather_dim(call: Call) -> None:
    dim = call.args["collective_dim"]
    on_chip = call.args["srcs"][0].on_chip
    if dim not in ((0, 1) if on_chip else (0,)):
        call.fail(f"collective_dim={dim!r}", code="NKI-COLLECTIVE", rule="0 in HBM; 0 or 1 in SBUF")
    if on_chip and call.args["srcs"][0].ndim != 2:
        call.fail(f"src {call.args['srcs'][0]!r}", code="NKI-COLLECTIVE", rule="SBUF tensors of 2 dimensions")


def reduced_shapes(call: Call) -> None:
    """all_reduce: dst like src."""
    _group_size(call)
    _shapes(call, lambda shape: shape)


def gathered_shapes(call: Call) -> None:
    """all_gather: dst has as many src along the dimension as there are ranks."""
    ranks, dim = _group_size(call), call.args["collective_dim"]
    _shapes(call, lambda shape: (*shape[:dim], shape[dim] * ranks, *shape[dim + 1 :]))


def scattered_shapes(call: Call) -> None:
    """reduce_scatter: dst is a rank's part of src along dimension 0."""
    ranks = _group_size(call)
    _divided(call, ranks)
    _shapes(call, lambda shape: (shape[0] // ranks, *shape[1:]))


def exchanged_shapes(call: Call) -> None:
    """all_to_all: dst like src, which has a part for each rank along dimension 0."""
    _divided(call, _group_size(call))
    _shapes(call, lambda shape: shape)


def _divided(call: Call, ranks: int) -> None:
    for src in call.args["srcs"]:
        if src.shape[0] % ranks:
            call.fail(
                f"src {src!r} among {ranks} ranks", code="NKI-COLLECTIVE", rule="dimension 0 is a multiple of them"
            )


def _shapes(call: Call, wanted: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    for src, dst in zip(call.args["srcs"], call.args["dsts"], strict=True):
        shape = wanted(src.shape)
        if dst.shape != shape or dst.dtype is not src.dtype:
            call.fail(f"src {src!r} and dst {dst!r}", code="NKI-COLLECTIVE", rule=f"dst is {src.dtype}{list(shape)}")


def metadata_rows(call: Call) -> None:
    """The metadata of exchanges of any size: counts and displacements for each rank."""
    ranks, table, extra = _group_size(call), call.args["metadata_tensor"], call.args["has_rdispls"]
    gather = call.spec.name == "all_gather_v"
    if gather and extra:
        call.fail("has_rdispls=True", code="NKI-COLLECTIVE", rule="not supported by all_gather_v")
    legal = (3,) if gather else (4,) if extra else (3, 4)
    if table.size not in [rows * ranks for rows in legal]:
        call.fail(
            f"metadata of shape {list(table.shape)} for {ranks} ranks", code="NKI-COLLECTIVE",
            rule=f"{' or '.join(map(str, legal))} rows of {ranks}: send counts, send displacements, receive counts"
            + (", receive displacements" if not gather else ""),
        )  # fmt: skip


def permuted_pairs(call: Call) -> None:
    """collective_permute: (source, target) pairs."""
    pairs = call.args["source_target_pairs"]
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        call.fail(f"source_target_pairs={pairs!r}", code="NKI-COLLECTIVE", rule="a list of (source, target) ranks")
    _shapes(call, lambda shape: shape)


def dim_zero(call: Call) -> None:
    if call.args["collective_dim"] != 0:
        call.fail(f"collective_dim={call.args['collective_dim']!r}", code="NKI-COLLECTIVE", rule="0")


def single_tensors(call: Call) -> None:
    if len(call.args["srcs"]) != 1:
        call.fail("several tensors in a call", code="NKI-COLLECTIVE", rule="one src and one dst")


def channels(call: Call) -> None:
    given = call.args["channel_ids"]
    ids = list(given) if isinstance(given, list | tuple) else [given]
    if ids != list(range(len(ids))) or not 1 <= len(ids) <= 4:
        call.fail(f"channel_ids={given!r}", code="NKI-COLLECTIVE", rule="consecutive from 0, at most 4")
    _group_size(call)
    for name in call.args:
        if not name.startswith(("srcs", "dsts")):
            continue
        tensors = _listed(call, name)
        if len(tensors) != len(ids):
            call.fail(
                f"{len(tensors)} {name} for {len(ids)} channels",
                code="NKI-COLLECTIVE",
                rule="one tensor for each channel",
            )
        if name.startswith("srcs"):
            _not_inputs(call, tensors)
