"""The whole comparison: python -m benchmarks.serving [--prepare] [--peers A,B] [--load NAME,…] [--passes N] [--markdown FILE]."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.serving.peer import Peer, read_peers
from benchmarks.serving.table import LOADS, WORKLOADS, Cell, best_other, failures, measure, values
from benchmarks.serving.weights import form_path


def main() -> int:
    """Prepare or measure."""
    known = read_peers()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help=f"which, comma separated (default: all that are made): {', '.join(known)}")
    parser.add_argument("--prepare", action="store_true", help="make environments and weights, then stop")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--window", type=float, default=8.0, help="seconds of a window")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loads", help=f"which, separated by ';' (default: all): {'; '.join(x.name for x in LOADS)}")
    parser.add_argument(
        "--load",
        help=f"workloads with something to use instead, comma separated: {', '.join(x.name for x in WORKLOADS)}",
    )
    parser.add_argument("--json", type=Path, help="write every cell here, after each one")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    options = parser.parse_args()
    chosen = [known[name] for name in options.peers.split(",")] if options.peers else list(known.values())
    if options.prepare:
        for peer in chosen:
            print(f"{peer.name}: {peer.what}", file=sys.stderr, flush=True)
            peer.prepare()
            for form in {peer.model, *(given.get("model", peer.model) for given in peer.on.values())}:
                form_path(form)
        return 0
    for peer in chosen:
        if not peer.ready():
            print(f"{peer.name}: left out, not made: --prepare --peers {peer.name}", file=sys.stderr)
    there = [peer for peer in chosen if peer.ready()]
    known_loads = WORKLOADS if options.load else LOADS
    asked = options.load.split(",") if options.load else (options.loads or "").split(";")
    wanted = [name for name in asked if name] or [load.name for load in known_loads]
    if unknown := [name for name in wanted if name not in {load.name for load in known_loads}]:
        parser.error(f"there is no load {unknown[0]!r}")
    cells: list[Cell] = []

    def told(cell: Cell) -> None:
        cells.append(cell)
        unit = next(load.unit for load in (*LOADS, *WORKLOADS) if load.name == cell.load)
        shown = "—" if cell.output_tokens_per_s is None else f"{cell.output_tokens_per_s:.3g} {unit}"
        print(
            f"pass {cell.number + 1}  {cell.peer:20} {cell.load:26} {shown} {cell.error}", file=sys.stderr, flush=True
        )
        if options.json:
            options.json.write_text(json.dumps([asdict(one) for one in cells], indent=1))

    loads = [load for load in known_loads if load.name in wanted]
    measure(there, options.passes, options.window, options.seed, told, loads)
    text = markdown(cells, there)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    return 0


def markdown(cells: Sequence[Cell], peers: Sequence[Peer]) -> str:
    """The table as it is: medians over the passes with their range, then the ratios."""
    every = [load for load in (*LOADS, *WORKLOADS) if any(cell.load == load.name for cell in cells)]
    loads = [load.name for load in every]
    titles = [
        name if load.unit == "tokens/s" else f"{name}, {load.unit}" for name, load in zip(loads, every, strict=True)
    ]
    lines = ["| server | precision | " + " | ".join(titles) + " |", "|---|---|" + "---|" * len(loads)]
    for peer in peers:
        row = [peer.name, peer.kind]
        for load in loads:
            found = sorted(values(cells, peer.name, load).values())
            why = next(
                (cell.error for cell in cells if cell.peer == peer.name and cell.load == load and cell.error), ""
            )
            failed, requests = failures(cells, peer.name, load)
            mark = f"; {failed} of {requests} failed" if failed else ""
            row.append(
                f"{_short(median(found))} ({_short(found[0])}–{_short(found[-1])}{mark})"
                if found
                else f"not measured: {why[:80]}"
            )
        lines.append("| " + " | ".join(row) + " |")
    lines += [
        "",
        "Output tokens/s where no unit is said: median over the passes (lowest–highest); failed requests count as if answered in full.",
        "",
    ]
    by_name = {peer.name: peer for peer in peers}
    for kind in ("fp32", "bf16"):
        for load in loads:
            if (versus := best_other(cells, by_name, kind, load)) is not None:
                lines.append(
                    f"- {kind}, {load}: {versus.ratio:.2f}× {versus.other} (passes {versus.low:.2f}–{versus.high:.2f})"
                )
    return "\n".join(lines) + "\n"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


if __name__ == "__main__":
    sys.exit(main())
