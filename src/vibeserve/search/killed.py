"""What a kill from outside costs: the measurement in flight, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vibeserve.measure import KilledError
from vibeserve.search.context import Run

T = TypeVar("T")
#: How often an act is repeated where the candidate's own server was killed in it: one that the system's out-of-memory
#: killer takes each time has failed, and one that ends itself in bad windows may not draw others.
OWN = 1
#: How often where it was the client's process, or the server that the candidate is compared with.
OTHERS = 3


def once_more(run: Run, act: Callable[[], T], *, trial: str = "") -> T:
    """`act()`; done again where a server or a client was killed from outside in it, with dead servers started anew.

    `trial` is the candidate that is judged. Steps that `act` has finished are in the journal and are not done again.
    Raises KilledError where it happens too often.
    """
    own = others = 0
    while True:
        try:
            return act()
        except KilledError as failure:
            mine = run.servers.dead(trial)
            own, others = own + mine, others + (not mine)
            if own > OWN or others > OTHERS:
                raise
            run.servers.drop_dead()
            run.journal.event("again", f"lost, and done once more: {failure.message}")
