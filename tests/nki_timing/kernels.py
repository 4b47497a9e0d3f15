"""Kernels whose schedules are worked out on paper."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def copy_through(x):
    """Load, copy on the vector engine, store."""
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=tile, engine=nisa.engine.vector)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def products(a, b, count=4):
    """`count` equal products into tiles of their own, after two loads."""
    left = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    out = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    product = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for _ in range(count):
        nisa.nc_matmul(dst=product, stationary=left, moving=right)
    result = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=product)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def chains(x, length=6):
    """Two independent chains of vector and scalar instructions, written one after the other."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for half in range(2):
        columns = slice(half * (x.shape[1] // 2), (half + 1) * (x.shape[1] // 2))
        tile = nl.ndarray((x.shape[0], x.shape[1] // 2), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[0 : x.shape[0], columns])
        for _ in range(length):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0, engine=nisa.engine.vector)
            nisa.activation(dst=tile, op=nl.exp, data=tile)
        nisa.dma_copy(dst=out[0 : x.shape[0], columns], src=tile)
    return out


@nki.jit
def across_cores(x):
    """Each core writes a row block, they meet, each reads the other's."""
    core, rows = nl.program_id(0), x.shape[0] // 2
    shared = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((rows, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[core * rows : core * rows + rows, 0 : x.shape[1]])
    if core == 0:
        for _ in range(20):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=shared[core * rows : core * rows + rows, 0 : x.shape[1]], src=tile)
    nisa.core_barrier(data=shared, cores=(0, 1))
    other = (1 - core) * rows
    again = nl.ndarray((rows, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=again, src=shared[other : other + rows, 0 : x.shape[1]])
    nisa.dma_copy(dst=out[other : other + rows, 0 : x.shape[1]], src=again)
    return out


@nki.jit
def copy_rows(x):
    """Each core copies its half of x through SBUF, 128 rows at a time."""
    core, rows = nl.program_id(0), x.shape[0] // nl.num_programs(0)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for row in range(core * rows, core * rows + rows, 128):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[row : row + 128, 0 : x.shape[1]])
        nisa.dma_copy(dst=out[row : row + 128, 0 : x.shape[1]], src=tile)
    return out


@nki.jit
def too_many_tiles(x, count=8):
    """Loads `count` tiles, then uses them in the same order, twice: all are alive at once."""
    width = x.shape[1]
    out = nl.ndarray((count * 128, width), dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = []
    for _ in range(count):
        tiles.append(nl.ndarray((128, width), dtype=x.dtype, buffer=nl.sbuf))
        nisa.dma_copy(dst=tiles[-1], src=x[0:128, 0:width])
    for _ in range(2):
        for tile in tiles:
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    for i in range(count):
        nisa.dma_copy(dst=out[i * 128 : i * 128 + 128, 0:width], src=tiles[i])
    return out


@nki.jit
def ordered(x, how="none"):
    """Two independent chains of one instruction each, on vector and scalar; `how` asks for an order between them."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    one, two = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))

    def both():
        first = nisa.memset(dst=one, value=1.0, engine=nisa.engine.vector, name="first")
        second = nisa.activation(dst=two, op=nl.copy, data=source, name="second")
        if how == "depends":
            second.depends_on(first)

    source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=source, value=0.0, engine=nisa.engine.gpsimd)
    if how == "no_reorder":
        with nl.no_reorder():
            both()
    else:
        both()
    nisa.dma_copy(dst=out, src=two)
    return out


@nki.jit
def exchange(x, by_gpsimd=False):
    """Each core sends a tile to the other."""
    core, rows = nl.program_id(0), 128
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mine, other = (nl.ndarray((rows, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
    nisa.dma_copy(dst=mine, src=x[core * rows : core * rows + rows, 0 : x.shape[1]])
    how = nisa.dma_engine.gpsimd_dma if by_gpsimd else nisa.dma_engine.dma
    nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0, dma_engine=how)
    nisa.dma_copy(dst=out[core * rows : core * rows + rows, 0 : x.shape[1]], src=other)
    return out


@nki.jit
def two_functions(x):
    """Activations with two function tables in turn."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for op in (nl.exp, nl.exp, nl.tanh, nl.copy, nl.exp):
        nisa.activation(dst=tile, op=op, data=tile)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def vector_beside_gpsimd(x):
    """A long instruction of gpsimd, and a vector copy of two-byte data that begins a little later."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile, later, copy, noise = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf) for _ in range(4))
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_tensor(dst=noise, data1=tile, data2=tile, op=nl.add, engine=nisa.engine.gpsimd)
    nisa.dma_copy(dst=later, src=x)
    nisa.tensor_copy(dst=copy, src=later, engine=nisa.engine.vector)
    nisa.dma_copy(dst=out, src=copy)
    return out


@nki.jit
def transposed_pieces(x):
    """Four transposes, each copied by itself into the columns of one tile, and a matmul beside them."""
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    turned = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    for at in range(0, 512, 128):
        piece = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=piece, data=tile[0:128, at : at + 128])
        nisa.tensor_copy(dst=turned[0:128, at : at + 128], src=piece)
    nisa.dma_copy(dst=out, src=turned)
    return out


@nki.jit
def double_rows(a, b):
    """A product of [K, 2, M] and [K, 2, N] in float8."""
    left, right = (nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.sbuf) for t in (a, b))
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    product = nl.ndarray((a.shape[2], b.shape[2]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=left, moving=right, perf_mode=nisa.matmul_perf_mode.double_row)
    result = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=product)
    out = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def two_tiles_of_psum(x, same):
    """Two products into PSUM, in one bank or in two; vector still reads the first when scalar may read the second."""
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    source = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=source, src=x)
    if same:
        whole = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        one, two = whole[0:128, 0:256], whole[0:128, 256:512]
    else:
        one, two = (nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.psum) for _ in range(2))
    nisa.nc_matmul(dst=one, stationary=source[0:128, 0:128], moving=source[0:128, 0:256])
    nisa.nc_matmul(dst=two, stationary=source[0:128, 0:128], moving=source[0:128, 256:512])
    left, right = (nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
    nisa.tensor_copy(dst=left, src=one, engine=nisa.engine.vector)
    nisa.activation(dst=right, op=nl.copy, data=two)
    nisa.dma_copy(dst=out[0:128, 0:256], src=left)
    nisa.dma_copy(dst=out[0:128, 256:512], src=right)
    return out


@nki.jit
def tile_after_tile(x, tiles=6):
    """Products of one pair of operands into tiles of their own, each copied out and stored before the next; the copies
    name no engine."""
    columns = x.shape[1]
    out = nl.ndarray((tiles * 128, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=source, src=x)
    for i in range(tiles):
        product = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=source[0:128, 0:128], moving=source)
        tile = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=product)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, 0:columns], src=tile)
    return out


@nki.jit
def divided(x):
    """x / x by nl.divide, and as a reciprocal and a product."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_tensor(dst=tile, data1=nl.divide(tile, tile), data2=tile, op=nl.multiply)
    nisa.reciprocal(dst=tile, data=tile)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.multiply)
    nisa.dma_copy(dst=out, src=tile)
    return out
