"""Our server beside the servers that others have made, on the same prompts, taking turns on this machine.

    python -m benchmarks.serving --prepare             make the environments and the forms of the weights (minutes)
    python -m benchmarks.serving --passes 3            measure; --markdown docs/peers.md writes the table
    python -m benchmarks serving                       the goal, at fewer passes

One server is up at a time, since it uses all cores. In each pass every server gets every load, in an order that turns from
pass to pass, on prompts that no other pass has used and that are the same for all servers of a pass. A ratio is taken within
a pass; shown are the median over the passes and their range. The client is the benchmark of the packaged bundle.
"""

from __future__ import annotations

from benchmarks.rows import Row

GOAL = 1.2


def rows() -> list[Row]:
    """At each precision and load: our output tokens/s over those of the best other server."""
    from benchmarks.serving.peer import read_peers
    from benchmarks.serving.table import LOADS, best_other, measure

    peers = read_peers()
    there = [name for name, peer in peers.items() if peer.ready() and peer.kind in ("fp32", "bf16")]
    absent = sorted(set(peers) - set(there))
    found = measure([peers[name] for name in there], passes=2, window_s=6.0, seed=1)
    out = []
    for kind in ("fp32", "bf16"):
        for load in LOADS:
            versus = best_other(found, peers, kind, load.name)
            note = f"over {versus.other}, passes {versus.low:.2f}–{versus.high:.2f}" if versus else "no other is there"
            goal = GOAL if load.name != "1 at once" else None
            out.append(Row(f"{kind}, {load.name}", goal, versus and versus.ratio, "times", "higher", note))
    if absent:
        out.append(Row("left out", None, float(len(absent)), "peers", note=", ".join(absent)))
    return out
