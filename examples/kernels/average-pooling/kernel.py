"""Average pooling of an image by one reduction over a five-dimensional view."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, kernel_assert

P = 128


@nki.jit
def average_pooling(x, window=2):
    """The mean of each window x window patch: the view (channel, out row, out column, in row, in column), summed.

    Args:
        x: [C, H, W] in HBM, float; H and W are multiples of `window`.
        window: side of a patch.

    Returns:
        [C, H / window, W / window] in HBM, dtype of x.
    """
    channels, height, width = x.shape
    kernel_assert(height % window == 0 and width % window == 0, f"{height} x {width} in patches of {window}")
    out_h, out_w = height // window, width // window
    out = nl.ndarray((channels, out_h, out_w), dtype=x.dtype, buffer=nl.shared_hbm)
    for tile in TiledRange(channels, P):
        image = nl.ndarray((tile.size, height, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=image, src=x[tile.start_offset : tile.end_offset])
        patches = image.ap(
            pattern=[
                [height * width, tile.size],
                [width * window, out_h],
                [window, out_w],
                [width, window],
                [1, window],
            ]
        )
        sums = nl.ndarray((tile.size, out_h, out_w), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=sums, op=nl.add, data=patches, axis=(3, 4))
        means = nl.ndarray((tile.size, out_h, out_w), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=means, data=sums, op0=nl.multiply, operand0=1.0 / (window * window))
        nisa.dma_copy(dst=out[tile.start_offset : tile.end_offset], src=means)
    return out
