"""The kernel library: tiling, views, allocation, checks, copies, norms, quantisation and routing for NKI kernels.

`from vibeserve.nki.lib import TiledRange, kernel_assert` in a kernel file; `python -m vibeserve.nki.lib` prints all of
it as one file without dependencies. Under the simulator the same helpers stand behind `nkilib.core.utils`.
"""

from vibeserve.nki.lib.allocator import (
    BufferManager,
    SbufManager,
    align_to,
    create_auto_alloc_manager,
    num_elts,
    sizeinbytes,
)
from vibeserve.nki.lib.checks import assert_shape, kernel_assert
from vibeserve.nki.lib.helpers import (
    NUM_HW_PSUM_BANKS,
    PSUM_BANK_SIZE,
    div_ceil,
    get_ceil_aligned_size,
    get_ceil_quotient,
    get_floor_aligned_size,
    get_max_positive_value_for_dtype,
    get_nl_act_fn_from_type,
    get_program_sharding_info,
    get_verified_program_sharding_info,
    is_hbm_buffer,
    is_launched_as_spmd,
    is_rms_normalization,
    normalization_uses_weights,
    reduce,
    resolve_dtype_to_nki,
    shard_bounds,
)
from vibeserve.nki.lib.layout import fold_rows, load_transposed, transpose_tile, unfold_rows
from vibeserve.nki.lib.logging import Logger, get_logger
from vibeserve.nki.lib.moving import (
    broadcast_row,
    broadcast_row_by_matmul,
    cross_partition_copy,
    interleave_copy,
    stream_shuffle_broadcast,
    tp_broadcast,
)
from vibeserve.nki.lib.norms import layer_norm_rows, rms_norm_rows, rms_scale
from vibeserve.nki.lib.quantization import dequantize_rows, quantize_rows, quantize_static
from vibeserve.nki.lib.routing import (
    expert_positions,
    permutation_rows,
    softmax_rows,
    top_experts,
)
from vibeserve.nki.lib.tensor_view import TensorView
from vibeserve.nki.lib.tile_info import TiledDimInfo
from vibeserve.nki.lib.tiled_range import TiledRange, TiledRangeIterator
from vibeserve.nki.lib.types import (
    ActFnType,
    ExpertAffinityScaleMode,
    GateUpDim,
    NormType,
    QKVOutputLayout,
    QKVWeightLayout,
    QuantizationType,
    RouterActFnType,
)

__all__ = [
    "NUM_HW_PSUM_BANKS", "PSUM_BANK_SIZE", "ActFnType", "BufferManager", "ExpertAffinityScaleMode", "GateUpDim",
    "Logger", "NormType", "QKVOutputLayout", "QKVWeightLayout", "QuantizationType", "RouterActFnType", "SbufManager",
    "TensorView", "TiledDimInfo", "TiledRange", "TiledRangeIterator", "align_to", "assert_shape", "broadcast_row",
    "broadcast_row_by_matmul", "create_auto_alloc_manager", "cross_partition_copy", "dequantize_rows", "div_ceil",
    "expert_positions", "fold_rows", "get_ceil_aligned_size", "get_ceil_quotient", "get_floor_aligned_size",
    "get_logger", "get_max_positive_value_for_dtype", "get_nl_act_fn_from_type", "get_program_sharding_info",
    "get_verified_program_sharding_info", "interleave_copy", "is_hbm_buffer", "is_launched_as_spmd",
    "is_rms_normalization", "kernel_assert", "layer_norm_rows", "load_transposed", "normalization_uses_weights",
    "num_elts", "permutation_rows", "quantize_rows", "quantize_static", "reduce", "resolve_dtype_to_nki",
    "rms_norm_rows", "rms_scale", "shard_bounds", "sizeinbytes", "softmax_rows", "stream_shuffle_broadcast",
    "top_experts", "tp_broadcast", "transpose_tile", "unfold_rows",
]  # fmt: skip
