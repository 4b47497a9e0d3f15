"""Rules of the tensor engine alone."""

from __future__ import annotations

import numpy as np

from vibeserve.nki import dtypes as dt
from vibeserve.nki.isa.enums import matmul_perf_mode
from vibeserve.nki.rules import Call, _free
from vibeserve.nki.special.operands import _t
from vibeserve.nki.tensor import NkiTensor

BANK = 2048


def matmul_dtypes(call: Call) -> None:
    dst, left, right = _t(call, "dst"), _t(call, "stationary"), _t(call, "moving")
    for name, tensor in (("stationary", left), ("moving", right)):
        if tensor.lanes is not None and (tensor.dtype.itemsize > 2 or not tensor.dtype.is_float):
            call.fail(f"{name} is indirect of {tensor.dtype}", code="S-TI", rule="float16, bfloat16 or fp8")
        if not tensor.dtype.is_float:
            if call.args["is_transpose"] and call.target.number >= 3 and tensor.dtype.kind != "packed":
                continue
            call.fail(
                f"{name} is {tensor.dtype}",
                code="S-MM-INT",
                rule="float operands",
                fix="copy it into a bfloat16 or float32 tile",
            )
        if tensor.dtype is dt.float8_e4m3fn and call.target.number < 4:
            call.fail(
                f"{name} is float8_e4m3fn on {call.target.name}",
                code="NCC_EVRF051",
                rule="trn3 and later",
                fix="nl.float8_e4m3",
            )
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
    if call.args["is_transpose"]:
        _byte_slots(call, dst)


def _double_row(call: Call, left: NkiTensor, right: NkiTensor) -> None:
    if left.dtype not in dt.FP8 or right.dtype not in dt.FP8:
        call.fail("perf_mode=double_row without fp8 operands", code="S-MM-DOUBLE", rule="both fp8")
    if left.ndim != 3 or right.ndim != 3 or left.shape[1] != 2 or right.shape[1] != 2:
        call.fail("perf_mode=double_row", code="S-MM-DOUBLE", rule="operands [K, 2, M] and [K, 2, N]")
    if call.target.number < 3 or call.args["is_transpose"]:
        call.fail(
            "perf_mode=double_row on v2 or in transpose mode", code="S-MM-DOUBLE", rule="trn2 and later, no transpose"
        )
    size = tuple(call.args["tile_size"] or ())
    if len(size) == 2 and size[1] != 128:
        call.fail(f"perf_mode=double_row with tile_size={size}", code="S-MM-DOUBLE", rule="no column tiling")


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
        call.fail(
            f"stationary has {rows} columns", code="S-MM-SIZE", rule="M <= 128 (nl.tile_size.gemm_stationary_fmax)"
        )
    limit = call.target.moving_fmax.get(dst.dtype.name, call.target.moving_fmax["float32"])
    if columns > limit:
        call.fail(
            f"moving has {columns} columns", code="S-MM-SIZE", rule=f"N <= {limit} (nl.tile_size.gemm_moving_fmax)"
        )
    if dst.shape[0] != rows or _free(dst) != columns:
        call.fail(f"dst has shape {list(dst.shape)}", code="S-MM-LAYOUT", rule=f"[M, N] = [{rows}, {columns}]")


def accumulate_flag(call: Call) -> None:
    flag = call.args["accumulate"]
    if flag is not None and not isinstance(flag, bool | np.bool_ | int | np.integer):
        call.fail(
            f"accumulate={flag!r}", code="NKI-OPERAND", rule="None, True or False, known when the kernel is built"
        )


def matmul_tiles(call: Call) -> None:
    position, size = tuple(call.args["tile_position"] or ()), tuple(call.args["tile_size"] or ())
    if any(tensor.lanes is not None for tensor in call.tensors().values()):
        if any(position):
            call.fail(f"tile_position={position} with an indexed operand", code="S-TI", rule="(0, 0)")
        if call.args["is_transpose"] and _t(call, "moving").lanes is not None:
            call.fail("an indexed moving with is_transpose", code="S-TI", rule="moving is direct in transpose mode")
    if bool(position) != bool(size):
        call.fail("only one of tile_position and tile_size", code="S-MM-TILE", rule="both or neither")
    if not position:
        return
    legal = call.target.row_tiles
    if len(position) != 2 or len(size) != 2 or size[0] not in legal or size[1] not in legal:
        call.fail(f"tile_size={size}", code="S-MM-TILE", rule=f"sides in {legal}")
    if position[0] % size[0] or position[1] % size[1] or position[0] + size[0] > 128 or position[1] + size[1] > 128:
        call.fail(
            f"tile_position={position} with tile_size={size}",
            code="S-MM-TILE",
            rule="a multiple of the size, inside 128 x 128",
        )
    left = _t(call, "stationary")
    if left.shape[0] > size[0] or _free(left) > size[1]:
        call.fail(
            f"stationary {list(left.shape)} in a {size} tile",
            code="S-MM-SIZE",
            rule="K <= rows and M <= columns of the tile",
        )


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
        lanes, others = data.lanes, _t(call, scale).lanes
        if (lanes is None) != (others is None) or (lanes and others and lanes.index[0] is not others.index[0]):
            call.fail(f"{scale} and its data are not indexed alike", code="S-TI", rule="both by one index, or neither")
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
        call.fail(
            f"data has shape {list(data.shape)}",
            code="S-SIZE",
            rule=f"at most {limit} x {limit} on the {call.engine} engine",
        )
    if dst.shape[0] != free or _free(dst) != parts:
        call.fail(f"dst has shape {list(dst.shape)}", code="S-ELEMENTS", rule=f"[{free}, {parts}]")
    if call.engine == "tensor":
        _byte_slots(call, dst)


def _byte_slots(call: Call, dst: NkiTensor) -> None:
    """What the tensor engine transposes byte by byte lands in 2-byte slots of PSUM."""
    if dst.dtype.itemsize == 1 and call.target.number >= 3 and _free(dst) > 1 and dst.strides[-1] != 2:
        call.fail(
            f"dst is {dst.dtype} with element step {dst.strides[-1]}", code="S-TRANSPOSE-STEP",
            rule="1-byte dtypes land in PSUM with an element step of 2",
            fix="dst = nl.ndarray((F, P, 2), dtype, buffer=nl.psum)[:, :, 0]",
        )  # fmt: skip
