"""From a TOML file, or the same structure in Python, to an operation; every mistake says where it stands."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import parse_toml
from vibeserve.base.paths import packaged
from vibeserve.hardware.dtypes import canonical
from vibeserve.roofline import subscripts
from vibeserve.roofline.check import check_operation
from vibeserve.roofline.expr import Expr
from vibeserve.roofline.operation import Dim, Operation, Stage, Tensor, Traffic, Variant
from vibeserve.roofline.poly import Number

_TOP = {"name", "title", "about", "target", "lnc", "dtype", "given", "dims", "tensors", "stages", "variants", "what_if"}
_KINDS = ("contract", "elementwise", "reduce", "transpose", "broadcast")
_STAGE = {"name", "flops", "dtype", "on", "moves_data", "by", "only", "share", "about", *_KINDS}
_TENSOR = {"dims", "dtype", "weight", "count", "about"}
_VARIANT = {"about", "kernels", "split", "memory"}
_TRAFFIC = {"reads", "writes", "each_core", "dtype"}
_DOCS = "docs/roofline.md has every key"


def find(op: str) -> Path:
    """The file of an operation: a path, or the name of a packaged one. Raises InputError, naming what there is."""
    path = Path(op)
    if path.suffix == ".toml" or path.is_file():
        if path.is_file():
            return path
        raise InputError(f"no operation file {op}", hint="give the path of a .toml file, or a packaged name: see below")
    folder = packaged("examples") / "roofline"
    known = sorted(file.stem for file in folder.glob("*.toml"))
    if op in known:
        return folder / f"{op}.toml"
    raise InputError(f"unknown operation {op!r}", hint="give a .toml file, or one of: " + ", ".join(known))


def packaged_operations() -> dict[str, tuple[str, dict[str, int | float | str]]]:
    """Each packaged operation: its title, and its sizes as the file gives them (a formula is text)."""
    found = {}
    for path in sorted((packaged("examples") / "roofline").glob("*.toml")):
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        sizes = {
            name: entry.get("size", "") if isinstance(entry, dict) else entry
            for name, entry in document.get("dims", {}).items()
        }
        found[path.stem] = (str(document.get("title", path.stem)), sizes)
    return found


def load(op: str | Path) -> Operation:
    """Read an operation from a TOML file or a packaged name.

    Raises InputError for a file that is not there, for a TOML error (with its line) and for every other mistake.
    """
    path = find(str(op))
    try:
        text = path.read_text(encoding="utf-8")
        document = parse_toml(text)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text", hint="save it as UTF-8") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}", hint="mend the TOML there") from error
    return build({"name": path.stem, **document}, source=str(path), text=text)


def build(document: Mapping[str, Any], source: str = "operation", text: str = "") -> Operation:
    """An operation from the structure of its TOML file. `text` lets errors name a line. Raises InputError."""
    place = Place(source, text)
    _keys(document, _TOP, place.at("the file", ""))
    name = str(document.get("name", "operation"))
    for key in ("dims", "tensors", "stages"):
        if not document.get(key):
            raise InputError(f"{source}: no {key}", hint=f"an operation has dims, tensors and stages; {_DOCS}")
    dtype = _dtype(document.get("dtype", "bfloat16"), place.at("dtype", "dtype"))
    given = {key: _number(value, place.at(f"given {key}", key)) for key, value in document.get("given", {}).items()}
    dims = {key: _dim(key, value, place) for key, value in document["dims"].items()}
    tensors = {key: _tensor(key, value, dtype, place) for key, value in document["tensors"].items()}
    stages = tuple(_stage(entry, count, place) for count, entry in enumerate(document["stages"], 1))
    variants = {key: _variant(key, value, place) for key, value in document.get("variants", {"fused": {}}).items()}
    what_if = tuple(
        {key: _number(value, place.at("what_if", "what_if")) for key, value in change.items()}
        for change in document.get("what_if", ())
    )
    found = Operation(
        name=name,
        title=str(document.get("title", name)),
        dims=dims,
        tensors=tensors,
        stages=stages,
        variants=variants,
        dtype=dtype,
        given=given,
        target=str(document.get("target", "")),
        lnc=document.get("lnc"),
        what_if=what_if,
        about=str(document.get("about", "")).strip(),
        source=source,
    )
    check_operation(found, place.at)
    return found


class Place:
    """Says where something stands: file, line where the text is known, and what it is."""

    def __init__(self, source: str, text: str):
        self._source = source
        self._lines = text.splitlines()

    def at(self, what: str, fragment: str) -> str:
        """`file:line: what`, the line being the first that holds `fragment`."""
        line = next((n for n, line in enumerate(self._lines, 1) if fragment and fragment in line), None)
        return f"{self._source}:{line}: {what}" if line else f"{self._source}: {what}"


def _keys(table: Any, known: set[str], where: str) -> None:
    if not isinstance(table, Mapping):
        raise InputError(f"{where}: expected a table, found {table!r}", hint=_DOCS)
    if unknown := sorted(set(table) - known):
        raise InputError(f"{where}: unknown key {unknown[0]!r}", hint=f"known keys: {', '.join(sorted(known))}")


def _number(value: Any, where: str) -> Number:
    if isinstance(value, bool) or not isinstance(value, int | str | float):
        raise InputError(f"{where}: not a number: {value!r}", hint="give a number")
    return Expr.parse(str(value), where).value({})


def _dtype(value: Any, where: str) -> str:
    try:
        return canonical(str(value))
    except InputError as error:
        raise InputError(f"{where}: {error.message}", hint=error.hint) from error


def _dim(name: str, value: Any, place: Place) -> Dim:
    where = place.at(f"dimension {name}", f"{name} =")
    if isinstance(value, Mapping):
        _keys(value, {"size", "about"}, where)
        return Dim(name, Expr.parse(value.get("size", ""), where), str(value.get("about", "")))
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"{where}: {value!r} is no size", hint="give a whole number, or an expression in quotes")
    return Dim(name, Expr.parse(value, where))


def _tensor(name: str, value: Any, dtype: str, place: Place) -> Tensor:
    where = place.at(f"tensor {name}", f"{name} =")
    table = value if isinstance(value, Mapping) else {"dims": value}
    _keys(table, _TENSOR, where)
    dims = table.get("dims", "")
    words = tuple(dims.replace(",", " ").split()) if isinstance(dims, str) else tuple(str(dim) for dim in dims)
    own = _dtype(table.get("dtype", dtype), where)
    flags = {key: bool(table[key]) for key in ("weight", "count") if key in table}
    return Tensor(name, words, own, about=str(table.get("about", "")), **flags)


def _stage(entry: Any, count: int, place: Place) -> Stage:
    label = entry.get("name", f"{count}") if isinstance(entry, Mapping) else f"{count}"
    kinds = [kind for kind in _KINDS if isinstance(entry, Mapping) and kind in entry]
    written = str(entry[kinds[0]]) if kinds else str(label)
    where = place.at(f"stage {label}", written)
    _keys(entry, _STAGE, where)
    if len(kinds) != 1:
        raise InputError(f"{where}: needs exactly one of {', '.join(_KINDS)}", hint=subscripts.HINT)
    kind = kinds[0]
    on = entry.get("on", "matmul" if kind in ("contract", "transpose", "broadcast") else "vector")
    by = entry.get("by", "matmul")
    if on not in ("matmul", "vector"):
        raise InputError(f"{where}: on = {on!r}", hint="on is 'matmul' or 'vector'")
    if by not in ("matmul", "dma"):
        raise InputError(f"{where}: by = {by!r}", hint="by is 'matmul' or 'dma'")
    flops = Expr.parse(entry["flops"], where) if "flops" in entry else None
    if flops is not None and kind in ("contract", "transpose", "broadcast"):
        raise InputError(f"{where}: the FLOPs of a {kind} follow from its shape", hint="leave flops out")
    only = entry.get("only", ())
    return Stage(
        name=str(entry.get("name", written)),
        kind=kind,  # type: ignore[arg-type]
        subscripts=subscripts.parse(written, where),
        flops=flops,
        dtype=_dtype(entry["dtype"], where) if "dtype" in entry else "",
        on=on,
        moves_data=bool(entry.get("moves_data", kind in ("transpose", "broadcast"))),
        by=by,
        share=Expr.parse(entry["share"], where) if "share" in entry else None,
        only=(only,) if isinstance(only, str) else tuple(only),
        about=str(entry.get("about", "")),
        written=written,
    )


def _variant(name: str, table: Any, place: Place) -> Variant:
    where = place.at(f"variant {name}", f"variants.{name}")
    _keys(table, _VARIANT, where)
    kernels = table.get("kernels", "one")
    if isinstance(kernels, list):
        kernels = tuple(tuple([group] if isinstance(group, str) else group) for group in kernels)
    elif kernels not in ("one", "each"):
        raise InputError(f"{where}: kernels = {kernels!r}", hint="'one', 'each', or groups: [['up', 'gelu'], ['down']]")
    split = table.get("split", {})
    split = [split] if isinstance(split, str) else split
    split = {str(dim): 0 for dim in split} if isinstance(split, list) else split
    for dim, cores in split.items() if isinstance(split, Mapping) else [("split", split)]:
        if isinstance(cores, bool) or not isinstance(cores, int) or cores < 0:
            raise InputError(f"{where}: split of {dim} over {cores!r}", hint="split = 'R', ['N', 'F'], or { R = 2 }")
    memory = {key: _traffic(key, value, where) for key, value in table.get("memory", {}).items()}
    return Variant(name, kernels, split, memory, str(table.get("about", "")).strip())


def _traffic(name: str, value: Any, where: str) -> Traffic:
    at = f"{where}: memory of {name}"
    if isinstance(value, str):
        words = value.split()
        if words == ["none"] or (words and set(words) <= {"read", "write"}):
            return Traffic(Expr.parse(words.count("read"), at), Expr.parse(words.count("write"), at))
        raise InputError(f"{at}: {value!r}", hint="write 'read', 'write', 'write read', 'none', or a table")
    _keys(value, _TRAFFIC, at)
    each_core = value.get("each_core", "")
    if each_core not in ("", "part", "whole", "shared"):
        raise InputError(f"{at}: each_core = {each_core!r}", hint="each_core is part, whole or shared")
    counts = {key: Expr.parse(value[key], at) for key in ("reads", "writes") if key in value}
    dtype = _dtype(value["dtype"], at) if "dtype" in value else ""
    return Traffic(counts.get("reads"), counts.get("writes"), each_core, dtype)
