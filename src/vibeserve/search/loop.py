"""The whole search on one page."""

from __future__ import annotations

import itertools

from vibeserve.search.baseline import baseline
from vibeserve.search.context import Run
from vibeserve.search.drafts import answers, draft, park
from vibeserve.search.final import confirm
from vibeserve.search.rounds import build, decide, examine, propose


def search(run: Run) -> None:
    """Round 0 is the reference; then one falsifiable change a round, kept only if it is measured to be better.

    A coding agent is asked for an answer first: without one nothing is measured.

    Raises MissingError where the agent does not answer, CheckError where the reference itself does not start or pass
    its own checker.
    """
    if run.desk is not None:
        answers(run)
    baseline(run)
    for number in itertools.count(1):
        proposal = propose(run, number)
        if proposal is None:
            break
        if run.desk is not None:
            draft(run, number)
        candidate = build(run, number, proposal)
        finding = examine(run, number, candidate, proposal)
        decide(run, number, candidate, finding)
    park(run)
    confirm(run)
