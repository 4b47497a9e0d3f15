"""Every PyTorch or NumPy operation of the table, run as its instructions against its meaning in NumPy."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest
from scipy.special import erf

from vibeserve import nki
from vibeserve.knowledge import catalogue
from vibeserve.nki import isa as nisa
from vibeserve.nki import language as nl

OPERATIONS = catalogue.operations()


def make(kind: str, name: str) -> np.ndarray:
    generator = np.random.default_rng([7, *name.encode()])
    normal = generator.standard_normal((128, 64)).astype(np.float32)
    made = {
        "normal": normal,
        "positive": np.abs(normal) + np.float32(0.1),
        "angle": np.clip(normal, -3, 3),
        "quarter": np.clip(normal, -1.5, 1.5),
        "digits": generator.integers(0, 3, (128, 64)).astype(np.float32),
        "int": generator.integers(0, 100, (128, 64)).astype(np.int32),
        "column": normal[:, :1],
        "index": generator.integers(0, 64, (128, 1)).astype(np.float32),
        "stationary": normal,
        "moving": generator.standard_normal((128, 96)).astype(np.float32),
        "bias": normal[:64, :1],
    }
    return np.ascontiguousarray(made[kind])


def as_kernel(operation: catalogue.Operation, shape: tuple[int, ...], dtype: str):
    names = list(operation.inputs)
    lines = [f"def kernel({', '.join(f'{name}_in' for name in names)}):"]
    lines += [
        f"    {name} = nl.ndarray({name}_in.shape, dtype={name}_in.dtype, buffer=nl.sbuf); "
        f"nisa.dma_copy(dst={name}, src={name}_in)"
        for name in names
    ]
    for column, value in (("one_column", 1.0), ("half_pi_column", math.pi / 2)):
        lines.append(f"    {column} = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)")
        lines.append(f"    nisa.memset(dst={column}, value={value})")
    lines.append(f"    out = nl.ndarray({shape}, dtype=nl.{dtype}, buffer=nl.sbuf)")
    lines += [f"    {line}" for line in operation.code.splitlines()]
    lines.append(f"    result = nl.ndarray({shape}, dtype=nl.{dtype}, buffer=nl.shared_hbm)")
    lines += ["    nisa.dma_copy(dst=result, src=out)", "    return result"]
    scope = {"nl": nl, "nisa": nisa, "math": math}
    exec("\n".join(lines), scope)
    return scope["kernel"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.id for operation in OPERATIONS])
def test_against_numpy(operation):
    arrays = {name: make(kind, name) for name, kind in operation.inputs.items()}
    scope = {"np": np, "erf": erf, "bfloat16": ml_dtypes.bfloat16, **arrays}
    expected = np.asarray(eval(operation.expects, scope))
    dtype = "int32" if expected.dtype.kind == "i" else "float32"
    kernel = as_kernel(operation, expected.shape, dtype)
    found = nki.simulate(kernel, target="trn2", strict=True)(*arrays.values())
    if dtype == "int32":
        np.testing.assert_array_equal(found, expected)
    else:
        scale = max(1.0, float(np.abs(expected).max()))
        assert np.abs(found - expected).max() <= (operation.tolerance or 2e-6) * scale


def test_there_are_enough_and_none_twice():
    assert len(OPERATIONS) >= 80
    names = [name for operation in OPERATIONS for name in (*operation.torch, *operation.numpy)]
    assert len({operation.id for operation in OPERATIONS}) == len(OPERATIONS)
    assert len([name for name in names if name.startswith("torch.")]) == len(
        {name for name in names if name.startswith("torch.")}
    )


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            name
            for operation in OPERATIONS
            for name in operation.torch
            if name.startswith("torch.nn") and "(" not in name
        }
    ),
)
def test_a_name_leads_to_its_entry(name, cli):
    code, out, _ = cli("docs", "task", name, "--json")
    assert code == 0
    first = json.loads(out)["results"][0]
    wanted = next(operation for operation in OPERATIONS if name in operation.torch)
    assert wanted.id in first["title"], first
