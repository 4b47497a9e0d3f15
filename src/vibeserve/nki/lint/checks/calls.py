"""Calls of instructions: results used as data, missing destinations, unknown keywords, operators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from vibeserve import knowledge
from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import FunctionNode, Source

# Instructions whose result is something else than a handle.
_GIVES_DATA = ("register_alloc", "register_load", "get_nc_version", "iota", "nc_version")
_HANDLE_USES = ("depends_on",)


@cache
def parameters(name: str) -> tuple[str, ...] | None:
    """The parameter names of a language function or instruction; None where its signature takes anything."""
    symbol = knowledge.symbols().get(name)
    signature = symbol.facts.get("signature") if symbol else None
    if not signature or symbol is None or symbol.kind not in ("instruction", "function", "collective"):
        return None
    try:
        head = signature if signature.rstrip().endswith(")") else signature.split(")")[0] + ")"
        node = ast.parse(f"def {head}: ...".replace("…", "...")).body[0]
    except SyntaxError:
        return None
    if not isinstance(node, ast.FunctionDef) or node.args.kwarg is not None:
        return None
    return tuple(item.arg for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))


@check
def unknown_keyword(source: Source) -> Iterator[Hit]:
    """A keyword that the function does not have, and that no rule of its own speaks of."""
    from vibeserve.nki.lint.rules import rules

    spoken = {word for rule in rules().values() for word in rule.keywords}
    for call, name in source.kernel_calls("nki.isa.*", "nki.language.*"):
        known = parameters(name)
        for keyword in call.keywords:
            if known and keyword.arg and keyword.arg not in known and keyword.arg not in spoken:
                near = knowledge.near(keyword.arg, list(known), f"it has {', '.join(known)}")
                yield Hit(keyword, f"{keyword.arg}= of {name.rpartition('.')[2]} ({near})")


@check
def result_used(source: Source) -> Iterator[Hit]:
    """`y = nisa.f(…)`, `return nisa.f(…)`, `g(nisa.f(…))` where the call names no destination."""
    for call, name in source.kernel_calls("nki.isa.*"):
        short = name.rpartition(".")[2]
        known = parameters(name)
        if short in _GIVES_DATA or known is None or known[0] != "dst":
            continue
        around = source.parent(call)
        if isinstance(around, ast.Expr):
            continue
        if isinstance(around, ast.Attribute) and around.attr in _HANDLE_USES:
            continue
        if _only_a_handle(source, call, around):
            continue
        yield Hit(call, f"nisa.{short}")


def _only_a_handle(source: Source, call: ast.Call, around: ast.AST | None) -> bool:
    """The result is kept under a name that is used for scheduling alone (or not at all), and dst is given."""
    has_dst = source.keyword(call, "dst") is not None
    if not has_dst or not isinstance(around, ast.Assign) or not isinstance(around.targets[0], ast.Name):
        return has_dst and isinstance(around, ast.List | ast.Tuple)
    name, owner = around.targets[0].id, source.owner(call)
    uses = [
        node
        for node in ast.walk(owner or source.tree)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    return all(isinstance(source.parent(use), ast.Attribute) or _within(source, use, _HANDLE_USES) for use in uses)


def _within(source: Source, node: ast.AST, methods: tuple[str, ...]) -> bool:
    return any(
        isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr in methods
        for item in source.around(node)
    )


@check
def dst_missing(source: Source) -> Iterator[Hit]:
    """A call with fewer arguments than `dst` and the operands that have no default."""
    for call, name in source.kernel_calls("nki.isa.*"):
        known = parameters(name)
        if not known or known[0] != "dst" or any(isinstance(item, ast.Starred) for item in call.args):
            continue
        if any(item.arg is None for item in call.keywords) or source.keyword(call, "dst") is not None:
            continue
        given = {item.arg for item in call.keywords}
        if not call.args or (known[len(call.args) - 1 :] and set(known[: len(call.args)]) & given):
            yield Hit(call, f"nisa.{name.rpartition('.')[2]}")


@check
def max_as_op(source: Source) -> Iterator[Hit]:
    """`op=nl.max`."""
    for call, _ in source.kernel_calls("nki.isa.*", "nki.language.*"):
        for keyword in call.keywords:
            if (
                keyword.arg
                and keyword.arg.startswith("op")
                and source.resolve(keyword.value) in ("nki.language.max", "nki.language.min")
            ):
                yield Hit(keyword.value)


@check
def numpy_name(source: Source) -> Iterator[Hit]:
    """`np.float32` or `np.add` as a dtype or operator of a language call."""
    for call, _ in source.kernel_calls("nki.isa.*", "nki.language.*"):
        for value in [*call.args, *(item.value for item in call.keywords)]:
            name = source.resolve(value) or ""
            if name.startswith("numpy.") and name.count(".") == 1:
                yield Hit(value, name.replace("numpy.", "np."))


@check
def int_enum(source: Source) -> Iterator[Hit]:
    """A plain integer for dge_mode, oob_mode, reduce_cmd or engine."""
    for call, _ in source.kernel_calls("nki.isa.*"):
        for keyword in call.keywords:
            if (
                keyword.arg in ("dge_mode", "oob_mode", "reduce_cmd", "engine", "perf_mode")
                and source.number(keyword.value) is not None
            ):
                yield Hit(keyword, f"{keyword.arg}={ast.unparse(keyword.value)}")


@check
def buffer_string(source: Source) -> Iterator[Hit]:
    """`buffer='sbuf'`."""
    for call, _ in source.kernel_calls("nki.language.*"):
        value = source.keyword(call, "buffer")
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield Hit(value, repr(value.value))


@check
def decorated_helper(source: Source) -> Iterator[Hit]:
    """A function with @nki.jit that another kernel calls."""
    by_name = {node.name: node for node in source.functions if source.decorators(node)}
    for call, name in source.calls:
        helper = by_name.get(name)
        owner = source.owner(call)
        if helper is None or owner is None or owner is helper or owner not in source.kernel_code:
            continue
        if source.entry_points and owner in source.kernel_code:
            yield Hit(call, helper.name)


@check
def library_call(source: Source) -> Iterator[Hit]:
    """`np.exp(tile)`, `torch.relu(tile)`, `math.exp(tile)` in a kernel."""
    for call, name in source.kernel_calls("numpy.*", "torch.*", "jax.*", "scipy.*", "math.*"):
        if any(source.tile_of(item) is not None for item in call.args):
            yield Hit(call, name)


@check
def loop_state(source: Source) -> Iterator[Hit]:
    """A body of fori_loop or while_loop that returns a value."""
    by_name: dict[str, FunctionNode] = {node.name: node for node in source.functions}
    for call, _ in source.kernel_calls("nki.language.fori_loop", "nki.language.while_loop"):
        for argument in [*call.args, *(item.value for item in call.keywords)]:
            body = by_name.get(argument.id) if isinstance(argument, ast.Name) else None
            if body is None:
                continue
            for node in ast.walk(body):
                if isinstance(node, ast.Return) and node.value is not None and source.owner(node) is body:
                    yield Hit(node, body.name)
