"""Rules of the DMA instructions alone."""

from __future__ import annotations

from vibeserve.nki.isa.dma import AXES
from vibeserve.nki.isa.enums import dge_mode, engine, oob_mode
from vibeserve.nki.ops import Op
from vibeserve.nki.rules import Call
from vibeserve.nki.special.operands import _t
from vibeserve.nki.tensor import NkiTensor


def dma_counts(call: Call) -> None:
    dst, src = _t(call, "dst"), _t(call, "src")
    if dst.size != src.size:
        call.fail(
            f"src has {src.size} elements and dst {dst.size}",
            code="S-ELEMENTS",
            rule="equal element counts; shapes may differ",
        )


def dma_casts(call: Call) -> None:
    dst, src = _t(call, "dst"), _t(call, "src")
    if dst.dtype is not src.dtype and "packed" in (dst.dtype.kind, src.dtype.kind):
        call.fail(
            f"{src.dtype} to {dst.dtype}", code="S-DTYPE", rule="packed types are never cast", fix="src.view(dst.dtype)"
        )


def dma_descriptors(call: Call) -> None:
    dst, src = _t(call, "dst"), _t(call, "src")
    mode = call.args["dge_mode"]
    vector = dst.rows is not None or src.rows is not None
    _one_row_a_lane(call, dst, src)
    if mode is dge_mode.hwdge:
        if call.target.number < 3:
            call.fail("dge_mode=hwdge on " + call.target.name, code="S-HWDGE-V2", rule="trn2 and later")
        if dst.dtype is not src.dtype:
            call.fail(
                f"dge_mode=hwdge from {src.dtype} to {dst.dtype}", code="B2-HWDGE-TYPE", rule="hwdge moves raw bytes",
                fix="equal dtypes (.view), or swdge or none for a cast",
            )  # fmt: skip
    if vector and mode in (dge_mode.hwdge, dge_mode.none):
        call.fail(
            f"dge_mode={mode.name} with vector_offset",
            code="S-VOFF",
            rule="vector_offset takes swdge",
            fix="leave dge_mode out",
        )


def _one_row_a_lane(call: Call, *tensors: NkiTensor) -> None:
    """Row numbers are a column: one for each lane (only dma_transpose takes several columns of them)."""
    for tensor in tensors:
        if tensor.rows is not None and tensor.rows.index.size != tensor.rows.index.shape[0]:
            call.fail(
                f"vector_offset of shape {list(tensor.rows.index.shape)}", code="S-VOFF",
                rule=f"({tensor.shape[0]}, 1), one for each row",
            )  # fmt: skip


def dma_priority(call: Call) -> None:
    priority = call.args["priority"]
    if priority is None:
        return
    if call.target.number < 4:
        call.fail(f"priority on {call.target.name}", code="S-HWDGE-V2", rule="trn3 and later")
    if priority not in (0, 1, 2, 3):
        call.fail(f"priority={priority!r}", code="NKI-OPERAND", rule="0 to 3")


def dma_copy_engine(call: Call) -> None:
    chosen = call.args["engine"]
    if chosen is engine.unknown:
        return
    if call.args["dge_mode"] is not dge_mode.hwdge or chosen not in (engine.sync, engine.scalar):
        call.fail(f"engine={chosen!r}", code="S-ENGINE", rule="sync or scalar, and only with dge_mode=hwdge")


def dma_skip_needs_index(call: Call) -> None:
    if call.args["oob_mode"] is not oob_mode.skip:
        return
    if not any(tensor.is_indirect() for tensor in call.tensors().values()):
        call.fail("oob_mode=skip without an index", code="V4-OOBSKIP", rule="skip is for run-time indexes")


def transpose_axes(call: Call) -> None:
    dst, src = _t(call, "dst"), _t(call, "src")
    axes = call.args["axes"]
    expected = AXES.get(src.ndim)
    order = expected if axes is None else tuple(axes) if isinstance(axes, list | tuple) else axes
    if expected is None or order != expected:
        call.fail(f"axes {order} for rank {src.ndim}", code="V4-DMAT-RANK", rule="(1,0), (2,1,0) or (3,1,2,0), by rank")
    wanted = tuple(src.shape[axis] for axis in order)
    if dst.shape != wanted:
        call.fail(
            f"dst has shape {list(dst.shape)}", code="V4-DMAT-RANK", rule=f"the transposed shape of src, rank included: {list(wanted)}",
            fix=f"dst.reshape({wanted}) where the elements allow it",
        )  # fmt: skip


