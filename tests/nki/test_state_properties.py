"""Random numbers, registers, exchanges and microscaled products against independent NumPy statements.

As in `test_properties`, shapes, dtypes, memories, layouts and generations are drawn. What a seed makes of itself is
documented nowhere, so streams from a seed are held to what follows from the entries: the same seed draws the same words,
whatever the layout; narrow dtypes keep their low bits; `rand2` and `dropout` are functions of uniform numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nki.operands import ANY, F32, FLOATS, HBM, ON_CHIP, PLAIN, READ, SMALL_INTS, WRITE, Draw, cast, f, layout

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import simulate
from vibeserve.nki.language.math import broadcast_tile, vector_function

FOUR = ("whole", "columns", "start", "pattern")
INTS = (*SMALL_INTS, "int32", "uint32")


def bits(rng: Any, shape: Any, dtype: Any) -> Any:
    return rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32)


def drawing(data: Any, *targets: str) -> Draw:
    return Draw(data, data.draw(st.sampled_from(targets)))


def xorwow(state: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """([lanes, count] words, the state after them) of one generator a row, in Python integers."""
    out, after, full = [], [], 0xFFFFFFFF
    for lane in state.tolist():
        x, y, z, w, v, counter = lane
        words = []
        for _ in range(count):
            t = (x ^ (x >> 2)) & full
            x, y, z, w = y, z, w, v
            v = (v ^ (v << 4) ^ t ^ (t << 1)) & full
            counter = (counter + 362437) & full
            words.append((v + counter) & full)
        out.append(words)
        after.append([x, y, z, w, v, counter])
    return np.array(out, np.uint32).reshape(len(out), count), np.array(after, np.uint32)


# -- random numbers ----------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(data=st.data())
def test_rng_draws_the_words_of_the_state_that_was_set(data: Any) -> None:
    """`rand_set_state`, `rng` and `rand_get_state` together: the documented generator, word for word."""
    d = drawing(data, "trn2", "trn3")
    engine = "vector" if d.target == "trn3" and d.pick((True, False)) else "gpsimd"
    chosen = getattr(nisa.engine, engine)
    width = 24 if engine == "vector" else 6
    state = d.tile("src_seeds", ("uint32",), parts=128, free=width, spaces=("sbuf",), layouts=PLAIN[:2], values=bits)
    d.out("dst", INTS, spaces=ON_CHIP if engine == "vector" else ("sbuf",))
    d.out("before", ("uint32",), parts=128, free=width, spaces=("sbuf",), layouts=("whole", "columns", "pattern"))
    d.out("after", ("uint32",), parts=128, free=width, spaces=("sbuf",), layouts=("whole",))

    def draw(src_seeds: Any, dst: Any, before: Any, after: Any) -> None:
        nisa.rand_set_state(src_seeds, engine=chosen)
        nisa.rand_get_state(before, engine=chosen)
        nisa.rng(dst, engine=chosen)
        nisa.rand_get_state(after, engine=chosen)

    held = d.operands["dst"]
    rows = held.view.shape[0]
    first = held.layout.shape[0] - rows
    words, moved = xorwow(state[first : first + rows, :6], d.free)
    unsigned = np.dtype(f"u{held.dtype.itemsize}")
    after = state.copy()
    after[first : first + rows, :6] = moved
    got = d.run(draw, [{}])
    d.check(got, {"dst": words.astype(unsigned).view(held.dtype.dtype), "before": state, "after": after})


@settings(max_examples=25)
@given(data=st.data())
def test_a_seed_tells_the_stream_wherever_it_lies(data: Any) -> None:
    d = drawing(data, "trn1", "trn2", "trn3")
    seed, other = d.int(0, 1 << 30), d.int(0, 1 << 30)
    kind = d.pick(("int32", "uint32", "float32"))
    given = np.array([[seed]], np.uint32)

    def holding(rng: Any, shape: Any, dtype: Any) -> Any:
        return np.broadcast_to(given.view(dtype.dtype), shape).copy()

    d.tile("src_seeds", (kind,), parts=1, free=1, layouts=PLAIN, values=holding)
    d.out("dst", ("uint32",), layouts=[name for name in WRITE if name != "start"])
    d.out("narrow", INTS, layouts=("whole", "columns", "pattern"), parts=d.parts, free=d.free)
    d.out("plain", ("uint32",), parts=d.parts, free=d.free, layouts=("whole",), spaces=("sbuf",))
    d.out("differs", ("uint32",), parts=d.parts, free=d.free, layouts=("whole",), spaces=("sbuf",))

    def draw(src_seeds: Any, dst: Any, narrow: Any, plain: Any, differs: Any) -> None:
        for target in (dst, narrow):
            nisa.set_rng_seed(src_seeds)
            nisa.rng(target)
        direct = nl.ndarray((1, 1), dtype=nl.uint32)
        for value, target in ((seed, plain), (other, differs)):
            nisa.memset(direct, value)
            nisa.set_rng_seed(direct)
            nisa.rng(target)

    got = d.run(draw, [{}])
    words = got["plain"].view(np.uint32).reshape(d.parts, d.free)
    narrow = d.operands["narrow"].dtype
    low = words.astype(np.dtype(f"u{narrow.itemsize}")).view(narrow.dtype)
    d.check(got, {"dst": words, "narrow": low, "plain": words, "differs": got["differs"].view(np.uint32)})
    if words.size > 4:
        assert (got["differs"].view(np.uint32).ravel() != words.ravel()).any() == (seed != other)


def seeded(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` after the vector engine was seeded with 77."""

    def call(**operands: Any) -> None:
        start = nl.ndarray((1, 1), dtype=nl.int32)
        nisa.memset(start, 77)
        nisa.set_rng_seed(start)
        function(**operands)

    return call


