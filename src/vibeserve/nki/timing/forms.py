"""The form of an instruction from its arguments: a key that equal forms share, and where its operands lie.

For each instruction a function is written out once, since it runs for every instruction of a run: it takes the arguments
apart, and (`quick`) notes the use of tiles as the dispatcher would. It gives None for operands that move at run time, go
through an index tensor, come in lists or are read as another dtype: those are described one by one.
"""

from __future__ import annotations

import functools
from typing import Any

from vibeserve.nki.instruction import Spec
from vibeserve.nki.tensor import NkiTensor


@functools.cache
def reader(spec: Spec, quick: bool = False) -> Any:
    """The function (arguments, sequence number) -> (key, (storage, offset, storage, offset, ...)) | None of `spec`.

    Its attribute `order` lists the parameters that may be tensors, in the order of the places.
    """
    if not spec.loaded:
        spec.load()
    tensors = set(spec.reads) | set(spec.writes)
    needed = [at for at in sorted(tensors) if spec.params[at] not in spec.defaults and not _may_be_number(spec, at)]
    optional = [at for at in sorted(tensors) if at not in needed]
    lines = ["def read(args, sequence):", f"    ({', '.join(f'p{at}' for at in range(len(spec.params)))},) = args"]
    if needed:
        lines.append("    if " + " or ".join(f"p{at}.__class__ is not T" for at in needed) + ": return None")
    for at in needed:
        lines += [f"    {line}" for line in _tensor(at, at in spec.writes, quick)]
    lines.append("    places = (" + "".join(f"s{at}.number, o{at}, " for at in needed) + ")")
    for at in optional:
        lines.append(f"    if p{at}.__class__ is T:")
        lines += [f"        {line}" for line in _tensor(at, at in spec.writes, quick)]
        lines.append(f"        k{at} = ({_key(at)})")
        lines.append(f"        places += (s{at}.number, o{at})")
        lines.append(f"    elif p{at}.__class__ is list or p{at}.__class__ is tuple: return None")
        lines.append(f"    else: k{at} = (p{at}.__class__, p{at})")
    keys = [repr(spec.name)]
    scope: dict[str, Any] = {"T": NkiTensor}
    for at, param in enumerate(spec.params):
        if at in tensors:
            keys.append(_key(at) if at in needed else f"k{at}")
        elif param == "name":
            continue
        elif param in spec.defaults:
            scope[f"d{at}"] = spec.defaults[param]
            keys.append(f"0 if p{at} is d{at} else p{at}")
        else:
            keys.append(f"p{at}")
    lines.append(f"    return ({', '.join(keys)},), places")
    exec(compile("\n".join(lines), f"<nki form of {spec.name}>", "exec"), scope)
    made = scope["read"]
    made.order = [*needed, *optional]
    return made


def _may_be_number(spec: Spec, at: int) -> bool:
    return spec.params[at].startswith(("operand", "scale", "value", "src", "data", "on_")) and spec.params[at] not in (
        "data", "data1", "data2", "src",
    )  # fmt: skip


def _key(at: int) -> str:
    """What tells the form of a tensor: its shape, strides, kind of storage, and first partition."""
    return f"p{at}.shape, p{at}.strides, s{at}.kind, o{at} // s{at}.scale"


def _tensor(at: int, write: bool, quick: bool) -> list[str]:
    p, s = f"p{at}", f"s{at}"
    lines = [
        f"{s} = {p}.storage",
        f"if {p}.moves or {p}.rows is not None or {p}.lanes is not None or {p}.dtype is not {s}.dtype: return None",
        f"o{at} = {p}.offset",
    ]
    if quick:
        lines.append(f"l = {s}.life")
        lines.append("if l is not None:")
        if write:
            lines.append(f"    if not {s}.state: l[0] = sequence")
        lines.append("    l[1] = sequence")
        if write:
            lines.append(f"{s}.state = 2")
    return lines
