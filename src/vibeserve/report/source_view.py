"""The lines of a source view: those with cost and some around them, and how dark each is."""

from __future__ import annotations

from vibeserve.report.sections import Source, SourceLine


def shown_lines(source: Source) -> list[SourceLine | None]:
    """The lines to show: all where `context` is None, else each with cost and `context` around it; None marks a gap."""
    lines = list(source.lines)
    if source.context is None:
        return list(lines)
    keep: set[int] = set()
    for position, line in enumerate(lines):
        if line.note or any(cost for cost in line.costs):
            keep.update(range(position - source.context, position + source.context + 1))
    if not keep:
        return list(lines)
    shown: list[SourceLine | None] = []
    last = -1
    for position, line in enumerate(lines):
        if position not in keep:
            continue
        if position != last + 1:
            shown.append(None)
        shown.append(line)
        last = position
    if last != len(lines) - 1:
        shown.append(None)
    return shown


def cost_classes(source: Source) -> dict[int, str]:
    """line number → h1 … h5, by its first cost as a share of the largest one."""
    firsts = {line.number: float(line.costs[0]) for line in source.lines if line.costs and line.costs[0]}
    most = max(firsts.values(), default=0.0)
    if most <= 0:
        return {}
    return {number: f"h{max(1, min(5, round(value / most * 5)))}" for number, value in firsts.items()}