@settings(max_examples=25)
@given(data=st.data())
def test_rand2_moves_uniform_numbers_between_its_bounds(data: Any) -> None:
    """min + u (max - min), u the same uniform numbers for any bounds, bounds as numbers or one a partition."""
    d = drawing(data, "trn3")
    low, high = d.pick((0.0, -3.0, 2.5)), d.pick((4.0, 5.5))
    bounds: dict[str, Any] = {"min": low, "max": high}
    values: dict[str, Any] = {"min": F32(low), "max": F32(high)}
    for role, base in (("min", low), ("max", high)):
        if d.pick((True, False)):
            values[role] = d.tile(role, ("float32",), free=1, layouts=("whole", "columns", "pattern"),
                                  values=lambda rng, shape, dtype, base=base: (base + rng.integers(0, 2, shape) / 4).astype(F32))  # fmt: skip
            del bounds[role]
    d.out("dst", (*FLOATS, *SMALL_INTS, "int32"), layouts=[name for name in WRITE if name != "start"])
    d.out("uniform", ("float32",), parts=d.parts, free=d.free, layouts=("whole",), spaces=("sbuf",))

    def draw(dst: Any, uniform: Any, **given: Any) -> None:
        seeded(nisa.rand2)(dst=uniform, min=0.0, max=1.0)
        seeded(nisa.rand2)(dst=dst, **given)

    got = d.run(draw, [bounds])
    uniform = got["uniform"].view(F32).reshape(d.parts, d.free)
    assert ((uniform >= 0) & (uniform <= 1)).all()
    d.rtol = 1e-6
    d.check(got, {"uniform": uniform, "dst": values["min"] + uniform * (values["max"] - values["min"])})


