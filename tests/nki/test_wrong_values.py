"""Arguments of the documented kinds but of any value: each call runs or is refused at the kernel's line, none is a fault.

The values are drawn by parameter name out of `data/kinds.toml`: shapes that do not fit, negative and huge numbers, NaN,
tensors of other memories, types and ranks, registers that hold nothing.
"""

from __future__ import annotations

import inspect
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vibeserve.nki
import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, access, simulate
from vibeserve.nki import collectives as ncc
from vibeserve.nki.ops import OPS
from vibeserve.nki.tensor import NkiTensor

TABLE = (Path(vibeserve.nki.__file__).parent / "data" / "kinds.toml").read_text(encoding="utf-8")
KINDS = {parameter: kind for kind, parameters in tomllib.loads(TABLE).items() for parameter in parameters}
MEMBERS = {
    "engine": nisa.engine, "dge_mode": nisa.dge_mode, "oob_mode": nisa.oob_mode, "perf_mode": nisa.matmul_perf_mode,
    "reduce_cmd": nisa.reduce_cmd, "dma_engine": nisa.dma_engine,
}  # fmt: skip
INTS = (0, 1, -1, 2, 3, 5, -7, 8, 128, 300, 1 << 36, -(1 << 40))
NUMBERS = (0, 1, -1.5, 2.5, float("nan"), float("inf"), -float("inf"), 1 << 40, 1e300, True)
SHAPES = ((4, 8), (4, 8), (4, 2, 4), (1, 1), (4, 1), (1, 8), (16,), (128, 8), (4, 1, 8))
DTYPES = (nl.float32, nl.float32, nl.bfloat16, nl.int32, nl.uint8, nl.uint32, nl.uint16, nl.float8_e5m2_x4, nl.tfloat32)
BUFFERS = (nl.sbuf, nl.sbuf, nl.psum, nl.shared_hbm)
METHODS = (
    "slice", "select", "vector_select", "ap", "view", "reshape_dim", "flatten_dims", "broadcast", "expand_dim", "squeeze_dim",
    "rearrange", "indirect", "__getitem__", "reshape", "permute",
)  # fmt: skip
WAITS = {"core_barrier", "sendrecv", "while_loop", "fori_loop", "dynamic_range", "no_reorder", "device_print"}


def functions() -> dict[str, Callable[..., Any]]:
    found = {}
    for module, names in ((nisa, dir(nisa)), (nl, dir(nl)), (ncc, ncc.__all__)):
        for name in names:
            value = getattr(module, name)
            if callable(value) and not isinstance(value, type) and not name.startswith("_") and name not in WAITS:
                found[f"{module.__name__.rpartition('.')[2]}.{name}"] = value
    return found | {f"tensor.{name}": getattr(NkiTensor, name) for name in METHODS}


FUNCTIONS = functions()


class Values:
    """Draws arguments; inside of a kernel, since tensors and registers are among them."""

    def __init__(self, seed: str):
        self.random = random.Random(seed)

    def one(self, options: Any) -> Any:
        return self.random.choice(list(options))

    def tensor(self) -> Any:
        made = nl.ndarray(self.one(SHAPES), self.one(DTYPES), buffer=self.one(BUFFERS))
        made.storage.data[...] = self.one(range(4))
        made.storage.mark_all()
        view = self.one([None] * 6 + [lambda t: t[:, ::2], lambda t: t[..., 0:1], lambda t: t.broadcast(1, 8),
                                      lambda t: t.select(1, nisa.register_alloc(99))])  # fmt: skip
        try:
            return made if view is None else view(made)
        except KernelError:
            return made

    def moving(self) -> Any:
        return self.one(
            [self.one(INTS), nisa.register_alloc(self.one(INTS) % 1000), nisa.register_alloc(), self.tensor()]
        )

    def ints(self) -> Any:
        some = tuple(self.one(INTS) for _ in range(self.one(range(4))))
        return self.one([self.one(INTS), some, list(some), (4, 8), (0,), (1, 2)])

    def key(self) -> Any:
        whole = slice(None)
        return self.one([
            self.one(INTS), slice(self.one(INTS), self.one(INTS)), (whole, self.one(INTS)), nl.ds(self.one(INTS), self.one(INTS)),
            (self.one(INTS), self.one(INTS), self.one(INTS)), (Ellipsis, nl.ds(nisa.register_alloc(3), 2)),
            slice(None, None, self.one(INTS)),
        ])  # fmt: skip

    def list(self) -> Any:
        return self.one([
            [], [1.0], [self.one(INTS)] * 32, [self.tensor()], [self.tensor(), self.tensor()], [[self.tensor()]],
            ("p", ("a", "b")), ("p", "b", "a"), [255] * 32,
        ])  # fmt: skip

    def of(self, parameter: str) -> Any:
        """A value of the kind that a parameter takes."""
        match KINDS.get(parameter):
            case "tensor":
                return self.tensor()
            case "scalar":
                return self.one([self.one(NUMBERS), self.tensor()])
            case "number":
                return self.one(NUMBERS)
            case "int":
                return self.one(INTS)
            case "moving":
                return self.moving()
            case "ints":
                return self.ints()
            case "pair":
                return (self.one(INTS), self.one(INTS))
            case "pairs":
                return [[self.one(INTS), self.one(INTS)] for _ in range(self.one(range(6)))]
            case "flag":
                return self.one((True, False, 1, 0))
            case "text":
                return self.one(("", "name"))
            case "op":
                return self.one(OPS.values())
            case "member":
                return self.one(BUFFERS if parameter == "buffer" else MEMBERS[parameter])
            case "function":
                return lambda *_: None
            case "list":
                return self.list()
            case "dtype":
                return self.one((*DTYPES, nl.bool_))
        return self.one([None, 1, 0, "x", (1,), [1], 2.5, nl.float32, ncc.ReplicaGroup([[0]])])


def attempt(name: str, function: Callable[..., Any], seed: int) -> None:
    draw = Values(f"{name} {seed}")

    def kernel(x: Any) -> None:
        if name in ("tensor.reshape", "tensor.permute"):
            result = function(draw.tensor(), draw.ints())
        else:
            arguments = {}
            for parameter, facts in inspect.signature(function).parameters.items():
                if facts.default is not facts.empty and draw.one((True, False)):
                    continue
                known = {"self": draw.tensor, "key": draw.key}.get(parameter)
                arguments[parameter] = known() if known else draw.of(parameter)
            result = function(**arguments)
        if isinstance(result, NkiTensor):
            access.read(result)

    refusal = None
    try:
        simulate(kernel, target=draw.one(("trn1", "trn2", "trn3")))(np.zeros(1, np.float32))
    except KernelError as error:
        refusal = error
    assert refusal is None or refusal.place.file == __file__ or not refusal.place.line, f"seed {seed}: {refusal}"


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_no_value_is_a_fault_of_the_simulator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_QUIET", "1")
    for seed in range(25):
        attempt(name, FUNCTIONS[name], seed)
