"""What a user asked of a run, as it is recorded and as `resume` finds it again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from vibeserve.agents import parse_agent
from vibeserve.base.errors import InputError

#: What one whole round of a coding agent (design, implement, review) uses at the least.
ROUND_TOKENS, ROUND_COST_USD = 60_000, 0.25


@dataclass(frozen=True)
class Request:
    """The arguments of `optimize`. `tokens` and `cost_usd` bound what coding agents use; `parallel` is how many hypotheses
    are worked out at once, `call_s` how long one call of an agent may take. `bundle` is a path or a packaged name; or the three directories stand for it.

    Times in seconds. `metric` is `NAME:higher` or `NAME:lower`. `here` measures on a machine that is not the target.
    """

    bundle: str | None = None
    ref: str | None = None
    acc_checker: str | None = None
    bench: str | None = None
    objective: str | None = None
    metric: str | None = None
    agent: str = "playbook"
    rounds: int | None = None
    budget_s: float | None = None
    seed: int = 0
    here: bool = False
    trust_remote_code: bool = False
    tokens: int | None = None
    cost_usd: float | None = None
    parallel: int = 1
    call_s: float = 1800.0

    def __post_init__(self) -> None:
        three = (self.ref, self.acc_checker, self.bench)
        if self.bundle is None and None in three:
            raise InputError("no bundle was named", hint="give a bundle, or all of --ref, --acc-checker and --bench")
        if self.bundle is not None and any(three):
            raise InputError(
                "both a bundle and directories were given", hint="give a bundle, or --ref, --acc-checker and --bench"
            )
        if self.rounds is not None and self.rounds < 1:
            raise InputError(f"--rounds must be at least 1, is {self.rounds}", hint="leave it out for as many as pay")
        if self.budget_s is not None and self.budget_s <= 0:
            raise InputError("--budget must be above 0", hint="for example --budget 10m")
        for name, value in (
            ("tokens", self.tokens),
            ("dollars", self.cost_usd),
            ("hypotheses at once", self.parallel),
            ("seconds a call", self.call_s),
        ):
            if value is not None and value <= 0:
                raise InputError(f"a budget of {name} must be above 0, is {value}", hint="leave it out for the default")
        if parse_agent(self.agent).kind == "playbook" and (self.tokens, self.cost_usd) != (None, None):
            raise InputError("the playbook uses neither tokens nor money", hint="give its budget in time")

    def warning(self) -> str:
        """What to tell a user whose rounds, tokens or money hardly buy more than one proposal; empty where they do."""
        if self.rounds == 1:
            return "--rounds 1 is one proposal: that is no search"
        if self.tokens is not None and self.tokens < 2 * ROUND_TOKENS:
            return (
                f"{self.tokens} tokens may not buy two rounds of an agent (about {2 * ROUND_TOKENS}): that is no search"
            )
        if self.cost_usd is not None and self.cost_usd < 2 * ROUND_COST_USD:
            return f"{self.cost_usd:.2f} dollars may not buy two rounds of an agent (about {2 * ROUND_COST_USD:.2f}): that is no search"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the store."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Request:
        """The request that `to_dict` wrote; keys of later versions are left out."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})
