"""What is asked of a server of scores (a classifier, a reward model), and how two answers are compared: POST /classify.

Probabilities are compared by their logarithms: near 0 and 1 a difference of the model's own numbers would not be seen otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from typing import Any

from wire import CannotRunError, Case, Reply, case_of, no_other, post, sample_of

ENDPOINT = "/classify"
DISTANCE = "between two scores (logarithms of probabilities; a single number as it is), the farthest of them"
MAX_DISTANCE, MAX_REPEAT, MIN_DISTANCE = 0.1, 0.1, 0.002
CASES = 4
AMOUNT = "texts_per_s"
TRUTH, MAX_MISSED = "", 0.0
TIMES: dict[str, Any] = {}
MAX_TOKENS_IS = "not used by this API; here since every benchmark takes it"
TEMPERATURE_IS = "not used by this API"
PROMPT_LEN_IS = "words of each input, about (default %(default)s)"

_PEOPLE = "baker sailor doctor teacher farmer painter miller driver singer judge nurse pilot guard hunter cook"
_PLACES = "river market harbor forest village tower bridge garden station valley island castle desert lake"
_THINGS = "lamp rope clock letter basket hammer mirror candle ring map bottle drum coat key bell book wheel"
_OPINIONS = (
    "wonderful|terrible|a bit dull|great fun|hopeless|not bad at all|the worst ever|quite good|a scandal|very kind"
)
_VERBS = "found lost carried painted sold watched opened repaired traded broke borrowed cleaned followed"
_SYLLABLES = "ba ve ro ki zu mar tel dor vin lo sha gre nok pel ras tu wen xi yor dak"

__all__ = ["CannotRunError", "Case", "Reply"]


def add_arguments(p: argparse.ArgumentParser) -> None:
    """The options of this contract."""
    p.add_argument("--model", default="", help="the model's name in requests (default: left out)")


def sentence(generator: random.Random, count: int) -> str:
    """About `count` words about an invented name that nobody has used before."""
    pick, name = generator.choice, "".join(generator.sample(_SYLLABLES.split(), 3)).capitalize()
    text = f"{name} the {pick(_PEOPLE.split())} {pick(_VERBS.split())} a {pick(_THINGS.split())} near the {pick(_PLACES.split())}"
    while len(text.split()) < count:
        text += f" and {pick(_VERBS.split())} the {pick(_THINGS.split())} of a {pick(_PEOPLE.split())}"
    return f"{text}, and said that it was {pick(_OPINIONS.split('|'))}."


def make(generator: random.Random, name: str, args: argparse.Namespace) -> Case:
    """A fresh input."""
    body = {"input": sentence(generator, getattr(args, "prompt_len", 16))}
    return Case(name, {**body, "model": args.model} if args.model else body)


other_seed = no_other
other_way = no_other


def broken(case: Case) -> Case:
    """A request that must be refused: no input."""
    return Case("broken", {key: value for key, value in case.body.items() if key != "input"})


async def ask(session: Any, url: str, endpoint: str, case: Case, args: argparse.Namespace) -> Reply:
    """Ask once; what came is opened by `read`, after the clocks have stopped."""
    return await post(session, url, endpoint, case.body)


def read(case: Case, reply: Reply) -> None:
    """Open what came; an answer that is none gets an error."""
    if reply.error or len(reply.values):
        return
    try:
        data = json.loads(reply.raw)["data"]
        if len(data) != 1:
            raise ValueError(f"{len(data)} answers instead of one")
        scores = [float(value) for value in data[0]["probs"]]
        if len(scores) > 1 and not all(0 <= value <= 1 for value in scores):
            raise ValueError(f"no probabilities: {scores[:4]}")
        reply.values = [math.log(max(value, 1e-9)) for value in scores] if len(scores) > 1 else scores
        reply.shape = (len(reply.values),)
    except (ValueError, KeyError, TypeError, LookupError) as error:
        reply.error = f"no scores: {type(error).__name__}: {error}"


def problem(case: Case, reply: Reply, args: argparse.Namespace) -> str:
    """What is wrong with an answer by itself; empty where nothing is."""
    if not all(math.isfinite(value) for value in reply.values):
        return "a score is not finite"
    return "" if len(reply.values) else "no score"


def distance(a: Reply, b: Reply) -> float:
    """The farthest of the scores; infinite where there are more of them in one answer than in the other."""
    if len(a.values) != len(b.values) or not len(a.values):
        return math.inf
    return max(abs(x - y) for x, y in zip(a.values, b.values, strict=True))


def truth(case: Case, reply: Reply) -> float | None:
    """Nothing is known of an answer but the reference's."""
    return None


def amount(case: Case, reply: Reply) -> float:
    """One text."""
    return 1.0


to_sample = sample_of


def from_sample(sample: dict[str, Any]) -> tuple[Case, Reply]:
    """An answer out of the benchmark's JSON."""
    case, reply = case_of(sample)
    read(case, reply)
    return case, reply
