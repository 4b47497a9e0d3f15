"""What the kernel language leaves out of Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import FunctionNode, Source


@check
def identity_test(source: Source) -> Iterator[Hit]:
    """`x is None`."""
    for node in source.nodes:
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            yield Hit(node)


@check
def keyword_only(source: Source) -> Iterator[Hit]:
    """`def kernel(a, *, b)`."""
    for function in source.entry_points:
        if function.args.kwonlyargs and function.args.vararg is None:
            yield Hit(function, function.name)


@check
def list_default(source: Source) -> Iterator[Hit]:
    """`def kernel(a, sizes=[1, 2])`, and `kernel(x, [1, 2])` at a launch."""
    kernels = {function.name for function in source.entry_points}
    for function in source.entry_points:
        for default in [*function.args.defaults, *function.args.kw_defaults]:
            if isinstance(default, ast.List):
                yield Hit(default, f"default of {function.name}")
    for call in source.nodes:
        if isinstance(call, ast.Call) and not source.in_kernel(call):
            called = call.func.value if isinstance(call.func, ast.Subscript) else call.func
            if isinstance(called, ast.Name) and called.id in kernels:
                for argument in [*call.args, *(item.value for item in call.keywords)]:
                    if isinstance(argument, ast.List):
                        yield Hit(argument, f"argument of {called.id}")


@check
def dict_keys(source: Source) -> Iterator[Hit]:
    """`{1: a}`."""
    for node in source.nodes:
        if isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and not isinstance(key.value, str):
                    yield Hit(key, repr(key.value))


@check
def unsupported_syntax(source: Source) -> Iterator[Hit]:
    """try/except, yield, async, with, global, match, walrus within kernel code."""
    for node in source.nodes:
        word = {
            ast.Try: "try", ast.Yield: "yield", ast.YieldFrom: "yield from", ast.Await: "await", ast.AsyncFor: "async for",
            ast.AsyncWith: "async with", ast.Global: "global", ast.Nonlocal: "nonlocal", ast.Match: "match", ast.NamedExpr: ":=",
            ast.Delete: "del",
        }.get(type(node))  # fmt: skip
        if word:
            yield Hit(node, word)


@check
def breakpoint_call(source: Source) -> Iterator[Hit]:
    """breakpoint(), pdb.set_trace()."""
    for call, name in source.calls:
        if name in ("breakpoint", "pdb.set_trace", "ipdb.set_trace"):
            yield Hit(call, name)


@check
def print_call(source: Source) -> Iterator[Hit]:
    """print(…)."""
    for call, name in source.calls:
        if name == "print":
            yield Hit(call)


@check
def tensor_truth(source: Source) -> Iterator[Hit]:
    """`if tile:`, `while tile > 0:`, `not tile`, `tile and other`."""
    for node in source.nodes:
        tests: list[ast.expr] = []
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            tests = [node.test]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            tests = [node.operand]
        elif isinstance(node, ast.BoolOp):
            tests = list(node.values)
        for test in tests:
            for operand in (
                [test.left, *test.comparators] if isinstance(test, ast.Compare) and not _none_test(test) else [test]
            ):
                if isinstance(operand, ast.Name | ast.Subscript) and source.tile_of(operand) is not None:
                    yield Hit(node, ast.unparse(operand))


def _none_test(test: ast.Compare) -> bool:
    return any(isinstance(item, ast.Constant) and item.value is None for item in [test.left, *test.comparators])


def _bound(function: ast.AST) -> set[str]:
    found = set()
    for item in ast.walk(function):
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
            found.add(item.id)
        elif isinstance(item, ast.arg):
            found.add(item.arg)
    return found


@check
def impure(source: Source) -> Iterator[Hit]:
    """A kernel that reads a name of the module which is bound more than once, appends to a list of the module, or closes over a
    variable of the function around it."""
    times: dict[str, int] = {}
    for statement in source.tree.body:
        for node in ast.walk(statement):
            if isinstance(statement, FunctionNode | ast.ClassDef):
                break
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                times[node.id] = times.get(node.id, 0) + 1
    bound: dict[int, set[str]] = {}  # by the function, the names that it binds itself
    for node in source.nodes:
        if not isinstance(node, ast.Name) or node.id not in times:
            continue
        owner = source.owner(node)
        if owner is None:
            continue
        if id(owner) not in bound:
            bound[id(owner)] = _bound(owner)
        if node.id in bound[id(owner)]:
            continue
        parent = source.parent(node)
        mutates = isinstance(parent, ast.Attribute) and parent.attr in (
            "append",
            "extend",
            "update",
            "pop",
            "add",
            "clear",
        )
        if times.get(node.id, 0) > 1 or (mutates and node.id in times):
            yield Hit(node, node.id)
    yield from _closures(source)


def _closures(source: Source) -> Iterator[Hit]:
    """A kernel within a function that reads a parameter or a variable of that function (a tile size, say), each name once."""
    for kernel in source.entry_points:
        outer = source.owner(kernel)
        if outer is None:
            continue
        own, seen = _bound(kernel), set[str]()
        while outer is not None:
            held = {item.arg for item in ast.walk(outer.args) if isinstance(item, ast.arg)} | {
                item.id
                for item in ast.walk(outer)
                if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store) and source.owner(item) is outer
            }
            for node in ast.walk(kernel):
                if not isinstance(node, ast.Name) or node.id not in held - own - seen:
                    continue
                if any(node in ast.walk(item) for item in kernel.decorator_list):
                    continue
                seen.add(node.id)
                yield Hit(node, f"{node.id} of {outer.name}()")
            outer = source.owner(outer)
