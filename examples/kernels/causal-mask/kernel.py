"""The causal mask of one tile of scores."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import kernel_assert


@nki.jit
def causal_mask(scores, q_offset=0, k_offset=0, fill=-3.4028235e38):
    """Keep score [i, j] where k_offset + j <= q_offset + i, else put `fill`.

    Args:
        scores: [Q, K] in HBM, float, Q at most 128.
        q_offset, k_offset: the first query and key of the tile.
        fill: what masked scores become.

    Returns:
        [Q, K] in HBM, dtype of scores.
    """
    queries, keys = scores.shape
    kernel_assert(queries <= 128, f"{queries} queries, at most 128")
    tile = nl.ndarray((queries, keys), dtype=scores.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=scores)
    masked = nl.ndarray((queries, keys), dtype=scores.dtype, buffer=nl.sbuf)
    nisa.affine_select(
        dst=masked,
        pattern=[[-1, keys]],
        channel_multiplier=1,
        on_true_tile=tile,
        on_false_value=fill,
        cmp_op=nl.greater_equal,
        offset=q_offset - k_offset,
    )
    out = nl.ndarray((queries, keys), dtype=scores.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=masked)
    return out
