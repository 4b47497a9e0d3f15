"""The whole comparison: python -m benchmarks.serving [--prepare] [--peers A,B] [--passes N] [--markdown FILE]."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.serving.peer import Peer, read_peers
from benchmarks.serving.table import LOADS, Cell, best_other, failures, measure, values
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
    parser.add_argument("--json", type=Path, help="write every cell here, after each one")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    options = parser.parse_args()
    chosen = [known[name] for name in options.peers.split(",")] if options.peers else list(known.values())
    if options.prepare:
        for peer in chosen:
            print(f"{peer.name}: {peer.what}", file=sys.stderr, flush=True)
            peer.prepare()
            form_path(peer.model)
        return 0
    for peer in chosen:
        if not peer.ready():
            print(f"{peer.name}: left out, not made: --prepare --peers {peer.name}", file=sys.stderr)
    there = [peer for peer in chosen if peer.ready()]
    wanted = options.loads.split(";") if options.loads else [load.name for load in LOADS]
    cells: list[Cell] = []

    def told(cell: Cell) -> None:
        cells.append(cell)
        shown = "—" if cell.output_tokens_per_s is None else f"{cell.output_tokens_per_s:.1f} tokens/s"
        print(
            f"pass {cell.number + 1}  {cell.peer:20} {cell.load:26} {shown} {cell.error}", file=sys.stderr, flush=True
        )
        if options.json:
            options.json.write_text(json.dumps([asdict(one) for one in cells], indent=1))

    loads = [load for load in LOADS if load.name in wanted]
    measure(there, options.passes, options.window, options.seed, told, loads)
    text = markdown(cells, there)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    return 0


def markdown(cells: Sequence[Cell], peers: Sequence[Peer]) -> str:
    """The table as it is: medians over the passes with their range, then the ratios."""
    loads = [load.name for load in LOADS if any(cell.load == load.name for cell in cells)]
    lines = ["| server | precision | " + " | ".join(loads) + " |", "|---|---|" + "---|" * len(loads)]
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
                f"{median(found):.0f} ({found[0]:.0f}–{found[-1]:.0f}{mark})" if found else f"not measured: {why[:80]}"
            )
        lines.append("| " + " | ".join(row) + " |")
    lines += [
        "",
        "Output tokens/s: median over the passes (lowest–highest); failed requests count as if answered in full.",
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


if __name__ == "__main__":
    sys.exit(main())