@settings(max_examples=25)
@given(data=st.data())
def test_dropout_keeps_or_clears(data: Any) -> None:
    """Bits are kept or cleared; all at 0, none at 1; what a lower probability drops, a higher one drops as well."""
    d = drawing(data, "trn1", "trn2", "trn3")
    kind = d.pick(ANY)
    a = d.tile("data", (kind,), layouts=[name for name in (*WRITE, "repeated") if name != "start"])
    chances = [0.0, 0.25, 0.5, 1.0]
    column = d.pick((None, "float32") if kind in INTS else (None, "float32", "bfloat16", "float16"))
    for at in range(4):
        d.out(f"d{at}", (kind,), layouts=[name for name in WRITE if name != "start"])

    def draw(data: Any, **dsts: Any) -> None:
        for at, chance in enumerate(chances):
            prob: Any = chance
            if column is not None:
                prob = nl.ndarray((data.shape[0], 1), dtype=getattr(nl, column))
                nisa.memset(prob, chance)
            seeded(nisa.dropout)(dst=dsts[f"d{at}"], data=data, prob=prob)

    got = d.run(draw, [{}])
    rows = [d.operands[f"d{at}"].layout.numpy(np.asarray(got[f"d{at}"]).view(a.dtype).reshape(d.operands[f"d{at}"].layout.shape)).reshape(a.shape)
            for at in range(4)]  # fmt: skip
    word = np.dtype(f"u{a.dtype.itemsize}")
    bare = [np.ascontiguousarray(row).view(word) for row in rows]
    source = np.ascontiguousarray(a).view(word)
    d.check(got, {f"d{at}": row for at, row in enumerate(rows)})  # nothing beside the views
    np.testing.assert_array_equal(bare[0], source)
    assert not bare[3].any()
    dropped = [row != source for row in bare]
    for less, more in itertools.pairwise(bare):
        assert (((more == 0) | (more == source)) & ((less != 0) | (more == 0))).all()
    if source.size > 1500 and (source != 0).all():
        assert abs(dropped[2].mean() - 0.5) < 0.1


# -- registers -----------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(data=st.data())
def test_registers_hold_one_element(data: Any) -> None:
    """`register_load` takes the value of an element anywhere, `register_store` puts it anywhere; narrow integers keep low bits."""
    d = drawing(data, "trn1", "trn2", "trn3")
    real = d.pick((True, False, False))
    kinds = ("float32", "bfloat16", "float16") if real else INTS
    spaces = [d.pick(("hbm", "sbuf")) for _ in range(2)]
    a = d.tile("src", kinds, parts=1, free=1, spaces=spaces[:1], layouts=HBM if spaces[0] == "hbm" else PLAIN)
    into = ("float32", "bfloat16") if real else (*INTS, "float32")
    d.out("dst", into, parts=1, free=1, spaces=spaces[1:], layouts=HBM if spaces[1] == "hbm" else PLAIN)

    def move(src: Any, dst: Any) -> None:
        register, second = nisa.register_alloc(), nisa.register_alloc(3)
        nisa.register_load(register, src)
        nisa.register_move(second, register)
        nisa.register_store(dst, second)

    kind = d.dtype("dst")
    wanted: Any = a
    if kind.is_int:
        low = np.array([int(a[0, 0]) & ((1 << 8 * kind.itemsize) - 1)], np.uint64).astype(np.dtype(f"u{kind.itemsize}"))
        wanted = low.view(kind.dtype)
    d.check(d.run(move, [{}]), {"dst": wanted if kind.is_int else f(a)})


# -- two cores -----------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(data=st.data())
def test_sendrecv_swaps_the_tiles_of_two_cores(data: Any) -> None:
    d = drawing(data, "trn2", "trn3")
    kind, parts, free = getattr(nl, d.pick(ANY)), d.parts, d.free
    start = d.pick((0, 32, 64, 96) if parts <= 32 else (0, 64) if parts <= 64 else (0,))
    source, goal = (layout(d.pick(names), parts, free, start) for names in ((*FOUR, "moved"), FOUR))
    rounds, transport = d.int(1, 3), d.pick(list(nisa.dma_engine))
    held = [[cast(d.rng.standard_normal(source.shape) * 20, kind) for _ in range(2)] for _ in range(rounds)]

    def kernel(*xs: Any) -> Any:
        me = nl.program_id(0)
        out = nl.ndarray((2, rounds, parts, free), dtype=kind, buffer=nl.shared_hbm)
        for at in range(rounds):
            mine, theirs = nl.ndarray(source.shape, dtype=kind), nl.ndarray(goal.shape, dtype=kind)
            nisa.dma_copy(mine, xs[2 * at + me])
            got = goal.tensor(theirs)
            nisa.sendrecv(source.tensor(mine), got, 1 - me, 1 - me, pipe_id=at % 2, dma_engine=transport)
            nisa.dma_copy(out[me, at], got)
        return out

    flat = [x for pair in held for x in pair]
    got = simulate(kernel, target=d.target, lnc=2, strict=True)(*flat)
    for me in range(2):
        for at in range(rounds):
            sent = source.numpy(held[at][1 - me]).reshape(parts, free)
            np.testing.assert_array_equal(got[me, at].view(sent.dtype), sent)


