"""A product of operands in microscaling format: groups of 32 values share an exponent."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert

P = 128
N = 512
GROUP = 8  # partitions that share a scale; with 4 values to an element, 32 values
QUADRANT = 32


@nki.jit
def mx_matmul(left, left_scale, right, right_scale):
    """out = left^T right over 4 K values, both already quantised.

    Args:
        left: [K, M] in HBM, each element the bits of four values: uint32 of float8_e4m3fn, uint16 of float4_e2m1fn. K is a
            multiple of 32, at most 128; M even, at most 128.
        left_scale: [K / 8, M] uint8 in HBM: the exponent + 127 of rows 8 i to 8 i + 7.
        right: [K, N] in HBM, likewise; its values may be of the other kind.
        right_scale: [K / 8, N] uint8 in HBM.

    Returns:
        [M, N] float32 in HBM. Runs on trn3.
    """
    depth, height = left.shape
    width = right.shape[1]
    kernel_assert(depth % QUADRANT == 0 and depth <= P, f"{depth} rows, a multiple of {QUADRANT} up to {P}")
    kernel_assert(height % 2 == 0 and height <= P, f"{height} columns of left, even and at most {P}")
    assert_shape(left_scale, (depth // GROUP, height), "left_scale")
    assert_shape(right, (depth, width), "right")
    assert_shape(right_scale, (depth // GROUP, width), "right_scale")
    out = nl.ndarray((height, width), dtype=nl.float32, buffer=nl.shared_hbm)
    stationary = nl.ndarray((depth, height), dtype=left.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=stationary, src=left)
    stationary_scale = spread_scales(left_scale, depth)
    for n in TiledRange(width, N):
        span = slice(n.start_offset, n.end_offset)
        moving = nl.ndarray((depth, n.size), dtype=right.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=moving, src=right[0:depth, span])
        product = nl.ndarray((height, n.size), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(
            dst=product,
            stationary=packed(stationary),
            moving=packed(moving),
            stationary_scale=stationary_scale,
            moving_scale=spread_scales(right_scale[0 : depth // GROUP, span], depth),
        )
        result = nl.ndarray((height, n.size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=product)
        nisa.dma_copy(dst=out[0:height, span], src=result)
    return out


def packed(tile):
    """A tile of plain bits under the packed type that its width says."""
    return tile.view(nl.float4_e2m1fn_x4 if tile.dtype == nl.uint16 else nl.float8_e4m3fn_x4)


def spread_scales(scales, depth):
    """Scales in SBUF where the product looks for them: group i at partition 32 (i // 4) + i % 4."""
    groups, columns = scales.shape
    tile = nl.ndarray((depth, columns), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0)
    for quadrant in range(groups // 4):
        nisa.dma_copy(
            dst=tile[quadrant * QUADRANT : quadrant * QUADRANT + 4, 0:columns],
            src=scales[quadrant * 4 : quadrant * 4 + 4, 0:columns],
        )
    return tile
