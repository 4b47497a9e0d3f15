"""Run-time loops: what their bodies may hold, registers, names and order; and control flow that splits the two cores."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vibeserve.nki.lint.checks.views import methods
from vibeserve.nki.lint.rules import Hit, check
from vibeserve.nki.lint.source import FunctionNode, Source

_RUN_TIME = ("nki.language.fori_loop", "nki.language.while_loop")
_REGISTERS = ("nki.isa.register_alloc",)
_REGISTER_WRITES = ("nki.isa.register_move", "nki.isa.register_load", "nki.isa.register_store")


def dynamic_for(source: Source, node: ast.AST) -> bool:
    """Whether a node is `for … in nl.dynamic_range(…)`."""
    return (
        isinstance(node, ast.For)
        and isinstance(node.iter, ast.Call)
        and source.resolve(node.iter.func) == "nki.language.dynamic_range"
    )


def bodies(source: Source) -> list[FunctionNode]:
    """The functions that are handed to fori_loop and while_loop."""
    handed = {
        item.id
        for call, _ in source.kernel_calls(*_RUN_TIME)
        for item in [*call.args, *(word.value for word in call.keywords)]
        if isinstance(item, ast.Name)
    }
    return [node for node in source.functions if node.name in handed]


def run_time_loops(source: Source) -> list[ast.AST]:
    """Everything whose statements run in a run-time loop: `for` over dynamic_range, and the bodies of fori_loop, while_loop."""
    return [*(node for node in source.nodes if dynamic_for(source, node)), *bodies(source)]


def _counters(source: Source) -> list[tuple[ast.AST, str]]:
    """Each run-time loop with the name of its counter."""
    found: list[tuple[ast.AST, str]] = []
    for node in run_time_loops(source):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            found.append((node, node.target.id))
        elif isinstance(node, FunctionNode) and node.args.args:
            found.append((node, node.args.args[0].arg))
    return found


@check
def counter_written(source: Source) -> Iterator[Hit]:
    """`i = …`, `i += 1` or register_move(i, …) of a run-time loop's own counter."""
    for loop, name in _counters(source):
        for node in ast.walk(loop):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                if not (isinstance(loop, ast.For) and node is loop.target):
                    yield Hit(node, name)
            elif isinstance(node, ast.Call) and source.resolve(node.func) in _REGISTER_WRITES[:2]:
                first = source.argument(node, "dst", 0)
                if isinstance(first, ast.Name) and first.id == name:
                    yield Hit(node, name)


def registers(source: Source) -> set[tuple[FunctionNode | None, str]]:
    """Names that hold a register, with the function that binds them."""
    return {
        (source.owner(node), node.targets[0].id)
        for node in source.nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and source.resolve(node.value.func) in _REGISTERS
    }


@check
def while_register(source: Source) -> Iterator[Hit]:
    """`while reg:`."""
    held = registers(source)
    for node in source.nodes:
        if (
            isinstance(node, ast.While)
            and isinstance(node.test, ast.Name)
            and (source.owner(node), node.test.id) in held
        ):
            yield Hit(node, node.test.id)


@check
def register_arithmetic(source: Source) -> Iterator[Hit]:
    """Arithmetic, `if`, int() or range() on a register: one of register_alloc, or the counter that a body is given."""
    held = registers(source)
    held |= {
        (body, body.args.args[0].arg) for body in bodies(source) if body.args.args and not _while_body(source, body)
    }

    def is_register(node: ast.expr) -> bool:
        owner = source.owner(node)
        while isinstance(node, ast.Name):
            if (owner, node.id) in held:
                return True
            if owner is None:
                return False
            owner = source.owner(owner)
        return False

    for node in source.nodes:
        touched: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            touched = [node.left, node.right]
        elif isinstance(node, ast.If | ast.IfExp):
            touched = [
                node.test,
                *([node.test.left, *node.test.comparators] if isinstance(node.test, ast.Compare) else []),
            ]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("int", "range", "float")
        ):
            touched = list(node.args)
        for item in touched:
            if is_register(item):
                yield Hit(node, ast.unparse(item))
                break


def _while_body(source: Source, body: FunctionNode) -> bool:
    return any(
        isinstance(item, ast.Name) and item.id == body.name
        for call, name in source.kernel_calls("nki.language.while_loop")
        for item in call.args
    )


