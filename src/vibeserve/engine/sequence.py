"""One request while it is being served."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .types import PRIORITY_STEP_S, Request, TokenLogprobs

if TYPE_CHECKING:
    from .constraints import Constraint
    from .prefix_tree import Node
    from .speculation import Drafter


def urgency(request: Request, arrival: float) -> float:
    """Whom it is the turn of: the lowest first. The moment of arrival, put off by the priority."""
    return arrival + request.priority * PRIORITY_STEP_S


@dataclass(eq=False, slots=True)
class Sequence:
    """Tokens, KV blocks and progress of one request.

    `tokens` is prompt and answer; the first `computed` of them have keys and values in `blocks`, whose first
    `len(nodes)` are shared through the prefix tree. A preempted sequence starts again with `computed` 0.
    """

    request: Request
    arrival: float
    tokens: list[int] = field(init=False)
    prompt_tokens: int = field(init=False)
    seed: int = field(init=False)
    computed: int = 0
    cached_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    table_changed: bool = True
    """Set when `blocks` changed other than by growing."""
    started: bool = False
    drafter: Drafter | None = None
    constraint: Constraint | None = None
    unsent: list[int] = field(default_factory=list)
    """Tokens that were appended without being chosen, and are in no output yet."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    token_counts: dict[int, int] = field(default_factory=dict)
    """How often each token was sampled, for the penalties."""

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)
        self.prompt_tokens = len(self.tokens)
        given = self.request.params.seed
        self.seed = (secrets.randbits(64) if given is None else given) & (2**64 - 1)

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def urgency(self) -> float:
        """See `urgency`."""
        return urgency(self.request, self.arrival)

    @property
    def plain(self) -> bool:
        """Whether the next token needs nothing but the largest logit."""
        return self.constraint is None and self.request.params.plain

    @property
    def sampled(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def pending(self) -> int:
        """Tokens that have no keys and values yet. 1 is plain decoding."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is left to compute."""
        return self.pending == 1 and self.computed > 0
