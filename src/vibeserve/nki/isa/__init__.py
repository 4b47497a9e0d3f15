"""`nki.isa`: the instruction set. See `docs/nki-coverage.md` for the state of every name."""

# ruff: noqa: F401 (what is imported here is the module)

from types import ModuleType as _Module

from vibeserve.nki.errors import NkiValidationError
from vibeserve.nki.instruction import NkiInstruction
from vibeserve.nki.isa.activation import activate2, activation, activation_reduce, exponential
from vibeserve.nki.isa.control import (
    core_barrier,
    get_nc_sub_version,
    get_nc_version,
    register_alloc,
    register_load,
    register_move,
    register_store,
    sendrecv,
)
from vibeserve.nki.isa.dma import dma_compute, dma_copy, dma_transpose
from vibeserve.nki.isa.elementwise import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_tensor,
)
from vibeserve.nki.isa.enums import (
    dge_mode,
    dma_engine,
    engine,
    gpsimd_engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)
from vibeserve.nki.isa.matmul import nc_matmul, nc_matmul_mx, nc_transpose
from vibeserve.nki.isa.microscaling import quantize_mx
from vibeserve.nki.isa.random import dropout, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from vibeserve.nki.isa.reductions import (
    bn_aggr,
    bn_stats,
    tensor_partition_reduce,
    tensor_reduce,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from vibeserve.nki.isa.selection import (
    affine_select,
    iota,
    local_gather,
    max8,
    nc_find_index8,
    nc_match_replace8,
    nc_n_gather,
    nc_stream_shuffle,
    nonzero_with_count,
    range_select,
    select_reduce,
    sequence_bounds,
    topk,
)
from vibeserve.nki.registers import VirtualRegister

__all__ = [name for name, value in list(vars().items()) if name[0] != "_" and not isinstance(value, _Module)]


def __getattr__(name: str) -> object:
    from vibeserve.nki.legacy import gone

    raise gone("nki.isa", name)
