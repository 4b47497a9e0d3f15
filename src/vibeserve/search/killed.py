"""What a kill from outside costs: the measurement in flight, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vibeserve.measure import KilledError
from vibeserve.search.context import Run

T = TypeVar("T")


def once_more(run: Run, act: Callable[[], T]) -> T:
    """`act()`; done again where a server or a client was killed from outside in it, with dead servers started anew.

    Once: a server that is killed each time (the system's out-of-memory killer takes one that leaks) has failed. Steps
    that `act` has finished are in the journal and are not done again. Raises KilledError the second time.
    """
    try:
        return act()
    except KilledError as failure:
        run.servers.drop_dead()
        run.journal.event("again", f"lost, and done once more: {failure.message}")
        return act()