@check
def tensor_leaves_loop(source: Source) -> Iterator[Hit]:
    """A tile made in a run-time loop and appended to a list outside it, or used after a dynamic_range loop."""
    for loop in run_time_loops(source):
        made = {
            node.targets[0].id
            for node in ast.walk(loop)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Call)
            and (source.resolve(node.value.func) or "").startswith("nki.language.")
        }
        bound = {item.id for item in ast.walk(loop) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
        for node in ast.walk(loop):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "append"
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id not in bound
                and any(isinstance(item, ast.Name) and item.id in made for item in node.args)
            ):
                yield Hit(node, ast.unparse(node))
        if isinstance(loop, ast.For):
            yield from _used_after(source, loop, made)


def _used_after(source: Source, loop: ast.For, made: set[str]) -> Iterator[Hit]:
    owner, last = source.owner(loop), loop.end_lineno or loop.lineno
    after = [
        node
        for node in ast.walk(owner or source.tree)
        if isinstance(node, ast.Name) and node.id in made and getattr(node, "lineno", 0) > last
    ]
    for name in sorted({node.id for node in after}):
        uses = sorted((node for node in after if node.id == name), key=lambda node: (node.lineno, node.col_offset))
        stored = [node for node in uses if isinstance(node.ctx, ast.Store)]
        first = uses[0]
        if isinstance(first.ctx, ast.Load) and not (stored and stored[0].lineno == first.lineno):
            yield Hit(first, name)


@check
def loop_without_reorder(source: Source) -> Iterator[Hit]:
    """A run-time loop within `with nl.no_reorder():`."""
    for node in source.nodes:
        is_loop = dynamic_for(source, node) or (isinstance(node, ast.Call) and source.resolve(node.func) in _RUN_TIME)
        if not is_loop or not source.in_kernel(node):
            continue
        for around in source.around(node):
            if isinstance(around, FunctionNode):
                break
            if isinstance(around, ast.With) and any(
                isinstance(item.context_expr, ast.Call)
                and source.resolve(item.context_expr.func) == "nki.language.no_reorder"
                for item in around.items
            ):
                yield Hit(node)
                break


@check
def repeated_names(source: Source) -> Iterator[Hit]:
    """name="x" of two instructions in the body of one run-time loop."""
    for loop in run_time_loops(source):
        seen: set[str] = set()
        for node in ast.walk(loop):
            if not isinstance(node, ast.Call) or not (source.resolve(node.func) or "").startswith("nki.isa."):
                continue
            value = source.keyword(node, "name")
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                if value.value in seen:
                    yield Hit(node, repr(value.value))
                seen.add(value.value)


@check
def edge_across_loop(source: Source) -> Iterator[Hit]:
    """`a.depends_on(b)` where one was made in a run-time loop and the other outside it."""
    loops = run_time_loops(source)

    def loop_of(node: ast.AST) -> ast.AST | None:
        return next((item for item in source.around(node) if item in loops), None)

    made: dict[str, set[ast.AST | None]] = {}
    for node in source.nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function)):
                if (source.resolve(function) or "").startswith("nki.isa."):
                    made.setdefault(name, set()).add(loop_of(node))
    for call, _ in methods(source, "depends_on"):
        value = call.func.value if isinstance(call.func, ast.Attribute) else None
        names = [item.id for item in [value, *call.args] if isinstance(item, ast.Name)]
        places = [made[name] for name in names if name in made]
        if len(places) > 1 and all(len(item) == 1 for item in places) and len(set().union(*places)) > 1:
            yield Hit(call, ast.unparse(call))


@check
def cores_differ(source: Source) -> Iterator[Hit]:
    """`if nl.program_id(0) == 0:` (or on a name made of it) with instructions in one branch that the other lacks."""
    for function in source.kernel_code:
        ids = {
            node.targets[0].id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_id(source, node.value)
        }
        for node in ast.walk(function):
            if (
                not isinstance(node, ast.If)
                or not isinstance(node.test, ast.Compare)
                or source.owner(node) is not function
            ):
                continue
            sides = [node.test.left, *node.test.comparators]
            if not any(_is_id(source, side) or (isinstance(side, ast.Name) and side.id in ids) for side in sides):
                continue
            if _instructions(source, node.body) != _instructions(source, node.orelse):
                yield Hit(node, ast.unparse(node.test))


def _is_id(source: Source, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and source.resolve(node.func) in (
        "nki.language.program_id",
        "nki.collectives.rank_id",
    )


def _instructions(source: Source, body: list[ast.stmt]) -> list[str]:
    return [
        name
        for statement in body
        for item in ast.walk(statement)
        if isinstance(item, ast.Call)
        and (name := source.resolve(item.func) or "").startswith(("nki.isa.", "nki.collectives."))
    ]