@settings(max_examples=25)
@given(data=st.data())
def test_a_barrier_lets_each_core_read_what_the_other_wrote(data: Any) -> None:
    """Each round both cores write rows of a shared tensor, meet, and read the other's; without the meeting it is a race."""
    d = drawing(data, "trn2", "trn3")
    kind, parts, free = getattr(nl, d.pick(ANY)), d.pick((1, 4, 33)), d.free
    where = layout(d.pick(HBM), parts, free)
    rounds, engine = d.int(1, 3), d.pick([e for e in nisa.engine if e.name not in ("unknown", "dma")])
    meets, cores = d.pick((True, True, False)), d.pick([(0, 1), [0, 1]])
    x = cast(d.rng.standard_normal((2, rounds, parts, free)) * 20, kind)

    def kernel(x: Any) -> Any:
        me = nl.program_id(0)
        shared = nl.ndarray((2, rounds, *where.shape), dtype=kind, buffer=nl.shared_hbm, name="shared")
        out = nl.ndarray((2, rounds, parts, free), dtype=kind, buffer=nl.shared_hbm, name="out")
        for at in range(rounds):
            nisa.dma_copy(where.tensor(shared[me, at]), x[me, at])
            if meets:
                nisa.core_barrier(shared, cores, engine=engine)
            nisa.dma_copy(out[me, at], where.tensor(shared[1 - me, at]))
        return out

    run = simulate(kernel, target=d.target, lnc=2)
    got = run(x)
    assert bool(run.findings) == (not meets)
    if meets:
        np.testing.assert_array_equal(got, x[::-1])


