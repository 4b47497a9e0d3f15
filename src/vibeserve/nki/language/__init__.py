"""`nki.language`: dtypes, buffers, allocation, functions on tiles, loops. See `docs/nki-coverage.md`."""

# ruff: noqa: F401 (what is imported here is the module)

from typing import Any as _Any

from vibeserve.nki.dtypes import (
    DType,
    bfloat16,
    bool_,
    float4_e2m1fn_x4,
    float8_e4m3,
    float8_e4m3fn,
    float8_e4m3fn_x4,
    float8_e5m2,
    float8_e5m2_x4,
    float8_e8m0fnu,
    float16,
    float32,
    int8,
    int16,
    int32,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from vibeserve.nki.language.control import (
    affine_range,
    device_print,
    ds,
    dynamic_range,
    fori_loop,
    is_hbm,
    is_on_chip,
    is_psum,
    is_sbuf,
    no_reorder,
    num_programs,
    program_id,
    program_ndim,
    sequential_range,
    static_range,
    tile_size,
    while_loop,
)
from vibeserve.nki.language.creation import (
    copy as _copy_tile,
)
from vibeserve.nki.language.creation import (
    empty_like,
    full,
    load,
    load_transpose2d,
    ndarray,
    ones,
    rand,
    random_seed,
    shared_constant,
    shared_identity_matrix,
    store,
    zeros,
    zeros_like,
)
from vibeserve.nki.language.math import all_ as all
from vibeserve.nki.language.math import (
    broadcast_to,
    ceil,
    cos,
    dropout,
    expand_dims,
    floor,
    gather_flattened,
    matmul,
    mean,
    negative,
    prod,
    rms_norm,
    softmax,
    tan,
    transpose,
    trunc,
    var,
    where,
)
from vibeserve.nki.language.math import sum_ as sum
from vibeserve.nki.memory import MemoryRegion, hbm, private_hbm, psum, sbuf, shared_hbm
from vibeserve.nki.objects import NKIObject
from vibeserve.nki.ops import OPS as _OPS
from vibeserve.nki.ops import show as _show
from vibeserve.nki.tensor import NkiTensor

_show(_OPS["copy"], _copy_tile)
globals().update(_OPS)

__all__ = [name for name in (*dir(), *_OPS) if not name.startswith("_")]

# Names of no stub that a published kernel library uses; left out of `import *`, where they would hide Python's own.
range, bool = static_range, bool_


def __getattr__(name: str) -> _Any:
    from vibeserve.nki.legacy import gone

    raise gone("nki.language", name)
