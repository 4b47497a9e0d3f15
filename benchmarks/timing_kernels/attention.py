"""Attention as it was compiled in three captures of a trn2: q, k, v [d = 128, S = 512], out [S, d], no scaling.

Order of steps, engines and queues are those of the captures' rows: each step for all query tiles before the next, columns
of four row maxima and sums, four transposes a copy, two query tiles a transfer, one store of the whole output. `*_plain`
say the same from tile to tile, each copy where the compiler puts it, as a person writes it.
"""

import nki
import nki.isa as nisa
import nki.language as nl

P = 128
SCALAR, VECTOR = nisa.engine.scalar, nisa.engine.vector


def load(source, software=True):
    """A whole [128, n] operand in SBUF, by the software queue or the sync engine's."""
    tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    if software:
        nisa.dma_copy(dst=tile, src=source, dge_mode=nisa.dge_mode.swdge)
    else:
        nisa.dma_copy(dst=tile, src=source)
    return tile


def tile_of(rows, columns, dtype=nl.float32):
    """A tile in SBUF."""
    return nl.ndarray((rows, columns), dtype=dtype, buffer=nl.sbuf)


def transposes(source):
    """Four 128 × 128 pieces transposed into one PSUM tile."""
    pieces = nl.ndarray((P, source.shape[1]), dtype=source.dtype, buffer=nl.psum)
    for at in range(0, source.shape[1], P):
        nisa.nc_transpose(dst=pieces[0:P, at : at + P], data=source[0:P, at : at + P])
    return pieces


def copied(source, engine):
    """A PSUM tile as float32 in SBUF."""
    tile = tile_of(P, source.shape[1])
    nisa.tensor_copy(dst=tile, src=source, engine=engine)
    return tile


def accumulate(total, weights, values, pieces):
    """weights^T · values of some key tiles, added to what is in PSUM."""
    for j in pieces:
        columns = slice(j * P, (j + 1) * P)
        nisa.nc_matmul(dst=total, stationary=weights[0:P, columns], moving=values[0:P, columns])
    return total


def product(weights, values, tiles):
    """weights^T · values, accumulated over the key tiles."""
    total = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
    return accumulate(total, weights, values, range(tiles))


