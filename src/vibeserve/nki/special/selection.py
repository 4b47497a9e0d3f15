"""Rules of index patterns, selection, gathering and shuffling alone."""

from __future__ import annotations

import numpy as np

from vibeserve.nki.dtypes import FP32_MIN
from vibeserve.nki.registers import VirtualRegister
from vibeserve.nki.rules import Call, _free
from vibeserve.nki.special.operands import _t


def affine_pattern(call: Call) -> None:
    pattern, dst = call.args["pattern"], _t(call, "dst")
    if not isinstance(pattern, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pattern
    ):
        call.fail(f"pattern={pattern!r}", code="B1-AFFINE-PRED", rule="[[step, num], ...]")
    if not 1 <= len(pattern) <= 4:
        call.fail(f"pattern of {len(pattern)} dimensions", code="NCC_INLA001", rule="1 to 4")
    total = int(np.prod([pair[1] for pair in pattern], dtype=np.int64))
    if total != _free(dst):
        call.fail(
            f"pattern of {total} values for {_free(dst)} elements in a partition",
            code="S-ELEMENTS",
            rule="equal counts",
        )
    for name in ("offset", "channel_multiplier"):
        value = call.args[name]
        if not isinstance(value, int | np.integer | VirtualRegister):
            call.fail(
                f"{name}={value!r}",
                code="B2-AFFINE-OFFSET",
                rule="an int" + (" or a register" if name == "offset" else ""),
            )


def affine_select_order(call: Call) -> None:
    value = call.args["on_false_value"]
    if not isinstance(value, int | float | np.number):
        call.fail(
            f"on_false_value={value!r}",
            code="B2-AFFINE-OFFSET",
            rule="a number; the order is dst, pattern, channel_multiplier, on_true_tile, on_false_value",
        )


def range_select_fill(call: Call) -> None:
    value = call.args["on_false_value"]
    if np.float32(value) != np.float32(FP32_MIN):
        call.fail(f"on_false_value={value!r}", code="B2-RANGESEL", rule="-3.4028235e+38", fix="leave it out")
    if not isinstance(call.args["range_start"], int | np.integer):
        call.fail(
            f"range_start={call.args['range_start']!r}",
            code="NKI-OPERAND",
            rule="an int known when the kernel is built",
        )


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
        if tensor.start_partition() not in legal and not call.allows("S-PSTART"):
            call.fail(
                f"{name} starts at partition {tensor.start_partition()}",
                code="S-PSTART",
                rule=f"{active} lanes start at {legal}",
            )


def nonzero_shape(call: Call) -> None:
    dst, src = _t(call, "dst"), _t(call, "src")
    if _free(dst) != _free(src) + 1:
        call.fail(
            f"dst has {_free(dst)} elements in a partition",
            code="S-ELEMENTS",
            rule=f"{_free(src) + 1}: src and a count",
        )


def topk_sizes(call: Call) -> None:
    src, n = _t(call, "src"), call.args["n"]
    count = _free(_t(call, "val_dst"))
    if not (isinstance(n, int) and 8 <= n < 65536 and 1 <= count < 32768 and count <= n and _free(src) >= -(-n // 16)):
        call.fail(f"n={n!r}, K={count}", code="S-SIZE", rule="8 <= n < 65536, 1 <= K <= n, src columns >= n / 16")
