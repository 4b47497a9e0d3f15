"""The table of rejections: each call breaks one rule of the instruction set or the language and is refused by name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, simulate
from vibeserve.nki import collectives as ncc

TABLE = tomllib.loads((Path(__file__).parent / "rejections.toml").read_text(encoding="utf-8"))
ROWS = [(f"{name}: {row['says']}", row) for name, rows in TABLE.items() for row in rows]


def rows_by(index, table, count=None):
    """The rows of a table that an index tile names."""
    pattern = table.get_pattern()
    pattern[0][1] = count or index.size
    return table.ap(pattern, vector_offset=index)


def made(buffer, dtype, *shape, fill=True, value=0):
    tensor = nl.ndarray(shape, dtype=dtype, buffer=buffer)
    for start in range(0, shape[0], 128) if fill and buffer is not nl.shared_hbm else ():
        part = tensor[start : min(start + 128, shape[0])]
        nisa.memset(part, value if part.dtype.kind != "float" else float(value))
    return tensor


NAMES = {
    "nisa": nisa,
    "nl": nl,
    "np": np,
    "ncc": ncc,
    "alone": ncc.ReplicaGroup([[0]]),
    "rows_by": rows_by,
    "hb": lambda *shape: made(nl.sbuf, "bfloat16", *shape, fill=False),
    "sb": lambda *shape, dtype="float32", fill=True: made(nl.sbuf, dtype, *shape, fill=fill),
    "ps": lambda *shape, dtype="float32", fill=True: made(nl.psum, dtype, *shape, fill=fill),
    "hbm": lambda *shape, dtype="float32": made(nl.shared_hbm, dtype, *shape),
    "i32": lambda *shape: made(nl.sbuf, "int32", *shape),
    "u8": lambda *shape: made(nl.sbuf, "uint8", *shape),
    "x4": lambda *shape: made(nl.sbuf, "float8_e4m3fn_x4", *shape),
    "filled": lambda value, *shape, dtype="int32": made(nl.sbuf, dtype, *shape, value=value),
}


def run(expression, row):
    def kernel(x):
        eval(expression, {**NAMES, "given": x})

    simulate(kernel, target=row.get("target", "trn2"), lnc=row.get("lnc", 1), strict=row.get("strict", False))(
        np.zeros(1, np.float32)
    )


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("NKI_QUIET", "1")


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=[name for name, _ in ROWS])
def test_refused(row):
    with pytest.raises(KernelError) as caught:
        run(row["call"], row)
    error = caught.value
    assert error.code == row["code"], str(error)
    assert error.rule or error.fix, "a refusal says the rule or the fix"


@pytest.mark.parametrize(
    "row", [row for _, row in ROWS if "legal" in row], ids=[name for name, row in ROWS if "legal" in row]
)
def test_legal_where_the_rule_is_kept(row):
    run(row["legal"], row)


def test_every_instruction_that_has_operands_is_in_the_table():
    from vibeserve.nki.instruction import entries

    inside = {"vector_function", "broadcast_tile", "register_load", "register_store"}
    assert set(entries()) - set(TABLE) - inside == set()
