"""Microscaling quantisation (trn3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import access
from vibeserve.nki.context import Core
from vibeserve.nki.dtypes import float8_e4m3fn_x4, pack_x4
from vibeserve.nki.instruction import SKIPPED, instruction
from vibeserve.nki.isa.elementwise import f32_rows
from vibeserve.nki.isa.matmul import scale_rows
from vibeserve.nki.tensor import NkiTensor


@instruction
def quantize_mx(core: Core, dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: Any = None) -> Any:
    """Each group of 8 partitions x 4 elements shares X = 2^(floor(log2(amax)) - (Emax - 1)); dst = src / X as fp8 x4."""
    values = f32_rows(src)
    parts, columns = values.shape[0], values.shape[1] // 4
    grouped = values.reshape(parts // 8, 8, columns, 4)
    amax = np.abs(grouped).max(axis=(1, 3))
    largest = 8 if dst.dtype is float8_e4m3fn_x4 else 15
    _, exponent = np.frexp(amax)
    power = np.where(amax == 0, -127, exponent - 1 - (largest - 1)).clip(-127, 127)
    data = grouped * np.exp2(-power.astype(np.float32))[:, None, :, None]
    access.write(dst, pack_x4(data.reshape(parts, columns, 4), dst.dtype))
    access.mark(dst)
    target = access.array(dst_scale)
    flat = target if target.ndim == 2 else target.reshape(target.shape[0], -1)
    places = scale_rows(parts) if parts > 32 else np.arange(parts // 8)
    flat[places] = (power + 127).astype(np.uint8).view(flat.dtype)
    if target.ndim != 2:
        target[...] = flat.reshape(target.shape)
    touched = np.zeros(flat.shape[0], np.bool_)
    touched[places] = True
    access.mark_where(dst_scale, touched)
    return SKIPPED
