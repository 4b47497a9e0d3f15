"""The next values of a technique's knobs: Optuna asks, the rounds so far have told."""

from __future__ import annotations

import math
from typing import Any

from vibeserve.agents.agent import SearchState, Tried
from vibeserve.agents.conditions import UnknownFactError, evaluate
from vibeserve.agents.playbook.technique import Knob, Technique

_TRIES = 20


def suggest(technique: Technique, state: SearchState) -> dict[str, Any] | None:
    """Values for the knobs that no round has tried, or None where there are none left.

    The same state gives the same values: the sampler is seeded, and the study is rebuilt from the recorded rounds.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {knob.setting: _distribution(knob, state) for knob in technique.knobs}
    if any(distribution is None for distribution in space.values()):
        return None
    rounds = [tried for tried in state.history if technique.name in tried.added]
    used = [_values(space, tried.settings) for tried in rounds] + [_values(space, state.settings)]
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=state.seed & 0xFFFFFFFF))
    for tried, values in zip(rounds, used, strict=False):
        if values is not None:
            study.add_trial(optuna.trial.create_trial(params=values, distributions=space, value=_worth(tried)))
    for _ in range(_TRIES):
        values = study.ask(space).params
        if values not in used:
            return values
    return None


def _distribution(knob: Knob, state: SearchState) -> Any:
    import optuna

    if knob.choices:
        return optuna.distributions.CategoricalDistribution(knob.choices)
    try:
        low = math.floor(evaluate(knob.low, state.evidence))
        high = math.floor(evaluate(knob.high, state.evidence))
    except UnknownFactError:
        return None
    high = low + (high - low) // knob.step * knob.step
    return optuna.distributions.IntDistribution(low, high, step=knob.step) if high > low else None


def _values(space: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any] | None:
    values = {name: settings.get(name) for name in space}
    return values if all(_inside(space[name], value) for name, value in values.items()) else None


def _inside(distribution: Any, value: Any) -> bool:
    choices = getattr(distribution, "choices", None)
    if choices is not None:
        return value in choices
    whole = isinstance(value, int) and not isinstance(value, bool)
    return (
        whole and distribution.low <= value <= distribution.high and (value - distribution.low) % distribution.step == 0
    )


def _worth(tried: Tried) -> float:
    """The logarithm of the measured ratio; a round that failed is worth little."""
    return math.log(tried.ratio) if tried.ratio else math.log(0.5)
