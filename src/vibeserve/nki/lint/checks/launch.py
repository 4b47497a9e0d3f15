"""How kernels are imported, launched and called: namespaces, launch grids, outputs that are arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from vibeserve.nki.lint.checks.host import environment_settings
from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import FunctionNode, Source

_LNC = re.compile(r"--(?:lnc|logical-nc-config)[= ](\d)")
_LNC_VARIABLES = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
_STORES = ("nki.isa.dma_copy", "nki.language.store", "nki.isa.dma_transpose", "nki.isa.dma_compute")


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [item.name for item in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{item.name}" for item in node.names)]
    return []


@check
def mixed_namespaces(source: Source) -> Iterator[Hit]:
    """Imports of neuronxcc.nki and of nki in one file; not where one is the other's stand-in (`try … except ImportError`)."""
    old: list[ast.AST] = []
    new = False
    for node in source.nodes:
        names = _imports(node)
        if not names or any(isinstance(item, ast.Try | ast.If) for item in source.around(node)):
            continue
        if any(name == "neuronxcc.nki" or name.startswith("neuronxcc.nki.") for name in names):
            old.append(node)
        elif any(name == "nki" or name.startswith("nki.") for name in names):
            new = True
    if old and new:
        yield Hit(old[0])


@check
def launch_grid(source: Source) -> Iterator[Hit]:
    """`kernel[2](x)` in a file that sets another LNC."""
    said = set()
    for _, name, text in environment_settings(source.nodes):
        if name == "NEURON_CC_FLAGS" and (match := _LNC.search(text or "")):
            said.add(int(match.group(1)))
        elif name in _LNC_VARIABLES and text and text.isdigit():
            said.add(int(text))
    if len(said) != 1:
        return
    [lnc] = said
    kernels = {function.name for function in source.entry_points}
    for node in source.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Subscript)
            and isinstance(node.func.value, ast.Name)
        ):
            grid = source.number(node.func.slice)
            if node.func.value.id in kernels and grid is not None and grid != lnc:
                yield Hit(node, f"{node.func.value.id}[{grid}], and the file sets LNC {lnc}")


@check
def output_argument(source: Source) -> Iterator[Hit]:
    """A parameter marked as a mutable tensor, or one that the kernel writes while it returns nothing."""
    for function in source.entry_points:
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        marked = [
            item
            for item in arguments
            if item.annotation is not None and "mutable_tensor" in ast.unparse(item.annotation)
        ]
        if marked:
            yield from (Hit(item, item.arg) for item in marked)
        elif not _returns(source, function):
            yield from _written_parameters(source, function, {item.arg: item for item in arguments})


def _returns(source: Source, function: FunctionNode) -> bool:
    return any(
        isinstance(node, ast.Return) and node.value is not None and source.owner(node) is function
        for node in ast.walk(function)
    )


def _written_parameters(source: Source, function: FunctionNode, parameters: dict[str, ast.arg]) -> Iterator[Hit]:
    for call, _ in source.kernel_calls(*_STORES):
        at = source.argument(call, "dst", 0)
        while isinstance(at, ast.Subscript):
            at = at.value
        if isinstance(at, ast.Name) and at.id in parameters and source.owner(call) is function:
            yield Hit(parameters.pop(at.id), at.id)
