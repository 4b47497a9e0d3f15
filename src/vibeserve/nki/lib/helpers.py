"""Small arithmetic and the facts of a launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vibeserve.nki.lib.binding import nl
from vibeserve.nki.lib.checks import kernel_assert
from vibeserve.nki.lib.types import ActFnType, NormType

NUM_HW_PSUM_BANKS = 8
PSUM_BANK_SIZE = 2048  # bytes of a bank in one partition
FP8_E4M3_MAX = 240.0
FP8_E5M2_MAX = 57344.0


def div_ceil(n: int, d: int) -> int:
    """n / d rounded up, for ints and d > 0."""
    return -(-n // d)


get_ceil_quotient = div_ceil


def get_ceil_aligned_size(size: int, alignment: int) -> int:
    """The least multiple of `alignment` that is not below `size`."""
    return div_ceil(size, alignment) * alignment


def get_floor_aligned_size(size: int, alignment: int) -> int:
    """The greatest multiple of `alignment` that is not above `size`."""
    return size // alignment * alignment


def is_launched_as_spmd() -> bool:
    """Whether the kernel runs on more than one core of a launch grid."""
    return bool(nl.program_ndim() != 0 and nl.num_programs(axes=0) > 1)


def get_program_sharding_info() -> tuple[int, int, int]:
    """(dimensions of the launch grid, cores along the first, this core); (0, 1, 0) without a grid."""
    ndim = nl.program_ndim()
    if ndim == 0:
        return 0, 1, 0
    return ndim, nl.num_programs(axes=0), nl.program_id(axis=0)


def get_verified_program_sharding_info(
    kernel_name: str = "", allowed_dims: Any = (0, 1), max_shards: int | None = None
) -> tuple[int, int, int]:
    """`get_program_sharding_info`, after a check of the grid's rank and of its size."""
    ndim, shards, shard = get_program_sharding_info()
    allowed = (allowed_dims,) if isinstance(allowed_dims, int) else allowed_dims
    if allowed is not None:
        kernel_assert(ndim in tuple(allowed), f"{kernel_name}: a launch grid of {ndim} dimensions, expected {allowed}")
    if max_shards is not None:
        kernel_assert(shards <= max_shards, f"{kernel_name}: launched on {shards} cores, at most {max_shards}")
    return ndim, shards, shard


def shard_bounds(size: int, alignment: int = 1) -> tuple[int, int]:
    """[start, end) of this core's part of `size` items: even parts, each a multiple of `alignment` but the last."""
    _, shards, shard = get_program_sharding_info()
    part = get_ceil_aligned_size(div_ceil(size, shards), alignment)
    return min(shard * part, size), min((shard + 1) * part, size)


def get_max_positive_value_for_dtype(dtype: Any) -> float:
    """The largest finite value of a quantised float type on the device."""
    if dtype == nl.float8_e4m3:
        return FP8_E4M3_MAX
    if dtype == nl.float8_e5m2:
        return FP8_E5M2_MAX
    kernel_assert(dtype == nl.float8_e4m3fn, f"no largest value known for {dtype}")
    return 448.0


def reduce(op: Callable[[Any, Any], Any], input: Any, initial_value: Any = None) -> Any:
    """Fold trace-time values from the left; without a start value the first one is the start."""
    values = list(input)
    kernel_assert(bool(values) or initial_value is not None, "reduce of nothing without a start value")
    result = values.pop(0) if initial_value is None else initial_value
    for value in values:
        result = op(result, value)
    return result


def is_hbm_buffer(tensor: Any) -> bool:
    """Whether a tensor (or a buffer) lies in HBM."""
    return getattr(tensor, "buffer", tensor) in (nl.hbm, nl.shared_hbm, nl.private_hbm)


def is_rms_normalization(norm_type: NormType) -> bool:
    """Whether the norm divides by the root mean square."""
    return norm_type in (NormType.RMS_NORM, NormType.RMS_NORM_SKIP_GAMMA)


def normalization_uses_weights(norm_type: NormType) -> bool:
    """Whether the norm multiplies by a gamma."""
    return norm_type in (NormType.RMS_NORM, NormType.LAYER_NORM)


def get_nl_act_fn_from_type(act_fn: ActFnType) -> Any:
    """The `op` of nisa.activation for an activation function."""
    ops = {
        ActFnType.SiLU: nl.silu, ActFnType.GELU: nl.gelu, ActFnType.GELU_Tanh_Approx: nl.gelu_apprx_tanh,
        ActFnType.Swish: nl.gelu_apprx_sigmoid, ActFnType.ReLU: nl.relu, ActFnType.Identity: nl.copy,
    }  # fmt: skip
    kernel_assert(act_fn in ops, f"no instruction for {act_fn}")
    return ops[act_fn]


def resolve_dtype_to_nki(dtype: Any) -> Any:
    """The nl dtype of a name ("bfloat16"), a NumPy or torch dtype, or an nl dtype."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    found = getattr(nl, name.rpartition(".")[2], None)
    kernel_assert(found is not None, f"{dtype} has no NKI counterpart")
    return found