# -- microscaled products --------------------------------------------------------------------------------------------------

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F32)
LANES = {"float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn, "float8_e5m2_x4": ml_dtypes.float8_e5m2}


def packed(rng: Any, shape: Any, dtype: Any) -> Any:
    """Packed elements whose lanes are finite."""
    if dtype.name == "float4_e2m1fn_x4":
        return rng.integers(0, 1 << 16, shape).astype(dtype.dtype)
    lanes = rng.standard_normal((*shape, 4)).astype(F32).astype(LANES[dtype.name])
    return np.ascontiguousarray(lanes).view(np.uint8).view(np.uint32)[..., 0].astype(dtype.dtype)


def lanes_of(values: np.ndarray, name: str) -> np.ndarray:
    """[K, F, 4] numbers of packed [K, F], lane 0 in the lowest bits."""
    if name == "float4_e2m1fn_x4":
        return E2M1[np.stack([(values.astype(np.int64) >> 4 * lane) & 15 for lane in range(4)], axis=-1)]
    byte = np.stack([(values.astype(np.int64) >> 8 * lane) & 255 for lane in range(4)], axis=-1).astype(np.uint8)
    return byte.view(LANES[name]).astype(np.float64)


@settings(max_examples=25)
@given(data=st.data())
def test_nc_matmul_mx(data: Any) -> None:
    d = drawing(data, "trn3")
    k, m, n = d.pick((32, 64, 96, 128)), d.pick((2, 8, 34)), d.pick((1, 6, 24))
    operands = []
    for role, free in (("stationary", m), ("moving", n)):
        values = d.tile(role, (*LANES, "float4_e2m1fn_x4"), parts=k, free=free, spaces=("sbuf",), layouts=("whole", "columns", "pattern"),
                        values=packed)  # fmt: skip
        scales = d.tile(f"{role}_scale", ("uint8", "float8_e8m0fnu"), parts=max(k, 4) if k > 32 else d.pick((4, 32)), free=free,
                        spaces=("sbuf",), layouts=("whole", "columns", "pattern"),
                        values=lambda rng, shape, dtype: rng.integers(121, 132, shape).astype(np.uint8).view(dtype.dtype))  # fmt: skip
        group = np.arange(k) // 8
        factor = 2.0 ** (scales.view(np.uint8)[32 * (group // 4) + group % 4].astype(np.float64) - 127)
        operands.append(lanes_of(values, d.dtype(role).name) * factor[:, :, None])
    kind = d.pick(("float32", "bfloat16"))
    old = d.out("dst", (kind,), parts=m, free=n, spaces=("psum",))
    product = np.einsum("kmq,knq->mn", *operands)
    flags = d.pick([(None,), (None, None), (False,), (None, False), (False, True)])
    total = np.zeros_like(old, np.float64)
    for at, flag in enumerate(flags):
        total = product if flag is False or at == 0 else total + product
    d.rtol = 1e-3 if kind == "float32" else 2e-2
    if kind == "bfloat16":
        total = cast(total.astype(F32), nl.bfloat16)
    d.check(d.run("nc_matmul_mx", [{} if flag is None else {"accumulate": flag} for flag in flags]), {"dst": total})


# -- functions of the language that are no single instruction ------------------------------------------------------------------

PLAIN_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc,
    "divide": lambda a, b: a / b, "mod": lambda a, b: a - b * np.floor(a / b), "fmod": lambda a, b: a - b * np.trunc(a / b),
    "power": lambda a, b: np.exp(b * np.log(a)), "where": lambda c, a, b: np.where(c != 0, a, b),
}  # fmt: skip

OTHERS = {"divide": ("other",), "mod": ("other",), "fmod": ("other",), "power": ("other",), "where": ("other", "third")}


def quarters(rng: Any, shape: Any, dtype: Any) -> Any:
    """Numbers from 0.25 to 5 in steps of 0.25 (whole ones for integers): exact quotients are no rounding cases."""
    return np.maximum(rng.integers(1, 21, shape) / (1 if dtype.is_int else 4), 0.25).astype(dtype.dtype)


@pytest.mark.parametrize("name", list(PLAIN_FUNCTIONS))
@settings(max_examples=12)
@given(data=st.data())
def test_vector_function(name: str, data: Any) -> None:
    d = drawing(data, "trn1", "trn2", "trn3")
    more = OTHERS.get(name, ())
    layouts = (*FOUR, "moved", "repeated") if more else READ  # several operands have one shape
    kinds = (*FLOATS[:4], *SMALL_INTS)
    operands = [f(d.tile(role, kinds, values=quarters, layouts=layouts)).astype(np.float64) for role in ("data", *more)]
    d.out("dst", FLOATS, layouts=[layout for layout in WRITE if layout in layouts])
    d.rtol = 2e-5
    wanted = PLAIN_FUNCTIONS[name](*operands)
    d.check(d.run(vector_function, [{"function": name}]), {"dst": wanted.astype(F32)})


@settings(max_examples=25)
@given(data=st.data())
def test_broadcast_tile(data: Any) -> None:
    d = drawing(data, "trn1", "trn2", "trn3")
    rows, columns = d.pick((1, d.parts)), d.pick((1, d.free))
    kind = d.pick(ANY)
    flat = ("whole", "columns", "start", "pattern", "moved")
    a = d.tile("data", (kind,), parts=rows, free=columns, layouts=flat)
    d.out("dst", (kind,), layouts=flat)
    d.check(d.run(broadcast_tile, [{}]), {"dst": a[np.zeros(d.parts, int) if rows == 1 else ...][:, [0] * d.free if columns == 1 else slice(None)]})  # fmt: skip
