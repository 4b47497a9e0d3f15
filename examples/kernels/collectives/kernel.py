"""Exchanges between ranks: sums and gathers of tensors in HBM, and of tiles in SBUF."""

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import kernel_assert

P = 128


def copied(x):
    """A copy of a kernel input in HBM: inputs themselves cannot be sent."""
    copy = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(dst=copy, src=x)
    return copy


@nki.jit
def all_reduce_sum(x, ranks=1):
    """The sum of every rank's x, on every rank.

    Args:
        x: [R, C] in HBM, float.
        ranks: how many take part.

    Returns:
        [R, C] in HBM, dtype of x.
    """
    group = ncc.ReplicaGroup([list(range(ranks))])
    total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)
    ncc.all_reduce(srcs=[copied(x)], dsts=[total], replica_group=group, op=nl.add)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=total)
    return out


@nki.jit
def all_gather_rows(x, ranks=1):
    """Every rank's rows, one rank after the other, on every rank.

    Args:
        x: [R, C] in HBM.
        ranks: how many take part.

    Returns:
        [ranks * R, C] in HBM, dtype of x.
    """
    rows, columns = x.shape
    group = ncc.ReplicaGroup([list(range(ranks))])
    gathered = nl.ndarray((ranks * rows, columns), dtype=x.dtype, buffer=nl.private_hbm)
    ncc.all_gather(srcs=[copied(x)], dsts=[gathered], replica_group=group, collective_dim=0)
    out = nl.ndarray((ranks * rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=gathered)
    return out


@nki.jit
def gather_columns(x, ranks=1):
    """Every rank's columns side by side, gathered between tiles in SBUF.

    Args:
        x: [R, C] in HBM, R at most 128.
        ranks: how many take part.

    Returns:
        [R, ranks * C] in HBM, dtype of x.
    """
    rows, columns = x.shape
    kernel_assert(rows <= P, f"{rows} rows, at most {P}")
    group = ncc.ReplicaGroup([list(range(ranks))])
    tile = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    gathered = nl.ndarray((rows, ranks * columns), dtype=x.dtype, buffer=nl.sbuf)
    ncc.all_gather(srcs=[tile], dsts=[gathered], replica_group=group, collective_dim=1)
    out = nl.ndarray((rows, ranks * columns), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=gathered)
    return out


@nki.jit
def row_of_rank(x, ranks=1):
    """Row number `rank` of x: the rank is a run-time value that moves a view.

    Args:
        x: [ranks, C] in HBM.
        ranks: how many take part.

    Returns:
        [1, C] in HBM, dtype of x.
    """
    columns = x.shape[1]
    kernel_assert(x.shape[0] == ranks, f"{x.shape[0]} rows for {ranks} ranks")
    row = nl.ndarray((1, columns), dtype=x.dtype, buffer=nl.sbuf)
    rank = ncc.rank_id()
    nisa.dma_copy(dst=row, src=x.ap(pattern=[[columns, 1], [1, columns]], scalar_offset=rank, indirect_dim=0))
    out = nl.ndarray((1, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=row)
    return out
