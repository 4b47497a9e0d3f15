"""What is asked of a video server: POST /v1/videos, base64 data back.

The answer holds `frames`: base64 of raw RGB, with `width`, `height` and `count`. A container of a codec would hide equal pictures
behind other bytes.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import math
import random
from typing import Any

from wire import CannotRunError, Case, Reply, case_of, no_other, post, sample_of

ENDPOINT = "/v1/videos"
DISTANCE = "levels (root mean square over all pixels of all frames, 0 to 255)"
MAX_DISTANCE, MAX_REPEAT, MIN_DISTANCE = 12.0, 12.0, 16.0
CASES = 4
AMOUNT = "videos_per_s"
TRUTH, MAX_MISSED = "", 0.0
TIMES: dict[str, Any] = {}
MAX_TOKENS_IS = "not used by this API; here since every benchmark takes it"
TEMPERATURE_IS = "not used by this API"
PROMPT_LEN_IS = "words of each input, about (default %(default)s)"

_PEOPLE = "baker sailor doctor teacher farmer painter miller driver singer judge nurse pilot guard hunter cook"
_PLACES = "river market harbor forest village tower bridge garden station valley island castle desert lake"
_THINGS = "lamp rope clock letter basket hammer mirror candle ring map bottle drum coat key bell book wheel"
_VERBS = "found lost carried painted sold watched opened repaired traded broke borrowed cleaned followed"
_SYLLABLES = "ba ve ro ki zu mar tel dor vin lo sha gre nok pel ras tu wen xi yor dak"

__all__ = ["CannotRunError", "Case", "Reply"]


def add_arguments(p: argparse.ArgumentParser) -> None:
    """The options of this contract."""
    p.add_argument("--size", default="256x256", help="WIDTHxHEIGHT (default %(default)s)")
    p.add_argument("--frames", type=int, default=16, help="frames of each video (default %(default)s)")
    p.add_argument("--steps", type=int, default=20, help="denoising steps (default %(default)s)")


def sentence(generator: random.Random, count: int) -> str:
    """About `count` words about an invented name that nobody has used before."""
    pick, name = generator.choice, "".join(generator.sample(_SYLLABLES.split(), 3)).capitalize()
    text = f"{name} the {pick(_PEOPLE.split())} {pick(_VERBS.split())} a {pick(_THINGS.split())} near the {pick(_PLACES.split())}"
    while len(text.split()) < count:
        text += f" and {pick(_VERBS.split())} the {pick(_THINGS.split())} of a {pick(_PEOPLE.split())}"
    return text + "."


def make(generator: random.Random, name: str, args: argparse.Namespace) -> Case:
    """A fresh input."""
    return Case(name, {
        "prompt": sentence(generator, getattr(args, "prompt_len", 16)), "size": args.size, "frames": args.frames,
        "num_inference_steps": args.steps, "seed": generator.randrange(1 << 31), "response_format": "b64_rgb",
    })  # fmt: skip


def other_seed(case: Case, generator: random.Random) -> Case:
    """The same input with another seed: another answer."""
    return Case(
        f"{case.name}/other-seed", {**case.body, "seed": case.body["seed"] ^ (1 + generator.randrange(1 << 30))}
    )


other_way = no_other


def broken(case: Case) -> Case:
    """A request that must be refused: no prompt."""
    return Case("broken", {key: value for key, value in case.body.items() if key != "prompt"})


async def ask(session: Any, url: str, endpoint: str, case: Case, args: argparse.Namespace) -> Reply:
    """Ask once; what came is opened by `read`, after the clocks have stopped."""
    return await post(session, url, endpoint, case.body)


def read(case: Case, reply: Reply) -> None:
    """Open what came; an answer that is none gets an error."""
    if reply.error or len(reply.values):
        return
    try:
        data = json.loads(reply.raw)["data"][0]
        reply.values = base64.b64decode(data["frames"], validate=True)
        reply.shape = (int(data["count"]), int(data["height"]), int(data["width"]), 3)
        if math.prod(reply.shape) != len(reply.values):
            raise ValueError(f"{len(reply.values)} bytes for {reply.shape}")
    except (ValueError, KeyError, TypeError, LookupError, binascii.Error) as error:
        reply.error = f"no video: {type(error).__name__}: {error}"


def problem(case: Case, reply: Reply, args: argparse.Namespace) -> str:
    """What is wrong with an answer by itself; empty where nothing is."""
    width, height = (int(part) for part in case.body["size"].split("x"))
    if reply.shape != (case.body["frames"], height, width, 3):
        return f"wrong form: {reply.shape} instead of {(case.body['frames'], height, width, 3)}"
    one = len(reply.values) // reply.shape[0]
    if len({reply.values[at : at + one] for at in range(0, len(reply.values), one)}) < 2 <= reply.shape[0]:
        return "a still: all frames are alike"
    return "" if max(reply.values) - min(reply.values) >= 8 else "flat pictures"


def distance(a: Reply, b: Reply) -> float:
    """Root mean square difference over every 7th value; infinite where the forms differ."""
    if a.shape != b.shape or not a.values:
        return math.inf
    x, y = a.values[::7], b.values[::7]
    return math.sqrt(sum((p - q) ** 2 for p, q in zip(x, y, strict=True)) / len(x))


def truth(case: Case, reply: Reply) -> float | None:
    """Nothing is known of an answer but the reference's."""
    return None


def amount(case: Case, reply: Reply) -> float:
    """One video."""
    return 1.0


to_sample = sample_of


def from_sample(sample: dict[str, Any]) -> tuple[Case, Reply]:
    """An answer out of the benchmark's JSON."""
    case, reply = case_of(sample)
    read(case, reply)
    return case, reply
