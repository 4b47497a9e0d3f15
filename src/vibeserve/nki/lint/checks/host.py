"""Host code: references on the device, variables set too late, swallowed failures, checks that cannot fail."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import Source

_EARLY = re.compile(
    r"NEURON_CC_FLAGS|NEURON_RT_\w+|NEURON_PLATFORM_TARGET_OVERRIDE|NEURON_FRAMEWORK_DEBUG|XLA_\w+|NKI_\w+|NEURON_LOGICAL_NC_CONFIG"
)
# Read when something is compiled or run, not when it is imported.
_LATER = ("NEURON_CC_FLAGS", "NEURON_PLATFORM_TARGET_OVERRIDE", "NEURON_RT_VISIBLE_CORES")
_RANDOM = ("torch.randn", "torch.rand", "torch.randint", "torch.ones", "torch.zeros", "torch.arange", "torch.full")
_COMPARES = ("allclose", "assert_allclose", "equal", "array_equal", "assert_close", "isclose")


def device_names(source: Source) -> set[str]:
    """Names bound to an XLA device or to a tensor on it."""
    devices: set[str] = set()
    tensors: set[str] = set()
    for node in source.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        text = ast.unparse(node.value)
        if "xla_device" in text:
            devices.add(node.targets[0].id)
        elif (
            any(re.search(rf"\.to\((device=)?{name}\)|device={name}\b", text) for name in devices)
            and ".cpu()" not in text
        ):
            tensors.add(node.targets[0].id)
    return tensors | devices


@check
def device_reference(source: Source) -> Iterator[Hit]:
    """`torch.softmax(x, …)` of a tensor on the device, `torch.randn(…, device=device)`, or `expected = x * 2` with such a tensor."""
    names = device_names(source)
    yield from _device_arithmetic(source)
    kernels = {function.name for function in source.entry_points}
    for call, name in source.calls:
        if (
            not name.startswith(("torch.", "torch_xla."))
            or name.startswith(("torch.testing", "torch_xla.core"))
            or source.in_kernel(call)
        ):
            continue
        device = source.keyword(call, "device")
        if name in _RANDOM:
            if isinstance(device, ast.Name) and device.id in names:
                yield Hit(call, f"{name} on the device")
            continue
        for argument in call.args:
            if isinstance(argument, ast.Name) and argument.id in names and argument.id not in kernels:
                yield Hit(call, f"{name}({argument.id}, …)")


def _device_arithmetic(source: Source) -> Iterator[Hit]:
    """An assignment, in host code, of arithmetic on a tensor that is made on the device in the same function."""
    made: dict[tuple[ast.AST | None, str], ast.Assign] = {}
    devices = {name for name in device_names(source) if not _is_tensor(source, name)}
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and not source.in_kernel(node):
            text = ast.unparse(node.value)
            if ".cpu()" not in text and any(
                re.search(rf"\.to\((device=)?{name}\)|device={name}\b", text) for name in devices
            ):
                made[(source.owner(node), node.targets[0].id)] = node
    for node in source.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp) or source.in_kernel(node):
            continue
        for side in ast.walk(node.value):
            if isinstance(side, ast.Name) and (source.owner(node), side.id) in made and _plain_use(source, side):
                yield Hit(node.value, f"{ast.unparse(node.value)[:40]}: {side.id} is on the device")
                break


def _is_tensor(source: Source, name: str) -> bool:
    """Whether a name of device_names is a tensor rather than the device."""
    return not any(
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == name
        and "xla_device" in ast.unparse(node.value)
        for node in source.nodes
    )


def _plain_use(source: Source, node: ast.Name) -> bool:
    """Whether a name is an operand itself (and not x.shape, x.cpu(), f(x))."""
    return isinstance(source.parent(node), ast.BinOp)


@check
def late_environment(source: Source) -> Iterator[Hit]:
    """`os.environ["NEURON_RT_…"] = …` (or setdefault, update, putenv) below the first neuron import of the module."""
    first = _first_import(source, "torch_xla", "torch_neuronx", "neuronxcc", "libneuronxla", "jax_neuronx")
    first_nki = min((line for line in (first, _first_import(source, "nki")) if line is not None), default=None)
    for node, name, _ in environment_settings(source.nodes):
        line = first_nki if name.startswith("NKI_") else first
        if line is not None and getattr(node, "lineno", 0) > line and _EARLY.fullmatch(name) and name not in _LATER:
            yield Hit(node, name)


def _first_import(source: Source, *packages: str) -> int | None:
    """The line of the module's first import of one of the packages."""
    return min(
        (
            node.lineno
            for node in source.tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            and any(name.split(".")[0] in packages for name in _imported_names(node))
        ),
        default=None,
    )


