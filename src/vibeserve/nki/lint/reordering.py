"""Fixes of calls: arguments in today's order and by today's names, outputs where they belong, launches as they are written now."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from vibeserve.nki.lint.checks.calls import parameters
from vibeserve.nki.lint.edits import Edit, Places, local_name
from vibeserve.nki.lint.rules import Hit, Rule
from vibeserve.nki.lint.source import FunctionNode, Source


def _rewritten(places: Places, call: ast.Call, words: dict[int, str]) -> Iterator[Edit]:
    """The positional arguments from the first of `words` on, each under its name; words[place] is the name."""
    first = min(words)
    if any(isinstance(item, ast.Starred) for item in call.args) or len(call.args) > max(words) + 1:
        return
    if any(place not in words for place in range(first, len(call.args))):
        return
    given = {item.arg for item in call.keywords}
    for place, item in enumerate(call.args):
        if place in words and words[place] not in given:
            yield Edit(places.start(item), places.start(item), f"{words[place]}=")


def shuffle_order(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`nc_stream_shuffle(a, b, mask)` as `nc_stream_shuffle(src=a, dst=b, shuffle_mask=mask)`."""
    if isinstance(hit.node, ast.Call):
        yield from _rewritten(places, hit.node, {0: "src", 1: "dst", 2: "shuffle_mask"})


def compute_order(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`dma_compute(d, s, scales, op)` as `dma_compute(d, s, scales=scales, reduce_op=op)`."""
    if isinstance(hit.node, ast.Call):
        yield from _rewritten(places, hit.node, {2: "scales", 3: "reduce_op"})


def affine_offset(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`affine_select(d, pattern, offset, multiplier, tile, fill)` with the arguments from the offset on by name."""
    names = {2: "offset", 3: "channel_multiplier", 4: "on_true_tile", 5: "on_false_value", 6: "cmp_op"}
    if isinstance(hit.node, ast.Call):
        yield from _rewritten(places, hit.node, names)


def shared_hbm(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`buffer=nl.hbm` (or private_hbm) of the returned tensor as `buffer=nl.shared_hbm`."""
    statement, new = hit.node, local_name(source, "nki.language.shared_hbm")
    if not isinstance(statement, ast.Return) or new is None:
        return
    values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
    for value in values:
        tile = source.tile_of(value) if isinstance(value, ast.Name) else None
        if tile is not None and tile.buffer in ("hbm", "private_hbm"):
            buffer = source.keyword(tile.node, "buffer")
            if buffer is not None:
                yield places.replace(buffer, new)


def whole_number(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`value=5.0` into an integer tile as `value=5`; a fraction is left to its author."""
    inner = hit.node.operand if isinstance(hit.node, ast.UnaryOp) else hit.node
    if isinstance(inner, ast.Constant) and isinstance(inner.value, float) and inner.value.is_integer():
        yield places.replace(inner, str(int(inner.value)))


def channel_ids(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`num_channels=2` as `channel_ids=[0, 1]`, where the collective has channels and the number is written out."""
    call, node = source.parent(hit.node), hit.node
    if not isinstance(call, ast.Call) or not isinstance(node, ast.keyword):
        return
    count, known = source.number(node.value), parameters(source.resolve(call.func) or "")
    if count is not None and 0 < count <= 64 and known and "channel_ids" in known:
        yield Edit(places.start(node), places.end(node), f"channel_ids={list(range(count))}")


def dma_engine(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`use_gpsimd_dma=True` as `dma_engine=nisa.dma_engine.gpsimd_dma`."""
    node = hit.node
    if not isinstance(node, ast.keyword) or not isinstance(node.value, ast.Constant):
        return
    member = local_name(source, f"nki.isa.dma_engine.{'gpsimd_dma' if node.value.value else 'dma'}")
    if isinstance(node.value.value, bool) and member is not None:
        yield Edit(places.start(node), places.end(node), f"dma_engine={member}")


def plain_defaults(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`def k(a, *, n=3)` as `def k(a, n=3)`, where every keyword-only argument has a default."""
    function = hit.node
    if not isinstance(function, FunctionNode) or any(item is None for item in function.args.kw_defaults):
        return
    first = function.args.kwonlyargs[0]
    start, end = places.start(function), places.start(first)
    star = places.data.rfind(b"*", start, end)
    between = places.data[star + 1 : end]
    if star > 0 and between.strip() == b"," and b"#" not in between:
        yield Edit(star, end, "")


def simulate_call(source: Source, places: Places, rule: Rule, hit: Hit) -> Iterator[Edit]:
    """`nki.simulate_kernel(kernel, a, b)` as `nki.simulate(kernel)(a, b)`."""
    call, new = source.parent(hit.node), local_name(source, "nki.simulate")
    if source.resolve(hit.node) != "nki.simulate_kernel" or new is None or not isinstance(call, ast.Call):
        return
    if call.func is not hit.node or not call.args or any(isinstance(item, ast.Starred) for item in call.args[:1]):
        return
    kernel = call.args[0]
    rest: list[ast.expr | ast.keyword] = [*call.args[1:], *call.keywords]
    after = min((places.start(item) for item in rest), default=places.end(call) - 1)
    yield Edit(places.start(call), places.start(kernel), f"{new}(")
    yield Edit(places.end(kernel), after, ")(")


FIXES: dict[str, Callable[[Source, Places, Rule, Hit], Iterator[Edit]]] = {
    "shuffle-order": shuffle_order,
    "compute-order": compute_order,
    "affine-offset": affine_offset,
    "shared-hbm": shared_hbm,
    "whole-number": whole_number,
    "channel-ids": channel_ids,
    "dma-engine": dma_engine,
    "plain-defaults": plain_defaults,
    "simulate-call": simulate_call,
}
