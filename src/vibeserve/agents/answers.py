"""What each role answers. Every field is required and nothing else is allowed: the strictest agents ask for that."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Number = Annotated[float, AfterValidator(_finite)]
Line = Annotated[str, Field(min_length=1, max_length=300)]
Words = Annotated[str, Field(min_length=1, max_length=8000)]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Seen(_Answer):
    """A condition on the candidate's own counters, without which its measurement means nothing."""

    fact: Line
    op: Literal[">=", "<=", ">", "<", "==", "!="]
    value: Number
    why: str


class Idea(_Answer):
    """One falsifiable hypothesis. `parent` is a candidate that is there; `technique` is a short name without blanks."""

    technique: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,59}$")]
    title: Line
    parent: Line
    hypothesis: Words
    expected_effect: Words
    expected_ratio: Annotated[Number, Field(gt=0)]
    falsification: Words
    activation: list[Seen]
    task: Words


class Design(_Answer):
    """The designer's answer: hypotheses to test, best first, or none with the reason why the search should end."""

    hypotheses: list[Idea]
    reason: Words


class Work(_Answer):
    """The implementer's answer: what it did, and what should be seen."""

    summary: Line
    expected_behavior: Words


class Review(_Answer):
    """The reviewer's answer. `feedback` says what to change where the change is not approved."""

    verdict: Literal["approve", "reject"]
    reason: Words
    feedback: str


class Ready(_Answer):
    """What an agent answers when it is asked whether it is there."""

    ready: bool
