"""What a user asked of a run, as it is recorded and as `resume` finds it again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from vibeserve.base.errors import InputError

AGENTS = ("playbook",)


@dataclass(frozen=True)
class Request:
    """The arguments of `optimize`. `bundle` is a path or a packaged name; or the three directories stand for it.

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
        if self.agent not in AGENTS:
            raise InputError(f"unknown agent {self.agent!r}", hint=f"known: {', '.join(AGENTS)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the store."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Request:
        """The request that `to_dict` wrote; keys of later versions are left out."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})
