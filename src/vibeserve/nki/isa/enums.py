"""The enumerations of `nki.isa`."""

from __future__ import annotations

import enum


class _Plain(enum.Enum):
    def __repr__(self) -> str:
        return f"nisa.{type(self).__name__}.{self.name}"

    __str__ = __repr__


class engine(_Plain):  # noqa: N801
    """Which engine executes an instruction; `unknown` leaves it to the compiler."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class reduce_cmd(_Plain):  # noqa: N801
    """What an instruction does with its engine's accumulator."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(_Plain):  # noqa: N801
    """Who makes the descriptors of a DMA."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(_Plain):  # noqa: N801
    """What a run-time index outside of the tensor does."""

    error = 0
    skip = 1


class matmul_perf_mode(_Plain):  # noqa: N801
    """`double_row` multiplies two fp8 rows at once."""

    none = "none"
    double_row = "double_row"


class nc_version(enum.IntEnum):  # noqa: N801
    """The NeuronCore generation: trn1/inf2, trn2, trn3."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class dma_engine(_Plain):  # noqa: N801
    """The transport of `sendrecv`."""

    dma = 1
    gpsimd_dma = 2


tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown
