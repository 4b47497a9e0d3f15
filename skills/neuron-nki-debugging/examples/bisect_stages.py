"""A flash attention whose result is wrong, and the search for the stage that makes it wrong.

vibeserve nki run bisect_stages.py        prints the comparisons, the first wrong stage, and the error before and after the repair
"""

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

KEYS = 512
STAGES = ("scores", "maxima", "powers", "sums", "sums over blocks", "result")


def to_hbm(tile, target):
    """A debugging store: it goes when the fault is found."""
    nisa.dma_copy(dst=target, src=tile)


@nki.jit
def attention(q, k, v, repaired=False, debug=True):
    """softmax(q^T k) v for 128 queries, in blocks of 512 keys; with `debug` every stage of every block is stored.

    Args:
        q: [d, 128] in HBM, float32, d <= 128.
        k: [d, S] in HBM, float32, S a multiple of 512.
        v: [S, d] in HBM, float32.
        repaired: without it the fault is there.
        debug: store the stages.

    Returns:
        out [128, d], and with `debug` scores [128, S], maxima, powers [128, S], sums, sums over blocks: [128, blocks].
    """
    depth, rows = q.shape
    keys = k.shape[1]
    blocks = keys // KEYS
    out = nl.ndarray((rows, depth), dtype=nl.float32, buffer=nl.shared_hbm)
    all_scores = nl.ndarray((rows, keys), dtype=nl.float32, buffer=nl.shared_hbm)
    all_maxima = nl.ndarray((rows, blocks), dtype=nl.float32, buffer=nl.shared_hbm)
    all_powers = nl.ndarray((rows, keys), dtype=nl.float32, buffer=nl.shared_hbm)
    all_sums = nl.ndarray((rows, blocks), dtype=nl.float32, buffer=nl.shared_hbm)
    all_totals = nl.ndarray((rows, blocks), dtype=nl.float32, buffer=nl.shared_hbm)
    query = nl.ndarray((depth, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=query, src=q)
    result = nl.ndarray((rows, depth), dtype=nl.float32, buffer=nl.sbuf)
    top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    for block in range(blocks):
        first = block * KEYS
        key = nl.ndarray((depth, KEYS), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=key, src=k[0:depth, first : first + KEYS])
        product = nl.ndarray((rows, KEYS), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=query, moving=key)
        scores = nl.ndarray((rows, KEYS), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=scores, src=product)
        new_top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=new_top, op=nl.maximum, data=scores, axis=1)
        if block > 0:
            nisa.tensor_tensor(dst=new_top, data1=new_top, data2=top, op=nl.maximum)
        negative = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=negative, data=new_top, op0=nl.multiply, operand0=-1.0)
        powers = nl.ndarray((rows, KEYS), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=powers, op=nl.exp, data=scores, bias=negative)
        block_sum = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=block_sum, op=nl.add, data=powers, axis=1)
        values = nl.ndarray((rows, depth), dtype=nl.float32, buffer=nl.psum)
        for part in range(KEYS // 128):
            span = slice(part * 128, part * 128 + 128)
            turned = nl.ndarray((128, rows), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=powers[0:rows, span])
            moved = nl.ndarray((128, rows), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=moved, src=turned)
            value = nl.ndarray((128, depth), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=value, src=v[first + part * 128 : first + part * 128 + 128, 0:depth])
            nisa.nc_matmul(dst=values, stationary=moved, moving=value)
        if block == 0:
            nisa.tensor_copy(dst=result, src=values)
            nisa.tensor_copy(dst=total, src=block_sum)
        else:
            shrink = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=shrink, op=nl.exp, data=top, bias=negative)
            nisa.scalar_tensor_tensor(
                dst=result, data=result, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=values
            )
            if repaired:
                nisa.tensor_tensor(dst=total, data1=total, data2=shrink, op=nl.multiply)
            nisa.tensor_tensor(dst=total, data1=total, data2=block_sum, op=nl.add)
        nisa.tensor_copy(dst=top, src=new_top)
        if debug:
            to_hbm(scores, all_scores[0:rows, first : first + KEYS])
            to_hbm(top, all_maxima[0:rows, block : block + 1])
            to_hbm(powers, all_powers[0:rows, first : first + KEYS])
            to_hbm(block_sum, all_sums[0:rows, block : block + 1])
            to_hbm(total, all_totals[0:rows, block : block + 1])
    inverse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=total)
    nisa.tensor_scalar(dst=result, data=result, op0=nl.multiply, operand0=inverse)
    nisa.dma_copy(dst=out, src=result)
    if debug:
        return all_scores, all_maxima, all_powers, all_sums, all_totals, out
    return out


def reference(q, k, v):
    """Every stage in NumPy, in the order of STAGES."""
    scores = q.T @ k
    blocks = scores.reshape(scores.shape[0], -1, KEYS)
    maxima = np.maximum.accumulate(blocks.max(2), axis=1)
    powers = np.exp(blocks - maxima[:, :, None])
    sums = powers.sum(2)
    totals = sums.copy()
    for block in range(1, sums.shape[1]):
        totals[:, block] += totals[:, block - 1] * np.exp(maxima[:, block - 1] - maxima[:, block])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return scores, maxima, powers.reshape(scores.shape), sums, totals, weights / weights.sum(1, keepdims=True) @ v


def inputs(keys):
    """Signed inputs of a wide range: uniform ones hide faults of the rescaling."""
    draw = np.random.default_rng(3)
    q, k = (2.0 * draw.standard_normal((32, size)).astype(np.float32) for size in (128, keys))
    return q, k, draw.standard_normal((keys, 32)).astype(np.float32)


def bisect(found, wanted):
    """(the first stage that differs or None, the comparisons made as (stage, largest difference))."""
    low, high, compared = 0, len(STAGES), []
    while low < high:
        middle = (low + high) // 2
        error = float(np.abs(found[middle] - wanted[middle]).max())
        compared.append((STAGES[middle], error))
        low, high = (low, middle) if error > 1e-3 else (middle + 1, high)
    return (STAGES[low] if low < len(STAGES) else None), compared


def main():
    """The search, at two sizes, and the proof of the repair."""
    from vibeserve.nki import simulate

    for keys in (1024, 512):
        q, k, v = inputs(keys)
        first, compared = bisect(simulate(attention)(q, k, v), reference(q, k, v))
        for stage, error in compared:
            print(f"{keys} keys: {stage}: {error:.1e}")
        print(f"{keys} keys: first wrong stage: {first}")
    q, k, v = inputs(1024)
    wanted = reference(q, k, v)[-1]
    for name, repaired in (("before", False), ("after", True)):
        out = simulate(attention)(q, k, v, repaired=repaired, debug=False)
        print(f"error {name}: {float(np.abs(out - wanted).max()):.1e}")


if __name__ == "__main__":
    main()
