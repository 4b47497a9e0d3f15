"""A legal call of each instruction, and what each rule of its entry in the data refuses when one thing of it is changed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, simulate
from vibeserve.nki import collectives as ncc
from vibeserve.nki.dtypes import ALL
from vibeserve.nki.instruction import entries
from vibeserve.nki.ops import OPS
from vibeserve.nki.rules import _op_in, in_group

CALLS: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "calls.toml").read_text(encoding="utf-8"))
INTERNAL = {"vector_function", "broadcast_tile"}
MEMORIES = {"hbm": "shared_hbm", "sbuf": "sbuf", "psum": "psum"}
Operand = tuple[str, str, tuple[int, ...]]
SPACE_CODES = {"S-SPACE", "S-GPS-PSUM", "B2-PSUM-DMA"}


def parsed(text: str) -> Operand:
    memory, dtype, *sizes = text.split()
    return memory, dtype, tuple(map(int, sizes))


def operands(name: str) -> dict[str, Any]:
    """The operands of the legal call: an Operand, or a list of them."""
    rows = {role: text for role, text in CALLS[name].items() if role not in ("options", "target", "lnc")}
    return {role: [parsed(t) for t in text] if isinstance(text, list) else parsed(text) for role, text in rows.items()}


def made(operand: Operand) -> Any:
    memory, dtype, shape = operand
    buffer, element = getattr(nl, memory), getattr(nl, dtype)
    if memory == "shared_hbm":
        tensor = nl.ndarray(shape, dtype=element, buffer=buffer)
        nisa.dma_copy(tensor, nl.shared_constant(np.ones(shape).astype(element.dtype)).view(element))
        return tensor
    tensor = nl.ndarray(shape, dtype=element, buffer=buffer)
    if shape[0] <= 128:
        nisa.memset(tensor, 0 if element.kind != "float" else 0.0)
    return tensor


def call(name: str, target: str = "", **changed: Any) -> None:
    """Run the legal call with operands (tuples, lists) and options (expressions) changed."""
    row = CALLS[name]
    tiles = {**operands(name), **{k: v for k, v in changed.items() if not isinstance(v, str)}}
    options = {**row.get("options", {}), **{k: v for k, v in changed.items() if isinstance(v, str)}}

    def kernel(x: Any) -> None:
        scope = {"nisa": nisa, "nl": nl, "ncc": ncc, "np": np}
        given = {
            role: [made(t) for t in tile] if isinstance(tile, list) else made(tile) for role, tile in tiles.items()
        }
        given |= {option: eval(text, scope) for option, text in options.items()}
        getattr(nisa if hasattr(nisa, name) else ncc, name)(**given)

    simulate(kernel, target=target or row.get("target", "trn2"), lnc=row.get("lnc", 1), strict=True)(
        np.zeros(1, np.float32)
    )


def with_shape(operand: Operand, *shape: int) -> Operand:
    return operand[0], operand[1], shape


def taller(operand: Operand) -> Operand:
    """As many elements in a partition, on more partitions."""
    parts = operand[2][0]
    return with_shape(operand, parts * 2 if parts < 128 else 64, *operand[2][1:])


def wider(operand: Operand) -> Operand:
    """One more element in the last dimension."""
    return with_shape(operand, *operand[2][:-1], operand[2][-1] + 1)


def off_bound(operand: Operand, bound: str, value: int) -> Operand:
    """An operand that breaks one bound of `limits`."""
    parts, *free = operand[2]
    shape = {
        "free": (parts, value + 1),
        "min_free": (parts, value - 1),
        "max_free": (parts, value + 1),
        "partitions": (value + 1, *free),
        "multiple_partitions": (value + value // 2, *free),
        "multiple_free": (parts, value + 1),
        "rank": (parts, 1, *free),
        "max_rank": (parts, *([1] * (value - 1)), *free),
    }[bound]
    return with_shape(operand, *shape)


Change = tuple[str, set[str], dict[str, Any]]


def changes(name: str) -> Iterator[Change]:
    """(which rule, the codes that may refuse it, what to change) for each rule of the vocabulary in the entry."""
    entry, tiles = entries()[name], operands(name)
    first = next((role for role in tiles), "")
    for role, allowed in entry.get("spaces", {}).items():
        for memory in ({"hbm", "sbuf", "psum"} - set(allowed)) if role in tiles else ():
            one = tiles[role][0] if isinstance(tiles[role], list) else tiles[role]
            new = (MEMORIES[memory], *one[1:])
            yield f"{role} in {memory}", SPACE_CODES, {role: [new] if isinstance(tiles[role], list) else new}
    for role in entry.get("same_partitions", ())[1:]:
        if role in tiles:
            yield (
                f"partitions of {role}",
                {"S-PARTITIONS", "S-SIZE", "S-MM-LAYOUT", "S-MX-SCALE"},
                {role: taller(tiles[role])},
            )
    for role in entry.get("same_elements", ())[1:]:
        if role in tiles:
            yield f"elements of {role}", {"S-ELEMENTS", "S-SIZE"}, {role: wider(tiles[role])}
    for role in entry.get("same_dtype", ())[1:]:
        yield f"dtype of {role}", {"S-DTYPE"}, {role: (tiles[role][0], "float16", tiles[role][2])}
    for role in entry.get("column", ()):
        if role in tiles:
            yield f"columns of {role}", {"S-SCALAROP", "B2-BIASSHAPE"}, {role: wider(tiles[role])}
            yield f"column of {role}", {"S-SCALAROP", "B2-BIASSHAPE"}, {role: taller(tiles[role])}
    for role, allowed in entry.get("dtypes", {}).items():
        for dtype in ALL:
            if role in tiles and not any(in_group(dtype, group) for group in allowed):
                yield f"{role} of {dtype}", {"S-DTYPE"}, {role: (tiles[role][0], dtype.name, tiles[role][2])}
    for role, bounds in entry.get("limits", {}).items():
        for bound, value in bounds.items():
            codes = {"S-SIZE"}
            codes |= {"S-ELEMENTS"} if role in entry.get("same_elements", ()) else set()
            codes |= {"S-PARTITIONS"} if role in entry.get("same_partitions", ()) else set()
            yield f"{bound} of {role}", codes, {role: off_bound(tiles[role], bound, value)}
    for option, allowed in entry.get("ops", {}).items():
        for op in OPS.values():
            if not any(_op_in(op, group) for group in allowed):
                codes = {"S-OP", "S-BITVEC", "S-ACT-OP", "S-NLDIV", "B1-NL-MAX-OP", "S-GENERATION"}
                yield f"{option}={op!r}", codes, {option: repr(op)}
        yield f"{option} of NumPy", {"B1-NUMPY"}, {option: "np.add"}
        yield f"{option} a number", {"NKI-OPERATOR"}, {option: "3"}
    for option in entry.get("enums", {}):
        yield f"{option}=0", {"B2-INT-ENUM"}, {option: "0"}
    for command in (c for c in nisa.reduce_cmd if "reduce_cmds" in entry and c.name not in entry["reduce_cmds"]):
        yield f"reduce_cmd={command.name}", {"S-REDUCE-CMD"}, {"reduce_cmd": repr(command)}
    if pair := entry.get("not_both_psum"):
        yield "both in PSUM", {"S-BOTH-PSUM"}, {role: ("psum", *tiles[role][1:]) for role in pair}
    for option, roles in entry.get("bits_on_integers", {}).items():
        bits = {"op1": {"op0": "nl.bitwise_and"}, "op0": {"op1": "nl.bitwise_or"}}.get(option, {})
        whole = {role: (t[0], "int32", t[2]) for role, t in tiles.items() if isinstance(t, tuple)}
        for role in roles:
            yield f"{option} on bits of {role}", {"S-BITVEC"}, {
                **whole, role: tiles[role], option: "nl.bitwise_and", **({"op0": "nl.bitwise_and"} if option == "op1" else bits)
            }  # fmt: skip
    if first and "packed" not in entry:
        for role, tile in tiles.items():
            for one in [tile[0]] if isinstance(tile, list) else [tile]:
                new = (one[0], "float8_e5m2_x4", one[2])
                yield f"{role} packed", {"S-DTYPE"}, {role: [new] if isinstance(tile, list) else new}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_QUIET", "1")


def test_every_instruction_has_a_legal_call() -> None:
    assert set(entries()) - INTERNAL == set(CALLS)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_call_is_legal(name: str) -> None:
    call(name)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_each_broken_rule_is_refused(name: str) -> None:
    wrong = []
    for which, codes, changed in changes(name):
        try:
            call(name, **changed)
        except KernelError as error:
            if error.code not in codes:
                wrong.append(f"{which}: {error}")
        else:
            wrong.append(f"{which}: accepted")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [name for name in CALLS if entries()[name].get("since", 2) > 2])
def test_an_earlier_generation_is_refused(name: str) -> None:
    since = entries()[name]["since"]
    if CALLS[name].get("lnc", 1) > 1:
        pytest.skip("an earlier generation has one core")
    for number, target in ((2, "trn1"), (3, "trn2")):
        if number < since:
            with pytest.raises(KernelError) as caught:
                call(name, target=target)
            assert caught.value.code == "S-GENERATION"