def score_of(query, key, i):
    """Scores of query tile i in PSUM."""
    score = nl.ndarray((P, key.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=score, stationary=query[0:P, i * P : (i + 1) * P], moving=key)
    return score


def gathered(columns, op, negate=False):
    """The compiler's second reduction of four columns, of one element each."""
    result = tile_of(P, columns.shape[1])
    nisa.tensor_reduce(dst=result, op=op, data=columns.expand_dim(2), axis=2, negate=negate)
    return result


@nki.jit
def fused(q, k, v, eye, eye_fp32):
    """Scores stay in PSUM; maximum and exp read them there."""
    length = q.shape[1]
    tiles = length // P
    out = nl.ndarray((length, P), dtype=q.dtype, buffer=nl.shared_hbm)
    load(eye, software=False)
    if q.dtype != nl.float32:
        load(eye_fp32, software=False)
    value, query, key = load(v), load(q), load(k)
    values = copied(transposes(value), SCALAR)
    scores = [score_of(query, key, i) for i in range(tiles)]
    tops, sums = tile_of(P, tiles), tile_of(P, tiles)
    for i in range(tiles):
        nisa.tensor_reduce(dst=tops[0:P, i : i + 1], op=nl.maximum, data=scores[i], axis=1)
    least = gathered(tops, nl.maximum, negate=True)
    powers = [tile_of(P, length) for _ in range(tiles)]
    for i in range(tiles):
        nisa.activation(dst=powers[i], op=nl.exp, data=scores[i], bias=least[0:P, i : i + 1])
    pieces = [transposes(powers[i]) for i in range(tiles)]
    weights = []
    for i in range(tiles):
        nisa.tensor_reduce(dst=sums[0:P, i : i + 1], op=nl.add, data=powers[i], axis=1)
        if i == 1:
            weights.append(copied(pieces[0], VECTOR))
    total = gathered(sums, nl.add)
    nisa.reciprocal(dst=total, data=total)
    weights += [copied(pieces[i], SCALAR) for i in range(1, tiles)]
    result = nl.ndarray((P, tiles, P), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(tiles):
        nisa.tensor_scalar(
            dst=result[0:P, i, 0:P],
            data=product(weights[i], values, tiles),
            op0=nl.multiply,
            operand0=total[0:P, i : i + 1],
        )
    nisa.dma_copy(dst=out.reshape((tiles, P, P)).permute((1, 0, 2)), src=result, dge_mode=nisa.dge_mode.swdge)
    return out


def pair(tensor, i):
    """Rows of two tiles of a [4 · 128, n] tensor in HBM, as [128, 2, n]."""
    rows = tensor[2 * i * P : (2 * i + 2) * P, 0 : tensor.shape[1]]
    return rows.reshape((2, P, tensor.shape[1])).permute((1, 0, 2))


def pairs_of(length):
    """Tiles for two query tiles each."""
    return [nl.ndarray((P, 2, length), dtype=nl.float32, buffer=nl.sbuf) for _ in range(length // P // 2)]


@nki.jit
def baseline(q, k, v, eye, eye_fp32):
    """Three phases through HBM: scores; softmax, normalised; weights times values. Two query tiles a transfer."""
    length = q.shape[1]
    tiles = length // P
    out = nl.ndarray((length, P), dtype=q.dtype, buffer=nl.shared_hbm)
    scores = nl.ndarray((length, length), dtype=nl.float32, buffer=nl.private_hbm)
    weights = nl.ndarray((length, length), dtype=nl.float32, buffer=nl.private_hbm)
    load(eye_fp32, software=False)
    load(eye, software=False)
    query, key, value = load(q), load(k), load(v)
    found = [score_of(query, key, i) for i in range(tiles)]
    turned = transposes(value)
    for i, tile in enumerate(pairs_of(length)):
        for part in range(2):
            nisa.tensor_copy(dst=tile[0:P, part, 0:length], src=found[2 * i + part], engine=VECTOR if part else SCALAR)
        nisa.dma_copy(dst=pair(scores, i), src=tile)
    values = copied(turned, SCALAR)
    read = pairs_of(length)
    for i in range(tiles // 2):
        nisa.dma_copy(dst=read[i], src=pair(scores, i))
    rows = [read[i // 2][0:P, i % 2, 0:length] for i in range(tiles)]
    tops, sums = tile_of(P, tiles), tile_of(P, tiles)
    for i in range(tiles):
        nisa.tensor_reduce(dst=tops[0:P, i : i + 1], op=nl.maximum, data=rows[i], axis=1)
    least = gathered(tops, nl.maximum, negate=True)
    powers = [tile_of(P, length) for _ in range(tiles)]
    for i in range(tiles):
        nisa.activation(dst=powers[i], op=nl.exp, data=rows[i], bias=least[0:P, i : i + 1])
        nisa.tensor_reduce(dst=sums[0:P, i : i + 1], op=nl.add, data=powers[i], axis=1)
    total = gathered(sums, nl.add)
    nisa.reciprocal(dst=total, data=total)
    for i, tile in enumerate(pairs_of(length)):
        for part in range(2):
            at = 2 * i + part
            nisa.tensor_scalar(
                dst=tile[0:P, part, 0:length], data=powers[at], op0=nl.multiply, operand0=total[0:P, at : at + 1]
            )
        nisa.dma_copy(dst=pair(weights, i), src=tile)
    again = pairs_of(length)
    for i in range(tiles // 2):
        nisa.dma_copy(dst=again[i], src=pair(weights, i))
    result = nl.ndarray((P, tiles, P), dtype=out.dtype, buffer=nl.sbuf)
    ready = [copied(transposes(again[0][0:P, part, 0:length]), SCALAR) for part in range(2)]
    sums = [product(ready[0], values, tiles)]
    nisa.tensor_copy(dst=result[0:P, 0, 0:P], src=sums[0], engine=SCALAR)
    second = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
    accumulate(
        second, ready[1], values, range(tiles // 2)
    )  # the rest comes after the transposes of what was loaded last
    ready += [copied(transposes(again[1][0:P, part, 0:length]), SCALAR) for part in range(2)]
    accumulate(second, ready[1], values, range(tiles // 2, tiles))
    nisa.tensor_copy(dst=result[0:P, 1, 0:P], src=second, engine=VECTOR)
    for i in range(2, tiles):
        nisa.tensor_copy(dst=result[0:P, i, 0:P], src=product(ready[i], values, tiles), engine=SCALAR)
    nisa.dma_copy(dst=out.reshape((tiles, P, P)).permute((1, 0, 2)), src=result, dge_mode=nisa.dge_mode.swdge)
    return out


def turned_by_pieces(source, dtype=nl.float32):
    """[128, n] with each 128 × 128 piece transposed and copied by itself."""
    result = tile_of(P, source.shape[1], dtype)
    for at in range(0, source.shape[1], P):
        piece = nl.ndarray((P, P), dtype=source.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=piece, data=source[0:P, at : at + P])
        nisa.tensor_copy(dst=result[0:P, at : at + P], src=piece)
    return result


def attend(out, i, score, least, values):
    """Query tile i from its scores and its negated maximum to its store."""
    length = score.shape[1]
    total, power = tile_of(P, 1), tile_of(P, length)
    nisa.activation(dst=power, op=nl.exp, data=score, bias=least)
    nisa.tensor_reduce(dst=total, op=nl.add, data=power, axis=1)
    nisa.reciprocal(dst=total, data=total)
    weights = turned_by_pieces(power)
    result = tile_of(P, P, out.dtype)
    nisa.tensor_scalar(dst=result, data=product(weights, values, length // P), op0=nl.multiply, operand0=total)
    nisa.dma_copy(dst=out[i * P : (i + 1) * P, 0:P], src=result, dge_mode=nisa.dge_mode.swdge)


@nki.jit
def fused_plain(q, k, v):
    """The fused kernel from query tile to query tile, every piece copied by itself: for `--schedule list`."""
    length = q.shape[1]
    out = nl.ndarray((length, P), dtype=q.dtype, buffer=nl.shared_hbm)
    query, key, value = load(q), load(k), load(v)
    values = turned_by_pieces(value)
    for i in range(length // P):
        score, least = score_of(query, key, i), tile_of(P, 1)
        nisa.tensor_reduce(dst=least, op=nl.maximum, data=score, axis=1, negate=True)
        attend(out, i, score, least, values)
    return out


@nki.jit
def fused_gathered(q, k, v):
    """The same but for the maxima, which are gathered over all query tiles as the compiler does it."""
    length = q.shape[1]
    tiles = length // P
    out = nl.ndarray((length, P), dtype=q.dtype, buffer=nl.shared_hbm)
    query, key, value = load(q), load(k), load(v)
    values = turned_by_pieces(value)
    scores, tops = [score_of(query, key, i) for i in range(tiles)], tile_of(P, tiles)
    for i in range(tiles):
        nisa.tensor_reduce(dst=tops[0:P, i : i + 1], op=nl.maximum, data=scores[i], axis=1)
    least = gathered(tops, nl.maximum, negate=True)
    for i in range(tiles):
        attend(out, i, scores[i], least[0:P, i : i + 1], values)
    return out


def by_phases(q, k, v, share):
    """The three phases from query tile to query tile, every piece copied by itself; `share` query tiles a transfer."""
    length = q.shape[1]
    tiles = length // P
    out = nl.ndarray((length, P), dtype=q.dtype, buffer=nl.shared_hbm)
    scores = nl.ndarray((length, length), dtype=nl.float32, buffer=nl.private_hbm)
    weights = nl.ndarray((length, length), dtype=nl.float32, buffer=nl.private_hbm)

    def rows(tensor, i):
        return tensor[i * P : (i + share) * P, 0:length].reshape((share, P, length)).permute((1, 0, 2))

    def some():
        return nl.ndarray((P, share, length), dtype=nl.float32, buffer=nl.sbuf)

    query, key = load(q), load(k)
    for i in range(0, tiles, share):
        tile = some()
        for part in range(share):
            nisa.tensor_copy(dst=tile[0:P, part, 0:length], src=score_of(query, key, i + part))
        nisa.dma_copy(dst=rows(scores, i), src=tile)
    for i in range(0, tiles, share):
        tile, power = some(), some()
        nisa.dma_copy(dst=tile, src=rows(scores, i))
        for part in range(share):
            here = power[0:P, part, 0:length]
            top, total = tile_of(P, 1), tile_of(P, 1)
            nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile[0:P, part, 0:length], axis=1, negate=True)
            nisa.activation(dst=here, op=nl.exp, data=tile[0:P, part, 0:length], bias=top)
            nisa.tensor_reduce(dst=total, op=nl.add, data=here, axis=1)
            nisa.reciprocal(dst=total, data=total)
            nisa.tensor_scalar(dst=here, data=here, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=rows(weights, i), src=power)
    values = turned_by_pieces(load(v))
    for i in range(0, tiles, share):
        tile = some()
        nisa.dma_copy(dst=tile, src=rows(weights, i))
        for part in range(share):
            ready = turned_by_pieces(tile[0:P, part, 0:length])
            result = tile_of(P, P, out.dtype)
            nisa.tensor_copy(dst=result, src=product(ready, values, tiles))
            at = (i + part) * P
            nisa.dma_copy(dst=out[at : at + P, 0:P], src=result, dge_mode=nisa.dge_mode.swdge)
    return out


@nki.jit
def baseline_plain(q, k, v):
    """Three phases, one query tile a transfer: for `--schedule list`."""
    return by_phases(q, k, v, 1)


@nki.jit
def baseline_gathered(q, k, v):
    """The same with two query tiles a transfer, as the compiler does it."""
    return by_phases(q, k, v, 2)
