"""Copies inside SBUF that one instruction alone cannot do."""

from __future__ import annotations

from typing import Any

from vibeserve.nki.lib.binding import nisa, nl
from vibeserve.nki.lib.checks import kernel_assert

QUADRANT = 32  # partitions that one shuffle permutes among themselves
LEAVE = 255  # the shuffle's mark for a lane that keeps its value
MATMUL_COLUMNS = 512


def stream_shuffle_broadcast(src: Any, dst: Any) -> None:
    """Copy partition 0 of `src` to every partition of `dst`.

    Args:
        src: [>= 1, F...] in SBUF or PSUM; only its first partition is read.
        dst: [P, F...], same dtype and elements a partition; P need not be a multiple of 32.
    """
    kernel_assert(src.shape[1:] == dst.shape[1:], f"stream_shuffle_broadcast: {src.shape} to {dst.shape}")
    for start in range(0, dst.shape[0], QUADRANT):
        end = min(start + QUADRANT, dst.shape[0])
        nisa.nc_stream_shuffle(dst=dst[start:end], src=src[0:1], shuffle_mask=[0] * QUADRANT)


def tp_broadcast(src: Any, dst: Any, src_offset: int = 0, psum_address: Any = None) -> None:
    """Turn a column into a row, and put the row into every partition: dst[i, p] = src[p, src_offset].

    Args:
        src: [P, F] in SBUF, float.
        dst: [D, P] in SBUF, D <= 128.
        src_offset: the column of `src`.
        psum_address: a place for the PSUM tile on the way, or None.
    """
    size, rows = src.shape[0], dst.shape[0]
    kernel_assert(dst.shape[1] == size, f"tp_broadcast: {size} partitions of the source, {dst.shape[1]} columns")
    identity = nl.shared_identity_matrix(size, dtype=src.dtype)
    row = nl.ndarray((rows, size), dtype=nl.float32, buffer=nl.psum, address=psum_address)
    column = nl.ndarray((size, rows), dtype=src.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=column, src=src[0:size, src_offset : src_offset + 1].broadcast(1, rows))
    nisa.nc_matmul(dst=row, stationary=column, moving=identity, is_moving_onezero=True)
    nisa.tensor_copy(dst=dst, src=row)


def interleave_copy(dst: Any, src: Any, scale: Any = None, bias: Any = None, index: int = 0) -> None:
    """dst = src * scale + bias, on the vector engine for even `index` and on the scalar engine for odd.

    Loops over tiles spread their copies over both engines so. `scale` and `bias` are float32 (P, 1) tiles, numbers or
    None.
    """
    if index % 2 == 1:
        column = bias
        if isinstance(bias, int | float):
            column = nl.ndarray((dst.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=column, value=float(bias))
        nisa.activation(dst=dst, op=nl.copy, data=src, bias=column, scale=1.0 if scale is None else scale)
    elif scale is None and bias is None:
        nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)
    elif scale is None:
        nisa.tensor_scalar(dst=dst, data=src, op0=nl.add, operand0=bias)
    elif bias is None:
        nisa.tensor_scalar(dst=dst, data=src, op0=nl.multiply, operand0=scale)
    else:
        nisa.tensor_scalar(dst=dst, data=src, op0=nl.multiply, operand0=scale, op1=nl.add, operand1=bias)


def cross_partition_copy(
    src: Any, dst: Any, src_start_partition: int, dst_start_partition: int, num_partitions: int, free_dim_size: int = 0
) -> None:
    """Copy `num_partitions` partitions from any start to any other; the rest of `dst` stays as it is.

    Instructions start at partitions 0, 32, 64 and 96 only. So each piece that lies in one quadrant of both tiles goes
    through a shuffle within its 32 lanes, with the lanes beside it left alone.

    Args:
        src: [P, F] in SBUF.
        dst: [Q, F] in SBUF, another tile, same dtype.
        src_start_partition, dst_start_partition, num_partitions: what goes where.
        free_dim_size: columns to copy from the left; 0 for all.
    """
    columns = free_dim_size or src.shape[1]
    kernel_assert(src_start_partition + num_partitions <= src.shape[0], f"partitions beyond the source {src.shape}")
    kernel_assert(dst_start_partition + num_partitions <= dst.shape[0], f"partitions beyond the target {dst.shape}")
    done = 0
    while done < num_partitions:
        source, target = src_start_partition + done, dst_start_partition + done
        count = min(num_partitions - done, QUADRANT - source % QUADRANT, QUADRANT - target % QUADRANT)
        from_quadrant, to_quadrant = source // QUADRANT * QUADRANT, target // QUADRANT * QUADRANT
        mask = [LEAVE] * QUADRANT
        for lane in range(count):
            mask[target % QUADRANT + lane] = source % QUADRANT + lane
        nisa.nc_stream_shuffle(
            dst=dst[to_quadrant : min(to_quadrant + QUADRANT, dst.shape[0]), 0:columns],
            src=src[from_quadrant : min(from_quadrant + QUADRANT, src.shape[0]), 0:columns],
            shuffle_mask=mask,
        )
        done += count


def broadcast_row(dst: Any, row: Any) -> None:
    """Put one row of HBM into every partition of `dst`, by a DMA whose source repeats.

    Args:
        dst: [P, F] in SBUF.
        row: (F,) or (1, F) in HBM; cast where the dtypes differ.
    """
    flat = row.reshape((1, dst.shape[1]))
    nisa.dma_copy(dst=dst, src=flat.broadcast(0, dst.shape[0]))


def broadcast_row_by_matmul(dst: Any, row: Any) -> None:
    """Put a row of SBUF into every partition of `dst`, by products with a column of ones.

    Args:
        dst: [P, F] in SBUF.
        row: [1, F] in SBUF, float.
    """
    partitions, columns = dst.shape
    ones = nl.ndarray((1, partitions), dtype=row.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    for start in range(0, columns, MATMUL_COLUMNS):
        end = min(start + MATMUL_COLUMNS, columns)
        copies = nl.ndarray((partitions, end - start), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=copies, stationary=ones, moving=row[0:1, start:end], is_stationary_onezero=True)
        nisa.tensor_copy(dst=dst[0:partitions, start:end], src=copies)
