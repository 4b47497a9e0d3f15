"""The whole search on one page."""

from __future__ import annotations

import itertools

from vibeserve.search.baseline import baseline
from vibeserve.search.context import Run
from vibeserve.search.final import confirm
from vibeserve.search.rounds import build, decide, examine, propose


def search(run: Run) -> None:
    """Round 0 is the reference; then one falsifiable change a round, kept only if it is measured to be better.

    Raises CheckError where the reference itself does not start or pass its own checker.
    """
    baseline(run)
    for number in itertools.count(1):
        proposal = propose(run, number)
        if proposal is None:
            break
        candidate = build(run, number, proposal)
        finding = examine(run, number, candidate, proposal)
        decide(run, number, candidate, finding)
    confirm(run)
