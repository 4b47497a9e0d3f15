"""Operands for property tests: tiles in every layout that an instruction takes, each with its NumPy statement beside it.

A case draws its operands, says the instruction's options, and returns what NumPy makes of the same rows. The whole
storage of each destination is compared, so that an instruction which writes beside its view fails as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import simulate

F32 = np.float32
FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "tfloat32")
SMALL_INTS = ("int8", "uint8", "int16", "uint16")
WIDE_INTS = ("int32", "uint32")
ANY = (*FLOATS, *SMALL_INTS, *WIDE_INTS)
ON_CHIP = ("sbuf", "psum")
READ = ("whole", "columns", "start", "split", "permuted", "pattern", "moved", "repeated")
WRITE = READ[:-1]
PLAIN = ("whole", "columns", "start", "pattern", "moved")
HBM = ("whole", "columns", "rows", "turned", "pattern")
TARGETS = {2: "trn1", 3: "trn2", 4: "trn3"}


class Layout(NamedTuple):
    """How a view of [parts, free] elements lies in a storage of `shape`: as a NumPy view, and in the kernel."""

    shape: tuple[int, ...]
    numpy: Callable[[np.ndarray], np.ndarray]
    tensor: Callable[[Any], Any]


def _factor(free: int) -> int:
    return next((factor for factor in (4, 3, 2, 5, 7) if free % factor == 0), 1)


def layout(name: str, parts: int, free: int, start: int = 0) -> Layout:
    """The layout called `name`; `start` is the first partition of "start"."""
    outer = _factor(free)
    inner = free // outer
    match name:
        case "columns":
            stop = 1 + 2 * free
            return Layout((parts, 2 * free + 3), lambda a: a[:, 1:stop:2], lambda t: t[:, 1:stop:2])
        case "start":
            return Layout((start + parts, free), lambda a: a[start : start + parts], lambda t: t[start : start + parts])
        case "split":
            return Layout((parts, outer, inner), lambda a: a, lambda t: t)
        case "permuted":
            return Layout((parts, inner, outer), lambda a: a.transpose(0, 2, 1), lambda t: t.permute((0, 2, 1)))
        case "pattern":
            wide = free + 5
            return Layout(
                (parts, wide), lambda a: a[:, 3 : 3 + free], lambda t: t.ap([[wide, parts], [1, free]], offset=3)
            )
        case "moved":
            return Layout((parts, 3, free), lambda a: a[:, 2], lambda t: t.select(1, nisa.register_alloc(2)))
        case "repeated":
            return Layout((parts, 1), lambda a: np.broadcast_to(a, (parts, free)), lambda t: t.broadcast(1, free))
        case "rows":
            stop = 1 + 2 * parts
            return Layout((2 * parts + 1, free), lambda a: a[1:stop:2], lambda t: t[1:stop:2])
        case "turned":
            return Layout((free, parts), lambda a: a.T, lambda t: t.permute((1, 0)))
    return Layout((parts, free), lambda a: a, lambda t: t)


class Operand(NamedTuple):
    """One operand: its layout, where it lives, and what its storage holds before the instruction."""

    role: str
    write: bool
    layout: Layout
    space: str
    dtype: Any
    storage: np.ndarray

    @property
    def view(self) -> np.ndarray:
        """The NumPy view of what the storage holds before."""
        return self.layout.numpy(self.storage)

    def rows(self) -> np.ndarray:
        """[P, elements] of the view before the instruction."""
        return np.array(self.view).reshape(self.view.shape[0], -1)


def tf32(values: np.ndarray) -> np.ndarray:
    """float32 rounded to 10 bits after the leading one, ties to even, by arithmetic on the significand."""
    significand, exponent = np.frexp(values.astype(np.float64))
    rounded = np.ldexp(np.rint(significand * 2.0**11), exponent - 11)
    return np.where(np.isfinite(values), rounded, values).astype(F32)


def cast(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Values as an instruction writes them into `dtype`; bits of that dtype stay."""
    values = np.asarray(values)
    if values.dtype == dtype.dtype and dtype.name != "tfloat32":
        return values
    if dtype.name == "tfloat32":
        return tf32(values.astype(F32))
    if dtype.is_int:
        limits = np.iinfo(dtype.dtype)
        whole = np.rint(values.astype(np.float64))
        return np.where(np.isnan(whole), 0, np.clip(whole, limits.min, limits.max)).astype(dtype.dtype)
    return values.astype(F32).astype(dtype.dtype)


def f(values: np.ndarray) -> np.ndarray:
    """The values as float32."""
    return values.astype(F32)


