"""Rules that one instruction has alone; named under `special` (or `engine_rule`) in the data files."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import dtypes as dt
from vibeserve.nki.dtypes import FP32_MIN
from vibeserve.nki.isa.dma import AXES
from vibeserve.nki.isa.enums import dge_mode, dma_engine, engine, matmul_perf_mode, oob_mode, reduce_cmd
from vibeserve.nki.ops import OPS, Op, is_bit, is_unary
from vibeserve.nki.registers import VirtualRegister
from vibeserve.nki.rules import RULES, Call, _free, rule
from vibeserve.nki.tensor import NkiTensor

BANK = 2048


def _t(call: Call, name: str) -> NkiTensor:
    tensor = call.tensor(name)
    assert tensor is not None
    return tensor


def _psum(call: Call) -> bool:
    return any(tensor.buffer.value == "psum" for tensor in call.tensors().values())


# -- DMA -------------------------------------------------------------------------------------------------------------


def dma_counts(call: Call) -> None:
    dst, src = _t(call, "dst"), _t(call, "src")
    if dst.size != src.size:
        call.fail(
            f"src has {src.size} elements and dst {dst.size}", code="S-ELEMENTS", rule="equal element counts; shapes may differ"
        )


def dma_casts(call: Call) -> None:
    dst, src = _t(call, "dst"), _t(call, "src")
    if dst.dtype is not src.dtype and "packed" in (dst.dtype.kind, src.dtype.kind):
        call.fail(f"{src.dtype} to {dst.dtype}", code="S-DTYPE", rule="packed types are never cast", fix="src.view(dst.dtype)")


def dma_descriptors(call: Call) -> None:
    dst, src = _t(call, "dst"), _t(call, "src")
    mode = call.args["dge_mode"]
    vector = dst.rows is not None or src.rows is not None
    if mode is dge_mode.hwdge:
        if call.target.number < 3:
            call.fail("dge_mode=hwdge on " + call.target.name, code="S-HWDGE-V2", rule="trn2 and later")
        if dst.dtype is not src.dtype:
            call.fail(
                f"dge_mode=hwdge from {src.dtype} to {dst.dtype}", code="B2-HWDGE-TYPE", rule="hwdge moves raw bytes",
                fix="equal dtypes (.view), or swdge or none for a cast",
            )  # fmt: skip
    if vector and mode in (dge_mode.hwdge, dge_mode.none):
        call.fail(f"dge_mode={mode.name} with vector_offset", code="S-VOFF", rule="vector_offset takes swdge", fix="leave dge_mode out")


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
    order = expected if axes is None else tuple(axes)
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
        call.fail(f"indirect src {src!r}", code="S-DMAT-SHAPE", rule="2-byte dtype, last dim <= 128, rows a multiple of 16")


def _hwdge_transpose(call: Call, src: NkiTensor) -> None:
    if call.target.number < 3:
        call.fail("dge_mode=hwdge on " + call.target.name, code="S-HWDGE-V2", rule="trn2 and later")
    rows_ok = src.shape[0] == 16 if src.ndim == 2 else src.shape[0] in (1, 2, 4, 8, 16) and src.shape[0] * src.shape[-2] % 16 == 0
    if src.dtype.itemsize != 2 or src.shape[-1] > 128 or not rows_ok:
        call.fail(
            f"dge_mode=hwdge with src {src!r}", code="S-DMAT-SHAPE",
            rule="2-byte dtype, last dim <= 128, 16 rows (rank 3 and 4: 1, 2, 4, 8 or 16, and rows * dim -2 a multiple of 16)",
        )  # fmt: skip


def compute_sources(call: Call) -> None:
    dst, srcs = _t(call, "dst"), call.args["srcs"]
    if not isinstance(srcs, list | tuple) or not 1 <= len(srcs) <= 16 or not all(isinstance(s, NkiTensor) for s in srcs):
        call.fail(f"srcs={srcs!r}", code="NKI-OPERAND", rule="a list of 1 to 16 tensors")
    op = call.args["reduce_op"]
    if not isinstance(op, Op) or op.name != "add":
        call.fail(f"reduce_op={op!r}", code="B2-DMACOMPUTE-ORDER", rule="nl.add; the order is dst, srcs, reduce_op, scales")
    if any(source.size != dst.size for source in srcs):
        call.fail("sources of other sizes than dst", code="S-ELEMENTS", rule="equal element counts")
    scales = call.args["scales"]
    if scales is not None and any(float(scale) != 1.0 for scale in scales):
        call.fail(f"scales={scales!r}", code="NKI-OPERAND", rule="1.0 each")
    vector = any(tensor.rows is not None for tensor in (dst, *srcs))
    if vector and call.args["unique_indices"] is not True:
        call.fail("unique_indices=False with vector_offset", code="S-VOFF", rule="indices do not repeat")


# -- vector ----------------------------------------------------------------------------------------------------------


def no_packed_cast(call: Call) -> None:
    dma_casts(call)


def memset_value(call: Call) -> None:
    dst, value = _t(call, "dst"), call.args["value"]
    if isinstance(value, bool | np.bool_):
        value = int(value)
    if not isinstance(value, int | float | np.number):
        call.fail(f"value={value!r}", code="NKI-OPERAND", rule="a number known when the kernel is built")
    if dst.dtype.kind == "packed":
        if value != 0:
            call.fail(f"value={value!r} into {dst.dtype}", code="B2-MEMSET-X4", rule="0 only")
        return
    if dst.dtype.is_int and isinstance(value, float | np.floating):
        call.fail(f"value={value!r} into {dst.dtype}", code="B2-MEMSET-TYPE", rule="a literal of the tile's kind", fix=f"value={int(value) if np.isfinite(value) else 0}")


def tensor_tensor_engine(call: Call) -> str:
    op = call.args["op"]
    if isinstance(op, Op) and op.name == "power":
        if _psum(call):
            call.fail("op=nl.power with a PSUM operand", code="S-GPS-PSUM", rule="power runs on gpsimd, which reaches SBUF only")
        return "gpsimd"
    integers = all(tensor.dtype.name in ("int32", "uint32") for tensor in call.tensors().values())
    bits = isinstance(op, Op) and is_bit(op)
    return "gpsimd" if integers and not bits and not _psum(call) else "vector"


def bits_on_vector(call: Call) -> None:
    for name in ("op", "op0", "op1"):
        op = call.args.get(name)
        if isinstance(op, Op) and is_bit(op) and call.engine != "vector":
            call.fail(f"{name}={op!r} on the {call.engine} engine", code="S-ENGINE", rule="bit operators run on the vector engine")


def second_not_indirect(call: Call) -> None:
    if _t(call, "data2").lanes is not None:
        call.fail("data2 is indirect", code="S-TI", rule="dst and data1 only")


def tensor_scalar_engine(call: Call) -> str:
    names = {op.name for op in (call.args["op0"], call.args["op1"]) if isinstance(op, Op)}
    if "rsqrt" in names:
        if _psum(call):
            call.fail("nl.rsqrt with a PSUM operand", code="V5-RSQRT-PSUM", rule="rsqrt runs on gpsimd, which reaches SBUF only", fix="nisa.activation(op=nl.rsqrt)")
        return "gpsimd"
    return "vector"


def scalar_stages(call: Call) -> None:
    op0, op1 = call.args["op0"], call.args["op1"]
    if op1 is not None and is_bit(op0) != is_bit(op1):
        call.fail(f"op0={op0!r} with op1={op1!r}", code="S-BITVEC", rule="both bit operators, or both arithmetic")
    if op1 is None and call.args["operand1"] is not None:
        call.fail("operand1 without op1", code="NKI-OPERAND", rule="both or neither")
    for op, name in ((op0, "operand0"), (op1, "operand1")):
        value = call.args[name]
        if op is None:
            continue
        if is_unary(op):
            if isinstance(value, NkiTensor) or (value is not None and value != 0):
                call.fail(f"{name}={value!r} with the unary {op!r}", code="NKI-OPERAND", rule="None or 0")
        elif value is None:
            call.fail(f"{op!r} without {name}", code="NKI-OPERAND", rule="a number or a [P, 1] tile")
        elif is_bit(op) and isinstance(value, float | np.floating):
            call.fail(f"{name}={value!r} with {op!r}", code="S-BITVEC", rule="an integer")


def scalar_operand_dtypes(call: Call) -> None:
    op0 = call.args["op0"]
    if isinstance(op0, Op) and is_bit(op0):
        return
    data = call.tensor("data")
    for name in ("operand0", "operand1"):
        tensor = call.tensor(name)
        if tensor is None or tensor.dtype is dt.float32:
            continue
        addresses = tensor.dtype.name in ("int32", "uint32") and data is not None and data.dtype.name in ("int32", "uint32")
        if not addresses:
            call.fail(
                f"{name} is {tensor.dtype}", code="S-SCALAROP", rule="a float32 [P, 1] tile (32-bit integers with 32-bit integer data)",
                fix="copy it into a float32 tile with nisa.tensor_copy",
            )  # fmt: skip


_SCALAR_PAIRS = {("multiply", "add"), ("multiply", None), ("add", None)}


def scalar_engine_pairs(call: Call) -> None:
    op0, op1 = call.args["op0"], call.args["op1"]
    pair = (op0.name, None if op1 is None else op1.name)
    if call.engine == "scalar" and pair not in _SCALAR_PAIRS:
        call.fail(f"operators {pair} on the scalar engine", code="S-ENGINE", rule="(multiply, add), (multiply), (add)")
    if call.engine == "gpsimd" and "rsqrt" not in pair and "power" not in pair:
        call.fail(f"operators {pair} on the gpsimd engine", code="S-ENGINE", rule="rsqrt only", fix="engine=nisa.engine.vector")


def reduce_axes(call: Call) -> None:
    data, dst, axis = _t(call, "data"), _t(call, "dst"), call.args["axis"]
    given = [axis] if isinstance(axis, int) else axis
    if not isinstance(given, list | tuple) or not given or not all(isinstance(a, int) for a in given):
        call.fail(f"axis={axis!r}", code="B2-REDUCE-AXIS", rule="an int, or a list of ints")
    rank = data.ndim
    if any(not -rank <= a < rank for a in given):
        call.fail(f"axis={axis!r} for rank {rank}", code="B2-REDUCE-AXIS", rule="axes of data")
    axes = sorted(a % rank for a in given)
    if axes[0] == 0:
        call.fail("axis 0, the partition dimension", code="B2-REDUCE-AXIS", rule="free axes only", fix="nisa.nc_matmul with ones, or nisa.tensor_partition_reduce")
    if axes != list(range(rank - len(axes), rank)):
        call.fail(f"axis={axis!r} for rank {rank}", code="B2-REDUCE-AXIS", rule=f"a trailing run of axes, ending with {rank - 1}", fix="permute the view so that the reduced axes come last")
    kept = int(np.prod(data.shape[1 : axes[0]], dtype=np.int64))
    if _free(dst) != kept:
        call.fail(f"dst has {_free(dst)} elements in a partition", code="S-ELEMENTS", rule=f"{kept}, the kept axes of data")
    op = call.args["op"]
    if call.args["negate"] and is_bit(op):
        call.fail("negate with a bit operator", code="S-BITVEC", rule="arithmetic only")


def no_reverse0(call: Call) -> None:
    if call.args["reverse0"]:
        call.fail("reverse0=True", code="NKI-OPERAND", rule="not supported by this instruction")


@rule
def reduce_cmds(call: Call, argument: list[str]) -> None:
    """The accumulator commands of the instruction."""
    command = call.args["reduce_cmd"]
    if command.name not in argument:
        call.fail(f"reduce_cmd={command.name}", code="S-REDUCE-CMD", rule=f"one of {', '.join(argument)}")


@rule
def engine_rule(call: Call, argument: str) -> None:
    """Applied when the engine is chosen (see `rules._engine`)."""


def reduce_init_pair(call: Call) -> None:
    loads = call.args["reduce_cmd"] is reduce_cmd.load_reduce
    if loads != (call.args["reduce_init"] is not None):
        call.fail("reduce_init and reduce_cmd=load_reduce", code="S-REDUCE-CMD", rule="one needs the other")


def cumulative_start(call: Call) -> None:
    if call.args["reduce_cmd"] is reduce_cmd.load_reduce and call.args["imm1"] is None:
        call.fail("load_reduce without imm1", code="S-REDUCE-CMD", rule="imm1 is the start value")


# -- scalar ----------------------------------------------------------------------------------------------------------


def activation_bias(call: Call) -> None:
    bias = call.args["bias"]
    v2 = call.target.number < 3
    if isinstance(bias, NkiTensor):
        if bias.dtype is dt.tfloat32:
            call.fail("bias is tfloat32", code="S-DTYPE", rule="any other dtype")
    elif bias is not None and v2:
        call.fail(f"bias={bias!r} on {call.target.name}", code="S-ACT-BIAS", rule="a [P, 1] tile before trn2", fix="memset a [P, 1] tile and pass that")
    if v2 and bias is not None and call.args["op"] is OPS["reciprocal"]:
        call.fail(f"nl.reciprocal with bias on {call.target.name}", code="S-ACT-BIAS", rule="no bias before trn2")


_STAGES = {("multiply", "add"), ("multiply", "subtract"), ("multiply", "bypass"), ("add", "bypass"), ("subtract", "bypass"), ("bypass", "bypass")}


def activate2_stages(call: Call) -> None:
    pair = (call.args["op0"].name, call.args["op1"].name)
    if pair not in _STAGES:
        call.fail(f"operators {pair}", code="S-OP", rule=", ".join(f"({a}, {b})" for a, b in sorted(_STAGES)))
    for flag, op in (("reverse0", pair[0]), ("reverse1", pair[1])):
        if call.args[flag] and op == "bypass":
            call.fail(f"{flag} with a bypassed stage", code="NKI-OPERAND")
    first, second = call.tensor("imm0"), call.tensor("imm1")
    if first is not None and second is not None and first.dtype is not second.dtype:
        call.fail("imm0 and imm1 of different dtypes", code="S-DTYPE", rule="one dtype")


def exponential_start(call: Call) -> None:
    loads = call.args["reduce_cmd"] is reduce_cmd.load_reduce
    start = call.args["reduce_init"]
    if not loads and (isinstance(start, NkiTensor) or start != 0.0):
        call.fail("reduce_init without load_reduce", code="S-REDUCE-CMD", rule="leave it 0.0")


# -- tensor engine ---------------------------------------------------------------------------------------------------


def matmul_dtypes(call: Call) -> None:
    dst, left, right = _t(call, "dst"), _t(call, "stationary"), _t(call, "moving")
    for name, tensor in (("stationary", left), ("moving", right)):
        if not tensor.dtype.is_float:
            if call.args["is_transpose"] and call.target.number >= 3 and tensor.dtype.kind != "packed":
                continue
            call.fail(f"{name} is {tensor.dtype}", code="S-MM-INT", rule="float operands", fix="copy it into a bfloat16 or float32 tile")
        if tensor.dtype is dt.float8_e4m3fn and call.target.number < 4:
            call.fail(f"{name} is float8_e4m3fn on {call.target.name}", code="NCC_EVRF051", rule="trn3 and later", fix="nl.float8_e4m3")
    if {left.dtype, right.dtype} == {dt.float8_e4m3, dt.float8_e4m3fn}:
        call.fail("float8_e4m3 with float8_e4m3fn", code="V4-FP8MIX", rule="one fp8 family")
    if (left.dtype.itemsize == 4) != (right.dtype.itemsize == 4):
        call.fail(f"{left.dtype} with {right.dtype}", code="S-MM-MIX", rule="a 4-byte float pairs with a 4-byte float")
    if call.args["is_transpose"] and call.target.number >= 3:
        if dst.dtype not in (left.dtype, right.dtype):
            call.fail(f"dst is {dst.dtype} in transpose mode", code="S-MM-DST32", rule="the dtype of the data")
    elif dst.dtype is not dt.float32 and not (call.target.number >= 4 and dst.dtype is dt.bfloat16):
        call.fail(
            f"dst is {dst.dtype}", code="S-MM-DST32", rule="float32 (or bfloat16 on trn3)",
            fix="accumulate in a float32 PSUM tile and cast in the nisa.tensor_copy out of it",
        )  # fmt: skip
    if call.args["perf_mode"] is matmul_perf_mode.double_row:
        _double_row(call, left, right)


def _double_row(call: Call, left: NkiTensor, right: NkiTensor) -> None:
    if left.dtype not in dt.FP8 or right.dtype not in dt.FP8:
        call.fail("perf_mode=double_row without fp8 operands", code="S-MM-DOUBLE", rule="both fp8")
    if left.ndim != 3 or right.ndim != 3 or left.shape[1] != 2 or right.shape[1] != 2:
        call.fail("perf_mode=double_row", code="S-MM-DOUBLE", rule="operands [K, 2, M] and [K, 2, N]")
    if call.target.number < 3 or call.args["is_transpose"]:
        call.fail("perf_mode=double_row on v2 or in transpose mode", code="S-MM-DOUBLE", rule="trn2 and later, no transpose")


def matmul_shapes(call: Call) -> None:
    dst, left, right = _t(call, "dst"), _t(call, "stationary"), _t(call, "moving")
    double = 2 if call.args["perf_mode"] is matmul_perf_mode.double_row else 1
    rows, columns = _free(left) // double, _free(right) // double
    if left.shape[0] != right.shape[0]:
        call.fail(
            f"stationary has {left.shape[0]} partitions and moving {right.shape[0]}", code="S-MM-LAYOUT",
            rule="both have the contraction dimension K on partitions: [K, M] and [K, N]",
        )  # fmt: skip
    if rows > 128:
        call.fail(f"stationary has {rows} columns", code="S-MM-SIZE", rule="M <= 128 (nl.tile_size.gemm_stationary_fmax)")
    limit = call.target.moving_fmax.get(dst.dtype.name, call.target.moving_fmax["float32"])
    if columns > limit:
        call.fail(f"moving has {columns} columns", code="S-MM-SIZE", rule=f"N <= {limit} (nl.tile_size.gemm_moving_fmax)")
    if dst.shape[0] != rows or _free(dst) != columns:
        call.fail(f"dst has shape {list(dst.shape)}", code="S-MM-LAYOUT", rule=f"[M, N] = [{rows}, {columns}]")


def matmul_tiles(call: Call) -> None:
    position, size = tuple(call.args["tile_position"] or ()), tuple(call.args["tile_size"] or ())
    if bool(position) != bool(size):
        call.fail("only one of tile_position and tile_size", code="S-MM-TILE", rule="both or neither")
    if not position:
        return
    legal = call.target.row_tiles
    if len(position) != 2 or len(size) != 2 or size[0] not in legal or size[1] not in legal:
        call.fail(f"tile_size={size}", code="S-MM-TILE", rule=f"sides in {legal}")
    if position[0] % size[0] or position[1] % size[1] or position[0] + size[0] > 128 or position[1] + size[1] > 128:
        call.fail(f"tile_position={position} with tile_size={size}", code="S-MM-TILE", rule="a multiple of the size, inside 128 x 128")
    left = _t(call, "stationary")
    if left.shape[0] > size[0] or _free(left) > size[1]:
        call.fail(f"stationary {list(left.shape)} in a {size} tile", code="S-MM-SIZE", rule="K <= rows and M <= columns of the tile")


def psum_bank(call: Call) -> None:
    dst = _t(call, "dst")
    if call.target.number >= 4 or dst.moves:
        return
    size = dst.dtype.itemsize
    unit = max(1, dst.free_unit())
    base = (dst.storage.address or (0, 0))[1] if dst.storage.address else 0
    low = base + (dst.offset % unit) * size
    reach = sum((count - 1) * stride for count, stride in zip(dst.shape[1:], dst.strides[1:], strict=True))
    if low // BANK != (low + reach * size) // BANK:
        call.fail(
            f"dst spans PSUM bytes {low} to {low + (reach + 1) * size} of a partition", code="S-PSUM-BANK",
            rule="within one bank of 2048 bytes", fix="N <= 512 float32 for each nc_matmul",
        )  # fmt: skip


def matmul_mx_shapes(call: Call) -> None:
    left, right, dst = _t(call, "stationary"), _t(call, "moving"), _t(call, "dst")
    parts = left.shape[0]
    if parts % 32:
        call.fail(f"stationary has {parts} partitions", code="S-MX-K", rule="a multiple of 32")
    if _free(left) % 2 or _free(left) > 128:
        call.fail(f"stationary has {_free(left)} columns", code="S-MM-SIZE", rule="even, at most 128")
    limit = call.target.moving_fmax.get(dst.dtype.name, 4096)
    if _free(right) > limit:
        call.fail(f"moving has {_free(right)} columns", code="S-MM-SIZE", rule=f"at most {limit}")
    if dst.shape[0] != _free(left) or _free(dst) != _free(right):
        call.fail(f"dst has shape {list(dst.shape)}", code="S-MM-LAYOUT", rule=f"[{_free(left)}, {_free(right)}]")
    position = call.args["tile_position"]
    if position and tuple(position)[1] != 0:
        call.fail(f"tile_position={position}", code="S-MM-TILE", rule="no column tiling")
    for data, scale in ((left, "stationary_scale"), (right, "moving_scale")):
        _scale_shape(call, data, scale, _free(data))


def _scale_shape(call: Call, data: NkiTensor, name: str, columns: int) -> None:
    scale = _t(call, name)
    parts = data.shape[0]
    needed = parts // 8 if parts <= 32 else 32 * ((parts // 8 - 1) // 4) + (parts // 8 - 1) % 4 + 1
    if _free(scale) != columns or scale.shape[0] < min(needed, parts):
        call.fail(
            f"{name} has shape {list(scale.shape)}", code="S-MX-SCALE",
            rule=f"[{parts} partitions (or {parts // 8} where K <= 32), {columns}]; group i at partition 32*(i//4) + i%4",
        )  # fmt: skip


def quantize_shapes(call: Call) -> None:
    src, dst = _t(call, "src"), _t(call, "dst")
    if _free(dst) * 4 != _free(src):
        call.fail(f"dst has {_free(dst)} columns for {_free(src)} of src", code="S-ELEMENTS", rule="src columns / 4")
    _scale_shape(call, dst, "dst_scale", _free(dst))


def transpose_engine(call: Call) -> str:
    dst, data = _t(call, "dst"), _t(call, "data")
    small = data.shape[0] <= 32 and _free(data) <= 32
    return "vector" if dst.buffer.value == "sbuf" and small else "tensor"


def transpose_shapes(call: Call) -> None:
    dst, data = _t(call, "dst"), _t(call, "data")
    parts, free = data.shape[0], _free(data)
    if call.engine == "tensor":
        if data.buffer.value != "sbuf" or dst.buffer.value != "psum":
            call.fail(
                f"data in {data.buffer.value} and dst in {dst.buffer.value} on the tensor engine", code="S-SPACE",
                rule="data in SBUF, dst in PSUM", fix="a PSUM dst and nisa.tensor_copy; SBUF to SBUF up to 32 x 32 on the vector engine",
            )  # fmt: skip
        limit = 128
    else:
        if not (data.on_chip and dst.on_chip):
            call.fail("an HBM operand", code="S-SPACE", rule="SBUF or PSUM")
        limit = 32
    if parts > limit or free > limit:
        call.fail(f"data has shape {list(data.shape)}", code="S-SIZE", rule=f"at most {limit} x {limit} on the {call.engine} engine")
    if dst.shape[0] != free or _free(dst) != parts:
        call.fail(f"dst has shape {list(dst.shape)}", code="S-ELEMENTS", rule=f"[{free}, {parts}]")


# -- selection -------------------------------------------------------------------------------------------------------


def affine_pattern(call: Call) -> None:
    pattern, dst = call.args["pattern"], _t(call, "dst")
    if not isinstance(pattern, list | tuple) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pattern):
        call.fail(f"pattern={pattern!r}", code="B1-AFFINE-PRED", rule="[[step, num], ...]")
    if not 1 <= len(pattern) <= 4:
        call.fail(f"pattern of {len(pattern)} dimensions", code="S-RANK", rule="1 to 4")
    total = int(np.prod([pair[1] for pair in pattern], dtype=np.int64))
    if total != _free(dst):
        call.fail(f"pattern of {total} values for {_free(dst)} elements in a partition", code="S-ELEMENTS", rule="equal counts")
    for name in ("offset", "channel_multiplier"):
        value = call.args[name]
        if not isinstance(value, int | np.integer | VirtualRegister):
            call.fail(f"{name}={value!r}", code="B2-AFFINE-OFFSET", rule="an int" + (" or a register" if name == "offset" else ""))


def affine_select_order(call: Call) -> None:
    value = call.args["on_false_value"]
    if not isinstance(value, int | float | np.number):
        call.fail(f"on_false_value={value!r}", code="B2-AFFINE-OFFSET", rule="a number; the order is dst, pattern, channel_multiplier, on_true_tile, on_false_value")


def range_select_fill(call: Call) -> None:
    value = call.args["on_false_value"]
    if np.float32(value) != np.float32(FP32_MIN):
        call.fail(f"on_false_value={value!r}", code="B2-RANGESEL", rule="-3.4028235e+38", fix="leave it out")
    if not isinstance(call.args["range_start"], int | np.integer):
        call.fail(f"range_start={call.args['range_start']!r}", code="NKI-OPERAND", rule="an int known when the kernel is built")


def sequence_shape(call: Call) -> None:
    dst, ids = _t(call, "dst"), _t(call, "segment_ids")
    if dst.size != 2 * ids.size:
        call.fail(f"dst has shape {list(dst.shape)}", code="S-ELEMENTS", rule=f"(1, 2, {ids.size})")


def gather_counts(call: Call) -> None:
    index, per, valid = _t(call, "index"), call.args["num_elem_per_idx"], call.args["num_valid_indices"]
    if per not in (1, 2, 4, 8, 16, 32):
        call.fail(f"num_elem_per_idx={per!r}", code="S-GATHER", rule="1, 2, 4, 8, 16 or 32")
    available = index.size // (index.shape[0] // 16)
    count = available if valid is None else valid
    if count > available or count > 4096:
        call.fail(f"{count} indices for each 16 partitions", code="S-GATHER", rule=f"at most {min(available, 4096)}")
    dst = _t(call, "dst")
    if _free(dst) < count * per:
        call.fail(f"dst has {_free(dst)} elements in a partition", code="V6-GATHER-ARGS", rule=f"{count} * {per}")


def shuffle_mask(call: Call) -> None:
    mask = call.args["shuffle_mask"]
    if not isinstance(mask, list | tuple) or len(mask) != 32:
        call.fail(f"shuffle_mask={mask!r}", code="S-SHUFFLE", rule="32 integers")
    if any(not isinstance(lane, int | np.integer) or not (0 <= lane < 32 or lane == 255) for lane in mask):
        call.fail(f"shuffle_mask={mask!r}", code="S-SHUFFLE", rule="each 0 to 31, or 255 to leave the lane")


def shuffle_start(call: Call) -> None:
    dst, src = _t(call, "dst"), _t(call, "src")
    active = -(-max(dst.shape[0], src.shape[0]) // 32) * 32
    legal = (0,) if active > 64 else (0, 64) if active == 64 else (0, 32, 64, 96)
    for name, tensor in (("dst", dst), ("src", src)):
        if tensor.start_partition() not in legal:
            call.fail(f"{name} starts at partition {tensor.start_partition()}", code="S-PSTART", rule=f"{active} lanes start at {legal}")


def nonzero_shape(call: Call) -> None:
    dst, src = _t(call, "dst"), _t(call, "src")
    if _free(dst) != _free(src) + 1:
        call.fail(f"dst has {_free(dst)} elements in a partition", code="S-ELEMENTS", rule=f"{_free(src) + 1}: src and a count")


def topk_sizes(call: Call) -> None:
    src, n = _t(call, "src"), call.args["n"]
    count = _free(_t(call, "val_dst"))
    if not (isinstance(n, int) and 8 <= n < 65536 and 1 <= count < 32768 and count <= n and _free(src) >= -(-n // 16)):
        call.fail(f"n={n!r}, K={count}", code="S-SIZE", rule="8 <= n < 65536, 1 <= K <= n, src columns >= n / 16")


# -- random, registers, cores ----------------------------------------------------------------------------------------


def dropout_prob(call: Call) -> None:
    prob = call.tensor("prob")
    if prob is not None and not prob.dtype.is_float:
        call.fail(f"prob is {prob.dtype}", code="S-DTYPE", rule="a float dtype")
    if prob is not None and _t(call, "data").dtype.is_int and prob.dtype is not dt.float32:
        call.fail(f"prob is {prob.dtype} with integer data", code="S-DTYPE", rule="float32")


def rand2_range(call: Call) -> None:
    low, high = call.args["min"], call.args["max"]
    if isinstance(low, int | float) and isinstance(high, int | float) and low >= high:
        call.fail(f"min={low} and max={high}", code="NKI-OPERAND", rule="min < max")


def rand_state_size(call: Call) -> None:
    tensor = next(iter(call.tensors().values()))
    wanted = 24 if call.engine == "vector" else 6
    if _free(tensor) != wanted:
        call.fail(f"{tensor!r} for the {call.engine} engine", code="S-SIZE", rule=f"[P, {wanted}] uint32")


def one_element(call: Call) -> None:
    for name, tensor in call.tensors().items():
        if tensor.size != 1:
            call.fail(f"{name} has {tensor.size} elements", code="S-SIZE", rule="exactly one")


def two_cores(call: Call) -> None:
    from vibeserve.nki.context import current_core

    count = current_core(f"nisa.{call.spec.name}").session.cores_per_rank
    if count != 2:
        call.fail(f"with LNC {count}", code="NCC_EARG001", rule="LNC 2", fix="launch with kernel[2](...)")
    cores = call.args.get("cores")
    if cores is not None and sorted(cores) != [0, 1]:
        call.fail(f"cores={cores!r}", code="NKI-OPERAND", rule="(0, 1)")


def sendrecv_shapes(call: Call) -> None:
    src, dst = _t(call, "src"), _t(call, "dst")
    for name in ("send_to_rank", "recv_from_rank"):
        if call.args[name] not in (0, 1):
            call.fail(f"{name}={call.args[name]!r}", code="NKI-OPERAND", rule="0 or 1")
    if src.shape != dst.shape:
        call.fail(f"src {list(src.shape)} and dst {list(dst.shape)}", code="S-SENDRECV", rule="equal shapes")
    if call.args["dma_engine"] is dma_engine.gpsimd_dma:
        limit = 256 * src.dtype.itemsize
        if _free(src) * src.dtype.itemsize > limit:
            call.fail(f"{_free(src) * src.dtype.itemsize} bytes in a partition by gpsimd_dma", code="S-SENDRECV", rule=f"at most {limit}")


_: Any = RULES


# -- collectives -----------------------------------------------------------------------------------------------------


def _listed(call: Call, *names: str) -> list[NkiTensor]:
    found = []
    for name in names:
        value = call.args[name]
        if not isinstance(value, list | tuple) or not value:
            call.fail(f"{name}={value!r}", code="NKI-COLLECTIVE", rule="a list of tensors")
        for item in value:
            found.extend(item if isinstance(item, list | tuple) else [item])
    return found


def collective_operands(call: Call) -> None:
    tensors = _listed(call, "srcs", "dsts")
    if len(call.args["srcs"]) != len(call.args["dsts"]):
        call.fail("as many srcs as dsts", code="NKI-COLLECTIVE")
    if len({tensor.on_chip for tensor in tensors}) > 1 or any(tensor.buffer.value == "psum" for tensor in tensors):
        call.fail("tensors in different memories", code="NKI-COLLECTIVE", rule="all in HBM, or all in SBUF")
    if tensors[0].on_chip and len(call.args["srcs"]) > 1:
        call.fail("several SBUF tensors in a call", code="NKI-COLLECTIVE", rule="one; several only in HBM")
    _not_inputs(call, call.args["srcs"])


def _not_inputs(call: Call, sources: Any) -> None:
    for source in sources:
        if source.storage.external:
            call.fail("a kernel input as source", code="NKI-COLLECTIVE", rule="sources are tensors of the kernel", fix="copy it with nisa.dma_copy first")


def gather_dim(call: Call) -> None:
    dim = call.args["collective_dim"]
    on_chip = call.args["srcs"][0].on_chip
    if dim not in ((0, 1) if on_chip else (0,)):
        call.fail(f"collective_dim={dim!r}", code="NKI-COLLECTIVE", rule="0 in HBM; 0 or 1 in SBUF")


def dim_zero(call: Call) -> None:
    if call.args["collective_dim"] != 0:
        call.fail(f"collective_dim={call.args['collective_dim']!r}", code="NKI-COLLECTIVE", rule="0")


def single_tensors(call: Call) -> None:
    if len(call.args["srcs"]) != 1:
        call.fail("several tensors in a call", code="NKI-COLLECTIVE", rule="one src and one dst")


def channels(call: Call) -> None:
    ids = list(call.args["channel_ids"])
    if ids != list(range(len(ids))) or not 1 <= len(ids) <= 4:
        call.fail(f"channel_ids={ids}", code="NKI-COLLECTIVE", rule="consecutive from 0, at most 4")
    for name in call.args:
        if name.startswith("srcs"):
            _not_inputs(call, _listed(call, name))