def _imported_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [item.name for item in node.names] if isinstance(node, ast.Import) else [node.module or ""]


def environment_settings(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, str, str | None]]:
    """(node, variable, text) of each setting of the environment among nodes; the text is None where it is computed."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if (
                    isinstance(target, ast.Subscript)
                    and _is_environment(target.value)
                    and isinstance(target.slice, ast.Constant)
                ):
                    yield node, str(target.slice.value), _text(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if (
                node.func.attr in ("setdefault", "putenv")
                and len(node.args) == 2
                and isinstance(node.args[0], ast.Constant)
            ):
                if node.func.attr == "putenv" or _is_environment(node.func.value):
                    yield node, str(node.args[0].value), _text(node.args[1])
            elif node.func.attr == "update" and _is_environment(node.func.value):
                yield from _updated(node)


def _updated(call: ast.Call) -> Iterator[tuple[ast.AST, str, str | None]]:
    for argument in call.args:
        if isinstance(argument, ast.Dict):
            for key, value in zip(argument.keys, argument.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield key, str(key.value), _text(value)
    for word in call.keywords:
        if word.arg:
            yield word, word.arg, _text(word.value)


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@check
def target_mismatch(source: Source) -> Iterator[Hit]:
    """--target of NEURON_CC_FLAGS against NEURON_PLATFORM_TARGET_OVERRIDE."""
    found: dict[str, tuple[str, ast.AST]] = {}
    for node, name, text in environment_settings(source.nodes):
        if name == "NEURON_PLATFORM_TARGET_OVERRIDE" and text is not None:
            found[name] = (text, node)
        elif name == "NEURON_CC_FLAGS" and (match := re.search(r"--target[= ](\w+)", text or "")):
            found[name] = (match.group(1), node)
    names = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3", "inf2": "trn1", "trn1n": "trn1"}
    if len(found) == 2:
        flags, override = found["NEURON_CC_FLAGS"], found["NEURON_PLATFORM_TARGET_OVERRIDE"]
        if names.get(flags[0], flags[0]) != names.get(override[0], override[0]):
            yield Hit(override[1], f"{flags[0]} and {override[0]}")


@check
def silent_fallback(source: Source) -> Iterator[Hit]:
    """try: kernel(x) except Exception: something that does not raise."""
    kernels = {function.name for function in source.entry_points}
    for node in source.nodes:
        if not isinstance(node, ast.Try):
            continue
        called = {
            (item.func.value if isinstance(item.func, ast.Subscript) else item.func).id  # type: ignore[attr-defined]
            for statement in node.body
            for item in ast.walk(statement)
            if isinstance(item, ast.Call)
            and isinstance(item.func.value if isinstance(item.func, ast.Subscript) else item.func, ast.Name)
        }
        if not called & kernels:
            continue
        for handler in node.handlers:
            broad = handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")
            raises = any(isinstance(item, ast.Raise) for statement in handler.body for item in ast.walk(statement))
            if broad and not raises:
                yield Hit(handler, ", ".join(sorted(called & kernels)))


@check
def self_comparison(source: Source) -> Iterator[Hit]:
    """`assert x == x`, `allclose(y, y)`."""
    for node in source.nodes:
        pair: tuple[ast.expr, ast.expr] | None = None
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(source.parent(node), ast.Assert):
            pair = (node.left, node.comparators[0])
        elif (
            isinstance(node, ast.Call)
            and len(node.args) >= 2
            and (source.resolve(node.func) or "").rpartition(".")[2] in _COMPARES
        ):
            pair = (node.args[0], node.args[1])
        if pair and ast.dump(pair[0]) == ast.dump(pair[1]) and not isinstance(pair[0], ast.Constant):
            yield Hit(node, ast.unparse(pair[0]))
