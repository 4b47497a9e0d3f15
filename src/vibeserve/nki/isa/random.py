"""Random numbers. Streams are deterministic and follow their seed, but are not the device's bit for bit before trn3."""

from __future__ import annotations

from typing import Any

import numpy as np

from vibeserve.nki import access
from vibeserve.nki.context import Core
from vibeserve.nki.errors import KernelError
from vibeserve.nki.instruction import instruction
from vibeserve.nki.isa.elementwise import rows
from vibeserve.nki.isa.enums import engine as _engine
from vibeserve.nki.tensor import NkiTensor

LANES = 128
STATES = 6


class Xorwow:
    """XORWOW generators, one a lane: state [lanes, 6] uint32 (five words of shift register and the Weyl counter)."""

    def __init__(self, lanes: int = LANES):
        seeds = np.arange(1, lanes * STATES + 1, dtype=np.uint32).reshape(lanes, STATES)
        self.state = seeds * np.uint32(2654435761)

    def seed(self, value: int) -> None:
        """Derive every lane's state from one 32-bit value."""
        base = np.arange(self.state.size, dtype=np.uint32).reshape(self.state.shape)
        mixed = (base + np.uint32(value & 0xFFFFFFFF)) * np.uint32(2654435761)
        self.state = (mixed ^ (mixed >> np.uint32(15))) | np.uint32(1)

    def draw(self, parts: int, count: int, start: int = 0) -> np.ndarray:
        """[parts, count] uint32."""
        words = [self.state[start : start + parts, i].copy() for i in range(STATES)]
        out = np.empty((count, parts), np.uint32)
        for i in range(count):
            t = words[0] ^ (words[0] >> np.uint32(2))
            words[:4] = words[1:5]
            words[4] = (words[4] ^ (words[4] << np.uint32(4))) ^ (t ^ (t << np.uint32(1)))
            words[5] = words[5] + np.uint32(362437)
            out[i] = words[4] + words[5]
        self.state[start : start + parts] = np.stack(words, axis=1)
        return out.T


def generator(core: Core, engine: str) -> Xorwow:
    """A core's generator of one engine."""
    found = core.rng.get(engine)
    if found is None:
        found = core.rng[engine] = Xorwow()
    return found  # type: ignore[no-any-return]


def _engine_name(engine: Any) -> str:
    return "gpsimd" if engine is _engine.gpsimd else "vector"


def uniform(core: Core, parts: int, count: int, start: int = 0) -> np.ndarray:
    """[parts, count] float32 in [0, 1)."""
    bits = generator(core, "vector").draw(parts, count, start)
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


@instruction
def rng(core: Core, dst: NkiTensor, engine: Any = _engine.vector, name: Any = None) -> None:
    """32 random bits an element; narrow dtypes keep the low bits."""
    bits = generator(core, _engine_name(engine)).draw(dst.shape[0], dst.size // dst.shape[0], dst.start_partition())
    access.write(dst, bits.astype(np.dtype(f"u{dst.dtype.itemsize}")).view(dst.dtype.stored))


@instruction
def rand2(core: Core, dst: NkiTensor, min: Any, max: Any, name: Any = None) -> None:
    """Uniform float32 between min and max, cast; trn3."""
    parts = dst.shape[0]
    low, high = access.scalar(min, parts), access.scalar(max, parts)
    values = uniform(core, parts, dst.size // parts, dst.start_partition())
    access.write(dst, low + values * (high - low))


@instruction
def rand_set_state(core: Core, src_seeds: NkiTensor, engine: Any = _engine.gpsimd, name: Any = None) -> None:
    """Load each lane's generator state."""
    values = rows(access.read(src_seeds)).astype(np.uint32)
    start = src_seeds.start_partition()
    target = generator(core, _engine_name(engine))
    core.rng[f"{_engine_name(engine)}-extra"] = values[:, STATES:].copy()
    target.state[start : start + values.shape[0]] = values[:, :STATES]


@instruction
def rand_get_state(core: Core, dst: NkiTensor, engine: Any = _engine.gpsimd, name: Any = None) -> None:
    """Store each lane's generator state."""
    parts, count = dst.shape[0], dst.size // dst.shape[0]
    start = dst.start_partition()
    values = generator(core, _engine_name(engine)).state[start : start + parts]
    if count > STATES:
        extra = core.rng.get(f"{_engine_name(engine)}-extra")
        if extra is None or extra.shape != (parts, count - STATES):
            extra = np.tile(values, (1, count // STATES - 1))
        values = np.concatenate([values, extra], axis=1)
    access.write(dst, values)


@instruction
def set_rng_seed(core: Core, src_seeds: NkiTensor, name: Any = None) -> None:
    """Seed the vector engine's generator from one 32-bit value."""
    raw = np.ascontiguousarray(access.read(src_seeds)).view(np.uint32).reshape(-1)
    generator(core, "vector").seed(int(raw[0]))


@instruction
def dropout(core: Core, dst: NkiTensor, data: NkiTensor, prob: Any, name: Any = None) -> None:
    """dst = 0 with probability prob, else data; nothing is rescaled."""
    parts = data.shape[0]
    values = rows(access.read(data))
    chance = access.scalar(prob, parts)
    if np.any(chance < 0) or np.any(chance > 1):
        raise KernelError("nisa.dropout: prob outside of [0, 1]", code="S-PROB", rule="0 <= prob <= 1")
    dropped = uniform(core, parts, values.shape[1], data.start_partition()) < chance
    access.write(dst, np.where(dropped, np.zeros((), values.dtype), values))