def transpose_descriptors(call: Call) -> None:
    src, mode = _t(call, "src"), call.args["dge_mode"]
    indirect = src.rows is not None
    if not indirect:
        if call.args["oob_mode"] is oob_mode.skip:
            call.fail("oob_mode=skip with a direct src", code="V4-OOBSKIP", rule="skip is for an indirect src")
        if mode in (dge_mode.none, dge_mode.swdge):
            call.fail(f"dge_mode={mode.name}", code="S-DMAT-DGE", rule="unknown or hwdge for a direct transpose")
        if mode is dge_mode.hwdge:
            _hwdge_transpose(call, src)
        return
    if call.target.number < 3:
        call.fail(f"an indirect src on {call.target.name}", code="S-GENERATION", rule="trn2 and later")
    if mode is dge_mode.hwdge:
        call.fail("dge_mode=hwdge with an indirect src", code="S-DMAT-DGE", rule="unknown or swdge")
    if src.dtype.itemsize != 2 or src.shape[-1] > 128 or src.shape[0] % 16:
        call.fail(
            f"indirect src {src!r}", code="S-DMAT-SHAPE", rule="2-byte dtype, last dim <= 128, rows a multiple of 16"
        )
    if src.ndim == 4 and 1 not in src.shape[1:3]:
        call.fail(f"indirect src {src!r}", code="S-DMAT-SHAPE", rule="of rank 4, dimension 1 or 2 has size 1")
    assert src.rows is not None
    _transpose_index(call, src.rows.index)


def _transpose_index(call: Call, index: NkiTensor) -> None:
    parts, columns = index.shape[0], index.size // index.shape[0]
    if index.dtype.name != "uint32" or index.ndim != 2:
        call.fail(f"row numbers {index!r}", code="S-VOFF", rule="a 2-D uint32 tile")
    if not 16 <= parts <= 128 or parts % 16 or (columns > 1 and parts != 128):
        call.fail(
            f"row numbers {index!r}", code="S-VOFF",
            rule="16 to 128 partitions, a multiple of 16; 128 where there are several columns",
        )  # fmt: skip


def _hwdge_transpose(call: Call, src: NkiTensor) -> None:
    if call.target.number < 3:
        call.fail("dge_mode=hwdge on " + call.target.name, code="S-HWDGE-V2", rule="trn2 and later")
    rows_ok = (
        src.shape[0] == 16
        if src.ndim == 2
        else src.shape[0] in (1, 2, 4, 8, 16) and src.shape[0] * src.shape[-2] % 16 == 0
    )
    if src.dtype.itemsize != 2 or src.shape[-1] > 128 or not rows_ok:
        call.fail(
            f"dge_mode=hwdge with src {src!r}", code="S-DMAT-SHAPE",
            rule="2-byte dtype, last dim <= 128, 16 rows (rank 3 and 4: 1, 2, 4, 8 or 16, and rows * dim -2 a multiple of 16)",
        )  # fmt: skip


def compute_sources(call: Call) -> None:
    dst, srcs = _t(call, "dst"), call.args["srcs"]
    if (
        not isinstance(srcs, list | tuple)
        or not 1 <= len(srcs) <= 16
        or not all(isinstance(s, NkiTensor) for s in srcs)
    ):
        call.fail(f"srcs={srcs!r}", code="NKI-OPERAND", rule="a list of 1 to 16 tensors")
    op = call.args["reduce_op"]
    if not isinstance(op, Op) or op.name != "add":
        call.fail(
            f"reduce_op={op!r}", code="NKI-OPERAND" if isinstance(op, Op) else "B2-DMACOMPUTE-ORDER",
            rule="nl.add; the order is dst, srcs, reduce_op, scales",
        )  # fmt: skip
    if any(source.size != dst.size for source in srcs):
        call.fail("sources of other sizes than dst", code="S-ELEMENTS", rule="equal element counts")
    scales = call.args["scales"]
    if scales is not None and not isinstance(scales, list | tuple):
        call.fail(f"scales={scales!r}", code="NKI-OPERAND", rule="a list with a number for each source")
    if scales is not None and any(float(scale) != 1.0 for scale in scales):
        call.fail(f"scales={scales!r}", code="NKI-OPERAND", rule="1.0 each")
    if not any(tensor.rows is not None for tensor in (dst, *srcs)):
        return
    _one_row_a_lane(call, dst, *srcs)
    if call.args["unique_indices"] is not True:
        call.fail("unique_indices=False with vector_offset", code="S-VOFF", rule="indices do not repeat")