def mixed(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Numbers of the size of one, with zeros and equal ones among them; all bits of wide integers."""
    if dtype.kind == "packed" or dtype.name == "uint32":
        return rng.integers(0, 1 << 8 * dtype.itemsize, shape, dtype=np.uint64).astype(dtype.dtype)
    if dtype.is_int:
        low = max(np.iinfo(dtype.dtype).min, -60)
        return rng.integers(low, 60, shape).astype(dtype.dtype)
    return cast(np.where(rng.random(shape) < 0.3, rng.integers(-2, 3, shape), 2 * rng.standard_normal(shape)), dtype)


class Draw:
    """What a case draws from: operands by role, and single choices."""

    def __init__(self, data: Any, target: str):
        self.data = data
        self.target = target
        self.number_of_target = {name: number for number, name in TARGETS.items()}[target]
        self.rng = np.random.default_rng(self.int(0, 9999))
        self.operands: dict[str, Operand] = {}
        self.same: dict[str, str] = {}
        self.rtol = 0.0
        self.parts = self.pick((1, 4, 31, 32, 33, 64, 65, 128))
        self.free = self.pick((1, 2, 3, 6, 8, 12, 15))

    def pick(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return self.data.draw(st.sampled_from(list(options)))

    def int(self, low: int, high: int) -> int:
        """A number from low to high."""
        return int(self.data.draw(st.integers(low, high)))

    def tile(
        self,
        role: str,
        dtypes: Sequence[str] = ANY,
        *,
        parts: int | None = None,
        free: int | None = None,
        spaces: Sequence[str] = ON_CHIP,
        layouts: Sequence[str] = READ,
        values: Callable[..., np.ndarray] = mixed,
        write: bool = False,
    ) -> np.ndarray:
        """A new operand; returns its rows [P, elements] before the instruction."""
        parts, free = parts or self.parts, free or self.free
        dtype, space, name = getattr(nl, self.pick(dtypes)), self.pick(spaces), self.pick(layouts)
        start = self.pick((0, 32, 64, 96) if parts <= 32 else (0, 64) if parts <= 64 else (0,))
        made = layout(name, parts, free, start)
        with np.errstate(all="ignore"):
            storage = values(self.rng, made.shape, dtype)
        self.operands[role] = Operand(role, write, made, space, dtype, storage)
        return self.operands[role].rows()

    def out(self, role: str, dtypes: Sequence[str] = ANY, **options: Any) -> np.ndarray:
        """A destination, whose storage holds something already."""
        return self.tile(role, dtypes, **{"layouts": WRITE, "write": True, **options})

    def out_or(self, role: str, source: str, dtypes: Sequence[str] = ANY, **options: Any) -> np.ndarray:
        """A destination of its own, or (where it can be written) the operand `source` itself."""
        held = self.operands[source]
        if held.dtype.name in dtypes and held.view.flags.writeable and self.pick((False, False, True)):
            self.same[role] = source
            return held.rows()
        return self.out(role, dtypes, **options)

    def dtype(self, role: str) -> Any:
        """The dtype of an operand."""
        return self.operands[self.same.get(role, role)].dtype

    def in_psum(self, *roles: str) -> bool:
        """Whether one of the operands is in PSUM."""
        return any(self.operands[self.same.get(role, role)].space == "psum" for role in roles)

    def run(self, what: str | Callable[..., Any], calls: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Call an instruction (by name, or a function) once for each set of options; the storages of what it writes, by role."""
        function = getattr(nisa, what) if isinstance(what, str) else what
        held = list(self.operands.values())
        written = {self.same.get(role, role) for role in [*self.same, *(o.role for o in held if o.write)]}

        def kernel(xs: tuple[Any, ...]) -> Any:
            storages = {o.role: _placed(o, x) for o, x in zip(held, xs, strict=True)}
            views = {o.role: o.layout.tensor(storages[o.role]) for o in held}
            views |= {role: views[source] for role, source in self.same.items()}
            for options in calls:
                arguments = {key: value(views) if callable(value) and not isinstance(value, type(nl.add)) else value
                             for key, value in options.items()}  # fmt: skip
                function(**{**views, **arguments})
            return tuple(_stored(storages[o.role]) for o in held if o.role in written)

        results = simulate(kernel, target=self.target)(tuple(o.storage for o in held))
        return dict(zip([o.role for o in held if o.role in written], results, strict=True))

    def check(self, got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
        """Compare whole storages with what NumPy put into its own."""
        wanted = {self.same.get(role, role): values for role, values in wanted.items()}
        assert set(got) == set(wanted)
        for role, values in wanted.items():
            held = self.operands[role]
            expected = held.storage.copy()
            view = held.layout.numpy(expected)
            with np.errstate(all="ignore"):
                view[...] = cast(values, held.dtype).reshape(view.shape)
            result = np.asarray(got[role]).view(expected.dtype).reshape(expected.shape)
            if not self.rtol:
                np.testing.assert_array_equal(result, expected, err_msg=role)
                continue
            rtol = max(self.rtol, _step(held.dtype))
            atol = 1.0 if held.dtype.is_int else self.rtol
            np.testing.assert_allclose(
                result.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol, err_msg=role
            )


def _step(dtype: Any) -> float:
    """The relative distance between neighbours of a float type (0 for integers)."""
    bits = {"float32": 23, "tfloat32": 10, "bfloat16": 7, "float16": 10, "float8_e4m3": 3, "float8_e5m2": 2}
    return 2.0 ** -bits[dtype.name] if dtype.name in bits else 0.0


def _placed(operand: Operand, x: Any) -> Any:
    """The operand's storage in its memory, holding `x`."""
    if operand.space == "hbm" and not operand.write:
        return x
    buffer = nl.shared_hbm if operand.space == "hbm" else nl.sbuf
    tile = nl.ndarray(x.shape, dtype=operand.dtype, buffer=buffer)
    nisa.dma_copy(tile, x.view(operand.dtype) if operand.dtype.kind == "packed" else x)
    if operand.space != "psum":
        return tile
    in_psum = nl.ndarray(x.shape, dtype=operand.dtype, buffer=nl.psum)
    nisa.tensor_copy(in_psum, tile)
    return in_psum


def _stored(tile: Any) -> Any:
    """A storage as a kernel output."""
    if tile.buffer is nl.shared_hbm:
        return tile
    if tile.buffer is nl.psum:
        copied = nl.ndarray(tile.shape, dtype=tile.dtype)
        nisa.tensor_copy(copied, tile)
        tile = copied
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out
