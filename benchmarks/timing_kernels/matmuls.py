"""Matmuls and an activation whose device times are public (C1, C2, C4, C5, C6 of the benchmark)."""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
N = 512


def load(source, row, rows, column, columns):
    """A piece of a matrix in SBUF."""
    tile = nl.ndarray((rows, columns), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[row : row + rows, column : column + columns])
    return tile


@nki.jit
def load_per_product(lhs_t, rhs):
    """C1: both operands anew for every product; [K, M] and [K, N] fp32."""
    depth, height, width = lhs_t.shape[0], lhs_t.shape[1], rhs.shape[1]
    out = nl.ndarray((height, width), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, height, P):
        for n in range(0, width, N):
            product = nl.ndarray((P, N), dtype=nl.float32, buffer=nl.psum)
            for k in range(0, depth, P):
                left = load(lhs_t, k, P, m, P)
                nisa.nc_matmul(dst=product, stationary=left, moving=load(rhs, k, P, n, N))
            tile = nl.ndarray((P, N), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=product)
            nisa.dma_copy(dst=out[m : m + P, n : n + N], src=tile)
    return out


@nki.jit
def hoisted_loads(lhs_t, rhs):
    """C2: the stationary tiles once per row of the result, the moving ones once per tile of it."""
    depth, height, width = lhs_t.shape[0], lhs_t.shape[1], rhs.shape[1]
    out = nl.ndarray((height, width), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, height, P):
        left = [load(lhs_t, k, P, m, P) for k in range(0, depth, P)]
        for n in range(0, width, N):
            right = [load(rhs, k, P, n, N) for k in range(0, depth, P)]
            product = nl.ndarray((P, N), dtype=nl.float32, buffer=nl.psum)
            for k in range(depth // P):
                nisa.nc_matmul(dst=product, stationary=left[k], moving=right[k])
            tile = nl.ndarray((P, N), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=product)
            nisa.dma_copy(dst=out[m : m + P, n : n + N], src=tile)
    return out


@nki.jit
def transposed_on_the_way(lhs, rhs, eye):
    """C4: lhs [M, K] is transposed on the Tensor Engine; column blocks of 1024, the block's rhs anew for each row tile
    (in halves here, which the SBUF that a kernel may use asks for)."""
    height, depth, width = lhs.shape[0], lhs.shape[1], rhs.shape[1]
    block = 1024
    out = nl.ndarray((height, width), dtype=lhs.dtype, buffer=nl.shared_hbm)
    identity = load(eye, 0, P, 0, P)
    for n in range(0, width, block):
        for m in range(0, height, P):
            left = []
            for k in range(0, depth, block):
                rows = load(lhs, m, P, k, block)
                for piece in range(0, block, P):
                    turned = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
                    nisa.nc_matmul(
                        dst=turned, stationary=rows[0:P, piece : piece + P], moving=identity, is_transpose=True
                    )
                    part = nl.ndarray((P, P), dtype=lhs.dtype, buffer=nl.sbuf)
                    nisa.activation(dst=part, op=nl.copy, data=turned)
                    left.append(part)
            tile = nl.ndarray((P, block), dtype=out.dtype, buffer=nl.sbuf)
            for half in range(0, block, N):
                right = [load(rhs, k, P, n + half, N) for k in range(0, depth, P)]
                product = nl.ndarray((P, N), dtype=nl.float32, buffer=nl.psum)
                for k in range(depth // P):
                    nisa.nc_matmul(dst=product, stationary=left[k], moving=right[k])
                nisa.tensor_copy(dst=tile[0:P, half : half + N], src=product)
            nisa.dma_copy(dst=out[m : m + P, n : n + block], src=tile)
    return out


@nki.jit
def blocked(lhs_t, rhs):
    """C5: row blocks of 1024 whose stationary tiles stay; column blocks of 1024, the last one partial."""
    depth, height, width = lhs_t.shape[0], lhs_t.shape[1], rhs.shape[1]
    block = 1024
    out = nl.ndarray((height, width), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, height, block):
        left = [load(lhs_t, k, P, m, block) for k in range(0, depth, P)]
        for n in range(0, width, block):
            size = min(block, width - n)
            right = [load(rhs, k, P, n, size) for k in range(0, depth, P)]
            for row in range(0, block, P):
                tile = nl.ndarray((P, size), dtype=out.dtype, buffer=nl.sbuf)
                for half in range(0, size, N):
                    columns = min(N, size - half)
                    product = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.psum)
                    for k in range(depth // P):
                        nisa.nc_matmul(
                            dst=product,
                            stationary=left[k][0:P, row : row + P],
                            moving=right[k][0:P, half : half + columns],
                        )
                    nisa.tensor_copy(dst=tile[0:P, half : half + columns], src=product)
                nisa.dma_copy(dst=out[m + row : m + row + P, n : n + size], src=tile)
    return out


def silu_over(x, powers_of):
    """x / (1 + exp(-x)) over [P * T, F] as T × (F / 1024) tiles of 128 × 1024, computed in halves; `powers_of` gives the tile
    of exp(-x) for a half."""
    rows, width = x.shape
    block = 1024
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for row in range(0, rows, P):
        for column in range(0, width, block):
            tile = load(x, row, P, column, block)
            result = nl.ndarray((P, block), dtype=x.dtype, buffer=nl.sbuf)
            for half in range(0, block, N):
                part = tile[0:P, half : half + N]
                powers = powers_of()
                nisa.activation(dst=powers, op=nl.exp, data=part, scale=-1.0)
                nisa.tensor_scalar(dst=powers, data=powers, op0=nl.add, operand0=1.0)
                nisa.reciprocal(dst=powers, data=powers)
                nisa.tensor_tensor(dst=result[0:P, half : half + N], data1=part, data2=powers, op=nl.multiply)
            nisa.dma_copy(dst=out[row : row + P, column : column + block], src=result)
    return out


@nki.jit
def silu(x):
    """C6, with a tile of its own for each half's exp."""
    return silu_over(x, lambda: nl.ndarray((P, N), dtype=nl.float32, buffer=nl.sbuf))


@nki.jit
def silu_one_tile(x):
    """C6, with one tile for the exp of all halves: the scalar engine waits until the vector engine is done with it."""
    powers = nl.ndarray((P, N), dtype=nl.float32, buffer=nl.sbuf)
    return silu_over(x, lambda: powers)
