"""The selective scan of Mamba, alone and within its block."""

import nki
import nki.isa as nisa
import nki.language as nl

from vibeserve.nki.lib import TiledRange, assert_shape, kernel_assert

P = 128
TAPS = 4


def load(source, dtype):
    """A [rows, columns] piece of HBM in SBUF, cast to `dtype`."""
    tile = nl.ndarray(source.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def load_repeated(row, rows):
    """A row of HBM in each of `rows` partitions, as float32."""
    tile = nl.ndarray((rows, row.shape[0]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=row.reshape((1, row.shape[0])).broadcast(0, rows))
    return tile


def scan_states(total, u, delta, a, b, c):
    """total[ch, t] = sum over states n of c[n, t] h[n, t], h[n, t] = exp(delta a[n]) h[n, t-1] + delta u b[n, t].

    total, u and delta are float32 tiles [channels, L]; a is [channels, N] in SBUF; b and c are [N, L] in HBM.
    """
    channels, length = u.shape
    drive = nl.ndarray((channels, length), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=drive, data1=delta, data2=u, op=nl.multiply)
    for n in range(a.shape[1]):
        decay = nl.ndarray((channels, length), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=decay, op=nl.exp, data=delta, scale=a[0:channels, n : n + 1])
        entry = nl.ndarray((channels, length), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=entry, data1=drive, data2=load_repeated(b[n], channels), op=nl.multiply)
        states = nl.ndarray((channels, length), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor_scan(dst=states, data0=decay, data1=entry, initial=0.0, op0=nl.multiply, op1=nl.add)
        if n == 0:
            nisa.tensor_tensor(dst=total, data1=states, data2=load_repeated(c[n], channels), op=nl.multiply)
        else:
            read = nl.ndarray((channels, length), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=read, data1=states, data2=load_repeated(c[n], channels), op=nl.multiply)
            nisa.tensor_tensor(dst=total, data1=total, data2=read, op=nl.add)


@nki.jit
def selective_scan(u, delta, a, b, c):
    """y[t] = C[t] . h[t] with h[t] = exp(delta[t] A) h[t-1] + delta[t] u[t] B[t], state by state.

    Args:
        u, delta: [batch, channels, L] in HBM, float; L at most 2048.
        a: [channels, N] in HBM, float32.
        b, c: [batch, N, L] in HBM, float.

    Returns:
        y, [batch, channels, L] in HBM, dtype of u.
    """
    batch, channels, length = u.shape
    kernel_assert(length <= 2048, f"{length} steps, at most 2048")
    assert_shape(delta, u.shape, "delta")
    assert_shape(b, (batch, a.shape[1], length), "b")
    assert_shape(c, (batch, a.shape[1], length), "c")
    out = nl.ndarray(u.shape, dtype=u.dtype, buffer=nl.shared_hbm)
    for item in range(batch):
        for tile in TiledRange(channels, P):
            span = slice(tile.start_offset, tile.end_offset)
            values = load(u[item, span, 0:length], nl.float32)
            steps = load(delta[item, span, 0:length], nl.float32)
            total = nl.ndarray((tile.size, length), dtype=nl.float32, buffer=nl.sbuf)
            scan_states(total, values, steps, load(a[span, 0 : a.shape[1]], nl.float32), b[item], c[item])
            result = nl.ndarray((tile.size, length), dtype=u.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=total)
            nisa.dma_copy(dst=out[item, span, 0:length], src=result)
    return out


@nki.jit
def mamba_block(x, z, conv_w, conv_b, delta, a, b, c, d):
    """A block between its projections: u = silu(conv(x)), y = scan(u) + d u, out = y silu(z).

    Args:
        x, z, delta: [channels, L] in HBM, float; L at most 2048.
        conv_w: [channels, 4]: the taps of a causal depthwise convolution, oldest first.
        conv_b, d: (channels,).
        a: [channels, N] float32.
        b, c: [N, L].

    Returns:
        [channels, L] in HBM, dtype of x.
    """
    channels, length = x.shape
    kernel_assert(length <= 2048, f"{length} steps, at most 2048")
    assert_shape(z, x.shape, "z")
    assert_shape(delta, x.shape, "delta")
    assert_shape(conv_w, (channels, TAPS), "conv_w")
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for tile in TiledRange(channels, P):
        span = slice(tile.start_offset, tile.end_offset)
        u = convolved(x[span, 0:length], load(conv_w[span, 0:TAPS], nl.float32), column(conv_b, span))
        steps = load(delta[span, 0:length], nl.float32)
        total = nl.ndarray((tile.size, length), dtype=nl.float32, buffer=nl.sbuf)
        scan_states(total, u, steps, load(a[span, 0 : a.shape[1]], nl.float32), b, c)
        nisa.scalar_tensor_tensor(
            dst=total, data=u, op0=nl.multiply, operand0=column(d, span), op1=nl.add, operand1=total
        )
        gate = load(z[span, 0:length], x.dtype)
        active = nl.ndarray((tile.size, length), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=active, op=nl.silu, data=gate)
        nisa.tensor_tensor(dst=gate, data1=total, data2=active, op=nl.multiply)
        nisa.dma_copy(dst=out[span, 0:length], src=gate)
    return out


def column(vector, span):
    """Elements `span` of a vector in HBM as a (P, 1) float32 tile."""
    return load(vector[span].reshape((span.stop - span.start, 1)), nl.float32)


def convolved(x, taps, bias):
    """silu of the causal convolution of x [channels, L] with `taps` [channels, 4], as float32."""
    channels, length = x.shape
    padded = nl.ndarray((channels, length + TAPS - 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=padded[0:channels, 0 : TAPS - 1], value=0.0)
    nisa.dma_copy(dst=padded[0:channels, TAPS - 1 : TAPS - 1 + length], src=x)
    total = nl.ndarray((channels, length), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=total, data=padded[0:channels, 0:length], op0=nl.multiply, operand0=taps[0:channels, 0:1])
    for tap in range(1, TAPS):
        nisa.scalar_tensor_tensor(
            dst=total,
            data=padded[0:channels, tap : tap + length],
            op0=nl.multiply,
            operand0=taps[0:channels, tap : tap + 1],
            op1=nl.add,
            operand1=total,
        )
    nisa.activation(dst=total, op=nl.silu, data=total, bias=bias)
    return total
